//! The head of each group: where its superblock copy, its descriptor blocks and the blocks reserved
//! for more descriptors lie.
//!
//! In the classic layout, each superblock copy is followed by the whole descriptor table, then by
//! the blocks reserved for more descriptors. With meta_bg, the groups that descriptor block `i`
//! describes form meta group `i`. The first, second and last of these groups each hold a copy of
//! the block. Only the meta groups below `s_first_meta_bg` keep the classic layout.
//!
//! Invariant: a head is contiguous from the first block of its group. With blocks of 1 KiB, group 0
//! begins with the boot block if the first data block is 0, as with bigalloc. The boot block counts
//! as part of the head.

use core::ops::Range;

use crate::features::{Compat, FeatureSet, Incompat, RoCompat};
use crate::geometry::Geometry;
use crate::num::{u32_from_u64, u64_from_u32, usize_from_u32};
use crate::units::{BlockCount, BlockNr, GroupNr};

/// The numbers that, together with the geometry, determine the head of each group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLayout {
    /// Bytes of one descriptor: 32, or `s_desc_size` with the 64bit feature.
    pub desc_size: usize,
    /// Which groups have superblock copies.
    pub copies: SuperCopies,
    /// First meta group that holds its own descriptor block; `None` without meta_bg.
    pub first_meta_bg: Option<u32>,
    /// Blocks reserved for more descriptors after each copy of the classic descriptor table.
    pub reserved_gdt_blocks: u16,
}

/// Which groups have a copy of the superblock; group 0 always has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuperCopies {
    /// All groups (no sparse_super).
    Every,
    /// Group 1 and the powers of 3, 5 and 7 (sparse_super).
    Sparse,
    /// The groups in `s_backup_bgs` (sparse_super2). An element of 0 names no group.
    Named([u32; 2]),
}

impl SuperCopies {
    /// The rule that the features select; `backup_bgs` is `s_backup_bgs`.
    #[must_use]
    pub const fn of(features: &FeatureSet, backup_bgs: [u32; 2]) -> Self {
        if features.compat.contains(Compat::SPARSE_SUPER2) {
            Self::Named(backup_bgs)
        } else if features.ro_compat.contains(RoCompat::SPARSE_SUPER) {
            Self::Sparse
        } else {
            Self::Every
        }
    }

    /// Whether a group has a copy.
    #[must_use]
    pub fn contain(self, group: GroupNr) -> bool {
        match (group.raw(), self) {
            (0, _) | (_, Self::Every) | (1, Self::Sparse) => true,
            (n, Self::Sparse) => [3, 5, 7].iter().any(|base| is_power_of(n, *base)),
            (n, Self::Named(groups)) => groups.contains(&n),
        }
    }
}

fn is_power_of(mut number: u32, base: u32) -> bool {
    while number > 1 && number.is_multiple_of(base) {
        number /= base;
    }
    number == 1
}

/// The blocks of one group's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupHead {
    /// First block of the group, where the head begins.
    pub first: BlockNr,
    /// The superblock copy; `None` if the group has none.
    pub superblock: Option<BlockNr>,
    /// Descriptor blocks; empty if the group has none.
    pub descriptors: Range<BlockNr>,
    /// Which block of the descriptor table the first block of `descriptors` is, counted from 0.
    pub table_index: u32,
    /// Blocks reserved for more descriptors.
    pub reserved: Range<BlockNr>,
}

impl GroupHead {
    /// All blocks of the head; empty if the group has neither a superblock copy nor descriptors.
    #[must_use]
    pub fn blocks(&self) -> Range<BlockNr> {
        self.first..self.reserved.end
    }
}

impl HeadLayout {
    /// The layout that follows from features and the superblock's numbers. Without meta_bg,
    /// `first_meta_bg` is ignored.
    #[must_use]
    pub fn of(
        features: &FeatureSet,
        desc_size: usize,
        backup_bgs: [u32; 2],
        first_meta_bg: u32,
        reserved_gdt_blocks: u16,
    ) -> Self {
        Self {
            desc_size,
            copies: SuperCopies::of(features, backup_bgs),
            first_meta_bg: features.incompat.contains(Incompat::META_BG).then_some(first_meta_bg),
            reserved_gdt_blocks,
        }
    }

