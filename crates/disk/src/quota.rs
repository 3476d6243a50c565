//! A quota file: what each user, group or project uses and may use, as Linux keeps it inside ext4
//! (format `vfsv1`).
//!
//! The file has its own blocks of 1 KiB, whatever the file system's block size. Block 0 is the
//! header. Block 1 is the root of a tree of four levels with 256 references per block: one level
//! for each byte of a number (the id of a user, group or project), the most significant byte first.
//! The last level refers to blocks of records. A record of zeroes is free. A reference of 0 refers
//! to no block.
//!
//! Invariants of what [`QuotaFile::encode`] writes:
//!
//! - Each number has at most one record.
//! - The path of a number with a record ends in the block that holds the record.
//! - `dqi_free_entry` names the last block of records if that block has room, and is 0 otherwise.
//! - No block is free.

use std::collections::{BTreeMap, BTreeSet};

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::layout::on_disk;
use crate::num::{u32_from_usize, u64_from_usize, usize_from_u32};

/// Bytes of a block of a quota file.
pub const BLOCK: usize = 1024;
/// Block of the tree's root.
const ROOT: u32 = 1;
/// Levels of the tree: one for each byte of a number.
const LEVELS: usize = 4;
/// Records in a block.
const RECORDS: usize = (BLOCK - RawRecordsHead::SIZE) / RawRecord::SIZE;
/// `dqh_version` with 64-bit records.
const VERSION: u32 = 1;
/// Grace period of a new file: a week, in seconds.
const GRACE: u32 = 7 * 24 * 60 * 60;

on_disk! {
    /// The first 32 bytes of the file.
    pub struct RawQuotaHeader[32] {
        /// Whether the numbers are ids of users, groups or projects: [`QuotaType::magic`].
        0x00 dqh_magic: U32,
        /// 1: records have 64-bit fields.
        0x04 dqh_version: U32,
        /// Seconds for which space beyond the soft limit is tolerated.
        0x08 dqi_bgrace: U32,
        /// As `dqi_bgrace`, for inodes.
        0x0C dqi_igrace: U32,
        /// Flags.
        0x10 dqi_flags: U32,
        /// Blocks of the file.
        0x14 dqi_blocks: U32,
        /// First block of the chain of free blocks; 0 for none.
        0x18 dqi_free_blk: U32,
        /// First block of the chain of blocks with room for a record; 0 for none.
        0x1C dqi_free_entry: U32,
    }
}

on_disk! {
    /// The head of a block of records.
    pub struct RawRecordsHead[16] {
        /// The next block in the chain of blocks with room for a record; 0 for none.
        0x00 dqdh_next_free: U32,
        /// The previous block in that chain; 0 for none.
        0x04 dqdh_prev_free: U32,
        /// Records in use.
        0x08 dqdh_entries: U16,
        /// Unused.
        0x0A dqdh_pad1: U16,
        /// Unused.
        0x0C dqdh_pad2: U32,
    }
}

on_disk! {
    /// What one user, group or project uses and may use.
    pub struct RawRecord[72] {
        /// The number of the user, group or project.
        0x00 dqb_id: U32,
        /// Unused.
        0x04 dqb_pad: U32,
        /// Limit of inodes; 0 for none.
        0x08 dqb_ihardlimit: U64,
        /// Limit of inodes that may be exceeded for a time; 0 for none.
        0x10 dqb_isoftlimit: U64,
        /// Inodes in use.
        0x18 dqb_curinodes: U64,
        /// Limit of space in units of 1 KiB; 0 for none.
        0x20 dqb_bhardlimit: U64,
        /// Limit of space, in KiB, that may be exceeded for a time; 0 for none.
        0x28 dqb_bsoftlimit: U64,
        /// Bytes in use.
        0x30 dqb_curspace: U64,
        /// When the grace period for space ends, Unix seconds; 0 if it does not run.
        0x38 dqb_btime: U64,
        /// As `dqb_btime`, for inodes; 1 in a record that would otherwise be all zeroes.
        0x40 dqb_itime: U64,
    }
}

/// What the numbers of a quota file identify. The variants have the order that the superblock and
/// e2fsck use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QuotaType {
    /// Users.
    User,
    /// Groups.
    Group,
    /// Projects.
    Project,
}

