//! Checksums: the CRCs of the format, what each object's covers, and comparing and storing them.
//!
//! [`crc32c_raw`] inverts neither its start nor its result: states chain, and what is stored is the last state. The
//! functions of [`object`] compute the value of one object. [`Checksums`] knows how a file system is protected:
//! its `verify_*` compare and its `seal_*` store, and both do nothing where the object has no checksum.

mod crc;
pub mod object;

pub use crc::{crc16, crc32, crc32_be, crc32c_raw};

use zerocopy::FromBytes;
use zerocopy::little_endian::{U16, U32};

use crate::error::{Corruption, CorruptionKind};
use crate::features::{FeatureSet, Incompat};
use crate::group_desc::RawGroupDesc;
use crate::inode::{InodeSlot, RawInode};
use crate::mmp::RawMmp;
use crate::num::{high16, low16};
use crate::orphan_file::RawOrphanTail;
use crate::superblock::RawSuperblock;
use crate::units::{BlockNr, GroupNr, InodeNr};

/// How the metadata of one file system is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksums {
    /// Not at all.
    None,
    /// uninit_bg: group descriptors only.
    Crc16 {
        /// UUID of the file system.
        uuid: [u8; 16],
    },
    /// metadata_csum: everything.
    Crc32c {
        /// Seed of all objects but the superblock.
        fs_seed: u32,
    },
}

/// The result of a comparison: `Ok` or a corruption of this kind.
fn compare(matches: bool, kind: CorruptionKind) -> Result<(), Corruption> {
    if matches { Ok(()) } else { Err(Corruption::new(kind)) }
}

/// The little-endian word at an offset that the caller knows to be inside.
fn word(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes([bytes[offset], bytes[offset + 1], bytes[offset + 2], bytes[offset + 3]])
}

impl Checksums {
    /// How a file system with this superblock is protected. metadata_csum wins over uninit_bg.
    #[must_use]
    pub fn of(sb: &RawSuperblock) -> Self {
        let features = FeatureSet { compat: sb.compat(), incompat: sb.incompat(), ro_compat: sb.ro_compat() };
        if features.has_metadata_csum() {
            let stored = features.incompat.contains(Incompat::CSUM_SEED);
            let fs_seed = if stored { sb.s_checksum_seed.get() } else { crc32c_raw(!0, &sb.s_uuid) };
            Self::Crc32c { fs_seed }
        } else if features.has_group_checksum() {
            Self::Crc16 { uuid: sb.s_uuid }
        } else {
            Self::None
        }
    }

    /// The seed of crc32c checksums; `None` without metadata_csum.
    #[must_use]
    pub const fn fs_seed(&self) -> Option<u32> {
        match self {
            Self::Crc32c { fs_seed } => Some(*fs_seed),
            Self::None | Self::Crc16 { .. } => None,
        }
    }

    /// The seed of an inode's checksums (its own and those of its blocks); `None` without metadata_csum.
    #[must_use]
    pub fn inode_seed(&self, inode: InodeNr, generation: u32) -> Option<u32> {
        Some(object::inode_seed(self.fs_seed()?, inode, generation))
    }

    /// Compares a superblock copy's checksum.
    ///
    /// # Errors
    /// [`CorruptionKind::SuperblockChecksum`].
    pub fn verify_superblock(&self, sb: &RawSuperblock) -> Result<(), Corruption> {
        let matches = self.fs_seed().is_none() || sb.s_checksum.get() == object::superblock(sb);
        compare(matches, CorruptionKind::SuperblockChecksum)
    }

    /// Stores a superblock copy's checksum.
    pub fn seal_superblock(&self, sb: &mut RawSuperblock) {
        if self.fs_seed().is_some() {
            sb.s_checksum = U32::new(object::superblock(sb));
        }
    }

    /// The checksum of a group descriptor (all of its `s_desc_size` bytes), in the mode of this file system.
    fn group_desc(&self, group: GroupNr, desc: &[u8]) -> Option<u16> {
        match self {
            Self::None => None,
            Self::Crc16 { uuid } => Some(object::group_desc_crc16(uuid, group, desc)),
            Self::Crc32c { fs_seed } => Some(object::group_desc_crc32c(*fs_seed, group, desc)),
        }
    }

    /// Compares a group descriptor's checksum; `desc` is all of its bytes (32, or `s_desc_size`).
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

    /// Compares the block bitmap of a group that is not `BLOCK_UNINIT`. `desc_size` decides the stored width.
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

    /// Stores the block bitmap's checksum in its descriptor (seal that afterwards).
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

    /// Compares the inode bitmap of a group that is not `INODE_UNINIT`.
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

    /// Stores the inode bitmap's checksum in its descriptor (seal that afterwards).
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

    /// Compares an inode's checksum. An all-zero slot counts as unused and passes.
    ///
    /// # Errors
    /// [`CorruptionKind::InodeChecksum`].
    pub fn verify_inode<B: AsRef<[u8]>>(
        &self,
        inode: InodeNr,
        slot: &InodeSlot<B>,
    ) -> Result<(), Corruption> {
        let Some(sum) = self.inode(inode, slot) else { return Ok(()) };
        let low = slot.raw().i_checksum_lo.get();
        let matches = if has_wide_inode_checksum(slot) {
            let bytes = slot.bytes();
            let high = u16::from_le_bytes([bytes[0x82], bytes[0x83]]);
            (low16(sum), high16(sum)) == (low, high)
        } else {
            low16(sum) == low
        };
        let unused = || slot.bytes().iter().all(|byte| *byte == 0);
        compare(matches || unused(), CorruptionKind::InodeChecksum).map_err(|found| found.in_inode(inode))
    }

