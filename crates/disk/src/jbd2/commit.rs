//! Commit blocks: the end of a transaction, its time and its checksum.

use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::{BlockKind, LogFormat, RawHeader};
use crate::checksum::crc32c_raw;
use crate::layout::on_disk;
use crate::units::TxnId;

on_disk! {
    /// The meaningful part of a commit block; the rest of the block is zero.
    pub struct RawCommit[60] {
        /// Header.
        0x00 header: RawHeader,
        /// v1: 1 (crc32); otherwise 0.
        0x0C h_chksum_type: u8,
        /// v1: 4; otherwise 0.
        0x0D h_chksum_size: u8,
        /// Padding.
        0x0E h_padding: [u8; 2],
        /// v1: crc32 of descriptors and logged data; v2 and v3: crc32c of this block.
        0x10 h_chksum: [U32; 8],
        /// Time of the commit, Unix seconds.
        0x30 h_commit_sec: U64,
        /// Time of the commit, nanoseconds.
        0x38 h_commit_nsec: U32,
    }
}

/// Place of `h_chksum[0]`.
const CHECKSUM: core::ops::Range<usize> = 0x10..0x14;

/// How many bytes at the start of a commit block must be intact, even if the block was only partly
/// written: the structure and its padding.
const HALF_WRITTEN: usize = 64;

/// `h_chksum_type` of checksum v1.
const CRC32_TYPE: u8 = 1;

/// `h_chksum_size` of checksum v1.
const CRC32_SIZE: u8 = 4;

/// Time of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CommitTime {
    /// Unix seconds.
    pub seconds: u64,
    /// Nanoseconds.
    pub nanoseconds: u32,
}

/// A view of a commit block.
#[derive(Clone, Copy, Debug)]
pub struct CommitBlock<'a> {
    block: &'a [u8],
    raw: &'a RawCommit,
}

impl<'a> CommitBlock<'a> {
    /// Views a block. The caller checks its header.
    ///
    /// # Panics
    /// When the block is shorter than 60 bytes; log blocks have at least 1024.
    #[must_use]
    pub fn new(block: &'a [u8]) -> Self {
        let (raw, _) = RawCommit::ref_from_prefix(block).expect("a log block has at least 1024 bytes");
        Self { block, raw }
    }

    /// The fields.
    #[must_use]
    pub const fn raw(&self) -> &RawCommit {
        self.raw
    }

    /// Time of the commit.
    #[must_use]
    pub const fn time(&self) -> CommitTime {
        CommitTime { seconds: self.raw.h_commit_sec.get(), nanoseconds: self.raw.h_commit_nsec.get() }
    }

    /// Whether the crc32c of v2 or v3 is right; only for a journal with block checksums. A block
    /// also passes if the crc32c matches with everything after the first 64 bytes taken as zero.
    /// All fields lie in the first 64 bytes, so a torn write that stored them has lost nothing.
    #[must_use]
    pub fn verify(&self, format: &LogFormat) -> bool {
        let stored = self.raw.h_chksum[0].get();
        if format.commit_checksum(self.block) == stored {
            return true;
        }
        let mut half = vec![0; self.block.len()];
        let kept = HALF_WRITTEN.min(half.len());
        half[..kept].copy_from_slice(&self.block[..kept]);
        format.commit_checksum(&half) == stored
    }

    /// Whether the crc32 of v1 is the one `computed` over the transaction. A block without a
    /// checksum passes.
    #[must_use]
    pub fn verify_v1(&self, computed: u32) -> bool {
        let fields = (self.raw.h_chksum_type, self.raw.h_chksum_size, self.raw.h_chksum[0].get());
        fields == (CRC32_TYPE, CRC32_SIZE, computed) || fields == (0, 0, 0)
    }
}

impl LogFormat {
    /// crc32c of a commit block with its checksum as zero.
    fn commit_checksum(&self, block: &[u8]) -> u32 {
        let state = crc32c_raw(self.seed, &block[..CHECKSUM.start]);
        crc32c_raw(crc32c_raw(state, &[0; 4]), &block[CHECKSUM.end..])
    }

    /// A commit block; `v1_checksum` is the crc32 over descriptors and logged data, and is stored
    /// only with checksum v1.
    #[must_use]
    pub fn commit_block(&self, tid: TxnId, time: CommitTime, v1_checksum: u32) -> Vec<u8> {
        let mut raw = RawCommit::zeroed();
        raw.header = RawHeader::new(BlockKind::Commit, tid);
        raw.h_commit_sec = U64::new(time.seconds);
        raw.h_commit_nsec = U32::new(time.nanoseconds);
        if self.has_v1_checksum() {
            raw.h_chksum_type = CRC32_TYPE;
            raw.h_chksum_size = CRC32_SIZE;
            raw.h_chksum[0] = U32::new(v1_checksum);
        }
        let mut block = vec![0; self.block_size];
        block[..RawCommit::SIZE].copy_from_slice(raw.as_bytes());
        if self.has_block_checksums() {
            let sum = self.commit_checksum(&block);
            block[CHECKSUM].copy_from_slice(&sum.to_be_bytes());
        }
        block
    }
}

#[cfg(test)]
mod tests {
    use super::super::{JournalCompat, JournalFeatures, JournalIncompat};
    use super::*;

    const TIME: CommitTime = CommitTime { seconds: 1 << 33, nanoseconds: 999 };

    #[test]
    fn half_written_commit_blocks_are_good() {
        let features = JournalFeatures { incompat: JournalIncompat::CSUM_V3, ..JournalFeatures::NONE };
        let format = LogFormat::new(4096, features, &[1; 16]);
        let mut block = format.commit_block(TxnId::new(9), TIME, 0);
        assert!(CommitBlock::new(&block).verify(&format));
        assert_eq!(CommitBlock::new(&block).time(), TIME);
        block[512..].fill(0xA5);
        assert!(CommitBlock::new(&block).verify(&format), "only the first sector arrived");
        block[63] = 1;
        assert!(!CommitBlock::new(&block).verify(&format), "damage in the part that counts");
    }

    #[test]
    fn v1_takes_its_crc_or_none_at_all() {
        let features = JournalFeatures { compat: JournalCompat::CHECKSUM, ..JournalFeatures::NONE };
        let format = LogFormat::new(1024, features, &[1; 16]);
        let block = format.commit_block(TxnId::new(9), TIME, 0x1234);
        assert!(CommitBlock::new(&block).verify_v1(0x1234));
        assert!(!CommitBlock::new(&block).verify_v1(0x1235));
        let without =
            LogFormat::new(1024, JournalFeatures::NONE, &[1; 16]).commit_block(TxnId::new(9), TIME, 0);
        assert!(CommitBlock::new(&without).verify_v1(0x1235));
    }
}
