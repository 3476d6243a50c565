//! Group descriptors: 32 bytes, or 64 and more with the 64bit feature.
//!
//! [`RawGroupDesc`] has 64 bytes for both sizes, so that no caller needs two types. For a 32-byte
//! descriptor the upper 32 bytes are zero, and only the lower 32 are written back. Addresses,
//! counts and the checksums of bitmaps are split into a low and a high half. The accessors join the
//! halves.

mod checksum;
mod verified;

pub use verified::GroupDescriptor;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromZeros, IntoBytes};

use crate::layout::on_disk;
use crate::num::{high16, high32, join16, join32, low16, low32};
use crate::units::BlockNr;

on_disk! {
    /// One group descriptor; nothing in it is verified.
    pub struct RawGroupDesc[64] {
        /// Block of the block bitmap, low half.
        0x00 bg_block_bitmap_lo: U32,
        /// Block of the inode bitmap, low half.
        0x04 bg_inode_bitmap_lo: U32,
        /// First block of the inode table, low half.
        0x08 bg_inode_table_lo: U32,
        /// Free clusters, low half.
        0x0C bg_free_blocks_count_lo: U16,
        /// Free inodes, low half.
        0x0E bg_free_inodes_count_lo: U16,
        /// Directories, low half.
        0x10 bg_used_dirs_count_lo: U16,
        /// [`GroupFlags`] bits.
        0x12 bg_flags: U16,
        /// Block of the snapshot exclude bitmap, low half; unused.
        0x14 bg_exclude_bitmap_lo: U32,
        /// crc32c of the block bitmap, low half.
        0x18 bg_block_bitmap_csum_lo: U16,
        /// crc32c of the inode bitmap, low half.
        0x1A bg_inode_bitmap_csum_lo: U16,
        /// Inodes at the end of the table that were never used, low half.
        0x1C bg_itable_unused_lo: U16,
        /// Checksum of this descriptor.
        0x1E bg_checksum: U16,
        /// Block of the block bitmap, high half.
        0x20 bg_block_bitmap_hi: U32,
        /// Block of the inode bitmap, high half.
        0x24 bg_inode_bitmap_hi: U32,
        /// First block of the inode table, high half.
        0x28 bg_inode_table_hi: U32,
        /// Free clusters, high half.
        0x2C bg_free_blocks_count_hi: U16,
        /// Free inodes, high half.
        0x2E bg_free_inodes_count_hi: U16,
        /// Directories, high half.
        0x30 bg_used_dirs_count_hi: U16,
        /// Never-used inodes, high half.
        0x32 bg_itable_unused_hi: U16,
        /// Block of the exclude bitmap, high half; unused.
        0x34 bg_exclude_bitmap_hi: U32,
        /// crc32c of the block bitmap, high half.
        0x38 bg_block_bitmap_csum_hi: U16,
        /// crc32c of the inode bitmap, high half.
        0x3A bg_inode_bitmap_csum_hi: U16,
        /// Reserved.
        0x3C bg_reserved: U32,
    }
}

bitflags::bitflags! {
    /// `bg_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct GroupFlags: u16 {
        /// No inode is in use, and the inode bitmap is not initialised.
        const INODE_UNINIT = 1;
        /// The block bitmap is not initialised.
        const BLOCK_UNINIT = 2;
        /// The inode table is zeroed.
        const ITABLE_ZEROED = 4;
        const _ = !0;
    }
}

