//! The file system under check: superblock, geometry, descriptors, features, and reads of its
//! blocks.
//!
//! `superblock.rs` builds a [`Volume`] only from checked constants, so that all arithmetic is safe.
//! The places of backups and descriptor blocks are computed in this module on purpose, and not by
//! the code that writes them.

use blockyard_device::{BlockDevice, DeviceError};
use blockyard_disk::dirblock::DirLayout;
use blockyard_disk::group_desc::{GroupFlags, RawGroupDesc};
use blockyard_disk::inode::{InodeFlags, RawInode};
use blockyard_disk::num::{u64_from_u32, usize_from_u32};
use blockyard_disk::superblock::RawSuperblock;
use blockyard_disk::{
    BlockCount, BlockNr, Checksums, Compat, Geometry, GroupNr, Incompat, InodeNr, RoCompat,
};

/// `s_creator_os` of the Hurd.
const CREATOR_HURD: u32 = 1;

/// A file system whose constants were checked.
pub(crate) struct Volume<'a> {
    pub(crate) device: &'a dyn BlockDevice,
    pub(crate) sb: RawSuperblock,
    pub(crate) geometry: Geometry,
    pub(crate) checksums: Checksums,
    pub(crate) compat: Compat,
    pub(crate) incompat: Incompat,
    pub(crate) ro_compat: RoCompat,
    /// Bytes of a descriptor.
    pub(crate) desc_size: usize,
    /// Whether superblock and descriptors are backups. Their flags may be outdated, so all bitmaps
    /// and whole tables are read, as in e2fsck.
    pub(crate) is_backup: bool,
    /// Whether the journal was replayed in memory.
    pub(crate) is_replayed: bool,
    /// Receives the progress of the check.
    pub(crate) watch: crate::Watch,
    /// Descriptors with their checked flags; filled by `descriptors.rs`.
    pub(crate) groups: Vec<Group>,
}

/// The descriptor of one group, as far as it can be trusted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) desc: RawGroupDesc,
    /// Checked flags. BLOCK_UNINIT and INODE_UNINIT are cleared if the descriptor is from a backup,
    /// if its checksum is wrong, or if no feature gives descriptors checksums.
    pub(crate) flags: GroupFlags,
    /// Inodes at the head of the table that may be in use, and so are scanned.
    pub(crate) inodes_used: u32,
    /// Inodes at the head of the table that may be in use according to the descriptor. If the
    /// descriptor is in doubt, more than these are scanned. An inode in use beyond them is an
    /// error.
    pub(crate) inodes_believed: u32,
    /// Whether the descriptor's checksum is right, or there is none.
    pub(crate) is_sealed: bool,
    /// Whether the block bitmap lies where it may. The two fields below say the same of the inode
    /// bitmap and the table.
    pub(crate) block_bitmap_ok: bool,
    pub(crate) inode_bitmap_ok: bool,
    pub(crate) inode_table_ok: bool,
}

impl Group {
    /// Whether a bitmap is read although the descriptor calls it uninitialised, because the flag
    /// was cleared in [`Self::flags`]. Unless the descriptor is a backup, the bitmap's own checksum
    /// is not verified then.
    pub(crate) fn is_read_in_doubt(&self, uninit: GroupFlags) -> bool {
        self.desc.flags().contains(uninit) && !self.flags.contains(uninit)
    }
}

