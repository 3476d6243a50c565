//! What makes changes durable: syncing, committing, closing.

use crate::{Error, FileSystem, InodeRef, OpContext, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};

impl FileSystem {
    /// Writes all dirty data and metadata, and waits until it is durable.
    ///
    /// # Errors
    /// Errors of the device. [`Error::ReadOnly`] on an instance that failed.
    pub fn sync(&self, ctx: &OpContext) -> Result<()> {
        let _operation = self.volume.watch();
        if self.volume.is_opened_read_only() {
            return Ok(());
        }
        let data = self.files.write_back_all(ctx);
        self.volume.sync(ctx)?;
        data
    }

    /// Writes everything, marks the image clean and gives the device back to whoever shares it.
    ///
    /// # Errors
    /// Errors of the device; [`Error::ReadOnly`] for an instance that failed. The image is then as
    /// after a crash. Data that can not be written is an error, too, but everything else is written
    /// and the image is clean.
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

    /// Makes a file durable: its data and its inode, with all that changed in the file system
    /// before the inode did last; so its own name when it is new. Other names and files that
    /// changed since then may be lost in a crash, as on Linux: [`FileSystem::sync`] is for them.
    ///
    /// # Errors
    /// [`crate::Error::Device`], [`crate::Error::ReadOnly`]; [`crate::Error::LostData`] once, when
    /// data of this file could not be written since the last call. Space was reserved when the data
    /// was written.
    pub fn fsync(&self, ctx: &OpContext, inode: impl Into<InodeRef>) -> Result<()> {
        let _operation = self.volume.watch();
        self.files.fsync(ctx, inode.into())
    }

    /// As [`FileSystem::fsync`], without what is not needed to find the content again: times and
    /// modes may be older.
    ///
    /// # Errors
    /// As [`FileSystem::fsync`].
    pub fn fdatasync(&self, ctx: &OpContext, inode: impl Into<InodeRef>) -> Result<()> {
        let _operation = self.volume.watch();
        self.files.fdatasync(ctx, inode.into())
    }

    /// Writes a file's dirty data and maps it, without waiting for a commit: what the timer of a
    /// mount does.
    ///
    /// # Errors
    /// As [`FileSystem::fsync`].
    pub fn write_back_file(&self, ctx: &OpContext, inode: impl Into<InodeRef>) -> Result<()> {
        let _operation = self.volume.watch();
        self.files.write_back_file(ctx, inode.into())
    }

    /// Writes the dirty data of all files, in the order in which it became dirty. What one file
    /// cannot have written is also told to its next fsync, and does not keep the others back.
    ///
    /// # Errors
    /// The first one; as [`FileSystem::fsync`].
    pub fn write_back_all(&self, ctx: &OpContext) -> Result<()> {
        let _operation = self.volume.watch();
        self.files.write_back_all(ctx)
    }

    /// Writes files back, in the order in which their data became dirty, until a quarter of
    /// [`OpenOptions::dirty_data_bytes`](crate::OpenOptions::dirty_data_bytes) waits; leaves out
    /// those that are being written. For a thread of the caller's, when
    /// [`OpenOptions::on_much_dirty_data`](crate::OpenOptions::on_much_dirty_data) tells.
    ///
    /// # Errors
    /// That of the device, when too much waits all the same.
    pub fn write_back_excess(&self, ctx: &OpContext) -> Result<()> {
        let _operation = self.volume.watch();
        self.files.write_back_excess(ctx)
    }

    /// What the timer of a mount does, at the caller's time: writes back data that has been dirty
    /// for [`OpenOptions::data_expires_seconds`](crate::OpenOptions::data_expires_seconds), and
    /// commits a transaction that is
    /// [`OpenOptions::commit_interval_seconds`](crate::OpenOptions::commit_interval_seconds) old.
    /// Nothing calls it but its user: an instance has no thread of its own.
    ///
    /// # Errors
    /// As [`FileSystem::write_back_all`] and [`FileSystem::sync`].
    pub fn tick(&self, ctx: &OpContext) -> Result<()> {
        let _operation = self.volume.watch();
        self.files.tick(ctx)
    }

    /// The half of [`FileSystem::tick`] that writes data back, for a thread of its own.
    ///
    /// # Errors
    /// As [`FileSystem::write_back_all`].
    pub fn write_back_aged(&self, ctx: &OpContext) -> Result<()> {
        let _operation = self.volume.watch();
        self.files.write_back_aged(ctx)
    }

    /// The half of [`FileSystem::tick`] that commits, for a thread of its own: however long
    /// write-back takes, what is old is committed.
    ///
    /// # Errors
    /// As [`FileSystem::sync`].
    pub fn commit_aged(&self, ctx: &OpContext) -> Result<()> {
        let _operation = self.volume.watch();
        self.files.commit_aged(ctx)
    }

    /// Ends the running transaction: clusters freed in it may be allocated again.
    ///
    /// # Errors
    /// As [`FileSystem::sync`].
    pub fn commit(&self, ctx: &OpContext) -> Result<()> {
        let _operation = self.volume.watch();
        self.volume.commit(ctx)
    }

    /// Tells the device that the free blocks in a range of bytes are not needed, in runs of at
    /// least `at_least` bytes: what `fstrim` does (`FITRIM`). Gives the bytes of these runs; an
    /// image file gets holes there. What was freed and is not committed is left out;
    /// [`FileSystem::commit`] before this takes it in. A group in which nothing became free since
    /// all of it was trimmed is passed over.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a range without a block of the file system, and for runs longer than
    /// a group; [`Error::ReadOnly`]; that of the device.
    pub fn trim(&self, ctx: &OpContext, bytes: std::ops::Range<u64>, at_least: u64) -> Result<u64> {
        let _operation = self.volume.watch();
        self.volume.trim(ctx, bytes, at_least)
    }

    /// Transactions that ended so far; with a journal, each was written to it.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.volume.commits()
    }
}

impl Drop for FileSystem {
    /// Closes it, as nobody has. The time is that of the last commit.
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let ctx = OpContext::root_at(self.volume.last_known_time());
        // Not a second panic while the thread unwinds: that would end the process.
        match catch_unwind(AssertUnwindSafe(|| self.end(&ctx))) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "a file system was dropped, and could not be closed"),
            Err(_) => tracing::error!("a file system was dropped, and closing it panicked"),
        }
    }
}
