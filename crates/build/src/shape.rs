//! The properties of the file system that the layout depends on, and names as directory entries.

use crate::attributes::Room;
use crate::mapping::Mapping;
use crate::tree::{Directory, Node};
use blockyard_disk::dirblock::DirLayout;
use blockyard_disk::inode::FileType;
use blockyard_disk::num::usize_from_u64;
use blockyard_disk::whole_directory::{Indexing, Name};

/// The properties of the file system that the layout depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) block_size: u64,
    /// Blocks per cluster.
    pub(crate) cluster: u64,
    pub(crate) inode_size: u16,
    pub(crate) mapping: Mapping,
    pub(crate) has_value_inodes: bool,
    /// Whether small content is stored in inodes (`inline_data`).
    pub(crate) has_inline_data: bool,
    pub(crate) directories: DirLayout,
    pub(crate) indexing: Option<Indexing>,
}

impl Shape {
    /// The number of blocks for this many bytes.
    pub(crate) fn blocks(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.block_size)
    }

    /// The space for the attributes of one inode.
    pub(crate) fn attribute_room(&self) -> Room {
        Room {
            inode: usize::from(self.inode_size).saturating_sub(128 + 32),
            block: usize_from_u64(self.block_size),
            has_value_inodes: self.has_value_inodes,
        }
    }
}

/// The entries of a directory, sorted by name. The root also has lost+found.
pub(crate) fn names(directory: &Directory, is_root: bool) -> Vec<Name<'_>> {
    let name = |node: &Node| (directory.text(node.name), node.inode, node.kind);
    let own = is_root.then_some((&b"lost+found"[..], 11, FileType::Directory));
    let all = own.into_iter().chain(directory.nodes.iter().map(name));
    let mut names: Vec<Name<'_>> =
        all.map(|(bytes, inode, file_type)| Name { bytes, inode, file_type }).collect();
    names.sort_unstable_by_key(|name| name.bytes);
    names
}