/// Getter and setter of an address in two 32-bit halves.
macro_rules! address {
    ($(#[$doc:meta])* $get:ident, $set:ident, $hi:ident, $lo:ident) => {
        $(#[$doc])*
        #[must_use]
        pub fn $get(&self) -> BlockNr {
            BlockNr::new(join32(self.$hi.get(), self.$lo.get()))
        }

        /// Sets both halves of the address.
        pub fn $set(&mut self, block: BlockNr) {
            self.$lo = U32::new(low32(block.raw()));
            self.$hi = U32::new(high32(block.raw()));
        }
    };
}

/// Getter and setter of a number in two 16-bit halves.
macro_rules! number {
    ($(#[$doc:meta])* $get:ident, $set:ident, $hi:ident, $lo:ident) => {
        $(#[$doc])*
        #[must_use]
        pub fn $get(&self) -> u32 {
            join16(self.$hi.get(), self.$lo.get())
        }

        /// Sets both halves of the number.
        pub fn $set(&mut self, number: u32) {
            self.$lo = U16::new(low16(number));
            self.$hi = U16::new(high16(number));
        }
    };
}

impl RawGroupDesc {
    /// Bytes of a descriptor without the 64bit feature.
    pub const SIZE_SHORT: usize = 32;

    /// Reads a descriptor of `bytes.len()` bytes. Missing bytes are zero; bytes beyond 64 are
    /// ignored.
    #[must_use]
    pub fn from_disk(bytes: &[u8]) -> Self {
        let mut desc = Self::new_zeroed();
        let known = bytes.len().min(Self::SIZE);
        desc.as_mut_bytes()[..known].copy_from_slice(&bytes[..known]);
        desc
    }

    /// Copies the descriptor's first `bytes.len()` bytes to `bytes`. If `bytes` has more than 64,
    /// the rest stays as it is.
    pub fn to_disk(&self, bytes: &mut [u8]) {
        let known = bytes.len().min(Self::SIZE);
        bytes[..known].copy_from_slice(&self.as_bytes()[..known]);
    }

    address! {
        /// Block of the block bitmap.
        block_bitmap, set_block_bitmap, bg_block_bitmap_hi, bg_block_bitmap_lo
    }
    address! {
        /// Block of the inode bitmap.
        inode_bitmap, set_inode_bitmap, bg_inode_bitmap_hi, bg_inode_bitmap_lo
    }
    address! {
        /// First block of the inode table.
        inode_table, set_inode_table, bg_inode_table_hi, bg_inode_table_lo
    }
    number! {
        /// Free clusters.
        free_clusters, set_free_clusters, bg_free_blocks_count_hi, bg_free_blocks_count_lo
    }
    number! {
        /// Free inodes.
        free_inodes, set_free_inodes, bg_free_inodes_count_hi, bg_free_inodes_count_lo
    }
    number! {
        /// Directories.
        used_dirs, set_used_dirs, bg_used_dirs_count_hi, bg_used_dirs_count_lo
    }
    number! {
        /// Inodes at the end of the table that were never used.
        itable_unused, set_itable_unused, bg_itable_unused_hi, bg_itable_unused_lo
    }
    number! {
        /// Stored checksum of the block bitmap; only the low half is kept by 32-byte descriptors.
        block_bitmap_csum, set_block_bitmap_csum, bg_block_bitmap_csum_hi, bg_block_bitmap_csum_lo
    }
    number! {
        /// Stored checksum of the inode bitmap; only the low half is kept by 32-byte descriptors.
        inode_bitmap_csum, set_inode_bitmap_csum, bg_inode_bitmap_csum_hi, bg_inode_bitmap_csum_lo
    }

    /// `bg_flags`.
    #[must_use]
    pub fn flags(&self) -> GroupFlags {
        GroupFlags::from_bits_retain(self.bg_flags.get())
    }

    /// Sets `bg_flags`.
    pub fn set_flags(&mut self, flags: GroupFlags) {
        self.bg_flags = U16::new(flags.bits());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_descriptors_round_trip_without_their_upper_half() {
        let mut desc = RawGroupDesc::zeroed();
        desc.set_block_bitmap(BlockNr::new(0x1_2345_6789));
        desc.set_itable_unused(0x1_0002);
        let mut short = [0u8; 32];
        desc.to_disk(&mut short);
        let back = RawGroupDesc::from_disk(&short);
        assert_eq!(back.block_bitmap(), BlockNr::new(0x2345_6789));
        assert_eq!(back.itable_unused(), 2);
        let mut long = [0u8; 128];
        desc.to_disk(&mut long);
        assert_eq!(RawGroupDesc::from_disk(&long), desc);
    }
}