impl QuotaType {
    /// All types, in their order.
    pub const ALL: [Self; 3] = [Self::User, Self::Group, Self::Project];

    /// `dqh_magic`.
    #[must_use]
    pub const fn magic(self) -> u32 {
        match self {
            Self::User => 0xD9C0_1F11,
            Self::Group => 0xD9C0_1927,
            Self::Project => 0xD9C0_3F14,
        }
    }

    /// The type in one word.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Group => "group",
            Self::Project => "project",
        }
    }
}

/// Space and inodes that one user, group or project uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Space in bytes.
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
}

/// What is wrong with a quota file. Its records may be incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaDefect {
    /// `dqh_version` is not 1.
    #[error("version {0}")]
    Version(u32),
    /// `dqi_blocks` is more than the file has, or the first block of a chain is not below
    /// `dqi_blocks`.
    #[error("a count or chain of blocks leaves the file")]
    Blocks,
    /// A reference points outside the file.
    #[error("a reference to block {0} leaves the file")]
    Reference(u32),
    /// A block cannot be read.
    #[error("block {0} cannot be read")]
    Unreadable(u32),
}

/// The content of a quota file.
#[derive(Clone, Debug)]
pub struct QuotaFile {
    /// Its header; zeroes if it could not be read.
    pub header: RawQuotaHeader,
    /// Records in tree order, as far as they could be read. Numbers may repeat in a damaged file.
    pub records: Vec<RawRecord>,
    /// The first defect; `None` if there is none.
    pub defect: Option<QuotaDefect>,
}

/// Reads a block of a quota file by its number in the file; `None` if that fails.
pub type ReadBlock<'a> = &'a mut dyn FnMut(u32) -> Option<[u8; BLOCK]>;

impl QuotaFile {
    /// Reads a file of `size` bytes. Reads each block at most once per level of the tree, so the
    /// run time is bounded even if references form a cycle.
    #[must_use]
    pub fn read(size: u64, read: ReadBlock<'_>) -> Self {
        let mut file = Self { header: RawQuotaHeader::new_zeroed(), records: Vec::new(), defect: None };
        let Some(head) = read(0) else {
            file.defect = Some(QuotaDefect::Unreadable(0));
            return file;
        };
        file.header = RawQuotaHeader::read_from_prefix(&head).expect("a block is longer than a header").0;
        let (version, blocks) = (file.header.dqh_version.get(), file.header.dqi_blocks.get());
        let chains = [file.header.dqi_free_blk.get(), file.header.dqi_free_entry.get()];
        if version != VERSION {
            file.defect = Some(QuotaDefect::Version(version));
        } else if u64::from(blocks) > size.div_ceil(u64_from_usize(BLOCK))
            || chains.iter().any(|&first| first >= blocks)
        {
            file.defect = Some(QuotaDefect::Blocks);
        }
        // References are checked against the size of the file: `dqi_blocks` may be wrong.
        let blocks = u32::try_from(size.div_ceil(u64_from_usize(BLOCK))).unwrap_or(u32::MAX);
        file.read_tree(blocks, read);
        file
    }

    fn read_tree(&mut self, blocks: u32, read: ReadBlock<'_>) {
        let mut seen: BTreeSet<(usize, u32)> = BTreeSet::new();
        let mut pending = vec![(0, ROOT)];
        while let Some((level, number)) = pending.pop() {
            if !seen.insert((level, number)) {
                continue;
            }
            let Some(block) = read(number) else {
                self.defect = self.defect.or(Some(QuotaDefect::Unreadable(number)));
                continue;
            };
            if level == LEVELS {
                self.records.extend(records_of(&block));
                continue;
            }
            let first = pending.len();
            for reference in block.chunks_exact(4) {
                let below = u32::from_le_bytes([reference[0], reference[1], reference[2], reference[3]]);
                if below >= blocks {
                    self.defect = self.defect.or(Some(QuotaDefect::Reference(below)));
                } else if below != 0 {
                    pending.push((level + 1, below));
                }
            }
            // `pop` takes from the end, so after the reversal the lowest numbers come first.
            pending[first..].reverse();
        }
    }

