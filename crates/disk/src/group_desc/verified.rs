//! The verified group descriptor: its checksum is right, and its bitmaps and its inode table lie
//! where they are allowed to.

use super::{GroupFlags, RawGroupDesc};
use crate::error::{Corruption, CorruptionKind};
use crate::features::Incompat;
use crate::superblock::Superblock;
use crate::units::{BlockCount, BlockNr, GroupNr};

/// A group descriptor whose checksum and addresses were checked. Its counts are as stored: see
/// [`Self::verify_counts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupDescriptor {
    group: GroupNr,
    raw: RawGroupDesc,
    flags: GroupFlags,
}

impl GroupDescriptor {
    /// Verifies one descriptor, the first [`Superblock::desc_size`] bytes of `bytes`.
    ///
    /// # Errors
    /// A `GroupDesc*` kind, with the group: the checksum is wrong, or a bitmap or the inode table
    /// is misplaced. Bitmaps and tables must lie inside the file system and outside the head of
    /// group 0; without flex_bg, they must also lie inside their group.
    ///
    /// # Panics
    /// When `bytes` is too short.
    pub fn parse(sb: &Superblock, group: GroupNr, bytes: &[u8]) -> Result<Self, Corruption> {
        let bytes = &bytes[..sb.desc_size()];
        sb.checksums().verify_group_desc(group, bytes)?;
        let raw = RawGroupDesc::from_disk(bytes);
        let table = BlockCount::new(sb.geometry().inode_table_blocks());
        let one = BlockCount::new(1);
        for (start, length, kind) in [
            (raw.block_bitmap(), one, CorruptionKind::GroupDescBlockBitmap),
            (raw.inode_bitmap(), one, CorruptionKind::GroupDescInodeBitmap),
            (raw.inode_table(), table, CorruptionKind::GroupDescInodeTable),
        ] {
            if !is_well_placed(sb, group, start, length) {
                return Err(Corruption::new(kind).in_group(group));
            }
        }
        // Without a group checksum the flags have no meaning: every bitmap and table is
        // initialised.
        let has_flags = sb.features().has_group_checksum();
        let flags = if has_flags { raw.flags() } else { GroupFlags::empty() };
        Ok(Self { group, raw, flags })
    }

    /// The number of the group.
    #[must_use]
    pub const fn group(&self) -> GroupNr {
        self.group
    }

    /// The fields as stored.
    #[must_use]
    pub const fn raw(&self) -> &RawGroupDesc {
        &self.raw
    }

    /// The flags; empty if descriptors have no checksum, because the flags then have no meaning.
    #[must_use]
    pub const fn flags(&self) -> GroupFlags {
        self.flags
    }

    /// Block of the block bitmap.
    #[must_use]
    pub fn block_bitmap(&self) -> BlockNr {
        self.raw.block_bitmap()
    }

    /// Block of the inode bitmap.
    #[must_use]
    pub fn inode_bitmap(&self) -> BlockNr {
        self.raw.inode_bitmap()
    }

    /// First block of the inode table.
    #[must_use]
    pub fn inode_table(&self) -> BlockNr {
        self.raw.inode_table()
    }

    /// Free clusters.
    #[must_use]
    pub fn free_clusters(&self) -> u32 {
        self.raw.free_clusters()
    }

    /// Free inodes.
    #[must_use]
    pub fn free_inodes(&self) -> u32 {
        self.raw.free_inodes()
    }

    /// Directories.
    #[must_use]
    pub fn used_dirs(&self) -> u32 {
        self.raw.used_dirs()
    }

    /// Inodes at the end of the table that were never used; 0 if descriptors have no checksum,
    /// because the field then has no meaning.
    #[must_use]
    pub fn itable_unused(&self, sb: &Superblock) -> u32 {
        if sb.features().has_group_checksum() { self.raw.itable_unused() } else { 0 }
    }

    /// Checks the counts against the size of the group, for allocators. A reader does not need the
    /// counts.
    ///
    /// # Errors
    /// [`CorruptionKind::GroupDescFreeClusters`], [`CorruptionKind::GroupDescFreeInodes`],
    /// [`CorruptionKind::GroupDescUsedDirs`], [`CorruptionKind::GroupDescItableUnused`].
    pub fn verify_counts(&self, sb: &Superblock) -> Result<(), Corruption> {
        let clusters = sb.geometry().clusters_in_group(self.group);
        let inodes = sb.geometry().inodes_per_group();
        let bounds = [
            (self.free_clusters(), clusters, CorruptionKind::GroupDescFreeClusters),
            (self.free_inodes(), inodes, CorruptionKind::GroupDescFreeInodes),
            (self.used_dirs(), inodes, CorruptionKind::GroupDescUsedDirs),
            (self.itable_unused(sb), inodes, CorruptionKind::GroupDescItableUnused),
        ];
        match bounds.iter().find(|(count, most, _)| count > most) {
            Some((_, _, kind)) => Err(Corruption::new(*kind).in_group(self.group)),
            None => Ok(()),
        }
    }
}

fn is_well_placed(sb: &Superblock, group: GroupNr, start: BlockNr, length: BlockCount) -> bool {
    let geometry = sb.geometry();
    let Some(end) = start.checked_add(length) else { return false };
    let head = sb.head(GroupNr::new(0)).blocks();
    let inside = geometry.contains(start) && end.raw() <= geometry.blocks_count().raw();
    let clear_of_head = end <= head.start || start >= head.end;
    let anywhere = sb.features().incompat.contains(Incompat::FLEX_BG);
    let first = geometry.group_first_block(group);
    let in_group = || start >= first && end.raw() <= first.raw() + geometry.blocks_in_group(group);
    inside && clear_of_head && (anywhere || in_group())
}
