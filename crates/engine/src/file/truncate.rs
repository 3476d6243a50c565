//! Removing blocks from a file: truncate, and the freeing part of punch and collapse.

use super::limits::{FREE_CREDITS, REVOKED_MAX, RUN_CREDITS};
use super::times::Touched;
use crate::data::FileData;
use crate::extents::{Extent, Lookup};
use crate::file::Files;
use crate::file::LockedFile;
use crate::inode::{Inode, InodeCore};
use crate::pool::Pool;
use crate::txn::Handle;
use crate::{Error, InodeRef, OpContext, Result};
use blockyard_disk::BlockNr;
use blockyard_disk::inode::{InodeFlags, InodeMap};
use blockyard_disk::num::{u32_from_u64, u32_from_usize, u64_from_usize, usize_from_u32, usize_from_u64};
use blockyard_sync::Ordering;
use std::ops::Range;

/// The most extents that one handle frees. This bounds how many bitmaps the handle changes.
const EXTENTS_MAX: usize = 64;

/// Why blocks are freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The file gets this size.
    NewSize(u64),
    /// A hole: the size stays.
    Hole,
}

impl Files {
    /// See [`crate::FileSystem::truncate`].
    pub(crate) fn truncate(&self, ctx: &OpContext, inode: InodeRef, size: u64) -> Result<()> {
        let inode = self.writable_file(inode)?;
        let mut data = inode.write();
        inode.core().check_alive(inode.number())?;
        if inode.core().flags().contains(InodeFlags::APPEND) {
            return Err(Error::NotPermitted);
        }
        if size > self.size_limit(inode.core().map) {
            return Err(Error::FileTooLarge);
        }
        self.locked(ctx, &inode, &mut data).truncate_locked(size)
    }

    /// Sets the size of a file that is truncated or extended. If it is truncated, the same handle
    /// also begins to free the blocks.
    fn set_new_size(&self, ctx: &OpContext, inode: &Inode, core: &mut InodeCore, size: u64) {
        debug_assert!(core.slot.raw().size() <= core.size, "the disk knows a larger size than users");
        if size != core.size {
            core.touch(ctx);
        }
        // The size on disk falls now. It rises over dirty blocks only when they are written.
        let dirty = inode
            .waiting()
            .dirty
            .first_in(0..u32::MAX)
            .map(|first| u64::from(first) << self.volume.geometry().block_bits());
        core.size = size;
        let on_disk = dirty.map_or(size, |dirty| size.min(dirty.max(core.slot.raw().size())));
        core.slot.raw_mut().set_size(on_disk);
    }

    /// If Linux's page cache is imitated, notes what Linux learns when it zeroes the rest of the
    /// block that will hold the new end.
    fn note_tail(&self, inode: &Inode, data: &mut FileData, size: u64) -> Result<()> {
        let block_size = u64_from_usize(self.volume.block_size());
        if data.pages.are_forgotten() || size.is_multiple_of(block_size) {
            return Ok(());
        }
        data.pages.note_page(size);
        let logical = u32_from_u64(size / block_size);
        if inode.waiting().dirty.block(logical).is_none() {
            let core = inode.core();
            let here = self.mapping.lookup_block(inode, &core, logical)?;
            data.pages.note_lookup(core.extent_root(), &here, logical);
        }
        Ok(())
    }

    /// Frees the last mapped blocks of `range`, as many as a handle of [`FREE_CREDITS`] can. The
    /// handle has `beside` more credits, which other changes need. Returns the end of the blocks
    /// that are still to be freed. If nothing is left, that is the start of the range.
    pub(crate) fn free_mapped(
        &self,
        ctx: &OpContext,
        handle: &Handle<'_>,
        inode: &Inode,
        core: &mut InodeCore,
        range: Range<u32>,
        beside: usize,
    ) -> Result<u32> {
        if !matches!(core.map, InodeMap::Extents | InodeMap::Indirect) {
            return Ok(range.start);
        }
        let Some(start) = self.reserve_removal(handle, inode, core, range.clone(), beside)? else {
            return Ok(range.start);
        };
        self.mapping.remove_and_free(ctx, handle, inode, core, start..range.end)?;
        debug_assert!(range.start <= start && start < range.end, "{start} in {range:?}");
        Ok(start)
    }

