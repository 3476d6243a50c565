//! A tree of files, without their content.
//!
//! A tree is one list of directories. Each directory keeps its names in a single buffer. In a tree
//! of a million files, each file takes about 80 bytes.

use crate::left_out::LeftOut;
use blockyard_device::BlockDevice;
use blockyard_disk::Timestamp;
use blockyard_disk::inode::{FileType, InodeFlags};
use blockyard_disk::num::{low16, u32_from_usize, usize_from_u32};
use blockyard_disk::xattr::AttributeList;
use std::collections::{HashSet, VecDeque};
use std::ffi::OsStr;
use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The names and attributes that an image is made from.
#[derive(Debug)]
pub struct Tree {
    /// The source's name in messages.
    pub(crate) top: PathBuf,
    pub(crate) origin: Origin,
    /// Whether the source has a root directory. If not (a tree of one file), `root` is a stand-in.
    pub(crate) has_root: bool,
    /// The root directory itself; its name is empty.
    pub(crate) root: Node,
    pub(crate) root_attributes: AttributeList,
    pub(crate) root_flags: InodeFlags,
    /// Attributes that were left out, except those that the directories record.
    pub(crate) left_out: Option<Box<LeftOut>>,
    /// All directories, the root first.
    pub(crate) directories: Vec<Directory>,
}

/// The source of the content.
pub(crate) enum Origin {
    /// A directory of the host: each file is at its path in the tree.
    Directory(OwnedFd),
    /// A file that holds the content of all files.
    Spool(File),
    /// An image: files are found by their inodes.
    Image(Arc<dyn BlockDevice>),
    /// Other trees; the content of each file is in one of them.
    Trees(Vec<Tree>),
}

impl std::fmt::Debug for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Directory(_) => "Directory",
            Self::Spool(_) => "Spool",
            Self::Image(_) => "Image",
            Self::Trees(_) => "Trees",
        })
    }
}

/// A name in a tree: its directory, and its index there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NodeId {
    pub(crate) directory: u32,
    pub(crate) child: u32,
}

/// The names of a directory, sorted, and properties that only some of them have.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    /// The name of this directory; `None` for the root.
    pub(crate) own: Option<NodeId>,
    /// Names and targets of symbolic links.
    pub(crate) text: Vec<u8>,
    pub(crate) nodes: Vec<Node>,
    /// Extended attributes; by child, ascending.
    pub(crate) attributes: Vec<(u32, AttributeList)>,
    /// The byte ranges of sparse files that are not holes; by child, ascending.
    pub(crate) data: Vec<(u32, Vec<Range<u64>>)>,
    /// Flags that `chattr` sets; by child, ascending.
    pub(crate) flags: Vec<(u32, InodeFlags)>,
    /// Where the content of files is: its start in the spool in bytes, its inode in an image, or,
    /// in a merged tree, its number by [`number_of`](crate::content::number_of). By child,
    /// ascending.
    pub(crate) stored: Vec<(u32, u64)>,
    /// Attributes of children that were left out.
    pub(crate) left_out: Option<Box<LeftOut>>,
    /// The source inode of children with hard links; by child, ascending.
    pub(crate) linked: Vec<(u32, SourceInode)>,
}

/// Inode flags that are kept: they say how to treat a file, not how it is stored. Flags that need
/// support elsewhere are left out: those for projects, direct access (DAX) and compression.
pub(crate) const KEPT_FLAGS: InodeFlags = InodeFlags::SECRM
    .union(InodeFlags::UNRM)
    .union(InodeFlags::SYNC)
    .union(InodeFlags::IMMUTABLE)
    .union(InodeFlags::APPEND)
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::JOURNAL_DATA)
    .union(InodeFlags::NOTAIL)
    .union(InodeFlags::DIRSYNC)
    .union(InodeFlags::TOPDIR);

/// The id that no user or group has. In `chown` it means that the owner does not change. For Linux,
/// a file with this id has no owner.
pub(crate) const NO_OWNER: u32 = u32::MAX;

/// An inode of the source: device and number.
pub(crate) type SourceInode = (u64, u64);

/// Link targets of fewer bytes are stored in `i_block`.
const FAST_SYMLINK: u16 = 60;

/// One name, and the properties of the inode that it names.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// The name, in the directory's text.
    pub(crate) name: Text,
    pub(crate) kind: FileType,
    /// The low 12 bits of the mode.
    pub(crate) permissions: u16,
    /// Links in the image. A directory has 2, plus one for each directory in it.
    pub(crate) links: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) modified: Timestamp,
    /// Access time, for archives. A tree read from a directory of the host has the modification
    /// time here, because reading a file changes its access time.
    pub(crate) accessed: Timestamp,
    /// Bytes of a file or a link target; for a device, its number in the host's encoding.
    pub(crate) size: u64,
    /// For a directory, its index in [`Tree::directories`].
    pub(crate) directory: u32,
    /// For a symbolic link, its target.
    pub(crate) target: Text,
    /// The inode's number in the image.
    pub(crate) inode: u32,
    /// Whether another name holds the inode's content and attributes.
    pub(crate) is_alias: bool,
}

