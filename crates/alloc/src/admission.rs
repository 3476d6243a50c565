//! Admission: whether the free space, minus what others reserved, has room for a request.
//!
//! Free and reserved clusters are counted by lagging per-CPU counters. While space is plentiful,
//! the cheap values of the counters decide. The exact sums are read when a decision could depend on
//! the lag. Preallocated and pending clusters count as free in these counters, as in `statfs`.
//!
//! A request without a reservation takes its clusters from the free count when it is admitted,
//! before the search. A request that passes a first check is counted and then checked again, and
//! its count is taken back if it does not fit after all. So two concurrent requests are never both
//! promised the last cluster. Near the limit, a lock lets only one caller check at a time.
//!
//! Invariant: free >= reserved by delayed allocation, except while a count that does not fit has
//! not been taken back yet.

use blockyard_disk::num::{u64_from_u32, usize_from_u32};
use blockyard_sync::{Atomic, Backend, CpuSlot, Errs, LaggedCounter, Mutex, Ordering, rank};

use crate::config::AllocConfig;
use crate::request::RequestFlags;

/// The global counters, all in clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct FreeClusters {
    /// Free on disk, preallocated ones included.
    pub free: u64,
    /// Reserved by delayed allocation.
    pub delayed: u64,
    /// Reserved by the file system for itself.
    pub reserved: u64,
    /// Reserved for root.
    pub root_reserved: u64,
}

/// Free and reserved clusters as the lagging counters show them. Each counter lags by less than one
/// batch per CPU slot. While requests run, the free count may lag by twice as much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Free on disk.
    pub free: u64,
    /// Reserved by delayed allocation.
    pub delayed: u64,
    /// Four batches per CPU slot: more than the lag of both counters together.
    pub watermark: u64,
}

impl Room {
    /// Whether delayed data should be written back now: Linux starts when more than half of the
    /// free clusters are reserved.
    #[must_use]
    pub const fn wants_write_back(&self) -> bool {
        self.delayed > 0 && self.free < 2 * self.delayed
    }

    /// Whether new data should be allocated at once: Linux does so when more than two thirds of the
    /// free clusters are reserved, or when the lag of the counters could hide that all of them are.
    #[must_use]
    pub const fn is_short(&self) -> bool {
        2 * self.free < 3 * self.delayed || self.free < self.delayed + self.watermark
    }
}

/// The counters of free and reserved clusters, and the reserves.
pub(crate) struct Admission<B: Backend> {
    free: LaggedCounter<B>,
    dirty: LaggedCounter<B>,
    /// Held for an exact look near the limit. A caller that gets the lock sees the requests of all
    /// callers that held it before.
    exact: Mutex<(), B>,
    /// The file system's own reserve, in clusters. Accessed relaxed: it may change during a check,
    /// which then uses the old value or the new one.
    reserved: B::AtomicU64,
    root: B::AtomicU64,
    /// Above this distance from the limit the lagging values decide.
    watermark: u64,
}

impl<B: Backend> Admission<B> {
    pub(crate) fn new(config: &AllocConfig, free: u64) -> Self {
        let cpus = usize_from_u32(config.cpus);
        let batch = LaggedCounter::<B>::linux_batch(config.cpus);
        Self {
            free: LaggedCounter::new(free.cast_signed(), cpus, batch),
            dirty: LaggedCounter::new(0, cpus, batch).erring(Errs::High),
            exact: Mutex::new(rank::LEAF, ()),
            reserved: B::on_line("reserves", || {
                B::AtomicU64::new(config.reserved.unwrap_or_else(|| config.default_reserved()))
            }),
            root: B::on_line("reserves", || B::AtomicU64::new(config.root_reserved)),
            watermark: 4 * batch * u64_from_u32(config.cpus),
        }
    }

    /// Whether `n` more clusters could be promised now.
    pub(crate) fn has_room(&self, n: u64, flags: RequestFlags) -> bool {
        self.is_plenty(n) || self.fits(n, flags)
    }

    /// Whether `n` more clusters fit even if the counters lag as far as they can.
    fn is_plenty(&self, n: u64) -> bool {
        let (root, reserved) = self.reserves();
        self.free.approximate() >= n + self.dirty.approximate() + root + reserved + self.watermark
    }