    /// Descriptors in one block.
    #[must_use]
    pub fn descriptors_per_block(&self, geometry: &Geometry) -> u32 {
        u32_from_u64(crate::num::u64_from_usize(geometry.block_size() / self.desc_size))
    }

    /// Blocks of the whole descriptor table, without the reserve.
    #[must_use]
    pub fn descriptor_blocks(&self, geometry: &Geometry) -> u32 {
        geometry.groups().div_ceil(self.descriptors_per_block(geometry))
    }

    /// Descriptor blocks that follow each superblock copy in the classic layout.
    #[must_use]
    pub fn classic_blocks(&self, geometry: &Geometry) -> u32 {
        let all = self.descriptor_blocks(geometry);
        self.first_meta_bg.map_or(all, |first| first.min(all))
    }

    /// Whether a group has a superblock copy.
    #[must_use]
    pub fn has_super(&self, group: GroupNr) -> bool {
        self.copies.contain(group)
    }

    /// The groups with a superblock copy, ascending, group 0 included.
    pub fn super_groups(&self, geometry: &Geometry) -> impl Iterator<Item = GroupNr> + use<> {
        let copies = self.copies;
        geometry.all_groups().filter(move |group| copies.contain(*group))
    }

    /// The block of a group's superblock copy; `None` if the group has none. The primary is in
    /// group 0.
    #[must_use]
    pub fn superblock(&self, geometry: &Geometry, group: GroupNr) -> Option<BlockNr> {
        let boot = BlockCount::new(u64::from(has_boot_block(geometry, group)));
        self.has_super(group).then(|| geometry.group_first_block(group) + boot)
    }

    /// Where the primary copy of descriptor block `index` lies: the copy that a mount reads.
    ///
    /// # Panics
    /// When the index is beyond the table.
    #[must_use]
    pub fn descriptor_block(&self, geometry: &Geometry, index: u32) -> BlockNr {
        assert!(index < self.descriptor_blocks(geometry), "descriptor block {index}");
        if index < self.classic_blocks(geometry) {
            return self.head(geometry, GroupNr::new(0)).descriptors.start
                + BlockCount::new(u64::from(index));
        }
        let group = GroupNr::new(index * self.descriptors_per_block(geometry));
        self.head(geometry, group).descriptors.start
    }

    /// Block and byte offset of the primary copy of a group's descriptor.
    #[must_use]
    pub fn descriptor_place(&self, geometry: &Geometry, group: GroupNr) -> (BlockNr, usize) {
        let per_block = self.descriptors_per_block(geometry);
        let block = self.descriptor_block(geometry, group.raw() / per_block);
        (block, usize_from_u32(group.raw() % per_block) * self.desc_size)
    }

    /// The head of a group.
    #[must_use]
    pub fn head(&self, geometry: &Geometry, group: GroupNr) -> GroupHead {
        let first = geometry.group_first_block(group);
        let superblock = self.superblock(geometry, group);
        let start = superblock.map_or(first, |copy| copy + BlockCount::new(1));
        let per_block = self.descriptors_per_block(geometry);
        let meta_group = group.raw() / per_block;
        let (table_index, descriptors, reserved) = match self.first_meta_bg {
            Some(first_meta) if meta_group >= first_meta => {
                (meta_group, u64::from(self.holds_meta_descriptors(geometry, group)), 0)
            }
            _ if superblock.is_some() => {
                (0, u64_from_u32(self.classic_blocks(geometry)), u64::from(self.reserved_gdt_blocks))
            }
            _ => (0, 0, 0),
        };
        let behind = start + BlockCount::new(descriptors);
        GroupHead {
            first,
            superblock,
            descriptors: start..behind,
            table_index,
            reserved: behind..behind + BlockCount::new(reserved),
        }
    }

    /// Whether a group is the first, second or last of its meta group.
    fn holds_meta_descriptors(&self, geometry: &Geometry, group: GroupNr) -> bool {
        let per_block = self.descriptors_per_block(geometry);
        let position = group.raw() % per_block;
        position == 0 || position == 1 || position == per_block - 1
    }
}

