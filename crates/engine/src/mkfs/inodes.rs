//! The inodes of a new file system and the content of their blocks.

use blockyard_disk::checksum::{Checksums, seal_dir_leaf, seal_orphan_block};
use blockyard_disk::dirblock::{self, DirLayout, NewEntry};
use blockyard_disk::inode::{FileType, InodeFlags, InodeSlot, RawInode};
use blockyard_disk::num::{low16, low32, u32_from_u64, u64_from_usize, usize_from_u32, usize_from_u64};
use blockyard_disk::orphan_file::OrphanBlock;
use blockyard_disk::timestamp::Timestamp;
use blockyard_disk::{BlockNr, InodeNr};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};

use super::feature::{FILETYPE, INLINE_DATA, METADATA_CSUM};
use super::files::{FileBlocks, Mapping};
use super::layout::Layout;
use super::options::Options;
use super::reserved::{EXTRA_ISIZE, LOST_FOUND, ORPHAN_FILE, resize_size};

/// Marks an attribute area in an inode.
const ATTRIBUTE_MAGIC: u32 = 0xEA02_0000;

/// Size in bytes of a file whose blocks are all full.
pub(super) fn size_of(layout: &Layout, file: &FileBlocks) -> u64 {
    file.blocks() << layout.params.block_bits
}

/// Content of the inode table, from inode 1 to the last of [`Layout::own_inodes`].
pub(super) fn table(layout: &Layout, options: &Options, checksums: &Checksums) -> Vec<u8> {
    let slot = usize::from(layout.geometry.inode_size());
    let mut bytes = vec![0; slot * usize_from_u32(layout.own_inodes())];
    let maker =
        Maker { layout, time: Timestamp::from_seconds(i64::try_from(options.time).unwrap_or(i64::MAX)) };
    for (index, bytes) in bytes.chunks_exact_mut(slot).enumerate() {
        let number = InodeNr::new(blockyard_disk::num::u32_from_usize(index) + 1);
        let mut inode = InodeSlot::new(bytes);
        maker.fill(number, &mut inode, options);
        checksums.seal_inode(number, &mut inode);
        debug_assert!(checksums.verify_inode(number, &inode).is_ok(), "inode {number} would not be read");
    }
    bytes
}

struct Maker<'a> {
    layout: &'a Layout,
    time: Timestamp,
}

