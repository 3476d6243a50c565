//! The journal superblock: the first 1024 bytes of log block 0.

use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

use super::{BLOCKS_MIN, BlockKind, JournalCompat, JournalFeatures, JournalIncompat, LogFormat, RawHeader};
use crate::checksum::crc32c_raw;
use crate::error::{Corruption, CorruptionKind, Error};
use crate::layout::on_disk;
use crate::num::{u32_from_usize, u64_from_u32};
use crate::units::TxnId;

on_disk! {
    /// The superblock as it stands on disk; nothing in it is verified.
    pub struct RawJournalSuperblock[1024] {
        /// Magic, and a block type that tells version 1 from version 2. Version 1 has no feature
        /// words.
        0x000 s_header: RawHeader,
        /// Block size in bytes.
        0x00C s_blocksize: U32,
        /// Blocks of the journal, this one included.
        0x010 s_maxlen: U32,
        /// First block of the ring.
        0x014 s_first: U32,
        /// Transaction expected at `s_start`. In an empty log, the next transaction to write, or
        /// its predecessor.
        0x018 s_sequence: U32,
        /// Log block of the oldest transaction; 0 when the log is empty.
        0x01C s_start: U32,
        /// Error code with which a user of the journal aborted; 0 for none.
        0x020 s_errno: U32,
        /// [`JournalCompat`] bits.
        0x024 s_feature_compat: U32,
        /// [`JournalIncompat`] bits.
        0x028 s_feature_incompat: U32,
        /// No bit is defined.
        0x02C s_feature_ro_compat: U32,
        /// UUID of the journal. The checksum seed is computed from it.
        0x030 s_uuid: [u8; 16],
        /// File systems that share the journal.
        0x040 s_nr_users: U32,
        /// Unused.
        0x044 s_dynsuper: U32,
        /// Unused.
        0x048 s_max_transaction: U32,
        /// Unused.
        0x04C s_max_trans_data: U32,
        /// 4 (crc32c) with checksums v2 and v3.
        0x050 s_checksum_type: u8,
        /// Padding.
        0x051 s_padding2: [u8; 3],
        /// Blocks of the fast-commit area; 0 means 256.
        0x054 s_num_fc_blks: U32,
        /// Log block where writing resumes if the log is empty.
        0x058 s_head: U32,
        /// Padding.
        0x05C s_padding: [U32; 40],
        /// crc32c of these 1024 bytes, not seeded.
        0x0FC s_checksum: U32,
        /// UUIDs of the file systems that share the journal.
        0x100 s_users: [[u8; 16]; 48],
    }
}

/// `s_checksum_type` of crc32c.
pub const CHECKSUM_TYPE_CRC32C: u8 = 4;

/// Blocks of the fast-commit area when `s_num_fc_blks` is 0.
pub const FAST_COMMIT_BLOCKS_DEFAULT: u32 = 256;

impl RawJournalSuperblock {
    /// Blocks that the fast-commit area has if the feature is set; not checked against the length
    /// of the journal.
    #[must_use]
    pub const fn fast_commit_area(&self) -> u32 {
        match self.s_num_fc_blks.get() {
            0 => FAST_COMMIT_BLOCKS_DEFAULT,
            blocks => blocks,
        }
    }

    /// The superblock of a new, empty journal of version 2 without features (see
    /// [`set_features`](Self::set_features)).
    #[must_use]
    pub fn new_empty(block_size: usize, blocks: u32, uuid: [u8; 16]) -> Self {
        let mut sb = Self::zeroed();
        sb.s_header = RawHeader::new(BlockKind::SuperblockV2, TxnId::ZERO);
        sb.s_blocksize = U32::new(u32_from_usize(block_size));
        sb.s_maxlen = U32::new(blocks);
        sb.s_first = U32::new(1);
        sb.s_sequence = U32::new(1);
        sb.s_nr_users = U32::new(1);
        sb.s_uuid = uuid;
        sb
    }

