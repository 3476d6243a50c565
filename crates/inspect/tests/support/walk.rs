//! The tree of a file system as the reader shows it, to be compared with the kernel's.

use blockyard_disk::inode::FileType;
use blockyard_disk::{Inode, InodeMap};
use blockyard_inspect::reader::Reader;
use blockyard_testkit::tree::{Content, Node, Tree, hash_of, join, time};

fn reader_node(reader: &Reader, inode: &Inode) -> Node {
    let raw = inode.slot().raw();
    let content = match inode.file_type() {
        FileType::Regular => hash_of(|at, buf| reader.read(inode, at, buf).unwrap()),
        FileType::Symlink => Content::Target(reader.symlink_target(inode).unwrap()),
        _ => Content::None,
    };
    let device = match inode.map() {
        InodeMap::Device(number) => (number.major, number.minor),
        _ => (0, 0),
    };
    Node {
        inode: inode.number().raw().into(),
        mode: inode.mode().into(),
        uid: raw.uid(),
        gid: raw.gid(),
        links: inode.links().into(),
        size: inode.size(),
        // In `st_blocks`, the kernel counts a file's inline data as if it had sectors of its own.
        sectors: match (inode.map(), inode.file_type()) {
            (InodeMap::Inline, FileType::Regular) => inode.sectors() + inode.size().div_ceil(512),
            _ => inode.sectors(),
        },
        device,
        accessed: time(inode.slot().accessed()),
        modified: time(inode.slot().modified()),
        changed: time(inode.slot().changed()),
        created: inode.slot().created().map(time),
        content,
        xattrs: reader.xattrs(inode).unwrap().into_iter().map(|attr| (attr.name, attr.value)).collect(),
    }
}

/// What a [`Reader`] shows.
pub(crate) fn of_reader(reader: &Reader) -> Tree {
    let mut tree = Tree::new();
    let mut left = vec![(Vec::new(), reader.root().unwrap())];
    while let Some((path, inode)) = left.pop() {
        if inode.is_directory() {
            for entry in reader.entries(&inode).unwrap() {
                let entry = entry.unwrap();
                if entry.name == b"." || entry.name == b".." {
                    continue;
                }
                let child = reader.inode(entry.inode).unwrap();
                assert!(entry.file_type.is_none_or(|kind| kind == child.file_type()));
                left.push((join(&path, &entry.name), child));
            }
        }
        assert!(tree.insert(path, reader_node(reader, &inode)).is_none(), "a name twice");
    }
    tree
}
