//! Compares a tree with what ext4-view reads, a crate that is not part of this project.

use blockyard_device::FileDevice;
use blockyard_disk::{Incompat, InodeNr};
use blockyard_inspect::reader::Reader;
use blockyard_testkit::tree::{Content, ContentHash, Node, Tree};
use std::path::Path;
use std::sync::Arc;

/// Asserts that ext4-view reads the same from an image as `tree` has: permissions, owners, content
/// of files, targets of links, and the number of entries of each directory but the root.
///
/// The content of a file is not compared where ext4-view 0.9 is known to misread it. It takes a
/// hole in a block map for a damaged pointer, and returns the old content of unwritten extents.
pub(crate) fn assert_same(image: &Path, tree: &Tree) {
    let reader = Reader::open(Arc::new(FileDevice::open_read_only(image).unwrap())).unwrap();
    let block_maps = !reader.superblock().features().incompat.contains(Incompat::EXTENTS);
    let misread = |node: &Node| {
        let inode = reader.inode(InodeNr::new(u32::try_from(node.inode).unwrap())).unwrap();
        let unwritten = reader.extents(&inode).any(|extent| extent.unwrap().unwritten);
        unwritten || (block_maps && node.size.div_ceil(512) > node.sectors)
    };
    let view = ext4_view::Ext4::load_from_path(image).unwrap();
    for (path, node) in tree.iter().filter(|(path, _)| !path.is_empty()) {
        let full = [b"/", &path[..]].concat();
        let full = ext4_view::Path::try_from(&full[..]).unwrap();
        let meta = view.symlink_metadata(full).unwrap();
        let mine = (node.mode & 0o7777, node.uid, node.gid);
        assert_eq!(mine, (u32::from(meta.mode()), meta.uid(), meta.gid()), "{}", full.display());
        match &node.content {
            Content::Hash(_) if misread(node) => {}
            Content::Hash(hash) => {
                let mut theirs = ContentHash::default();
                theirs.add(&view.read(full).unwrap_or_else(|error| panic!("{}: {error}", full.display())));
                assert_eq!((*hash, node.size), (theirs.finish(), meta.len()), "{}", full.display());
            }
            Content::Target(target) => {
                assert_eq!(view.read_link(full).unwrap().as_ref(), &target[..]);
            }
            Content::None if meta.is_dir() => {
                let prefix = [&path[..], b"/"].concat();
                let below = tree
                    .range(prefix.clone()..)
                    .map_while(|(name, _)| name.strip_prefix(&prefix[..]))
                    .filter(|rest| !rest.contains(&b'/'));
                let theirs = view.read_dir(full).unwrap().count();
                assert_eq!(below.count() + 2, theirs, "{}", full.display());
            }
            Content::None => {}
        }
    }
}
