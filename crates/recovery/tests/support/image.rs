//! A small file system made by hand, and a writer of logs for it: every rule of recovery gets its
//! own log.

#![allow(clippy::unwrap_used, clippy::as_conversions, dead_code, unreachable_pub)]

use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_disk::checksum::crc32_be;
use blockyard_disk::extent::RawExtent;
use blockyard_disk::group_desc::RawGroupDesc;
use blockyard_disk::inode::{InodeFlags, RawInode};
use blockyard_disk::jbd2::{
    CommitTime, DescriptorBuilder, JournalCompat, JournalFeatures, JournalIncompat, LogFormat,
    RawJournalSuperblock, RevokeBuilder, Ring, escape,
};
use blockyard_disk::superblock::{FsState, RawSuperblock};
use blockyard_disk::{BlockCount, BlockNr, Compat, Incompat, LogicalBlock, TxnId};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};

pub const BLOCK: usize = 1024;
/// Blocks of the file system.
pub const BLOCKS: u64 = 8192;
/// First block of the journal.
pub const JOURNAL: u64 = 100;
/// Length of the journal in blocks.
pub const JOURNAL_BLOCKS: u32 = 1024;

pub const NONE: JournalFeatures = JournalFeatures::NONE;

pub fn incompat(bits: JournalIncompat) -> JournalFeatures {
    JournalFeatures { incompat: bits, ..NONE }
}

pub fn v1() -> JournalFeatures {
    JournalFeatures { compat: JournalCompat::CHECKSUM, ..NONE }
}

pub fn v3() -> JournalFeatures {
    incompat(JournalIncompat::CSUM_V3 | JournalIncompat::BIT64 | JournalIncompat::REVOKE)
}

/// An image and the log being written into it.
pub struct Image {
    pub device: MemoryDevice,
    pub journal: RawJournalSuperblock,
    pub format: LogFormat,
    ring: Ring,
    /// The log block to write next.
    pub at: u32,
    pub tid: TxnId,
    /// Commit time of the next transaction, in seconds.
    pub time: u64,
}

/// The superblock of a file system with 8192 blocks of 1 KiB in one group, without checksums.
pub fn superblock() -> RawSuperblock {
    let mut sb = RawSuperblock::zeroed();
    sb.s_magic = U16::new(0xEF53);
    sb.s_inodes_count = U32::new(128);
    sb.set_blocks_count(BlockCount::new(BLOCKS));
    sb.s_first_data_block = U32::new(1);
    sb.s_blocks_per_group = U32::new(8192);
    sb.s_clusters_per_group = U32::new(8192);
    sb.s_inodes_per_group = U32::new(128);
    sb.s_rev_level = U32::new(1);
    sb.s_first_ino = U32::new(11);
    sb.s_inode_size = U16::new(128);
    sb.s_state = U16::new(1);
    sb.set_compat(Compat::HAS_JOURNAL);
    sb.set_incompat(Incompat::EXTENTS | Incompat::FILETYPE | Incompat::RECOVER);
    sb.s_journal_inum = U32::new(8);
    sb
}

impl Image {
    /// An image whose log begins at `start` with transaction `tid`.
    pub fn new(features: JournalFeatures, start: u32, tid: u32) -> Self {
        let device = MemoryDevice::new(BLOCKS * BLOCK as u64);
        let mut journal = RawJournalSuperblock::new_empty(BLOCK, JOURNAL_BLOCKS, [0x5E; 16]);
        journal.set_features(features);
        journal.s_start = start.into();
        journal.s_sequence = tid.into();
        let format = LogFormat::new(BLOCK, features, &journal.s_uuid);
        let image = Self {
            device,
            journal,
            format,
            ring: Ring::new(1, JOURNAL_BLOCKS),
            at: start,
            tid: TxnId::new(tid),
            time: 1000,
        };
        image.write_superblock(&superblock());
        image.write_journal_inode();
        image.write_journal_superblock();
        image
    }

    pub fn write_superblock(&self, sb: &RawSuperblock) {
        self.device.write_at(1024, sb.as_bytes()).unwrap();
    }

    pub fn write_journal_superblock(&self) {
        let mut raw = self.journal;
        raw.seal();
        self.device.write_at(JOURNAL * BLOCK as u64, raw.as_bytes()).unwrap();
    }