impl Maker<'_> {
    fn fill(&self, number: InodeNr, inode: &mut InodeSlot<&mut [u8]>, options: &Options) {
        let layout = self.layout;
        match number {
            InodeNr::BAD_BLOCKS => self.stamp(inode),
            InodeNr::ROOT => {
                self.file(inode, FileType::Directory.mode_bits() | 0o755, 3, &layout.files.root);
                if let Some((uid, gid)) = options.root_owner {
                    inode.raw_mut().set_uid(uid);
                    inode.raw_mut().set_gid(gid);
                }
            }
            InodeNr::RESIZE => self.resize(inode),
            InodeNr::JOURNAL => {
                if let Some(journal) = &layout.files.journal {
                    self.file(inode, FileType::Regular.mode_bits() | 0o600, 1, journal);
                }
            }
            LOST_FOUND => {
                self.file(inode, FileType::Directory.mode_bits() | 0o700, 2, &layout.files.lost_found);
                if layout.params.features.contains(INLINE_DATA) {
                    // mke2fs makes the directory inline first, and the directory then outgrows its
                    // inode. What is left is an empty attribute area, which is written here too.
                    let area = RawInode::SIZE + usize::from(EXTRA_ISIZE);
                    inode.bytes_mut()[area..area + 4].copy_from_slice(&ATTRIBUTE_MAGIC.to_le_bytes());
                }
            }
            ORPHAN_FILE => {
                if let Some(orphan) = &layout.files.orphan {
                    self.file(inode, FileType::Regular.mode_bits() | 0o600, 1, orphan);
                }
            }
            _ => {}
        }
    }

    /// Sets all times except that of creation.
    fn stamp(&self, inode: &mut InodeSlot<&mut [u8]>) {
        inode.set_accessed(self.time);
        inode.set_changed(self.time);
        inode.set_modified(self.time);
    }

    fn new_inode(&self, inode: &mut InodeSlot<&mut [u8]>, mode: u16, links: u16) {
        inode.set_extra_isize(EXTRA_ISIZE);
        self.stamp(inode);
        inode.set_created(self.time);
        inode.raw_mut().i_mode = U16::new(mode);
        inode.raw_mut().i_links_count = U16::new(links);
    }

    fn file(&self, inode: &mut InodeSlot<&mut [u8]>, mode: u16, links: u16, file: &FileBlocks) {
        self.new_inode(inode, mode, links);
        let raw = inode.raw_mut();
        raw.set_size(size_of(self.layout, file));
        raw.set_blocks_field(file.allocated << (self.layout.params.block_bits - 9));
        raw.set_block_words(block_words(self.layout, &file.mapping));
        if matches!(file.mapping, Mapping::Extents(_)) {
            raw.set_flags(InodeFlags::EXTENTS);
        }
    }

    /// The resize inode: one double-indirect block. It points to the reserved descriptor blocks of
    /// group 0. Each of these serves as an indirect block that points to its own copies in the
    /// groups with backups.
    fn resize(&self, inode: &mut InodeSlot<&mut [u8]>) {
        let Some(dind) = self.layout.files.resize else { return };
        self.new_inode(inode, FileType::Regular.mode_bits() | 0o600, 1);
        let params = &self.layout.params;
        let copies = u64_from_usize(self.layout.backups().len()) + 1;
        let clusters = 1 + self.layout.heads.reserved_gdt() * copies;
        let raw = inode.raw_mut();
        raw.set_size(resize_size(params));
        raw.set_blocks_field((clusters * params.cluster_ratio()) << (params.block_bits - 9));
        let mut words = [0; 15];
        words[13] = low32(dind);
        raw.set_block_words(words);
    }
}

/// `i_block` of a mapping, as 15 words.
pub(super) fn block_words(layout: &Layout, mapping: &Mapping) -> [u32; 15] {
    let mut words = [0; 15];
    match mapping {
        Mapping::Blocks { words, .. } => return *words,
        Mapping::Extents(tree) => {
            let bytes = tree.root(layout.params.block_size());
            for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
                *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            }
        }
    }
    words
}

/// Blocks that a file's mapping needs beyond its inode, with their content.
pub(super) fn map_blocks(
    layout: &Layout,
    checksums: &Checksums,
    owner: InodeNr,
    file: &FileBlocks,
) -> Vec<(u64, Vec<u8>)> {
    match &file.mapping {
        Mapping::Blocks { indirect, .. } => indirect
            .iter()
            .map(|(at, words)| (*at, words.iter().flat_map(|word| word.to_le_bytes()).collect()))
            .collect(),
        Mapping::Extents(tree) => tree.blocks(layout.params.block_size(), checksums.inode_seed(owner, 0)),
    }
}

/// The layout of this file system's directory blocks.
fn dir_layout(layout: &Layout) -> DirLayout {
    DirLayout {
        block_size: usize_from_u64(layout.params.block_size()),
        tail: layout.params.features.contains(METADATA_CSUM),
        file_types: layout.params.features.contains(FILETYPE),
        inodes_count: layout.geometry.inodes_count(),
    }
}

/// The one block of the root directory.
pub(super) fn root_block(layout: &Layout, checksums: &Checksums) -> Vec<u8> {
    let dir = dir_layout(layout);
    let mut block = vec![0; dir.block_size];
    dirblock::init_dots(&mut block, dir, InodeNr::ROOT.raw(), InodeNr::ROOT.raw());
    let entry = NewEntry { inode: LOST_FOUND.raw(), file_type: FileType::Directory, name: b"lost+found" };
    let fits = dirblock::insert(&mut block, dir, &entry).expect("the block was just initialised");
    assert!(fits, "a fresh block holds one name");
    seal_dir_leaf(checksums.inode_seed(InodeNr::ROOT, 0), &mut block);
    block
}

