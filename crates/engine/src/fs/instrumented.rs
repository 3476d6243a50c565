//! What only an instrument asks of an open file system: see [`crate::instruments`].

use crate::{FileSystem, OpContext, Result};

/// The door for instruments.
#[derive(Clone, Copy)]
pub struct Instrumented<'a>(&'a FileSystem);

impl FileSystem {
    /// Ends the instance as a power cut does: nothing more is written.
    #[doc(hidden)]
    pub fn abandon(mut self) {
        self.has_ended = true;
    }

    /// The door for instruments that compare or test.
    #[doc(hidden)]
    #[must_use]
    pub const fn instrumented(&self) -> Instrumented<'_> {
        Instrumented(self)
    }
}

impl Instrumented<'_> {
    /// Forgets what is remembered of clean data, as a machine that drops its caches does: folios
    /// and the holes that were seen. Files that somebody uses now keep theirs.
    pub fn drop_caches(self) {
        self.0.files.drop_caches();
    }

    /// Converts what has ended its I/O by now, where
    /// [`Instruments::io_ends`](crate::instruments::Instruments::io_ends) tells; otherwise nothing
    /// is left to convert.
    ///
    /// # Errors
    /// As [`FileSystem::fsync`].
    pub fn end_io(self, ctx: &OpContext) -> Result<()> {
        self.0.files.end_io(ctx)
    }

    /// As [`FileSystem::commit`], but what was freed waits for [`Self::release_frees`] or the next
    /// commit: to follow a file system that goes on while it writes its transaction.
    ///
    /// # Errors
    /// As [`FileSystem::sync`].
    pub fn commit_holding_frees(self, ctx: &OpContext) -> Result<()> {
        self.0.volume.commit_holding_frees(ctx)
    }

    /// Lets clusters that [`Self::commit_holding_frees`] held back be allocated.
    pub fn release_frees(self, ctx: &OpContext) {
        self.0.volume.release_frees(ctx);
    }
}
