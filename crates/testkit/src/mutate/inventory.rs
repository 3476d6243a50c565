//! The structures of a valid image, found by a small reader that trusts what it reads.

use std::path::Path;

use blockyard_disk::extent::{RawExtent, RawExtentHeader, RawExtentIndex};
use blockyard_disk::group_desc::{GroupFlags, RawGroupDesc};
use blockyard_disk::inode::{FileType, InodeFlags, InodeSlot, RawInode, RawInodeExtra};
use blockyard_disk::jbd2::RawJournalSuperblock;
use blockyard_disk::layout::FieldPlace;
use blockyard_disk::mmp::RawMmp;
use blockyard_disk::superblock::RawSuperblock;
use blockyard_disk::{Checksums, Incompat, RoCompat};
use zerocopy::FromBytes;

use super::{Field, Owner};

/// What a structure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The primary superblock.
    Superblock,
    /// A group descriptor of the primary table.
    GroupDesc,
    /// A block bitmap.
    BlockBitmap,
    /// An inode bitmap.
    InodeBitmap,
    /// An inode in use.
    Inode,
    /// A node of an extent tree in a block.
    ExtentNode,
    /// An indirect block.
    Indirect,
    /// A block of a linear directory, or a leaf of an indexed one.
    DirBlock,
    /// A root or node of a directory's index.
    HtreeBlock,
    /// An attribute block.
    XattrBlock,
    /// A block of the orphan file.
    OrphanBlock,
    /// The MMP block.
    Mmp,
    /// The superblock of the journal.
    JournalSuperblock,
    /// An inode that is not in use: reserved, deleted, or never used.
    FreeInode,
    /// An indirect block of the resize inode.
    ResizeMap,
    /// A backup of the superblock.
    BackupSuperblock,
    /// The first descriptor of a backup table.
    BackupDesc,
    /// The target of a long symbolic link.
    SymlinkTarget,
    /// A block of an attribute value that has an inode of its own.
    Value,
    /// A block of a quota file.
    Quota,
}

/// One structure.
#[derive(Clone, Copy, Debug)]
pub struct Structure {
    /// What it is.
    pub kind: Kind,
    /// Byte offset in the image.
    pub at: usize,
    /// Length in bytes.
    pub length: usize,
    /// What it belongs to.
    pub owner: Owner,
    /// Generation of the owning inode, for checksums.
    pub(super) generation: u32,
}

/// The structures of an image, with its bytes.
#[derive(Clone, Debug)]
pub struct Inventory {
    pub(super) bytes: Vec<u8>,
    pub(super) sb: RawSuperblock,
    pub(super) checksums: Checksums,
    /// The structures in a fixed order.
    pub structures: Vec<Structure>,
}

impl Inventory {
    /// Reads a valid image.
    ///
    /// # Panics
    /// When the image cannot be read. It may also panic when the image is not valid.
    #[must_use]
    pub fn read(image: &Path) -> Self {
        let bytes = std::fs::read(image).expect("read image");
        let (sb, _) = RawSuperblock::read_from_prefix(&bytes[1024..]).expect("superblock");
        let checksums = Checksums::of(&sb);
        let mut inventory = Self { bytes, sb, checksums, structures: Vec::new() };
        inventory.list_static();
        inventory.list_inodes();
        inventory
    }

    pub(super) fn block_size(&self) -> usize {
        1024 << self.sb.s_log_block_size.get()
    }

    pub(super) fn desc_size(&self) -> usize {
        if self.sb.incompat().contains(Incompat::BIT64) { usize::from(self.sb.s_desc_size.get()) } else { 32 }
    }

    pub(super) fn inode_size(&self) -> usize {
        if self.sb.s_rev_level.get() == 0 { 128 } else { usize::from(self.sb.s_inode_size.get()) }
    }

    fn groups(&self) -> u32 {
        let blocks = self.sb.blocks_count().raw() - u64::from(self.sb.s_first_data_block.get());
        blocks.div_ceil(u64::from(self.sb.s_blocks_per_group.get())) as u32
    }

