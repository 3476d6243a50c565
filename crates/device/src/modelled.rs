//! Devices with modelled times: a model computes when each request ends, by a clock of its own. No
//! thread sleeps.
//!
//! Content is read from and written to the device below at once. The time of a request follows from
//! the request, from earlier ones, and from the time that [`Modelled::pass`] added. So the same
//! calls give the same times on every machine.
//!
//! The caller of a read or a durable write waits until the request has ended. Other writes and
//! discards go into a queue, as into a drive's cache; their caller waits only while the queue is
//! full. The model may serve the queue in another order. A flush waits for everything in the queue.
//!
//! | model | what it models |
//! |---|---|
//! | `hdd` | zones, a seek curve, rotation, read-ahead into a buffer, a command queue, an elevator before the queue |
//! | `ssd` | flash units that work in parallel and share a link, read and program times, a write buffer |
//! | `ftl` | as `ssd`, with a page map (greedy collection, over-provisioning, trim), so it shows write amplification and wear; at most 2^29 pages and 2^24 blocks |
//! | `latency` | a fixed time and depth: disks at the other end of a network |
//!
//! The parameters are data (`crates/device/models/`, with their sources). The figures of a model
//! are not any vendor's.

mod driver;
mod flash;
mod ftl;
mod hdd;
mod latency;
mod parameters;
mod request;

use std::sync::Arc;
use std::time::Duration;

use blockyard_disk::num::{u64_from_usize, usize_from_u64};
use blockyard_sync::{Mutex, rank};

use crate::{BlockDevice, DeviceId, Result};

pub use driver::{Driver, Figures, replay};
pub use ftl::{FlashOperation, Ftl, FtlShape};
pub use parameters::{BadModel, MODELS, ModelParameters};
pub use request::{BadTrace, Request, RequestKind, RequestTrace};

/// Decides when requests end. Times are since the start of the model.
pub trait Model: Send {
    /// Submits a request at `now`. The caller must never pass an earlier `now` than before, nor one
    /// earlier than an end that [`Self::take_ended`] has reported.
    fn submit(&mut self, id: u64, request: &Request, now: Duration);

    /// Removes the request that ends next. Returns its id and its end; `None` if no request is in
    /// flight.
    fn take_ended(&mut self) -> Option<(u64, Duration)>;

    /// The time from which all ended requests are durable, if a flush is requested at `now`.
    fn durable_at(&self, now: Duration) -> Duration;

    /// The most requests in flight.
    fn depth(&self) -> usize;

    /// Whether the device has seek times, on which Linux's defaults depend.
    fn is_rotational(&self) -> bool;

    /// What the model has counted.
    fn counts(&self) -> ModelCounts;
}

/// Counts of a model, besides time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelCounts {
    /// Requests for which the head had to be positioned, by a seek or by waiting for the platter to
    /// turn; `hdd` only.
    pub positionings: u64,
    /// Reads served from the read-ahead buffer, and discards; `hdd` only.
    pub buffer_hits: u64,
    /// Pages that the host wrote; `ftl` only, like the fields below.
    pub host_pages: u64,
    /// Pages programmed, by block of the flash.
    pub programs: Vec<u64>,
    /// Erasures, by block.
    pub erases: Vec<u64>,
}

impl ModelCounts {
    /// Pages programmed per page that the host wrote; `None` if it wrote none.
    #[must_use]
    pub fn write_amplification(&self) -> Option<f64> {
        use blockyard_disk::num::count_as_f64;
        (self.host_pages > 0)
            .then(|| count_as_f64(self.programs.iter().sum()) / count_as_f64(self.host_pages))
    }

    /// The fewest and the most erasures of a block; `None` unless the model is `ftl`.
    #[must_use]
    pub fn wear_spread(&self) -> Option<(u64, u64)> {
        Some((*self.erases.iter().min()?, *self.erases.iter().max()?))
    }
}

/// A device with the content of another device and the times of a model.
pub struct Modelled<D> {
    below: D,
    clock: Mutex<Clock>,
}

/// What the lock guards.
struct Clock {
    driver: Driver,
    trace: Option<Vec<Request>>,
}

