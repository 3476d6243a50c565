//! One writer per device. The whole process shares one list of the devices in use, so it does not
//! matter which pointer leads to a device.
//!
//! A device that is open for writing has no other user; readers share a device. Between processes
//! the lock of [`FileDevice`](crate::FileDevice) ensures the same. A pointer, a recorder or a fault
//! injector counts as the device behind it ([`BlockDevice::identity`]).

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use blockyard_sync::{Mutex, rank};

use crate::{BlockDevice, DeviceError, Result};

/// Distinguishes the devices of a process while they exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(usize);

impl DeviceId {
    /// The identity of a device that is no view of another one: its address in memory.
    #[must_use]
    pub fn of<D: ?Sized>(device: &D) -> Self {
        Self(std::ptr::from_ref(device).cast::<()>().addr())
    }
}

/// How a device is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// By this many readers.
    Read(u32),
    /// By one writer.
    Write,
}

/// The devices in use.
static USED: LazyLock<Mutex<BTreeMap<DeviceId, Use>>> =
    LazyLock::new(|| Mutex::new(rank::LEAF, BTreeMap::new()));

/// The right to use a device. Dropping it releases the right.
pub struct Claim {
    /// Kept alive, so that no other device gets its address meanwhile.
    device: Arc<dyn BlockDevice>,
}

impl std::fmt::Debug for Claim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Claim").field(&self.device.identity()).finish()
    }
}

impl Claim {
    /// Claims the device for writing.
    ///
    /// # Errors
    /// [`DeviceError::Busy`] when somebody uses it.
    pub fn write(device: &Arc<dyn BlockDevice>) -> Result<Self> {
        let mut used = USED.lock();
        match used.get(&device.identity()) {
            Some(Use::Write) => Err(DeviceError::Busy("this process has it open for writing already")),
            Some(Use::Read(_)) => Err(DeviceError::Busy("this process has it open for reading")),
            None => {
                used.insert(device.identity(), Use::Write);
                Ok(Self { device: Arc::clone(device) })
            }
        }
    }

    /// Claims the device for reading, with nobody writing meanwhile.
    ///
    /// # Errors
    /// [`DeviceError::Busy`] when somebody writes to it.
    pub fn read(device: &Arc<dyn BlockDevice>) -> Result<Self> {
        let mut used = USED.lock();
        let readers = match used.get(&device.identity()) {
            Some(Use::Write) => {
                return Err(DeviceError::Busy("this process has it open for writing"));
            }
            Some(Use::Read(readers)) => *readers,
            None => 0,
        };
        used.insert(device.identity(), Use::Read(readers + 1));
        Ok(Self { device: Arc::clone(device) })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut used = USED.lock();
        let id = self.device.identity();
        match used.get(&id) {
            Some(Use::Read(readers)) if *readers > 1 => {
                let left = Use::Read(readers - 1);
                used.insert(id, left);
            }
            _ => {
                used.remove(&id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Claim;
    use crate::{BlockDevice, DeviceError, FaultyDevice, MemoryDevice, OverlayDevice, RecorderDevice};
    use std::sync::Arc;

    fn is_busy(claim: Result<Claim, DeviceError>) -> bool {
        matches!(claim, Err(DeviceError::Busy(_)))
    }

    #[test]
    fn a_writer_is_alone_and_readers_share() {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(4096));
        let other: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(4096));
        let writer = Claim::write(&device).unwrap();
        assert!(is_busy(Claim::write(&device)) && is_busy(Claim::read(&device)));
        let _others = Claim::write(&other).unwrap();
        drop(writer);
        let readers = [Claim::read(&device).unwrap(), Claim::read(&device).unwrap()];
        assert!(is_busy(Claim::write(&device)));
        let [first, second] = readers;
        drop(first);
        assert!(is_busy(Claim::write(&device)));
        drop(second);
        drop(Claim::write(&device).unwrap());
    }

    /// A view has the same content as its device. Writes to an overlay stay in the overlay.
    #[test]
    fn views_of_one_device_are_that_device() {
        let memory = Arc::new(MemoryDevice::new(4096));
        let plain: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&memory);
        let _writer = Claim::write(&plain).unwrap();
        let boxed: Arc<dyn BlockDevice> = Arc::new(Box::new(Arc::clone(&memory)));
        assert!(is_busy(Claim::write(&boxed)));
        let recorded: Arc<dyn BlockDevice> =
            Arc::new(RecorderDevice::new(FaultyDevice::new(Arc::clone(&memory))));
        assert!(is_busy(Claim::write(&recorded)));
        let overlay: Arc<dyn BlockDevice> = Arc::new(OverlayDevice::new(memory));
        drop(Claim::write(&overlay).unwrap());
    }
}
