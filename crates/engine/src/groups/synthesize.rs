//! The bitmap of a group that was never written: its metadata is used, all else is free.

use super::Groups;
use blockyard_disk::{BlockNr, GroupNr, bitmap};
use std::ops::Range;

impl Groups {
    /// Fills `bits` (one block) with the bitmap that the group has by its metadata alone.
    pub(super) fn synthesize(&self, group: GroupNr, bits: &mut [u8]) {
        bits.fill(0);
        let geometry = self.geometry();
        bitmap::pad_from(bits, geometry.clusters_in_group(group));
        self.mark_blocks(group, bits, self.sb.head(group).blocks());
        // With flex_bg a group may hold bitmaps and tables of its neighbours in the flex group.
        let flex = geometry.flex_of(group).raw() << geometry.fields().flex_bits;
        let end = geometry.groups().min(flex.saturating_add(geometry.flex_size()));
        for other in flex..end {
            self.mark_group_metadata(group, bits, GroupNr::new(other));
        }
    }

    /// Clear bits of [`Self::synthesize`].
    pub(super) fn synthesized_free(&self, group: GroupNr) -> u32 {
        let mut bits = vec![0; self.geometry().block_size()];
        self.synthesize(group, &mut bits);
        bitmap::count_clear(&bits, 0..self.geometry().clusters_in_group(group))
    }

    /// Marks what lies of the metadata of group `owner` in `group`.
    fn mark_group_metadata(&self, group: GroupNr, bits: &mut [u8], owner: GroupNr) {
        let places = self.places(owner);
        let one = |block: BlockNr| block..BlockNr::new(block.raw() + 1);
        self.mark_blocks(group, bits, one(places.block_bitmap));
        self.mark_blocks(group, bits, one(places.inode_bitmap));
        let end = BlockNr::new(places.inode_table.raw() + self.geometry().inode_table_blocks());
        self.mark_blocks(group, bits, places.inode_table..end);
    }

    /// Sets the bits of the clusters of this group that `blocks` touch.
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