    /// Loads the bitmaps that are needed to free the last mapped part of `range`. The part is as
    /// long as one handle can free. Returns where the part starts (the start of `range` if nothing
    /// is mapped before the part), or `None` if nothing is mapped. The handle has `beside` credits
    /// that other changes need.
    fn reserve_removal(
        &self,
        handle: &Handle<'_>,
        inode: &Inode,
        core: &InodeCore,
        range: Range<u32>,
        beside: usize,
    ) -> Result<Option<u32>> {
        if core.map == InodeMap::Indirect {
            return self.mapping.reserve_indirect_removal(handle, core, range);
        }
        let is_metadata = self.mapping.holds_metadata(inode, core);
        let mut start = range.end;
        let mut revoked = 0;
        for extents in 0..EXTENTS_MAX {
            // Each extent may be the only one of its leaf, whose block is then freed. That takes
            // three credits: node, bitmap, descriptor.
            if extents > 0 && (revoked >= REVOKED_MAX || !handle.extend(beside + FREE_CREDITS + 3 * extents))
            {
                break;
            }
            if start <= range.start {
                return Ok((range.start < range.end).then_some(range.start));
            }
            let here = self.mapping.lookup_block(inode, core, start - 1)?;
            let Some(extent) = here.found.or(here.left).filter(|extent| extent.end() > range.start) else {
                return Ok((start < range.end).then_some(range.start));
            };
            self.volume.groups.reserve_bitmaps(
                handle,
                BlockNr::new(extent.physical),
                u64::from(extent.len),
            )?;
            debug_assert!(extent.logical < start, "the walk to the left stands still");
            let end = start.min(extent.end());
            start = extent.logical.max(range.start);
            if is_metadata {
                // If this cuts a cluster, the cluster is freed later, with its first block.
                let most = u32_from_usize(REVOKED_MAX - revoked);
                start = start.max(end.saturating_sub(most));
                revoked += usize_from_u32(end - start);
            }
        }
        Ok(Some(start))
    }
}

