//! The block of multiple mount protection (`s_mmp_block`): who has the file system open.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, transmute_ref};

use crate::checksum::{Checksums, compare, object};
use crate::error::{Corruption, CorruptionKind};
use crate::layout::on_disk;

on_disk! {
    /// The first 1024 bytes of the MMP block.
    pub struct RawMmp[1024] {
        /// 0x004D4D50.
        0x000 mmp_magic: U32,
        /// Sequence; see [`SEQUENCE_CLEAN`] and [`SEQUENCE_FSCK`].
        0x004 mmp_seq: U32,
        /// Last update, Unix seconds.
        0x008 mmp_time: U64,
        /// Host name of the last writer.
        0x010 mmp_nodename: [u8; 64],
        /// Device name of the last writer.
        0x050 mmp_bdevname: [u8; 32],
        /// Seconds between checks.
        0x070 mmp_check_interval: U16,
        /// Padding.
        0x072 mmp_pad1: U16,
        /// Padding.
        0x074 mmp_pad2: [U32; 226],
        /// crc32c of the bytes before it.
        0x3FC mmp_checksum: U32,
    }
}

/// `mmp_magic`.
pub const MAGIC: u32 = 0x004D_4D50;

/// `mmp_seq` of a file system that nobody has open.
pub const SEQUENCE_CLEAN: u32 = 0xFF4D_4D50;

/// `mmp_seq` while a checker runs.
pub const SEQUENCE_FSCK: u32 = 0xE24D_4D50;

impl Checksums {
    /// Compares the checksum of the MMP block.
    ///
    /// # Errors
    /// [`CorruptionKind::MmpChecksum`].
    pub fn verify_mmp(&self, mmp: &RawMmp) -> Result<(), Corruption> {
        let matches = self
            .fs_seed()
            .is_none_or(|seed| mmp.mmp_checksum.get() == object::mmp(seed, transmute_ref!(mmp)));
        compare(matches, CorruptionKind::MmpChecksum)
    }

    /// Stores the checksum of the MMP block.
    pub fn seal_mmp(&self, mmp: &mut RawMmp) {
        if let Some(seed) = self.fs_seed() {
            mmp.mmp_checksum = U32::new(object::mmp(seed, transmute_ref!(mmp)));
        }
    }
}

impl RawMmp {
    /// The structure at the start of the MMP block, with its magic checked.
    /// [`crate::Checksums::verify_mmp`] compares the checksum.
    ///
    /// # Errors
    /// [`CorruptionKind::MmpMagic`], also for a block of fewer than 1024 bytes.
    pub fn parse(block: &[u8]) -> Result<&Self, Corruption> {
        match Self::ref_from_prefix(block) {
            Ok((mmp, _)) if mmp.mmp_magic.get() == MAGIC => Ok(mmp),
            _ => Err(Corruption::new(CorruptionKind::MmpMagic)),
        }
    }
}
