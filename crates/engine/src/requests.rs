//! The seam between the two ways in which written data becomes requests for blocks.
//!
//! The engine's own way: a write reserves all that it and its mapping can need; write-back asks for
//! whole runs of dirty blocks and waits for its space. The other way is that of Linux's page cache,
//! needed for agreement with a kernel: it cuts requests at its folios and at holes that it
//! remembers, reserves cluster by cluster, and gives up where Linux does.
//!
//! [`Rules`] say what is reserved, whose clusters serve a request and what happens when space ends.
//! [`Pages`] is what a file remembers about its pages and holes; in the engine's own way it is
//! empty. The steps of writing are in `file/writing.rs`.

mod page_cache;

pub(crate) use page_cache::CachedAs;

use crate::extents::Lookup;
use crate::instruments::IoEnds;
use crate::options::OpenOptions;
use crate::pool::Pool;
use blockyard_disk::InodeNr;
use page_cache::CachedFile;
use std::ops::Range;

/// How often write-back tries again to get the space reserved for it. Others hold that space only
/// for a moment.
const PATIENCE: u32 = 300;

/// What a write reserves before it changes anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserves {
    /// Clusters for its data, and for what its mapping can need at worst.
    DataAndMapping,
    /// Clusters for its data, one by one.
    Data,
    /// Nothing: the data gets its blocks at once, or the write fails.
    Nothing,
}

/// What becomes of a claim for which the mapping has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailedClaim {
    /// It is released.
    HandedBack,
    /// It is taken and then freed in the transaction, so it is available only after a commit.
    Freed,
}

/// What is reserved, whose clusters serve a request, and what happens when space ends.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    /// What a write reserves.
    pub(crate) reserves: Reserves,
    /// Whose clusters write-back takes for unallocated data.
    pub(crate) place: Pool,
    /// Whose clusters the mapping takes when a part of an unwritten extent becomes written.
    pub(crate) convert: Pool,
    /// Whose clusters the mapping takes when a part of a written extent becomes unwritten.
    pub(crate) zero: Pool,
    /// Whose clusters preallocation takes where data is delayed.
    pub(crate) ahead_of_data: Pool,
    /// How often write-back tries again when it finds no space.
    pub(crate) patience: u32,
    /// Whether a request that found no space is retried even if a commit would free nothing, as
    /// long as a cluster could be claimed.
    pub(crate) retries_with_room: bool,
    /// What becomes of a claim for which the mapping has no room.
    pub(crate) failed_claim: FailedClaim,
    /// Whether files remember pages and holes.
    remembers: bool,
    /// Reports when I/O has ended.
    pub(crate) io_ends: Option<IoEnds>,
}

impl Rules {
    /// The rules of an instance.
    pub(crate) fn of(options: &OpenOptions) -> Self {
        if options.instruments.page_cache { page_cache::rules(options) } else { Self::of_the_product() }
    }

    const fn of_the_product() -> Self {
        Self {
            reserves: Reserves::DataAndMapping,
            place: Pool::Reserved,
            convert: Pool::Reserved,
            zero: Pool::Reserve,
            ahead_of_data: Pool::Ordinary,
            patience: PATIENCE,
            retries_with_room: false,
            failed_claim: FailedClaim::HandedBack,
            remembers: false,
            io_ends: None,
        }
    }

    /// The pool and the logical block in a request for the indirect blocks above a data block.
    /// `data` holds those in the request for the data block. Linux requests all indirect blocks for
    /// block 0, and above delayed data without the file system's own reserve (observed on 6.18).
    pub(crate) fn of_branch(&self, data: (Pool, u32)) -> (Pool, u32) {
        match data {
            (Pool::Reserved, _) if self.remembers => (Pool::Delayed, 0),
            (pool, _) if self.remembers => (pool, 0),
            other => other,
        }
    }

    /// Whether Linux is followed even where results depend on what is in its memory.
    pub(crate) const fn imitates_memory(&self) -> bool {
        self.remembers
    }

    /// What a new in-memory file remembers.
    pub(crate) fn pages(&self) -> Pages {
        Pages(self.remembers.then(Box::default))
    }
}

/// What a file remembers about its pages and holes. Empty in the engine's own way.
#[derive(Default)]
pub(crate) struct Pages(Option<Box<CachedFile>>);

impl Pages {
    /// Whether nothing is remembered.
    pub(crate) const fn are_forgotten(&self) -> bool {
        self.0.is_none()
    }

    /// Notes the directory that stays while the inode is open. Returns true if the note was made
    /// and no other was there before.
    pub(crate) fn keep_directory(&mut self, number: InodeNr) -> bool {
        self.0.as_mut().is_some_and(|cached| cached.kept_directory.replace(number).is_none())
    }

