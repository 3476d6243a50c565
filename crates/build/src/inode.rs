//! One inode, as it is stored in the table.

use crate::inline::Inline;
use crate::layout::Blocks;
use crate::mapping::Mapped;
use crate::shape::Shape;
use crate::tree::{Directory, Node};
use blockyard_disk::BlockNr;
use blockyard_disk::InodeNr;
use blockyard_disk::checksum::Checksums;
use blockyard_disk::device_number::DeviceNumber;
use blockyard_disk::inode::{FileType, InodeFlags, InodeSlot};
use blockyard_disk::num::{low16, u64_from_usize};
use blockyard_disk::xattr::AttributeList;

/// The most links that an inode counts. A directory with more stores a link count of 1, which means
/// that its links are not counted.
pub(crate) const LINKS_MAX: u32 = 65_000;

/// Bytes of the fields after the first 128 bytes of an inode (`i_extra_isize`).
const EXTRA: u16 = 32;

/// What an inode is made of.
pub(crate) struct Source<'a> {
    pub(crate) number: u32,
    pub(crate) node: &'a Node,
    /// The target of a symbolic link.
    pub(crate) target: &'a [u8],
    /// The attributes in the inode.
    pub(crate) attributes: Option<&'a AttributeList>,
    /// The content, if it is inline.
    pub(crate) inline: Option<&'a Inline>,
    /// The block with the other attributes, which other inodes may share.
    pub(crate) attribute_block: Option<u64>,
    /// Blocks of the value inodes to which this inode's attributes refer. They count in `i_blocks`
    /// of every inode that refers to them.
    pub(crate) blocks_of_values: u64,
    pub(crate) flags: InodeFlags,
    pub(crate) blocks: &'a Blocks,
    pub(crate) map: Option<&'a Mapped>,
    pub(crate) is_indexed: bool,
}

impl Source<'_> {
    /// Writes the inode with its checksum.
    pub(crate) fn write(&self, bytes: &mut [u8], shape: &Shape, checksums: &Checksums) {
        let node = self.node;
        bytes.fill(0);
        let mut slot = InodeSlot::new(bytes);
        if shape.inode_size > 128 {
            slot.set_extra_isize(EXTRA);
            slot.set_created(node.modified);
            if let Some(list) = self.inline.map(|inline| &inline.attributes).or(self.attributes) {
                let fits = list.write_inode_area(&mut slot.bytes_mut()[128 + usize::from(EXTRA)..]);
                assert!(fits, "the plan chose attributes that fit");
            }
        }
        slot.set_accessed(node.modified);
        slot.set_changed(node.modified);
        slot.set_modified(node.modified);
        let raw = slot.raw_mut();
        raw.i_mode.set(node.kind.mode_bits() | node.permissions);
        raw.i_links_count.set(stored_links(node.kind, node.links));
        raw.set_uid(node.uid);
        raw.set_gid(node.gid);
        let is_shared = self.attribute_block.is_some() && self.blocks.attributes.is_none();
        let blocks = self.blocks.len + self.blocks_of_values + if is_shared { shape.cluster } else { 0 };
        raw.set_blocks_field(blocks * (shape.block_size / 512));
        if let Some(block) = self.attribute_block {
            raw.set_file_acl(BlockNr::new(block));
        }
        let mut flags = self.flags;
        match node.kind {
            FileType::Regular => raw.set_size(node.size),
            FileType::Symlink => raw.set_size(u64_from_usize(self.target.len())),
            FileType::Directory => {
                let blocks = self.blocks.runs.iter().map(|run| run.len).sum::<u64>();
                raw.set_size(self.inline.map_or(blocks * shape.block_size, |inline| inline.capacity));
                flags.set(InodeFlags::INDEX, self.is_indexed);
            }
            FileType::CharDevice | FileType::BlockDevice => set_device(raw, node.size),
            FileType::Fifo | FileType::Socket => {}
        }
        if let Some(inline) = self.inline {
            raw.i_block = inline.head;
            flags |= InodeFlags::INLINE_DATA;
        } else if node.kind == FileType::Symlink && self.blocks.runs.is_empty() {
            raw.i_block[..self.target.len()].copy_from_slice(self.target);
        } else {
            flags |= self.map.map_or(InodeFlags::empty(), |map| set_map(raw, map, shape));
        }
        raw.set_flags(flags);
        checksums.seal_inode(InodeNr::new(self.number), &mut slot);
    }
}

