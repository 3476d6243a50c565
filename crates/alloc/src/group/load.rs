//! Loading groups from the source, and evicting them.
//!
//! A load holds no group's lock while the source reads. What was read is installed only if nobody
//! else has loaded the group meanwhile. Then no cluster of the group has changed in core since the
//! read began, because only clusters of a loaded group change.

use blockyard_disk::GroupNr;
use blockyard_disk::num::{u32_from_usize, usize_from_u32};
use blockyard_sync::{Atomic, AtomicInt, Backend, CachePadded, CpuSlot, Ordering};

use super::table::GroupTable;
use super::{GroupGuard, LOADED};
use crate::buddy::Buddy;
use crate::config::GroupSource;
use crate::error::{AllocError, Result};

/// Bytes of a page in the kernel. Groups are loaded together if their bitmaps and buddies share a
/// page there. A bitmap takes one block, and so does a buddy.
const PAGE_BYTES: usize = 4096;

impl<B: Backend> GroupTable<B> {
    /// Locks a group, waiting for the lock, and makes sure that the group is loaded.
    ///
    /// # Errors
    /// Those of the source.
    pub(crate) fn lock_loaded(
        &self,
        nr: GroupNr,
        cpu: CpuSlot,
        source: &dyn GroupSource,
    ) -> Result<GroupGuard<'_, B>> {
        loop {
            let guard = self.lock(nr, cpu);
            if guard.buddy().is_some() {
                return Ok(guard);
            }
            drop(guard);
            self.load(nr, cpu, source)?;
        }
    }

    /// Loads a group unless it is loaded. On its first load, also loads those groups that share a
    /// page with it and were never loaded.
    ///
    /// # Errors
    /// Those of the source, for the group that was asked for.
    pub(crate) fn load(&self, nr: GroupNr, cpu: CpuSlot, source: &dyn GroupSource) -> Result<()> {
        let first_time = !self.group(nr).summary().initialised();
        self.load_one(nr, cpu, source)?;
        let together = u32_from_usize((PAGE_BYTES / (2 * self.geometry.block_size())).max(1));
        if first_time && together > 1 {
            let first = nr.raw() / together * together;
            for mate in (first..first + together).filter(|&mate| mate < self.geometry.groups()) {
                if !self.group(GroupNr::new(mate)).summary().initialised() {
                    // A failure is ignored. Nobody asked for this group, and whoever asks for it
                    // later will see the failure. So the group that was asked for loads even if
                    // another group cannot be read.
                    drop(self.load_one(GroupNr::new(mate), cpu, source));
                }
            }
        }
        Ok(())
    }

    fn load_one(&self, nr: GroupNr, cpu: CpuSlot, source: &dyn GroupSource) -> Result<()> {
        let mut bitmap = Vec::new();
        loop {
            let guard = self.lock(nr, cpu);
            if guard.buddy().is_some() {
                return Ok(());
            }
            let generation = guard.state.generation;
            drop(guard);
            bitmap.clear();
            bitmap.resize(self.geometry.block_size(), 0);
            source.load(nr, &mut bitmap).map_err(|source| AllocError::Load { group: nr, source })?;
            let mut guard = self.lock(nr, cpu);
            if guard.buddy().is_none() && guard.state.generation == generation {
                guard.install(&mut bitmap, self.geometry.clusters_in_group(nr), &self.geometry);
                // Relaxed is enough: the count guards no data. It never falls below 0, because it
                // rises here under the group's lock, and an eviction of the group needs that lock.
                let before = self.loaded.fetch_add(1, Ordering::Relaxed);
                drop(guard);
                self.built.fetch_add(1, Ordering::Relaxed);
                if before >= self.loaded_max {
                    self.evict_some(cpu, nr);
                }
                return Ok(());
            }
        }
    }

    /// Looks at groups in turn, from `hand` on, and evicts those that may be evicted, but never
    /// `keep`. Stops when at most `loaded_max` groups are loaded, or after as many looks as there
    /// are groups.
    fn evict_some(&self, cpu: CpuSlot, keep: GroupNr) {
        let groups = self.geometry.groups();
        for _ in 0..groups {
            if self.loaded.load(Ordering::Relaxed) <= self.loaded_max {
                return;
            }
            let nr = GroupNr::new(self.hand.fetch_add(1, Ordering::Relaxed) % groups);
            if nr != keep && self.group(nr).is_loaded() {
                self.evict(nr, cpu);
            }
        }
    }

    /// Drops bitmap and buddy of a group that is neither pinned nor locked. Returns whether it did.
    pub(crate) fn evict(&self, nr: GroupNr, cpu: CpuSlot) -> bool {
        let Some(mut guard) = self.try_lock(nr, cpu) else { return false };
        // Acquire-release pairs with pin and unpin: a later pin sees that nothing is loaded.
        let unpinned =
            self.group(nr).residency.compare_exchange(LOADED, 0, Ordering::AcqRel, Ordering::Relaxed);
        if unpinned.is_err() {
            return false;
        }
        let evicted = guard.state.loaded.take();
        assert!(evicted.is_some(), "group {nr} counted as loaded and was not");
        assert!(guard.state.pending.is_none(), "group {nr} was evicted with frees that wait for a commit");
        drop(guard);
        drop(evicted);
        let before = self.loaded.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "more groups were evicted than loaded");
        true
    }
}

impl<B: Backend> GroupGuard<'_, B> {
    /// Adds the group's preallocations to the bitmap from the source, and installs the result as
    /// the in-core bitmap. If this bitmap and the group's summary differ in the number of free
    /// clusters, the group is marked corrupt.
    fn install(&mut self, bitmap: &mut [u8], clusters: u32, geometry: &blockyard_disk::Geometry) {
        assert!(self.state.loaded.is_none(), "group {} is loaded already", self.nr);
        debug_assert!(self.state.pending.is_none(), "group {} was evicted while frees waited in it", self.nr);
        for prealloc in &self.state.preallocs {
            prealloc.for_each_left(|start, count| set_bits(bitmap, start, count));
        }
        let buddy = Buddy::from_used_bitmap(
            bitmap,
            clusters,
            geometry.clusters_per_group(),
            geometry.block_bits() + 2,
        );
        if buddy.free() != self.group.free() {
            self.mark_corrupt();
        }
        self.state.loaded = Some(Box::new(CachePadded::new(buddy)));
        self.state.generation = self.state.generation.wrapping_add(1);
        self.publish();
        // Release pairs with pin: whoever sees the bit finds the bitmap under the lock.
        let before = self.group.residency.fetch_or(LOADED, Ordering::AcqRel);
        debug_assert_eq!(before & LOADED, 0, "group {} counted as loaded and was not", self.nr);
    }
}

fn set_bits(bitmap: &mut [u8], start: u32, count: u32) {
    for bit in start..start + count {
        bitmap[usize_from_u32(bit / 8)] |= 1 << (bit % 8);
    }
}
