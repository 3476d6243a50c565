//! Writing straight to the device, as `O_DIRECT` does. Blocks are requested as Linux does it.
//!
//! Observed on 6.18: dirty data in the range is written first. Then each request covers one piece
//! of the mapping, or the rest of a hole, as far as Linux remembers the hole ([`crate::requests`]).
//! Behind the end of the file the blocks are allocated as written. Before the end they are
//! allocated as unwritten, and converted when all data is on the device. A block map has no
//! unwritten blocks: when the write meets a hole before the end of the file, the rest of the data
//! is written as by an ordinary write.
//!
//! When the device has the data of some blocks, one handle makes the blocks written and raises the
//! size over them. So even after a crash, this write leaves no written blocks behind the end of the
//! file. If the size covers blocks whose data is not there yet, these blocks read as zeroes.

use super::limits::RUN_CREDITS;
use super::part::Part;
use super::write::up_to_limit;
use crate::data::FileData;
use crate::extents::{Lookup, Tree};
use crate::file::Files;
use crate::file::LockedFile;
use crate::inode::{Inode, InodeCore};
use crate::mapping::ExtentStore;
use crate::mapping::{How, Plan};
use crate::pool::Pool;
use crate::{Error, InodeRef, OpContext, Result};
use blockyard_disk::inode::{InodeFlags, InodeMap};
use blockyard_disk::num::{u64_from_u32, u64_from_usize, usize_from_u64};
use std::ops::Range;
use std::sync::Arc;

/// Entries that one piece may add to the mapping: two if it cuts an unwritten extent, and one for
/// each partly dirty cluster at its ends. The reservation of a cluster counts as one entry, too,
/// but the mapping of the piece ends that reservation while data of the cluster is still dirty.
const PIECE_ENTRIES: usize = 4;