    /// The records of a repaired file: the counted usage, with the limits of this file. A number
    /// that is not in `counted` and has no limits gets no record.
    #[must_use]
    pub fn corrected(&self, counted: &BTreeMap<u32, Usage>) -> Vec<RawRecord> {
        let mut records: BTreeMap<u32, RawRecord> = BTreeMap::new();
        for record in self.records.iter().filter(|record| record.has_limits()) {
            records.entry(record.dqb_id.get()).or_insert(*record);
        }
        for record in records.values_mut() {
            record.set_usage(Usage::default());
        }
        for (&number, usage) in counted {
            let record = records.entry(number).or_insert_with(|| RawRecord::new(number));
            record.set_usage(*usage);
        }
        records.into_values().collect()
    }

    /// The bytes of a file with these records, which must be in ascending order of their numbers.
    /// The new file keeps the grace periods of this one, or gets the default ones if `dqh_version`
    /// is wrong.
    ///
    /// # Panics
    /// When the records are out of order, or two have the same number.
    #[must_use]
    pub fn encode(&self, kind: QuotaType, records: &[RawRecord]) -> Vec<u8> {
        assert!(records.is_sorted_by(|a, b| a.dqb_id.get() < b.dqb_id.get()), "records out of order");
        let mut blocks: Vec<[u8; BLOCK]> = vec![[0; BLOCK]; 2];
        // Only the last block of records has room.
        let mut with_room = 0;
        for chunk in records.chunks(RECORDS) {
            let leaf = u32_from_usize(blocks.len());
            with_room = if chunk.len() < RECORDS { leaf } else { 0 };
            blocks.push(block_of(chunk));
            for record in chunk {
                refer(&mut blocks, record.dqb_id.get(), leaf);
            }
        }
        let trusted = self.header.dqh_version.get() == VERSION;
        let grace = |time: U32| if trusted { time } else { U32::new(GRACE) };
        let header = RawQuotaHeader {
            dqh_magic: U32::new(kind.magic()),
            dqh_version: U32::new(VERSION),
            dqi_bgrace: grace(self.header.dqi_bgrace),
            dqi_igrace: grace(self.header.dqi_igrace),
            dqi_flags: U32::new(0),
            dqi_blocks: U32::new(u32_from_usize(blocks.len())),
            dqi_free_blk: U32::new(0),
            dqi_free_entry: U32::new(with_room),
        };
        blocks[0][..RawQuotaHeader::SIZE].copy_from_slice(header.as_bytes());
        blocks.concat()
    }
}

impl RawRecord {
    fn new(number: u32) -> Self {
        Self { dqb_id: U32::new(number), ..Self::new_zeroed() }
    }

    /// The usage that the record states.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage { bytes: self.dqb_curspace.get(), inodes: self.dqb_curinodes.get() }
    }

    fn set_usage(&mut self, usage: Usage) {
        self.dqb_curspace = U64::new(usage.bytes);
        self.dqb_curinodes = U64::new(usage.inodes);
        if self.as_bytes().iter().all(|byte| *byte == 0) {
            self.dqb_itime = U64::new(1);
        }
    }

    /// Whether a hard or soft limit is set.
    #[must_use]
    pub fn has_limits(&self) -> bool {
        let limits = [self.dqb_ihardlimit, self.dqb_isoftlimit, self.dqb_bhardlimit, self.dqb_bsoftlimit];
        limits.iter().any(|limit| limit.get() != 0)
    }
}

/// The records in use of a block.
fn records_of(block: &[u8; BLOCK]) -> impl Iterator<Item = RawRecord> + use<'_> {
    let records = block[RawRecordsHead::SIZE..].chunks_exact(RawRecord::SIZE);
    let used = records.filter(|bytes| bytes.iter().any(|byte| *byte != 0));
    used.map(|bytes| RawRecord::read_from_bytes(bytes).expect("a record's bytes"))
}

fn block_of(records: &[RawRecord]) -> [u8; BLOCK] {
    assert!(records.len() <= RECORDS, "{} records in a block", records.len());
    let mut head = RawRecordsHead::new_zeroed();
    head.dqdh_entries = U16::new(crate::num::low16(u32_from_usize(records.len())));
    let mut block = [0; BLOCK];
    block[..RawRecordsHead::SIZE].copy_from_slice(head.as_bytes());
    for (place, record) in block[RawRecordsHead::SIZE..].chunks_exact_mut(RawRecord::SIZE).zip(records) {
        place.copy_from_slice(record.as_bytes());
    }
    block
}

