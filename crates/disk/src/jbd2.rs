//! The blocks of a journal (jbd2). The journal's metadata blocks are its superblock and its
//! descriptor, revoke and commit blocks. They are big-endian and begin with the same magic number.
//! The records of the fast-commit area have a form of their own ([`fast_commit`]).
//!
//! One committed transaction is `[revoke]* ([descriptor] [logged block]*)* [commit]`. Its blocks
//! are consecutive in a ring of log blocks, and its metadata blocks carry its transaction id.
//! [`JournalSuperblock`] is the verified superblock. It determines the [`LogFormat`] in which the
//! ring is read and written. Recovery itself is in `blockyard-recovery`.

use core::fmt;

use zerocopy::FromBytes;
use zerocopy::big_endian::U32;

use crate::checksum::crc32c_raw;
use crate::layout::on_disk;
use crate::units::TxnId;

pub mod commit;
pub mod descriptor;
pub mod fast_commit;
mod features;
pub mod revoke;
pub mod superblock;

pub use commit::{CommitBlock, CommitTime, RawCommit};
pub use descriptor::{DescriptorBuilder, Tag, TagFlags, TagLayout, escape, tags, unescape};
pub use features::{JournalCompat, JournalFeatures, JournalIncompat};
pub use revoke::{RevokeBlock, RevokeBuilder};
pub use superblock::{JournalSuperblock, RawJournalSuperblock, Ring};

/// First word of every metadata block of the journal.
pub const MAGIC: u32 = 0xC03B_3998;

/// The fewest blocks that a journal may have (`s_maxlen`).
pub const BLOCKS_MIN: u32 = 1024;

on_disk! {
    /// Head of every metadata block of the journal.
    pub struct RawHeader[12] {
        /// [`MAGIC`].
        0 h_magic: U32,
        /// [`BlockKind`].
        4 h_blocktype: U32,
        /// Transaction id.
        8 h_sequence: U32,
    }
}

/// The kind of a metadata block of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// Tags of the logged blocks that follow it.
    Descriptor,
    /// End of a transaction.
    Commit,
    /// Superblock without feature words.
    SuperblockV1,
    /// Superblock.
    SuperblockV2,
    /// List of blocks whose earlier copies must not be replayed.
    Revoke,
}

impl BlockKind {
    /// The kind of a raw `h_blocktype`; `None` if it is unknown.
    #[must_use]
    pub const fn from_raw(raw: u32) -> Option<Self> {
        Some(match raw {
            1 => Self::Descriptor,
            2 => Self::Commit,
            3 => Self::SuperblockV1,
            4 => Self::SuperblockV2,
            5 => Self::Revoke,
            _ => return None,
        })
    }

    /// The value of `h_blocktype`.
    #[must_use]
    pub const fn raw(self) -> u32 {
        match self {
            Self::Descriptor => 1,
            Self::Commit => 2,
            Self::SuperblockV1 => 3,
            Self::SuperblockV2 => 4,
            Self::Revoke => 5,
        }
    }
}

impl RawHeader {
    /// A header.
    #[must_use]
    pub fn new(kind: BlockKind, tid: TxnId) -> Self {
        Self { h_magic: U32::new(MAGIC), h_blocktype: U32::new(kind.raw()), h_sequence: U32::new(tid.raw()) }
    }

    /// The header of a block: its kind (`None` if unknown) and transaction. `None` without the
    /// magic, or for fewer than 12 bytes.
    #[must_use]
    pub fn read(block: &[u8]) -> Option<(Option<BlockKind>, TxnId)> {
        let (header, _) = Self::ref_from_prefix(block).ok()?;
        (header.h_magic.get() == MAGIC)
            .then(|| (BlockKind::from_raw(header.h_blocktype.get()), TxnId::new(header.h_sequence.get())))
    }
}

/// How the blocks of one journal are laid out and protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogFormat {
    block_size: usize,
    features: JournalFeatures,
    seed: u32,
}

impl LogFormat {
    /// A format; the checksum seed is computed from the journal's UUID.
    #[must_use]
    pub fn new(block_size: usize, features: JournalFeatures, uuid: &[u8; 16]) -> Self {
        Self { block_size, features, seed: crc32c_raw(!0, uuid) }
    }

