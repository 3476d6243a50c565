//! Making changes durable: sync, commit, close.

use crate::{Error, FileSystem, InodeRef, OpContext, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};

impl FileSystem {
    /// Writes all dirty data and metadata, and waits until both are durable.
    ///
    /// # Errors
    /// Errors of the device. [`Error::ReadOnly`] if the instance has failed.
    pub fn sync(&self, ctx: &OpContext) -> Result<()> {
        let _operation = self.volume.watch();
        if self.volume.is_opened_read_only() {
            return Ok(());
        }
        let data = self.files.write_back_all(ctx);
        self.volume.sync(ctx)?;
        data
    }

    /// Writes everything, marks the image clean and releases the device.
    ///
    /// # Errors
    /// Errors of the device; [`Error::ReadOnly`] if the instance has failed. After such an error
    /// the image is as after a crash. Data that cannot be written is an error too, but then
    /// everything else is written and the image is clean.
    pub fn close(mut self, ctx: &OpContext) -> Result<()> {
        self.has_ended = true;
        self.end(ctx)
    }

    fn end(&self, ctx: &OpContext) -> Result<()> {
        let _operation = self.volume.watch();
        if self.volume.is_opened_read_only() {
            return Ok(());
        }
        if self.volume.has_failed() {
            self.volume.note_failure(ctx);
            return Err(Error::ReadOnly);
        }
        self.end_references(ctx)?;
        let data = self.files.write_back_all(ctx);
        debug_assert!(data.is_err() || self.files.owed() == (0, 0), "{:?} are left", self.files.owed());
        self.volume.close(ctx)?;
        data
    }

    /// Makes a file durable: its data and its inode, with all metadata that changed in the file
    /// system before the inode's last change. That includes the file's name if it is new. As on
    /// Linux, a crash may lose later changes of names and of other files, and dirty data of other
    /// files. Use [`FileSystem::sync`] to make these durable, too.
    ///
    /// # Errors
    /// [`crate::Error::Device`], [`crate::Error::ReadOnly`]; [`crate::Error::LostData`] once, if
    /// data of this file could not be written since the last call. In a sound image the reason is
    /// never lack of space: [`FileSystem::write`] has reserved the space.
    pub fn fsync(&self, ctx: &OpContext, inode: impl Into<InodeRef>) -> Result<()> {
        let _operation = self.volume.watch();
        self.files.fsync(ctx, inode.into())
    }

    /// As [`FileSystem::fsync`], without changes that are not needed to find the content again:
    /// after a crash times and modes may be older.
    ///
    /// # Errors
    /// As [`FileSystem::fsync`].
    pub fn fdatasync(&self, ctx: &OpContext, inode: impl Into<InodeRef>) -> Result<()> {
        let _operation = self.volume.watch();
        self.files.fdatasync(ctx, inode.into())
    }

    /// Writes back a file's dirty data and maps it, without waiting for a commit, as the timer of a
    /// mount does.
    ///
    /// # Errors
    /// As [`FileSystem::fsync`].
    pub fn write_back_file(&self, ctx: &OpContext, inode: impl Into<InodeRef>) -> Result<()> {
        let _operation = self.volume.watch();
        self.files.write_back_file(ctx, inode.into())
    }

    /// Writes back the dirty data of all files, in the order in which it became dirty. A file that
    /// cannot be written does not keep the others back; its next fsync reports the error too.
    ///
    /// # Errors
    /// The first error, as [`FileSystem::fsync`].
    pub fn write_back_all(&self, ctx: &OpContext) -> Result<()> {
        let _operation = self.volume.watch();
        self.files.write_back_all(ctx)
    }

    /// Writes files back, in the order in which their data became dirty, until at most a quarter of
    /// [`OpenOptions::dirty_data_bytes`](crate::OpenOptions::dirty_data_bytes) is dirty. Skips
    /// files that are in use. A thread of the caller can call this on a notice from
    /// [`OpenOptions::on_much_dirty_data`](crate::OpenOptions::on_much_dirty_data).
    ///
    /// # Errors
    /// Errors of the device, if too much data stays dirty; [`Error::ReadOnly`].
    pub fn write_back_excess(&self, ctx: &OpContext) -> Result<()> {
        let _operation = self.volume.watch();
        self.files.write_back_excess(ctx)
    }

    /// What the timer of a mount does, at the caller's time: writes back data that has been dirty
    /// for [`OpenOptions::data_expires_seconds`](crate::OpenOptions::data_expires_seconds), and
    /// commits a transaction that is
    /// [`OpenOptions::commit_interval_seconds`](crate::OpenOptions::commit_interval_seconds) old.
    /// The caller has to call it regularly: an instance has no thread of its own.
    ///
    /// # Errors
    /// As [`FileSystem::write_back_all`] and [`FileSystem::sync`].
    pub fn tick(&self, ctx: &OpContext) -> Result<()> {
        let _operation = self.volume.watch();
        self.files.tick(ctx)
    }

    /// The write-back half of [`FileSystem::tick`], for a separate thread.
    ///
    /// # Errors
    /// As [`FileSystem::write_back_all`].
    pub fn write_back_aged(&self, ctx: &OpContext) -> Result<()> {
        let _operation = self.volume.watch();
        self.files.write_back_aged(ctx)
    }

    /// The commit half of [`FileSystem::tick`], for a separate thread: old transactions are
    /// committed however long write-back takes.
    ///
    /// # Errors
    /// As [`FileSystem::sync`].
    pub fn commit_aged(&self, ctx: &OpContext) -> Result<()> {
        let _operation = self.volume.watch();
        self.files.commit_aged(ctx)
    }

    /// Ends the running transaction. With a journal, also makes it durable. Afterwards the clusters
    /// that were freed in it may be allocated again.
    ///
    /// # Errors
    /// As [`FileSystem::sync`].
    pub fn commit(&self, ctx: &OpContext) -> Result<()> {
        let _operation = self.volume.watch();
        self.volume.commit(ctx)
    }

    /// Tells the device to discard the free blocks in a range of bytes, in runs of at least
    /// `at_least` bytes, as `fstrim` does (`FITRIM`). Returns the number of bytes in these runs. An
    /// image file gets holes there. Blocks freed but not committed are left out; call
    /// [`FileSystem::commit`] first to include them. A group is passed over if nothing in it became
    /// free since the whole group was trimmed.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a range shorter than a block or behind the file system, and if
    /// `at_least` exceeds a group; [`Error::ReadOnly`]; errors of the device.
    pub fn trim(&self, ctx: &OpContext, bytes: std::ops::Range<u64>, at_least: u64) -> Result<u64> {
        let _operation = self.volume.watch();
        self.volume.trim(ctx, bytes, at_least)
    }

    /// Transactions ended so far. With a journal, each of them was written to the journal.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.volume.commits()
    }
}

impl Drop for FileSystem {
    /// Closes the file system unless it was closed or abandoned. As the present time is not known
    /// here, the time at which the running transaction began is used.
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let ctx = OpContext::root_at(self.volume.last_known_time());
        // A second panic while the thread unwinds would end the process.
        match catch_unwind(AssertUnwindSafe(|| self.end(&ctx))) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "a file system was dropped, and could not be closed"),
            Err(_) => tracing::error!("a file system was dropped, and closing it panicked"),
        }
    }
}