    /// Feature words; all zero in version 1.
    #[must_use]
    pub fn features(&self) -> JournalFeatures {
        if BlockKind::from_raw(self.s_header.h_blocktype.get()) == Some(BlockKind::SuperblockV1) {
            return JournalFeatures::NONE;
        }
        JournalFeatures {
            compat: JournalCompat::from_bits_retain(self.s_feature_compat.get()),
            incompat: JournalIncompat::from_bits_retain(self.s_feature_incompat.get()),
            ro_compat: self.s_feature_ro_compat.get(),
        }
    }

    /// Sets the feature words and the checksum type that they require. Call [`seal`](Self::seal)
    /// afterwards.
    pub fn set_features(&mut self, features: JournalFeatures) {
        self.s_feature_compat = U32::new(features.compat.bits());
        self.s_feature_incompat = U32::new(features.incompat.bits());
        self.s_feature_ro_compat = U32::new(features.ro_compat);
        self.s_checksum_type = if has_checksum(features) { CHECKSUM_TYPE_CRC32C } else { 0 };
    }

    /// Stores the checksum if the features require one. Call it after every change.
    pub fn seal(&mut self) {
        if has_checksum(self.features()) {
            self.s_checksum = U32::new(self.checksum());
        }
    }

    /// crc32c over all 1024 bytes, with the checksum field as zero.
    fn checksum(&self) -> u32 {
        let mut copy = *self;
        copy.s_checksum = U32::ZERO;
        crc32c_raw(!0, copy.as_bytes())
    }
}

fn has_checksum(features: JournalFeatures) -> bool {
    features.incompat.intersects(JournalIncompat::CSUM_V2 | JournalIncompat::CSUM_V3)
}

/// The ring of log blocks: `first <= block < end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    first: u32,
    end: u32,
}

impl Ring {
    /// A ring of the blocks `first..end`.
    ///
    /// # Panics
    /// When it is empty.
    #[must_use]
    pub const fn new(first: u32, end: u32) -> Self {
        assert!(first < end, "an empty ring");
        Self { first, end }
    }

    /// First block.
    #[must_use]
    pub const fn first(&self) -> u32 {
        self.first
    }

    /// One past the last block.
    #[must_use]
    pub const fn end(&self) -> u32 {
        self.end
    }

    /// Number of blocks.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.end - self.first
    }

    /// Always false: a ring has at least one block.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Whether a log block belongs to the ring.
    #[must_use]
    pub const fn contains(&self, block: u32) -> bool {
        block >= self.first && block < self.end
    }

    /// The block `count` positions further, wrapping from the last to the first as often as needed.
    #[must_use]
    pub fn advance(&self, block: u32, count: u32) -> u32 {
        debug_assert!(self.contains(block), "block {block} outside the ring");
        let place = (u64_from_u32(block - self.first) + u64_from_u32(count)) % u64_from_u32(self.len());
        self.first + crate::num::u32_from_u64(place)
    }
}

/// A journal superblock whose fields passed every check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalSuperblock {
    raw: RawJournalSuperblock,
    ring: Ring,
    format: LogFormat,
}

