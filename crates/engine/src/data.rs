//! File data that is not on the device yet, and what was reserved for it.
//!
//! This is a write-behind buffer, not a cache: clean data is read from the device (the operating system caches file
//! images, memory images need none). A dirty block stays here until write-back chose its place, wrote it and mapped it.
//!
//! What was promised to it is noted here; `file/promises.rs` makes and keeps the promises.

mod unconverted;

pub(crate) use unconverted::Unconverted;

use crate::requests::Pages;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut, Range};

/// What waits of one file's data. Guarded by the inode's content lock.
///
/// Few of the inodes in memory have any: it takes memory from the first change on.
pub(crate) struct FileData {
    /// What is remembered of its pages and holes.
    pub(crate) pages: Pages,
    waiting: Option<Box<Waiting>>,
}

impl FileData {
    /// Nothing waits.
    pub(crate) const fn new(pages: Pages) -> Self {
        Self { pages, waiting: None }
    }

    /// Drops the dirty blocks of a range: they were written, or their content no longer matters. Gives their number.
    pub(crate) fn drop_range(&mut self, range: Range<u32>) -> usize {
        self.pages.forget_kinds(&range);
        self.waiting.as_mut().map_or(0, |waiting| waiting.drop_range(range))
    }

    /// The pages of a range of bytes go; what is dirty in the range was dropped or does not matter.
    pub(crate) fn forget_pages(&mut self, bytes: Range<u64>, block_bits: u32) {
        let waiting = self.waiting.as_deref().unwrap_or(&NOTHING);
        let block = |byte: u64| u32::try_from(byte >> block_bits).unwrap_or(u32::MAX);
        let gone = block(bytes.start.next_multiple_of(1 << block_bits))..block(bytes.end);
        self.pages.forget(bytes, |folio| {
            let (start, end) = (block(folio.start), block(folio.end));
            waiting.first_in(start..end.min(gone.start).max(start)).is_some()
                || waiting.first_in(start.max(gone.end).min(end)..end).is_some()
        });
    }

    /// Clean pages go; of a file that nobody has open and that has no other ones (`is_unused`) also what was remembered of holes.
    pub(crate) fn forget_clean_pages(&mut self, block_bits: u32, is_unused: bool) {
        let waiting = self.waiting.as_deref().unwrap_or(&NOTHING);
        let block = |byte: u64| u32::try_from(byte >> block_bits).unwrap_or(u32::MAX);
        let is_dirty = |folio: Range<u64>| waiting.first_in(block(folio.start)..block(folio.end)).is_some();
        self.pages.forget_clean(is_dirty, is_unused && waiting.is_empty());
    }
}

impl Deref for FileData {
    type Target = Waiting;

    fn deref(&self) -> &Waiting {
        self.waiting.as_deref().unwrap_or(&NOTHING)
    }
}

impl DerefMut for FileData {
    fn deref_mut(&mut self) -> &mut Waiting {
        self.waiting.get_or_insert_default()
    }
}

/// What waits of a file of which nothing does.
static NOTHING: Waiting = Waiting {
    blocks: BTreeMap::new(),
    unconverted: Unconverted::new(),
    reserved: BTreeSet::new(),
    for_mapping: 0,
    inserts: 0,
    amid: false,
};

/// The dirty blocks of one file, and what belongs to them.
#[derive(Default)]
pub(crate) struct Waiting {
    blocks: BTreeMap<u32, Box<[u8]>>,
    /// What was written and is not mapped as written yet.
    pub(crate) unconverted: Unconverted,
    /// Logical clusters with a reservation.
    reserved: BTreeSet<u32>,
    /// Clusters promised to the blocks of the mapping that write-back may have to add.
    for_mapping: u64,
    /// Entries that write-back may add to the mapping amid others, or beyond one for each reserved cluster; never too
    /// few, and 0 again when all is written.
    inserts: usize,
    /// The mapping changed while data waited: nothing reserved is sure to go behind all that is mapped.
    amid: bool,
}

impl Waiting {
    /// Whether there is nothing to write back.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Dirty blocks.
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// The dirty content of a block.
    pub(crate) fn block(&self, logical: u32) -> Option<&[u8]> {
        self.blocks.get(&logical).map(|bytes| &**bytes)
    }

    /// The dirty content of a block, to change it.
    pub(crate) fn block_mut(&mut self, logical: u32) -> Option<&mut [u8]> {
        self.blocks.get_mut(&logical).map(|bytes| &mut **bytes)
    }

    /// Adds a dirty block.
    pub(crate) fn insert(&mut self, logical: u32, bytes: Box<[u8]>) {
        let other = self.blocks.insert(logical, bytes);
        debug_assert!(other.is_none(), "block {logical} was dirty: its bytes would not be counted");
    }

