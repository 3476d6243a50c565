//! The first block of a new journal, and the block for multiple mount protection (MMP).

use blockyard_disk::checksum::Checksums;
use blockyard_disk::mmp::{self, RawMmp};
use blockyard_disk::num::{u32_from_u64, usize_from_u64};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

use super::identity::Identity;
use super::layout::Layout;
use super::options::Options;
use super::params::JournalSize;
use super::superblock::mmp_interval;

/// The journal superblock (version 2, no features, empty log); all numbers big-endian.
pub(super) fn superblock(layout: &Layout, size: JournalSize, identity: &Identity) -> Vec<u8> {
    let mut block = vec![0; usize_from_u64(layout.params.block_size())];
    let mut put = |at: usize, value: u32| block[at..at + 4].copy_from_slice(&value.to_be_bytes());
    put(0x00, 0xC03B_3998);
    put(0x04, 4);
    put(0x0C, u32_from_u64(layout.params.block_size()));
    put(0x10, u32_from_u64(size.total));
    put(0x14, 1);
    put(0x18, 1);
    put(0x40, 1);
    put(0x54, u32_from_u64(size.fast_commit));
    block[0x30..0x40].copy_from_slice(&identity.uuid);
    block
}

/// The MMP block of a file system that nobody has open.
pub(super) fn mmp_block(layout: &Layout, options: &Options, checksums: &Checksums) -> Vec<u8> {
    let mut mmp = RawMmp::zeroed();
    mmp.mmp_magic = U32::new(mmp::MAGIC);
    mmp.mmp_seq = U32::new(mmp::SEQUENCE_CLEAN);
    mmp.mmp_time = U64::new(options.time);
    mmp.mmp_check_interval = U16::new(blockyard_disk::num::low16(mmp_interval(options)));
    checksums.seal_mmp(&mut mmp);
    let mut block = vec![0; usize_from_u64(layout.params.block_size())];
    block[..RawMmp::SIZE].copy_from_slice(mmp.as_bytes());
    block
}
