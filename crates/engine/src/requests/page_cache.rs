//! Linux's page cache: its rules when space gets short, and what it remembers about a file.
//!
//! docs/behaviour/page-cache.md, "When space gets short", has the observations.

mod folios;

use super::{FailedClaim, Reserves, Rules};
use crate::extents::{self, Lookup};
use crate::options::OpenOptions;
use crate::pool::Pool;
use crate::range_set::RangeSet;
use blockyard_disk::InodeNr;
use folios::Folios;
use std::collections::BTreeMap;
use std::ops::Range;

/// How often Linux's write-back commits to get space, before it gives up.
const RETRIES_MAX: u32 = 3;

/// Linux's rules.
pub(super) fn rules(options: &OpenOptions) -> Rules {
    let delays = options.delays_allocation();
    Rules {
        reserves: if delays { Reserves::Data } else { Reserves::Nothing },
        // Without delayed allocation, nothing is reserved for the data, and the write itself tries
        // again.
        place: if delays { Pool::Reserved } else { Pool::Ordinary },
        // To split an extent, Linux requests tree blocks with the file system's own reserve
        // (observed on 6.18). This affects how far its counters lag.
        convert: Pool::Reserve,
        // When it zeroes a range, Linux does not use that reserve (also observed).
        zero: Pool::Ordinary,
        ahead_of_data: Pool::Delayed,
        patience: if delays { RETRIES_MAX } else { 0 },
        retries_with_room: true,
        // Observed on 6.18.
        failed_claim: FailedClaim::Freed,
        remembers: true,
        io_ends: options.instruments.io_ends.clone(),
    }
}

/// What the page cache remembers about a dirty block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CachedAs {
    /// The block was not allocated.
    Delayed,
    /// The block was allocated, and read as zeroes.
    Unwritten,
    /// The block was mapped.
    Mapped,
}

/// What the page cache remembers about one file.
#[derive(Debug, Default)]
pub(super) struct CachedFile {
    pub(super) folios: Folios,
    /// Ranges that Linux remembers as holes. Linux 6.18 caches the state of block ranges in an
    /// extent status tree. A range remembered as a hole may be shorter than the hole, because
    /// blocks that are freed next to it are not added to it. Then `fallocate` requests blocks in
    /// pieces that end where the range ends.
    ///
    /// Observed with the tracepoints of the extent status tree:
    /// * A lookup that finds a hole remembers it up to the first delayed block.
    /// * A punched hole is remembered as such.
    /// * Truncation forgets what it cuts off.
    /// * Collapse range and insert range forget everything from their start on.
    /// * Reading an extent tree that consists of its root alone remembers all holes between its
    ///   extents, except holes that are partly remembered already or contain a delayed block.
    pub(super) holes: RangeSet,
    /// The state of each dirty block of the file when it became dirty.
    kinds: BTreeMap<u32, CachedAs>,
    /// The directory that held the inode's last name. The directory has one more open reference for
    /// as long as this inode is open.
    pub(super) kept_directory: Option<InodeNr>,
}

impl CachedFile {
    /// Notes the state of a block that becomes dirty.
    pub(super) fn note_kind(&mut self, logical: u32, kind: CachedAs) {
        self.kinds.insert(logical, kind);
    }

    /// Notes that the blocks of a range are no longer dirty.
    pub(super) fn forget_kinds(&mut self, range: &Range<u32>) {
        if range.start == 0 && range.end == u32::MAX {
            self.kinds.clear();
            return;
        }
        let gone: Vec<u32> = self.kinds.range(range.clone()).map(|(&number, _)| number).collect();
        for number in gone {
            self.kinds.remove(&number);
        }
    }

    /// The first part of a run of dirty blocks in which all had the same state when they became
    /// dirty.
    pub(super) fn alike(&self, run: Range<u32>) -> Range<u32> {
        debug_assert!(!run.is_empty(), "a run of no blocks");
        let first = self.kinds.get(&run.start);
        let other = run.clone().find(|block| self.kinds.get(block) != first);
        run.start..other.unwrap_or(run.end)
    }