impl Node {
    /// Whether this is a symbolic link whose target is stored in place of the block mapping.
    pub(crate) fn is_fast_symlink(&self) -> bool {
        self.kind == FileType::Symlink && self.target.len < FAST_SYMLINK
    }
}

/// A part of a directory's text buffer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Text {
    pub(crate) start: u32,
    pub(crate) len: u16,
}

impl Text {
    /// Its range in the buffer.
    pub(crate) fn range(self) -> Range<usize> {
        let start = usize_from_u32(self.start);
        start..start + usize::from(self.len)
    }
}

impl Directory {
    /// Adds a name or a target.
    pub(crate) fn add_text(&mut self, bytes: &[u8]) -> Text {
        let start = u32_from_usize(self.text.len());
        self.text.extend_from_slice(bytes);
        Text { start, len: low16(u32_from_usize(bytes.len())) }
    }

    /// A name or a target.
    pub(crate) fn text(&self, text: Text) -> &[u8] {
        &self.text[text.range()]
    }

    /// Adds a child of another directory, with all its properties.
    fn take(&mut self, from: &Self, child: u32, mut node: Node) {
        let own = u32_from_usize(self.nodes.len());
        node.name = self.add_text(from.text(node.name));
        node.target = self.add_text(from.text(node.target));
        self.attributes.extend(from.attributes(child).map(|list| (own, list.clone())));
        self.flags.extend(from.flags(child).map(|flags| (own, flags)));
        self.data.extend(from.data(child).map(|data| (own, data.to_vec())));
        self.stored.extend(from.stored(child).map(|stored| (own, stored)));
        self.linked.extend(from.linked(child).map(|inode| (own, inode)));
        self.nodes.push(node);
    }

    /// The attributes of a child.
    pub(crate) fn attributes(&self, child: u32) -> Option<&AttributeList> {
        let at = self.attributes.binary_search_by_key(&child, |(child, _)| *child).ok()?;
        Some(&self.attributes[at].1)
    }

    pub(crate) fn attributes_mut(&mut self, child: u32) -> Option<&mut AttributeList> {
        let at = self.attributes.binary_search_by_key(&child, |(child, _)| *child).ok()?;
        Some(&mut self.attributes[at].1)
    }

    /// The flags of a child; `None` if it has no flags.
    pub(crate) fn flags(&self, child: u32) -> Option<InodeFlags> {
        let at = self.flags.binary_search_by_key(&child, |(child, _)| *child).ok()?;
        Some(self.flags[at].1)
    }

    /// The byte ranges of a sparse file that are not holes; `None` for a file without holes.
    pub(crate) fn data(&self, child: u32) -> Option<&[Range<u64>]> {
        let at = self.data.binary_search_by_key(&child, |(child, _)| *child).ok()?;
        Some(&self.data[at].1)
    }

    /// Where the content of a child is.
    pub(crate) fn stored(&self, child: u32) -> Option<u64> {
        let at = self.stored.binary_search_by_key(&child, |(child, _)| *child).ok()?;
        Some(self.stored[at].1)
    }

    /// The source inode that a child shares with other names.
    pub(crate) fn linked(&self, child: u32) -> Option<SourceInode> {
        let at = self.linked.binary_search_by_key(&child, |(child, _)| *child).ok()?;
        Some(self.linked[at].1)
    }
}

impl Tree {
    pub(crate) fn directory(&self, number: u32) -> &Directory {
        &self.directories[usize_from_u32(number)]
    }

    pub(crate) fn node(&self, id: NodeId) -> &Node {
        &self.directory(id.directory).nodes[usize_from_u32(id.child)]
    }

