//! The set of locks that one thread holds. Each backend keeps one per thread.

use std::collections::BTreeMap;

use crate::rank::Rank;

/// The locks one thread holds. Unused in release builds.
#[derive(Debug)]
#[cfg_attr(not(debug_assertions), allow(dead_code))]
#[doc(hidden)]
pub struct HeldSet {
    // Rank, order key and ticket of each lock, in order of acquisition. A thread holds only a few
    // locks, so a scan is cheapest.
    pub(crate) locks: Vec<(Rank, u64, u64)>,
    next_ticket: u64,
    // Acquisitions so far, by rank number.
    pub(crate) counts: BTreeMap<u16, u64>,
}

impl HeldSet {
    /// Nothing held.
    #[must_use]
    pub const fn new() -> Self {
        Self { locks: Vec::new(), next_ticket: 0, counts: BTreeMap::new() }
    }
}

#[cfg(debug_assertions)]
impl HeldSet {
    pub(crate) fn check(&self, rank: Rank, order: u64) {
        for &(held, held_order, _) in &self.locks {
            assert!(
                (held.number(), held_order) < (rank.number(), order),
                "lock order violated: {rank} (key {order}) wanted while {held} (key {held_order}) is held; see \
                 docs/locking.md"
            );
        }
    }

    pub(crate) fn insert(&mut self, rank: Rank, order: u64) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.locks.push((rank, order, ticket));
        *self.counts.entry(rank.number()).or_default() += 1;
        ticket
    }

    pub(crate) fn remove(&mut self, ticket: u64) {
        if let Some(at) = self.locks.iter().rposition(|&(.., t)| t == ticket) {
            self.locks.remove(at);
        }
    }
}
