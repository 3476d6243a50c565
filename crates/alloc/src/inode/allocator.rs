//! The inodes of one file system: their groups, their counts, and the operations under a group's
//! lock.

use std::sync::Arc;

use blockyard_disk::num::usize_from_u32;
use blockyard_disk::{Geometry, GroupNr, InodeNr};
use blockyard_sync::{Atomic, Backend, CpuSlot, LockClass, Mutex, MutexGuard, Native, Ordering, rank};

use super::config::{BitmapLoad, InodeConfig, InodeGroupFacts, InodeSource};
use super::counts::{FreeClusters, InodeCounts};
use super::error::InodeError;
use super::group::GroupState;
use super::update::InodeUpdate;

/// The inodes of one file system. Shared by all threads. A request locks only the groups in which
/// it looks for a free number, one at a time.
#[derive(Debug)]
pub struct InodeAllocator<B: Backend = Native> {
    pub(super) config: InodeConfig,
    pub(super) geometry: Geometry,
    pub(super) counts: InodeCounts<B>,
    pub(super) clusters: Arc<dyn FreeClusters>,
    pub(super) source: Arc<dyn InodeSource>,
    pub(super) groups: Box<[Mutex<GroupState, B>]>,
    /// The tunable `inode_goal`; 0 if none is set. Accessed relaxed: it is only a hint for later
    /// requests.
    pub(super) goal: B::AtomicU32,
    /// Random starts drawn so far. Accessed relaxed: no other data depends on the count.
    pub(super) draws: B::AtomicU64,
    pub(super) lock_class: LockClass,
}

impl<B: Backend> InodeAllocator<B> {
    /// An allocator over groups whose descriptors say `facts`, in group order.
    ///
    /// # Errors
    /// [`InodeError::BadConfig`] when the facts do not fit the geometry or the configuration, or
    /// the first inode is 0.
    pub fn new(
        geometry: Geometry,
        config: InodeConfig,
        facts: &[InodeGroupFacts],
        clusters: Arc<dyn FreeClusters>,
        source: Arc<dyn InodeSource>,
    ) -> Result<Self, InodeError> {
        config.check(&geometry, facts)?;
        let slots = usize_from_u32(config.cpus.max(1));
        Ok(Self {
            counts: InodeCounts::new(&geometry, facts, &config),
            groups: facts.iter().map(|f| Mutex::new(rank::GROUP_INODES, GroupState::new(f))).collect(),
            goal: B::AtomicU32::new(0),
            draws: B::AtomicU64::new(0),
            lock_class: LockClass::new("group inodes", slots),
            config,
            geometry,
            clusters,
            source,
        })
    }

    /// Frees an inode. `write` puts the change into the journaled bitmap and descriptor. It runs
    /// under the group's lock. Once it has returned, the number can be claimed again. Returns what
    /// `write` returned.
    ///
    /// # Errors
    /// [`InodeError::Corrupt`] when the inode is free already, reserved or beyond the last, or its
    /// group was taken out of use; [`InodeError::Load`] when the bitmap could not be read.
    pub fn free<R>(
        &self,
        inode: InodeNr,
        directory: bool,
        slot: CpuSlot,
        write: impl FnOnce(&InodeUpdate) -> R,
    ) -> Result<R, InodeError> {
        if inode.raw() < self.config.first_inode || inode.raw() > self.geometry.inodes_count() {
            return Err(InodeError::out_of_range(inode));
        }
        let (group, index) = self.geometry.locate_inode(inode);
        let mut state = self.loaded(group, slot)?.ok_or_else(|| InodeError::corrupt_group(group))?;
        if !state.clear(index) {
            return Err(InodeError::not_in_use(inode));
        }
        self.counts.freed(group, directory, slot);
        Ok(write(&self.update(inode, false, &state)))
    }

    /// Sets the tunable `inode_goal`: every later request without a goal of its own starts at this
    /// number. `None` unsets it. A number beyond the last inode counts as unset.
    pub fn set_goal(&self, goal: Option<InodeNr>) {
        self.goal.store(goal.map_or(0, InodeNr::raw), Ordering::Relaxed);
    }