impl Volume<'_> {
    pub(crate) fn block_size(&self) -> usize {
        self.geometry.block_size()
    }

    /// First inode that is not reserved.
    pub(crate) fn first_inode(&self) -> u32 {
        if self.sb.s_rev_level.get() == 0 { 11 } else { self.sb.s_first_ino.get() }
    }

    /// Whether the GNU Hurd made the file system. Its files may have a block for a translator
    /// ([`Self::translator`]), and their `i_blocks` are not checked.
    pub(crate) fn is_hurd(&self) -> bool {
        self.sb.s_creator_os.get() == CREATOR_HURD
    }

    /// On a file system of the Hurd, the block with an inode's translator (a program that answers
    /// requests for the file). Linux uses the field with the block's number as `i_version`.
    pub(crate) fn translator(&self, raw: &RawInode) -> Option<BlockNr> {
        let block = BlockNr::new(u64_from_u32(raw.i_version.get()));
        let is_mapped_by_blocks = !raw.flags().contains(InodeFlags::EXTENTS);
        Some(block).filter(|block| self.is_hurd() && is_mapped_by_blocks && *block != BlockNr::ZERO)
    }

    /// The attribute block of an inode. Without 64bit the high half of its number is ignored.
    pub(crate) fn file_acl(&self, raw: &RawInode) -> BlockNr {
        if self.incompat.contains(Incompat::BIT64) {
            raw.file_acl()
        } else {
            BlockNr::new(u64_from_u32(raw.i_file_acl_lo.get()))
        }
    }

    pub(crate) fn has_csum(&self) -> bool {
        self.ro_compat.contains(RoCompat::METADATA_CSUM)
    }

    pub(crate) fn group_of(&self, group: GroupNr) -> &Group {
        &self.groups[usize_from_u32(group.raw())]
    }

    pub(crate) fn dir_layout(&self) -> DirLayout {
        DirLayout {
            block_size: self.block_size(),
            tail: self.has_csum(),
            file_types: self.incompat.contains(Incompat::FILETYPE),
            inodes_count: self.geometry.inodes_count(),
        }
    }

    /// Whether a block lies in the file system.
    pub(crate) fn contains(&self, block: BlockNr) -> bool {
        self.geometry.contains(block)
    }

    /// Whether all of a range lies in the file system.
    pub(crate) fn contains_range(&self, first: BlockNr, count: u64) -> bool {
        let end = first.raw().checked_add(count);
        self.contains(first) && end.is_some_and(|end| end <= self.geometry.blocks_count().raw())
    }

    /// Reads one block into `buffer`.
    pub(crate) fn read_block(&self, block: BlockNr, buffer: &mut [u8]) -> Result<(), DeviceError> {
        debug_assert_eq!(buffer.len(), self.block_size(), "a buffer for block {block}");
        self.device.read_at(block.raw() << self.geometry.block_bits(), buffer)
    }

    /// Reads one block.
    pub(crate) fn block(&self, block: BlockNr) -> Result<Vec<u8>, DeviceError> {
        let mut buffer = vec![0; self.block_size()];
        self.read_block(block, &mut buffer)?;
        Ok(buffer)
    }

    /// Reads the slot of an inode; the number must be in range. If a table is not where it may be,
    /// its inodes count as unused.
    pub(crate) fn inode(&self, inode: InodeNr) -> Result<Vec<u8>, DeviceError> {
        let mut slot = vec![0; usize::from(self.geometry.inode_size())];
        if let Some(offset) = self.inode_offset(inode) {
            self.device.read_at(offset, &mut slot)?;
        }
        Ok(slot)
    }

    /// Byte offset of the slot of an inode, whose number must be in range; `None` if its table is
    /// not where it may be.
    pub(crate) fn inode_offset(&self, inode: InodeNr) -> Option<u64> {
        let (group, index) = self.geometry.locate_inode(inode);
        let known = self.group_of(group);
        let table = known.desc.inode_table().raw();
        let inside = u64_from_u32(index) * u64::from(self.geometry.inode_size());
        known.inode_table_ok.then(|| (table << self.geometry.block_bits()) + inside)
    }

    /// Whether a group has a copy of the superblock. (Group 0 has the primary one.)
    pub(crate) fn has_superblock(&self, group: GroupNr) -> bool {
        let nr = group.raw();
        if nr == 0 {
            return true;
        }
        if self.compat.contains(Compat::SPARSE_SUPER2) {
            return self.sb.s_backup_bgs.iter().any(|backup| backup.get() == nr);
        }
        if !self.ro_compat.contains(RoCompat::SPARSE_SUPER) || nr == 1 {
            return true;
        }
        [3, 5, 7].into_iter().any(|base| is_power_of(nr, base))
    }

    /// All groups with a copy of the superblock, ascending.
    pub(crate) fn superblock_groups(&self) -> Vec<GroupNr> {
        let all =
            !self.ro_compat.contains(RoCompat::SPARSE_SUPER) && !self.compat.contains(Compat::SPARSE_SUPER2);
        if all {
            return self.geometry.all_groups().collect();
        }
        let mut groups: Vec<u32> = vec![0];
        if self.compat.contains(Compat::SPARSE_SUPER2) {
            groups.extend(self.sb.s_backup_bgs.iter().map(|group| group.get()));
        } else {
            groups.push(1);
            for base in [3u32, 5, 7] {
                groups.extend(std::iter::successors(Some(base), |nr| nr.checked_mul(base)));
            }
        }
        groups.retain(|&nr| nr < self.geometry.groups());
        groups.sort_unstable();
        groups.dedup();
        groups.into_iter().map(GroupNr::new).collect()
    }

    pub(crate) fn descs_per_block(&self) -> u32 {
        let fits = self.desc_size >= 32 && self.block_size().is_multiple_of(self.desc_size);
        assert!(fits, "descriptors of {} bytes in blocks of {}", self.desc_size, self.block_size());
        blockyard_disk::num::u32_from_usize(self.block_size() / self.desc_size)
    }

    /// Blocks of the descriptor table.
    pub(crate) fn desc_blocks(&self) -> u32 {
        self.geometry.groups().div_ceil(self.descs_per_block())
    }

    /// Blocks of the descriptor table that follow the superblock (the others lie in their meta
    /// groups).
    pub(crate) fn old_desc_blocks(&self) -> u32 {
        if self.incompat.contains(Incompat::META_BG) {
            self.sb.s_first_meta_bg.get().min(self.desc_blocks())
        } else {
            self.desc_blocks()
        }
    }

    /// Where the primary copy of descriptor block `index` lies.
    pub(crate) fn desc_block(&self, index: u32) -> BlockNr {
        debug_assert!(index < self.desc_blocks(), "descriptor block {index} of {}", self.desc_blocks());
        if index < self.old_desc_blocks() {
            return self.geometry.first_data_block()
                + self.superblock_span()
                + BlockCount::new(u64_from_u32(index));
        }
        let group = GroupNr::new(index * self.descs_per_block());
        self.geometry.group_first_block(group) + self.superblock_blocks(group)
    }

    /// Where the second copy of a block of descriptors in a meta group lies; `None` for blocks that
    /// follow the superblock, and for meta groups of one group.
    pub(crate) fn second_meta_block(&self, index: u32) -> Option<BlockNr> {
        let group = index.checked_mul(self.descs_per_block())?.checked_add(1).map(GroupNr::new)?;
        let exists = index >= self.old_desc_blocks() && group.raw() < self.geometry.groups();
        exists.then(|| self.geometry.group_first_block(group) + self.superblock_blocks(group))
    }

    /// Blocks of a group that its copy of the superblock takes.
    fn superblock_blocks(&self, group: GroupNr) -> BlockCount {
        match group.raw() {
            0 => self.superblock_span(),
            _ => BlockCount::new(u64::from(self.has_superblock(group))),
        }
    }

    /// Blocks before the descriptors in group 0: one, or two with bigalloc and 1 KiB blocks. In the
    /// second case the group starts at block 0, and the superblock is block 1.
    fn superblock_span(&self) -> BlockCount {
        let small = self.block_size() == 1024 && self.geometry.first_data_block() == BlockNr::ZERO;
        BlockCount::new(if small { 2 } else { 1 })
    }

    /// The blocks of a group that hold the superblock and descriptors or are reserved for
    /// descriptors, as runs of first block and count. The descriptor block of a meta group is a run
    /// of its own.
    pub(crate) fn backup_area(&self, group: GroupNr) -> Vec<(BlockNr, u64)> {
        let first = self.geometry.group_first_block(group);
        let after_super = self.superblock_blocks(group);
        let per_block = self.descs_per_block();
        let (meta, inside) = (group.raw() / per_block, group.raw() % per_block);
        let in_meta_group =
            self.incompat.contains(Incompat::META_BG) && meta >= self.sb.s_first_meta_bg.get();
        let mut area = Vec::new();
        if self.has_superblock(group) {
            let meta_groups = self.incompat.contains(Incompat::META_BG);
            let reserved = if meta_groups { 0 } else { u64::from(self.sb.s_reserved_gdt_blocks.get()) };
            let copies = if in_meta_group { 0 } else { u64_from_u32(self.old_desc_blocks()) };
            area.push((first, after_super.raw() + copies + reserved));
        }
        if in_meta_group && (inside <= 1 || inside == per_block - 1) {
            area.push((first + after_super, 1));
        }
        area
    }
}

fn is_power_of(nr: u32, base: u32) -> bool {
    std::iter::successors(Some(base), |power| power.checked_mul(base))
        .take_while(|&power| power <= nr)
        .any(|power| power == nr)
}

#[cfg(test)]
mod tests {
    use super::is_power_of;

    #[test]
    fn powers_are_recognised() {
        let found: Vec<u32> =
            (1..130).filter(|&nr| [3, 5, 7].iter().any(|&base| is_power_of(nr, base))).collect();
        assert_eq!(found, [3, 5, 7, 9, 25, 27, 49, 81, 125]);
    }
}
