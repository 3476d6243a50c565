//! Whether free clusters are held for trimming: for searches that found nothing.

use blockyard_sync::{Atomic, AtomicInt, Backend, Mutex, MutexGuard, Ordering, rank};

/// Whether clusters are or were held.
pub(crate) struct Trims<B: Backend> {
    /// Held by a trim while it holds clusters, and by a search that must not miss any.
    turn: Mutex<(), B>,
    /// Odd while clusters are held. A search that misses held clusters has seen their group under
    /// its lock, and with it this count.
    count: B::AtomicU64,
}

impl<B: Backend> Trims<B> {
    pub(crate) fn new() -> Self {
        Self { turn: Mutex::new(rank::TRIM, ()), count: B::AtomicU64::new(0) }
    }

    /// The value that [`Self::held_since`] takes.
    #[inline]
    pub(crate) fn begun(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether clusters are held, or were since `begun`.
    pub(crate) fn held_since(&self, begun: u64) -> bool {
        !begun.is_multiple_of(2) || self.begun() != begun
    }

    /// Notes that clusters are held from now on, or no longer.
    pub(crate) fn note(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// While this is held, no clusters are.
    pub(crate) fn lock(&self) -> MutexGuard<'_, (), B> {
        self.turn.lock()
    }
}
