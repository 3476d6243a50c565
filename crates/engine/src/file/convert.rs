//! Conversion: what write-back mapped as unwritten becomes written when its data is on the device.
//!
//! As in Linux, pieces of a write-back stay in entries of their own until then, which shows in the tree where a leaf is
//! full. Here the device has the data when a write returns, so all are converted when the last is mapped. A kernel's device
//! takes its time, and its threads convert while others already map: when, no rule says. Where somebody who watched a kernel tells,
//! conversions wait for it; nothing is durable before them all the same.

use super::Files;
use super::write_back::RUN_CREDITS;
use crate::data::FileData;
use crate::inode::Inode;
use crate::{OpContext, Result};
use std::ops::Range;
use std::sync::Arc;

impl Files {
    /// Converts what has ended its I/O by now, where somebody tells; otherwise nothing is left to convert.
    pub(crate) fn end_io(&self, ctx: &OpContext) -> Result<()> {
        self.writing.end_io(self, ctx, None)
    }

    /// [`Self::end_io`] for who holds the content lock of a file.
    pub(super) fn end_io_beside(
        &self,
        ctx: &OpContext,
        inode: &Arc<Inode>,
        data: &mut FileData,
    ) -> Result<()> {
        self.writing.end_io(self, ctx, Some((inode, data)))
    }

    /// Converts everything that waits for it: before what must be durable, and where nobody tells of more.
    pub(super) fn end_all_io(&self, ctx: &OpContext) -> Result<()> {
        if !self.writing.is_told_of_io() {
            return Ok(());
        }
        self.end_io(ctx)?;
        for inode in self.volume.inodes.table.all() {
            let mut data = inode.write();
            self.convert_all(ctx, &inode, &mut data)?;
        }
        Ok(())
    }

    /// Converts all pieces of a file that wait for it.
    pub(super) fn convert_all(&self, ctx: &OpContext, inode: &Arc<Inode>, data: &mut FileData) -> Result<()> {
        self.convert_range(ctx, inode, data, &(0..u32::MAX))
    }

    /// Converts what of a range waits for it; after the last piece the size on disk may be what users see.
    pub(super) fn convert_range(
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
                handle.set_pool(self.volume.rules.convert);
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
        if is_last && self.writing.is_told_of_io() { self.settle_size(ctx, inode) } else { Ok(()) }
    }
}