    /// Whether `n` more clusters fit, exactly.
    fn fits(&self, n: u64, flags: RequestFlags) -> bool {
        let (root, reserved) = self.reserves();
        // The reserved count is read first. Write-back takes free clusters before it ends their
        // reservation. So clusters that it takes between the two reads count twice rather than not
        // at all. The free count may be below zero for a moment: requests that will not fit have
        // already taken their clusters from it.
        let wanted = n + self.dirty.sum().max(0).unsigned_abs();
        let free = self.free.sum();
        let suffice_for = |wanted: u64| u64::try_from(free).is_ok_and(|free| free >= wanted);
        suffice_for(wanted + root + reserved)
            || (flags.contains(RequestFlags::USE_ROOT) && suffice_for(wanted + reserved))
            || (flags.contains(RequestFlags::USE_RESERVED) && suffice_for(wanted))
    }

    fn reserves(&self) -> (u64, u64) {
        (self.root.load(Ordering::Relaxed), self.reserved.load(Ordering::Relaxed))
    }

    /// Promises `n` clusters: `count` counts them, and `take_back` undoes that when they do not fit
    /// after all. Returns whether they fit. A request that already fails the check before `count`
    /// is not counted at all, so it does not change the lag of the counters, as in Linux.
    fn promise(&self, n: u64, flags: RequestFlags, count: impl FnOnce(), take_back: impl FnOnce()) -> bool {
        let (mut count, take_back) = (Some(count), take_back);
        if self.is_plenty(n) {
            count.take().into_iter().for_each(|count| count());
            // The counters hold `n` already, and `is_plenty` adds it once more. That only makes
            // exact looks a little more frequent.
            if self.is_plenty(n) {
                return true;
            }
        }
        let _one_at_a_time = self.exact.lock();
        if let Some(count) = count {
            if !self.fits(n, flags) {
                return false;
            }
            count();
        }
        let fits = self.fits(0, flags);
        if !fits {
            take_back();
        }
        fits
    }

    /// Reserves clusters for delayed allocation. Returns false, and reserves nothing, if they do
    /// not fit.
    pub(crate) fn reserve(&self, n: u64, flags: RequestFlags, cpu: CpuSlot) -> bool {
        self.promise(n, flags, || self.add_dirty(cpu, n), || self.take_dirty(cpu, n))
    }

    /// The length that may be claimed: `clusters`, halved until it fits. `None` when not even one
    /// cluster fits. The length counts as taken until [`Self::end_admission`]. A request whose
    /// clusters are reserved already gets all of them, and takes nothing here.
    pub(crate) fn admit(&self, clusters: u32, flags: RequestFlags, cpu: CpuSlot) -> Option<u32> {
        if flags.contains(RequestFlags::DELALLOC_RESERVED) {
            return Some(clusters);
        }
        debug_assert!(clusters > 0, "admission of a request for nothing");
        let mut clusters = clusters;
        while clusters > 0 {
            let n = u64_from_u32(clusters);
            if self.promise(n, flags, || self.free.take_ahead(cpu, n), || self.free.settle(cpu, n, 0)) {
                return Some(clusters);
            }
            clusters /= 2;
        }
        None
    }

    /// Ends the admission of `admitted` clusters, of which `taken` were used. Linux counts the
    /// clusters as reserved from admission to end. We only imitate what that does to the lag of the
    /// counter of reserved clusters.
    pub(crate) fn end_admission(&self, admitted: u32, taken: u32, flags: RequestFlags, cpu: CpuSlot) {
        assert!(taken <= admitted, "{taken} clusters taken, {admitted} admitted");
        let (admitted, taken) = (u64_from_u32(admitted), u64_from_u32(taken));
        if flags.contains(RequestFlags::DELALLOC_RESERVED) {
            self.free.add(cpu, -taken.cast_signed());
        } else {
            self.free.settle(cpu, admitted, taken);
            self.dirty.pass_through(cpu, admitted);
        }
    }

    #[inline]
    pub(crate) fn add_free(&self, cpu: CpuSlot, n: u64) {
        self.free.add(cpu, n.cast_signed());
    }

