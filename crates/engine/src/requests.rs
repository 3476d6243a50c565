//! The seam between the two ways in which written data becomes requests for blocks.
//!
//! In the engine's own way, a write reserves all clusters that its data and mapping can need.
//! Write-back requests blocks for whole runs of dirty blocks, and waits while other threads briefly
//! hold the space that is reserved for it. The other way imitates Linux's page cache, for agreement
//! with a kernel: it splits requests at folio boundaries and at the ends of remembered holes,
//! reserves cluster by cluster, and gives up where Linux does.
//!
//! [`Rules`] say what is reserved, which pool serves a request, and what happens when space runs
//! out. [`Pages`] holds what a file remembers about its pages and holes; in the engine's own way it
//! is empty. The steps of writing are in `file/writing.rs`.

mod page_cache;

pub(crate) use page_cache::CachedAs;

use crate::extents::Lookup;
use crate::instruments::IoEnds;
use crate::options::OpenOptions;
use crate::pool::Pool;
use blockyard_disk::InodeNr;
use page_cache::CachedFile;
use std::ops::Range;

/// How often write-back tries again if it does not get the space reserved for it. Other threads
/// hold that space only for a moment.
const PATIENCE: u32 = 300;

/// What a write reserves before it changes anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserves {
    /// Clusters for the data, and the most clusters that the mapping can need.
    DataAndMapping,
    /// Clusters for the data, one by one.
    Data,
    /// Nothing: the data gets its blocks at once, or the write fails.
    Nothing,
}

/// What becomes of a claim that cannot be mapped, because there is no space for a block of the
/// mapping itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailedClaim {
    /// The claim is released.
    HandedBack,
    /// The claimed clusters are taken and then freed in the transaction, so they can be allocated
    /// only after a commit.
    Freed,
}

