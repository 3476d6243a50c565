//! Counters that many threads change: sharded by CPU slot, each shard on its own cache line.

use core::fmt;

use crossbeam_utils::CachePadded;

use crate::atomic::{Atomic, AtomicInt, Ordering};
use crate::backend::Backend;
use crate::backend::native::Native;
use crate::slot::CpuSlot;

/// A signed total.
///
/// Adding touches only the shard of the caller's CPU slot; reading visits all shards. All accesses
/// are relaxed, because a total publishes no other data.
pub struct ShardedCounter<B: Backend = Native> {
    shards: Box<[CachePadded<B::AtomicU64>]>,
}

impl<B: Backend> ShardedCounter<B> {
    /// A counter at 0 with `shards` shards (at least one is made).
    #[must_use]
    pub fn new(shards: usize) -> Self {
        let shard = |_| CachePadded::new(B::on_line("counter shard", || B::AtomicU64::new(0)));
        Self { shards: (0..shards.max(1)).map(shard).collect() }
    }

    /// Adds a signed amount.
    #[inline]
    pub fn add(&self, slot: CpuSlot, amount: i64) {
        // Shards hold two's complement; a wrapping add is a signed add.
        self.shards[slot.index(self.shards.len())].fetch_add(amount.cast_unsigned(), Ordering::Relaxed);
    }

    /// The total: exact if nobody is adding; otherwise each shard is read at a different moment.
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

/// A total with a central value that is cheap to read and lags behind the total a little, as in
/// Linux's `percpu_counter`.
///
/// Each slot has a delta. When its magnitude reaches the batch, the delta is folded: added to the
/// central value, and set to 0. So `|central - total| < slots * batch`, or twice that while amounts
/// are taken ahead ([`Self::take_ahead`]). Allocation decisions read the central value. They agree
/// with the kernel's only if this value lags in the same way (docs/behaviour/inode-allocation.md).
pub struct LaggedCounter<B: Backend = Native> {
    central: CachePadded<B::AtomicU64>,
    deltas: Box<[CachePadded<B::AtomicU64>]>,
    batch: u64,
    errs: Errs,
}

/// The side on which a total may be wrong while others add. [`LaggedCounter::sum`] names the one
/// case in which it may be wrong on the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errs {
    /// Too low: the safe side for a count of what may still be used.
    Low,
    /// Too high: the safe side for a count of what is promised.
    High,
}

impl<B: Backend> LaggedCounter<B> {
    /// A counter at `initial` for `slots` CPU slots (at least one is made). At first the central
    /// value is the total.
    #[must_use]
    pub fn new(initial: i64, slots: usize, batch: u64) -> Self {
        let central = || B::AtomicU64::new(initial.cast_unsigned());
        let delta = |_| CachePadded::new(B::on_line("counter shard", || B::AtomicU64::new(0)));
        Self {
            central: CachePadded::new(B::on_line("free counter", central)),
            deltas: (0..slots.max(1)).map(delta).collect(),
            batch: batch.max(1),
            errs: Errs::Low,
        }
    }

    /// The same counter with a total that errs on the side `errs` (default [`Errs::Low`]).
    #[must_use]
    pub fn erring(self, errs: Errs) -> Self {
        Self { errs, ..self }
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
        // Relaxed: the values of a counter publish no other data.
        let now = delta.fetch_add(amount, Ordering::Relaxed).wrapping_add(amount);
        self.fold_from(delta, now, self.batch);
    }

    /// Takes `amount` before it is known how much of it is needed. The total falls at once. The
    /// central value changes, as in Linux, only when [`Self::settle`] says how much was used. Until
    /// then the lag may be twice as much. There are two exceptions: an amount above the batch, or a
    /// delta that reaches twice the batch, changes the central value at once.
    #[inline]
    pub fn take_ahead(&self, slot: CpuSlot, amount: u64) {
        if amount > self.batch {
            self.central.fetch_add(amount.wrapping_neg(), Ordering::Relaxed);
            return;
        }
        let delta = &self.deltas[slot.index(self.deltas.len())];
        let now = delta.fetch_add(amount.wrapping_neg(), Ordering::Relaxed).wrapping_sub(amount);
        self.fold_from(delta, now, 2 * self.batch);
    }

    /// Settles `ahead`, an amount taken ahead, of which `taken` was used. Afterwards the total is
    /// as if only [`Self::add`] had been called, with `-taken`. The same holds for the central
    /// value, unless the delta reached twice the batch in [`Self::take_ahead`]. The total never
    /// rises by more than `ahead - taken`.
    #[inline]
    pub fn settle(&self, slot: CpuSlot, ahead: u64, taken: u64) {
        let delta = &self.deltas[slot.index(self.deltas.len())];
        if ahead > self.batch {
            self.add(slot, -taken.cast_signed());
            self.central.fetch_add(ahead, Ordering::Relaxed);
            return;
        }
        let now = match ahead - taken {
            0 => delta.load(Ordering::Relaxed),
            left => delta.fetch_add(left, Ordering::Relaxed).wrapping_add(left),
        };
        self.fold_from(delta, now, self.batch);
    }