impl Files {
    /// See [`crate::FileSystem::write_direct`].
    pub(crate) fn write_direct(
        &self,
        ctx: &OpContext,
        inode: InodeRef,
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize> {
        let block_size = u64_from_usize(self.volume.block_size());
        if !offset.is_multiple_of(block_size) || !u64_from_usize(bytes.len()).is_multiple_of(block_size) {
            return Err(Error::Invalid("a direct write must cover whole blocks"));
        }
        let file = self.writable_file(inode)?;
        let mut data = file.write();
        file.core().check_alive(file.number())?;
        if file.core().flags().contains(InodeFlags::APPEND) && offset != file.core().size {
            return Err(Error::NotPermitted);
        }
        if bytes.is_empty() {
            return Ok(0);
        }
        let bytes = up_to_limit(offset, bytes, self.size_limit(file.core().map))?;
        let end = offset + u64_from_usize(bytes.len());
        self.locked(ctx, &file, &mut data).leave_inline()?;
        let is_logged = self.mapping.logs_data(&file, &file.core());
        if is_logged {
            drop(data);
            return self.write_some(ctx, inode, offset, bytes);
        }
        let all = Part { offset, bytes };
        let blocks = all.blocks(self.volume.geometry().block_bits());
        self.note_dirtied(ctx, &file);
        let whole = self.folios_of(&data, &blocks);
        self.locked(ctx, &file, &mut data).write_back_range(whole)?;
        self.locked(ctx, &file, &mut data).convert_all()?;
        self.locked(ctx, &file, &mut data).prepare_growth(all.range())?;
        data.pages.forget_touched(&(offset..end));
        let mut at = blocks.start;
        let mut cached = 0;
        let written = loop {
            if at == blocks.end {
                break Ok(());
            }
            if self.is_inner_hole_of_map(&file, at)? {
                let rest = all.within(u64_from_u32(at) << self.volume.geometry().block_bits()..end);
                match self.locked(ctx, &file, &mut data).write_through_cache(rest) {
                    Ok(done) => cached = done,
                    Err(Error::NoSpace) if at > blocks.start => {}
                    Err(error) => break Err(error),
                }
                break Ok(());
            }
            match self.locked(ctx, &file, &mut data).write_direct_piece(all, at..blocks.end) {
                Ok(end) => at = end,
                Err(Error::NoSpace) if at > blocks.start => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        let converted = self.convert_written(ctx, &file, blocks.start..at);
        let timed = self.note_written(ctx, &file, 0, || ());
        written.and(converted).and(timed)?;
        let direct = u64_from_u32(at - blocks.start) << self.volume.geometry().block_bits();
        Ok(usize_from_u64(direct) + cached)
    }

    /// Whether a block is a hole of a block map before the end of the file. Block maps have no
    /// unwritten blocks, so such a hole cannot be mapped before its data is there.
    fn is_inner_hole_of_map(&self, file: &Arc<Inode>, block: u32) -> Result<bool> {
        let core = file.core();
        let is_inner = u64_from_u32(block) << self.volume.geometry().block_bits() < core.size;
        let is_possible = is_inner && core.map == InodeMap::Indirect;
        Ok(is_possible && self.mapping.lookup_block(file, &core, block)?.found.is_none())
    }

    /// The blocks that are written back together with a range: all blocks of the folios that the
    /// range touches.
    fn folios_of(&self, data: &FileData, blocks: &Range<u32>) -> Range<u32> {
        if blocks.is_empty() {
            return blocks.clone();
        }
        let bits = self.volume.geometry().block_bits();
        data.pages.around(blocks.start, bits).start..data.pages.around(blocks.end - 1, bits).end
    }

    /// Raises the size, in memory and on disk, so that it covers the blocks before `end`. The inode
    /// has joined a handle.
    fn raise_size(&self, core: &mut InodeCore, end: u32) {
        let end = u64_from_u32(end) << self.volume.geometry().block_bits();
        core.size = core.size.max(end);
        let on_disk = core.slot.raw().size().max(end);
        core.slot.raw_mut().set_size(on_disk);
    }

    /// [`Self::raise_size`] in a handle of its own, for blocks that were already mapped as written.
    fn cover(&self, ctx: &OpContext, inode: &Arc<Inode>, end: u32) -> Result<()> {
        if u64_from_u32(end) << self.volume.geometry().block_bits() <= inode.core().slot.raw().size() {
            return Ok(());
        }
        let handle = self.volume.begin(ctx, RUN_CREDITS)?;
        let mut core = inode.core_mut();
        self.volume.inodes.join_inode(&handle, inode, &mut core)?;
        self.raise_size(&mut core, end);
        inode.note_remapped(&handle);
        Ok(())
    }

    /// Changes an unwritten extent. If this needs a tree node, its block may come from the file
    /// system's reserve.
    fn edit_unwritten(
        &self,
        ctx: &OpContext,
        inode: &Arc<Inode>,
        edit: impl FnOnce(&mut Tree<'_, ExtentStore<'_>>) -> Result<()>,
    ) -> Result<()> {
        self.make_written(ctx, inode, 0, edit)
    }

    /// As [`Self::edit_unwritten`], for an edit that makes blocks written. The data of these blocks
    /// must be on the device. Raises the size over the blocks before `end`.
    fn make_written(
        &self,
        ctx: &OpContext,
        inode: &Arc<Inode>,
        end: u32,
        edit: impl FnOnce(&mut Tree<'_, ExtentStore<'_>>) -> Result<()>,
    ) -> Result<()> {
        let handle = self.volume.begin(ctx, RUN_CREDITS)?;
        handle.set_pool(Pool::Reserve);
        let mut core = inode.core_mut();
        self.volume.inodes.join_inode(&handle, inode, &mut core)?;
        self.mapping.edit_tree(ctx, &handle, inode, &mut core, edit)?;
        self.raise_size(&mut core, end);
        inode.note_remapped(&handle);
        Ok(())
    }

    /// Converts the unwritten blocks of a range. Their data must be on the device.
    fn convert_written(&self, ctx: &OpContext, inode: &Arc<Inode>, range: Range<u32>) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let Some(extent) = self.mapping.lookup_block(inode, &inode.core(), at)?.found else { break };
            let piece = at..extent.end().min(range.end);
            at = piece.end;
            if extent.unwritten {
                self.make_written(ctx, inode, piece.end, |tree| tree.set_state(piece, false))?;
            }
        }
        Ok(())
    }

    /// Writes the blocks `piece` of a write to their physical blocks.
    fn write_at_place(&self, all: Part<'_>, piece: Range<u32>, physical: u64) -> Result<()> {
        let bits = self.volume.geometry().block_bits();
        let bytes = all.within(u64_from_u32(piece.start) << bits..u64_from_u32(piece.end) << bits).bytes;
        self.store.write(physical << bits, &[bytes])
    }
}

impl LockedFile<'_> {
    /// Reserves what the dirty data beside a piece at `block` may need in addition, because writing
    /// the piece may change the mapping.
    fn reserve_beside_piece(&mut self, block: u32) -> Result<()> {
        let here = self.files.mapping.lookup_block(self.inode, &self.inode.core(), block)?;
        if here.found.is_some_and(|extent| !extent.unwritten) {
            return Ok(());
        }
        self.reserve_for_change(PIECE_ENTRIES)
    }

    /// Writes the rest of a direct write as an ordinary write does, and then writes it back.
    fn write_through_cache(&mut self, rest: Part<'_>) -> Result<usize> {
        let done = self.write_what_fits(rest.offset, rest.bytes)?;
        let written = Part { offset: rest.offset, bytes: &rest.bytes[..done] };
        let blocks = written.blocks(self.files.volume.geometry().block_bits());
        let whole = self.files.folios_of(self.data, &blocks);
        self.write_back_range(whole)?;
        Ok(done)
    }

