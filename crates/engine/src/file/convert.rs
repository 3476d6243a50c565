//! Conversion: what write-back mapped as unwritten becomes written when its data is on the device.
//!
//! As in Linux, pieces of a write-back stay in entries of their own until then, which shows in the tree where a leaf is
//! full. Here the device has the data when a write returns, so all are converted when the last is mapped. A kernel's device
//! takes its time, and its threads convert while others already map: when, no rule says. Where [`IoEnds`] is told by
//! whoever watched a kernel, conversions wait for it; nothing is durable before them all the same.
//!
//! [`IoEnds`]: crate::IoEnds

use super::write_back::RUN_CREDITS;
use crate::data::FileData;
use crate::file::Files;
use crate::inode::Inode;
use crate::pool::Pool;
use crate::{IoEnd, OpContext, Result};
use std::ops::Range;
use std::sync::Arc;

impl Files {
    /// Whether somebody tells when I/O ends.
    pub(super) fn is_told_of_io(&self) -> bool {
        self.volume.options().io_ends.is_some() && self.volume.delays_allocation()
    }

    /// See [`crate::FileSystem::end_io`].
    pub(crate) fn end_io(&self, ctx: &OpContext) -> Result<()> {
        while let Some(ended) = self.next_ended() {
            self.end_other(ctx, &ended)?;
        }
        Ok(())
    }

    /// [`Self::end_io`] for who holds the content lock of a file.
    pub(super) fn end_io_beside(
        &self,
        ctx: &OpContext,
        inode: &Arc<Inode>,
        data: &mut FileData,
    ) -> Result<()> {
        while let Some(ended) = self.next_ended() {
            if ended.inode == inode.number() {
                let ctx = ctx.on(ended.cpu);
                self.convert_range(&ctx, inode, data, &ended.blocks)?;
            } else {
                self.end_other(ctx, &ended)?;
            }
        }
        Ok(())
    }

    /// Converts everything that waits for it: before what must be durable, and where nobody tells of more.
    pub(super) fn end_all_io(&self, ctx: &OpContext) -> Result<()> {
        if !self.is_told_of_io() {
            return Ok(());
        }
        self.end_io(ctx)?;
        for inode in self.volume.inodes.table.all() {
            let mut data = inode.write();
            self.convert_all(ctx, &inode, &mut data)?;
        }
        Ok(())
    }

    /// Tells who knows of I/O how far write-back has come.
    pub(super) fn note_piece_mapped(&self) {
        if let Some(ends) = &self.volume.options().io_ends {
            ends.0.mapped();
        }
    }

    /// Tells who knows of I/O that a write has placed a block at once, or failed to.
    pub(super) fn note_block_placed(&self) {
        if let Some(ends) = &self.volume.options().io_ends {
            ends.0.placed();
        }
    }

    fn next_ended(&self) -> Option<IoEnd> {
        let ends = self.volume.options().io_ends.as_ref().filter(|_| self.volume.delays_allocation())?;
        ends.0.next()
    }

    /// A piece of a file that nobody uses now; of others it is converted later.
    fn end_other(&self, ctx: &OpContext, ended: &IoEnd) -> Result<()> {
        let Ok(inode) = self.volume.inodes.inode(ended.inode) else { return Ok(()) };
        let Some(mut data) = inode.try_write() else { return Ok(()) };
        let ctx = ctx.on(ended.cpu);
        self.convert_range(&ctx, &inode, &mut data, &ended.blocks)
    }

    /// Converts all pieces of a file that wait for it.
    pub(super) fn convert_all(&self, ctx: &OpContext, inode: &Arc<Inode>, data: &mut FileData) -> Result<()> {
        self.convert_range(ctx, inode, data, &(0..u32::MAX))
    }

    /// Whose clusters a split takes where blocks have their place already. Linux asks for them as for any other, with the file
    /// system's own reserve (observed on 6.18), which shows in how far its counters lag behind.
    pub(super) fn pool_to_convert(&self) -> Pool {
        if self.volume.options().follow_page_cache { Pool::Reserve } else { Pool::Promised }
    }

    /// Converts what of a range waits for it; after the last piece the size on disk may be what users see.
    fn convert_range(
        &self,
        ctx: &OpContext,
        inode: &Arc<Inode>,
        data: &mut FileData,
        range: &Range<u32>,
    ) -> Result<()> {
        let mut pieces = data.unconverted.take(range).into_iter().peekable();
        let is_last = pieces.peek().is_some() && data.unconverted.is_empty() && data.is_empty();
        while let Some(piece) = pieces.next() {
            let converted = self.volume.patiently(ctx, || {
                let handle = self.volume.begin(ctx, RUN_CREDITS)?;
                handle.set_pool(self.pool_to_convert());
                let mut core = inode.core_mut();
                self.volume.inodes.join_inode(&handle, inode, &mut core)?;
                self.mapping
                    .edit_tree(ctx, &handle, inode, &mut core, |tree| tree.set_state(piece.clone(), false))?;
                self.raise_disk_size(&mut core, piece.end);
                inode.note_remapped(&handle);
                Ok(())
            });
            if converted.is_err() {
                // What is on the device must not read as zeroes.
                std::iter::once(piece).chain(pieces).for_each(|piece| data.unconverted.push(piece));
                return converted;
            }
        }
        if is_last && self.is_told_of_io() { self.settle_size(ctx, inode) } else { Ok(()) }
    }
}
