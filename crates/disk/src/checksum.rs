//! Checksums: the CRCs of the format, what each object's checksum covers, and comparing and storing
//! them.
//!
//! [`crc32c_raw`] inverts neither its initial state nor its result. So the result of one call can
//! be the initial state of the next. The functions of [`object`] compute the checksum of one
//! object. [`Checksums`] says which checksums a file system has. The `verify_*` functions compare a
//! stored checksum, and the `seal_*` functions store one. If the file system has no checksum for an
//! object, verifying it succeeds and sealing it changes nothing. Methods of [`Checksums`] that need
//! the fields of an object are in the file of that object.

mod crc;
pub mod object;

pub use crc::{crc16, crc32, crc32_be, crc32c_raw};

use crate::error::{Corruption, CorruptionKind};
use crate::units::{BlockNr, GroupNr, InodeNr};

/// How the metadata of one file system is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksums {
    /// No checksums.
    None,
    /// uninit_bg: only group descriptors.
    Crc16 {
        /// UUID of the file system.
        uuid: [u8; 16],
    },
    /// metadata_csum: nearly all metadata (not the indirect blocks of block maps, for example).
    Crc32c {
        /// The seed of the file system. The superblock's checksum uses no seed. The seed of an
        /// inode ([`Checksums::inode_seed`]) is computed from this one.
        fs_seed: u32,
    },
}

/// The result of a comparison: `Ok` if `matches`, otherwise a corruption of this kind.
pub(crate) fn compare(matches: bool, kind: CorruptionKind) -> Result<(), Corruption> {
    if matches { Ok(()) } else { Err(Corruption::new(kind)) }
}

/// The little-endian word at an offset that the caller knows to be in range.
fn word(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes([bytes[offset], bytes[offset + 1], bytes[offset + 2], bytes[offset + 3]])
}

impl Checksums {
    /// The seed of crc32c checksums; `None` without metadata_csum.
    #[must_use]
    pub const fn fs_seed(&self) -> Option<u32> {
        match self {
            Self::Crc32c { fs_seed } => Some(*fs_seed),
            Self::None | Self::Crc16 { .. } => None,
        }
    }

    /// The seed for an inode, and for its extent blocks, directory blocks and orphan-file blocks;
    /// `None` without metadata_csum. Attribute blocks use [`Self::fs_seed`].
    #[must_use]
    pub fn inode_seed(&self, inode: InodeNr, generation: u32) -> Option<u32> {
        Some(object::inode_seed(self.fs_seed()?, inode, generation))
    }

    /// The checksum of a group descriptor, crc16 or crc32c; `None` without checksums. `desc` is the
    /// whole descriptor: 32 bytes, or `s_desc_size`.
    fn group_desc(&self, group: GroupNr, desc: &[u8]) -> Option<u16> {
        match self {
            Self::None => None,
            Self::Crc16 { uuid } => Some(object::group_desc_crc16(uuid, group, desc)),
            Self::Crc32c { fs_seed } => Some(object::group_desc_crc32c(*fs_seed, group, desc)),
        }
    }

    /// Compares a group descriptor's checksum. `desc` is the whole descriptor: 32 bytes, or
    /// `s_desc_size`.
    ///
    /// # Errors
    /// [`CorruptionKind::GroupDescChecksum`].
    pub fn verify_group_desc(&self, group: GroupNr, desc: &[u8]) -> Result<(), Corruption> {
        let stored = u16::from_le_bytes([desc[0x1E], desc[0x1F]]);
        let matches = self.group_desc(group, desc).is_none_or(|sum| sum == stored);
        compare(matches, CorruptionKind::GroupDescChecksum).map_err(|found| found.in_group(group))
    }

    /// Stores a group descriptor's checksum.
    pub fn seal_group_desc(&self, group: GroupNr, desc: &mut [u8]) {
        if let Some(sum) = self.group_desc(group, desc) {
            desc[0x1E..0x20].copy_from_slice(&sum.to_le_bytes());
        }
    }

    /// Compares an attribute block's checksum.
    ///
    /// # Errors
    /// [`CorruptionKind::XattrBlockChecksum`].
    pub fn verify_xattr_block(&self, number: BlockNr, block: &[u8]) -> Result<(), Corruption> {
        let matches = self.fs_seed().is_none_or(|seed| {
            word(block, object::XATTR_BLOCK_FIELD) == object::xattr_block(seed, number, block)
        });
        compare(matches, CorruptionKind::XattrBlockChecksum).map_err(|found| found.in_block(number))
    }

    /// Stores an attribute block's checksum.
    pub fn seal_xattr_block(&self, number: BlockNr, block: &mut [u8]) {
        if let Some(seed) = self.fs_seed() {
            let sum = object::xattr_block(seed, number, block);
            let field = object::XATTR_BLOCK_FIELD;
            block[field..field + 4].copy_from_slice(&sum.to_le_bytes());
        }
    }
}

