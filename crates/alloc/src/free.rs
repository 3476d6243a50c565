//! Freeing: from the request until the clusters are free. [`Allocator::free`] marks clusters free,
//! or queues them if a transaction frees them. [`Allocator::commit`] marks the queued ones free.
//!
//! [`crate::frees`] is the queue.

use blockyard_disk::num::{u32_from_u64, u64_from_u32};
use blockyard_disk::{BlockNr, ClusterOffset, GroupNr, TxnId};
use blockyard_sync::{Backend, CpuSlot};

use crate::allocator::Allocator;
use crate::buddy::AlreadyFree;
use crate::error::{AllocError, Result};
use crate::frees::{FreeContext, FreedExtent};
use crate::group::GroupGuard;
use crate::index::by_group::OrderedSets;

/// A range of blocks as clusters, split by group.
struct Ranges {
    next: u64,
    end: u64,
    per_group: u64,
}

impl Iterator for Ranges {
    type Item = FreedExtent;

    fn next(&mut self) -> Option<FreedExtent> {
        if self.next >= self.end {
            return None;
        }
        let group = self.next / self.per_group;
        let stop = ((group + 1) * self.per_group).min(self.end);
        debug_assert!(stop > self.next && stop - self.next <= self.per_group, "a range leaves group {group}");
        let extent = FreedExtent {
            group: GroupNr::new(u32_from_u64(group)),
            start: u32_from_u64(self.next % self.per_group),
            count: u32_from_u64(stop - self.next),
        };
        self.next = stop;
        Some(extent)
    }
}

impl<B: Backend> Allocator<B> {
    /// Frees `blocks` blocks from `first`. Returns the number of clusters freed.
    ///
    /// The bits of the on-disk bitmap must still be set while this runs. With a transaction, the
    /// caller clears them afterwards in that transaction, and the group stays pinned until the
    /// transaction commits. Without a transaction, the clusters may be handed out again before this
    /// function returns. So a caller that has to clear their bits uses [`Self::free_with`] instead.
    ///
    /// # Errors
    /// [`AllocError::Corrupt`] if `blocks` is 0, if blocks are outside the file system, free
    /// already or waiting for a commit, or if their group is corrupt. [`AllocError::Load`] if a
    /// bitmap cannot be read. A range is freed group by group: the groups before the failing one
    /// stay freed.
    pub fn free(&self, first: BlockNr, blocks: u64, context: FreeContext) -> Result<u64> {
        let mut freed = 0;
        for extent in self.cluster_ranges(first, blocks, &context)? {
            let mut guard = self.table.lock_loaded(extent.group, context.cpu, &*self.source)?;
            self.check_free(&guard, extent)?;
            self.free_locked(&mut guard, extent, &context)?;
            drop(guard);
            self.count_freed(extent, &context);
            freed += u64_from_u32(extent.count);
        }
        Ok(freed)
    }

    /// As [`Self::free`], but calls `clear` for the part in each group before that part can be
    /// handed out again. `clear` clears the bits of the on-disk bitmap. No lock is held meanwhile;
    /// the group is loaded and pinned.
    ///
    /// # Errors
    /// As [`Self::free`], and errors of `clear`. The part that `clear` failed for is neither freed
    /// nor counted.
    pub fn free_with<E: From<AllocError>>(
        &self,
        first: BlockNr,
        blocks: u64,
        context: FreeContext,
        mut clear: impl FnMut(FreedExtent) -> core::result::Result<(), E>,
    ) -> core::result::Result<u64, E> {
        let mut freed = 0;
        for extent in self.cluster_ranges(first, blocks, &context)? {
            let guard = self.table.lock_loaded(extent.group, context.cpu, &*self.source)?;
            self.check_free(&guard, extent)?;
            let group = guard.group;
            let pinned = group.pin();
            assert!(pinned, "group {} is loaded under this guard", extent.group);
            drop(guard);
            let cleared = clear(extent).and_then(|()| {
                let mut guard = self.table.lock(extent.group, context.cpu);
                self.free_locked(&mut guard, extent, &context).map_err(E::from)
            });
            group.unpin();
            cleared?;
            self.count_freed(extent, &context);
            freed += u64_from_u32(extent.count);
        }
        Ok(freed)
    }

