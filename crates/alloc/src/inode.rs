//! Inode allocation: which group a new inode goes to, and the claim of a number inside it.
//!
//! A request is served in two steps. The *search* ([`search`]) reads counts without any lock and names a group; the
//! *claim* takes that group's lock, finds a free bit, and moves on to the next group when there is none. Counts may
//! move between the two; the claim then finds what the group still has, as the kernel does.
//!
//! What decides is approximate on purpose: the three totals of the file system lag as Linux's per-CPU counters do,
//! group and flex counts are exact. With one CPU slot and the same order of requests the numbers equal the kernel's.
//!
//! Invariants, for every group: `free count + bits set in the bitmap = inodes per group`; a bit is set from the claim
//! on; the descriptor that [`InodeUpdate`] reports counts claims that are not committed as free.

mod bitmap;
mod claim;
mod config;
mod counts;
mod error;
mod goal;
mod group;
mod search;

use std::sync::Arc;

use blockyard_disk::dirhash::{DirHasher, HashSeed, HashVersion};
use blockyard_disk::num::usize_from_u32;
use blockyard_disk::{Geometry, GroupNr, InodeNr};
use blockyard_sync::{Atomic, Backend, CpuSlot, LockClass, Mutex, MutexGuard, Native, Ordering, rank};

pub use claim::{InodeClaim, InodeUpdate};
pub use config::{
    BitmapLoad, InodeConfig, InodeGroupFacts, InodeRequest, InodeSource, RecentDeletion, Switches,
};
pub use counts::{ClusterCounts, FreeClusters};
pub use error::InodeError;
pub use goal::goal_for_inode;

pub use crate::policy::slots::{DirBlocks, InodeGroup};

use bitmap::Recency;
use counts::InodeCounts;
use group::GroupState;

/// What a directory remembers for the placement of its children: the group of the last one.
///
/// It lives in the directory's in-core inode, guarded by the directory's lock, and starts empty whenever the
/// directory is created or read from disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InodeDirAlloc {
    last_group: Option<GroupNr>,
}

impl InodeDirAlloc {
    /// The group the search chose for the last child, if any.
    #[must_use]
    pub const fn last_group(&self) -> Option<GroupNr> {
        self.last_group
    }
}

/// The inodes of one file system. Shared by all threads: no lock but the one of the group a request ends in.
#[derive(Debug)]
pub struct InodeAllocator<B: Backend = Native> {
    config: InodeConfig,
    geometry: Geometry,
    counts: InodeCounts<B>,
    clusters: Arc<dyn FreeClusters>,
    source: Arc<dyn InodeSource>,
    groups: Box<[Mutex<GroupState, B>]>,
    /// The tunable `inode_goal`; 0 is none. Relaxed: a hint for later requests.
    goal: B::AtomicU32,
    /// Draws so far where a start is random. Relaxed: only the number matters.
    draws: B::AtomicU64,
    lock_class: LockClass,
}

impl<B: Backend> InodeAllocator<B> {
    /// An allocator over groups whose descriptors say `facts`, one for each group in order.
    ///
    /// # Errors
    /// [`InodeError::BadConfig`] when the facts do not fit the geometry or each other.
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
            counts: InodeCounts::new(&geometry, facts, config.cpus),
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