impl<D: BlockDevice> std::fmt::Debug for Modelled<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Modelled").field("figures", &self.figures()).finish_non_exhaustive()
    }
}

impl<D: BlockDevice> Modelled<D> {
    /// A device with the content of `below` and the times of a model of its size.
    ///
    /// # Errors
    /// [`BadModel::Size`] when the model cannot have that size.
    pub fn new(below: D, parameters: &ModelParameters) -> std::result::Result<Self, BadModel> {
        let driver = Driver::new(parameters.model(below.size())?);
        Ok(Self { below, clock: Mutex::new(rank::DEVICE, Clock { driver, trace: None }) })
    }

    /// The device below.
    pub fn below(&self) -> &D {
        &self.below
    }

    /// Records every request from now on.
    pub fn keep_trace(&self) {
        self.clock.lock().trace = Some(Vec::new());
    }

    /// The requests recorded so far; `None` if they are not recorded. Recording continues with an
    /// empty trace.
    #[must_use]
    pub fn take_trace(&self) -> Option<RequestTrace> {
        self.clock.lock().trace.as_mut().map(|trace| RequestTrace::new(std::mem::take(trace)))
    }

    /// Whether the device has seek times. An allocator for this device must be configured with this
    /// value.
    #[must_use]
    pub fn is_rotational(&self) -> bool {
        self.clock.lock().driver.is_rotational()
    }

    /// Time and counts so far, without waiting for requests in flight.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.clock.lock().driver.figures()
    }

    /// Only [`Figures::elapsed`], without a copy of the counts.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.clock.lock().driver.elapsed()
    }

    /// Advances the clock without a request: a caller's computation takes time, too.
    pub fn pass(&self, time: Duration) {
        self.clock.lock().driver.pass(time);
    }

    fn tell(&self, kind: RequestKind, offset: u64, length: u64) {
        let request = Request { kind, offset, length };
        let mut clock = self.clock.lock();
        if let Some(trace) = &mut clock.trace {
            trace.push(request);
        }
        clock.driver.carry_out(&request);
    }
}

impl<D: BlockDevice> BlockDevice for Modelled<D> {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn is_read_only(&self) -> bool {
        self.below.is_read_only()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.below.read_at(offset, buf)?;
        self.tell(RequestKind::Read, offset, u64_from_usize(buf.len()));
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.below.write_at(offset, data)?;
        self.tell(RequestKind::Write, offset, u64_from_usize(data.len()));
        Ok(())
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]]) -> Result<()> {
        self.below.write_vectored_at(offset, parts)?;
        let length = parts.iter().map(|part| u64_from_usize(part.len())).sum();
        self.tell(RequestKind::Write, offset, length);
        Ok(())
    }

    fn write_durable_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.below.write_durable_at(offset, data)?;
        self.tell(RequestKind::DurableWrite, offset, u64_from_usize(data.len()));
        Ok(())
    }

    /// Takes as long as a write of as many bytes.
    fn write_zeroes(&self, offset: u64, length: u64) -> Result<()> {
        self.below.write_zeroes(offset, length)?;
        self.tell(RequestKind::Write, offset, length);
        Ok(())
    }

    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.below.discard(offset, length)?;
        self.tell(RequestKind::Discard, offset, length);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.below.flush()?;
        self.tell(RequestKind::Flush, 0, 0);
        Ok(())
    }

    fn identity(&self) -> DeviceId {
        self.below.identity()
    }
}

/// `part / whole`; a `whole` of 0 counts as 1.
fn share(part: u64, whole: u64) -> f64 {
    use blockyard_disk::num::count_as_f64;
    count_as_f64(part) / count_as_f64(whole.max(1))
}

/// Time for this many bytes at a rate.
fn transfer(bytes: u64, bytes_per_second: u64) -> Duration {
    let nanoseconds = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_second.max(1));
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

/// A vector of equal entries.
fn filled<T: Clone>(value: T, count: u64) -> Vec<T> {
    vec![value; usize_from_u64(count)]
}

/// Devices must be shareable between threads.
const _: fn() = || {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Modelled<Arc<dyn BlockDevice>>>();
};