impl JournalSuperblock {
    /// Verifies log block 0 of a journal in a file system with this block size. `blocks` is the
    /// length of the journal's file or device in blocks.
    ///
    /// # Errors
    /// [`Error::UnsupportedFeatures`], or a corruption of a `Journal*` kind.
    pub fn parse(block: &[u8], block_size: usize, blocks: u32) -> Result<Self, Error> {
        let raw = RawJournalSuperblock::read_from_prefix(block)
            .map_err(|_| Corruption::new(CorruptionKind::JournalBlockSize))?
            .0;
        let kind = RawHeader::read(block).and_then(|(kind, _)| kind);
        check(
            matches!(kind, Some(BlockKind::SuperblockV1 | BlockKind::SuperblockV2)),
            CorruptionKind::JournalMagic,
            0x0,
        )?;
        let size = crate::num::usize_from_u32(raw.s_blocksize.get());
        check(size == block_size && size >= 1024, CorruptionKind::JournalBlockSize, 0xC)?;
        let features = raw.features();
        features.verify()?;
        if has_checksum(features) {
            check(raw.s_checksum_type == CHECKSUM_TYPE_CRC32C, CorruptionKind::JournalChecksumType, 0x50)?;
            check(raw.s_checksum.get() == raw.checksum(), CorruptionKind::JournalChecksum, 0xFC)?;
        }
        let maxlen = raw.s_maxlen.get();
        check((BLOCKS_MIN..=blocks).contains(&maxlen), CorruptionKind::JournalLength, 0x10)?;
        let ring = ring_of(&raw, features)?;
        let start = raw.s_start.get();
        check(start == 0 || ring.contains(start), CorruptionKind::JournalStart, 0x1C)?;
        Ok(Self { raw, ring, format: LogFormat::new(block_size, features, &raw.s_uuid) })
    }

    /// The bytes this was verified from.
    #[must_use]
    pub const fn raw(&self) -> &RawJournalSuperblock {
        &self.raw
    }

    /// The layout of the other blocks.
    #[must_use]
    pub const fn format(&self) -> &LogFormat {
        &self.format
    }

    /// The ring of log blocks.
    #[must_use]
    pub const fn ring(&self) -> Ring {
        self.ring
    }

    /// Blocks of the journal, all of which its file must map.
    #[must_use]
    pub const fn blocks(&self) -> u32 {
        self.raw.s_maxlen.get()
    }

    /// Log block of the oldest transaction; `None` when the log is empty.
    #[must_use]
    pub const fn start(&self) -> Option<u32> {
        match self.raw.s_start.get() {
            0 => None,
            start => Some(start),
        }
    }

    /// The transaction expected at [`start`](Self::start).
    #[must_use]
    pub const fn sequence(&self) -> TxnId {
        TxnId::new(self.raw.s_sequence.get())
    }

    /// Error code that a user of the journal left; 0 for none.
    #[must_use]
    pub const fn errno(&self) -> u32 {
        self.raw.s_errno.get()
    }

    /// Blocks of the fast-commit area: from [`Ring::end`] to the end of the journal; `None` without
    /// the feature.
    #[must_use]
    pub const fn fast_commit_blocks(&self) -> Option<u32> {
        if self.format.features().incompat.contains(JournalIncompat::FAST_COMMIT) {
            Some(self.blocks() - self.ring.end)
        } else {
            None
        }
    }
}

fn check(holds: bool, kind: CorruptionKind, offset: u32) -> Result<(), Corruption> {
    if holds { Ok(()) } else { Err(Corruption::at_offset(kind, offset)) }
}

/// The ring of log blocks: from `s_first` to the fast-commit area if there is one, otherwise to the
/// end of the journal.
fn ring_of(raw: &RawJournalSuperblock, features: JournalFeatures) -> Result<Ring, Corruption> {
    let maxlen = raw.s_maxlen.get();
    let first = raw.s_first.get();
    let end = if features.incompat.contains(JournalIncompat::FAST_COMMIT) {
        let area = raw.fast_commit_area();
        check(area < maxlen, CorruptionKind::JournalFastCommitSize, 0x54)?;
        maxlen - area
    } else {
        maxlen
    };
    check(first > 0 && first < maxlen, CorruptionKind::JournalFirst, 0x14)?;
    check(first < end, CorruptionKind::JournalFastCommitSize, 0x54)?;
    Ok(Ring { first, end })
}

#[cfg(test)]
mod tests {
    use super::*;

    const V3: JournalFeatures = JournalFeatures {
        incompat: JournalIncompat::CSUM_V3.union(JournalIncompat::BIT64),
        ..JournalFeatures::NONE
    };