    /// Byte offset of a group's descriptor. The descriptor is in the table after the superblock,
    /// or, with meta_bg, in the group's meta group.
    pub(super) fn desc_at(&self, group: u32) -> usize {
        let size = self.block_size();
        let table = if size == 1024 { 2 * size } else { size };
        let per_block = size / self.desc_size();
        let (block, inside) = (group as usize / per_block, group as usize % per_block);
        let meta = self.sb.incompat().contains(Incompat::META_BG) && block > 0;
        let start = if meta {
            let first = self.sb.s_first_data_block.get() as usize
                + block * per_block * self.sb.s_blocks_per_group.get() as usize;
            first * size + usize::from(is_backup(block * per_block)) * size
        } else {
            table + block * size
        };
        start + inside * self.desc_size()
    }

    pub(super) fn desc(&self, group: u32) -> RawGroupDesc {
        let at = self.desc_at(group);
        RawGroupDesc::from_disk(&self.bytes[at..at + self.desc_size()])
    }

    fn add(&mut self, kind: Kind, at: usize, length: usize, owner: Owner, generation: u32) {
        self.structures.push(Structure { kind, at, length, owner, generation });
    }

    fn list_static(&mut self) {
        self.add(Kind::Superblock, 1024, 1024, Owner::default(), 0);
        let size = self.block_size();
        for group in 0..self.groups() {
            let owner = Owner { group: Some(group), ..Owner::default() };
            self.add(Kind::GroupDesc, self.desc_at(group), self.desc_size(), owner, 0);
            let desc = self.desc(group);
            let at = |block: u64| block as usize * size;
            if !desc.flags().contains(GroupFlags::BLOCK_UNINIT) {
                self.add(Kind::BlockBitmap, at(desc.block_bitmap().raw()), size, owner, 0);
            }
            if !desc.flags().contains(GroupFlags::INODE_UNINIT) {
                self.add(Kind::InodeBitmap, at(desc.inode_bitmap().raw()), size, owner, 0);
            }
        }
        self.list_backups();
        if self.sb.incompat().contains(Incompat::MMP) {
            let block = self.sb.s_mmp_block.get();
            let owner = Owner { block: Some(block), ..Owner::default() };
            self.add(Kind::Mmp, block as usize * size, 1024, owner, 0);
        }
    }

    /// Lists the backups of the superblock, and without meta_bg also the first descriptor of each
    /// backup table. A group counts as having backups if its first block holds the superblock's
    /// magic.
    fn list_backups(&mut self) {
        let per_group = self.sb.s_blocks_per_group.get() as usize;
        for group in 1..self.groups() {
            let first = self.sb.s_first_data_block.get() as usize + group as usize * per_group;
            let at = first * self.block_size();
            if self.bytes.get(at + 0x38..at + 0x3A) != Some(&[0x53, 0xEF]) {
                continue;
            }
            let owner = Owner { group: Some(group), block: Some(first as u64), ..Owner::default() };
            self.add(Kind::BackupSuperblock, at, 1024, owner, 0);
            if !self.sb.incompat().contains(Incompat::META_BG) {
                let owner = Owner { block: Some(first as u64 + 1), ..owner };
                self.add(Kind::BackupDesc, at + self.block_size(), self.desc_size(), owner, 0);
            }
        }
    }

    fn list_inodes(&mut self) {
        let ipg = self.sb.s_inodes_per_group.get();
        let mut xattr_blocks = std::collections::BTreeSet::new();
        for group in 0..self.groups() {
            let desc = self.desc(group);
            if desc.flags().contains(GroupFlags::INODE_UNINIT) {
                continue;
            }
            for index in 0..ipg - desc.itable_unused().min(ipg) {
                let nr = group * ipg + index + 1;
                let at = desc.inode_table().raw() as usize * self.block_size()
                    + index as usize * self.inode_size();
                let slot = InodeSlot::new(self.bytes[at..at + self.inode_size()].to_vec());
                if slot.raw().i_links_count.get() == 0 {
                    if nr <= 10 || slot.raw().i_mode.get() != 0 || index % 64 == 1 {
                        let owner = Owner { inode: Some(nr), ..Owner::default() };
                        self.add(
                            Kind::FreeInode,
                            at,
                            self.inode_size(),
                            owner,
                            slot.raw().i_generation.get(),
                        );
                    }
                    continue;
                }
                let generation = slot.raw().i_generation.get();
                let owner = Owner { inode: Some(nr), ..Owner::default() };
                self.add(Kind::Inode, at, self.inode_size(), owner, generation);
                let acl = slot.raw().file_acl().raw();
                if acl != 0 && xattr_blocks.insert(acl) {
                    let owner = Owner { block: Some(acl), ..owner };
                    self.add(
                        Kind::XattrBlock,
                        acl as usize * self.block_size(),
                        self.block_size(),
                        owner,
                        generation,
                    );
                }
                if nr == self.sb.s_journal_inum.get() {
                    self.list_journal(nr, slot.raw());
                }
                if nr == 7 {
                    let before = self.structures.len();
                    self.list_indirect(nr, generation, &slot.raw().block_words(), &mut Vec::new());
                    for structure in &mut self.structures[before..] {
                        structure.kind = Kind::ResizeMap;
                    }
                }
                // The resize inode's map and the journal's superblock were listed above, under
                // kinds of their own.
                if nr != 7 && nr != self.sb.s_journal_inum.get() {
                    self.list_map(nr, &slot);
                }
            }
        }
    }

