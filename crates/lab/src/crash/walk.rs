//! The visible state of a file system, read by the engine or from a mounted directory. It serves to
//! compare the results of different recoveries of one image.
//!
//! Access times are left out, because reading changes them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use blockyard_device::BlockDevice;
use blockyard_disk::inode::FileType;
use blockyard_disk::num::usize_from_u64;
use blockyard_disk::{InodeNr, Timestamp};
use blockyard_engine::{FileSystem, OpenOptions};
use rustix::fs::{AtFlags, CWD, StatxFlags, lgetxattr, llistxattr, statx};

use crate::target::engine::context;

/// Largest attribute value, or list of attribute names, of any workload.
const XATTR_MAX: usize = 64 << 10;

/// The bits of a mode that hold the type.
const TYPE: u16 = 0o170_000;

/// A tree: nodes by path relative to its root, which has the empty path.
pub(super) type Tree = BTreeMap<Vec<u8>, Node>;

/// One name of a tree, with everything that is compared.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) inode: u64,
    /// Type and permissions.
    pub(super) mode: u16,
    pub(super) links: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) size: u64,
    /// Units of 512 bytes.
    pub(super) sectors: u64,
    pub(super) device: (u32, u32),
    pub(super) modified: (i64, u32),
    pub(super) changed: (i64, u32),
    pub(super) created: Option<(i64, u32)>,
    pub(super) content: Content,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// The content of a node.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Content {
    /// No content to compare: directories, devices, pipes, sockets, and regular files in a walk
    /// that leaves content out.
    None,
    /// A regular file's bytes.
    Bytes(Vec<u8>),
    /// A symbolic link's target.
    Target(Vec<u8>),
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { inode, mode, links, uid, gid, size, sectors, modified, changed, .. } = self;
        write!(
            f,
            "inode {inode} mode {mode:o} links {links} owner {uid}:{gid} size {size} sectors {sectors} "
        )?;
        write!(f, "times {modified:?} {changed:?} {:?} device {:?} ", self.created, self.device)?;
        match &self.content {
            Content::None => f.write_str("-")?,
            Content::Bytes(bytes) => write!(f, "content {:016x}", hash_of(bytes))?,
            Content::Target(target) => write!(f, "target {}", String::from_utf8_lossy(target))?,
        }
        for (name, value) in &self.xattrs {
            write!(f, " {}={:016x}", String::from_utf8_lossy(name), hash_of(value))?;
        }
        Ok(())
    }
}

/// A hash for comparisons and messages.
pub(super) fn hash_of(value: &impl Hash) -> u64 {
    let mut hash = std::hash::DefaultHasher::new();
    value.hash(&mut hash);
    hash.finish()
}

/// A path as shown in messages.
pub(super) fn shown(path: &[u8]) -> String {
    format!("/{}", String::from_utf8_lossy(path).chars().take(80).collect::<String>())
}

/// The first difference between two trees.
pub(super) fn difference(ours: &Tree, theirs: &Tree) -> Option<String> {
    for (path, node) in theirs {
        match ours.get(path) {
            None => return Some(format!("{} is not in ours", shown(path))),
            Some(mine) if mine != node => {
                return Some(format!("{}: ours {mine:?}; theirs {node:?}", shown(path)));
            }
            Some(_) => {}
        }
    }
    let extra = ours.keys().find(|path| !theirs.contains_key(*path))?;
    Some(format!("{} is only in ours", shown(extra)))
}

/// A hash of all paths with their types, permissions, link counts, owners, extended attributes, and
/// the targets of symbolic links. Sizes, times and the content of files are left out.
pub(super) fn names_hash(tree: &Tree) -> u64 {
    let mut hash = std::hash::DefaultHasher::new();
    for (path, node) in tree {
        path.hash(&mut hash);
        (node.mode, node.links, node.uid, node.gid).hash(&mut hash);
        node.xattrs.hash(&mut hash);
        if let Content::Target(target) = &node.content {
            target.hash(&mut hash);
        }
    }
    hash.finish()
}

/// The tree on a device, read by the engine without writing.
pub(super) fn of_device(device: Arc<dyn BlockDevice>) -> Result<Tree> {
    let options = OpenOptions { read_only: true, cpus: 1, ..OpenOptions::default() };
    let fs = FileSystem::open(device, options, &context(0)).context("open for reading")?;
    of_engine(&fs, Files::Read)
}

