//! The locks a thread holds, and the check of their order (debug builds).
//!
//! Rule: a thread may wait for a lock only if the lock's `(rank, order key)` is greater than the
//! pair of every lock that the thread holds. So several locks of one rank, such as the locks of
//! inodes, must be taken in ascending order of their keys (`lock_ordered`). Locks taken by a try
//! are recorded but not checked: a try never waits.

use core::marker::PhantomData;

use crate::backend::Backend;
use crate::held_set::HeldSet;
use crate::rank::{ALL, Rank};

/// The record of one held lock; dropping it removes the record. Empty in release builds.
#[derive(Debug)]
pub(crate) struct Held<B: Backend> {
    #[cfg(debug_assertions)]
    ticket: u64,
    backend: PhantomData<B>,
}

impl<B: Backend> Held<B> {
    /// Checks the order before waiting for a lock.
    #[inline]
    pub(crate) fn check(tag: Tag, order: u64) {
        #[cfg(debug_assertions)]
        B::with_held(|set| set.check(tag.rank, order));
        #[cfg(not(debug_assertions))]
        let _ = (tag, order);
    }

    /// Records a lock that was just taken.
    #[inline]
    pub(crate) fn record(tag: Tag, order: u64) -> Self {
        #[cfg(debug_assertions)]
        return Self { ticket: B::with_held(|set| set.insert(tag.rank, order)), backend: PhantomData };
        #[cfg(not(debug_assertions))]
        {
            let _ = (tag, order);
            Self { backend: PhantomData }
        }
    }
}

#[cfg(debug_assertions)]
impl<B: Backend> Drop for Held<B> {
    fn drop(&mut self) {
        B::with_held(|set| set.remove(self.ticket));
    }
}

/// The rank of a lock if ranks are checked; empty otherwise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tag {
    #[cfg(debug_assertions)]
    rank: Rank,
}

impl Tag {
    #[inline]
    pub(crate) const fn new(rank: Rank) -> Self {
        #[cfg(debug_assertions)]
        return Self { rank };
        #[cfg(not(debug_assertions))]
        {
            let _ = rank;
            Self {}
        }
    }
}

/// Panics in debug builds if the calling thread holds any lock. For code that waits for something
/// other than a lock: a commit, or device I/O.
#[inline]
pub fn assert_none_held<B: Backend>(what: &str) {
    #[cfg(debug_assertions)]
    B::with_held(|set| {
        if let Some((rank, order, _)) = set.locks.first() {
            panic!("{what} while {rank} (key {order}) is held; see docs/locking.md");
        }
    });
    #[cfg(not(debug_assertions))]
    let _ = what;
}

/// For each rank, how many times the calling thread has taken a lock of that rank so far. Shared
/// acquisitions count, too; ranks with none are left out. `None` in release builds, which do not
/// count.
#[must_use]
pub fn locks_taken<B: Backend>() -> Option<Vec<(Rank, u64)>> {
    if !cfg!(debug_assertions) {
        return None;
    }
    let count = |set: &mut HeldSet| {
        let of = |rank: &Rank| Some((*rank, *set.counts.get(&rank.number())?));
        ALL.iter().filter_map(of).collect()
    };
    Some(B::with_held(count))
}
