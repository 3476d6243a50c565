//! All groups of a file system, and the ways to lock one.
//!
//! Each group has a lock of its own. With `locks=hashed`, a thread first takes one of 128 shared
//! locks, as in Linux: groups with equal numbers modulo 128 share one. A thread locks at most one
//! group at a time.
//!
//! The contention counter (0 to 8) rises when a thread has to wait for a lock, and falls with every
//! immediate acquisition. While it is above 2, the locks count as contended. The only effect is
//! that the last blocks of a closed file are then requested with a preallocation.

use blockyard_disk::num::{u64_from_u32, usize_from_u32};
use blockyard_disk::{Geometry, GroupNr};
use blockyard_sync::{Atomic, Backend, CachePadded, CpuSlot, LockClassFigures, Mutex, Ordering, rank};

use super::{Group, GroupGuard};
use crate::config::{AllocConfig, GroupFacts};
use crate::index::Indexes;
use crate::lock_model::ModelledLocks;
use crate::policy::slots::Locks;

/// Locks under `locks=hashed`: as in a kernel built for 32 CPUs or more.
const HASHED_LOCKS: u32 = 128;
const CONTENTION_MAX: u32 = 8;
const CONTENTION_BUSY: u32 = 2;

/// A lock that several groups share.
type SharedLock<B> = CachePadded<Mutex<(), B>>;

/// All groups of a file system, the locks that groups may share, and the group indexes.
pub(crate) struct GroupTable<B: Backend> {
    pub(crate) geometry: Geometry,
    pub(crate) groups: Box<[Group<B>]>,
    pub(crate) indexes: Indexes<B>,
    shared_locks: Option<Box<[SharedLock<B>]>>,
    pub(crate) modelled: ModelledLocks,
    /// The contention counter. Accessed relaxed: an older value does no harm.
    contention: CachePadded<B::AtomicU32>,
    /// Groups loaded now. Accessed relaxed: the count only decides when to evict, and may be
    /// slightly off.
    pub(super) loaded: CachePadded<B::AtomicU32>,
    /// Buddies built since open. Accessed relaxed: the count is only a statistic.
    pub(super) built: CachePadded<B::AtomicU64>,
    /// The group at which the next eviction begins to look. Accessed relaxed: any group will do.
    pub(super) hand: CachePadded<B::AtomicU32>,
    /// Groups that may be loaded before eviction starts.
    pub(super) loaded_max: u32,
}

impl<B: Backend> GroupTable<B> {
    pub(crate) fn new(config: &AllocConfig, facts: &[GroupFacts], indexes: Indexes<B>) -> Self {
        let geometry = config.geometry;
        assert_eq!(facts.len(), usize_from_u32(geometry.groups()), "facts of each group");
        let lock = |_| CachePadded::new(B::on_line("hashed lock", || Mutex::new(rank::GROUP, ())));
        let shared = (config.policy.locks == Locks::Hashed).then(|| (0..HASHED_LOCKS).map(lock).collect());
        // The memory of a loaded group: a block for its bitmap, as much again for the higher orders
        // of the buddy, and 512 bytes for the rest.
        let group_bytes = 2 * blockyard_disk::num::u64_from_usize(geometry.block_size()) + 512;
        let loaded_max = (config.memory_max / group_bytes).clamp(2, u64::from(u32::MAX));
        Self {
            geometry,
            groups: facts.iter().map(|facts| Group::new(facts.free, facts.block_uninit)).collect(),
            indexes,
            shared_locks: shared,
            modelled: ModelledLocks::none(),
            contention: CachePadded::new(B::on_line("contention counter", || B::AtomicU32::new(0))),
            loaded: CachePadded::new(B::AtomicU32::new(0)),
            built: CachePadded::new(B::AtomicU64::new(0)),
            hand: CachePadded::new(B::AtomicU32::new(0)),
            loaded_max: blockyard_disk::num::u32_from_u64(loaded_max),
        }
    }

    #[inline]
    pub(crate) fn group(&self, nr: GroupNr) -> &Group<B> {
        &self.groups[usize_from_u32(nr.raw())]
    }