/// Whether block 0 belongs to this group and is the boot block in front of the superblock.
fn has_boot_block(geometry: &Geometry, group: GroupNr) -> bool {
    group.raw() == 0 && geometry.block_bits() == 10 && geometry.first_data_block() == BlockNr::ZERO
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::GeometryFields;

    fn geometry(block_bits: u32, blocks: u64, ratio_bits: u32) -> Geometry {
        Geometry::new(GeometryFields {
            block_bits,
            cluster_ratio_bits: ratio_bits,
            blocks_count: BlockCount::new(blocks),
            first_data_block: BlockNr::new(u64::from(block_bits == 10 && ratio_bits == 0)),
            clusters_per_group: 8 << block_bits,
            inodes_per_group: 2048,
            inode_size: 256,
            flex_bits: 4,
        })
        .unwrap()
    }

    fn layout(copies: SuperCopies, first_meta_bg: Option<u32>, reserved: u16) -> HeadLayout {
        HeadLayout { desc_size: 64, copies, first_meta_bg, reserved_gdt_blocks: reserved }
    }

    fn block(n: u64) -> BlockNr {
        BlockNr::new(n)
    }

    #[test]
    fn sparse_copies_are_where_dumpe2fs_shows_them() {
        let groups: Vec<u32> = (0..260).filter(|n| SuperCopies::Sparse.contain(GroupNr::new(*n))).collect();
        assert_eq!(groups, [0, 1, 3, 5, 7, 9, 25, 27, 49, 81, 125, 243]);
        assert!(SuperCopies::Named([1, 15]).contain(GroupNr::new(15)));
        assert!(!SuperCopies::Named([1, 15]).contain(GroupNr::new(3)));
        assert!(SuperCopies::Named([0, 0]).contain(GroupNr::new(0)));
    }

    #[test]
    fn classic_heads_match_a_32_gib_image() {
        // mke2fs, 32 GiB, 4 KiB blocks: superblock 0, descriptors 1-4, reserve 5-1028.
        let g = geometry(12, 8_388_608, 0);
        let l = layout(SuperCopies::Sparse, None, 1024);
        let head = l.head(&g, GroupNr::new(0));
        assert_eq!(head.superblock, Some(block(0)));
        assert_eq!(head.descriptors, block(1)..block(5));
        assert_eq!(head.blocks(), block(0)..block(1029));
        assert_eq!(l.head(&g, GroupNr::new(2)).blocks(), block(65_536)..block(65_536));
        assert_eq!(l.descriptor_place(&g, GroupNr::new(65)), (block(2), 64));
    }

    #[test]
    fn meta_groups_match_dumpe2fs() {
        // mke2fs -b 1024 -O meta_bg,^resize_inode, 600 MiB: descriptors of meta group 1 at 131073,
        // 139265, 253953.
        let g = geometry(10, 614_400, 0);
        let l = layout(SuperCopies::Sparse, Some(0), 0);
        assert_eq!(l.head(&g, GroupNr::new(0)).descriptors, block(2)..block(3));
        assert_eq!(l.head(&g, GroupNr::new(1)).descriptors, block(8194)..block(8195));
        assert_eq!(l.head(&g, GroupNr::new(3)).blocks(), block(24_577)..block(24_578));
        assert_eq!(l.head(&g, GroupNr::new(15)).descriptors, block(122_881)..block(122_882));
        assert_eq!(l.descriptor_block(&g, 1), block(131_073));
        assert_eq!(l.head(&g, GroupNr::new(49)).descriptors, block(401_410)..block(401_411));
        assert_eq!(l.head(&g, GroupNr::new(49)).table_index, 3);
    }

    #[test]
    fn bigalloc_with_small_blocks_keeps_the_boot_block() {
        // mke2fs -b 1024 -O bigalloc -C 16384, 600 MiB: primary at 1, descriptors at 2, backup
        // at 131072.
        let g = geometry(10, 614_400, 4);
        let l = layout(SuperCopies::Sparse, None, 0);
        let head = l.head(&g, GroupNr::new(0));
        assert_eq!((head.first, head.superblock), (block(0), Some(block(1))));
        assert_eq!(head.descriptors, block(2)..block(3));
        assert_eq!(l.superblock(&g, GroupNr::new(1)), Some(block(131_072)));
    }
}