/// The blocks of lost+found: `.` and `..`, then empty ones, so that a checker can reconnect files
/// without allocating.
pub(super) fn lost_found_content(layout: &Layout, checksums: &Checksums) -> Vec<u8> {
    let dir = dir_layout(layout);
    let mut content = vec![0; usize_from_u64(size_of(layout, &layout.files.lost_found))];
    let seed = checksums.inode_seed(LOST_FOUND, 0);
    for (index, block) in content.chunks_exact_mut(dir.block_size).enumerate() {
        if index == 0 {
            dirblock::init_dots(block, dir, LOST_FOUND.raw(), InodeNr::ROOT.raw());
            if layout.params.features.contains(INLINE_DATA) {
                part_dots_from_rest(block, dir.usable());
            }
        } else {
            dirblock::init_empty(block, dir);
        }
        seal_dir_leaf(seed, block);
    }
    content
}

/// Splits the unused rest of `..` into an entry of its own, as in a directory that has outgrown its
/// inode.
fn part_dots_from_rest(block: &mut [u8], usable: usize) {
    let len = |bytes: usize| low16(blockyard_disk::num::u32_from_usize(bytes)).to_le_bytes();
    block[16..18].copy_from_slice(&len(12));
    block[28..30].copy_from_slice(&len(usable - 24));
}

/// One block of the orphan file, empty.
pub(super) fn orphan_block(layout: &Layout, checksums: &Checksums, at: u64) -> Vec<u8> {
    let mut block = vec![0; usize_from_u64(layout.params.block_size())];
    let magic = block.len() - 8;
    block[magic..magic + 4].copy_from_slice(&blockyard_disk::orphan_file::MAGIC.to_le_bytes());
    seal_orphan_block(checksums.inode_seed(ORPHAN_FILE, 0), BlockNr::new(at), &mut block);
    debug_assert!(OrphanBlock::parse(&block).is_ok_and(|block| block.inodes().count() == 0));
    block
}

/// The double-indirect block of the resize inode.
pub(super) fn resize_block(layout: &Layout) -> Vec<u8> {
    let mut block = vec![0; usize_from_u64(layout.params.block_size())];
    for (at, number) in reserved_blocks(layout) {
        put_word(&mut block, number, at);
    }
    block
}

/// The reserved descriptor blocks of group 0 with their index in the double-indirect block.
pub(super) fn reserved_blocks(layout: &Layout) -> impl Iterator<Item = (u64, u64)> {
    let fan_out = layout.params.block_size() / 4;
    let table = layout.heads.desc_blocks();
    let first = layout.params.first_block.max(layout.superblock_at()) + 1;
    (table..table + layout.heads.reserved_gdt()).map(move |number| (first + number, number % fan_out))
}

/// Content of a reserved descriptor block of group 0: where its copies are.
pub(super) fn reserved_content(layout: &Layout, at: u64) -> Vec<u8> {
    let mut block = vec![0; usize_from_u64(layout.params.block_size())];
    // The kernel, when it resizes, expects each copy at the same offset from a multiple of the
    // group size. With 1 KiB blocks and bigalloc, that is one block after the actual copy. mke2fs
    // writes these positions, and so do we.
    let offset = at - layout.params.first_block;
    for (index, group) in layout.backups().into_iter().enumerate() {
        let copy = layout.geometry.group_first_block(group).raw() + offset;
        put_word(&mut block, u64_from_usize(index), copy);
    }
    block
}

fn put_word(block: &mut [u8], index: u64, value: u64) {
    let at = usize_from_u64(index) * 4;
    block[at..at + 4].copy_from_slice(U32::new(u32_from_u64(value)).as_bytes());
}