/// The inode of an attribute's value.
pub(crate) struct StoredValue<'a> {
    pub(crate) number: u32,
    /// Bytes of the value.
    pub(crate) size: u64,
    /// Its hash, which is stored in `i_atime`.
    pub(crate) hash: u32,
    /// Attributes that refer to it. On disk, `i_version` holds the low half of this count, and
    /// `i_ctime` the high half, which is 0 here.
    pub(crate) references: u32,
    /// Blocks that it occupies.
    pub(crate) blocks: u64,
    pub(crate) map: &'a Mapped,
}

impl StoredValue<'_> {
    /// Writes the inode with its checksum.
    pub(crate) fn write(&self, bytes: &mut [u8], shape: &Shape, checksums: &Checksums) {
        bytes.fill(0);
        let mut slot = InodeSlot::new(bytes);
        if shape.inode_size > 128 {
            slot.set_extra_isize(EXTRA);
        }
        let raw = slot.raw_mut();
        raw.i_mode.set(FileType::Regular.mode_bits() | 0o600);
        raw.i_links_count.set(1);
        raw.i_atime.set(self.hash);
        raw.i_version.set(self.references);
        raw.set_size(self.size);
        raw.set_blocks_field(self.blocks * (shape.block_size / 512));
        let flags = set_map(raw, self.map, shape);
        raw.set_flags(flags | InodeFlags::EA_INODE);
        checksums.seal_inode(InodeNr::new(self.number), &mut slot);
    }
}

/// The link count to store.
fn stored_links(kind: FileType, links: u32) -> u16 {
    if kind == FileType::Directory && links > LINKS_MAX { 1 } else { low16(links) }
}

/// Sets `i_block`, and returns the flags that say how to read it.
fn set_map(raw: &mut blockyard_disk::inode::RawInode, map: &Mapped, shape: &Shape) -> InodeFlags {
    match map {
        Mapped::Extents(tree) => {
            raw.i_block = tree.root(shape.block_size);
            InodeFlags::EXTENTS
        }
        Mapped::Blocks(map) => {
            raw.set_block_words(map.words());
            InodeFlags::empty()
        }
    }
}

/// Whether a file that is not inline has a block mapping, which may be empty.
pub(crate) fn is_mapped(directory: &Directory, node: &Node) -> bool {
    match node.kind {
        FileType::Regular | FileType::Directory => true,
        FileType::Symlink => directory.text(node.target).len() >= 60,
        _ => false,
    }
}

/// Splits the host's form of a device number (`st_rdev`) into major and minor number.
pub(crate) fn device_number(host: u64) -> DeviceNumber {
    DeviceNumber { major: rustix::fs::major(host), minor: rustix::fs::minor(host) }
}

fn set_device(raw: &mut blockyard_disk::inode::RawInode, host: u64) {
    let stored = device_number(host).to_disk();
    let (short, wide) = stored.expect("the plan refuses numbers that are too large");
    let mut words = [0; 15];
    (words[0], words[1]) = (short, wide);
    raw.set_block_words(words);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_counts_up_to_65000_links() {
        let stored = |links| stored_links(FileType::Directory, links);
        assert_eq!([64_999, 65_000, 65_001].map(stored), [64_999, 65_000, 1]);
        assert_eq!(stored_links(FileType::Regular, 65_000), 65_000);
    }
}