    /// Remembers the holes that Linux notices when it looks up `logical`. Does nothing if the block
    /// is mapped, or is in a remembered hole.
    pub(super) fn note_lookup(&mut self, root: Option<&[u8; 60]>, here: &Lookup, logical: u32) {
        if here.found.is_none() && self.holes.end_of(logical).is_none() {
            self.note_gaps(root);
            self.note_hole(here, logical);
        }
    }

    /// Remembers the holes that Linux notices when it reads the mapping.
    pub(super) fn note_gaps(&mut self, root: Option<&[u8; 60]>) {
        if let Some(root) = root {
            extents::gaps_in_root(root).for_each(|gap| self.remember_gap(gap));
        }
    }

    /// Remembers the hole that a lookup of `logical` found, if any. A hole before the first extent
    /// is remembered only from `logical` on.
    pub(super) fn note_hole(&mut self, here: &Lookup, logical: u32) {
        if here.found.is_none() {
            let start = match (here.left, here.right) {
                (Some(left), _) => left.end(),
                (None, Some(_)) => logical,
                (None, None) => 0,
            };
            self.remember_hole(start..here.right.map_or(u32::MAX, |right| right.logical), logical);
        }
    }

    /// Remembers the hole that a lookup of `logical` found in the mapping, up to the first delayed
    /// block after `logical`. If the hole also has a delayed block before `logical`, Linux
    /// remembers it only from `logical` on. Does nothing if `logical` is delayed or in a remembered
    /// hole.
    fn remember_hole(&mut self, hole: Range<u32>, logical: u32) {
        if self.holes.end_of(logical).is_none() && !self.kinds.contains_key(&logical) {
            let start =
                if self.kinds.range(hole.start..logical).next().is_some() { logical } else { hole.start };
            let end = self.kinds.range(logical..hole.end).next().map_or(hole.end, |(&block, _)| block);
            self.holes.insert(start..end);
        }
    }

    /// Remembers a hole between extents that were read together, if no part of it is remembered
    /// already and it contains no delayed block.
    fn remember_gap(&mut self, gap: Range<u32>) {
        if !self.holes.touches(&gap) && self.kinds.range(gap.clone()).next().is_none() {
            self.holes.insert(gap);
        }
    }

    /// Forgets clean pages, and with `holes` also the remembered holes.
    pub(super) fn forget_clean(&mut self, is_dirty: impl Fn(Range<u64>) -> bool, holes: bool) {
        self.folios.keep(is_dirty);
        if holes {
            self.holes = RangeSet::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CachedAs, CachedFile};

    #[test]
    fn a_look_up_remembers_a_hole_between_waiting_blocks() {
        let mut cached = CachedFile::default();
        let known = |cached: &CachedFile, block| cached.holes.end_of(block);
        cached.note_kind(4, CachedAs::Delayed);
        cached.remember_hole(2..u32::MAX, 7);
        assert_eq!([5, 6, 7, 9].map(|block| known(&cached, block).is_some()), [false, false, true, true]);
        cached.holes.remove(7..8);
        cached.note_kind(7, CachedAs::Delayed);
        cached.remember_hole(2..u32::MAX, 5);
        assert_eq!([4, 5, 6, 7].map(|block| known(&cached, block)), [None, Some(7), Some(7), None]);
        cached.remember_hole(2..u32::MAX, 7);
        cached.remember_gap(2..4);
        cached.remember_gap(3..5);
        assert_eq!([2, 3, 4].map(|block| known(&cached, block)), [Some(4), Some(4), None]);
    }

    #[test]
    fn a_request_ends_where_what_was_known_of_blocks_changes() {
        let mut cached = CachedFile::default();
        for (block, kind) in [(3, CachedAs::Delayed), (4, CachedAs::Delayed), (5, CachedAs::Unwritten)] {
            cached.note_kind(block, kind);
        }
        assert_eq!((cached.alike(3..6), cached.alike(5..6)), (3..5, 5..6));
        cached.forget_kinds(&(4..u32::MAX));
        assert_eq!((cached.alike(3..6), cached.alike(4..6)), (3..4, 4..6));
    }
}
