//! Geometry arithmetic of one file system: groups, clusters, inodes and flex groups.
//!
//! `blocks_per_group` is `clusters_per_group * cluster_ratio`, and the group count is
//! `ceil((blocks_count - first_data_block) / blocks_per_group)`. Block `p` lies in group
//! `(p - first_data_block) / blocks_per_group`. [`Geometry::new`] checks that `first_data_block` is
//! 0, or 1 with 1 KiB blocks and one block per cluster.

use crate::num::{u32_from_u64, u64_from_u16, u64_from_u32};
use crate::units::{BlockCount, BlockNr, ClusterCount, ClusterNr, ClusterOffset, FlexNr, GroupNr, InodeNr};

/// The superblock's numbers from which [`Geometry`] is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeometryFields {
    /// log2 of the block size in bytes, 10..=16.
    pub block_bits: u32,
    /// log2 of blocks per cluster, 0 without bigalloc.
    pub cluster_ratio_bits: u32,
    /// Size of the file system in blocks.
    pub blocks_count: BlockCount,
    /// First block of group 0: 0, or 1 with 1 KiB blocks and one block per cluster.
    pub first_data_block: BlockNr,
    /// Clusters in one group: the bits in use in its block bitmap.
    pub clusters_per_group: u32,
    /// Inodes in one group.
    pub inodes_per_group: u32,
    /// Bytes of one inode in the table.
    pub inode_size: u16,
    /// log2 of groups per flex group; 0 without flex_bg.
    pub flex_bits: u32,
}

/// Verified geometry of one file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    fields: GeometryFields,
    groups: u32,
}

