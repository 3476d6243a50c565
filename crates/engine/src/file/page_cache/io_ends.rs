//! Conversions when I/O has ended, as it was seen on a kernel.

use super::PageCache;
use crate::file::{Files, LockedFile};
use crate::instruments::IoEnd;
use crate::{OpContext, Result};

impl PageCache {
    /// Converts what has ended its I/O by now, of files that nobody uses.
    pub(super) fn convert_ended(&self, files: &Files, ctx: &OpContext) -> Result<()> {
        while let Some(ended) = self.next_ended() {
            convert_other(files, ctx, &ended)?;
        }
        Ok(())
    }

    /// As [`Self::convert_ended`], of this file, too.
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

    /// Tells who knows of I/O that a write has placed a block at once, or failed to.
    pub(super) fn note_block_placed(&self) {
        if let Some(ends) = &self.io_ends {
            ends.0.placed();
        }
    }
}

/// A piece of a file that nobody uses now; of others it is converted later.
fn convert_other(files: &Files, ctx: &OpContext, ended: &IoEnd) -> Result<()> {
    let Ok(inode) = files.volume.inodes.inode(ended.inode) else { return Ok(()) };
    let Some(mut data) = inode.try_write() else { return Ok(()) };
    files.locked(&ctx.on(ended.cpu), &inode, &mut data).convert_range(&ended.blocks)
}
