//! Frees unmapped blocks in Linux's order. Each CPU counts frees separately and adds them to the
//! counter of free clusters in batches, so the order affects how far that counter lags. When space
//! gets short, the counter decides whether writes use delayed allocation.
//!
//! Extents are freed in descending logical order, and each tree block after the extents that it
//! held (observed on 6.18). See [`Mapping::free_piece`] for clusters that several extents share.

use crate::extents::Extent;
use crate::inode::{Inode, InodeCore};
use crate::mapping::Mapping;
use crate::txn::Handle;
use crate::{OpContext, Result};
use blockyard_disk::BlockNr;
use std::cell::RefCell;
use std::ops::Range;

/// One thing that was removed from a mapping.
pub(crate) enum Gone {
    /// Mapped blocks.
    Piece(Extent),
    /// A block of the extent tree.
    Node(BlockNr),
}

/// A cluster that waits to be freed: an unmapped extent began in the middle of it, and none of its
/// blocks is mapped any more.
struct FirstCluster {
    logical: u32,
    place: BlockNr,
}

impl Mapping {
    /// Unmaps a range and frees the clusters in which no block is mapped any more. The caller has
    /// loaded the bitmaps.
    pub(crate) fn remove_and_free(
        &self,
        ctx: &OpContext,
        handle: &Handle<'_>,
        inode: &Inode,
        core: &mut InodeCore,
        range: Range<u32>,
    ) -> Result<()> {
        let gone = RefCell::new(Vec::with_capacity(8));
        let removed = self.remove_mapping(ctx, handle, inode, core, range, &gone);
        // Parts reported before an error are unmapped and must be freed all the same.
        let mut waiting = None;
        for part in gone.into_inner() {
            let freed = match part {
                Gone::Piece(piece) => self.free_piece(handle, inode, core, &piece, &mut waiting),
                Gone::Node(block) => self.volume.space.free_metadata_block(handle, block),
            };
            self.volume.apply(freed)?;
        }
        if let Some(cluster) = waiting {
            let freed = self.free_clusters_of(handle, inode, core, (cluster.place, 1));
            self.volume.apply(freed)?;
        }
        removed
    }

    /// Of the clusters of one unmapped piece, frees those in which no block is mapped any more
    /// (docs/behaviour/bigalloc.md). Pieces come in descending logical order. As in Linux, clusters
    /// are freed in up to three steps, so that the counter of free clusters lags as far as Linux's:
    /// * the last cluster, if the piece ends in the middle of it;
    /// * the clusters that the piece fills;
    /// * the first cluster, if the piece begins in the middle of it. This cluster is kept in
    ///   `waiting`, because the next piece may share it.
    fn free_piece(
        &self,
        handle: &Handle<'_>,
        inode: &Inode,
        core: &mut InodeCore,
        piece: &Extent,
        waiting: &mut Option<FirstCluster>,
    ) -> Result<()> {
        debug_assert!(piece.len > 0, "a piece of no blocks was unmapped");
        let (ratio, bits) =
            (self.volume.geometry().cluster_ratio(), self.volume.geometry().cluster_ratio_bits());
        let (mut first, mut end) = (piece.logical >> bits, ((piece.end() - 1) >> bits) + 1);
        // This is the start of the physical cluster. Do not compute it from the offset in the
        // logical cluster: in a damaged extent that offset may differ from the physical one, and a
        // neighbour's cluster would be freed.
        let base = self.volume.cluster_start(piece.physical);
        let place =
            |cluster: u32| BlockNr::new(base + (u64::from(cluster - (piece.logical >> bits)) << bits));
        if ratio > 1 {
            let last = end - 1;
            let from_start = piece.logical <= last << bits;
            let mut shares_last = waiting.as_ref().is_some_and(|waiting| waiting.logical == last);
            if let Some(cluster) = waiting.take_if(|_| !shares_last || from_start) {
                self.free_clusters_of(handle, inode, core, (cluster.place, 1))?;
            }
            shares_last = shares_last || self.cluster_is_mapped(inode, core, last)?;
            end -= u32::from(shares_last);
            if !shares_last && from_start && !piece.end().is_multiple_of(ratio) {
                self.free_clusters_of(handle, inode, core, (place(last), 1))?;
                end -= 1;
            }
            if first < end && !piece.logical.is_multiple_of(ratio) {
                if !self.cluster_is_mapped(inode, core, first)? {
                    *waiting = Some(FirstCluster { logical: first, place: place(first) });
                }
                first += 1;
            }
        }
        if self.holds_metadata(inode, core) {
            // Blocks of directories and symbolic links, and logged data, are metadata. The cache
            // must not write them to the device after the blocks have a new owner.
            for block in 0..u64::from(piece.len) {
                handle.forget(BlockNr::new(piece.physical + block));
            }
        }
        if first < end {
            self.free_clusters_of(handle, inode, core, (place(first), end - first))
        } else {
            Ok(())
        }
    }

    /// Frees clusters that an inode no longer uses.
    fn free_clusters_of(
        &self,
        handle: &Handle<'_>,
        inode: &Inode,
        core: &mut InodeCore,
        (place, clusters): (BlockNr, u32),
    ) -> Result<()> {
        debug_assert!(clusters > 0, "no cluster at {place} is to be freed");
        let geometry = *self.volume.geometry();
        let is_data = !self.holds_metadata(inode, core);
        self.volume.space.free_clusters(handle, place, clusters, is_data)?;
        core.add_blocks(-(i64::from(clusters) << geometry.cluster_ratio_bits()), geometry.block_bits());
        Ok(())
    }
}