    /// The first run of consecutive dirty blocks at or after `from`, at most `most` long.
    pub(crate) fn first_run(&self, from: u32, most: u32) -> Option<Range<u32>> {
        debug_assert!(most > 0, "a run of no blocks");
        let mut numbers = self.blocks.range(from..).map(|(&number, _)| number);
        let start = numbers.next()?;
        let mut end = start + 1;
        while end - start < most && numbers.next() == Some(end) {
            end += 1;
        }
        Some(start..end)
    }

    /// The runs of dirty blocks of a range, in ascending order.
    pub(crate) fn runs_in(&self, range: Range<u32>) -> Vec<Range<u32>> {
        let mut runs: Vec<Range<u32>> = Vec::new();
        for (&number, _) in self.blocks.range(range) {
            match runs.last_mut() {
                Some(run) if run.end == number => run.end += 1,
                _ => runs.push(number..number + 1),
            }
        }
        runs
    }

    /// Whether blocks outside a range are dirty.
    pub(crate) fn has_more_than(&self, range: &Range<u32>) -> bool {
        self.blocks.range(..range.start).next().is_some() || self.blocks.range(range.end..).next().is_some()
    }

    /// The first dirty block of a range.
    pub(crate) fn first_in(&self, range: Range<u32>) -> Option<u32> {
        self.blocks.range(range).next().map(|(&number, _)| number)
    }

    fn drop_range(&mut self, range: Range<u32>) -> usize {
        let before = self.blocks.len();
        if range.start == 0 && range.end == u32::MAX {
            self.blocks.clear();
        } else {
            let gone: Vec<u32> = self.blocks.range(range).map(|(&number, _)| number).collect();
            for number in gone {
                self.blocks.remove(&number);
            }
        }
        before - self.blocks.len()
    }

    /// Whether a cluster has a reservation.
    pub(crate) fn is_reserved(&self, cluster: u32) -> bool {
        self.reserved.contains(&cluster)
    }

    /// Notes a reservation that was made for a cluster.
    pub(crate) fn note_reserved(&mut self, cluster: u32) {
        let is_new = self.reserved.insert(cluster);
        debug_assert!(is_new, "cluster {cluster} is reserved twice: one would never be given back");
    }

    /// Forgets a cluster's reservation; true when it had one, which the caller then uses up or gives back.
    pub(crate) fn take_reservation(&mut self, cluster: u32) -> bool {
        self.reserved.remove(&cluster)
    }

    /// Reserved clusters in a range of clusters.
    pub(crate) fn reserved_in(&self, clusters: Range<u32>) -> Vec<u32> {
        self.reserved.range(clusters).copied().collect()
    }

    /// The first reserved cluster of a range.
    pub(crate) fn first_reserved_in(&self, clusters: Range<u32>) -> Option<u32> {
        self.reserved.range(clusters).next().copied()
    }

    /// Whether anything is promised: to data, or to the mapping for it.
    pub(crate) fn is_promised(&self) -> bool {
        self.for_mapping > 0 || !self.reserved.is_empty()
    }

    /// Clusters promised to the mapping.
    pub(crate) fn promised_to_mapping(&self) -> u64 {
        self.for_mapping
    }

    /// Notes clusters promised to the mapping, and entries that it may gain amid others.
    pub(crate) fn note_promised_to_mapping(&mut self, clusters: u64, inserts: usize) {
        self.for_mapping += clusters;
        self.inserts += inserts;
    }

    /// Forgets what was promised to the mapping, once no data waits for it; the caller gives that many clusters back.
    pub(crate) fn take_mapping_promise(&mut self) -> u64 {
        if !self.reserved.is_empty() || !self.blocks.is_empty() {
            return 0;
        }
        (self.inserts, self.amid) = (0, false);
        std::mem::take(&mut self.for_mapping)
    }

    /// Entries that write-back may add amid others.
    pub(crate) fn inserts(&self) -> usize {
        self.inserts
    }

    /// Notes that the mapping changes while data waits.
    pub(crate) fn note_amid(&mut self) {
        self.amid = true;
    }

    /// See [`Self::note_amid`].
    pub(crate) fn is_amid(&self) -> bool {
        self.amid
    }

    /// Clusters reserved, each of which takes an entry of the mapping at least.
    pub(crate) fn reserved_len(&self) -> usize {
        self.reserved.len()
    }
}

#[cfg(test)]
mod tests {
    use super::FileData;
    use crate::requests::Pages;

    #[test]
    fn runs_stop_at_gaps_and_at_the_limit() {
        let mut data = FileData::new(Pages::none());
        for number in [3, 4, 5, 9] {
            data.insert(number, Box::from([0; 4]));
        }
        assert_eq!(data.first_run(0, 100), Some(3..6));
        assert_eq!(data.first_run(4, 1), Some(4..5));
        assert_eq!(data.first_run(6, 100), Some(9..10));
        assert_eq!(data.runs_in(4..20), [4..6, 9..10]);
        assert_eq!(data.drop_range(4..10), 3);
        assert_eq!(data.first_run(4, 100), None);
    }
}