    fn cluster_ranges(&self, first: BlockNr, blocks: u64, context: &FreeContext) -> Result<Ranges> {
        let geometry = &self.table.geometry;
        let f0 = geometry.first_data_block().raw();
        let total = geometry.blocks_count().raw();
        let end =
            first.raw().checked_add(blocks).filter(|&end| blocks > 0 && end <= total && first.raw() >= f0);
        let Some(end) = end else {
            return Err(AllocError::freed_outside(first));
        };
        let ratio = u64_from_u32(geometry.cluster_ratio());
        let up = |n: u64| n.div_ceil(ratio);
        let next = if context.keep_partial_first { up(first.raw() - f0) } else { (first.raw() - f0) / ratio };
        // If the file system ends inside a cluster, that cluster counts as whole.
        let whole_end = end == total || !context.keep_partial_last;
        let end = if whole_end { up(end - f0) } else { (end - f0) / ratio };
        Ok(Ranges { next, end, per_group: u64_from_u32(geometry.clusters_per_group()) })
    }

    /// Refuses clusters that are free, wait for a commit, or lie in a corrupt group.
    fn check_free(&self, guard: &GroupGuard<'_, B>, extent: FreedExtent) -> Result<()> {
        let FreedExtent { group, start, count } = extent;
        debug_assert!(
            start + count <= self.table.geometry.clusters_in_group(group),
            "{extent:?} leaves its group"
        );
        if guard.summary().corrupt() {
            return Err(AllocError::corrupt_group(group));
        }
        debug_assert!(
            !guard.overlaps_prealloc(start, count),
            "freeing clusters of a preallocation: it must be discarded first"
        );
        let free = guard.buddy().and_then(|buddy| buddy.next_free_in(start, start + count));
        let waiting = || guard.state.pending.as_ref().and_then(|tree| tree.overlap(start, count));
        match free.or_else(waiting) {
            Some(at) => Err(self.freed_twice(group, at)),
            None => Ok(()),
        }
    }

    fn freed_twice(&self, group: GroupNr, at: u32) -> AllocError {
        AllocError::freed_twice(group, self.table.geometry.block_at(group, ClusterOffset::new(at)))
    }

    fn free_locked(
        &self,
        guard: &mut GroupGuard<'_, B>,
        extent: FreedExtent,
        context: &FreeContext,
    ) -> Result<()> {
        match context.txn {
            None => guard.mark_free(extent.start, extent.count),
            Some(txn) => self.frees.add(guard, txn, extent.start, extent.count, context.cpu),
        }
        .map_err(|AlreadyFree { at }| self.freed_twice(extent.group, at))?;
        guard.clear_block_uninit();
        Ok(())
    }

    fn count_freed(&self, extent: FreedExtent, context: &FreeContext) {
        let cpu = context.cpu;
        self.admission.add_free(cpu, u64_from_u32(extent.count));
        if context.reserve_again {
            self.admission.add_dirty(cpu, u64_from_u32(extent.count));
        }
        self.note_change(cpu);
    }

    /// Marks the clusters that `txn` freed as free in core. The commit record of `txn` must be
    /// durable.
    pub fn commit(&self, txn: TxnId, cpu: CpuSlot) {
        self.commit_with(txn, cpu, |_| ());
    }

    /// As [`Self::commit`], and reports each extent that became free, for discards. `freed` runs
    /// under the group's lock, so it must not do I/O. After it returns, the extent may be handed
    /// out again. A caller that discards must check that the extent is still free on disk.
    pub fn commit_with(&self, txn: TxnId, cpu: CpuSlot, mut freed: impl FnMut(FreedExtent)) {
        if let Some(groups) = self.frees.groups() {
            self.commit_by_group(groups, txn, cpu, &mut freed);
            return;
        }
        for record in self.frees.detach(txn) {
            if record.count() == 0 {
                continue;
            }
            self.frees.lower_pending(record.count(), cpu);
            let mut guard = self.table.lock(record.group, cpu);
            freed(guard.finish_pending(&record));
        }
    }

    fn commit_by_group(
        &self,
        groups: &OrderedSets<B>,
        txn: TxnId,
        cpu: CpuSlot,
        freed: &mut impl FnMut(FreedExtent),
    ) {
        let parity = txn.raw() % 2;
        let mut from = 0;
        while let Some(nr) = groups.next(parity, from, self.table.geometry.groups()) {
            let mut guard = self.table.lock(nr, cpu);
            let due = guard.state.pending.as_ref().map(|tree| tree.due(txn)).unwrap_or_default();
            for record in due {
                self.frees.lower_pending(record.count(), cpu);
                freed(guard.finish_pending(&record));
            }
            if !guard.state.pending.as_ref().is_some_and(|tree| tree.has_parity(parity)) {
                groups.remove(parity, nr);
            }
            drop(guard);
            from = nr.raw() + 1;
        }
    }

    /// Number of freed clusters that wait for a commit.
    #[must_use]
    pub fn pending_clusters(&self) -> u64 {
        self.frees.pending_clusters(CpuSlot::ZERO)
    }
}
