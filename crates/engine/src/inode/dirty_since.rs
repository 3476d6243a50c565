//! Since when a file has had dirty data: the order of write-back, and its age for the timer.
//!
//! Linux writes files back in the order in which their data became dirty, whatever their numbers (observed on 6.18).

use blockyard_sync::{AtomicU64, Ordering};

/// A hint beside the data, which its content lock guards. Relaxed: who acts on it takes that lock and looks again.
#[derive(Default)]
pub(crate) struct DirtySince {
    /// Place among all files that became dirty, 0 for a clean one.
    order: AtomicU64,
    /// By the writer's clock, in seconds.
    seconds: AtomicU64,
}

impl DirtySince {
    /// The data became dirty.
    pub(crate) fn set(&self, order: u64, seconds: i64) {
        self.seconds.store(seconds.cast_unsigned(), Ordering::Relaxed);
        self.order.store(order, Ordering::Relaxed);
    }

    /// The data is clean.
    pub(crate) fn clear(&self) {
        self.order.store(0, Ordering::Relaxed);
    }

    /// Place in the order and time; `None` for a clean file.
    pub(crate) fn get(&self) -> Option<(u64, i64)> {
        let order = self.order.load(Ordering::Relaxed);
        (order > 0).then(|| (order, self.seconds.load(Ordering::Relaxed).cast_signed()))
    }
}