    fn block(change: impl FnOnce(&mut RawJournalSuperblock)) -> Vec<u8> {
        let mut sb = RawJournalSuperblock::new_empty(4096, 2048, [7; 16]);
        sb.set_features(V3);
        change(&mut sb);
        sb.seal();
        let mut block = vec![0; 4096];
        block[..1024].copy_from_slice(sb.as_bytes());
        block
    }

    fn kind_of(block: &[u8]) -> Option<(CorruptionKind, Option<u32>)> {
        match JournalSuperblock::parse(block, 4096, 2048) {
            Err(Error::Corrupt(found)) => Some((found.kind, found.at.offset)),
            _ => None,
        }
    }

    #[test]
    fn a_new_journal_is_empty_and_whole() {
        let sb = JournalSuperblock::parse(&block(|_| ()), 4096, 2048).unwrap();
        assert_eq!((sb.start(), sb.sequence(), sb.ring()), (None, TxnId::new(1), Ring::new(1, 2048)));
        assert!(sb.format().is_64bit() && sb.format().has_block_checksums());
        assert_eq!(sb.fast_commit_blocks(), None);
    }

    #[test]
    fn every_check_has_its_kind_and_place() {
        type Change = fn(&mut RawJournalSuperblock);
        let cases: [(Change, CorruptionKind, u32); 10] = [
            (|sb| sb.s_header.h_magic = U32::new(1), CorruptionKind::JournalMagic, 0),
            (|sb| sb.s_header.h_blocktype = U32::new(2), CorruptionKind::JournalMagic, 0),
            (|sb| sb.s_blocksize = U32::new(1024), CorruptionKind::JournalBlockSize, 0xC),
            (|sb| sb.s_maxlen = U32::new(2049), CorruptionKind::JournalLength, 0x10),
            (|sb| sb.s_maxlen = U32::new(1023), CorruptionKind::JournalLength, 0x10),
            (|sb| sb.s_first = U32::ZERO, CorruptionKind::JournalFirst, 0x14),
            (|sb| sb.s_first = U32::new(2048), CorruptionKind::JournalFirst, 0x14),
            (|sb| sb.s_start = U32::new(2048), CorruptionKind::JournalStart, 0x1C),
            (|sb| sb.s_checksum_type = 1, CorruptionKind::JournalChecksumType, 0x50),
            (
                |sb| {
                    sb.s_feature_incompat = U32::new(0x32);
                    sb.s_num_fc_blks = U32::new(2048);
                },
                CorruptionKind::JournalFastCommitSize,
                0x54,
            ),
        ];
        for (change, kind, offset) in cases {
            assert_eq!(kind_of(&block(change)), Some((kind, Some(offset))));
        }
        let mut torn = block(|_| ());
        torn[0x3FF] ^= 1;
        assert_eq!(kind_of(&torn), Some((CorruptionKind::JournalChecksum, Some(0xFC))));
    }

    #[test]
    fn the_fast_commit_area_shortens_the_ring() {
        let sb = |area| {
            let bytes = block(|sb| {
                sb.s_feature_incompat = U32::new(0x32);
                sb.s_num_fc_blks = U32::new(area);
            });
            let sb = JournalSuperblock::parse(&bytes, 4096, 2048).unwrap();
            (sb.ring().end(), sb.fast_commit_blocks())
        };
        assert_eq!(sb(0), (2048 - 256, Some(256)));
        assert_eq!(sb(48), (2000, Some(48)));
    }

    #[test]
    fn version_1_has_no_features() {
        let bytes = block(|sb| sb.s_header.h_blocktype = U32::new(3));
        let sb = JournalSuperblock::parse(&bytes, 4096, 2048).unwrap();
        assert_eq!(sb.format().features(), JournalFeatures::NONE);
    }

    #[test]
    fn the_ring_wraps() {
        let ring = Ring::new(1, 11);
        assert_eq!(ring.advance(10, 1), 1);
        assert_eq!(ring.advance(3, 25), 8);
        assert_eq!(ring.advance(1, u32::MAX), 1 + u32::MAX % 10);
    }
}
