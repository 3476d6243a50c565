//! The bounds of the superblock's numbers, as functions that the verified superblock and a checker
//! share.
//!
//! [`Superblock::verify`](super::Superblock::verify) refuses an image at the first bound that does
//! not hold. A checker calls these functions in an order of its own and continues after a broken
//! bound where it can. For the checker's messages, a [`BrokenBound`] has the name and value of the
//! field.

use core::fmt;

use super::raw::RawSuperblock;
use crate::error::{Corruption, CorruptionKind, Error};
use crate::features::{Incompat, RoCompat};
use crate::geometry::{Geometry, GeometryFields};
use crate::num::u64_from_u16;
use crate::units::BlockNr;

/// First ordinary inode of revision 0.
pub(super) const FIRST_INODE_OLD: u32 = 11;

/// A field of the superblock that is out of its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokenBound {
    /// Which bound.
    pub kind: CorruptionKind,
    /// The field's name.
    pub field: &'static str,
    /// Its value.
    pub value: u64,
}

impl fmt::Display for BrokenBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}", self.field, self.value)
    }
}

impl From<BrokenBound> for Error {
    fn from(broken: BrokenBound) -> Self {
        Self::Corrupt(Corruption::new(broken.kind))
    }
}

/// The result of checking a bound.
pub type Bounded<T = ()> = Result<T, BrokenBound>;

fn bound(holds: bool, kind: CorruptionKind, field: &'static str, value: impl Into<u64>) -> Bounded {
    if holds { Ok(()) } else { Err(BrokenBound { kind, field, value: value.into() }) }
}

/// The geometry: block and cluster size, group sizes, first data block, block count, inode size,
/// flex groups.
///
/// # Errors
/// The first field that is out of its bounds.
pub fn geometry(raw: &RawSuperblock) -> Bounded<Geometry> {
    let bigalloc = raw.ro_compat().contains(RoCompat::BIGALLOC);
    let (log_block, log_cluster) = block_and_cluster(raw, bigalloc)?;
    let bits_per_bitmap = 8u32 << (10 + log_block);
    let clusters = raw.s_clusters_per_group.get();
    let fits = clusters > 0 && clusters <= bits_per_bitmap && clusters.is_multiple_of(8);
    bound(fits, CorruptionKind::SuperblockClustersPerGroup, "s_clusters_per_group", clusters)?;
    let blocks_per_group = raw.s_blocks_per_group.get();
    let same = u64::from(blocks_per_group) == u64::from(clusters) << (log_cluster - log_block);
    bound(same, CorruptionKind::SuperblockBlocksPerGroup, "s_blocks_per_group", blocks_per_group)?;
    let inodes = raw.s_inodes_per_group.get();
    let fits = inodes > 0 && inodes <= bits_per_bitmap;
    bound(fits, CorruptionKind::SuperblockInodesPerGroup, "s_inodes_per_group", inodes)?;
    let first = raw.s_first_data_block.get();
    // A bigalloc file system with blocks and clusters of 1 KiB has the first data block 0 if mke2fs
    // made it with bigalloc, but 1 if bigalloc was turned on later. Linux and e2fsck accept both.
    let is_usual = first == u32::from(log_block == 0 && !bigalloc);
    let is_flagged = first == 1 && log_block == 0 && bigalloc && log_cluster == log_block;
    bound(is_usual || is_flagged, CorruptionKind::SuperblockFirstDataBlock, "s_first_data_block", first)?;
    let blocks = raw.blocks_count();
    let possible = blocks.raw() > u64::from(first) && blocks.raw() <= Geometry::BLOCKS_MAX;
    bound(possible, CorruptionKind::SuperblockBlocksCount, "s_blocks_count", blocks.raw())?;
    let fields = GeometryFields {
        block_bits: 10 + log_block,
        cluster_ratio_bits: log_cluster - log_block,
        blocks_count: blocks,
        first_data_block: BlockNr::new(u64::from(first)),
        clusters_per_group: clusters,
        inodes_per_group: inodes,
        inode_size: inode_size(raw, log_block)?,
        flex_bits: flex_bits(raw)?,
    };
    // After these checks `Geometry::new` can refuse only a total of 2^32 inodes or more.
    Geometry::new(fields).map_err(|_| BrokenBound {
        kind: CorruptionKind::SuperblockInodesCount,
        field: "s_inodes_per_group",
        value: inodes.into(),
    })
}

