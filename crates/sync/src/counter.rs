//! Counters that many threads change: sharded by CPU slot, each shard on its own cache line.

use core::fmt;

use crossbeam_utils::CachePadded;

use crate::atomic::{Atomic, AtomicInt, Ordering};
use crate::backend::Backend;
use crate::backend::native::Native;
use crate::slot::CpuSlot;

/// A signed total whose changes go to the caller's shard.
///
/// Adding touches one shard; reading visits all. All accesses are relaxed: a total orders nothing else.
pub struct ShardedCounter<B: Backend = Native> {
    shards: Box<[CachePadded<B::AtomicU64>]>,
}

impl<B: Backend> ShardedCounter<B> {
    /// A counter at 0 with `shards` shards (at least one is made).
    #[must_use]
    pub fn new(shards: usize) -> Self {
        Self { shards: (0..shards.max(1)).map(|_| CachePadded::new(B::AtomicU64::new(0))).collect() }
    }

    /// Adds a signed amount.
    #[inline]
    pub fn add(&self, slot: CpuSlot, amount: i64) {
        // Shards hold two's complement; a wrapping add is a signed add.
        self.shards[slot.index(self.shards.len())].fetch_add(amount.cast_unsigned(), Ordering::Relaxed);
    }

    /// The total: exact when nobody is adding, otherwise of some moment for each shard.
    #[must_use]
    pub fn sum(&self) -> i64 {
        self.shards
            .iter()
            .fold(0u64, |sum, shard| sum.wrapping_add(shard.load(Ordering::Relaxed)))
            .cast_signed()
    }
}

impl<B: Backend> fmt::Debug for ShardedCounter<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ShardedCounter").field(&self.sum()).finish()
    }
}

/// A total that is read cheaply and a little late: Linux's per-CPU counter.
///
/// Each slot keeps a private delta that is folded into the central value when its magnitude reaches the batch, so
/// `|central - total| < slots * batch`. Allocation decisions read the central value, and agree with the kernel's only
/// when it lags in the same way (inode_alloc.md 0.1).
pub struct LaggedCounter<B: Backend = Native> {
    central: CachePadded<B::AtomicU64>,
    deltas: Box<[CachePadded<B::AtomicU64>]>,
    batch: u64,
}

impl<B: Backend> LaggedCounter<B> {
    /// A counter at `initial`, exact at first, for `slots` CPU slots (at least one is made).
    #[must_use]
    pub fn new(initial: i64, slots: usize, batch: u64) -> Self {
        Self {
            central: CachePadded::new(B::AtomicU64::new(initial.cast_unsigned())),
            deltas: (0..slots.max(1)).map(|_| CachePadded::new(B::AtomicU64::new(0))).collect(),
            batch: batch.max(1),
        }
    }

    /// The batch Linux uses on a machine with this many CPUs online: `max(32, 2 * cpus)`.
    #[must_use]
    pub const fn linux_batch(cpus: u32) -> u64 {
        let twice = cpus.saturating_mul(2);
        if twice > 32 { u64_from(twice) } else { 32 }
    }

    /// Adds a signed amount to the slot's delta and folds the delta when it has reached the batch.
    #[inline]
    pub fn add(&self, slot: CpuSlot, amount: i64) {
        let delta = &self.deltas[slot.index(self.deltas.len())];
        let amount = amount.cast_unsigned();
        // Relaxed: the values of a counter order nothing else. The swap takes whatever is there, so two threads that
        // share a slot and both see the batch reached fold each amount once.
        let now = delta.fetch_add(amount, Ordering::Relaxed).wrapping_add(amount);
        if now.cast_signed().unsigned_abs() >= self.batch {
            self.central.fetch_add(delta.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// The central value, at least 0: late by less than `slots * batch`.
    #[inline]
    #[must_use]
    pub fn approximate(&self) -> u64 {
        self.central.load(Ordering::Relaxed).cast_signed().max(0).unsigned_abs()
    }

    /// The total: exact when nobody is adding.
    #[must_use]
    pub fn sum(&self) -> i64 {
        let central = self.central.load(Ordering::Relaxed);
        self.deltas.iter().fold(central, |sum, d| sum.wrapping_add(d.load(Ordering::Relaxed))).cast_signed()
    }
}

impl<B: Backend> fmt::Debug for LaggedCounter<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaggedCounter")
            .field("sum", &self.sum())
            .field("approximate", &self.approximate())
            .finish_non_exhaustive()
    }
}

/// `u64::from` for constant expressions.
#[allow(clippy::as_conversions)]
const fn u64_from(n: u32) -> u64 {
    n as u64
}

#[cfg(test)]
mod tests {
    use super::{LaggedCounter, ShardedCounter};
    use crate::{CpuSlot, Native};

    #[test]
    fn a_sharded_counter_sums_all_slots() {
        let counter = ShardedCounter::<Native>::new(3);
        for slot in 0..7 {
            counter.add(CpuSlot::new(slot), 10 - i64::from(slot) * 5);
        }
        assert_eq!(counter.sum(), 70 - 5 * 21);
    }

    #[test]
    fn threads_lose_nothing() {
        let counter = ShardedCounter::<Native>::new(2);
        std::thread::scope(|scope| {
            for slot in 0..4 {
                let counter = &counter;
                scope.spawn(move || (0..1000).for_each(|_| counter.add(CpuSlot::new(slot), 1)));
            }
        });
        assert_eq!(counter.sum(), 4000);
    }

    #[test]
    fn the_central_value_lags_by_less_than_a_batch() {
        let counter = LaggedCounter::<Native>::new(100, 2, 32);
        for _ in 0..31 {
            counter.add(CpuSlot::ZERO, -1);
        }
        assert_eq!((counter.approximate(), counter.sum()), (100, 69));
        counter.add(CpuSlot::new(1), -31);
        assert_eq!((counter.approximate(), counter.sum()), (100, 38));
        counter.add(CpuSlot::ZERO, -1);
        assert_eq!((counter.approximate(), counter.sum()), (68, 37));
        counter.add(CpuSlot::ZERO, -500);
        assert_eq!((counter.approximate(), counter.sum()), (0, -463));
    }

    #[test]
    fn the_batch_grows_with_the_machine() {
        assert_eq!(LaggedCounter::<Native>::linux_batch(2), 32);
        assert_eq!(LaggedCounter::<Native>::linux_batch(96), 192);
    }
}