    /// Stores an inode's checksum; to be called after every change of the slot.
    pub fn seal_inode<B: AsRef<[u8]> + AsMut<[u8]>>(&self, inode: InodeNr, slot: &mut InodeSlot<B>) {
        let Some(sum) = self.inode(inode, slot) else { return };
        slot.raw_mut().i_checksum_lo = U16::new(low16(sum));
        if has_wide_inode_checksum(slot) {
            slot.bytes_mut()[0x82..0x84].copy_from_slice(&high16(sum).to_le_bytes());
        }
    }

    fn inode<B: AsRef<[u8]>>(&self, inode: InodeNr, slot: &InodeSlot<B>) -> Option<u32> {
        let seed = self.inode_seed(inode, slot.raw().i_generation.get())?;
        Some(object::inode(seed, slot.bytes(), has_wide_inode_checksum(slot)))
    }

    /// Compares the checksum of the MMP block.
    ///
    /// # Errors
    /// [`CorruptionKind::MmpChecksum`].
    pub fn verify_mmp(&self, mmp: &RawMmp) -> Result<(), Corruption> {
        let matches = self.fs_seed().is_none_or(|seed| mmp.mmp_checksum.get() == object::mmp(seed, mmp));
        compare(matches, CorruptionKind::MmpChecksum)
    }

    /// Stores the checksum of the MMP block.
    pub fn seal_mmp(&self, mmp: &mut RawMmp) {
        if let Some(seed) = self.fs_seed() {
            mmp.mmp_checksum = U32::new(object::mmp(seed, mmp));
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

/// Size from which a descriptor keeps all 32 bits of its block bitmap's checksum.
const BLOCK_BITMAP_WIDE: usize = 0x3A;

/// Size from which a descriptor keeps all 32 bits of its inode bitmap's checksum.
const INODE_BITMAP_WIDE: usize = 0x3C;

/// Whether an inode keeps all 32 bits of its checksum.
fn has_wide_inode_checksum<B: AsRef<[u8]>>(slot: &InodeSlot<B>) -> bool {
    slot.bytes().len() > RawInode::SIZE && slot.extra_isize() >= 4
}

/// Compares an extent block's checksum; `seed` is [`Checksums::inode_seed`], `None` where there is none.
///
/// # Errors
/// [`CorruptionKind::ExtentChecksum`]; [`CorruptionKind::ExtentMax`] when the capacity leaves no room for it.
pub fn verify_extent_block(seed: Option<u32>, block: &[u8]) -> Result<(), Corruption> {
    let Some(seed) = seed else { return Ok(()) };
    let field = object::extent_block_field(block).ok_or(Corruption::new(CorruptionKind::ExtentMax))?;
    let sum = object::extent_block(seed, block);
    compare(sum == Some(word(block, field)), CorruptionKind::ExtentChecksum)
}

/// Stores an extent block's checksum.
///
/// # Panics
/// When `eh_max` leaves no room for it.
pub fn seal_extent_block(seed: Option<u32>, block: &mut [u8]) {
    let Some(seed) = seed else { return };
    let field = object::extent_block_field(block).expect("the writer set eh_max");
    let sum = crc32c_raw(seed, &block[..field]);
    block[field..field + 4].copy_from_slice(&sum.to_le_bytes());
}

/// The tail of a directory leaf without its checksum: a fake entry of 12 bytes with type 0xDE.
const DIR_TAIL: [u8; 8] = [0, 0, 0, 0, 12, 0, 0, 0xDE];

/// Compares a directory leaf's checksum; a missing tail fails too.
///
/// # Errors
/// [`CorruptionKind::DirLeafChecksum`].
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
/// [`CorruptionKind::HtreeChecksum`], also when limit and count leave no room for it.
pub fn verify_htree(seed: Option<u32>, block: &[u8], count_offset: usize) -> Result<(), Corruption> {
    let Some(seed) = seed else { return Ok(()) };
    let matches = object::htree_tail(block, count_offset)
        .is_some_and(|tail| object::htree(seed, block, count_offset) == Some(word(block, tail + 4)));
    compare(matches, CorruptionKind::HtreeChecksum)
}

/// Stores an index block's checksum.
///
/// # Panics
/// When limit and count leave no room for it.
pub fn seal_htree(seed: Option<u32>, block: &mut [u8], count_offset: usize) {
    let Some(seed) = seed else { return };
    let tail = object::htree_tail(block, count_offset).expect("the writer set limit and count");
    let sum = object::htree(seed, block, count_offset).expect("the tail was found");
    block[tail + 4..tail + 8].copy_from_slice(&sum.to_le_bytes());
}

/// Compares an orphan file block's checksum; `seed` is that of the orphan file's inode.
///
/// # Errors
/// [`CorruptionKind::OrphanBlockChecksum`].
pub fn verify_orphan_block(seed: Option<u32>, number: BlockNr, block: &[u8]) -> Result<(), Corruption> {
    let Some(seed) = seed else { return Ok(()) };
    let stored = RawOrphanTail::ref_from_suffix(block).map(|(_, tail)| tail.ob_checksum.get());
    let matches = stored.is_ok_and(|stored| stored == object::orphan_block(seed, number, block));
    compare(matches, CorruptionKind::OrphanBlockChecksum).map_err(|found| found.in_block(number))
}

/// Stores an orphan file block's checksum in its last four bytes.
pub fn seal_orphan_block(seed: Option<u32>, number: BlockNr, block: &mut [u8]) {
    let Some(seed) = seed else { return };
    let sum = object::orphan_block(seed, number, block);
    let field = block.len() - 4;
    block[field..].copy_from_slice(&sum.to_le_bytes());
}