/// What is reserved, which pool serves a request, and what happens when space runs out.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    /// What a write reserves.
    pub(crate) reserves: Reserves,
    /// The pool that serves write-back of data that has no blocks yet.
    pub(crate) place: Pool,
    /// The pool for blocks of the mapping when a part of an unwritten extent becomes written.
    pub(crate) convert: Pool,
    /// The pool for blocks of the mapping when a part of a written extent becomes unwritten.
    pub(crate) zero: Pool,
    /// The pool that serves `fallocate` where data is delayed.
    pub(crate) ahead_of_data: Pool,
    /// How often write-back tries again when it finds no space.
    pub(crate) patience: u32,
    /// Whether a request that found no space is retried even if a commit would free nothing, as
    /// long as a cluster could be claimed.
    pub(crate) retries_with_room: bool,
    /// What becomes of a claim that cannot be mapped.
    pub(crate) failed_claim: FailedClaim,
    /// Whether files remember pages and holes.
    remembers: bool,
    /// Reports when the I/O of write-back has ended.
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

    /// The pool and logical block to use in a request for the indirect blocks above a data block.
    /// `data` is the pool and logical block of the request for the data block itself. Linux
    /// requests all indirect blocks as for logical block 0. For those above delayed data, it does
    /// not use the file system's own reserve (observed on 6.18).
    pub(crate) fn of_branch(&self, data: (Pool, u32)) -> (Pool, u32) {
        match data {
            (Pool::Reserved, _) if self.remembers => (Pool::Delayed, 0),
            (pool, _) if self.remembers => (pool, 0),
            other => other,
        }
    }

    /// Whether Linux is followed even where its results depend on what it has in memory.
    pub(crate) const fn imitates_memory(&self) -> bool {
        self.remembers
    }

    /// The memory of a file that was just created or read from disk: nothing yet.
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

    /// Notes the directory that is kept while the inode is open. Returns true if the directory was
    /// noted and there was none before.
    pub(crate) fn keep_directory(&mut self, number: InodeNr) -> bool {
        self.0.as_mut().is_some_and(|cached| cached.kept_directory.replace(number).is_none())
    }

    /// Takes the directory that [`Self::keep_directory`] noted.
    pub(crate) fn take_kept_directory(&mut self) -> Option<InodeNr> {
        self.0.as_mut()?.kept_directory.take()
    }

    /// Notes the folios that a write creates.
    pub(crate) fn note_write(&mut self, bytes: Range<u64>) {
        self.0.iter_mut().for_each(|cached| cached.folios.note_write(bytes.clone()));
    }

    /// Creates the folio that holds the first of these bytes, if there is none. Returns the byte
    /// where a write of these bytes ends or leaves that folio. If files remember nothing, that is
    /// the end of the write.
    pub(crate) fn next_end(&mut self, bytes: Range<u64>) -> u64 {
        let end = bytes.end;
        self.0.as_mut().map_or(end, |cached| cached.folios.next_end(bytes))
    }

    /// Notes that the page that holds `byte` is loaded.
    pub(crate) fn note_page(&mut self, byte: u64) {
        self.0.iter_mut().for_each(|cached| cached.folios.note_page(byte));
    }

    /// Notes that a file size or the end of a range is at `byte`. If `byte` is inside a block, also
    /// notes that its page is loaded: Linux needs the page to zero a part of the block.
    pub(crate) fn note_edge(&mut self, byte: u64, block_bits: u32) {
        if !byte.is_multiple_of(1 << block_bits) {
            self.note_page(byte);
        }
    }

    /// The blocks that are written together with `block`: those of its folio, or the block alone if
    /// files remember nothing.
    pub(crate) fn around(&self, block: u32, block_bits: u32) -> Range<u32> {
        self.0.as_ref().map_or(block..block + 1, |cached| cached.folios.around(block, block_bits))
    }

    /// Forgets the pages of a byte range. Dirty folios are not split.
    pub(crate) fn forget(&mut self, bytes: Range<u64>, is_dirty: impl Fn(Range<u64>) -> bool) {
        self.0.iter_mut().for_each(|cached| cached.folios.drop_bytes(bytes.clone(), &is_dirty));
    }

    /// Forgets the folios that overlap a byte range.
    pub(crate) fn forget_touched(&mut self, bytes: &Range<u64>) {
        let is_apart = |folio: Range<u64>| folio.end <= bytes.start || folio.start >= bytes.end;
        self.0.iter_mut().for_each(|cached| cached.folios.keep(is_apart));
    }

    /// Forgets clean pages, and with `holes` also the remembered holes.
    pub(crate) fn forget_clean(&mut self, is_dirty: impl Fn(Range<u64>) -> bool, holes: bool) {
        self.0.iter_mut().for_each(|cached| cached.forget_clean(&is_dirty, holes));
    }

    /// Remembers the holes that Linux notices when it looks up `logical`. Does nothing if the block
    /// is mapped, or is in a remembered hole. `root` is the root of the extent tree, if there is
    /// one.
    pub(crate) fn note_lookup(&mut self, root: Option<&[u8; 60]>, here: &Lookup, logical: u32) {
        self.0.iter_mut().for_each(|cached| cached.note_lookup(root, here, logical));
    }

    /// Remembers the holes that Linux notices when it reads the mapping.
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

    /// Remembers that a range is now a hole.
    pub(crate) fn remember_hole(&mut self, range: Range<u32>) {
        self.0.iter_mut().for_each(|cached| cached.holes.insert(range.clone()));
    }

    /// Forgets all holes in a range.
    pub(crate) fn forget_holes(&mut self, range: Range<u32>) {
        if let Some(cached) = &mut self.0 {
            cached.holes.remove(range);
        }
    }

    /// Notes the state of a block that becomes dirty.
    pub(crate) fn note_kind(&mut self, logical: u32, kind: CachedAs) {
        self.0.iter_mut().for_each(|cached| cached.note_kind(logical, kind));
    }

    /// Notes that the blocks of a range are no longer dirty.
    pub(crate) fn forget_kinds(&mut self, range: &Range<u32>) {
        self.0.iter_mut().for_each(|cached| cached.forget_kinds(range));
    }

    /// The first part of a run of dirty blocks that may be one request.
    pub(crate) fn alike(&self, run: Range<u32>) -> Range<u32> {
        match &self.0 {
            Some(cached) => cached.alike(run),
            None => run,
        }
    }
}