    pub(crate) fn add_dirty(&self, cpu: CpuSlot, n: u64) {
        self.dirty.add(cpu, n.cast_signed());
    }

    pub(crate) fn take_dirty(&self, cpu: CpuSlot, n: u64) {
        self.dirty.add(cpu, -n.cast_signed());
    }

    pub(crate) fn set_reserved(&self, clusters: u64) {
        self.reserved.store(clusters, Ordering::Relaxed);
    }

    /// The sums of the counters, exact if nobody changes the counters meanwhile.
    pub(crate) fn figures(&self) -> FreeClusters {
        FreeClusters {
            free: self.free.sum().max(0).unsigned_abs(),
            delayed: self.dirty.sum().max(0).unsigned_abs(),
            reserved: self.reserved.load(Ordering::Relaxed),
            root_reserved: self.root.load(Ordering::Relaxed),
        }
    }

    /// Free and reserved clusters as the lagging counters show them.
    pub(crate) fn room(&self) -> Room {
        Room { free: self.free.approximate(), delayed: self.dirty.approximate(), watermark: self.watermark }
    }

    /// Free clusters as the lagging counter shows them. The counter lags by less than two batches
    /// per CPU slot.
    pub(crate) fn free_approximate(&self) -> u64 {
        self.free.approximate()
    }
}

#[cfg(test)]
mod room_tests {
    use super::{Admission, Room};
    use crate::config::AllocConfig;
    use crate::memory::MemoryBitmaps;
    use crate::request::RequestFlags;
    use blockyard_sync::{CpuSlot, Native};

    fn admission(free: u64) -> Admission<Native> {
        let geometry = MemoryBitmaps::plain_geometry(1, 0);
        Admission::new(&AllocConfig { reserved: Some(0), ..AllocConfig::new(geometry) }, free)
    }

    /// 22 clusters reserved one by one stay below the batch, so the lagging counter shows none of
    /// them. After a claim without a reservation it shows all 22: Linux counts such a claim as
    /// reserved while it runs, and so the counter passes the batch.
    #[test]
    fn a_claim_takes_along_what_the_counter_of_reserved_clusters_lags_behind() {
        let (none, cpu) = (RequestFlags::empty(), CpuSlot::ZERO);
        let admission = admission(5000);
        (0..22).for_each(|_| assert!(admission.reserve(1, none, cpu)));
        assert_eq!(admission.room().delayed, 0);
        assert_eq!(admission.admit(342, none, cpu), Some(342));
        admission.end_admission(342, 342, none, cpu);
        assert_eq!((admission.room().delayed, admission.figures().delayed), (22, 22));
        admission.take_dirty(cpu, 20);
        admission.end_admission(342, 342, RequestFlags::DELALLOC_RESERVED, cpu);
        assert_eq!((admission.room().delayed, admission.figures().delayed), (22, 2), "a reserved claim");
    }

    #[test]
    fn what_is_refused_leaves_the_lag_as_it_is() {
        let (none, cpu) = (RequestFlags::empty(), CpuSlot::ZERO);
        let admission = admission(50);
        assert!(admission.reserve(20, none, cpu));
        assert!(!admission.reserve(40, none, cpu));
        assert_eq!((admission.room().delayed, admission.figures().delayed), (0, 20));
    }

    const fn room(free: u64, delayed: u64) -> Room {
        Room { free, delayed, watermark: 256 }
    }

    /// The figures at which Linux 6.18 was seen to change its behaviour.
    #[test]
    fn delayed_allocation_ends_where_linux_ends_it() {
        assert!(!room(3540, 1770).wants_write_back());
        assert!(room(3540, 1792).wants_write_back());
        assert!(!room(3540, 1792).is_short());
        assert!(room(3508, 2048).wants_write_back() && !room(3508, 2048).is_short());
        assert!(room(1459, 1024).is_short(), "more than two thirds");
        assert!(!room(403, 128).is_short());
        assert!(room(403, 160).is_short(), "less left over than the counters' lag may hide");
        assert!(!room(0, 0).wants_write_back() && room(0, 0).is_short());
    }
}
