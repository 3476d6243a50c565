//! Credits of the running transaction: a budget of blocks from which handles draw before they
//! change anything.
//!
//! A handle takes its credits when it begins and gives back the unused ones when it ends. So
//! changed blocks and outstanding credits together do not exceed what one transaction may hold,
//! unless a handle changes more blocks than it has credits. If a handle cannot begin for want of
//! credits, the transaction is committed, which restores the whole budget.
//!
//! Each CPU slot has a pool of credits. Most handles take from their slot's pool, and so share no
//! cache line with other slots. If the pool has too few credits, it draws a portion of the budget.
//! A portion is half the budget divided by the number of pools, or less if less is left, but at
//! least what the handle needs. Credits that a handle gives back go to its slot's pool.

use blockyard_disk::num::u64_from_usize;
use blockyard_sync::{Atomic, AtomicInt, Backend, CachePadded, CpuSlot, Native, Ordering};

/// Credits of one transaction. All accesses are relaxed, because the gate orders them: handles
/// change the numbers while they are inside the gate, and a reset happens while it is closed.
pub(super) struct Credits<B: Backend = Native> {
    /// The budget of a whole transaction.
    budget: u64,
    left: CachePadded<B::AtomicU64>,
    pools: Box<[CachePadded<B::AtomicU64>]>,
    /// Blocks that handles changed beyond their credits; deducted from the budget.
    overdrawn: CachePadded<B::AtomicU64>,
}

impl<B: Backend> Credits<B> {
    /// A full budget for `slots` CPU slots.
    pub(super) fn new(budget: u64, slots: usize) -> Self {
        debug_assert!(budget > 0, "a transaction that may change nothing");
        let pool = || CachePadded::new(B::AtomicU64::new(0));
        Self {
            budget,
            left: CachePadded::new(B::AtomicU64::new(budget)),
            pools: (0..slots.max(1)).map(|_| pool()).collect(),
            overdrawn: CachePadded::new(B::AtomicU64::new(0)),
        }
    }

    /// The most that one handle can get.
    pub(super) const fn budget(&self) -> u64 {
        self.budget
    }

    /// Takes credits. Returns false if neither the slot's pool nor the rest of the budget has
    /// enough.
    pub(super) fn take(&self, slot: CpuSlot, credits: u64) -> bool {
        let pool = &self.pools[slot.index(self.pools.len())];
        let from = |left: &B::AtomicU64, n| {
            left.update(Ordering::Relaxed, Ordering::Relaxed, |has: u64| has.checked_sub(n)).is_ok()
        };
        if from(pool, credits) {
            return true;
        }
        let spare = self.left.load(Ordering::Relaxed);
        let reserve = self.overdrawn.load(Ordering::Relaxed);
        if spare < credits + reserve {
            return false;
        }
        // How much a pool draws at once.
        let portion = self.budget() / 2 / u64_from_usize(self.pools.len());
        let portion = credits.max(portion.min(spare - reserve));
        debug_assert!(portion >= credits, "a portion of {portion} for {credits} credits");
        let taken = from(&self.left, portion);
        if taken && portion > credits {
            pool.fetch_add(portion - credits, Ordering::Relaxed);
        }
        taken || from(&self.left, credits)
    }

    /// Ends a handle that took `taken` credits and used `used`.
    pub(super) fn give_back(&self, slot: CpuSlot, taken: u64, used: u64) {
        debug_assert!(taken <= self.budget(), "{taken} credits of {} come back", self.budget());
        if let Some(unused) = taken.checked_sub(used) {
            self.pools[slot.index(self.pools.len())].fetch_add(unused, Ordering::Relaxed);
        } else {
            self.overdrawn.fetch_add(used - taken, Ordering::Relaxed);
        }
    }

    /// Resets to nothing used and nothing outstanding. The gate must be closed.
    pub(super) fn reset(&self) {
        self.left.store(self.budget, Ordering::Relaxed);
        self.overdrawn.store(0, Ordering::Relaxed);
        for pool in &self.pools {
            pool.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Credits;
    use blockyard_sync::CpuSlot;

    #[test]
    fn the_budget_is_never_passed_and_comes_back() {
        let credits: Credits = Credits::new(100, 2);
        let [one, two] = [0, 1].map(CpuSlot::new);
        assert!(credits.take(one, 60), "all that is free may go to one handle");
        assert!(credits.take(two, 40));
        assert!(!credits.take(one, 1) && !credits.take(two, 1));
        credits.give_back(one, 60, 10);
        assert!(credits.take(one, 50) && !credits.take(one, 1));
        credits.reset();
        assert!(credits.take(two, 70) && credits.take(one, 30) && !credits.take(two, 1));
    }

    #[test]
    fn what_handles_use_beyond_their_credits_comes_off_the_budget() {
        let credits: Credits = Credits::new(100, 1);
        let slot = CpuSlot::ZERO;
        assert!(credits.take(slot, 10));
        credits.give_back(slot, 10, 40);
        assert!(credits.take(slot, 20));
        assert!(!credits.take(slot, 60), "30 are overdrawn");
    }
}
