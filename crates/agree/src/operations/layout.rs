//! What lies where on an image, read from its bytes: what two sides of a comparison are judged by.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use blockyard_device::{BlockDevice, FileDevice};
use blockyard_disk::{BlockNr, ExtentNode, Inode, InodeMap, InodeNr, indirect};
use blockyard_inspect::reader::Reader;

/// A run of mapped blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Piece {
    /// First logical block.
    pub logical: u32,
    /// First physical block.
    pub physical: u64,
    /// Blocks.
    pub length: u32,
    /// Reads as zeroes.
    pub unwritten: bool,
}

/// Everything that an inode has on the image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileLayout {
    /// Its number.
    pub inode: u32,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// Its extents, ascending.
    pub extents: Vec<Piece>,
    /// Blocks of its extent tree, or its indirect blocks, top-down.
    pub tree: Vec<u64>,
    /// Its attribute block.
    pub attributes: Option<u64>,
}

/// The bitmaps of a group; in-use bits are 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLayout {
    /// Clusters.
    pub blocks: Arc<[u8]>,
    /// Inodes.
    pub inodes: Arc<[u8]>,
}

/// An image, by path. An inode with several names stands at the first of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of a block.
    pub block_size: u64,
    /// Every inode that has a name.
    pub files: BTreeMap<String, FileLayout>,
    /// Every group.
    pub groups: Vec<GroupLayout>,
}

impl Layout {
    /// Reads an image file.
    ///
    /// # Errors
    /// Where the image can not be read or is damaged.
    pub fn of_file(path: &Path) -> Result<Self> {
        Self::of(Arc::new(FileDevice::open_read_only(path)?))
    }

    /// Reads the image on a device.
    ///
    /// # Errors
    /// As [`Self::of_file`].
    pub fn of(device: Arc<dyn BlockDevice>) -> Result<Self> {
        let reader = Reader::open(device)?;
        let geometry = reader.superblock().geometry();
        let mut layout = Self {
            block_size: blockyard_disk::num::u64_from_usize(geometry.block_size()),
            ..Self::default()
        };
        for group in geometry.all_groups() {
            let desc = reader.group(group)?;
            layout.groups.push(GroupLayout {
                blocks: reader.block_bitmap(&desc)?,
                inodes: reader.inode_bitmap(&desc)?,
            });
        }
        let mut seen = BTreeSet::new();
        let mut waiting = vec![(String::new(), InodeNr::ROOT)];
        while let Some((path, number)) = waiting.pop() {
            if !seen.insert(number) {
                continue;
            }
            let inode = reader.inode(number).with_context(|| path.clone())?;
            if inode.is_directory() {
                waiting.extend(children(&reader, &inode, &path)?);
            }
            let file = file_layout(&reader, &inode).with_context(|| path.clone())?;
            layout.files.insert(if path.is_empty() { "/".to_owned() } else { path }, file);
        }
        Ok(layout)
    }
}

/// The names in a directory, the last one first, so that the first is visited first.
fn children(reader: &Reader, directory: &Inode, path: &str) -> Result<Vec<(String, InodeNr)>> {
    let mut names = BTreeSet::new();
    for entry in reader.entries(directory)? {
        let entry = entry?;
        if entry.name != b"." && entry.name != b".." {
            names.insert((format!("{path}/{}", String::from_utf8_lossy(&entry.name)), entry.inode));
        }
    }
    Ok(names.into_iter().rev().collect())
}

fn file_layout(reader: &Reader, inode: &Inode) -> Result<FileLayout> {
    let mut extents = Vec::new();
    for extent in reader.extents(inode) {
        let extent = extent?;
        extents.push(Piece {
            logical: extent.logical.raw(),
            physical: extent.physical.raw(),
            length: extent.length,
            unwritten: extent.unwritten,
        });
    }
    Ok(FileLayout {
        inode: inode.number().raw(),
        is_directory: inode.is_directory(),
        extents,
        tree: match inode.map() {
            InodeMap::Extents => extent_tree(reader, inode)?,
            InodeMap::Indirect => indirect_blocks(reader, inode)?,
            _ => Vec::new(),
        },
        attributes: inode.file_acl().map(BlockNr::raw),
    })
}

/// The blocks of an extent tree; its depth is bounded by what the nodes' bounds allow.
fn extent_tree(reader: &Reader, inode: &Inode) -> Result<Vec<u64>> {
    let geometry = reader.superblock().geometry();
    let root = ExtentNode::parse_root(geometry, inode.block_field())?;
    let children = |node: &ExtentNode<'_>| -> Vec<_> {
        if node.depth() == 0 {
            return Vec::new();
        }
        (0..node.len()).rev().filter_map(|at| node.child(at)).collect()
    };
    let mut waiting = children(&root);
    let mut blocks = Vec::new();
    while let Some(child) = waiting.pop() {
        blocks.push(child.block.raw());
        let block = reader.block(child.block)?;
        let node = ExtentNode::parse_block(geometry, &block, child.bounds, inode.checksum_seed())?;
        waiting.extend(children(&node));
    }
    Ok(blocks)
}

/// The indirect blocks of a block map. No more are read than the map of one inode can have in use.
fn indirect_blocks(reader: &Reader, inode: &Inode) -> Result<Vec<u64>> {
    let geometry = reader.superblock().geometry();
    let words = inode.slot().raw().block_words();
    let roots = words.into_iter().enumerate().skip(indirect::DIRECT);
    let mut waiting: Vec<(u32, usize)> =
        roots.map(|(at, raw)| (raw, at + 1 - indirect::DIRECT)).rev().collect();
    let mut blocks = Vec::new();
    while let Some((raw, levels)) = waiting.pop() {
        let Some(block) = indirect::pointer(geometry, raw)? else { continue };
        anyhow::ensure!(
            blockyard_disk::num::u64_from_usize(blocks.len()) < geometry.blocks_count().raw(),
            "inode {} has indirect blocks that contain each other",
            inode.number()
        );
        blocks.push(block.raw());
        if levels > 1 {
            let bytes = reader.block(block)?;
            waiting.extend(indirect::pointers(&bytes).iter().rev().map(|raw| (raw.get(), levels - 1)));
        }
    }
    Ok(blocks)
}
