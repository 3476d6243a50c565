//! Ending a transaction, syncing, closing.

use super::FileSystem;
use crate::cache::Buffer;
use crate::txn::Image;
use crate::{Error, OpContext, Result};
use blockyard_disk::TxnId;
use blockyard_sync::MutexGuard;
use std::sync::Arc;

/// What a commit took while the gate was closed.
struct Frozen {
    images: Vec<Image>,
    revoked: Vec<blockyard_disk::BlockNr>,
    /// Kept until the images are written: a buffer in use is not evicted, so nobody reads the old content back.
    _buffers: Vec<Arc<Buffer>>,
}

impl FileSystem {
    /// Ends the running transaction. Without a journal nothing is written: its frees become available.
    pub(crate) fn commit_point(&self, ctx: &OpContext) -> Result<TxnId> {
        self.end_transaction(ctx, self.journal.keeps_promises())
    }

    /// As [`Self::commit_now`], unless `needed` is no longer true when it is this thread's turn: many may find at once
    /// that too much is dirty, and one commit serves them all.
    pub(crate) fn commit_if(&self, ctx: &OpContext, needed: impl Fn() -> bool) -> Result<()> {
        let commits = self.txns.commit.lock();
        if needed() { self.end_locked(ctx, true, commits).map(drop) } else { Ok(()) }
    }

    /// Ends the running transaction and makes it durable.
    pub(crate) fn commit_now(&self, ctx: &OpContext) -> Result<TxnId> {
        self.end_transaction(ctx, true)
    }

    fn end_transaction(&self, ctx: &OpContext, durable: bool) -> Result<TxnId> {
        let commits = self.txns.commit.lock();
        self.end_locked(ctx, durable, commits)
    }

    fn end_locked(&self, ctx: &OpContext, durable: bool, mut commits: MutexGuard<'_, u64>) -> Result<TxnId> {
        self.check_writable()?;
        let closed = self.txns.gate.close();
        let tid = self.txns.switch();
        let frozen = durable.then(|| self.freeze());
        drop(closed);
        if let Some(frozen) = frozen {
            let written = self.journal.commit(tid, frozen.images, &frozen.revoked, ctx.now);
            self.apply(written)?;
        }
        self.space.committed(tid, ctx.cpu);
        *commits += 1;
        Ok(tid)
    }

    /// Copies everything that changed; the gate is closed.
    fn freeze(&self) -> Frozen {
        let block_bits = self.geometry().block_bits();
        let newest_orphan = self.freeze_orphans();
        for inode in self.inodes.take_dirty() {
            inode.encode(self.sb.checksums(), self.sb.has_huge_file(), block_bits);
        }
        let buffers = self.txns.take_dirty();
        let mut images = Vec::with_capacity(buffers.len() + 2);
        for buffer in &buffers {
            self.groups.freeze_bitmap(buffer);
            images.push(Image { block: buffer.block(), bytes: buffer.sealed_copy(self.sb.checksums()) });
            buffer.mark_clean();
        }
        self.groups.freeze_descriptors(&mut images);
        let totals = self.groups.totals();
        let mut super_block = self.super_block.lock();
        super_block.raw_mut().set_last_orphan(newest_orphan);
        images.push(super_block.image(&totals));
        drop(super_block);
        images.sort_unstable_by_key(|image| image.block);
        Frozen { images, revoked: self.txns.take_revoked(), _buffers: buffers }
    }

    /// Writes all dirty data and metadata, and waits until it is durable.
    ///
    /// # Errors
    /// Of the device. [`Error::ReadOnly`] on an instance that failed.
    pub fn sync(&self, ctx: &OpContext) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        self.write_back_all(ctx)?;
        self.commit_now(ctx).map(drop)
    }

    /// Ends the running transaction: clusters freed in it may be allocated again.
    ///
    /// # Errors
    /// As [`FileSystem::sync`].
    pub fn commit(&self, ctx: &OpContext) -> Result<()> {
        self.commit_point(ctx).map(drop)
    }

    /// Writes everything, marks the image clean and gives the device back to whoever shares it.
    ///
    /// # Errors
    /// Of the device; the image is then as after a crash.
    pub fn close(self, ctx: &OpContext) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        if self.has_failed() {
            return Err(Error::ReadOnly);
        }
        self.end_references(ctx)?;
        self.sync(ctx)?;
        self.journal.close()?;
        let was_valid = self.sb.state().contains(blockyard_disk::superblock::FsState::VALID);
        self.super_block.lock().write_closed(&*self.device, ctx.now, was_valid)
    }
}
