//! File data that is not on the device yet, and the space reserved for it.
//!
//! A dirty block stays here until write-back has written and mapped it. Clean data is read from the
//! device, unless the options ask to keep it ([`DataStore`]): the operating system caches image
//! files, and images in memory need no cache.
//!
//! Reservations are recorded here; `file/reservations.rs` makes them and uses them up.

mod buffers;
mod clean;
mod dirty;
mod read_ahead;
mod store;
mod unconverted;

pub(crate) use buffers::{BufferPool, DataBuffer};
pub(crate) use dirty::DirtyBlocks;
pub(crate) use read_ahead::ReadAhead;
pub(crate) use store::DataStore;
pub(crate) use unconverted::Unconverted;

use crate::range_set::RangeSet;
use crate::requests::Pages;
use blockyard_disk::num::usize_from_u32;
use std::ops::{Deref, DerefMut, Range};

/// What is remembered about one file's data, and what is reserved for it. Guarded by the inode's
/// content lock.
///
/// Few inodes in memory have reservations, so [`Reservations`] are allocated at their first change.
pub(crate) struct FileData {
    /// What is remembered about the file's pages and holes, where Linux's page cache is imitated.
    pub(crate) pages: Pages,
    reservations: Option<Box<Reservations>>,
}

impl FileData {
    /// No data.
    pub(crate) const fn new(pages: Pages) -> Self {
        Self { pages, reservations: None }
    }

    /// Forgets the pages of a byte range, but does not split a folio with dirty blocks outside the
    /// range. Dirty blocks in the range are ignored: their data was dropped or does not matter.
    pub(crate) fn forget_pages(&mut self, bytes: Range<u64>, block_bits: u32, dirty: &DirtyBlocks) {
        let block = |byte: u64| u32::try_from(byte >> block_bits).unwrap_or(u32::MAX);
        let gone = block(bytes.start.next_multiple_of(1 << block_bits))..block(bytes.end);
        self.pages.forget(bytes, |folio| {
            // A block may be larger than a folio.
            let (start, end) = (block(folio.start), block(folio.end.next_multiple_of(1 << block_bits)));
            dirty.first_in(start..end.min(gone.start).max(start)).is_some()
                || dirty.first_in(start.max(gone.end).min(end)..end).is_some()
        });
    }

    /// Forgets clean pages. If nobody has the file open (`is_unused`) and none of its data is
    /// dirty, forgets its remembered holes too.
    pub(crate) fn forget_clean_pages(&mut self, block_bits: u32, is_unused: bool, dirty: &DirtyBlocks) {
        let block = |byte: u64| u32::try_from(byte >> block_bits).unwrap_or(u32::MAX);
        let is_dirty = |folio: Range<u64>| dirty.first_in(block(folio.start)..block(folio.end)).is_some();
        self.pages.forget_clean(is_dirty, is_unused && dirty.is_empty());
    }
}

impl Deref for FileData {
    type Target = Reservations;

    fn deref(&self) -> &Reservations {
        self.reservations.as_deref().unwrap_or(&NOTHING)
    }
}

impl DerefMut for FileData {
    fn deref_mut(&mut self) -> &mut Reservations {
        self.reservations.get_or_insert_default()
    }
}

/// The reservations of a file without delayed data.
static NOTHING: Reservations =
    Reservations { reserved: RangeSet::new(), reserved_len: 0, for_mapping: 0, inserts: 0, amid: false };

/// File data that is not written yet, or not yet mapped as written. Changes only under the inode's
/// content lock. A lock of its own guards it too, so readers need not wait for the content lock.
#[derive(Default)]
pub(crate) struct Waiting {
    /// Blocks to be written back.
    pub(crate) dirty: DirtyBlocks,
    /// Blocks that were written but are not mapped as written yet.
    pub(crate) unconverted: Unconverted,
}

impl Waiting {
    /// No data.
    pub(crate) const fn new() -> Self {
        Self { dirty: DirtyBlocks::new(), unconverted: Unconverted::new() }
    }

