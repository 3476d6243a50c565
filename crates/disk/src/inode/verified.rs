//! The verified inode: its checksum is right, its type is known, its content has one kind of
//! mapping, and this mapping can hold its size.

use super::raw::{FileType, InodeFlags};
use super::slot::InodeSlot;
use crate::device_number::DeviceNumber;
use crate::error::{Corruption, CorruptionKind};
use crate::features::{Incompat, RoCompat};
use crate::indirect;
use crate::superblock::Superblock;
use crate::units::{BlockNr, InodeNr};

/// How to find an inode's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InodeMap {
    /// No content: pipes and sockets.
    None,
    /// No content: a device, with its number.
    Device(DeviceNumber),
    /// A symbolic link with its target in `i_block`. The target has fewer than 60 bytes.
    FastSymlink,
    /// The content is in the inode: in `i_block`, continued by the attribute `system.data`.
    Inline,
    /// `i_block` is the root of an extent tree.
    Extents,
    /// `i_block` holds 12 block numbers and the roots of three indirect trees.
    Indirect,
}

/// An inode in use that passed every check of its own bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    number: InodeNr,
    slot: InodeSlot<Box<[u8]>>,
    file_type: FileType,
    size: u64,
    map: InodeMap,
    sectors: u64,
    checksum_seed: Option<u32>,
}

/// Bytes of `i_block`, and so one more than the longest fast symbolic link.
pub const BLOCK_FIELD_LEN: u64 = 60;

impl Inode {
    /// Verifies one slot of an inode table.
    ///
    /// # Errors
    /// An `Inode*` kind or [`CorruptionKind::SymlinkTarget`], with the inode;
    /// [`CorruptionKind::InodeUnused`] when the mode is 0, as it is in the bad-blocks inode.
    ///
    /// # Panics
    /// When the slot is shorter than 128 bytes.
    pub fn parse(sb: &Superblock, number: InodeNr, slot: &[u8]) -> Result<Self, Corruption> {
        Self::verify(sb, number, slot).map_err(|found| found.in_inode(number))
    }

    fn verify(sb: &Superblock, number: InodeNr, bytes: &[u8]) -> Result<Self, Corruption> {
        let in_range = number.raw() >= 1 && number.raw() <= sb.geometry().inodes_count();
        check(in_range, CorruptionKind::InodeNumber)?;
        let slot = InodeSlot::new(bytes);
        sb.checksums().verify_inode(number, &slot)?;
        let raw = *slot.raw();
        check(raw.i_mode.get() != 0, CorruptionKind::InodeUnused)?;
        check_extra_isize(&slot)?;
        let file_type = raw.file_type().ok_or(Corruption::new(CorruptionKind::InodeMode))?;
        let acl = raw.file_acl();
        check(acl == BlockNr::ZERO || sb.geometry().contains(acl), CorruptionKind::InodeFileAcl)?;
        let sectors = raw.sectors(sb.has_huge_file(), sb.geometry().block_bits());
        let size = effective_size(sb, &slot, file_type);
        let map = map_of(sb, &slot, file_type, size, sectors)?;
        check(size <= size_limit(sb, &slot, file_type, map), CorruptionKind::InodeSize)?;
        let checksum_seed = sb.checksums().inode_seed(number, raw.i_generation.get());
        let slot = InodeSlot::new(Box::from(bytes));
        Ok(Self { number, slot, file_type, size, map, sectors, checksum_seed })
    }

    /// The inode's number.
    #[must_use]
    pub const fn number(&self) -> InodeNr {
        self.number
    }

    /// The whole slot: times, version, project and everything else without an accessor here.
    #[must_use]
    pub const fn slot(&self) -> &InodeSlot<Box<[u8]>> {
        &self.slot
    }

    /// Type.
    #[must_use]
    pub const fn file_type(&self) -> FileType {
        self.file_type
    }

    /// Whether this is a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.file_type == FileType::Directory
    }

    /// Type and permissions, as `stat` gives them.
    #[must_use]
    pub fn mode(&self) -> u16 {
        self.slot.raw().i_mode.get()
    }

    /// Size in bytes.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// How to find the content.
    #[must_use]
    pub const fn map(&self) -> InodeMap {
        self.map
    }

    /// Allocated space in units of 512 bytes.
    #[must_use]
    pub const fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Flags.
    #[must_use]
    pub fn flags(&self) -> InodeFlags {
        self.slot.raw().flags()
    }

    /// Link count; 1 for a directory whose subdirectories are not counted (dir_nlink).
    #[must_use]
    pub fn links(&self) -> u16 {
        self.slot.raw().i_links_count.get()
    }

    /// The attribute block, if there is one.
    #[must_use]
    pub fn file_acl(&self) -> Option<BlockNr> {
        Some(self.slot.raw().file_acl()).filter(|block| *block != BlockNr::ZERO)
    }

    /// The 60 bytes of `i_block`.
    #[must_use]
    pub fn block_field(&self) -> &[u8; 60] {
        &self.slot.raw().i_block
    }

    /// The target of a fast symbolic link; `None` for other inodes.
    #[must_use]
    pub fn fast_symlink_target(&self) -> Option<&[u8]> {
        let length = usize::try_from(self.size).ok()?;
        (self.map == InodeMap::FastSymlink).then(|| &self.block_field()[..length])
    }

    /// Seed of the checksums of this inode's extent, directory and orphan-file blocks; `None`
    /// without metadata_csum.
    #[must_use]
    pub const fn checksum_seed(&self) -> Option<u32> {
        self.checksum_seed
    }
}