    /// Takes the directory that [`Self::keep_directory`] noted.
    pub(crate) fn take_kept_directory(&mut self) -> Option<InodeNr> {
        self.0.as_mut()?.kept_directory.take()
    }

    /// Notes the folios that a write makes.
    pub(crate) fn note_write(&mut self, bytes: Range<u64>) {
        self.0.iter_mut().for_each(|cached| cached.folios.note_write(bytes.clone()));
    }

    /// Makes the folio that a write of these bytes begins with, if there is none. Returns the byte
    /// where the write ends or leaves that folio. Where nothing is remembered, that is the end.
    pub(crate) fn next_end(&mut self, bytes: Range<u64>) -> u64 {
        let end = bytes.end;
        self.0.as_mut().map_or(end, |cached| cached.folios.next_end(bytes))
    }

    /// Notes that the page of a byte is loaded.
    pub(crate) fn note_page(&mut self, byte: u64) {
        self.0.iter_mut().for_each(|cached| cached.folios.note_page(byte));
    }

    /// Notes that a size or the end of a range lies at a byte. If that is inside a block, the
    /// byte's page is loaded, so that a part of the block can be zeroed.
    pub(crate) fn note_edge(&mut self, byte: u64, block_bits: u32) {
        if !byte.is_multiple_of(1 << block_bits) {
            self.note_page(byte);
        }
    }

    /// The blocks that are written together with a block: those of its folio, or the block alone
    /// where nothing is remembered.
    pub(crate) fn around(&self, block: u32, block_bits: u32) -> Range<u32> {
        self.0.as_ref().map_or(block..block + 1, |cached| cached.folios.around(block, block_bits))
    }

    /// Forgets the pages of a byte range. Dirty folios are not split.
    pub(crate) fn forget(&mut self, bytes: Range<u64>, is_dirty: impl Fn(Range<u64>) -> bool) {
        self.0.iter_mut().for_each(|cached| cached.folios.drop_bytes(bytes.clone(), &is_dirty));
    }

    /// Forgets the folios that a byte range touches.
    pub(crate) fn forget_touched(&mut self, bytes: &Range<u64>) {
        let is_apart = |folio: Range<u64>| folio.end <= bytes.start || folio.start >= bytes.end;
        self.0.iter_mut().for_each(|cached| cached.folios.keep(is_apart));
    }

    /// Forgets clean pages, and with `holes` also the remembered holes.
    pub(crate) fn forget_clean(&mut self, is_dirty: impl Fn(Range<u64>) -> bool, holes: bool) {
        self.0.iter_mut().for_each(|cached| cached.forget_clean(&is_dirty, holes));
    }

    /// Notes what is learnt when a block is looked up: nothing if it is mapped, or already known to
    /// lie in a hole. `root` is that of the extent tree, if there is one.
    pub(crate) fn note_lookup(&mut self, root: Option<&[u8; 60]>, here: &Lookup, logical: u32) {
        self.0.iter_mut().for_each(|cached| cached.note_lookup(root, here, logical));
    }

    /// Notes what is learnt about holes when the mapping is read.
    pub(crate) fn note_gaps(&mut self, root: Option<&[u8; 60]>) {
        self.0.iter_mut().for_each(|cached| cached.note_gaps(root));
    }

    /// Remembers the hole that a lookup of `logical` found, if any.
    pub(crate) fn note_hole(&mut self, here: &Lookup, logical: u32) {
        self.0.iter_mut().for_each(|cached| cached.note_hole(here, logical));
    }

    /// The end of the remembered hole that contains a block.
    pub(crate) fn hole_end(&self, block: u32) -> Option<u32> {
        self.0.as_ref()?.holes.end_of(block)
    }

    /// Notes that a range is now a hole.
    pub(crate) fn remember_hole(&mut self, range: Range<u32>) {
        self.0.iter_mut().for_each(|cached| cached.holes.insert(range.clone()));
    }

    /// Forgets that a range is a hole.
    pub(crate) fn forget_holes(&mut self, range: Range<u32>) {
        if let Some(cached) = &mut self.0 {
            cached.holes.remove(range);
        }
    }

    /// Notes what a block that becomes dirty is mapped to.
    pub(crate) fn note_kind(&mut self, logical: u32, kind: CachedAs) {
        self.0.iter_mut().for_each(|cached| cached.note_kind(logical, kind));
    }

    /// Notes that the blocks of a range are no longer dirty.
    pub(crate) fn forget_kinds(&mut self, range: &Range<u32>) {
        self.0.iter_mut().for_each(|cached| cached.forget_kinds(range));
    }

    /// The first part of a run of dirty blocks, as far as it may be one request.
    pub(crate) fn alike(&self, run: Range<u32>) -> Range<u32> {
        match &self.0 {
            Some(cached) => cached.alike(run),
            None => run,
        }
    }
}