/// How a walk treats the content of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Files {
    /// Reads the content.
    Read,
    /// Leaves the content out.
    Named,
}

/// The tree of an open file system.
pub(super) fn of_engine(fs: &FileSystem, files: Files) -> Result<Tree> {
    let mut tree = Tree::new();
    let mut left = vec![(Vec::new(), InodeNr::ROOT)];
    while let Some((path, inode)) = left.pop() {
        let node = engine_node(fs, inode, files).with_context(|| shown(&path))?;
        if node.mode & TYPE == FileType::Directory.mode_bits() {
            let listed = fs.read_dir(inode, 0, |entry| {
                if entry.name != b"." && entry.name != b".." {
                    left.push((join(&path, &entry.name), entry.inode));
                }
                true
            });
            listed.with_context(|| shown(&path))?;
        }
        tree.insert(path, node);
    }
    Ok(tree)
}

fn join(parent: &[u8], name: &[u8]) -> Vec<u8> {
    if parent.is_empty() { name.to_vec() } else { [parent, b"/", name].concat() }
}

fn engine_node(fs: &FileSystem, inode: InodeNr, files: Files) -> Result<Node> {
    let found = fs.attributes(inode)?;
    let content = match found.kind {
        FileType::Regular if files == Files::Read => {
            let mut bytes = vec![0; usize_from_u64(found.size)];
            let read = fs.read(&context(0), inode, 0, &mut bytes)?;
            bytes.truncate(read);
            Content::Bytes(bytes)
        }
        FileType::Symlink => Content::Target(fs.read_link(inode)?),
        _ => Content::None,
    };
    let mut xattrs = BTreeMap::new();
    for name in fs.xattr_names(inode)? {
        let value = fs.xattr(inode, &name)?;
        xattrs.insert(name, value);
    }
    let time = |time: Timestamp| (time.seconds, time.nanoseconds);
    Ok(Node {
        inode: u64::from(inode.raw()),
        mode: found.kind.mode_bits() | found.permissions,
        links: found.links,
        uid: found.uid,
        gid: found.gid,
        size: found.size,
        sectors: found.sectors,
        device: found.device.map_or((0, 0), |device| (device.major, device.minor)),
        modified: time(found.modified),
        changed: time(found.changed),
        created: found.created.map(time),
        content,
        xattrs,
    })
}

/// The tree below a mounted directory.
pub(super) fn of_mount(root: &Path) -> Result<Tree> {
    let mut tree = Tree::new();
    let mut left = vec![Vec::new()];
    while let Some(path) = left.pop() {
        let full = root.join(OsStr::from_bytes(&path));
        let node = mount_node(&full).with_context(|| shown(&path))?;
        if node.mode & TYPE == FileType::Directory.mode_bits() {
            for entry in std::fs::read_dir(&full).with_context(|| shown(&path))? {
                left.push(join(&path, &entry?.file_name().into_vec()));
            }
        }
        tree.insert(path, node);
    }
    Ok(tree)
}

fn mount_node(path: &Path) -> Result<Node> {
    let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let stat = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, mask).context("statx")?;
    let content = match FileType::from_mode(stat.stx_mode) {
        Some(FileType::Regular) => Content::Bytes(std::fs::read(path).context("read")?),
        Some(FileType::Symlink) => Content::Target(std::fs::read_link(path)?.into_os_string().into_vec()),
        _ => Content::None,
    };
    let has_btime = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
    let time = |time: rustix::fs::StatxTimestamp| (time.tv_sec, time.tv_nsec);
    Ok(Node {
        inode: stat.stx_ino,
        mode: stat.stx_mode,
        links: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        size: stat.stx_size,
        sectors: stat.stx_blocks,
        device: (stat.stx_rdev_major, stat.stx_rdev_minor),
        modified: time(stat.stx_mtime),
        changed: time(stat.stx_ctime),
        created: has_btime.then(|| time(stat.stx_btime)),
        content,
        xattrs: mount_xattrs(path).context("attributes")?,
    })
}

fn mount_xattrs(path: &Path) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut xattrs = BTreeMap::new();
    let mut names = vec![0; XATTR_MAX];
    let length = llistxattr(path, &mut names[..])?;
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; XATTR_MAX];
        let length = lgetxattr(path, name, &mut value[..])?;
        value.truncate(length);
        xattrs.insert(name.to_vec(), value);
    }
    Ok(xattrs)
}
