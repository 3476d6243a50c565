//! Conversions when I/O has ended, as it was seen on a kernel.

use super::PageCache;
use crate::data::FileData;
use crate::file::Files;
use crate::inode::Inode;
use crate::instruments::IoEnd;
use crate::{OpContext, Result};
use std::sync::Arc;

impl PageCache {
    /// Converts what has ended its I/O by now. The caller may hold the content lock of a file.
    pub(super) fn convert_ended(
        &self,
        files: &Files,
        ctx: &OpContext,
        mut held: Option<(&Arc<Inode>, &mut FileData)>,
    ) -> Result<()> {
        while let Some(ended) = self.told().and_then(|ends| ends.0.next()) {
            match &mut held {
                Some((inode, data)) if inode.number() == ended.inode => {
                    files.convert_range(&ctx.on(ended.cpu), inode, data, &ended.blocks)?;
                }
                _ => convert_other(files, ctx, &ended)?,
            }
        }
        Ok(())
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
    files.convert_range(&ctx.on(ended.cpu), &inode, &mut data, &ended.blocks)
}
