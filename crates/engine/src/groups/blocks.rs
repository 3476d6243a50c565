//! Block bitmaps: what a claim or a free changes on disk.

use super::{GroupState, Groups};
use crate::Result;
use crate::cache::{BlockKind, Buffer};
use crate::txn::Handle;
use blockyard_disk::group_desc::GroupFlags;
use blockyard_disk::num::{u32_from_u64, u64_from_u32};
use blockyard_disk::{BlockCount, BlockNr, Corruption, CorruptionKind, GroupNr, bitmap};
use blockyard_sync::MutexGuard;
use std::ops::Range;

impl Groups {
    /// Copies the group's block bitmap for the allocator. The copy includes changes that are not
    /// yet on disk. The caller holds no lock.
    pub(crate) fn copy_block_bitmap(&self, group: GroupNr, into: &mut [u8]) -> Result<()> {
        let (raw, uninit) = {
            let state = self.lock(group);
            (state.raw, state.flags.contains(GroupFlags::BLOCK_UNINIT))
        };
        if uninit {
            self.synthesize(group, into);
            return Ok(());
        }
        let buffer = self.read_bitmap(group, &raw, BlockKind::BlockBitmap(group))?;
        buffer.read(|bytes| into.copy_from_slice(bytes));
        Ok(())
    }

    /// Free clusters of the group on disk, and whether its bitmap was never written.
    pub(crate) fn block_facts(&self, group: GroupNr) -> (u32, bool) {
        let state = self.lock(group);
        let uninit = state.flags.contains(GroupFlags::BLOCK_UNINIT);
        (if uninit { self.synthesized_free(group) } else { state.raw.free_clusters() }, uninit)
    }

    /// Loads the bitmaps of these blocks' groups, so that marking the blocks reads nothing.
    pub(crate) fn reserve_bitmaps(&self, handle: &Handle<'_>, first: BlockNr, blocks: u64) -> Result<()> {
        self.for_groups(first, blocks, |group, _| self.pin_block_bitmap(handle, group))
    }

    /// Marks whole clusters as used on disk. The range starts at a cluster boundary, and is claimed
    /// in the allocator.
    ///
    /// # Errors
    /// Corruption when a bit was set already, or the group counts too few free clusters. The disk
    /// then contradicts the allocator, and the instance must stop.
    pub(crate) fn mark_used(&self, handle: &Handle<'_>, first: BlockNr, blocks: u64) -> Result<()> {
        self.for_groups(first, blocks, |group, range| {
            let mut state = self.lock_pinned(handle, group)?;
            let was_free = pinned(&state).write(|bits| {
                let free = bitmap::count_set(bits, range.clone()) == 0;
                bitmap::set_range(bits, range.clone());
                free
            });
            let count = range.end - range.start;
            let left = state.raw.free_clusters().checked_sub(count);
            let Some(left) = left.filter(|_| was_free) else { return Err(contradiction(group)) };
            self.touch(handle, group, &mut state);
            state.raw.set_free_clusters(left);
            Ok(())
        })
    }

    /// Marks whole clusters as free on disk.
    ///
    /// # Errors
    /// Corruption when a bit was clear already.
    pub(crate) fn mark_free(&self, handle: &Handle<'_>, first: BlockNr, blocks: u64) -> Result<()> {
        self.for_groups(first, blocks, |group, range| {
            let mut state = self.lock_pinned(handle, group)?;
            let count = range.end - range.start;
            let was_used = pinned(&state).write(|bits| {
                let used = bitmap::count_set(bits, range.clone()) == count;
                bitmap::clear_range(bits, range.clone());
                used
            });
            if !was_used {
                return Err(contradiction(group));
            }
            self.touch(handle, group, &mut state);
            let free = state.raw.free_clusters() + count;
            state.raw.set_free_clusters(free);
            Ok(())
        })
    }

    /// Creates the block bitmap of a group if its bitmap was never written. Linux does this, too,
    /// when an inode of the group is allocated. Returns false if the group had a bitmap.
    pub(crate) fn initialize_block_bitmap(&self, handle: &Handle<'_>, group: GroupNr) -> bool {
        let mut state = self.lock(group);
        let had_none = state.flags.contains(GroupFlags::BLOCK_UNINIT);
        if had_none {
            self.initialize(handle, group, &mut state);
        }
        had_none
    }