    /// Adds an amount and takes it away again. The total does not change. Afterwards the central
    /// value is as if [`Self::add`] had been called with `amount` and then with `-amount`. But if
    /// another thread of the slot changes the delta meanwhile, the central value is not changed
    /// either.
    #[inline]
    pub fn pass_through(&self, slot: CpuSlot, amount: u64) {
        let delta = &self.deltas[slot.index(self.deltas.len())];
        let now = delta.load(Ordering::Relaxed);
        if now.wrapping_add(amount).cast_signed() < self.batch.cast_signed() {
            return;
        }
        let left = if amount < self.batch { amount.wrapping_neg() } else { 0 };
        let moved = now.wrapping_sub(left);
        if (moved.cast_signed() < 0) == (self.errs == Errs::Low) {
            self.central.fetch_add(moved, Ordering::AcqRel);
            if delta.compare_exchange(now, left, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                self.central.fetch_add(moved.wrapping_neg(), Ordering::AcqRel);
            }
        } else if delta.compare_exchange(now, left, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.central.fetch_add(moved, Ordering::AcqRel);
        }
    }

    /// Folds a delta whose value is `now` into the central value if the delta has reached `limit`.
    /// During the fold, a reader may find the amount twice (in the delta and in the central value)
    /// or not at all. The order of the two writes decides which, and is chosen so that a sum errs
    /// on the counter's side ([`Errs`]). The `AcqRel` accesses pair with the acquire loads of
    /// [`Self::sum`].
    #[inline]
    fn fold_from(&self, delta: &B::AtomicU64, now: u64, limit: u64) {
        if now.cast_signed().unsigned_abs() < limit {
            return;
        }
        let lowers = now.cast_signed() < 0;
        if lowers == (self.errs == Errs::Low) {
            self.central.fetch_add(now, Ordering::AcqRel);
            // If another thread of the slot has changed the delta meanwhile, that thread decides
            // whether to fold it.
            if delta.compare_exchange(now, 0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                self.central.fetch_add(now.wrapping_neg(), Ordering::AcqRel);
            }
        } else {
            let moved = delta.swap(0, Ordering::AcqRel);
            self.central.fetch_add(moved, Ordering::AcqRel);
        }
    }

    /// The central value, or 0 if it is negative. The central value differs from the total by less
    /// than `slots * batch`, or twice that while amounts are taken ahead.
    #[inline]
    #[must_use]
    pub fn approximate(&self) -> u64 {
        self.central.load(Ordering::Relaxed).cast_signed().max(0).unsigned_abs()
    }

    /// The total: exact if nobody is adding. It includes everything added before the call, with one
    /// exception: an amount that is folded during the call may count twice or not at all, whichever
    /// errs on the counter's side ([`Errs`]). The total may err on the other side if several folds
    /// during one walk over the deltas cancel out.
    #[must_use]
    pub fn sum(&self) -> i64 {
        let mut central = self.central.load(Ordering::Acquire);
        loop {
            let sum = self.deltas.iter().fold(central, |sum, d| sum.wrapping_add(d.load(Ordering::Acquire)));
            // If a fold changed the central value during the walk, the sum may be wrong on either
            // side, so the walk is repeated. A fold that changed it before the walk, or changes it
            // after, is seen whole or makes the sum err on the counter's side.
            let again = self.central.load(Ordering::Acquire);
            if again == central {
                return sum.cast_signed();
            }
            central = again;
        }
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
    use super::{Errs, LaggedCounter, ShardedCounter};
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

    /// A counter from which amounts are taken ahead and settled has the same values as a counter to
    /// which only the used amounts are added.
    #[test]
    fn what_is_taken_ahead_lags_like_what_is_added() {
        let (ahead, plain) =
            (LaggedCounter::<Native>::new(9000, 2, 32), LaggedCounter::<Native>::new(9000, 2, 32));
        let mut draw = 1u64;
        for _ in 0..2000 {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let slot = CpuSlot::new(u32::from(draw >> 63 == 1));
            let asked = (draw >> 33) % 50;
            let taken = asked.min((draw >> 40) % 60);
            ahead.take_ahead(slot, asked);
            assert_eq!(ahead.sum(), plain.sum() - asked.cast_signed());
            ahead.settle(slot, asked, taken);
            plain.add(slot, -taken.cast_signed());
            assert_eq!((ahead.sum(), ahead.approximate()), (plain.sum(), plain.approximate()));
            ahead.add(slot, taken.cast_signed() / 2);
            plain.add(slot, taken.cast_signed() / 2);
        }
    }

    #[test]
    fn what_passes_through_lags_like_what_is_added_and_taken_away() {
        for errs in [Errs::Low, Errs::High] {
            let [passing, plain] = [(); 2].map(|()| LaggedCounter::<Native>::new(500, 2, 32).erring(errs));
            let mut draw = 1u64;
            let mut moved = 0;
            for _ in 0..2000 {
                draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let slot = CpuSlot::new(u32::from(draw >> 63 == 1));
                let amount = ((draw >> 33) % 70).cast_signed();
                let before = passing.approximate();
                passing.pass_through(slot, amount.unsigned_abs());
                plain.add(slot, amount);
                plain.add(slot, -amount);
                assert_eq!((passing.sum(), passing.approximate()), (plain.sum(), plain.approximate()));
                moved += u32::from(passing.approximate() != before);
                let amount = ((draw >> 40) % 41).cast_signed() - 20;
                passing.add(slot, amount);
                plain.add(slot, amount);
            }
            assert!(moved > 100, "{moved}");
        }
    }

    #[test]
    fn the_batch_grows_with_the_machine() {
        assert_eq!(LaggedCounter::<Native>::linux_batch(2), 32);
        assert_eq!(LaggedCounter::<Native>::linux_batch(96), 192);
    }
}