    /// Whether no data waits to be written or mapped.
    pub(crate) fn is_empty(&self) -> bool {
        self.dirty.is_empty() && self.unconverted.is_empty()
    }
}

/// Space reserved for the dirty blocks of one file.
#[derive(Default)]
pub(crate) struct Reservations {
    /// Logical clusters with a reservation.
    reserved: RangeSet,
    reserved_len: usize,
    /// Clusters for tree or indirect blocks that write-back may have to add.
    for_mapping: u64,
    /// An upper bound of the mapping entries that write-back may insert between existing entries or
    /// append. One entry for each reserved cluster is not counted.
    inserts: usize,
    /// Whether the mapping changed while data was dirty. Then a reserved cluster may lie before a
    /// mapped one, so the entry of the reserved cluster may have to be inserted, not appended.
    amid: bool,
}

impl Reservations {
    /// Whether a cluster has a reservation.
    pub(crate) fn is_reserved(&self, cluster: u32) -> bool {
        self.reserved.end_of(cluster).is_some()
    }

    /// Notes that clusters are reserved.
    pub(crate) fn note_reserved(&mut self, clusters: Range<u32>) {
        debug_assert!(
            !self.reserved.touches(&clusters),
            "one reservation of {clusters:?} would never be given back"
        );
        self.reserved_len += clusters.len();
        self.reserved.insert(clusters);
    }

    /// Removes the reservations of a range of clusters. Returns how many there were; the caller
    /// uses them up or gives them back.
    pub(crate) fn take_reservations(&mut self, clusters: Range<u32>) -> u32 {
        let taken = self.reserved.remove(clusters);
        self.reserved_len -= usize_from_u32(taken);
        taken
    }

    /// Reserved clusters in a range of clusters.
    pub(crate) fn reserved_in(&self, clusters: Range<u32>) -> Vec<Range<u32>> {
        self.reserved.within(clusters).collect()
    }

    /// Clusters of a range without a reservation.
    pub(crate) fn not_reserved_in(&self, clusters: Range<u32>) -> Vec<Range<u32>> {
        let mut free = Vec::new();
        let mut at = clusters.start;
        for reserved in self.reserved.within(clusters.clone()) {
            free.push(at..reserved.start);
            at = reserved.end;
        }
        free.push(at..clusters.end);
        free.retain(|range| !range.is_empty());
        free
    }

    /// Whether a cluster of a range is reserved.
    pub(crate) fn has_reserved_in(&self, clusters: &Range<u32>) -> bool {
        self.reserved.touches(clusters)
    }

    /// Whether anything is reserved, for data or for the mapping.
    pub(crate) fn has_reservations(&self) -> bool {
        self.for_mapping > 0 || !self.reserved.is_empty()
    }

    /// Clusters reserved for the mapping.
    pub(crate) fn reserved_for_mapping(&self) -> u64 {
        self.for_mapping
    }

    /// Notes clusters reserved for the mapping, and how many more entries write-back may insert or
    /// append, besides one for each reserved cluster.
    pub(crate) fn note_reserved_for_mapping(&mut self, clusters: u64, inserts: usize) {
        self.for_mapping += clusters;
        self.inserts += inserts;
    }

    /// Call when no data is dirty. Removes the mapping's reservation, unless a cluster is still
    /// reserved for data. Returns the number of clusters, which the caller gives back.
    pub(crate) fn take_mapping_reservation(&mut self) -> u64 {
        if !self.reserved.is_empty() {
            return 0;
        }
        (self.inserts, self.amid) = (0, false);
        std::mem::take(&mut self.for_mapping)
    }

    /// The entries noted by [`Self::note_reserved_for_mapping`] so far.
    pub(crate) fn inserts(&self) -> usize {
        self.inserts
    }

    /// Notes that the mapping changes while data is dirty.
    pub(crate) fn note_amid(&mut self) {
        self.amid = true;
    }

    /// Whether the mapping has changed while data was dirty.
    pub(crate) fn is_amid(&self) -> bool {
        self.amid
    }

    /// The number of reserved clusters. Each is counted as one entry of the mapping.
    pub(crate) fn reserved_len(&self) -> usize {
        self.reserved_len
    }
}
