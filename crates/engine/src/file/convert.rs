//! Conversion: blocks that write-back mapped as unwritten become written once their data is on the
//! device.
//!
//! A piece is a run of blocks that write-back maps at once. As in Linux, each piece stays in an
//! extent of its own until it is converted. If the entry of such an extent splits a full leaf of
//! the extent tree, the leaf stays split after the conversion.
//!
//! When the engine's write to the device returns, the device has the data. So a write-back converts
//! all its pieces once it has mapped the last.
//!
//! In a kernel, I/O ends later: some threads convert pieces while others already map new ones, in
//! no fixed order. To follow a kernel, an observer can report the ends of the kernel's I/O
//! ([`crate::instruments`]). Conversions then wait for the reports. But an operation that makes
//! data durable converts the pieces of that data without waiting.

use super::Files;
use super::limits::RUN_CREDITS;
use crate::file::LockedFile;
use crate::{OpContext, Result};
use std::ops::Range;

impl Files {
    /// If an observer reports the ends of I/O, converts pieces whose I/O has ended by now, in files
    /// that nobody has locked. Without an observer nothing is left to convert.
    pub(crate) fn end_io(&self, ctx: &OpContext) -> Result<()> {
        self.writing.end_io(self, ctx)
    }

    /// Converts all unconverted pieces if an observer reports the ends of I/O: first those that it
    /// reports, then the rest. Otherwise nothing is left to convert.
    pub(super) fn end_all_io(&self, ctx: &OpContext) -> Result<()> {
        if !self.writing.is_told_of_io() {
            return Ok(());
        }
        self.end_io(ctx)?;
        for inode in self.volume.inodes.table.all() {
            let mut data = inode.write();
            self.locked(ctx, &inode, &mut data).convert_all()?;
        }
        Ok(())
    }
}

impl LockedFile<'_> {
    /// [`Files::end_io`] for a caller that holds the content lock of a file. Converts pieces of
    /// this file too.
    pub(super) fn end_io_beside(&mut self) -> Result<()> {
        self.files.writing.end_io_beside(self)
    }

    /// Converts all unconverted pieces of a file.
    pub(super) fn convert_all(&mut self) -> Result<()> {
        self.convert_range(&(0..u32::MAX))
    }

    /// Converts the unconverted pieces in a range. If conversions wait for an observer, and the
    /// file then has neither dirty nor unconverted blocks left, the size on disk becomes the size
    /// that users see.
    pub(super) fn convert_range(&mut self, range: &Range<u32>) -> Result<()> {
        let pieces = self.inode.waiting().unconverted.within(range);
        for piece in &pieces {
            self.files.volume.patiently(self.ctx, || {
                let handle = self.files.volume.begin(self.ctx, RUN_CREDITS)?;
                handle.set_pool(self.files.volume.rules.convert);
                let mut core = self.inode.core_mut();
                self.files.volume.inodes.join_inode(&handle, self.inode, &mut core)?;
                self.files.mapping.edit_tree(self.ctx, &handle, self.inode, &mut core, |tree| {
                    tree.set_state(piece.clone(), false)
                })?;
                self.files.raise_disk_size(&mut core, piece.end);
                self.inode.note_remapped(&handle);
                Ok(())
            })?;
            // The piece leaves the list only now: until the extent is marked as written, the list
            // keeps reads from returning zeroes instead of the data on the device.
            self.inode.waiting_mut().unconverted.take(piece);
        }
        let is_last = !pieces.is_empty() && self.inode.waiting().is_empty();
        debug_assert!(!self.inode.waiting().unconverted.touches(range), "pieces of {range:?} are left");
        if is_last && self.files.writing.is_told_of_io() {
            self.files.settle_size(self.ctx, self.inode)
        } else {
            Ok(())
        }
    }
}