    /// Claims an inode for a child of a directory, which remembers the group in `parent`.
    ///
    /// # Errors
    /// [`InodeError::NoInodes`] when no group has a free one; [`InodeError::Load`] when a bitmap could not be read.
    pub fn allocate(
        &self,
        request: &InodeRequest,
        parent: &mut InodeDirAlloc,
    ) -> Result<InodeClaim<'_, B>, InodeError> {
        let choice = self.first_choice(request, parent);
        // Also after a failed search, which leaves group 0 behind: observed on Linux 6.18.
        parent.last_group = Some(choice.map_or(GroupNr::ZERO, |(group, _)| group));
        let (first, start) = choice.ok_or(InodeError::NoInodes)?;
        debug_assert!(first.raw() < self.geometry.groups(), "the search chose group {first}");
        // One step more than there are groups: with a goal, the first group was searched from the middle. (Linux stops
        // before, and says "no space" when the only free numbers lie below a goal in its group.)
        for step in 0..=self.geometry.groups() {
            let group = GroupNr::new(wrapping_group(first, step, self.geometry.groups()));
            if self.counts.free_in_group(group) == 0 {
                continue;
            }
            let start = if step == 0 { start } else { 0 };
            if let Some(claim) = self.claim_in(group, start, request)? {
                return Ok(claim);
            }
        }
        Err(InodeError::NoInodes)
    }

    /// Gives an inode back. `write` puts the change into the journaled bitmap and descriptor; it runs under the
    /// group's lock, and the number can be claimed again when it has returned.
    ///
    /// # Errors
    /// [`InodeError::Corrupt`] when it is free already, reserved or beyond the last, or its group was taken out of use;
    /// [`InodeError::Load`].
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

    /// Sets the tunable `inode_goal`: every later request without a goal of its own starts there. `None` ends that.
    pub fn set_goal(&self, goal: Option<InodeNr>) {
        self.goal.store(goal.map_or(0, InodeNr::raw), Ordering::Relaxed);
    }

    /// Forgets the bitmap of a group, which is read again when needed. False when claims pin it or none is loaded.
    pub fn evict(&self, group: GroupNr, slot: CpuSlot) -> bool {
        self.lock(group, slot).evict()
    }

    /// Takes a group out of use because its bitmap or descriptor was found wrong: its free inodes no longer count.
    pub fn mark_corrupt(&self, group: GroupNr, slot: CpuSlot) {
        let mut state = self.lock(group, slot);
        if state.mark_corrupt() {
            self.counts.lost(group, slot);
        }
    }

    /// Free inodes of a group, claims that are not committed already taken off.
    #[must_use]
    pub fn free_in_group(&self, group: GroupNr) -> u32 {
        self.counts.free_in_group(group)
    }

    /// Directories of a group.
    #[must_use]
    pub fn directories_in_group(&self, group: GroupNr) -> u32 {
        self.counts.directories_in_group(group)
    }

    /// Free inodes of the file system; exact when nobody is allocating.
    #[must_use]
    pub fn free_total(&self) -> u64 {
        self.counts.free_total()
    }

    /// Acquisitions and waits of the groups' locks.
    #[must_use]
    pub const fn lock_class(&self) -> &LockClass {
        &self.lock_class
    }

    /// The geometry it was made for.
    #[must_use]
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The group to try first and the first bit to consider there.
    fn first_choice(&self, request: &InodeRequest, parent: &InodeDirAlloc) -> Option<(GroupNr, u32)> {
        let tunable = self.goal.load(Ordering::Relaxed);
        let goal = request.goal.map_or(tunable, InodeNr::raw);
        if goal != 0 && goal <= self.geometry.inodes_count() {
            return Some(self.geometry.locate_inode(InodeNr::new(goal)));
        }
        let search = search::Search {
            geometry: &self.geometry,
            switches: &self.config.switches,
            counts: &self.counts,
            clusters: &*self.clusters,
        };
        let hash = request.name_hash.filter(|_| !self.config.switches.random_start);
        let family = search::Family {
            parent: request.parent,
            group: self.geometry.locate_inode(request.parent).0,
            last_group: parent.last_group,
        };
        let group = match (self.config.placement, request.directory) {
            (InodeGroup::OrlovFlex, true) if request.parent_is_top => {
                search.top_directory(&family, hash.unwrap_or_else(|| self.draw()))
            }
            (InodeGroup::OrlovFlex, true) => search.ordinary_directory(&family),
            (InodeGroup::OrlovFlex, false) => search.other(&family),
            (InodeGroup::Parent, _) => search.parent_onward(&family),
        };
        group.map(|group| (group, 0))
    }

    /// The next number of the seeded sequence (splitmix64).
    fn draw(&self) -> u32 {
        use blockyard_sync::AtomicInt;
        const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
        let count = self.draws.fetch_add(1, Ordering::Relaxed);
        let mut z = self.config.seed.wrapping_add(count.wrapping_add(1).wrapping_mul(STEP));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        blockyard_disk::num::high32(z ^ (z >> 31))
    }

    fn claim_in(
        &self,
        group: GroupNr,
        start: u32,
        request: &InodeRequest,
    ) -> Result<Option<InodeClaim<'_, B>>, InodeError> {
        let Some(mut state) = self.loaded(group, request.slot)? else { return Ok(None) };
        let start = start.max(self.first_usable(group));
        let recency = self.config.without_journal.then(|| Recency {
            source: &*self.source,
            group,
            never_used_from: self.never_used_from(&state),
            now: request.now,
        });
        let per_group = self.geometry.inodes_per_group();
        let Some(index) = state.find_free(start, per_group, recency.as_ref()) else { return Ok(None) };
        assert!((start..per_group).contains(&index), "inode index {index} of {start}..{per_group}");
        state.claim(index, request.directory);
        self.counts.claimed(group, request.directory, request.slot);
        Ok(Some(InodeClaim::new(self, self.geometry.inode_at(group, index), request)))
    }

    /// Lowest bit of a group that may be handed out: reserved inodes never are, whatever the bitmap says.
    fn first_usable(&self, group: GroupNr) -> u32 {
        let before = group.raw() * self.geometry.inodes_per_group();
        (self.config.first_inode - 1).saturating_sub(before)
    }

    /// First index of a group's table that was never used since mkfs.
    fn never_used_from(&self, state: &GroupState) -> u32 {
        let per_group = self.geometry.inodes_per_group();
        if self.config.descriptor_checksums { state.used_prefix(per_group) } else { per_group }
    }

    fn lock(&self, group: GroupNr, slot: CpuSlot) -> MutexGuard<'_, GroupState, B> {
        self.groups[usize_from_u32(group.raw())].lock_ordered_counted(
            u64::from(group.raw()),
            &self.lock_class,
            slot,
        )
    }

    /// The group's lock with its bitmap in memory; `None` when the group is corrupt.
    ///
    /// The bitmap is read without the lock. What was read is installed only when the group has been neither loaded
    /// nor evicted meanwhile: an eviction in between means that commits may have followed what was read.
    fn loaded(
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
                debug_assert!(state.is_loaded(), "group {group} was made loaded and is not");
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

    /// What bitmap and descriptor must say now about an inode and its group.
    fn update(&self, inode: InodeNr, used: bool, state: &GroupState) -> InodeUpdate {
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

/// Where the name hash starts the search for a directory under a top: half-MD4 over signed characters, whatever the
/// directories themselves use. Case-folded directories hash the folded name.
#[must_use]
pub fn top_name_hash(name: &[u8], seed: HashSeed) -> u32 {
    DirHasher::new(HashVersion::HalfMd4, seed).hash(name).major
}

/// `first + step` in a ring of `groups`.
fn wrapping_group(first: GroupNr, step: u32, groups: u32) -> u32 {
    let at = u64::from(first.raw()) + u64::from(step);
    blockyard_disk::num::u32_from_u64(at % u64::from(groups))
}