    fn list_journal(&mut self, nr: u32, raw: &RawInode) {
        let mut data = Vec::new();
        let before = self.structures.len();
        if raw.flags().contains(InodeFlags::EXTENTS) {
            self.list_extents(nr, 0, &raw.i_block, &mut data);
        } else {
            data.push((0, u64::from(raw.block_words()[0])));
        }
        self.structures.truncate(before);
        if let Some((_, block)) = data.first() {
            let owner = Owner { inode: Some(nr), block: Some(*block), ..Owner::default() };
            self.add(Kind::JournalSuperblock, *block as usize * self.block_size(), 1024, owner, 0);
        }
    }

    fn list_map(&mut self, nr: u32, slot: &InodeSlot<Vec<u8>>) {
        let raw = slot.raw();
        let generation = raw.i_generation.get();
        let flags = raw.flags();
        let kind = raw.file_type();
        let long_link = kind == Some(FileType::Symlink) && raw.size() >= 60;
        let mapped = (matches!(kind, Some(FileType::Regular | FileType::Directory)) || long_link)
            && !flags.contains(InodeFlags::INLINE_DATA);
        if !mapped {
            return;
        }
        let mut data = Vec::new();
        if flags.contains(InodeFlags::EXTENTS) {
            self.list_extents(nr, generation, &raw.i_block, &mut data);
        } else {
            self.list_indirect(nr, generation, &raw.block_words(), &mut data);
        }
        let orphan_file = self.sb.s_orphan_file_inum.get() == nr;
        let quota_files = [self.sb.s_usr_quota_inum, self.sb.s_grp_quota_inum, self.sb.s_prj_quota_inum];
        let quota_file = quota_files.iter().any(|inode| inode.get() == nr);
        for (logical, block) in data {
            let at = block as usize * self.block_size();
            let owner = Owner { inode: Some(nr), block: Some(block), ..Owner::default() };
            if orphan_file {
                self.add(Kind::OrphanBlock, at, self.block_size(), owner, generation);
            } else if quota_file {
                self.add(Kind::Quota, at, self.block_size(), owner, generation);
            } else if flags.contains(InodeFlags::EA_INODE) {
                self.add(Kind::Value, at, self.block_size(), owner, generation);
            } else if long_link {
                self.add(Kind::SymlinkTarget, at, self.block_size(), owner, generation);
            } else if kind == Some(FileType::Directory) {
                let index = flags.contains(InodeFlags::INDEX) && (logical == 0 || self.looks_like_node(at));
                let kind = if index { Kind::HtreeBlock } else { Kind::DirBlock };
                self.add(kind, at, self.block_size(), owner, generation);
            }
        }
    }

    fn looks_like_node(&self, at: usize) -> bool {
        let rec_len = u16::from_le_bytes([self.bytes[at + 4], self.bytes[at + 5]]);
        self.bytes[at..at + 4] == [0; 4]
            && usize::from(rec_len) == self.block_size()
            && self.bytes[at + 8] != 0
    }

