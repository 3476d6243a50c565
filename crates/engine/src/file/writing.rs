//! From written data to requests for blocks: the steps that differ between the two ways of writing
//! that [`crate::requests`] describes.

use super::limits::RUN_MAX;
use super::part::Part;
use super::{Files, LockedFile};
use crate::inode::{Inode, InodeCore};
use crate::{Error, OpContext, Result};
use blockyard_disk::num::u64_from_usize;
use std::ops::Range;

/// How a write-back treats folios whose earlier I/O has not ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Busy {
    /// Writes their dirty blocks too. Linux first waits for the earlier I/O. The engine need not
    /// wait, because it has written that data to the device already.
    Await,
    /// Leaves them for the next write-back, as Linux's flusher does when it makes room (observed on
    /// 6.18).
    PassOver,
}

/// What a write-back requests next.
pub(super) struct Search {
    /// The blocks to look through.
    pub(super) range: Range<u32>,
    /// The rest of the folio in which the last newly mapped piece ended. A request that begins in
    /// this rest must also end in it. Empty if there is no such limit.
    pub(super) rest: Range<u32>,
    /// How to treat folios with I/O in progress.
    pub(super) busy: Busy,
}

/// A way of writing.
pub(super) trait Writing: Send + Sync {
    /// Writes a range of a file that may be changed. Returns the number of bytes written.
    fn write(&self, file: &mut LockedFile<'_>, all: Part<'_>) -> Result<usize>;

    /// Whether [`Self::write`] writes the beginning of a range by itself if not all of it fits.
    fn writes_short(&self) -> bool {
        false
    }

    /// The dirty blocks to request next, at most [`Files::run_max`]. `None` if no dirty block of
    /// the range is left to request.
    fn next_run(&self, file: &LockedFile<'_>, search: &Search) -> Option<Range<u32>>;

    /// [`Search::rest`] after blocks up to `end` were mapped.
    fn rest_of_request(&self, _file: &LockedFile<'_>, _end: u32) -> Range<u32> {
        0..0
    }

    /// Whether the write itself raises the size on disk, rather than its write-back.
    fn raises_disk_size(
        &self,
        _files: &Files,
        _inode: &Inode,
        _core: &InodeCore,
        _size: u64,
    ) -> Result<bool> {
        Ok(false)
    }

    /// Whether inline data that leaves its inode always becomes dirty data, so that its block is
    /// allocated at write-back.
    fn delays_inline(&self) -> bool {
        false
    }

    /// Whether an observer reports the ends of I/O.
    fn is_told_of_io(&self) -> bool {
        false
    }

    /// Converts pieces whose I/O has ended by now, in files that nobody uses.
    fn end_io(&self, _files: &Files, _ctx: &OpContext) -> Result<()> {
        Ok(())
    }

    /// As [`Self::end_io`], and also in this file.
    fn end_io_beside(&self, _file: &mut LockedFile<'_>) -> Result<()> {
        Ok(())
    }

    /// Tells the observer that write-back has mapped a piece.
    fn note_piece_mapped(&self) {}

    /// Tells the observer that a write-back found no space and looks for dirty blocks again.
    fn note_walks_again(&self) {}
}

/// The engine's own way: a write reserves all the space it can need, and write-back requests whole
/// runs of dirty blocks.
pub(super) struct Whole;

impl Writing for Whole {
    /// Writes in pieces, so that a write larger than the limit of dirty data can be written back on
    /// the way.
    fn write(&self, file: &mut LockedFile<'_>, all: Part<'_>) -> Result<usize> {
        let most = u64_from_usize((file.files.volume.options().dirty_data_bytes / 2).max(1 << 20));
        if u64_from_usize(all.bytes.len()) > most && !file.has_room_for(all)? {
            return Err(Error::NoSpace);
        }
        let mut at = all.offset;
        while at < all.end() {
            let piece = all.within(at..all.end().min(at + most));
            file.make_data_room(piece.bytes.len())?;
            file.write_piece_or_parts(piece)?;
            if !file.files.volume.delays_allocation() {
                file.write_back()?;
            }
            at = piece.end();
        }
        Ok(all.bytes.len())
    }

    fn next_run(&self, file: &LockedFile<'_>, search: &Search) -> Option<Range<u32>> {
        let run = file.inode.waiting().dirty.first_run(search.range.start, file.files.run_max())?;
        (run.start < search.range.end).then(|| run.start..run.end.min(search.range.end))
    }
}

impl Files {
    /// The most blocks that write-back requests at once. Without delayed allocation it is one, as
    /// in Linux.
    pub(super) fn run_max(&self) -> u32 {
        if self.volume.delays_allocation() { RUN_MAX } else { 1 }
    }
}
