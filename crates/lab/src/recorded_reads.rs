//! Records which bytes of an image our own code reads, in the order of the reads.

use std::sync::Arc;

use anyhow::Result;
use blockyard_device::BlockDevice;
use blockyard_device::modelled::{ModelParameters, Modelled, Request, RequestKind};

/// Which model this is does not matter: every model records the same requests.
const MODEL: &str = "sata-ssd-2018";

/// Runs `what` on a device that records requests. Returns the first byte and the length of every
/// read, and the result of `what`.
///
/// # Errors
/// Those of `what`.
pub(crate) fn recorded_reads<T>(
    device: &Arc<dyn BlockDevice>,
    what: impl FnOnce(Arc<dyn BlockDevice>) -> Result<T>,
) -> Result<(Vec<(u64, u64)>, T)> {
    let recording = Arc::new(Modelled::new(Arc::clone(device), &ModelParameters::named(MODEL)?)?);
    recording.keep_trace();
    let found = what(Arc::<Modelled<Arc<dyn BlockDevice>>>::clone(&recording))?;
    let trace = recording.take_trace().unwrap_or_default();
    let reads = trace.requests().iter().filter(|request| request.kind == RequestKind::Read);
    Ok((reads.map(|&Request { offset, length, .. }| (offset, length)).collect(), found))
}

/// Options for a check of the device in one thread, so that its reads have the same order in every
/// run.
pub(crate) fn in_one_thread() -> blockyard_check::Options {
    blockyard_check::Options { threads: Some(1), ..blockyard_check::Options::default() }
}

#[cfg(test)]
mod tests {
    use blockyard_device::MemoryDevice;

    use super::*;

    #[test]
    fn reads_are_recorded_in_their_order_and_writes_are_not() {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(1 << 20));
        let (reads, found) = recorded_reads(&device, |device| {
            let mut buf = [0; 512];
            device.read_at(8192, &mut buf)?;
            device.write_at(0, &[7; 512])?;
            device.read_at(0, &mut buf[..8])?;
            Ok(buf[0])
        })
        .unwrap();
        assert_eq!((reads, found), (vec![(8192, 512), (0, 8)], 7));
    }
}
