//! The layout of an image, read from its bytes. A comparison judges both sides by their layouts.

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
    /// Whether the run is unwritten, and so reads as zeroes.
    pub unwritten: bool,
}

/// Which blocks an inode occupies on the image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileLayout {
    /// The inode's number.
    pub inode: u32,
    /// Whether the inode is a directory.
    pub is_directory: bool,
    /// The extents, ascending.
    pub extents: Vec<Piece>,
    /// The blocks of the extent tree, or the indirect blocks, in depth-first order: each block
    /// comes before the blocks that it points to.
    pub tree: Vec<u64>,
    /// The attribute block.
    pub attributes: Option<u64>,
}

/// The bitmaps of a group; in-use bits are 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLayout {
    /// The block bitmap: a bit for each cluster.
    pub blocks: Arc<[u8]>,
    /// The inode bitmap.
    pub inodes: Arc<[u8]>,
}

/// The layout of an image: its files by path, and its bitmaps by group. A depth-first walk takes
/// the names of each directory in sorted order. An inode with several names is listed under the
/// first that the walk reaches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of a block.
    pub block_size: u64,
    /// The root as `/`, and every inode that has a name.
    pub files: BTreeMap<String, FileLayout>,
    /// The bitmaps of every group.
    pub groups: Vec<GroupLayout>,
}

impl Layout {
    /// Reads an image file.
    ///
    /// # Errors
    /// When the image cannot be read or is damaged.
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

/// The paths of the entries of a directory except `.` and `..`, in reverse order, because the
/// caller pops them.
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

/// The blocks of an extent tree. The walk parses each child with the bounds from the parent's
/// entry, which say what depth the child must have. The walk ends even if the tree is damaged,
/// because the depth falls at each step.
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

/// The indirect blocks of a block map. The walk goes at most three levels deep, so it ends even if
/// blocks point to each other. A map with more indirect blocks than the file system has blocks is
/// an error.
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

#[cfg(test)]
mod tests {
    use super::*;
    use blockyard_device::MemoryDevice;
    use blockyard_disk::inode::FileType;
    use blockyard_engine::{FileSystem, NewInode, OpContext, OpenOptions, XattrMode, mkfs};
    use blockyard_lab::target::engine::context;

    const REGULAR: NewInode = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };

    /// The layout of an image with 1 KiB blocks after `work`.
    fn layout(options: mkfs::Options, work: impl FnOnce(&FileSystem, &OpContext)) -> Layout {
        let device = Arc::new(MemoryDevice::new(32 << 20));
        mkfs::format(&*device, &options.block_size(1024).identity(1, 1)).unwrap();
        let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
        let ctx = context(0);
        let fs = FileSystem::open(shared, OpenOptions::default(), &ctx).unwrap();
        work(&fs, &ctx);
        fs.close(&ctx).unwrap();
        Layout::of(device).unwrap()
    }

    /// Whether the bitmaps mark a block as in use. The first group begins at block 1, and a group
    /// has 8192 blocks.
    fn is_used(layout: &Layout, block: u64) -> bool {
        let bit = usize::try_from(block - 1).unwrap();
        let (group, bit) = (bit / 8192, bit % 8192);
        layout.groups[group].blocks[bit / 8] >> (bit % 8) & 1 == 1
    }

    /// Five blocks with holes between them need more than the four entries of an inode, so a tree
    /// block holds them.
    #[test]
    fn a_file_has_its_extents_and_the_blocks_of_its_tree() {
        let layout = layout(mkfs::Options::ext4(), |fs, ctx| {
            let file = fs.create(ctx, InodeNr::ROOT, b"holes", &REGULAR).unwrap();
            for number in 0..5 {
                fs.write(ctx, file, number * 4096, &[1; 1024]).unwrap();
            }
            let file = fs.create(ctx, InodeNr::ROOT, b"whole", &REGULAR).unwrap();
            fs.write(ctx, file, 0, &[1; 3000]).unwrap();
            fs.set_xattr(ctx, file, b"user.long", &[b'v'; 500], XattrMode::Set).unwrap();
        });
        assert_eq!(layout.block_size, 1024);
        let holes = &layout.files["/holes"];
        let logical: Vec<_> = holes.extents.iter().map(|piece| (piece.logical, piece.length)).collect();
        assert_eq!(logical, [(0, 1), (4, 1), (8, 1), (12, 1), (16, 1)]);
        assert_eq!((holes.tree.len(), holes.attributes, holes.is_directory), (1, None, false));
        assert!(holes.extents.iter().all(|piece| piece.physical != holes.tree[0] && !piece.unwritten));
        let whole = &layout.files["/whole"];
        assert_eq!((whole.extents.len(), whole.extents[0].length, whole.tree.len()), (1, 3, 0));
        assert!(whole.attributes.is_some_and(|block| is_used(&layout, block)), "{whole:?}");
        assert!(layout.files["/"].is_directory && layout.files["/"].inode == 2);
        // 32,767 blocks (block 0 is in no group), 8192 for each group.
        assert_eq!(layout.groups.len(), 4);
        let mut pieces = holes.extents.iter().chain(&whole.extents);
        assert!(pieces.all(|piece| is_used(&layout, piece.physical)) && is_used(&layout, holes.tree[0]));
        assert!(!is_used(&layout, 32_767), "the last block of an image that is nearly empty");
    }

    /// An inode maps 12 blocks directly and 256 through its indirect block. A file with one block
    /// more needs two further blocks: the double-indirect block and an indirect block below it.
    #[test]
    fn a_block_map_has_its_indirect_blocks() {
        let layout = layout(mkfs::Options::ext3(), |fs, ctx| {
            for (name, blocks) in [(&b"direct"[..], 12), (b"single", 268), (b"double", 269)] {
                let file = fs.create(ctx, InodeNr::ROOT, name, &REGULAR).unwrap();
                fs.write(ctx, file, 0, &vec![1; blocks * 1024]).unwrap();
            }
        });
        for (name, blocks, indirect) in [("/direct", 12, 0), ("/single", 268, 1), ("/double", 269, 3)] {
            let file = &layout.files[name];
            assert_eq!(file.extents.iter().map(|piece| piece.length).sum::<u32>(), blocks, "{name}");
            assert_eq!(file.tree.len(), indirect, "{name}");
        }
    }
}
