//! What only a comparison with a kernel needs.

use crate::{FileSystem, OpContext, Result};

impl FileSystem {
    /// Forgets what is remembered of clean data, as a machine that drops its caches does: where the page cache is followed
    /// ([`OpenOptions::follow_page_cache`](crate::OpenOptions::follow_page_cache)) its folios and the holes that were seen; elsewhere
    /// nothing is. Files that somebody uses now keep theirs.
    pub fn drop_caches(&self) {
        self.files.drop_caches()
    }

    /// Converts what has ended its I/O by now, where [`OpenOptions::io_ends`](crate::OpenOptions::io_ends) tells; otherwise
    /// nothing is left to convert.
    ///
    /// # Errors
    /// As [`FileSystem::fsync`].
    pub fn end_io(&self, ctx: &OpContext) -> Result<()> {
        self.files.end_io(ctx)
    }

    /// As [`FileSystem::commit`], but what was freed waits for [`FileSystem::release_frees`] or the next commit: to follow
    /// a file system that goes on while it writes its transaction.
    ///
    /// # Errors
    /// As [`FileSystem::sync`].
    pub fn commit_holding_frees(&self, ctx: &OpContext) -> Result<()> {
        self.volume.commit_holding_frees(ctx)
    }

    /// Lets clusters that [`FileSystem::commit_holding_frees`] held back be allocated.
    pub fn release_frees(&self, ctx: &OpContext) {
        self.volume.release_frees(ctx)
    }
}