/// Compares an extent block's checksum. `seed` is [`Checksums::inode_seed`].
///
/// # Errors
/// [`CorruptionKind::ExtentChecksum`]; [`CorruptionKind::ExtentMax`] when `eh_max` leaves no room
/// for the checksum.
pub fn verify_extent_block(seed: Option<u32>, block: &[u8]) -> Result<(), Corruption> {
    let Some(seed) = seed else { return Ok(()) };
    let field = object::extent_block_field(block).ok_or(Corruption::new(CorruptionKind::ExtentMax))?;
    let sum = object::extent_block(seed, block);
    compare(sum == Some(word(block, field)), CorruptionKind::ExtentChecksum)
}

/// Stores an extent block's checksum.
///
/// # Panics
/// When `eh_max` leaves no room for the checksum.
pub fn seal_extent_block(seed: Option<u32>, block: &mut [u8]) {
    let Some(seed) = seed else { return };
    let field = object::extent_block_field(block).expect("the writer set eh_max");
    let sum = crc32c_raw(seed, &block[..field]);
    block[field..field + 4].copy_from_slice(&sum.to_le_bytes());
}

/// The tail of a directory leaf without its checksum: a fake entry of 12 bytes with type 0xDE.
const DIR_TAIL: [u8; 8] = [0, 0, 0, 0, 12, 0, 0, 0xDE];

/// Compares a directory leaf's checksum.
///
/// # Errors
/// [`CorruptionKind::DirLeafChecksum`], also when the leaf has no tail.
pub fn verify_dir_leaf(seed: Option<u32>, block: &[u8]) -> Result<(), Corruption> {
    let Some(seed) = seed else { return Ok(()) };
    let matches = block
        .last_chunk::<12>()
        .is_some_and(|tail| tail[..8] == DIR_TAIL && word(tail, 8) == object::dir_leaf(seed, block));
    compare(matches, CorruptionKind::DirLeafChecksum)
}

/// Writes a directory leaf's tail and checksum over its last 12 bytes.
pub fn seal_dir_leaf(seed: Option<u32>, block: &mut [u8]) {
    let Some(seed) = seed else { return };
    let sum = object::dir_leaf(seed, block);
    let tail = block.len() - 12;
    block[tail..tail + 8].copy_from_slice(&DIR_TAIL);
    block[tail + 8..].copy_from_slice(&sum.to_le_bytes());
}

/// Compares an index block's checksum; `count_offset` is 32 for a root and 8 for a node.
///
/// # Errors
/// [`CorruptionKind::HtreeChecksum`], also when [`object::htree_tail`] finds no tail.
pub fn verify_htree(seed: Option<u32>, block: &[u8], count_offset: usize) -> Result<(), Corruption> {
    let Some(seed) = seed else { return Ok(()) };
    let matches = object::htree_tail(block, count_offset)
        .is_some_and(|tail| object::htree(seed, block, count_offset) == Some(word(block, tail + 4)));
    compare(matches, CorruptionKind::HtreeChecksum)
}

/// Stores an index block's checksum.
///
/// # Panics
/// When [`object::htree_tail`] finds no tail.
pub fn seal_htree(seed: Option<u32>, block: &mut [u8], count_offset: usize) {
    let Some(seed) = seed else { return };
    let tail = object::htree_tail(block, count_offset).expect("the writer set limit and count");
    let sum = object::htree(seed, block, count_offset).expect("the tail was found");
    block[tail + 4..tail + 8].copy_from_slice(&sum.to_le_bytes());
}

/// Compares the checksum of an orphan file block. `seed` is the seed of the orphan file's inode.
///
/// # Errors
/// [`CorruptionKind::OrphanBlockChecksum`].
pub fn verify_orphan_block(seed: Option<u32>, number: BlockNr, block: &[u8]) -> Result<(), Corruption> {
    let Some(seed) = seed else { return Ok(()) };
    let matches = block
        .last_chunk::<{ object::ORPHAN_TAIL_LEN }>()
        .is_some_and(|tail| word(tail, 4) == object::orphan_block(seed, number, block));
    compare(matches, CorruptionKind::OrphanBlockChecksum).map_err(|found| found.in_block(number))
}

/// Stores an orphan file block's checksum in its last four bytes.
pub fn seal_orphan_block(seed: Option<u32>, number: BlockNr, block: &mut [u8]) {
    let Some(seed) = seed else { return };
    let sum = object::orphan_block(seed, number, block);
    let field = block.len() - 4;
    block[field..].copy_from_slice(&sum.to_le_bytes());
}