fn check(ok: bool, kind: CorruptionKind) -> Result<(), Corruption> {
    if ok { Ok(()) } else { Err(Corruption::new(kind)) }
}

fn check_extra_isize(slot: &InodeSlot<&[u8]>) -> Result<(), Corruption> {
    let extra = usize::from(slot.extra_isize());
    let fits = extra.is_multiple_of(4) && (extra == 0 || 128 + extra <= slot.bytes().len());
    check(fits, CorruptionKind::InodeExtraIsize)
}

/// The size of an inode's content. The high half of the stored size is used only for regular files,
/// and with large_dir for directories. Without large_dir, a directory may hold something else in
/// `i_size_high`, because that field was once `i_dir_acl`.
fn effective_size(sb: &Superblock, slot: &InodeSlot<&[u8]>, file_type: FileType) -> u64 {
    let large_dir = sb.features().incompat.contains(Incompat::LARGE_DIR);
    match file_type {
        FileType::Regular => slot.raw().size(),
        FileType::Directory if large_dir => slot.raw().size(),
        _ => u64::from(slot.raw().i_size_lo.get()),
    }
}

fn map_of(
    sb: &Superblock,
    slot: &InodeSlot<&[u8]>,
    file_type: FileType,
    size: u64,
    sectors: u64,
) -> Result<InodeMap, Corruption> {
    let flags = slot.raw().flags();
    match file_type {
        FileType::Fifo | FileType::Socket => return Ok(InodeMap::None),
        FileType::CharDevice | FileType::BlockDevice => {
            let words = slot.raw().block_words();
            return Ok(InodeMap::Device(DeviceNumber::from_disk(words[0], words[1])));
        }
        FileType::Symlink => check_symlink_size(sb, size)?,
        FileType::Regular | FileType::Directory => {}
    }
    let bigalloc = sb.features().ro_compat.contains(RoCompat::BIGALLOC);
    let inline_known = sb.features().incompat.contains(Incompat::INLINE_DATA);
    match (flags.contains(InodeFlags::INLINE_DATA), flags.contains(InodeFlags::EXTENTS)) {
        (true, false) if inline_known => Ok(InodeMap::Inline),
        (true, _) => Err(Corruption::new(CorruptionKind::InodeFlags)),
        (false, true) => Ok(InodeMap::Extents),
        (false, false) if file_type == FileType::Symlink && is_fast(sb, slot, (size, sectors)) => {
            check(size < BLOCK_FIELD_LEN, CorruptionKind::SymlinkTarget)?;
            Ok(InodeMap::FastSymlink)
        }
        (false, false) if bigalloc => Err(Corruption::new(CorruptionKind::InodeFlags)),
        (false, false) => Ok(InodeMap::Indirect),
    }
}

fn check_symlink_size(sb: &Superblock, size: u64) -> Result<(), Corruption> {
    let longest = crate::num::u64_from_usize(sb.geometry().block_size());
    check(size > 0 && size <= longest, CorruptionKind::SymlinkTarget)
}

/// Whether a symbolic link with neither extents nor inline data has its target in `i_block`. It
/// does if it owns no data blocks. With ea_inode it also does if the target is shorter than 60
/// bytes: `i_blocks` then tells nothing, because it also counts attribute values in other inodes.
/// Linux decides the same way (observed on 6.18).
fn is_fast(sb: &Superblock, slot: &InodeSlot<&[u8]>, (size, sectors): (u64, u64)) -> bool {
    let counts_values = sb.features().incompat.contains(Incompat::EA_INODE);
    counts_values && size < BLOCK_FIELD_LEN || !has_data(sb, slot, sectors)
}

/// Whether `i_blocks` counts more than the attribute block, which counts as one cluster.
fn has_data(sb: &Superblock, slot: &InodeSlot<&[u8]>, sectors: u64) -> bool {
    let geometry = sb.geometry();
    let cluster_sectors = 1u64 << (geometry.block_bits() + geometry.cluster_ratio_bits() - 9);
    let attributes = if slot.raw().file_acl() == BlockNr::ZERO { 0 } else { cluster_sectors };
    sectors > attributes
}

/// The largest size that is accepted with a mapping. It keeps logical block numbers below 2^32.
///
/// A regular file with inline data may be as large as a block map allows: if a new file is extended
/// with truncate and then written only where its inode has room, Linux stores the data inline and
/// keeps the size (observed on 6.18). The file reads as zeroes after its inline data.
fn size_limit(sb: &Superblock, slot: &InodeSlot<&[u8]>, file_type: FileType, map: InodeMap) -> u64 {
    let bits = sb.geometry().block_bits();
    let block_map = indirect::blocks_max(bits).min(u64::from(u32::MAX)) << bits;
    match map {
        InodeMap::None | InodeMap::Device(_) | InodeMap::FastSymlink => u64::MAX,
        InodeMap::Inline if file_type == FileType::Regular => block_map,
        InodeMap::Inline => crate::num::u64_from_usize(slot.bytes().len()),
        InodeMap::Extents => u64::from(u32::MAX) << bits,
        InodeMap::Indirect => block_map,
    }
}