    fn list_extents(&mut self, nr: u32, generation: u32, root: &[u8; 60], data: &mut Vec<(u64, u64)>) {
        let mut nodes = vec![root.to_vec()];
        while let Some(node) = nodes.pop() {
            let (header, _) = RawExtentHeader::read_from_prefix(&node).expect("header");
            for entry in node[12..].chunks_exact(12).take(usize::from(header.eh_entries.get())) {
                if header.eh_depth.get() > 0 {
                    let leaf = RawExtentIndex::read_from_bytes(entry).expect("12 bytes").leaf().raw();
                    let at = leaf as usize * self.block_size();
                    let owner = Owner { inode: Some(nr), block: Some(leaf), ..Owner::default() };
                    self.add(Kind::ExtentNode, at, self.block_size(), owner, generation);
                    nodes.push(self.bytes[at..at + self.block_size()].to_vec());
                } else {
                    let extent = RawExtent::read_from_bytes(entry).expect("12 bytes");
                    let (logical, start) = (u64::from(extent.ee_block.get()), extent.start().raw());
                    // The first 512 blocks of an extent are enough: only files that are small, such
                    // as directories and the orphan file, have data blocks that are listed.
                    data.extend((0..u64::from(extent.length()).min(512)).map(|n| (logical + n, start + n)));
                }
            }
        }
    }

    fn list_indirect(&mut self, nr: u32, generation: u32, words: &[u32; 15], data: &mut Vec<(u64, u64)>) {
        data.extend(
            words[..12]
                .iter()
                .zip(0..)
                .filter(|(word, _)| **word != 0)
                .map(|(word, n)| (n, u64::from(*word))),
        );
        let mut tables: Vec<(u32, u32)> = words[12..].iter().copied().zip(0..).collect();
        while let Some((word, level)) = tables.pop() {
            if word == 0 {
                continue;
            }
            let at = word as usize * self.block_size();
            let owner = Owner { inode: Some(nr), block: Some(u64::from(word)), ..Owner::default() };
            self.add(Kind::Indirect, at, self.block_size(), owner, generation);
            let table = self.bytes[at..at + self.block_size()].to_vec();
            for pointer in table.chunks_exact(4) {
                let pointer = u32::from_le_bytes(pointer.try_into().expect("4 bytes"));
                if level > 0 {
                    tables.push((pointer, level - 1));
                } else if pointer != 0 {
                    data.push((u64::MAX, u64::from(pointer)));
                }
            }
        }
    }

    pub(super) fn kinds(&self) -> Vec<Kind> {
        let mut kinds: Vec<Kind> = self.structures.iter().map(|structure| structure.kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    /// The fields of a structure that a mutation may change.
    pub(super) fn fields(&self, structure: &Structure) -> Vec<Field> {
        let bytes = &self.bytes[structure.at..structure.at + structure.length];
        let table = |fields: &'static [FieldPlace], base: usize| {
            fields.iter().map(move |field| (field.name, base + field.offset, field.size))
        };
        match structure.kind {
            Kind::Superblock | Kind::BackupSuperblock => table(RawSuperblock::FIELDS, 0).collect(),
            Kind::GroupDesc | Kind::BackupDesc => {
                table(RawGroupDesc::FIELDS, 0).filter(|field| field.1 + field.2 <= structure.length).collect()
            }
            Kind::JournalSuperblock => {
                // With s_errno set, e2fsck -n tries to write, fails, and exits with an arbitrary
                // code.
                let fields = table(RawJournalSuperblock::FIELDS, 0)
                    .filter(|field| field.2 <= 16 && field.0 != "s_errno");
                let more = [
                    ("h_magic", 0, 4),
                    ("h_blocktype", 4, 4),
                    ("s_users", 0x100, 16),
                    ("s_users", 0x110, 16),
                ];
                fields.chain(more).collect()
            }
            Kind::Mmp => table(RawMmp::FIELDS, 0).filter(|field| field.2 <= 64).collect(),
            Kind::BlockBitmap | Kind::InodeBitmap => self.bitmap_fields(structure),
            Kind::Inode | Kind::FreeInode => inode_fields(bytes),
            Kind::ExtentNode => {
                let tail = 12 + 12 * usize::from(u16::from_le_bytes([bytes[4], bytes[5]]));
                let sum = (tail + 4 <= bytes.len()).then_some(("et_checksum", tail, 4));
                extent_fields(bytes, 0).into_iter().chain(sum).collect()
            }
            Kind::Value => [0, 1, bytes.len() / 2, bytes.len() - 1].map(|at| ("value", at, 1)).to_vec(),
            Kind::Quota => quota_fields(bytes),
            Kind::Indirect => pointer_fields(bytes, 16),
            Kind::ResizeMap => pointer_fields(bytes, 64),
            Kind::SymlinkTarget => {
                let length = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len() - 1);
                [0, length / 2, length - 1, length, bytes.len() - 1].map(|at| ("target", at, 1)).to_vec()
            }
            Kind::DirBlock => dir_fields(bytes),
            Kind::HtreeBlock => htree_fields(bytes),
            Kind::XattrBlock => xattr_fields(bytes, 0, 32),
            Kind::OrphanBlock => {
                let tail = bytes.len() - 8;
                vec![
                    ("slot", 0, 4),
                    ("slot", 40, 4),
                    ("slot", tail - 4, 4),
                    ("magic", tail, 4),
                    ("checksum", tail + 4, 4),
                ]
            }
        }
    }