    /// Bytes of one log block.
    #[must_use]
    pub const fn block_size(&self) -> usize {
        self.block_size
    }

    /// Features of the journal.
    #[must_use]
    pub const fn features(&self) -> JournalFeatures {
        self.features
    }

    /// Whether block numbers have 64 bits in tags and revoke records.
    #[must_use]
    pub const fn is_64bit(&self) -> bool {
        self.features.incompat.contains(JournalIncompat::BIT64)
    }

    /// Whether metadata blocks have a crc32c, and tags a checksum of their logged blocks (checksum
    /// v2 or v3).
    #[must_use]
    pub const fn has_block_checksums(&self) -> bool {
        self.features.incompat.intersects(JournalIncompat::CSUM_V2.union(JournalIncompat::CSUM_V3))
    }

    /// Whether commit blocks carry the old crc32 over descriptors and logged data (checksum v1).
    #[must_use]
    pub const fn has_v1_checksum(&self) -> bool {
        self.features.compat.contains(JournalCompat::CHECKSUM)
    }

    /// How tags are laid out.
    #[must_use]
    pub const fn tag_layout(&self) -> TagLayout {
        TagLayout::of(self.features.incompat)
    }

    /// End of the room for records in a descriptor or revoke block. The checksum, if there is one,
    /// follows.
    #[must_use]
    pub const fn records_end(&self) -> usize {
        if self.has_block_checksums() { self.block_size - 4 } else { self.block_size }
    }

    /// The checksum of a logged block for its tag; `logged` is the block after [`escape`]. A v3 tag
    /// stores all of it, a v2 tag the low half.
    #[must_use]
    pub fn data_checksum(&self, tid: TxnId, logged: &[u8]) -> u32 {
        crc32c_raw(crc32c_raw(self.seed, &tid.raw().to_be_bytes()), logged)
    }

    /// Whether a tag's checksum is that of the logged block as it is in the log, before
    /// [`unescape`]. True without block checksums.
    #[must_use]
    pub fn verify_data(&self, tid: TxnId, tag: &Tag, logged: &[u8]) -> bool {
        match self.tag_layout().checksum_mask() {
            0 => true,
            mask => self.data_checksum(tid, logged) & mask == tag.checksum & mask,
        }
    }

    /// Whether the checksum at the end of a descriptor or revoke block is right. True without block
    /// checksums.
    #[must_use]
    pub fn verify_tail(&self, block: &[u8]) -> bool {
        if !self.has_block_checksums() {
            return true;
        }
        let (body, tail) = block.split_at(self.records_end());
        tail == self.tail_checksum(body).to_be_bytes()
    }

    /// Stores the checksum at the end of a descriptor or revoke block; does nothing without block
    /// checksums.
    pub fn seal_tail(&self, block: &mut [u8]) {
        if self.has_block_checksums() {
            let (body, tail) = block.split_at_mut(self.records_end());
            tail.copy_from_slice(&self.tail_checksum(body).to_be_bytes());
        }
    }

    /// crc32c over the whole block, with its last four bytes as zero.
    fn tail_checksum(&self, body: &[u8]) -> u32 {
        crc32c_raw(crc32c_raw(self.seed, body), &[0; 4])
    }
}

/// The journal's length in blocks that mke2fs chooses by default for a file system of `blocks`
/// blocks. `None` below 2048 blocks: such a file system gets no journal.
#[must_use]
pub fn default_blocks(blocks: u64) -> Option<u64> {
    const KI: u64 = 1 << 10;
    const MI: u64 = 1 << 20;
    const STEPS: [(u64, u64); 8] = [
        (32 * KI, 1024),
        (256 * KI, 4096),
        (512 * KI, 8192),
        (4 * MI, 16384),
        (8 * MI, 32768),
        (16 * MI, 65536),
        (32 * MI, 131_072),
        (u64::MAX, 262_144),
    ];
    if blocks < 2048 {
        return None;
    }
    STEPS.iter().find(|(limit, _)| blocks < *limit).map(|(_, journal)| *journal)
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} byte blocks, {}", self.block_size, self.features)
    }
}
