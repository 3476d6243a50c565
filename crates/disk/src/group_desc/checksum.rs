//! The checksums of bitmaps, which are stored in their group's descriptor.

use super::RawGroupDesc;
use crate::checksum::{Checksums, compare, object};
use crate::error::{Corruption, CorruptionKind};
use crate::num::low16;

/// A descriptor of at least this many bytes holds all 32 bits of its block bitmap's checksum.
const BLOCK_BITMAP_WIDE: usize = 0x3A;

/// A descriptor of at least this many bytes holds all 32 bits of its inode bitmap's checksum.
const INODE_BITMAP_WIDE: usize = 0x3C;

impl Checksums {
    /// Compares the checksum of a block bitmap with the one in its descriptor. The group must not
    /// be `BLOCK_UNINIT`. `desc_size` decides whether all 32 bits are stored or only the low 16.
    ///
    /// # Errors
    /// [`CorruptionKind::BlockBitmapChecksum`].
    pub fn verify_block_bitmap(
        &self,
        desc: &RawGroupDesc,
        desc_size: usize,
        bitmap: &[u8],
        clusters_per_group: u32,
    ) -> Result<(), Corruption> {
        let Some(seed) = self.fs_seed() else { return Ok(()) };
        let sum = object::bitmap(seed, bitmap, clusters_per_group);
        let matches = if desc_size >= BLOCK_BITMAP_WIDE {
            desc.block_bitmap_csum() == sum
        } else {
            desc.bg_block_bitmap_csum_lo.get() == low16(sum)
        };
        compare(matches, CorruptionKind::BlockBitmapChecksum)
    }

    /// Stores the block bitmap's checksum in its descriptor. Call [`Self::seal_group_desc`]
    /// afterwards: the descriptor's own checksum covers this one.
    pub fn seal_block_bitmap(
        &self,
        desc: &mut RawGroupDesc,
        desc_size: usize,
        bitmap: &[u8],
        clusters_per_group: u32,
    ) {
        let Some(seed) = self.fs_seed() else { return };
        let sum = object::bitmap(seed, bitmap, clusters_per_group);
        desc.set_block_bitmap_csum(if desc_size >= BLOCK_BITMAP_WIDE { sum } else { sum & 0xFFFF });
    }

    /// Compares the checksum of an inode bitmap with the one in its descriptor. The group must not
    /// be `INODE_UNINIT`.
    ///
    /// # Errors
    /// [`CorruptionKind::InodeBitmapChecksum`].
    pub fn verify_inode_bitmap(
        &self,
        desc: &RawGroupDesc,
        desc_size: usize,
        bitmap: &[u8],
        inodes_per_group: u32,
    ) -> Result<(), Corruption> {
        let Some(seed) = self.fs_seed() else { return Ok(()) };
        let sum = object::bitmap(seed, bitmap, inodes_per_group);
        let matches = if desc_size >= INODE_BITMAP_WIDE {
            desc.inode_bitmap_csum() == sum
        } else {
            desc.bg_inode_bitmap_csum_lo.get() == low16(sum)
        };
        compare(matches, CorruptionKind::InodeBitmapChecksum)
    }

    /// Stores the inode bitmap's checksum in its descriptor. Call [`Self::seal_group_desc`]
    /// afterwards: the descriptor's own checksum covers this one.
    pub fn seal_inode_bitmap(
        &self,
        desc: &mut RawGroupDesc,
        desc_size: usize,
        bitmap: &[u8],
        inodes_per_group: u32,
    ) {
        let Some(seed) = self.fs_seed() else { return };
        let sum = object::bitmap(seed, bitmap, inodes_per_group);
        desc.set_inode_bitmap_csum(if desc_size >= INODE_BITMAP_WIDE { sum } else { sum & 0xFFFF });
    }
}