    /// The group that stands for the lock of group `nr`: `nr` itself, or under `locks=hashed` the
    /// lowest number that shares the lock.
    #[inline]
    pub(crate) fn lock_of(&self, nr: GroupNr) -> GroupNr {
        if self.shared_locks.is_some() { GroupNr::new(nr.raw() % HASHED_LOCKS) } else { nr }
    }

    fn shared_lock(&self, nr: GroupNr) -> Option<&Mutex<(), B>> {
        self.shared_locks.as_ref().map(|locks| &*locks[usize_from_u32(nr.raw() % HASHED_LOCKS)])
    }

    /// Whether somebody holds the group's lock right now.
    #[inline]
    pub(crate) fn is_busy(&self, nr: GroupNr) -> bool {
        let lock_is_held = match self.shared_lock(nr) {
            Some(lock) => lock.is_locked(),
            None => self.group(nr).state.is_locked(),
        };
        lock_is_held || self.modelled.is_held(self.lock_of(nr))
    }

    /// Takes the group's lock; waits for it if necessary.
    #[inline]
    pub(crate) fn lock(&self, nr: GroupNr, cpu: CpuSlot) -> GroupGuard<'_, B> {
        if let Some(guard) = self.acquire(nr, cpu) {
            self.lower_contention();
            return guard;
        }
        self.raise_contention();
        let shared = self.shared_lock(nr).map(|lock| lock.lock_ordered(0));
        let group = self.group(nr);
        let mut state = group.state.lock_ordered(u64_from_u32(nr.raw()) + 1);
        state.acquisitions = state.acquisitions.wrapping_add(1);
        state.waits = state.waits.wrapping_add(1);
        GroupGuard { state, _shared: shared, group, indexes: &self.indexes, nr, cpu }
    }

    /// Takes the group's lock. Returns `None` if a thread holds the lock, or if a model of
    /// overlapping operations says that it is held ([`ModelledLocks`]).
    #[inline]
    pub(crate) fn try_lock(&self, nr: GroupNr, cpu: CpuSlot) -> Option<GroupGuard<'_, B>> {
        if self.modelled.is_held(self.lock_of(nr)) {
            return None;
        }
        let guard = self.acquire(nr, cpu)?;
        self.lower_contention();
        Some(guard)
    }

    #[inline]
    fn acquire(&self, nr: GroupNr, cpu: CpuSlot) -> Option<GroupGuard<'_, B>> {
        let shared = match self.shared_lock(nr) {
            Some(lock) => Some(lock.try_lock_ordered(0)?),
            None => None,
        };
        let group = self.group(nr);
        let mut state = match &shared {
            Some(_) => group.state.lock_ordered(u64_from_u32(nr.raw()) + 1),
            None => group.state.try_lock_ordered(u64_from_u32(nr.raw()) + 1)?,
        };
        state.acquisitions = state.acquisitions.wrapping_add(1);
        Some(GroupGuard { state, _shared: shared, group, indexes: &self.indexes, nr, cpu })
    }

    #[inline]
    fn lower_contention(&self) {
        let contention = self.contention.load(Ordering::Relaxed);
        if contention > 0 {
            let _ = self.contention.update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        }
    }

    #[inline]
    fn raise_contention(&self) {
        let _ = self
            .contention
            .update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < CONTENTION_MAX).then_some(n + 1));
    }

    /// Whether the contention counter is so high that the group locks count as contended.
    #[inline]
    pub(crate) fn contended(&self) -> bool {
        self.contention.load(Ordering::Relaxed) > CONTENTION_BUSY
    }

    /// Buddies built since open.
    pub(crate) fn buddies_built(&self) -> u64 {
        self.built.load(Ordering::Relaxed)
    }

    /// Acquisitions and waits of all group locks. Locks one group after the other to read them.
    pub(crate) fn lock_figures(&self) -> LockClassFigures {
        let mut figures = LockClassFigures::default();
        for group in &self.groups {
            let state = group.state.lock();
            figures.acquisitions += u64::from(state.acquisitions);
            figures.waits += u64::from(state.waits);
        }
        figures
    }
}