impl LockedFile<'_> {
    /// [`Files::truncate`] with the content lock held.
    pub(crate) fn truncate_locked(&mut self, size: u64) -> Result<()> {
        if self.inode.core().map == InodeMap::Inline {
            return self.truncate_inline(size);
        }
        let keep = u32_from_u64(size.div_ceil(u64_from_usize(self.files.volume.block_size())));
        let old_size = self.inode.core().size;
        self.files.note_dirtied(self.ctx, self.inode);
        if size == 0 {
            self.inode.written_at_close.store(true, Ordering::Relaxed);
        }
        if size > old_size {
            self.data.pages.note_edge(old_size, self.files.volume.geometry().block_bits());
            self.clear_behind_end()?;
            // As in Linux, blocks that fallocate placed behind the old end stay, and so do in-core
            // preallocations.
            let handle = self.files.volume.begin(self.ctx, RUN_CREDITS)?;
            let mut core = self.inode.core_mut();
            self.files.volume.inodes.join_inode(&handle, self.inode, &mut core)?;
            self.inode.note_remapped(&handle);
            self.files.set_new_size(self.ctx, self.inode, &mut core, size);
            drop(core);
            if self.files.volume.rules.imitates_memory() {
                // As in Linux (observed on 6.18), pages behind the new end are dropped. Zeroing a
                // range may have created some.
                self.forget_pages(size..u64::MAX);
            }
            return Ok(());
        }
        if size < old_size {
            self.forget_pages(size..u64::MAX);
            self.files.note_tail(self.inode, self.data, size)?;
        }
        // There may be blocks behind the end even if the size does not fall: fallocate can keep the
        // size.
        self.free_range(keep..u32::MAX, Why::NewSize(size))?;
        if size < old_size {
            // Comes only after the size has fallen: a truncation that fails earlier leaves the
            // bytes as they were.
            self.zero_behind_end()
        } else {
            // As in Linux (observed on 6.18) the times change even if the size does not.
            self.touch_times(Touched::Times)
        }
    }

    /// Prepares a file to grow over `bytes`: frees what an unfinished truncation left behind the
    /// end of the file, and zeroes the rest of the last block. The zeroing is left out if `bytes`
    /// begin in the last block or before it, because the whole block is then written.
    pub(crate) fn prepare_growth(&mut self, bytes: Range<u64>) -> Result<()> {
        let bits = self.files.volume.geometry().block_bits();
        let (size, unfinished) = {
            let core = self.inode.core();
            (core.size, core.unfinished)
        };
        if bytes.end <= size {
            Ok(())
        } else if bytes.start >> bits > size >> bits {
            self.clear_behind_end()
        } else if unfinished {
            self.finish_truncation()
        } else {
            Ok(())
        }
    }

    /// Prepares a file to grow beyond its last block: frees what an unfinished truncation left
    /// behind the end, and zeroes the rest of that block.
    pub(crate) fn clear_behind_end(&mut self) -> Result<()> {
        if self.inode.core().has_clear_end(self.files.volume.block_size()) {
            return Ok(());
        }
        self.finish_truncation()?;
        self.zero_behind_end()
    }

    /// If an error ended a truncation midway, frees what the truncation left behind the end of the
    /// file.
    pub(crate) fn finish_truncation(&mut self) -> Result<()> {
        let size = {
            let core = self.inode.core();
            if !core.unfinished {
                return Ok(());
            }
            core.size
        };
        let keep = u32_from_u64(size.div_ceil(u64_from_usize(self.files.volume.block_size())));
        self.free_range(keep..u32::MAX, Why::NewSize(size))
    }

    /// Zeroes the rest of the last block, behind the file's end, so that a larger size shows
    /// zeroes. Other systems may have left anything there, and after a crash the bytes that a
    /// truncation cut off may be there. Zeroes both the dirty copy and the block on the device,
    /// because the size may reach the device before the dirty copy does.
    pub(crate) fn zero_behind_end(&mut self) -> Result<()> {
        let size = self.inode.core().size;
        let end = size.next_multiple_of(u64_from_usize(self.files.volume.block_size()));
        if size == end {
            return Ok(());
        }
        self.zero_waiting_tail(size);
        let here = self.files.mapping.lookup_block(
            self.inode,
            &self.inode.core(),
            u32_from_u64(size >> self.files.volume.geometry().block_bits()),
        )?;
        self.zero_in_place(size..end, here)
    }

    /// If the block in which a file of `size` bytes ends is dirty, zeroes the block's dirty copy
    /// behind that end.
    fn zero_waiting_tail(&self, size: u64) {
        let inside = usize_from_u64(size % u64_from_usize(self.files.volume.block_size()));
        let logical = u32_from_u64(size >> self.files.volume.geometry().block_bits());
        if let Some(block) = self.inode.waiting_mut().dirty.block_mut(logical)
            && inside > 0
        {
            block[inside..].fill(0);
        }
    }

    /// Zeroes bytes inside one block: in its dirty copy, or on the device if the block is mapped
    /// and written.
    pub(crate) fn zero_bytes(&mut self, bytes: Range<u64>) -> Result<()> {
        let logical = u32_from_u64(bytes.start >> self.files.volume.geometry().block_bits());
        self.data.pages.note_page(bytes.start);
        let inside = self.files.inside_block(&bytes);
        if let Some(block) = self.inode.waiting_mut().dirty.block_mut(logical) {
            block[inside].fill(0);
            return Ok(());
        }
        let here = {
            let core = self.inode.core();
            let here = self.files.mapping.lookup_block(self.inode, &core, logical)?;
            self.data.pages.note_lookup(core.extent_root(), &here, logical);
            here
        };
        self.zero_in_place(bytes, here)
    }

    /// Zeroes bytes inside one block on the device, if the block has data there. `here` is the
    /// lookup of the block.
    fn zero_in_place(&self, bytes: Range<u64>, here: Lookup) -> Result<()> {
        let bits = self.files.volume.geometry().block_bits();
        let logical = u32_from_u64(bytes.start >> bits);
        debug_assert_eq!(bytes.start >> bits, (bytes.end - 1) >> bits, "bytes of one block");
        let inside = self.files.inside_block(&bytes);
        let is_written =
            |extent: &Extent| !extent.unwritten || self.inode.waiting().unconverted.covers(logical);
        let Some(extent) = here.found.filter(is_written) else { return Ok(()) };
        let physical = extent.physical + u64::from(logical - extent.logical);
        let logged = self.files.mapping.logs_data(self.inode, &self.inode.core());
        if logged {
            return self.files.zero_logged(self.ctx, self.inode, physical, inside);
        }
        self.files.note_dirtied(self.ctx, self.inode);
        self.files.store.zero_inside((physical << bits) + u64_from_usize(inside.start), inside.len())?;
        self.inode.note_written(&self.files.volume.flushes);
        Ok(())
    }

    /// Frees all blocks of a range, dirty and mapped ones, in as many handles as needed. If a
    /// truncation needs more than one handle, the file is recorded as an orphan meanwhile.
    pub(crate) fn free_range(&mut self, range: Range<u32>, why: Why) -> Result<()> {
        debug_assert!(range.start <= range.end, "a range that ends before it begins: {range:?}");
        // A hole may need a new tree block; cutting off the tail needs none.
        if why == Why::Hole {
            self.prepare_hole(&range)?;
        } else {
            self.prepare_removal(&range)?;
        }
        let _shape = self.inode.change_shape();
        // As in Linux (observed on 6.18), freeing blocks behind an unchanged end gives fdatasync
        // nothing to commit.
        let same_size = why == Why::NewSize(self.inode.core().size);
        let remapped_in = self.inode.remapped_in.load(Ordering::Relaxed);
        let truncates = why != Why::Hole;
        let mut end = range.end;
        let mut first = true;
        loop {
            let handle = self.files.volume.begin(self.ctx, FREE_CREDITS)?;
            if why == Why::Hole {
                // If a split needs a tree node, its block may come from the file system's reserve.
                handle.set_pool(Pool::Reserve);
            }
            let mut core = self.inode.core_mut();
            let start = self.files.reserve_removal(&handle, self.inode, &core, range.start..end, 0)?;
            self.files.volume.inodes.join_inode(&handle, self.inode, &mut core)?;
            if let (Why::NewSize(size), true) = (why, first) {
                if size != core.size {
                    self.inode.note_remapped(&handle);
                }
                // From here on the file is cut. Up to here nothing has changed.
                self.forget_dirty(range.clone());
                self.zero_waiting_tail(size);
                self.files.set_new_size(self.ctx, self.inode, &mut core, size);
                core.unfinished = true;
            }
            first = false;
            let is_last = start.is_none_or(|start| start <= range.start);
            if truncates && !is_last {
                self.files.volume.orphans.add_orphan(&handle, self.inode, &mut core);
            }
            if let Some(start) = start {
                self.files.note_dirtied(self.ctx, self.inode);
                let removed =
                    self.files.mapping.remove_and_free(self.ctx, &handle, self.inode, &mut core, start..end);
                if removed.is_err() && truncates {
                    // The changes of this handle stay. As the file is recorded as an orphan,
                    // recovery frees the rest after a crash.
                    self.files.volume.orphans.add_orphan(&handle, self.inode, &mut core);
                }
                removed?;
                self.inode.waiting_mut().unconverted.take(&(start..end));
                if same_size {
                    self.inode.remapped_in.store(remapped_in, Ordering::Relaxed);
                }
                end = start;
            }
            if is_last {
                core.unfinished &= !truncates;
                if truncates && core.links() > 0 {
                    self.files.volume.orphans.remove_orphan(&handle, &mut core);
                }
                break;
            }
        }
        self.forget_dirty(range.clone());
        let is_left = self.inode.waiting().dirty.first_in(range.clone()).is_some();
        debug_assert!(!is_left, "dirty blocks of {range:?} are left");
        self.settle_reservations(&range);
        Ok(())
    }

    /// Prepares to unmap `range` in the middle of a file. Unmapping may split an extent. If dirty
    /// data outside the range stays, reserves what this data may need in addition because of the
    /// split, or writes the data back.
    pub(crate) fn prepare_hole(&mut self, range: &Range<u32>) -> Result<()> {
        if self.inode.waiting().dirty.has_more_than(range) {
            self.reserve_for_change(1)?;
        }
        self.prepare_removal(range)
    }

    fn prepare_removal(&mut self, range: &Range<u32>) -> Result<()> {
        if self.inode.waiting().dirty.has_more_than(range) {
            self.reserve_at_borders(range)?;
        }
        self.data.pages.forget_holes(range.clone());
        self.files.volume.space.discard_preallocations(self.ctx, self.inode);
        Ok(())
    }

    /// Drops the delayed data, the reservations and the preallocations of an inode that is deleted.
    pub(crate) fn drop_content(&mut self) {
        let all = 0..u32::MAX;
        self.forget_dirty(all.clone());
        self.data.pages.forget_holes(all.clone());
        self.inode.waiting_mut().unconverted.take(&all);
        self.files.volume.space.discard_preallocations(self.ctx, self.inode);
        self.settle_reservations(&all);
    }
}