    fn bitmap_fields(&self, structure: &Structure) -> Vec<Field> {
        let bits = match structure.kind {
            Kind::BlockBitmap => self.sb.s_clusters_per_group.get(),
            _ => self.sb.s_inodes_per_group.get(),
        };
        let padding = bits as usize / 8..structure.length;
        let bits = (0..bits as usize / 8).step_by(7).map(|at| ("bits", at, 1));
        bits.chain(padding.step_by(67).map(|at| ("padding", at, 1))).collect()
    }

    /// Whether the file system has metadata checksums (crc32c).
    pub(super) fn has_csum(&self) -> bool {
        self.sb.ro_compat().contains(RoCompat::METADATA_CSUM)
    }
}

/// Fields of a block of a quota file: its first eight words, and in each KiB the first 64 words
/// that are not zero.
fn quota_fields(bytes: &[u8]) -> Vec<Field> {
    let mut fields: Vec<Field> = (0..32).step_by(4).map(|at| ("quota header", at, 4)).collect();
    for block in (0..bytes.len()).step_by(1024) {
        let used = (block..block + 1024).step_by(4).filter(|&at| bytes[at..at + 4] != [0; 4]);
        fields.extend(used.take(64).map(|at| ("quota word", at, 4)));
    }
    fields
}

/// The pointers that are not zero, and the first `zeroes` pointers that are zero.
fn pointer_fields(bytes: &[u8], mut zeroes: usize) -> Vec<Field> {
    let mut fields = Vec::new();
    for (at, word) in (0..).step_by(4).zip(bytes.chunks_exact(4)) {
        let is_set = word != [0; 4];
        if is_set || zeroes > 0 {
            zeroes -= usize::from(!is_set);
            fields.push(("pointer", at, 4));
        }
    }
    fields
}

fn is_backup(group: usize) -> bool {
    group <= 1
        || [3, 5, 7].iter().any(|&base| {
            std::iter::successors(Some(base), |n| Some(n * base))
                .take_while(|&n| n <= group)
                .any(|n| n == group)
        })
}

fn inode_fields(bytes: &[u8]) -> Vec<Field> {
    let slot = InodeSlot::new(bytes);
    let raw = slot.raw();
    let mut fields: Vec<Field> = RawInode::FIELDS
        .iter()
        .filter(|field| field.name != "i_block")
        .map(|field| (field.name, field.offset, field.size))
        .collect();
    if bytes.len() > RawInode::SIZE {
        fields.extend(RawInodeExtra::FIELDS.iter().map(|field| (field.name, 128 + field.offset, field.size)));
        let area = 128 + usize::from(slot.extra_isize());
        if bytes.get(area..area + 4) == Some(&0xEA02_0000u32.to_le_bytes()) {
            fields.extend(xattr_fields(&bytes[area..], area, 4));
        }
    }
    let flags = raw.flags();
    let inline_directory =
        flags.contains(InodeFlags::INLINE_DATA) && raw.file_type() == Some(FileType::Directory);
    if flags.contains(InodeFlags::EXTENTS) {
        fields.extend(extent_fields(&raw.i_block, 40));
    } else if inline_directory {
        fields.push(("parent", 40, 4));
        fields
            .extend(dir_fields(&raw.i_block[4..]).into_iter().map(|field| (field.0, 44 + field.1, field.2)));
    } else {
        fields.extend((0..15).map(|word| ("i_block", 40 + 4 * word, 4)));
    }
    fields
}

