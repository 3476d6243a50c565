//! Statistics of one shared lock or of a family of locks.

use crate::backend::native::Native;
use crate::counter::ShardedCounter;
use crate::slot::CpuSlot;

/// Counts acquisitions, waits and failed tries of the locks that belong to the class.
///
/// The counters are native under every backend. They only observe the locks, so a backend need not
/// schedule or charge accesses to the counters.
#[derive(Debug)]
pub struct LockClass {
    name: &'static str,
    acquisitions: ShardedCounter<Native>,
    waits: ShardedCounter<Native>,
    busy: ShardedCounter<Native>,
}

/// The counts of a [`LockClass`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockClassFigures {
    /// Times a lock of the class was taken.
    pub acquisitions: u64,
    /// Acquisitions that had to wait.
    pub waits: u64,
    /// Tries that failed because the lock was held.
    pub busy: u64,
}

impl LockClass {
    /// A class, with a shard for each of `slots` CPU slots.
    #[must_use]
    pub fn new(name: &'static str, slots: usize) -> Self {
        Self {
            name,
            acquisitions: ShardedCounter::new(slots),
            waits: ShardedCounter::new(slots),
            busy: ShardedCounter::new(slots),
        }
    }

    /// The name in reports.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Counts one acquisition. Called by the counted lock methods, and by users of a lock that has
    /// no such methods.
    #[inline]
    pub fn count_acquisition(&self, slot: CpuSlot) {
        self.acquisitions.add(slot, 1);
    }

    /// Counts that an acquisition had to wait. The caller counts the acquisition itself with
    /// [`Self::count_acquisition`].
    #[inline]
    pub fn count_wait(&self, slot: CpuSlot) {
        self.waits.add(slot, 1);
    }

    /// Counts one try that failed.
    #[inline]
    pub fn count_busy(&self, slot: CpuSlot) {
        self.busy.add(slot, 1);
    }

    /// The counts so far; exact if nobody is counting.
    #[must_use]
    pub fn figures(&self) -> LockClassFigures {
        LockClassFigures {
            acquisitions: self.acquisitions.sum().unsigned_abs(),
            waits: self.waits.sum().unsigned_abs(),
            busy: self.busy.sum().unsigned_abs(),
        }
    }
}
