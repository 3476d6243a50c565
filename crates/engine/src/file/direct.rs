//! Writing past the data that waits: what O_DIRECT does, with Linux's requests.
//!
//! Observed on 6.18: what of the range waits for write-back is written first. Then as much as lies in one piece of the
//! mapping, or all the rest of a hole, is asked for at once: behind the end of the file as written, before it as
//! unwritten, which is converted when all is on the device. The size follows at the end.

use super::allocate::How;
use super::part::Part;
use super::store::ExtentStore;
use super::write_back::RUN_CREDITS;
use crate::data::FileData;
use crate::extents::Tree;
use crate::inode::Inode;
use crate::space::Pool;
use crate::{Error, FileSystem, OpContext, Result};
use blockyard_disk::InodeNr;
use blockyard_disk::inode::InodeMap;
use blockyard_disk::num::{u64_from_u32, u64_from_usize, usize_from_u64};
use std::ops::Range;
use std::sync::Arc;

impl FileSystem {
    /// Writes at byte `offset` to the device at once; gives the number of bytes that went when space ran out. Offset and
    /// length are whole blocks. The mapping is durable after [`FileSystem::fsync`] only.
    ///
    /// Files that are not mapped by extents, or log their data, are written as by [`FileSystem::write_some`].
    ///
    /// # Errors
    /// As [`FileSystem::write_some`]; [`Error::Invalid`] for parts of blocks.
    pub fn write_direct(&self, ctx: &OpContext, inode: InodeNr, offset: u64, bytes: &[u8]) -> Result<usize> {
        let block_size = u64_from_usize(self.block_size());
        if !offset.is_multiple_of(block_size) || !u64_from_usize(bytes.len()).is_multiple_of(block_size) {
            return Err(Error::Invalid("a direct write of parts of blocks"));
        }
        let file = self.writable_file(inode)?;
        let mut data = file.write();
        let end = offset.checked_add(u64_from_usize(bytes.len())).ok_or(Error::FileTooLarge)?;
        if end > self.size_limit(file.core().map) {
            return Err(Error::FileTooLarge);
        }
        self.leave_inline(ctx, &file, &mut data)?;
        let by_blocks = {
            let core = file.core();
            core.map != InodeMap::Extents || self.logs_data(&file, &core)
        };
        if by_blocks {
            drop(data);
            return self.write_some(ctx, inode, offset, bytes);
        }
        let all = Part { offset, bytes };
        let blocks = all.blocks(self.geometry().block_bits());
        self.note_dirtied(ctx, &file);
        let whole = self.folios_of(&data, &blocks);
        self.write_back_range(ctx, &file, &mut data, whole)?;
        self.convert_all(ctx, &file, &mut data)?;
        data.folios.keep(|folio| folio.end <= offset || folio.start >= end);
        let mut at = blocks.start;
        let written = loop {
            if at == blocks.end {
                break Ok(());
            }
            match self.write_direct_piece(ctx, &file, &mut data, all, at..blocks.end) {
                Ok(end) => at = end,
                Err(Error::NoSpace) if at > blocks.start => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        let converted = self.convert_written(ctx, &file, blocks.start..at);
        let end = u64_from_u32(at) << self.geometry().block_bits();
        self.end_direct(ctx, &file, if at > blocks.start { end } else { 0 })?;
        written.and(converted)?;
        Ok(usize_from_u64(u64_from_u32(at - blocks.start) << self.geometry().block_bits()))
    }

    /// The blocks of all folios that a range touches: they are written back as a whole.
    fn folios_of(&self, data: &FileData, blocks: &Range<u32>) -> Range<u32> {
        if !self.options().follow_page_cache || blocks.is_empty() {
            return blocks.clone();
        }
        let bits = self.geometry().block_bits();
        data.folios.around(blocks.start, bits).start..data.folios.around(blocks.end - 1, bits).end
    }

    /// Writes what begins at `range` and lies in one piece; gives where that ends.
    fn write_direct_piece(
        &self,
        ctx: &OpContext,
        inode: &Arc<Inode>,
        data: &mut FileData,
        all: Part<'_>,
        range: Range<u32>,
    ) -> Result<u32> {
        let bits = self.geometry().block_bits();
        let from = u64_from_u32(range.start) << bits;
        let behind_end = from >= inode.core().size;
        let mut tries = 0;
        loop {
            let here = {
                let core = inode.core();
                let here = self.lookup_block(inode, &core, range.start)?;
                self.note_lookup(data, &core, &here, range.start);
                here
            };
            if let Some(extent) = here.found {
                let piece = range.start..extent.end().min(range.end);
                let physical = extent.physical + u64_from_u32(range.start - extent.logical);
                if extent.unwritten && !behind_end {
                    // Cut out before it is written, converted afterwards.
                    self.edit_unwritten(ctx, inode, |tree| tree.separate(&piece))?;
                }
                self.write_at_place(all, piece.clone(), physical)?;
                if extent.unwritten && behind_end {
                    self.edit_unwritten(ctx, inode, |tree| tree.initialise(piece.clone()))?;
                }
                inode.note_written(&self.flushes);
                return Ok(piece.end);
            }
            let how = How { unwritten: !behind_end, pool: Pool::Ordinary, exact: false };
            let wanted = (range.start, range.end - range.start);
            let handle = self.begin(ctx, RUN_CREDITS)?;
            let mut core = inode.core_mut();
            self.join_inode(&handle, inode, &mut core)?;
            let mapped = self.plan_blocks(ctx, inode, &core, &here, wanted, how).and_then(|mut plan| {
                let piece = range.start..range.start + plan.extent.len;
                self.write_at_place(all, piece.clone(), plan.extent.physical)?;
                if behind_end {
                    // After a crash what lies behind the end goes.
                    self.add_orphan(&handle, inode, &mut core);
                }
                // Like what is cut out of an unwritten extent.
                plan.apart = !behind_end;
                self.apply_plan(ctx, &handle, inode, &mut core, plan)?;
                Ok(piece)
            });
            drop(core);
            drop(handle);
            match mapped {
                Ok(piece) => {
                    data.holes.forget(piece.clone());
                    inode.note_written(&self.flushes);
                    return Ok(piece.end);
                }
                Err(Error::NoSpace) => self.retry_after_commit(ctx, &mut tries)?,
                Err(error) => return Err(error),
            }
        }
    }

    /// The size follows what was written, up to `end`, and the times.
    fn end_direct(&self, ctx: &OpContext, inode: &Arc<Inode>, end: u64) -> Result<()> {
        self.note_written(ctx, inode, end)?;
        self.settle_size(ctx, inode)?;
        let is_noted = {
            let core = inode.core();
            core.orphan.is_some() && core.links() > 0
        };
        if is_noted {
            let handle = self.begin(ctx, RUN_CREDITS)?;
            let mut core = inode.core_mut();
            self.join_inode(&handle, inode, &mut core)?;
            self.remove_orphan(&handle, &mut core);
        }
        Ok(())
    }

    /// Changes an unwritten extent; the node that this may take comes from the reserve.
    fn edit_unwritten(
        &self,
        ctx: &OpContext,
        inode: &Arc<Inode>,
        edit: impl FnOnce(&mut Tree<'_, ExtentStore<'_>>) -> Result<()>,
    ) -> Result<()> {
        let handle = self.begin(ctx, RUN_CREDITS)?;
        handle.set_pool(Pool::Reserve);
        let mut core = inode.core_mut();
        self.join_inode(&handle, inode, &mut core)?;
        self.edit_tree(ctx, &handle, inode, &mut core, edit)?;
        inode.note_remapped(&handle);
        Ok(())
    }

    /// Converts what of a range is unwritten: all of it has its data now.
    fn convert_written(&self, ctx: &OpContext, inode: &Arc<Inode>, range: Range<u32>) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let Some(extent) = self.lookup_block(inode, &inode.core(), at)?.found else { break };
            let piece = at..extent.end().min(range.end);
            at = piece.end;
            if extent.unwritten {
                self.edit_unwritten(ctx, inode, |tree| tree.set_state(piece, false))?;
            }
        }
        Ok(())
    }

    /// Writes the blocks `piece` of a write to their place.
    fn write_at_place(&self, all: Part<'_>, piece: Range<u32>, physical: u64) -> Result<()> {
        let bits = self.geometry().block_bits();
        let bytes = all.within(u64_from_u32(piece.start) << bits..u64_from_u32(piece.end) << bits).bytes;
        Ok(self.device.write_at(physical << bits, bytes)?)
    }
}