fn extent_fields(bytes: &[u8], base: usize) -> Vec<Field> {
    let mut fields = vec![
        ("eh_magic", base, 2),
        ("eh_entries", base + 2, 2),
        ("eh_max", base + 4, 2),
        ("eh_depth", base + 6, 2),
        ("eh_generation", base + 8, 4),
    ];
    let entries = usize::from(u16::from_le_bytes([bytes[2], bytes[3]]));
    let leaf = bytes[6..8] == [0, 0];
    for entry in 0..entries {
        let at = base + 12 + 12 * entry;
        fields.extend(if leaf {
            [
                ("ee_block", at, 4),
                ("ee_len", at + 4, 2),
                ("ee_start_hi", at + 6, 2),
                ("ee_start_lo", at + 8, 4),
            ]
        } else {
            [
                ("ei_block", at, 4),
                ("ei_leaf_lo", at + 4, 4),
                ("ei_leaf_hi", at + 8, 2),
                ("ei_unused", at + 10, 2),
            ]
        });
    }
    fields
}

fn dir_fields(bytes: &[u8]) -> Vec<Field> {
    let mut fields = Vec::new();
    let mut at = 0;
    while at + 12 <= bytes.len() {
        let rec_len = usize::from(u16::from_le_bytes([bytes[at + 4], bytes[at + 5]]));
        let name_len = usize::from(bytes[at + 6]);
        fields.extend([
            ("inode", at, 4),
            ("rec_len", at + 4, 2),
            ("name_len", at + 6, 1),
            ("file_type", at + 7, 1),
        ]);
        if name_len > 0 {
            fields.push(("name", at + 8, 1));
            fields.push(("name", (at + 7 + name_len).min(bytes.len() - 1), 1));
        }
        if name_len == 0 && rec_len == 12 && at + 12 == bytes.len() {
            fields.push(("det_checksum", at + 8, 4));
        }
        if rec_len < 12 {
            break;
        }
        at += rec_len;
    }
    fields
}

fn htree_fields(bytes: &[u8]) -> Vec<Field> {
    let root = bytes[8] == b'.' && bytes[6] == 1;
    let mut fields = Vec::new();
    let start = if root {
        fields.extend([
            ("dot inode", 0, 4),
            ("dotdot inode", 12, 4),
            ("dotdot rec_len", 16, 2),
            ("reserved_zero", 24, 4),
            ("hash_version", 28, 1),
            ("info_length", 29, 1),
            ("indirect_levels", 30, 1),
            ("unused_flags", 31, 1),
        ]);
        32
    } else {
        fields.extend([("fake inode", 0, 4), ("fake rec_len", 4, 2)]);
        8
    };
    fields.extend([("limit", start, 2), ("count", start + 2, 2), ("block", start + 4, 4)]);
    let count = usize::from(u16::from_le_bytes([bytes[start + 2], bytes[start + 3]]));
    for entry in 1..count {
        fields.extend([("hash", start + 8 * entry, 4), ("block", start + 8 * entry + 4, 4)]);
    }
    let limit = usize::from(u16::from_le_bytes([bytes[start], bytes[start + 1]]));
    if start + 8 * limit + 8 <= bytes.len() {
        fields.extend([("dt_reserved", start + 8 * limit, 4), ("dt_checksum", start + 8 * limit + 4, 4)]);
    }
    fields
}

fn xattr_fields(area: &[u8], base: usize, first: usize) -> Vec<Field> {
    let mut fields = vec![("magic", base, 4)];
    if first == 32 {
        fields.extend([("h_refcount", base + 4, 4), ("h_blocks", base + 8, 4), ("h_hash", base + 12, 4)]);
        fields.extend([("h_checksum", base + 16, 4), ("h_reserved", base + 20, 12)]);
    }
    let mut at = first;
    while at + 16 <= area.len() && area[at..at + 4] != [0; 4] {
        let place = base + at;
        fields.extend([
            ("e_name_len", place, 1),
            ("e_name_index", place + 1, 1),
            ("e_value_offs", place + 2, 2),
            ("e_value_inum", place + 4, 4),
            ("e_value_size", place + 8, 4),
            ("e_hash", place + 12, 4),
        ]);
        if area[at] > 0 {
            fields.push(("e_name", place + 16, 1));
        }
        let value = usize::from(u16::from_le_bytes([area[at + 2], area[at + 3]]))
            + if first == 32 { 0 } else { first };
        if area[at + 4..at + 8] == [0; 4] && area[at + 8..at + 12] != [0; 4] && value < area.len() {
            fields.push(("value", base + value, 1));
            let size = usize::from(u16::from_le_bytes([area[at + 8], area[at + 9]]));
            fields.push(("value", base + (value + size - 1).min(area.len() - 1), 1));
        }
        at += 16 + usize::from(area[at]).next_multiple_of(4);
    }
    fields
}
