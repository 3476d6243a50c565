//! Operations on an open file system that only instruments need; see [`crate::instruments`].

use crate::{FileSystem, OpContext, Result};

/// The interface for instruments.
#[derive(Clone, Copy)]
pub struct Instrumented<'a>(&'a FileSystem);

impl FileSystem {
    /// Ends the instance as a power cut does: nothing more is written.
    #[doc(hidden)]
    pub fn abandon(mut self) {
        self.has_ended = true;
    }

    /// The interface for instruments that compare or test.
    #[doc(hidden)]
    #[must_use]
    pub const fn instrumented(&self) -> Instrumented<'_> {
        Instrumented(self)
    }
}

impl Instrumented<'_> {
    /// Forgets what is remembered about clean data, as a machine that drops its caches does:
    /// folios, and holes that were seen. Holes are kept for files that are open or have dirty data.
    /// Everything is kept for files that an operation has locked.
    pub fn drop_caches(self) {
        self.0.files.drop_caches();
    }

    /// Converts pieces whose I/O has ended by now, as
    /// [`Instruments::io_ends`](crate::instruments::Instruments::io_ends) reports. Without such
    /// reports nothing is left to convert.
    ///
    /// # Errors
    /// As [`FileSystem::fsync`].
    pub fn end_io(self, ctx: &OpContext) -> Result<()> {
        self.0.files.end_io(ctx)
    }

    /// As [`FileSystem::commit`], but freed clusters cannot be allocated before
    /// [`Self::release_frees`] or the next commit. So a run can follow a kernel in which operations
    /// continue while a transaction is written.
    ///
    /// # Errors
    /// As [`FileSystem::sync`].
    pub fn commit_holding_frees(self, ctx: &OpContext) -> Result<()> {
        self.0.volume.commit_holding_frees(ctx)
    }

    /// Allows the allocation of clusters that [`Self::commit_holding_frees`] held back.
    pub fn release_frees(self, ctx: &OpContext) {
        self.0.volume.release_frees(ctx);
    }
}