    /// Free clusters of the group on disk. Only a hint for placement: the number can change at any
    /// time.
    pub(crate) fn free_clusters_hint(&self, group: GroupNr) -> u32 {
        self.lock(group).raw.free_clusters()
    }

    /// Calls `f` for each group that has some of these blocks, with the range of the blocks' bits
    /// in the group's bitmap.
    fn for_groups(
        &self,
        first: BlockNr,
        blocks: u64,
        mut f: impl FnMut(GroupNr, Range<u32>) -> Result<()>,
    ) -> Result<()> {
        let geometry = self.geometry();
        debug_assert!(blocks > 0 && geometry.contains(first), "{blocks} blocks at {first}");
        let (mut at, end) = (first, first.raw() + blocks);
        while at.raw() < end {
            let (group, offset) = geometry.locate(at);
            let group_end = geometry.group_first_block(group).raw() + geometry.blocks_per_group();
            let here = BlockCount::new(end.min(group_end) - at.raw());
            let count = u32_from_u64(geometry.clusters_for(here).raw());
            debug_assert!(offset.raw() + count <= geometry.clusters_per_group(), "bits behind the bitmap");
            f(group, offset.raw()..offset.raw() + count)?;
            at = at + here;
        }
        Ok(())
    }

    /// Locks a group with its bitmap in memory. A bitmap that is not there yet is read first,
    /// without the lock.
    fn lock_pinned(&self, handle: &Handle<'_>, group: GroupNr) -> Result<MutexGuard<'_, GroupState>> {
        let state = self.lock(group);
        if let Some(bitmap) = &state.block_bitmap {
            handle.join(bitmap);
            return Ok(state);
        }
        drop(state);
        self.pin_block_bitmap(handle, group)?;
        Ok(self.lock(group))
    }

    /// Pins the group's block bitmap in memory and in the transaction. Creates a bitmap that was
    /// never written.
    fn pin_block_bitmap(&self, handle: &Handle<'_>, group: GroupNr) -> Result<()> {
        let raw = {
            let mut state = self.lock(group);
            if let Some(bitmap) = &state.block_bitmap {
                handle.join(bitmap);
                return Ok(());
            }
            if state.flags.contains(GroupFlags::BLOCK_UNINIT) {
                self.initialize(handle, group, &mut state);
                return Ok(());
            }
            state.raw
        };
        let buffer = self.read_bitmap(group, &raw, BlockKind::BlockBitmap(group))?;
        let mut state = self.lock(group);
        // Joins under the group's lock: a commit unpins only bitmaps that are in no transaction.
        handle.join(state.block_bitmap.get_or_insert(buffer));
        Ok(())
    }

    /// Creates the bitmap of a `BLOCK_UNINIT` group ([`Self::synthesize`]), and sets the true count
    /// of free clusters.
    fn initialize(&self, handle: &Handle<'_>, group: GroupNr, state: &mut GroupState) {
        debug_assert!(state.block_bitmap.is_none(), "group {group} has a bitmap and is said to have none");
        self.touch(handle, group, state);
        let buffer = handle.create(self.places(group).block_bitmap, BlockKind::BlockBitmap(group));
        buffer.write(|bits| self.synthesize(group, bits));
        let free = self.synthesized_free(group);
        state.raw.set_free_clusters(free);
        state.flags.remove(GroupFlags::BLOCK_UNINIT);
        let flags = state.raw.flags().difference(GroupFlags::BLOCK_UNINIT);
        state.raw.set_flags(flags);
        state.block_bitmap = Some(buffer);
    }

    /// The number of blocks in `clusters` clusters.
    pub(crate) fn blocks_in(&self, clusters: u32) -> u64 {
        u64_from_u32(clusters) << self.geometry().cluster_ratio_bits()
    }
}

fn pinned(state: &GroupState) -> &Buffer {
    state.block_bitmap.as_ref().expect("pinned while it is in a transaction, and the handle joined it")
}

fn contradiction(group: GroupNr) -> crate::Error {
    Corruption::new(CorruptionKind::BlockBitmapContradiction).in_group(group).into()
}
