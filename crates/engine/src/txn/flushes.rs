//! The flushes of the file system's device, numbered so that one can tell later whether a write has
//! become durable.

use crate::Result;
use blockyard_device::BlockDevice;
use blockyard_sync::{Atomic, AtomicInt, Backend, Native, Ordering};
use std::sync::Arc;

/// The flushes of one device.
pub(crate) struct Flushes<B: Backend = Native> {
    device: Arc<dyn BlockDevice>,
    /// Number of the last flush that began. Accesses to this and to `done` are sequentially
    /// consistent, so a write happens before every flush whose number is the write's ticket or
    /// higher.
    begun: B::AtomicU64,
    /// Highest number of all successful flushes.
    done: B::AtomicU64,
}

impl<B: Backend> Flushes<B> {
    /// No flush yet.
    pub(crate) fn new(device: Arc<dyn BlockDevice>) -> Self {
        Self { device, begun: B::AtomicU64::new(0), done: B::AtomicU64::new(0) }
    }

    /// The number of the first flush that is sure to cover a write that has just returned.
    pub(crate) fn ticket(&self) -> u64 {
        self.begun.load(Ordering::SeqCst) + 1
    }

    /// Makes all writes that have returned durable.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn flush(&self) -> Result<()> {
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        self.device.flush()?;
        self.done.fetch_max(number, Ordering::SeqCst);
        Ok(())
    }

    /// Makes the write with this ticket durable, unless it is already.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn cover(&self, ticket: u64) -> Result<()> {
        debug_assert!(ticket <= self.ticket(), "ticket {ticket} was not given out");
        if self.done.load(Ordering::SeqCst) >= ticket { Ok(()) } else { self.flush() }
    }
}