/// Why a set of [`GeometryFields`] is not a valid geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("impossible geometry: {0}")]
pub struct GeometryError(pub &'static str);

impl Geometry {
    /// Largest block count that 48-bit extents can address.
    pub const BLOCKS_MAX: u64 = 1 << 48;

    /// Checks the fields against each other.
    ///
    /// # Errors
    /// [`GeometryError`] names the first bound that is violated. The arithmetic of this type relies
    /// on these bounds.
    pub fn new(fields: GeometryFields) -> Result<Self, GeometryError> {
        let f = &fields;
        let check = |ok: bool, what| if ok { Ok(()) } else { Err(GeometryError(what)) };
        check((10..=16).contains(&f.block_bits), "block size outside 1 KiB..64 KiB")?;
        check(f.cluster_ratio_bits <= 18, "cluster size above 256 MiB")?;
        let bits_per_bitmap = 8u32 << f.block_bits;
        check(
            f.clusters_per_group > 0
                && f.clusters_per_group <= bits_per_bitmap
                && f.clusters_per_group.is_multiple_of(8),
            "clusters per group must be a multiple of 8 that fits one bitmap block",
        )?;
        check(
            f.inodes_per_group > 0 && f.inodes_per_group <= bits_per_bitmap,
            "inodes per group must fit one bitmap block",
        )?;
        let first_possible = u64::from(f.block_bits == 10 && f.cluster_ratio_bits == 0);
        check(f.first_data_block.raw() <= first_possible, "first data block")?;
        check(
            f.inode_size.is_power_of_two()
                && f.inode_size >= 128
                && u32::from(f.inode_size) <= 1 << f.block_bits,
            "inode size must be a power of two from 128 to the block size",
        )?;
        check(
            f.blocks_count.raw() > f.first_data_block.raw() && f.blocks_count.raw() <= Self::BLOCKS_MAX,
            "block count",
        )?;
        check(f.flex_bits <= 31, "groups per flex group")?;
        let per_group = u64::from(f.clusters_per_group) << f.cluster_ratio_bits;
        let groups = (f.blocks_count.raw() - f.first_data_block.raw()).div_ceil(per_group);
        let inodes = groups.checked_mul(u64::from(f.inodes_per_group));
        check(inodes.is_some_and(|inodes| inodes <= u64::from(u32::MAX)), "2^32 inodes or more")?;
        Ok(Self { fields, groups: u32_from_u64(groups) })
    }

    /// The fields this geometry was made from.
    #[must_use]
    pub const fn fields(&self) -> &GeometryFields {
        &self.fields
    }

    /// Block size in bytes.
    #[inline]
    #[must_use]
    pub const fn block_size(&self) -> usize {
        1 << self.fields.block_bits
    }

    /// log2 of the block size in bytes.
    #[inline]
    #[must_use]
    pub const fn block_bits(&self) -> u32 {
        self.fields.block_bits
    }

    /// log2 of blocks per cluster.
    #[inline]
    #[must_use]
    pub const fn cluster_ratio_bits(&self) -> u32 {
        self.fields.cluster_ratio_bits
    }

    /// Blocks per cluster.
    #[inline]
    #[must_use]
    pub const fn cluster_ratio(&self) -> u32 {
        1 << self.fields.cluster_ratio_bits
    }

    /// Size of the file system in blocks.
    #[inline]
    #[must_use]
    pub const fn blocks_count(&self) -> BlockCount {
        self.fields.blocks_count
    }

    /// First block that belongs to group 0.
    #[inline]
    #[must_use]
    pub const fn first_data_block(&self) -> BlockNr {
        self.fields.first_data_block
    }

    /// Clusters in every group but possibly the last.
    #[inline]
    #[must_use]
    pub const fn clusters_per_group(&self) -> u32 {
        self.fields.clusters_per_group
    }

    /// Blocks in every group but possibly the last.
    #[inline]
    #[must_use]
    pub const fn blocks_per_group(&self) -> u64 {
        u64_from_u32(self.fields.clusters_per_group) << self.fields.cluster_ratio_bits
    }

    /// Inodes in every group.
    #[inline]
    #[must_use]
    pub const fn inodes_per_group(&self) -> u32 {
        self.fields.inodes_per_group
    }

    /// Bytes of one inode in the table.
    #[inline]
    #[must_use]
    pub const fn inode_size(&self) -> u16 {
        self.fields.inode_size
    }

    /// Blocks of one group's inode table.
    #[inline]
    #[must_use]
    pub const fn inode_table_blocks(&self) -> u64 {
        let bytes = u64_from_u32(self.fields.inodes_per_group) * u64_from_u16(self.fields.inode_size);
        bytes.div_ceil(1 << self.fields.block_bits)
    }

    /// Number of block groups.
    #[inline]
    #[must_use]
    pub const fn groups(&self) -> u32 {
        self.groups
    }

    /// All group numbers in ascending order.
    pub fn all_groups(&self) -> impl ExactSizeIterator<Item = GroupNr> + DoubleEndedIterator + use<> {
        (0..self.groups).map(GroupNr::new)
    }

    /// Inodes in the whole file system.
    #[inline]
    #[must_use]
    pub const fn inodes_count(&self) -> u32 {
        self.groups * self.fields.inodes_per_group
    }

    /// Groups per flex group; 1 without flex_bg.
    #[inline]
    #[must_use]
    pub const fn flex_size(&self) -> u32 {
        1 << self.fields.flex_bits
    }

    /// Number of flex groups (equals the group count without flex_bg); the last may be short.
    #[inline]
    #[must_use]
    pub const fn flex_groups(&self) -> u32 {
        self.groups.div_ceil(self.flex_size())
    }

    /// The flex group that `group` belongs to.
    #[inline]
    #[must_use]
    pub const fn flex_of(&self, group: GroupNr) -> FlexNr {
        FlexNr::new(group.raw() >> self.fields.flex_bits)
    }

    /// First block of a group.
    #[inline]
    #[must_use]
    pub const fn group_first_block(&self, group: GroupNr) -> BlockNr {
        BlockNr::new(self.fields.first_data_block.raw() + u64_from_u32(group.raw()) * self.blocks_per_group())
    }

    /// Blocks in this group; fewer than [`Self::blocks_per_group`] only in the last group.
    #[inline]
    #[must_use]
    pub const fn blocks_in_group(&self, group: GroupNr) -> u64 {
        let left = self.fields.blocks_count.raw() - self.group_first_block(group).raw();
        let full = self.blocks_per_group();
        if left < full { left } else { full }
    }

    /// Clusters in this group. If the last group ends inside a cluster, that cluster counts.
    #[inline]
    #[must_use]
    pub const fn clusters_in_group(&self, group: GroupNr) -> u32 {
        u32_from_u64(self.clusters_for(BlockCount::new(self.blocks_in_group(group))).raw())
    }

    /// Clusters in the whole file system.
    #[inline]
    #[must_use]
    pub const fn clusters_count(&self) -> ClusterCount {
        let blocks = self.fields.blocks_count.raw() - self.fields.first_data_block.raw();
        self.clusters_for(BlockCount::new(blocks))
    }

    /// Clusters that hold `blocks` blocks, rounded up.
    #[inline]
    #[must_use]
    pub const fn clusters_for(&self, blocks: BlockCount) -> ClusterCount {
        let mask = (1u64 << self.fields.cluster_ratio_bits) - 1;
        ClusterCount::new((blocks.raw() + mask) >> self.fields.cluster_ratio_bits)
    }

    /// Blocks in `clusters` clusters.
    #[inline]
    #[must_use]
    pub const fn blocks_in(&self, clusters: ClusterCount) -> BlockCount {
        BlockCount::new(clusters.raw() << self.fields.cluster_ratio_bits)
    }

    /// Whether a block number lies inside the file system. Block 0 does not if the first data block
    /// is 1.
    #[inline]
    #[must_use]
    pub const fn contains(&self, block: BlockNr) -> bool {
        block.raw() >= self.fields.first_data_block.raw() && block.raw() < self.fields.blocks_count.raw()
    }

    /// The group a block lies in; the block must be in the file system.
    #[inline]
    #[must_use]
    pub fn group_of(&self, block: BlockNr) -> GroupNr {
        debug_assert!(self.contains(block), "block {block} outside the file system");
        let from_first = block.raw() - self.fields.first_data_block.raw();
        GroupNr::new(u32_from_u64(from_first / self.blocks_per_group()))
    }

    /// The group of a block, and the bit of the block's cluster in the block bitmap. The block must
    /// be in the file system.
    #[inline]
    #[must_use]
    pub fn locate(&self, block: BlockNr) -> (GroupNr, ClusterOffset) {
        let from_first = block.raw() - self.fields.first_data_block.raw();
        let group = from_first / self.blocks_per_group();
        let inside = (from_first % self.blocks_per_group()) >> self.fields.cluster_ratio_bits;
        (GroupNr::new(u32_from_u64(group)), ClusterOffset::new(u32_from_u64(inside)))
    }

    /// First block of the cluster at a bitmap position.
    #[inline]
    #[must_use]
    pub const fn block_at(&self, group: GroupNr, offset: ClusterOffset) -> BlockNr {
        let inside = u64_from_u32(offset.raw()) << self.fields.cluster_ratio_bits;
        BlockNr::new(self.group_first_block(group).raw() + inside)
    }

    /// The cluster a block lies in; the block must be in the file system.
    #[inline]
    #[must_use]
    pub const fn cluster_of(&self, block: BlockNr) -> ClusterNr {
        ClusterNr::new((block.raw() - self.fields.first_data_block.raw()) >> self.fields.cluster_ratio_bits)
    }

    /// The group of an inode and its index in that group's table; the number must be in
    /// 1..=inodes_count.
    #[inline]
    #[must_use]
    pub fn locate_inode(&self, inode: InodeNr) -> (GroupNr, u32) {
        debug_assert!(inode.raw() >= 1 && inode.raw() <= self.inodes_count(), "inode {inode} out of range");
        let index = inode.raw() - 1;
        (GroupNr::new(index / self.fields.inodes_per_group), index % self.fields.inodes_per_group)
    }

    /// The inode at an index of a group's table.
    #[inline]
    #[must_use]
    pub const fn inode_at(&self, group: GroupNr, index: u32) -> InodeNr {
        InodeNr::new(group.raw() * self.fields.inodes_per_group + index + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> GeometryFields {
        GeometryFields {
            block_bits: 10,
            cluster_ratio_bits: 0,
            blocks_count: BlockCount::new(20_000),
            first_data_block: BlockNr::new(1),
            clusters_per_group: 8192,
            inodes_per_group: 1280,
            inode_size: 256,
            flex_bits: 4,
        }
    }

    #[test]
    fn one_kib_blocks_start_at_block_one() {
        let g = Geometry::new(fields()).unwrap();
        assert_eq!(g.groups(), 3);
        assert_eq!(g.group_first_block(GroupNr::new(1)), BlockNr::new(8193));
        assert_eq!(g.locate(BlockNr::new(8193)), (GroupNr::new(1), ClusterOffset::new(0)));
        assert_eq!(g.blocks_in_group(GroupNr::new(2)), 20_000 - 16_385);
        assert_eq!(g.inode_table_blocks(), 320);
        assert_eq!(g.flex_groups(), 1);
        assert!(!g.contains(BlockNr::ZERO));
    }

    #[test]
    fn clusters_round_up_in_a_short_last_group() {
        let g = Geometry::new(GeometryFields {
            block_bits: 12,
            cluster_ratio_bits: 4,
            blocks_count: BlockCount::new(524_288 + 17),
            first_data_block: BlockNr::ZERO,
            clusters_per_group: 32_768,
            ..fields()
        })
        .unwrap();
        assert_eq!(g.groups(), 2);
        assert_eq!(g.clusters_in_group(GroupNr::new(1)), 2);
        assert_eq!(g.block_at(GroupNr::new(1), ClusterOffset::new(1)), BlockNr::new(524_288 + 16));
    }

    #[test]
    fn impossible_fields_are_refused_by_name() {
        let wrong = GeometryFields { first_data_block: BlockNr::new(1), block_bits: 12, ..fields() };
        assert_eq!(Geometry::new(wrong), Err(GeometryError("first data block")));
        let wrong = GeometryFields { inode_size: 2048, ..fields() };
        assert!(Geometry::new(wrong).is_err());
        // 2^45 groups of 2^19 inodes: their product does not fit in 64 bits.
        let wrong = GeometryFields {
            block_bits: 16,
            blocks_count: BlockCount::new(1 << 48),
            first_data_block: BlockNr::ZERO,
            clusters_per_group: 8,
            inodes_per_group: 1 << 19,
            ..fields()
        };
        assert_eq!(Geometry::new(wrong), Err(GeometryError("2^32 inodes or more")));
    }
}
