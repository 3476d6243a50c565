//! Tells a search that found nothing whether free clusters are held for trimming.

use blockyard_sync::{Atomic, AtomicInt, Backend, Mutex, MutexGuard, Ordering, rank};

/// Whether a trim holds clusters now, and how often that has changed.
pub(crate) struct Trims<B: Backend> {
    /// Locked by a trim while it holds clusters, and by a request that searches again because
    /// clusters were held.
    turn: Mutex<(), B>,
    /// Odd while clusters are held.
    ///
    /// Relaxed accesses are enough. The count changes under the lock of the group whose clusters
    /// are held, and a search with strict checks locks each group that it tests. If such a search
    /// sees held clusters as used, it locked their group after the count became odd. So what it
    /// reads from the count afterwards is that odd value or a later one.
    count: B::AtomicU64,
}

impl<B: Backend> Trims<B> {
    pub(crate) fn new() -> Self {
        Self { turn: Mutex::new(rank::TRIM, ()), count: B::AtomicU64::new(0) }
    }

    /// The count at this moment, for [`Self::held_since`].
    #[inline]
    pub(crate) fn begun(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether clusters are held, or were held at any time since `begun` was read.
    pub(crate) fn held_since(&self, begun: u64) -> bool {
        !begun.is_multiple_of(2) || self.begun() != begun
    }

    /// Notes that clusters are held from now on, or are no longer held.
    pub(crate) fn note(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Locks the turn. While the caller has the guard, no trim holds clusters.
    pub(crate) fn lock(&self) -> MutexGuard<'_, (), B> {
        self.turn.lock()
    }
}
