//! File data that goes through the journal: the data of all files under
//! [`DataMode::Journal`](crate::DataMode), otherwise the data of files with the flag `j`
//! (`chattr +j`). The blocks of such data are metadata buffers: they are read through the metadata
//! cache, and revoked when they are freed.

use super::limits::{LOGGED_MAX, RUN_CREDITS};
use crate::cache::BlockKind;
use crate::file::Files;
use crate::file::LockedFile;
use crate::inode::Inode;
use crate::mapping::Plan;
use crate::pool::Pool;
use crate::{OpContext, Result};
use blockyard_disk::BlockNr;
use blockyard_disk::num::{usize_from_u32, usize_from_u64};
use std::ops::Range;
use std::sync::Arc;

impl LockedFile<'_> {
    /// Logs the data of a piece of dirty blocks. In the same transaction, maps the piece by `plan`,
    /// or makes it written if it is `unwritten`.
    pub(super) fn log_piece(
        &self,
        (piece, physical): (Range<u32>, u64),
        (plan, unwritten): (Option<Plan<'_>>, bool),
    ) -> Result<()> {
        debug_assert!(!piece.is_empty() && piece.end - piece.start <= LOGGED_MAX, "{piece:?} in one handle");
        let handle =
            self.files.volume.begin(self.ctx, RUN_CREDITS + usize_from_u32(piece.end - piece.start))?;
        handle.set_pool(Pool::Reserved);
        let mut core = self.inode.core_mut();
        self.files.volume.inodes.join_inode(&handle, self.inode, &mut core)?;
        if let Some(plan) = plan {
            self.files.mapping.apply_plan(self.ctx, &handle, self.inode, &mut core, plan)?;
        } else if unwritten {
            self.files.mapping.edit_tree(self.ctx, &handle, self.inode, &mut core, |tree| {
                tree.set_state(piece.clone(), false)
            })?;
        }
        let waiting = self.inode.waiting();
        for (block, logical) in (physical..).zip(piece.clone()) {
            let Some(bytes) = waiting.dirty.block(logical) else { continue };
            handle.create(BlockNr::new(block), BlockKind::Plain).write(|into| into.copy_from_slice(bytes));
        }
        drop(waiting);
        self.files.raise_disk_size(&mut core, piece.end);
        self.inode.note_remapped(&handle);
        Ok(())
    }
}

impl Files {
    /// Fills `buf` from logged blocks, from byte `inside` of block `physical` on.
    pub(super) fn read_logged(&self, physical: u64, inside: usize, buf: &mut [u8]) -> Result<()> {
        debug_assert!(inside < self.volume.block_size(), "byte {inside} of a block");
        let block_size = self.volume.block_size();
        let (mut block, mut inside, mut done) = (physical, inside, 0);
        while done < buf.len() {
            let n = (block_size - inside).min(buf.len() - done);
            let buffer = self.volume.cache.read(BlockNr::new(block), BlockKind::Plain, |_| Ok(()))?;
            buffer.read(|bytes| buf[done..done + n].copy_from_slice(&bytes[inside..inside + n]));
            (block, inside, done) = (block + 1, 0, done + n);
        }
        Ok(())
    }

    /// Zeroes bytes of one logged block.
    pub(super) fn zero_logged(
        &self,
        ctx: &OpContext,
        inode: &Arc<Inode>,
        physical: u64,
        bytes: Range<usize>,
    ) -> Result<()> {
        let handle = self.volume.begin(ctx, 2)?;
        let mut core = inode.core_mut();
        self.volume.inodes.join_inode(&handle, inode, &mut core)?;
        let buffer = handle.read_for_write(BlockNr::new(physical), BlockKind::Plain, |_| Ok(()))?;
        buffer.write(|into| into[bytes].fill(0));
        inode.note_remapped(&handle);
        Ok(())
    }

    /// The position of a range of bytes in the block that holds it.
    pub(super) fn inside_block(&self, bytes: &Range<u64>) -> Range<usize> {
        let start = usize_from_u64(bytes.start) % self.volume.block_size();
        let end = start + usize_from_u64(bytes.end - bytes.start);
        debug_assert!(end <= self.volume.block_size(), "{bytes:?} are not bytes of one block");
        start..end
    }
}
