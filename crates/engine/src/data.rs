//! File data that is not on the device yet, and what was reserved for it.
//!
//! A dirty block stays here until write-back chose its place, wrote it and mapped it. Clean data is
//! read from the device, unless it is asked to be kept ([`DataStore`]): the operating system caches
//! file images, memory images need nothing.
//!
//! Reservations are noted here; `file/reservations.rs` makes them and uses them up.

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

/// What is remembered of one file's data, and what is reserved for it. Guarded by the inode's
/// content lock.
///
/// Few of the inodes in memory have any: it takes memory from the first change on.
pub(crate) struct FileData {
    /// What is remembered of its pages and holes.
    pub(crate) pages: Pages,
    reservations: Option<Box<Reservations>>,
}

impl FileData {
    /// Nothing waits.
    pub(crate) const fn new(pages: Pages) -> Self {
        Self { pages, reservations: None }
    }

    /// The pages of a range of bytes go; what is dirty in the range was dropped or does not matter.
    pub(crate) fn forget_pages(&mut self, bytes: Range<u64>, block_bits: u32, dirty: &DirtyBlocks) {
        let block = |byte: u64| u32::try_from(byte >> block_bits).unwrap_or(u32::MAX);
        let gone = block(bytes.start.next_multiple_of(1 << block_bits))..block(bytes.end);
        self.pages.forget(bytes, |folio| {
            let (start, end) = (block(folio.start), block(folio.end));
            dirty.first_in(start..end.min(gone.start).max(start)).is_some()
                || dirty.first_in(start.max(gone.end).min(end)..end).is_some()
        });
    }

    /// Clean pages go; of a file that nobody has open and that has no other ones (`is_unused`) also
    /// what was remembered of holes.
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

/// The data of a file that is not where its mapping says. It changes under the inode's content lock
/// only. It has a lock of its own, so that readers need not wait for that one.
#[derive(Default)]
pub(crate) struct Waiting {
    /// What is to be written back.
    pub(crate) dirty: DirtyBlocks,
    /// What was written and is not mapped as written yet.
    pub(crate) unconverted: Unconverted,
}

impl Waiting {
    /// Nothing waits.
    pub(crate) const fn new() -> Self {
        Self { dirty: DirtyBlocks::new(), unconverted: Unconverted::new() }
    }

    /// Whether nothing does.
    pub(crate) fn is_empty(&self) -> bool {
        self.dirty.is_empty() && self.unconverted.is_empty()
    }
}

/// What is reserved for the dirty blocks of one file.
#[derive(Default)]
pub(crate) struct Reservations {
    /// Logical clusters with a reservation.
    reserved: RangeSet,
    reserved_len: usize,
    /// Clusters for the blocks of the mapping that write-back may have to add.
    for_mapping: u64,
    /// Entries that write-back may add to the mapping amid others, or beyond one for each reserved
    /// cluster; never too few, and 0 again when all is written.
    inserts: usize,
    /// The mapping changed while data waited: nothing reserved is sure to go behind all that is
    /// mapped.
    amid: bool,
}

impl Reservations {
    /// Whether a cluster has a reservation.
    pub(crate) fn is_reserved(&self, cluster: u32) -> bool {
        self.reserved.end_of(cluster).is_some()
    }

    /// Notes reservations that were made for clusters.
    pub(crate) fn note_reserved(&mut self, clusters: Range<u32>) {
        debug_assert!(
            !self.reserved.touches(&clusters),
            "one reservation of {clusters:?} would never be given back"
        );
        self.reserved_len += clusters.len();
        self.reserved.insert(clusters);
    }

    /// Forgets reservations; gives how many there were, which the caller then uses up or gives
    /// back.
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

    /// Whether anything is reserved, for data or for its mapping.
    pub(crate) fn has_reservations(&self) -> bool {
        self.for_mapping > 0 || !self.reserved.is_empty()
    }

    /// Clusters reserved for the mapping.
    pub(crate) fn reserved_for_mapping(&self) -> u64 {
        self.for_mapping
    }

    /// Notes clusters reserved for the mapping, and entries that it may gain amid others.
    pub(crate) fn note_reserved_for_mapping(&mut self, clusters: u64, inserts: usize) {
        self.for_mapping += clusters;
        self.inserts += inserts;
    }

    /// No data waits: forgets what is reserved for the mapping, once no cluster is reserved; the
    /// caller gives that many clusters back.
    pub(crate) fn take_mapping_reservation(&mut self) -> u64 {
        if !self.reserved.is_empty() {
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
        self.reserved_len
    }
}
