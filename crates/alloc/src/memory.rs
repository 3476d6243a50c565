//! Block bitmaps in memory: a stand-in for the caller's on-disk bitmaps, for models, measurements
//! and tests.
//!
//! [`MemoryBitmaps`] handles claims as an engine does, but has no files, no journal and no device.
//! A bitmap takes memory only once its bits were written.

use std::sync::Arc;

use blockyard_disk::geometry::GeometryFields;
use blockyard_disk::num::{u64_from_u32, usize_from_u32};
use blockyard_disk::{BlockCount, BlockNr, Geometry, GroupNr};
use blockyard_sync::{Backend, Mutex, rank};

use crate::claim::Claim;
use crate::config::{GroupFacts, GroupSource};
use crate::error::SourceError;
use crate::frees::FreedExtent;

/// The bitmap of a group, once it was written; until then it is that of an empty file system.
type ChangedBits = Option<Box<[u8]>>;

/// On-disk bitmaps of a file system whose groups begin with a fixed number of metadata clusters.
pub struct MemoryBitmaps {
    geometry: Geometry,
    overhead: u32,
    changed: Box<[Mutex<ChangedBits>]>,
}

impl MemoryBitmaps {
    /// An empty file system; the first `overhead` clusters of each group are metadata.
    #[must_use]
    pub fn new(geometry: Geometry, overhead: u32) -> Arc<Self> {
        let changed = (0..geometry.groups()).map(|_| Mutex::new(rank::LEAF, None)).collect();
        Arc::new(Self { geometry, overhead, changed })
    }

    /// A geometry of `groups` full groups of 32,768 clusters, with blocks of 4 KiB and flex groups
    /// of `2^flex_bits` groups.
    ///
    /// # Panics
    /// When no file system can have that many groups.
    #[must_use]
    pub fn plain_geometry(groups: u32, flex_bits: u32) -> Geometry {
        Geometry::new(GeometryFields {
            block_bits: 12,
            cluster_ratio_bits: 0,
            blocks_count: BlockCount::new(u64_from_u32(groups) * 32768),
            first_data_block: BlockNr::ZERO,
            clusters_per_group: 32768,
            inodes_per_group: 8192,
            inode_size: 256,
            flex_bits,
        })
        .expect("these fields fit any group count below 2^19")
    }

    /// What the descriptors say now, one entry for each group.
    #[must_use]
    pub fn facts(&self) -> Vec<GroupFacts> {
        let free = |nr: GroupNr| {
            let bitmap = self.bitmap(nr);
            let clusters = self.geometry.clusters_in_group(nr);
            (0..clusters).map(|bit| u32::from(!is_set(&bitmap, bit))).sum()
        };
        let untouched = |nr: GroupNr| self.geometry.clusters_in_group(nr).saturating_sub(self.overhead);
        let facts = |nr: GroupNr| GroupFacts {
            free: if self.changed[usize_from_u32(nr.raw())].lock().is_some() {
                free(nr)
            } else {
                untouched(nr)
            },
            block_uninit: false,
        };
        self.geometry.all_groups().map(facts).collect()
    }

    /// The bitmap of a group (1 = used), one block long.
    #[must_use]
    pub fn bitmap(&self, group: GroupNr) -> Vec<u8> {
        if let Some(bits) = &*self.changed[usize_from_u32(group.raw())].lock() {
            return bits.to_vec();
        }
        self.fresh(group)
    }

    fn fresh(&self, group: GroupNr) -> Vec<u8> {
        let mut bits = vec![0; self.geometry.block_size()];
        let clusters = self.geometry.clusters_in_group(group);
        set(&mut bits, 0, self.overhead.min(clusters), true);
        let all = blockyard_disk::num::u32_from_usize(bits.len() * 8);
        set(&mut bits, clusters, all - clusters, true);
        bits
    }

    /// Sets (`used`) or clears the bits of `count` clusters from `start` on.
    pub fn write(&self, group: GroupNr, start: u32, count: u32, used: bool) {
        let mut slot = self.changed[usize_from_u32(group.raw())].lock();
        let bits = slot.get_or_insert_with(|| self.fresh(group).into_boxed_slice());
        set(bits, start, count, used);
    }

    /// Handles a claim as an engine does: sets its bits, then commits it. Returns the extent that
    /// was claimed.
    pub fn commit<B: Backend>(&self, claim: Claim<'_, B>) -> FreedExtent {
        let extent =
            FreedExtent { group: claim.group(), start: claim.offset().raw(), count: claim.clusters() };
        debug_assert!(
            (extent.start..extent.start + extent.count).all(|bit| !is_set(&self.bitmap(extent.group), bit)),
            "{claim:?} is used on disk already"
        );
        self.write(extent.group, extent.start, extent.count, true);
        claim.commit();
        extent
    }
}

impl GroupSource for MemoryBitmaps {
    fn load(&self, group: GroupNr, bitmap: &mut [u8]) -> Result<(), SourceError> {
        bitmap.copy_from_slice(&self.bitmap(group));
        Ok(())
    }
}

fn is_set(bits: &[u8], at: u32) -> bool {
    bits[usize_from_u32(at / 8)] >> (at % 8) & 1 == 1
}

fn set(bits: &mut [u8], start: u32, count: u32, used: bool) {
    for at in start..start + count {
        let byte = &mut bits[usize_from_u32(at / 8)];
        *byte = if used { *byte | 1 << (at % 8) } else { *byte & !(1 << (at % 8)) };
    }
}
