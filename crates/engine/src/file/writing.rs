//! The steps in which written data becomes requests, where the two ways of [`crate::requests`]
//! differ.

use super::limits::RUN_MAX;
use super::part::Part;
use super::{Files, LockedFile};
use crate::inode::{Inode, InodeCore};
use crate::{Error, OpContext, Result};
use blockyard_disk::num::u64_from_usize;
use std::ops::Range;

/// What a write-back does with folios whose I/O from before has not ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Busy {
    /// It waits for them.
    Await,
    /// It leaves them for the next one, as Linux's flusher does when it makes room (observed on
    /// 6.18).
    PassOver,
}

/// What a write-back asks places for next.
pub(super) struct Search {
    /// The blocks to look through.
    pub(super) range: Range<u32>,
    /// What the last request left of a folio.
    pub(super) rest: Range<u32>,
    /// What to do with folios whose I/O goes on.
    pub(super) busy: Busy,
}

/// A way of writing.
pub(super) trait Writing: Send + Sync {
    /// Writes a range of a file that may be changed; gives the number of bytes that went.
    fn write(&self, file: &mut LockedFile<'_>, all: Part<'_>) -> Result<usize>;

    /// Whether a write for which there is no room writes its beginning by itself.
    fn writes_short(&self) -> bool {
        false
    }

    /// The dirty blocks to ask places for next, at most `most`.
    fn next_run(&self, file: &LockedFile<'_>, search: &Search) -> Option<Range<u32>>;

    /// What to go on with, alone, after places up to `end` were found.
    fn rest_of_request(&self, _file: &LockedFile<'_>, _end: u32) -> Range<u32> {
        0..0
    }

    /// Whether a write raises the size on disk, too, and not its write-back.
    fn raises_disk_size(
        &self,
        _files: &Files,
        _inode: &Inode,
        _core: &InodeCore,
        _size: u64,
    ) -> Result<bool> {
        Ok(false)
    }

    /// Whether content that leaves its inode waits for its place.
    fn delays_inline(&self) -> bool {
        false
    }

    /// Whether somebody tells when I/O ends.
    fn is_told_of_io(&self) -> bool {
        false
    }

    /// Converts what has ended its I/O by now, of files that nobody uses.
    fn end_io(&self, _files: &Files, _ctx: &OpContext) -> Result<()> {
        Ok(())
    }

    /// As [`Self::end_io`], of this file, too.
    fn end_io_beside(&self, _file: &mut LockedFile<'_>) -> Result<()> {
        Ok(())
    }

    /// Tells who knows of I/O how far write-back has come.
    fn note_piece_mapped(&self) {}

    /// Tells who knows of I/O that a write-back which found no space looks again for what it is to
    /// write.
    fn note_walks_again(&self) {}
}

/// The product's way: what a write needs is reserved before, and runs are written as they are.
pub(super) struct Whole;

impl Writing for Whole {
    /// In pieces, so that a write larger than the limit of dirty data can be written back on the
    /// way.
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
    /// Blocks that write-back asks places for at once: at write time one, as Linux does.
    pub(super) fn run_max(&self) -> u32 {
        if self.volume.delays_allocation() { RUN_MAX } else { 1 }
    }
}