    fn write_journal_inode(&self) {
        let mut descriptor = RawGroupDesc::zeroed();
        descriptor.set_inode_table(BlockNr::new(5));
        self.device.write_at(2 * BLOCK as u64, &descriptor.as_bytes()[..32]).unwrap();
        let mut inode = RawInode::zeroed();
        inode.i_mode = U16::new(0o100_600);
        inode.i_links_count = U16::new(1);
        inode.set_flags(InodeFlags::EXTENTS);
        inode.set_size(u64::from(JOURNAL_BLOCKS) * BLOCK as u64);
        let extent =
            RawExtent::new(LogicalBlock::new(0), JOURNAL_BLOCKS as u16, BlockNr::new(JOURNAL), false);
        inode.i_block[..8].copy_from_slice(&[0x0A, 0xF3, 1, 0, 4, 0, 0, 0]);
        inode.i_block[12..24].copy_from_slice(extent.as_bytes());
        self.device.write_at(5 * BLOCK as u64 + 7 * 128, inode.as_bytes()).unwrap();
    }

    /// Writes the next log block and returns its number.
    pub fn put(&mut self, block: &[u8]) -> u32 {
        let at = self.at;
        self.device.write_at((JOURNAL + u64::from(at)) * BLOCK as u64, block).unwrap();
        self.at = self.ring.advance(at, 1);
        at
    }

    /// Writes a revoke block of the current transaction. Returns its log block.
    pub fn revoke(&mut self, blocks: &[u64]) -> u32 {
        let mut builder = RevokeBuilder::new(self.format, self.tid);
        for &block in blocks {
            builder.push(BlockNr::new(block));
        }
        self.put(&builder.finish())
    }

    /// Writes a descriptor block, and a copy of each of `blocks` (block numbers and content).
    /// Returns the descriptor's log block, and `crc` continued over all that was written. With
    /// checksum v1, the commit block holds this crc.
    pub fn blocks(&mut self, blocks: &[(u64, Vec<u8>)], crc: u32) -> (u32, u32) {
        let mut builder = DescriptorBuilder::new(self.format, self.tid);
        let mut logged = Vec::new();
        for (target, content) in blocks {
            let mut copy = content.clone();
            let escaped = escape(&mut copy);
            builder.push(BlockNr::new(*target), escaped, self.format.data_checksum(self.tid, &copy));
            logged.push(copy);
        }
        let descriptor = builder.finish();
        let mut crc = crc32_be(crc, &descriptor);
        let at = self.put(&descriptor);
        for copy in logged {
            crc = crc32_be(crc, &copy);
            self.put(&copy);
        }
        (at, crc)
    }

    /// Writes the commit block, and begins the next transaction. Returns the commit's log block.
    pub fn commit(&mut self, crc: u32) -> u32 {
        let time = CommitTime { seconds: self.time, nanoseconds: 0 };
        let block = self.format.commit_block(self.tid, time, crc);
        self.tid = self.tid.next();
        self.time += 1;
        self.put(&block)
    }

    /// Writes a whole transaction that fills blocks with bytes. Returns the log blocks of its
    /// descriptor and its commit.
    pub fn transaction(&mut self, blocks: &[(u64, u8)]) -> (u32, u32) {
        let blocks: Vec<_> = blocks.iter().map(|&(target, byte)| (target, vec![byte; BLOCK])).collect();
        let (descriptor, crc) = self.blocks(&blocks, !0);
        (descriptor, self.commit(crc))
    }

    /// Flips a bit in a log block.
    pub fn damage(&self, log_block: u32, byte: usize) {
        let place = (JOURNAL + u64::from(log_block)) * BLOCK as u64 + byte as u64;
        let mut buf = [0];
        self.device.read_at(place, &mut buf).unwrap();
        self.device.write_at(place, &[buf[0] ^ 0x40]).unwrap();
    }
}

/// The first byte of a block.
pub fn byte(device: &dyn BlockDevice, block: u64) -> u8 {
    let mut buf = [0];
    device.read_at(block * BLOCK as u64, &mut buf).unwrap();
    buf[0]
}

pub fn content(device: &dyn BlockDevice) -> Vec<u8> {
    let mut all = vec![0; device.size() as usize];
    device.read_at(0, &mut all).unwrap();
    all
}

pub fn read_superblock(device: &dyn BlockDevice) -> RawSuperblock {
    let mut sb = RawSuperblock::zeroed();
    device.read_at(1024, sb.as_mut_bytes()).unwrap();
    sb
}

pub fn read_journal_superblock(device: &dyn BlockDevice) -> RawJournalSuperblock {
    let mut sb = RawJournalSuperblock::zeroed();
    device.read_at(JOURNAL * BLOCK as u64, sb.as_mut_bytes()).unwrap();
    sb
}

pub fn has_error(sb: &RawSuperblock) -> bool {
    sb.state().contains(FsState::ERROR)
}
