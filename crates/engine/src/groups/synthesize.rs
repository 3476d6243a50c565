//! The block bitmap of a `BLOCK_UNINIT` group: clusters with metadata are used, all others free.

use super::Groups;
use blockyard_disk::{BlockNr, GroupNr, bitmap};
use std::ops::Range;

impl Groups {
    /// Fills `bits` (one block) with the bitmap that follows from the group's metadata alone.
    pub(super) fn synthesize(&self, group: GroupNr, bits: &mut [u8]) {
        bits.fill(0);
        bitmap::pad_from(bits, self.geometry().clusters_in_group(group));
        self.each_metadata(group, |blocks| self.mark_blocks(group, bits, blocks));
    }

    /// How many clusters are free in the bitmap of [`Self::synthesize`].
    pub(super) fn synthesized_free(&self, group: GroupNr) -> u32 {
        let geometry = self.geometry();
        let clusters = geometry.clusters_in_group(group);
        if geometry.cluster_ratio() > 1 {
            // Pieces of metadata may share a cluster.
            let mut bits = vec![0; geometry.block_size()];
            self.synthesize(group, &mut bits);
            return bitmap::count_clear(&bits, 0..clusters);
        }
        let first = geometry.group_first_block(group).raw();
        let last = first + geometry.blocks_in_group(group);
        let mut used = 0;
        self.each_metadata(group, |blocks| {
            used += blocks.end.raw().min(last).saturating_sub(blocks.start.raw().max(first));
        });
        clusters.saturating_sub(u32::try_from(used).unwrap_or(u32::MAX))
    }

    /// Calls `f` with the blocks of every piece of metadata that may lie in `group`. Some of these
    /// blocks may lie in other groups of the same flex group.
    fn each_metadata(&self, group: GroupNr, mut f: impl FnMut(Range<BlockNr>)) {
        let geometry = self.geometry();
        f(self.sb.head(group).blocks());
        // With flex_bg, a group may hold bitmaps and inode tables of other groups of its flex
        // group.
        let flex = geometry.flex_of(group).raw() << geometry.fields().flex_bits;
        let end = geometry.groups().min(flex.saturating_add(geometry.flex_size()));
        let table_blocks = geometry.inode_table_blocks();
        let run = |block: BlockNr, len: u64| block..BlockNr::new(block.raw() + len);
        for other in flex..end {
            let places = self.places(GroupNr::new(other));
            f(run(places.block_bitmap, 1));
            f(run(places.inode_bitmap, 1));
            f(run(places.inode_table, table_blocks));
        }
    }

    /// Sets the bits of those clusters of `group` that contain any of `blocks`.
    fn mark_blocks(&self, group: GroupNr, bits: &mut [u8], blocks: Range<BlockNr>) {
        let geometry = self.geometry();
        let first = geometry.group_first_block(group).raw();
        let last = first + geometry.blocks_in_group(group);
        let (from, to) = (blocks.start.raw().max(first), blocks.end.raw().min(last));
        if from < to {
            let start = geometry.locate(BlockNr::new(from)).1.raw();
            let end = geometry.locate(BlockNr::new(to - 1)).1.raw() + 1;
            bitmap::set_range(bits, start..end);
        }
    }
}
