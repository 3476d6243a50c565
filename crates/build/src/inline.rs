//! Which content is stored in inodes (`inline_data`), and how: the first 60 bytes go where the
//! block mapping would be, the rest into the value of the attribute `system.data`.
//!
//! A file, directory or link target is inline if this value fits into the inode beside all its
//! other attributes. So an inline inode has neither data nor attributes in blocks. Holes of an
//! inline file are stored as zeroes. The root directory is never inline, as mke2fs makes it.

use crate::shape::{self, Shape};
use crate::tree::{NodeId, Tree};
use blockyard_disk::inline_data::{HEAD_LEN, PackedDir, XATTR_INDEX, XATTR_NAME, names_tail_len, pack_names};
use blockyard_disk::inode::FileType;
use blockyard_disk::num::u64_from_usize;
use blockyard_disk::xattr::{Attribute, AttributeList, Home, Value};

/// Inline content of an inode.
pub(crate) struct Inline {
    /// The content of `i_block`.
    pub(crate) head: [u8; HEAD_LEN],
    /// All attributes of the inode, including the rest of the content.
    pub(crate) attributes: AttributeList,
    /// `i_size` of an inline directory: the bytes in `i_block` and in the attribute's value.
    pub(crate) capacity: u64,
}

/// Bytes that the content of an inode needs in the attribute's value. `None` if the content cannot
/// be inline, if it is a short link target, or if the type of file has no content.
fn tail_len(tree: &Tree, shape: &Shape, id: NodeId) -> Option<usize> {
    let node = tree.node(id);
    let beyond_head = |len: usize| len.saturating_sub(HEAD_LEN);
    match node.kind {
        FileType::Regular => Some(beyond_head(usize::try_from(node.size).ok()?)),
        FileType::Symlink if !node.is_fast_symlink() => Some(beyond_head(node.target.len.into())),
        FileType::Directory => {
            let names = &tree.directory(node.directory).nodes;
            // The shortest entry takes 12 bytes, so more names than this do not fit.
            let is_few = names.len() <= usize::from(shape.inode_size) / 12;
            is_few.then(|| names_tail_len(names.iter().map(|name| name.name.len.into())))
        }
        _ => None,
    }
}

/// Whether the content of an inode is inline. Short link targets are not: they are in `i_block`
/// without the inode flag `INLINE_DATA`.
pub(crate) fn is_inline(tree: &Tree, shape: &Shape, id: NodeId) -> bool {
    let room = shape.attribute_room().inode;
    shape.has_inline_data
        && tail_len(tree, shape, id).filter(|&len| len <= room).is_some_and(|len| {
            let area = |list: &AttributeList| list.area_len(Home::Inode);
            let others = tree.attributes(Some(id)).map_or_else(|| area(&AttributeList::default()), area);
            others + attribute(vec![0; len]).stored_len() <= room
        })
}

fn attribute(value: Vec<u8>) -> Attribute {
    Attribute { index: XATTR_INDEX, name: XATTR_NAME.to_vec(), value: Value::Bytes(value) }
}

/// Inline content for a file or a link target.
pub(crate) fn of_bytes(bytes: &[u8], attributes: Option<&AttributeList>) -> Inline {
    let (first, rest) = bytes.split_at(bytes.len().min(HEAD_LEN));
    let mut head = [0; HEAD_LEN];
    head[..first.len()].copy_from_slice(first);
    Inline::new(head, rest.to_vec(), attributes)
}

/// Inline content for a directory.
pub(crate) fn of_directory(
    (tree, shape): (&Tree, &Shape),
    number: u32,
    parent: u32,
    attributes: Option<&AttributeList>,
) -> Inline {
    let names = shape::names(tree.directory(number), false);
    let PackedDir { head, tail } = pack_names(parent, &names, shape.directories);
    Inline::new(head, tail, attributes)
}

impl Inline {
    fn new(head: [u8; HEAD_LEN], tail: Vec<u8>, attributes: Option<&AttributeList>) -> Self {
        let mut attributes = attributes.cloned().unwrap_or_default();
        let capacity = u64_from_usize(HEAD_LEN + tail.len());
        attributes.set(attribute(tail));
        Self { head, attributes, capacity }
    }
}
