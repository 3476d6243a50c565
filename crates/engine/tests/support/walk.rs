//! The tree of a file system as an open instance shows it, to compare with the tree that the kernel
//! shows.

use blockyard_disk::inode::FileType;
use blockyard_disk::{InodeNr, Timestamp};
use blockyard_engine::{FileSystem, OpContext};
use blockyard_testkit::tree::{Content, Node, Tree, hash_of, join, time};
use std::collections::BTreeMap;

/// The tree that an open file system shows. Allocated space includes reservations.
pub(crate) fn of_engine(fs: &FileSystem) -> Tree {
    let mut tree = Tree::new();
    // A file with many names is read once.
    let mut known: BTreeMap<InodeNr, Node> = BTreeMap::new();
    let mut left = vec![(Vec::new(), InodeNr::ROOT)];
    while let Some((path, inode)) = left.pop() {
        let node = known.entry(inode).or_insert_with(|| engine_node(fs, inode)).clone();
        if node.mode & 0o170_000 == 0o040_000 {
            let mut entries = Vec::new();
            fs.read_dir(inode, 0, |entry| {
                entries.push(entry);
                true
            })
            .unwrap();
            for entry in entries.into_iter().filter(|entry| entry.name != b"." && entry.name != b"..") {
                left.push((join(&path, &entry.name), entry.inode));
            }
        }
        assert!(tree.insert(path, node).is_none(), "a name twice");
    }
    tree
}

fn engine_node(fs: &FileSystem, inode: InodeNr) -> Node {
    let ctx = OpContext::root_at(Timestamp::from_seconds(0));
    let seen = fs.attributes(inode).unwrap_or_else(|error| panic!("inode {inode}: {error}"));
    let content = match seen.kind {
        FileType::Regular => hash_of(|at, buf| fs.read(&ctx, inode, at, buf).unwrap()),
        FileType::Symlink => Content::Target(fs.read_link(inode).unwrap()),
        _ => Content::None,
    };
    let value = |name: Vec<u8>| {
        let value = fs.xattr(inode, &name).unwrap();
        (name, value)
    };
    Node {
        inode: inode.raw().into(),
        mode: u32::from(seen.kind.mode_bits() | seen.permissions),
        uid: seen.uid,
        gid: seen.gid,
        links: seen.links,
        size: seen.size,
        sectors: seen.sectors,
        device: seen.device.map_or((0, 0), |number| (number.major, number.minor)),
        accessed: time(seen.accessed),
        modified: time(seen.modified),
        changed: time(seen.changed),
        created: seen.created.map(time),
        content,
        xattrs: fs.xattr_names(inode).unwrap().into_iter().map(value).collect(),
    }
}