/// The reference that a block of the tree holds for one byte of a number.
fn reference(block: &[u8; BLOCK], byte: u8) -> u32 {
    let at = usize::from(byte) * 4;
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// Makes the path of a number lead to the block of records `leaf`. Adds tree blocks where needed.
fn refer(blocks: &mut Vec<[u8; BLOCK]>, number: u32, leaf: u32) {
    let mut at = ROOT;
    for (level, byte) in number.to_be_bytes().into_iter().enumerate() {
        let mut below = reference(&blocks[usize_from_u32(at)], byte);
        if below == 0 {
            below = if level + 1 == LEVELS { leaf } else { u32_from_usize(blocks.len()) };
            let from = usize::from(byte) * 4;
            blocks[usize_from_u32(at)][from..from + 4].copy_from_slice(&below.to_le_bytes());
            if level + 1 < LEVELS {
                blocks.push([0; BLOCK]);
            }
        }
        at = below;
    }
    debug_assert_eq!(at, leaf, "the path of {number} ends elsewhere");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_of(bytes: &[u8]) -> QuotaFile {
        QuotaFile::read(u64_from_usize(bytes.len()), &mut |number| {
            let at = usize_from_u32(number) * BLOCK;
            bytes.get(at..at + BLOCK).map(|block| block.try_into().expect("a block's bytes"))
        })
    }

    fn counted(numbers: &[u32]) -> BTreeMap<u32, Usage> {
        numbers.iter().map(|&nr| (nr, Usage { bytes: u64::from(nr) * 512, inodes: 3 })).collect()
    }

    fn empty() -> QuotaFile {
        QuotaFile { header: RawQuotaHeader::new_zeroed(), records: Vec::new(), defect: None }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let many: Vec<u32> = (0..40).chain([65_533, 65_534, 1 << 16, 70_000, u32::MAX]).collect();
        for numbers in [&[][..], &[0], &[0, 5, 1000, 1001], &many] {
            let counted = counted(numbers);
            let records = empty().corrected(&counted);
            let bytes = empty().encode(QuotaType::Group, &records);
            let file = file_of(&bytes);
            assert_eq!(file.defect, None);
            assert_eq!(file.header.dqh_magic.get(), QuotaType::Group.magic());
            assert_eq!(file.header.dqi_bgrace.get(), 604_800);
            let read: BTreeMap<u32, Usage> =
                file.records.iter().map(|record| (record.dqb_id.get(), record.usage())).collect();
            assert_eq!(read, counted);
            assert_eq!(file.records.len(), numbers.len());
        }
    }

    #[test]
    fn limits_stay_and_who_has_nothing_goes() {
        let mut limited = RawRecord::new(7);
        limited.dqb_bhardlimit = U64::new(100);
        limited.set_usage(Usage { bytes: 9, inodes: 9 });
        let records = vec![RawRecord { dqb_curinodes: U64::new(4), ..RawRecord::new(9) }, limited];
        let file = QuotaFile { records, ..empty() };
        let new = file.corrected(&counted(&[1]));
        let seen: Vec<_> =
            new.iter().map(|record| (record.dqb_id.get(), record.usage(), record.has_limits())).collect();
        let one = Usage { bytes: 512, inodes: 3 };
        assert_eq!(seen, [(1, one, false), (7, Usage::default(), true)]);
    }

    #[test]
    fn damage_has_names() {
        let bytes = empty().encode(QuotaType::User, &empty().corrected(&counted(&[0, 5])));
        let wrong = |at: usize, value: u32| {
            let mut bytes = bytes.clone();
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            file_of(&bytes).defect
        };
        assert_eq!(wrong(4, 2), Some(QuotaDefect::Version(2)));
        assert_eq!(wrong(20, 70), Some(QuotaDefect::Blocks));
        assert_eq!(wrong(24, 7), Some(QuotaDefect::Blocks));
        assert_eq!(wrong(28, 9), Some(QuotaDefect::Blocks));
        assert_eq!(wrong(BLOCK, 200), Some(QuotaDefect::Reference(200)));
        assert_eq!(wrong(0, 1), None, "e2fsck does not look at the magic number");
        // The root refers to itself. Reading ends all the same, without a defect.
        assert_eq!(wrong(BLOCK, ROOT), None);
        assert_eq!(file_of(&[]).defect, Some(QuotaDefect::Unreadable(0)));
    }
}
