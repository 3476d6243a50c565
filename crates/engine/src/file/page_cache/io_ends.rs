//! Converts unwritten extents to written ones once the I/O to their blocks has ended. An observer
//! of a kernel reports when that was ([`crate::instruments::IoEnds`]).

use super::PageCache;
use crate::file::{Files, LockedFile};
use crate::instruments::IoEnd;
use crate::{OpContext, Result};

impl PageCache {
    /// Converts the pieces of write-back (runs of unwritten blocks) whose I/O has ended by now, in
    /// files that nobody has locked.
    pub(super) fn convert_ended(&self, files: &Files, ctx: &OpContext) -> Result<()> {
        while let Some(ended) = self.next_ended() {
            convert_other(files, ctx, &ended)?;
        }
        Ok(())
    }

    /// As [`Self::convert_ended`], and also in `file`, which the caller has locked.
    pub(super) fn convert_ended_beside(&self, file: &mut LockedFile<'_>) -> Result<()> {
        while let Some(ended) = self.next_ended() {
            if ended.inode == file.inode.number() {
                let ctx = file.ctx.on(ended.cpu);
                file.files.locked(&ctx, file.inode, file.data).convert_range(&ended.blocks)?;
            } else {
                convert_other(file.files, file.ctx, &ended)?;
            }
        }
        Ok(())
    }

    fn next_ended(&self) -> Option<IoEnd> {
        self.told().and_then(|ends| ends.0.next())
    }

    /// Tells the observer that a write did not delay the allocation of a block. The allocation may
    /// have failed.
    pub(super) fn note_block_allocated(&self) {
        if let Some(ends) = &self.io_ends {
            ends.0.allocated();
        }
    }
}

/// Converts a piece of another file if nobody has the file locked. Otherwise the piece is left for
/// a later conversion.
fn convert_other(files: &Files, ctx: &OpContext, ended: &IoEnd) -> Result<()> {
    let Ok(inode) = files.volume.inodes.inode(ended.inode) else { return Ok(()) };
    let Some(mut data) = inode.try_write() else { return Ok(()) };
    files.locked(&ctx.on(ended.cpu), &inode, &mut data).convert_range(&ended.blocks)
}