    pub(crate) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.directories[usize_from_u32(id.directory)].nodes[usize_from_u32(id.child)]
    }

    pub(crate) fn name(&self, id: NodeId) -> &[u8] {
        self.directory(id.directory).text(self.node(id).name)
    }

    /// The attributes of an inode; the id `None` is the root.
    pub(crate) fn attributes(&self, id: Option<NodeId>) -> Option<&AttributeList> {
        match id {
            Some(id) => self.directory(id.directory).attributes(id.child),
            None => (!self.root_attributes.is_empty()).then_some(&self.root_attributes),
        }
    }

    /// The flags of an inode; the id `None` is the root.
    pub(crate) fn flags(&self, id: Option<NodeId>) -> InodeFlags {
        match id {
            Some(id) => self.directory(id.directory).flags(id.child).unwrap_or(InodeFlags::empty()),
            None => self.root_flags,
        }
    }

    /// The path of a directory below the root, without a leading slash.
    pub(crate) fn directory_path(&self, number: u32) -> Vec<u8> {
        let mut names = Vec::new();
        let mut at = self.directory(number).own;
        while let Some(id) = at {
            names.push(self.name(id));
            at = self.directory(id.directory).own;
        }
        names.reverse();
        names.join(&b'/')
    }

    /// The path of a name below the root.
    pub(crate) fn path(&self, id: NodeId) -> Vec<u8> {
        let mut path = self.directory_path(id.directory);
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(self.name(id));
        path
    }

    /// The source's name, followed by a path below the root.
    pub(crate) fn host_path(&self, below: &[u8]) -> PathBuf {
        if below.is_empty() { self.top.clone() } else { self.top.join(OsStr::from_bytes(below)) }
    }

    /// The source's name, followed by the path of a name.
    pub(crate) fn host_path_of(&self, id: NodeId) -> PathBuf {
        self.host_path(&self.path(id))
    }

    /// The number of names in the tree, without the root.
    #[must_use]
    pub fn names(&self) -> usize {
        self.directories.iter().map(|directory| directory.nodes.len()).sum()
    }

    /// The source's name in messages.
    #[must_use]
    pub fn top(&self) -> &Path {
        &self.top
    }

    /// Extended attributes that were left out, because Linux does not allow them on an ext4 file:
    /// names that do not begin with `user.`, `trusted.` or `security.`, except access control
    /// lists; and names that system calls do not take. `None` if all were kept.
    #[must_use]
    pub fn left_out(&self) -> Option<LeftOut> {
        let mut all = self.left_out.clone();
        for one in self.directories.iter().filter_map(|directory| directory.left_out.as_deref()) {
            LeftOut::join(&mut all, Some(one.clone()));
        }
        all.map(|all| *all)
    }

    /// Bytes of the files, without holes. A file counts once for each of its names.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        let of = |directory: &Directory| -> u64 {
            let files = (0..).zip(&directory.nodes).filter(|(_, node)| node.kind == FileType::Regular);
            let data = files.map(|(child, node)| match directory.data(child) {
                Some(data) => data.iter().map(|range| range.end - range.start).sum(),
                None => node.size,
            });
            data.sum()
        };
        self.directories.iter().map(of).sum()
    }

    /// Finds a path below the root.
    pub(crate) fn find(&self, path: &[u8]) -> Option<NodeId> {
        let mut found: Option<NodeId> = None;
        for name in path.split(|&byte| byte == b'/') {
            let number = found.map_or(0, |id| self.node(id).directory);
            if number == 0 && found.is_some() {
                return None;
            }
            let directory = self.directory(number);
            let child = directory.nodes.binary_search_by(|node| directory.text(node.name).cmp(name)).ok()?;
            found = Some(NodeId { directory: number, child: u32_from_usize(child) });
        }
        found
    }

    /// Keeps the names that `keep` accepts. Below a removed directory nothing is kept. `keep` gets
    /// the path, and whether it is that of a directory.
    pub(crate) fn retain(&mut self, keep: impl Fn(&[u8], bool) -> bool) {
        let mut kept = vec![Directory::default()];
        let mut waiting = VecDeque::from([(0u32, 0u32)]);
        while let Some((old, new)) = waiting.pop_front() {
            let place = self.directory_path(old);
            let from = self.directory(old);
            let own = kept[usize_from_u32(new)].own;
            let left_out = from.left_out.clone();
            let mut directory = Directory { own, left_out, ..Directory::default() };
            for child in 0..u32_from_usize(from.nodes.len()) {
                let mut node = from.nodes[usize_from_u32(child)].clone();
                let name = from.text(node.name);
                let is_directory = node.kind == FileType::Directory;
                if !keep(&below(&place, name), is_directory) {
                    continue;
                }
                let number = u32_from_usize(directory.nodes.len());
                if is_directory {
                    waiting.push_back((node.directory, u32_from_usize(kept.len())));
                    node.directory = u32_from_usize(kept.len());
                    let own = Some(NodeId { directory: new, child: number });
                    kept.push(Directory { own, ..Directory::default() });
                }
                directory.take(from, child, node);
            }
            kept[usize_from_u32(new)] = directory;
        }
        self.directories = kept;
    }

    /// The paths that `is_wanted` accepts, and those of all directories above them.
    pub(crate) fn directories_with(&self, is_wanted: impl Fn(&[u8], bool) -> bool) -> HashSet<Vec<u8>> {
        let mut found = HashSet::new();
        for (number, directory) in (0..).zip(&self.directories) {
            let place = self.directory_path(number);
            for node in &directory.nodes {
                let path = below(&place, directory.text(node.name));
                if is_wanted(&path, node.kind == FileType::Directory) {
                    let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
                    found.extend(ends.chain([path.len()]).map(|end| path[..end].to_vec()));
                }
            }
        }
        found
    }
}

/// The path of a name in a directory.
pub(crate) fn below(place: &[u8], name: &[u8]) -> Vec<u8> {
    if place.is_empty() { name.to_vec() } else { [place, name].join(&b'/') }
}