    /// Drops the bitmap of a group from memory; it is read again when needed. Returns false if
    /// nothing was dropped, because claims pin the bitmap or it is not loaded.
    pub fn evict(&self, group: GroupNr, slot: CpuSlot) -> bool {
        self.lock(group, slot).evict()
    }

    /// Takes a group out of use because its bitmap or descriptor is wrong. Its free inodes no
    /// longer count in the total of the file system.
    pub fn mark_corrupt(&self, group: GroupNr, slot: CpuSlot) {
        let mut state = self.lock(group, slot);
        if state.mark_corrupt() {
            self.counts.lost(self.free_in_group(group), slot);
        }
    }

    /// Free inodes of a group. Inodes in uncommitted claims do not count as free.
    #[must_use]
    pub fn free_in_group(&self, group: GroupNr) -> u32 {
        self.counts.free_in_group(group)
    }

    /// Directories of a group, including uncommitted claims for directories.
    #[must_use]
    pub fn directories_in_group(&self, group: GroupNr) -> u32 {
        self.counts.directories_in_group(group)
    }

    /// Free inodes of the file system; exact when nobody allocates or frees.
    #[must_use]
    pub fn free_total(&self) -> u64 {
        self.counts.free_total()
    }

    /// Acquisitions and waits of the groups' locks.
    #[must_use]
    pub const fn lock_class(&self) -> &LockClass {
        &self.lock_class
    }

    /// The geometry that the allocator was made for.
    #[must_use]
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub(super) fn lock(&self, group: GroupNr, slot: CpuSlot) -> MutexGuard<'_, GroupState, B> {
        self.groups[usize_from_u32(group.raw())].lock_ordered_counted(
            u64::from(group.raw()),
            &self.lock_class,
            slot,
        )
    }

    /// Locks a group and makes sure that its bitmap is in memory; `None` when the group is corrupt.
    ///
    /// The bitmap is read without the lock. It is installed only if other threads neither loaded
    /// nor evicted the group meanwhile. If they did both, commits in between may have changed the
    /// bitmap on disk, so what was read may be stale.
    pub(super) fn loaded(
        &self,
        group: GroupNr,
        slot: CpuSlot,
    ) -> Result<Option<MutexGuard<'_, GroupState, B>>, InodeError> {
        let mut state = self.lock(group, slot);
        loop {
            if state.is_corrupt() {
                return Ok(None);
            }
            if state.is_loaded() || state.synthesise(self.geometry.inodes_per_group()) {
                debug_assert!(state.is_loaded(), "group {group} has no bitmap after it was loaded");
                return Ok(Some(state));
            }
            let generation = state.generation();
            drop(state);
            let mut bits = vec![0; usize_from_u32(self.geometry.inodes_per_group().div_ceil(8))];
            let load =
                self.source.load(group, &mut bits).map_err(|source| InodeError::Load { group, source })?;
            match load {
                BitmapLoad::Filled => {
                    state = self.lock(group, slot);
                    state.install(generation, &bits, self.geometry.inodes_per_group());
                }
                BitmapLoad::Corrupt => {
                    self.mark_corrupt(group, slot);
                    return Ok(None);
                }
            }
        }
    }

    /// What bitmap and descriptor must now say about an inode and its group.
    pub(super) fn update(&self, inode: InodeNr, used: bool, state: &GroupState) -> InodeUpdate {
        let (group, index) = self.geometry.locate_inode(inode);
        InodeUpdate {
            inode,
            group,
            index,
            used,
            initialise_bitmap: false,
            first_use: false,
            free_inodes: self.counts.free_in_group(group) + state.claims(),
            used_dirs: self.counts.directories_in_group(group) - state.claimed_directories(),
            itable_unused: if self.config.descriptor_checksums { state.itable_unused() } else { 0 },
        }
    }
}
