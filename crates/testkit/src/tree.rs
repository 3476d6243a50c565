//! A directory tree as data: what a mounted file system shows, to be compared with what our library
//! reads.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use blockyard_disk::{Timestamp, num};
use rustix::fs::{AtFlags, CWD, StatxFlags, lgetxattr, llistxattr, statx};

/// A point in time: seconds and nanoseconds.
pub type Time = (i64, u32);

/// One name of a tree with everything that can be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Inode number.
    pub inode: u64,
    /// Type and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// Number of hard links.
    pub links: u32,
    /// Size in bytes.
    pub size: u64,
    /// Allocated space in units of 512 bytes.
    pub sectors: u64,
    /// Major and minor number of a device node; otherwise 0.
    pub device: (u32, u32),
    /// Last access.
    pub accessed: Time,
    /// Last change of the content.
    pub modified: Time,
    /// Last change of the inode.
    pub changed: Time,
    /// Creation; `None` where it is not recorded.
    pub created: Option<Time>,
    /// The content, or a hash of it.
    pub content: Content,
    /// Extended attributes by full name.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A whole tree: nodes by path relative to its root, which has the empty path.
pub type Tree = BTreeMap<Vec<u8>, Node>;

/// Asserts that two trees are equal.
///
/// # Panics
/// Naming the first path that differs, and how.
pub fn assert_same(ours: &Tree, theirs: &Tree) {
    let shown = |path: &[u8]| String::from_utf8_lossy(path).chars().take(80).collect::<String>();
    for (path, node) in theirs {
        let mine = ours.get(path).unwrap_or_else(|| panic!("{} is missing", shown(path)));
        assert_eq!(mine, node, "{}: ours left, theirs right", shown(path));
    }
    if let Some(extra) = ours.keys().find(|path| !theirs.contains_key(*path)) {
        panic!("{} is only in ours", shown(extra));
    }
}

/// The content of a [`Node`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing that is compared: directories, devices, pipes, sockets.
    None,
    /// [`ContentHash`] of a regular file.
    Hash(u64),
    /// Target of a symbolic link.
    Target(Vec<u8>),
}

/// Hash of a file's bytes, the same however they are cut into pieces.
#[derive(Debug, Default)]
pub struct ContentHash(std::hash::DefaultHasher);

impl ContentHash {
    /// Adds the next bytes of the file.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// The hash of all bytes added.
    #[must_use]
    pub fn finish(&self) -> u64 {
        self.0.finish()
    }
}

/// Everything below a directory, by path relative to it. The directory itself has the empty path.
///
/// # Panics
/// When something cannot be read.
#[must_use]
pub fn read_tree(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut left = vec![Vec::new()];
    while let Some(path) = left.pop() {
        let full = root.join(std::ffi::OsStr::from_bytes(&path));
        let node = read_node(&full);
        if node.mode & 0o170_000 == 0o040_000 {
            for entry in std::fs::read_dir(&full).expect("a directory is listed") {
                let name = entry.expect("an entry is read").file_name().into_vec();
                let mut below = path.clone();
                if !below.is_empty() {
                    below.push(b'/');
                }
                below.extend(name);
                left.push(below);
            }
        }
        tree.insert(path, node);
    }
    tree
}

/// One node of a mounted tree.
///
/// # Panics
/// When the node cannot be read.
#[must_use]
pub fn read_node(path: &Path) -> Node {
    let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let stat = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, mask)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mode = u32::from(stat.stx_mode);
    let content = match mode & 0o170_000 {
        0o100_000 => Content::Hash(hash_file(path)),
        0o120_000 => {
            let target = std::fs::read_link(path).expect("a symbolic link is read");
            Content::Target(target.into_os_string().into_vec())
        }
        _ => Content::None,
    };
    let has_btime = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
    let btime = (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec);
    Node {
        inode: stat.stx_ino,
        mode,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        links: stat.stx_nlink,
        size: stat.stx_size,
        sectors: stat.stx_blocks,
        device: (stat.stx_rdev_major, stat.stx_rdev_minor),
        accessed: (stat.stx_atime.tv_sec, stat.stx_atime.tv_nsec),
        modified: (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec),
        changed: (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec),
        created: has_btime.then_some(btime),
        content,
        xattrs: read_xattrs(path),
    }
}

fn hash_file(path: &Path) -> u64 {
    let mut file = std::fs::File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut hash = ContentHash::default();
    let mut buf = vec![0; 1 << 16];
    loop {
        let read = file.read(&mut buf).expect("a file is read");
        if read == 0 {
            return hash.finish();
        }
        hash.add(&buf[..read]);
    }
}

fn read_xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 1 << 16];
    let length = llistxattr(path, &mut names[..]).expect("attributes are listed");
    let mut xattrs = BTreeMap::new();
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 1 << 16];
        let length = lgetxattr(path, name, &mut value[..]).expect("an attribute is read");
        value.truncate(length);
        xattrs.insert(name.to_vec(), value);
    }
    xattrs
}

/// A time as [`Node`] holds it.
pub fn time(at: Timestamp) -> Time {
    (at.seconds, at.nanoseconds)
}

/// Hash of a file's bytes. `read` is called with ascending offsets, until it returns 0 bytes. The
/// odd buffer size makes reads begin and end inside blocks.
pub fn hash_of(mut read: impl FnMut(u64, &mut [u8]) -> usize) -> Content {
    let mut hash = ContentHash::default();
    let mut buf = vec![0; 177_777];
    let mut at = 0;
    loop {
        let got = read(at, &mut buf);
        if got == 0 {
            return Content::Hash(hash.finish());
        }
        hash.add(&buf[..got]);
        at += num::u64_from_usize(got);
    }
}

/// The path of a name in a directory.
pub fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    let mut below = path.to_vec();
    if !below.is_empty() {
        below.push(b'/');
    }
    below.extend(name);
    below
}
