//! The tree of a file system as the reader, and as an open instance, show it: to compare with what the kernel shows.

use std::collections::BTreeMap;

use blockyard_disk::inode::FileType;
use blockyard_disk::{Inode, InodeMap, InodeNr, Timestamp};
use blockyard_engine::{FileSystem, OpContext};
use blockyard_inspect::reader::Reader;
use blockyard_testkit::tree::{Content, ContentHash, Node, Time, Tree};

fn time(at: Timestamp) -> Time {
    (at.seconds, at.nanoseconds)
}

/// Hash of what `read` gives from ascending offsets until it gives nothing. An odd size makes reads begin and end
/// inside blocks.
fn hash_of(mut read: impl FnMut(u64, &mut [u8]) -> usize) -> Content {
    let mut hash = ContentHash::default();
    let mut buf = vec![0; 177_777];
    let mut at = 0;
    loop {
        let got = read(at, &mut buf);
        if got == 0 {
            return Content::Hash(hash.finish());
        }
        hash.add(&buf[..got]);
        at += got as u64;
    }
}

fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    let mut below = path.to_vec();
    if !below.is_empty() {
        below.push(b'/');
    }
    below.extend(name);
    below
}

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
        // The kernel counts a file's inline data as if it were on the device.
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

/// What an open file system shows. Allocated space includes what is only reserved.
#[allow(dead_code)]
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

#[allow(dead_code)]
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
