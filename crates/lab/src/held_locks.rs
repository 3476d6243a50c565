//! Group locks that look held until a round of overlapping operations ends.

use std::sync::{Mutex, PoisonError};

use blockyard_alloc::{Allocator, LockModel};
use blockyard_disk::GroupNr;
use blockyard_disk::num::usize_from_u32;
use blockyard_sync::{AtomicBool, Ordering};

/// Says which group locks of an allocator look held. One thread drives the model.
pub(crate) struct HeldLocks {
    /// Whether each lock looks held, indexed by the group that stands for the lock
    /// ([`Allocator::lock_of`]). Accessed relaxed, because only one thread drives the model.
    held: Box<[AtomicBool]>,
    /// The locks that look held in this round.
    round: Mutex<Vec<GroupNr>>,
}

impl HeldLocks {
    /// Starts with no lock held.
    pub(crate) fn new(allocator: &Allocator) -> Self {
        let groups = allocator.geometry().groups();
        Self { held: (0..groups).map(|_| AtomicBool::new(false)).collect(), round: Mutex::default() }
    }

    /// Makes the lock of `group` look held until [`Self::release_all`].
    pub(crate) fn hold(&self, allocator: &Allocator, group: GroupNr) {
        let lock = allocator.lock_of(group);
        self.flag(lock).store(true, Ordering::Relaxed);
        self.round.lock().unwrap_or_else(PoisonError::into_inner).push(lock);
    }

    /// Ends the round: no lock looks held any more.
    pub(crate) fn release_all(&self) {
        for lock in self.round.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            self.flag(lock).store(false, Ordering::Relaxed);
        }
    }

    fn flag(&self, lock: GroupNr) -> &AtomicBool {
        &self.held[usize_from_u32(lock.raw())]
    }
}

impl LockModel for HeldLocks {
    fn is_held(&self, lock: GroupNr) -> bool {
        self.flag(lock).load(Ordering::Relaxed)
    }
}
