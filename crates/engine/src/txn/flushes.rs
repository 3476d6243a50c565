//! Flushes of the file system's device, numbered: whether what was written is durable can be asked
//! later.

use crate::Result;
use blockyard_device::BlockDevice;
use blockyard_sync::{Atomic, AtomicInt, Backend, Native, Ordering};
use std::sync::Arc;

/// The flushes of one device.
pub(crate) struct Flushes<B: Backend = Native> {
    device: Arc<dyn BlockDevice>,
    /// Number of the flush that began last. Sequentially consistent, as is `done`: a ticket orders
    /// a write before every flush with its number or a higher one.
    begun: B::AtomicU64,
    /// Highest number of a flush that ended well.
    done: B::AtomicU64,
}

impl<B: Backend> Flushes<B> {
    /// No flush yet.
    pub(crate) fn new(device: Arc<dyn BlockDevice>) -> Self {
        Self { device, begun: B::AtomicU64::new(0), done: B::AtomicU64::new(0) }
    }

    /// For a write that has just returned: the number of the first flush that is sure to cover it.
    pub(crate) fn ticket(&self) -> u64 {
        self.begun.load(Ordering::SeqCst) + 1
    }

    /// Makes every write that has returned durable.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn flush(&self) -> Result<()> {
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        self.device.flush()?;
        self.done.fetch_max(number, Ordering::SeqCst);
        Ok(())
    }

    /// Makes the write with this ticket durable, if it is not.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn cover(&self, ticket: u64) -> Result<()> {
        debug_assert!(ticket <= self.ticket(), "ticket {ticket} was not given out");
        if self.done.load(Ordering::SeqCst) >= ticket { Ok(()) } else { self.flush() }
    }
}
