//! The times of a changed file.

use super::LockedFile;
use super::limits::RUN_CREDITS;
use crate::Result;

/// What a change affects besides the times.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Touched {
    /// Nothing: fdatasync needs no commit for such a change.
    Times,
    /// The content.
    Content,
}

impl LockedFile<'_> {
    /// Sets the modification and change times, unless the caller keeps times itself. If no data is
    /// dirty, also sets the size on disk to the size that users see.
    pub(super) fn touch_times(&self, touched: Touched) -> Result<()> {
        if touched == Touched::Times {
            let core = self.inode.core();
            if !core.times_change(self.ctx) && core.size == core.slot.raw().size() {
                return Ok(());
            }
        }
        let handle = self.files.volume.begin(self.ctx, RUN_CREDITS)?;
        let mut core = self.inode.core_mut();
        self.files.volume.inodes.join_inode(&handle, self.inode, &mut core)?;
        if touched == Touched::Content {
            self.inode.note_remapped(&handle);
        }
        if self.inode.waiting().dirty.is_empty() {
            // No write-back will raise the size on disk.
            let size = core.size;
            core.slot.raw_mut().set_size(size);
        }
        core.touch(self.ctx);
        Ok(())
    }
}
