//! The block goal that follows from an inode's group and the policy's rule for directory blocks.

use blockyard_disk::{BlockNr, Geometry, GroupNr};

use crate::goals::inode_goal;
use crate::policy::slots::DirBlocks;

/// The goal of an inode that has no block yet: the first block of a group. If flex groups have
/// fewer than 4 groups, this is the inode's own group. Otherwise it is the second group of the
/// inode's flex group for regular files, and the first for all other inodes. With
/// `dir_blocks=with-data` it is the second for all inodes.
///
/// `colour` is the number of the calling process, or `None` with delayed allocation. It moves the
/// goal by `colour % 16` sixteenths of the group, to spread writers.
///
/// If the last flex group has only one group, the goal may lie beyond the file system. Then the
/// search starts at the first data block.
#[must_use]
pub fn goal_for_inode(
    geometry: &Geometry,
    inode_group: GroupNr,
    regular: bool,
    dir_blocks: DirBlocks,
    colour: Option<u32>,
) -> BlockNr {
    inode_goal(geometry, inode_group, regular || dir_blocks == DirBlocks::WithData, colour)
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockyard_disk::geometry::GeometryFields;
    use blockyard_disk::{BlockCount, Geometry};

    fn geometry(blocks: u64, flex_bits: u32) -> Geometry {
        Geometry::new(GeometryFields {
            block_bits: 12,
            cluster_ratio_bits: 0,
            blocks_count: BlockCount::new(blocks),
            first_data_block: BlockNr::ZERO,
            clusters_per_group: 32_768,
            inodes_per_group: 8192,
            inode_size: 256,
            flex_bits,
        })
        .unwrap()
    }

    fn goal(geometry: &Geometry, group: u32, regular: bool, colour: Option<u32>) -> u64 {
        goal_for_inode(geometry, GroupNr::new(group), regular, DirBlocks::FlexFirst, colour).raw()
    }

    #[test]
    fn directories_and_files_part_in_flex_groups_of_four_and_more() {
        let flex16 = geometry(64 * 32_768, 4);
        assert_eq!(goal(&flex16, 37, false, None), 32 * 32_768);
        assert_eq!(goal(&flex16, 37, true, None), 33 * 32_768);
        let together = goal_for_inode(&flex16, GroupNr::new(37), false, DirBlocks::WithData, None);
        assert_eq!(together.raw(), 33 * 32_768);
        let flex2 = geometry(64 * 32_768, 1);
        assert_eq!(goal(&flex2, 37, true, None), 37 * 32_768);
        assert_eq!(goal(&flex2, 37, false, None), 37 * 32_768);
    }

    #[test]
    fn colour_spreads_writers_and_shrinks_at_the_end() {
        let plain = geometry(3 * 32_768 + 1600, 0);
        assert_eq!(goal(&plain, 1, true, Some(16 + 3)), 32_768 + 3 * 2048);
        assert_eq!(goal(&plain, 3, true, Some(3)), 3 * 32_768 + 3 * (1599 / 16));
        let short = geometry(16 * 32_768 + 500, 4);
        assert_eq!(goal(&short, 16, true, None), 17 * 32_768, "beyond the end, left to the search");
        assert_eq!(goal(&short, 16, true, Some(5)), 17 * 32_768 - 5 * 2017, "still beyond it");
        // If the last flex group is one full group, a colour of n leads to the n-th block before
        // the end of the file system, as observed on Linux 6.18.
        let full = geometry(17 * 32_768, 4);
        assert_eq!(
            [0, 1, 15, 16].map(|c| goal(&full, 16, true, Some(c))),
            [0, 1, 15, 0].map(|c| 17 * 32_768 - c)
        );
    }
}