    /// Writes the first piece of `range`. Returns where it ends.
    fn write_direct_piece(&mut self, all: Part<'_>, range: Range<u32>) -> Result<u32> {
        debug_assert!(!range.is_empty(), "a piece of nothing");
        let bits = self.files.volume.geometry().block_bits();
        let from = u64_from_u32(range.start) << bits;
        let behind_end = from >= self.inode.core().size;
        self.reserve_beside_piece(range.start)?;
        let mut tries = 0;
        loop {
            let here = {
                let core = self.inode.core();
                let here = self.files.mapping.lookup_block(self.inode, &core, range.start)?;
                self.data.pages.note_lookup(core.extent_root(), &here, range.start);
                here
            };
            if let Some(extent) = here.found {
                let piece = range.start..extent.end().min(range.end);
                let physical = extent.physical + u64_from_u32(range.start - extent.logical);
                if extent.unwritten && !behind_end {
                    // The piece becomes an extent of its own now, and is converted after the write.
                    self.files.edit_unwritten(self.ctx, self.inode, |tree| tree.separate(&piece))?;
                }
                self.files.write_at_place(all, piece.clone(), physical)?;
                self.inode.note_written(&self.files.volume.flushes);
                if extent.unwritten && behind_end {
                    self.files.make_written(self.ctx, self.inode, piece.end, |tree| {
                        tree.initialise(piece.clone())
                    })?;
                } else if !extent.unwritten {
                    self.files.cover(self.ctx, self.inode, piece.end)?;
                }
                return Ok(piece.end);
            }
            // Linux requests as much of the hole as it remembers.
            let end = self.data.pages.hole_end(range.start).map_or(range.end, |hole| hole.min(range.end));
            let wanted = (range.start, self.most_at_once(range.start..end)?);
            let mapped = self
                .plan_direct(&here, wanted, behind_end)
                .and_then(|plan| self.write_as_planned(all, plan, behind_end));
            match mapped {
                Ok(piece) => {
                    self.files.end_reservations(self.ctx, self.inode, self.data, &piece);
                    self.data.pages.forget_holes(piece.clone());
                    self.inode.note_written(&self.files.volume.flushes);
                    return Ok(piece.end);
                }
                Err(Error::NoSpace) => self.files.volume.retry_after_commit(self.ctx, &mut tries)?,
                Err(error) => return Err(error),
            }
        }
    }

    /// The number of blocks of a hole that are requested together. In a block map, blocks whose
    /// array of pointers exists are requested one by one (observed on 6.18).
    fn most_at_once(&self, hole: Range<u32>) -> Result<u32> {
        let core = self.inode.core();
        let is_map = core.map == InodeMap::Indirect;
        let has_array = is_map && self.files.mapping.missing_indirect(&core, hole.start)? == 0;
        Ok(if has_array { 1 } else { hole.end - hole.start })
    }

    /// Chooses blocks for the beginning of `wanted`, a block and a count.
    fn plan_direct(&self, here: &Lookup, wanted: (u32, u32), behind_end: bool) -> Result<Plan<'_>> {
        let how = How { unwritten: !behind_end, pool: Pool::Ordinary, exact: false };
        // Beginning a handle makes clusters available that ended transactions have freed. As in
        // Linux, this comes before blocks are chosen.
        let _handle = self.files.volume.begin(self.ctx, RUN_CREDITS)?;
        self.files.mapping.plan_blocks(self.ctx, self.inode, &self.inode.core(), here, wanted, how)
    }

    /// Writes to the chosen blocks and maps them. Returns the blocks. No handle is open during
    /// device I/O: a commit would wait for that handle, and new handles for the commit.
    fn write_as_planned(&self, all: Part<'_>, mut plan: Plan<'_>, behind_end: bool) -> Result<Range<u32>> {
        let piece = plan.extent.logical..plan.extent.end();
        self.files.write_at_place(all, piece.clone(), plan.extent.physical)?;
        let handle = self.files.volume.begin(self.ctx, RUN_CREDITS)?;
        let mut core = self.inode.core_mut();
        self.files.volume.inodes.join_inode(&handle, self.inode, &mut core)?;
        // An unwritten piece gets an entry of its own, like one cut out of an unwritten extent.
        plan.apart = !behind_end;
        self.files.mapping.apply_plan(self.ctx, &handle, self.inode, &mut core, plan)?;
        if behind_end {
            self.files.raise_size(&mut core, piece.end);
        }
        Ok(piece)
    }
}