fn block_and_cluster(raw: &RawSuperblock, bigalloc: bool) -> Bounded<(u32, u32)> {
    let block = raw.s_log_block_size.get();
    bound(block <= 6, CorruptionKind::SuperblockBlockSize, "s_log_block_size", block)?;
    let cluster = raw.s_log_cluster_size.get();
    let possible = if bigalloc { (block..=18).contains(&cluster) } else { cluster == block };
    bound(possible, CorruptionKind::SuperblockClusterSize, "s_log_cluster_size", cluster)?;
    Ok((block, cluster))
}

fn inode_size(raw: &RawSuperblock, log_block: u32) -> Bounded<u16> {
    let size = if raw.s_rev_level.get() == 0 { 128 } else { raw.s_inode_size.get() };
    let possible = size.is_power_of_two() && size >= 128 && u32::from(size) <= 1024 << log_block;
    bound(possible, CorruptionKind::SuperblockInodeSize, "s_inode_size", size)?;
    Ok(size)
}

fn flex_bits(raw: &RawSuperblock) -> Bounded<u32> {
    if !raw.incompat().contains(Incompat::FLEX_BG) {
        return Ok(0);
    }
    let bits = raw.s_log_groups_per_flex;
    bound(bits <= 31, CorruptionKind::SuperblockFlexSize, "s_log_groups_per_flex", bits)?;
    Ok(bits.into())
}

/// Bytes of a group descriptor: 32 without 64bit.
///
/// # Errors
/// With 64bit, `s_desc_size` is not a power of two from 64 to 1024.
pub fn desc_size(raw: &RawSuperblock) -> Bounded<usize> {
    if !raw.incompat().contains(Incompat::BIT64) {
        return Ok(32);
    }
    let size = raw.s_desc_size.get();
    let possible = (64..=1024).contains(&size) && size.is_power_of_two();
    bound(possible, CorruptionKind::SuperblockDescriptorSize, "s_desc_size", size)?;
    Ok(usize::from(size))
}

/// Checks that the blocks reserved for descriptors are no more than one indirect block can list.
///
/// # Errors
/// `s_reserved_gdt_blocks` is larger.
pub fn reserved_gdt(raw: &RawSuperblock, geometry: &Geometry) -> Bounded {
    let reserved = raw.s_reserved_gdt_blocks.get();
    let fits = usize::from(reserved) <= geometry.block_size() / 4;
    bound(fits, CorruptionKind::SuperblockReservedGdt, "s_reserved_gdt_blocks", reserved)
}

/// Checks that the first meta group is not beyond the descriptor blocks.
///
/// # Errors
/// With meta_bg set, `s_first_meta_bg` is above `descriptor_blocks`.
pub fn first_meta_bg(raw: &RawSuperblock, descriptor_blocks: u32) -> Bounded {
    let first = raw.s_first_meta_bg.get();
    let holds = first <= descriptor_blocks || !raw.incompat().contains(Incompat::META_BG);
    bound(holds, CorruptionKind::SuperblockFirstMetaBg, "s_first_meta_bg", first)
}

/// Checks that the inode count is groups times inodes per group.
///
/// # Errors
/// `s_inodes_count` is another number.
pub fn inodes_count(raw: &RawSuperblock, geometry: &Geometry) -> Bounded {
    let count = raw.s_inodes_count.get();
    let same = count == geometry.inodes_count();
    bound(same, CorruptionKind::SuperblockInodesCount, "s_inodes_count", count)
}

/// Checks that the first ordinary inode exists and comes after the reserved inodes. Revision 0 does
/// not have the field, so any value passes.
///
/// # Errors
/// `s_first_ino` is out of range.
pub fn first_inode(raw: &RawSuperblock, geometry: &Geometry) -> Bounded {
    let first = raw.s_first_ino.get();
    let possible = (FIRST_INODE_OLD..=geometry.inodes_count()).contains(&first);
    let holds = possible || raw.s_rev_level.get() == 0;
    bound(holds, CorruptionKind::SuperblockFirstInode, "s_first_ino", first)
}

/// Checks that a size of the extra part of inodes (`s_min_extra_isize`, `s_want_extra_isize`) fits
/// the inode. Inodes of 128 bytes have no extra part, so any value passes.
///
/// # Errors
/// The size does not fit. `field` is the field's name for the error.
pub fn extra_isize(geometry: &Geometry, field: &'static str, size: u16) -> Bounded {
    let room = u64_from_u16(geometry.inode_size()) - 128;
    let fits = room == 0 || u64_from_u16(size) <= room;
    bound(fits, CorruptionKind::SuperblockExtraIsize, field, size)
}
