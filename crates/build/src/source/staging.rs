//! A tree built from paths in any order, as archives deliver them. It can combine several sources:
//! later sources are laid over earlier ones.

use crate::error::{Error, Result};
use crate::left_out::LeftOut;
use crate::tree::{Directory, Node, NodeId, Origin, Text, Tree};
use blockyard_disk::Timestamp;
use blockyard_disk::inode::{FileType, InodeFlags};
use blockyard_disk::num::{u32_from_usize, u64_from_usize, usize_from_u32};
use blockyard_disk::xattr::AttributeList;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Longest name of a directory entry, in bytes.
const NAME_MAX: usize = 255;
/// Longest target of a symbolic link, in bytes.
const TARGET_MAX: usize = 4095;
/// The most levels of nested directories. A path in one header of an archive could have millions.
const DEPTH_MAX: usize = 16_384;
/// How many bytes of a path are shown in the message that it is too deep.
const SHOWN: usize = 100;
/// The root's index among the inodes.
const ROOT: usize = 0;
/// The most symbolic links that are followed on one path.
const LINKS_MAX: usize = 40;

/// What a source says about one inode.
#[derive(Clone, Debug)]
pub(super) struct Staged {
    pub(super) kind: FileType,
    pub(super) permissions: u16,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) modified: Timestamp,
    pub(super) accessed: Timestamp,
    /// Bytes of a file; for a device, its number.
    pub(super) size: u64,
    pub(super) target: Vec<u8>,
    pub(super) attributes: AttributeList,
    pub(super) flags: InodeFlags,
    /// Where the content is; see [`Directory::stored`].
    pub(super) stored: u64,
    /// For a file with holes, the ranges that are not holes.
    pub(super) data: Option<Vec<Range<u64>>>,
}

impl Staged {
    /// A directory without an entry of its own.
    pub(super) fn directory(modified: Timestamp) -> Self {
        Self {
            kind: FileType::Directory,
            permissions: 0o755,
            uid: 0,
            gid: 0,
            modified,
            accessed: modified,
            size: 0,
            target: Vec::new(),
            attributes: AttributeList::default(),
            flags: InodeFlags::empty(),
            stored: 0,
            data: None,
        }
    }
}

/// One inode; for a directory, also the names in it.
struct Inode {
    what: Staged,
    names: BTreeMap<Vec<u8>, Name>,
    links: usize,
}

impl Inode {
    fn new(what: Staged) -> Self {
        Self { what, names: BTreeMap::new(), links: 0 }
    }
}

/// What a name stands for, and which source added it.
#[derive(Clone, Copy)]
struct Name {
    inode: usize,
    source: usize,
}

/// The inodes of all sources so far, by index; the root is the first.
pub(super) struct Staging {
    /// The current source's name in messages.
    source: PathBuf,
    /// The number of the current source, larger than that of each earlier one.
    number: usize,
    inodes: Vec<Inode>,
    /// Extended attributes that were left out.
    left_out: Option<Box<LeftOut>>,
}

impl Staging {
    pub(super) fn new(source: &Path) -> Self {
        let what = Staged::directory(Timestamp { seconds: 0, nanoseconds: 0 });
        Self { source: source.to_owned(), number: 0, inodes: vec![Inode::new(what)], left_out: None }
    }

    /// Starts another source, which is laid over the previous ones.
    pub(super) fn begin(&mut self, source: &Path) {
        source.clone_into(&mut self.source);
        self.number += 1;
    }

    /// Records attributes of an entry that are left out.
    pub(super) fn leave_out(&mut self, path: &[u8], names: Vec<Vec<u8>>) {
        let source = &self.source;
        LeftOut::add(&mut self.left_out, || source.join(OsStr::from_bytes(path)), names);
    }

    /// Records what a whole tree has left out.
    pub(super) fn leave_out_of(&mut self, tree: &Tree) {
        LeftOut::join(&mut self.left_out, tree.left_out());
    }

    /// An error about an entry. Its path is reported below the source's name.
    pub(super) fn refused(&self, path: &[u8], reason: impl Into<String>) -> Error {
        let mut place = self.source.clone().into_os_string();
        place.push("/");
        place.push(OsStr::from_bytes(path));
        Error::Refused { path: place.into(), reason: reason.into() }
    }

    /// Adds an inode at a path. Missing directories on the way are made. The new inode replaces
    /// what has this path already, as an extraction does, with two exceptions for directories:
    /// - A new directory takes over the content of the old one.
    /// - Anything but a directory is refused if the current source has added something below the
    ///   old directory.
    pub(super) fn enter(&mut self, path: &[u8], what: Staged) -> Result<()> {
        let names = self.names(path)?;
        let Some((last, parents)) = names.split_last() else {
            if what.kind != FileType::Directory {
                return Err(self.refused(path, "the root is a directory"));
            }
            self.inodes[ROOT].what = what;
            return Ok(());
        };
        let parent = self.parent(path, parents, what.modified)?;
        match self.inodes[parent].names.get(*last).copied() {
            Some(known) if self.is_directory(known.inode) && what.kind == FileType::Directory => {
                self.inodes[known.inode].what = what;
                self.name(parent, last, known.inode);
            }
            Some(known) if self.is_directory(known.inode) && self.holds(known) => {
                return Err(self.refused(path, "a directory with content has this name already"));
            }
            _ => {
                let inode = self.add_inode(what);
                self.name(parent, last, inode);
            }
        }
        Ok(())
    }

    /// Whether a directory has content that may not be replaced, because the current source added
    /// it.
    fn holds(&self, directory: Name) -> bool {
        let mut waiting = vec![directory.inode];
        while let Some(inode) = waiting.pop() {
            let names = self.inodes[inode].names.values();
            for name in names {
                if name.source == self.number {
                    return true;
                }
                waiting.push(name.inode);
            }
        }
        false
    }

    fn add_inode(&mut self, what: Staged) -> usize {
        self.inodes.push(Inode::new(what));
        self.inodes.len() - 1
    }

    /// Removes what earlier sources have at a path. Entries of the current source stay. A missing
    /// path is not an error.
    pub(super) fn hide(&mut self, path: &[u8]) -> Result<()> {
        let names = self.names(path)?;
        let Some((last, parents)) = names.split_last() else { return self.hide_content(path) };
        let Some(parent) = self.find_directory(parents) else { return Ok(()) };
        let Some(known) = self.inodes[parent].names.get(*last).copied() else { return Ok(()) };
        if self.is_directory(known.inode) {
            self.hide_below(known.inode);
        }
        if known.source < self.number && self.inodes[known.inode].names.is_empty() {
            self.inodes[parent].names.remove(*last);
            self.inodes[known.inode].links -= 1;
        }
        Ok(())
    }

    /// Removes what earlier sources have in a directory.
    pub(super) fn hide_content(&mut self, path: &[u8]) -> Result<()> {
        if let Some(directory) = self.find_directory(&self.names(path)?) {
            self.hide_below(directory);
        }
        Ok(())
    }

    /// Removes the entries of earlier sources below a directory. A directory of an earlier source
    /// stays if the current source has added something in it.
    fn hide_below(&mut self, top: usize) {
        let mut order = vec![top];
        let mut at = 0;
        while at < order.len() {
            let below = self.inodes[order[at]].names.values().map(|name| name.inode);
            let below: Vec<usize> = below.filter(|&inode| self.is_directory(inode)).collect();
            order.extend(below);
            at += 1;
        }
        // The deepest first, so that directories that became empty go too.
        for directory in order.into_iter().rev() {
            let names = std::mem::take(&mut self.inodes[directory].names);
            for (text, name) in names {
                if name.source == self.number || !self.inodes[name.inode].names.is_empty() {
                    self.inodes[directory].names.insert(text, name);
                } else {
                    self.inodes[name.inode].links -= 1;
                }
            }
        }
    }

    /// Adds the name `path` for the inode at `existing`, which must not be a directory.
    pub(super) fn link(&mut self, path: &[u8], existing: &[u8]) -> Result<()> {
        let there = self.find(existing).filter(|&inode| !self.is_directory(inode));
        let Some(inode) = there else {
            let what = String::from_utf8_lossy(existing).into_owned();
            return Err(self.refused(path, format!("a hard link to {what}, which is not an earlier file")));
        };
        let names = self.names(path)?;
        let Some((last, parents)) = names.split_last() else {
            return Err(self.refused(path, "the root is a directory"));
        };
        let parent = self.parent(path, parents, self.inodes[inode].what.modified)?;
        match self.inodes[parent].names.get(*last).copied() {
            Some(known)
                if self.is_directory(known.inode) && (known.source == self.number || self.holds(known)) =>
            {
                return Err(self.refused(path, "a directory has this name already"));
            }
            _ => self.name(parent, last, inode),
        }
        Ok(())
    }

    /// Makes a name stand for an inode.
    fn name(&mut self, parent: usize, name: &[u8], inode: usize) {
        self.inodes[inode].links += 1;
        let new = Name { inode, source: self.number };
        if let Some(old) = self.inodes[parent].names.insert(name.to_vec(), new) {
            self.inodes[old.inode].links -= 1;
            if old.inode != inode && self.is_directory(old.inode) {
                self.forget_below(old.inode);
            }
        }
    }

    /// Removes all names below a directory whose own name was replaced.
    fn forget_below(&mut self, directory: usize) {
        let mut waiting = vec![directory];
        while let Some(directory) = waiting.pop() {
            for name in std::mem::take(&mut self.inodes[directory].names).into_values() {
                self.inodes[name.inode].links -= 1;
                waiting.push(name.inode);
            }
        }
    }

    fn is_directory(&self, inode: usize) -> bool {
        self.inodes[inode].what.kind == FileType::Directory
    }

    /// The components of a path, without empty ones and `.`.
    fn names<'p>(&self, path: &'p [u8]) -> Result<Vec<&'p [u8]>> {
        let mut names = Vec::new();
        for name in path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".") {
            if name == b".." {
                return Err(self.refused(path, "leads out of its directory by `..`"));
            }
            if name.len() > NAME_MAX || name.contains(&0) {
                return Err(self.refused(path, "a name of more than 255 bytes, or with a zero in it"));
            }
            names.push(name);
        }
        if names.len() > DEPTH_MAX {
            return Err(self.refused(
                &path[..SHOWN.min(path.len())],
                format!("lies below more than {DEPTH_MAX} directories"),
            ));
        }
        Ok(names)
    }

    /// The directory that `names` lead to; missing directories are made.
    fn parent(&mut self, path: &[u8], names: &[&[u8]], modified: Timestamp) -> Result<usize> {
        let refused = || self.refused(path, "lies below something that is not a directory");
        let (mut at, missing) = self.follow(names).ok_or_else(refused)?;
        if missing.iter().any(|name| name == b"..") {
            return Err(refused());
        }
        for name in missing {
            let inode = self.add_inode(Staged::directory(modified));
            self.name(at, &name, inode);
            at = inode;
        }
        Ok(at)
    }

    /// Follows names as far as they exist. Returns the last directory and the missing names.
    /// Symbolic links of earlier sources are followed, as for a process whose root directory is the
    /// root of the tree. Returns `None` after too many links, and if a name on the way is neither a
    /// directory nor a link of an earlier source.
    fn follow(&self, names: &[&[u8]]) -> Option<(usize, Vec<Vec<u8>>)> {
        let mut way: Vec<&[u8]> = names.iter().rev().copied().collect();
        let mut at = vec![ROOT];
        let mut links = 0;
        while let Some(name) = way.pop() {
            let here = *at.last()?;
            match self.inodes[here].names.get(name) {
                _ if name == b".." => at.truncate((at.len() - 1).max(1)),
                Some(known) if self.is_directory(known.inode) => at.push(known.inode),
                Some(known) if known.source < self.number => {
                    let what = &self.inodes[known.inode].what;
                    links += 1;
                    if what.kind != FileType::Symlink || links > LINKS_MAX {
                        return None;
                    }
                    if what.target.starts_with(b"/") {
                        at.truncate(1);
                    }
                    let target = what.target.split(|&byte| byte == b'/').rev();
                    way.extend(target.filter(|name| !name.is_empty() && *name != b"."));
                }
                Some(_) => return None,
                None => {
                    let missing = std::iter::once(name).chain(way.into_iter().rev());
                    return Some((here, missing.map(<[u8]>::to_vec).collect()));
                }
            }
        }
        Some((*at.last()?, Vec::new()))
    }

    fn find(&self, path: &[u8]) -> Option<usize> {
        let names = self.names(path).ok()?;
        let (last, parents) = names.split_last()?;
        let parent = self.find_directory(parents)?;
        Some(self.inodes[parent].names.get(*last)?.inode)
    }

    fn find_directory(&self, names: &[&[u8]]) -> Option<usize> {
        self.follow(names).filter(|(_, missing)| missing.is_empty()).map(|(directory, _)| directory)
    }

    /// Converts to a tree whose content is read from `origin`.
    pub(super) fn into_tree(mut self, origin: Origin) -> Result<Tree> {
        self.drop_empty_lost_found();
        let root = node(&self.inodes[ROOT].what, Text::default());
        let mut tree = Tree {
            top: self.source.clone(),
            origin,
            has_root: true,
            root,
            root_flags: self.inodes[ROOT].what.flags,
            left_out: self.left_out.take(),
            root_attributes: std::mem::take(&mut self.inodes[ROOT].what.attributes),
            directories: vec![Directory::default()],
        };
        let mut waiting = VecDeque::from([(0u32, ROOT)]);
        while let Some((number, inode)) = waiting.pop_front() {
            let mut directory = Directory { own: tree.directory(number).own, ..Directory::default() };
            for (name, child) in &self.inodes[inode].names {
                self.add(&mut directory, name, child.inode);
            }
            let children: Vec<usize> = self.inodes[inode].names.values().map(|name| name.inode).collect();
            for ((child, node), inode) in (0..).zip(&mut directory.nodes).zip(children) {
                if node.kind == FileType::Directory {
                    node.directory = u32_from_usize(tree.directories.len());
                    waiting.push_back((node.directory, inode));
                    let own = Some(NodeId { directory: number, child });
                    tree.directories.push(Directory { own, ..Directory::default() });
                }
            }
            tree.directories[usize_from_u32(number)] = directory;
        }
        Ok(tree)
    }

    /// Drops an empty lost+found: every file system has its own.
    fn drop_empty_lost_found(&mut self) {
        let own = self.inodes[ROOT].names.get(&b"lost+found"[..]).map(|own| own.inode);
        if own.is_some_and(|own| self.is_directory(own) && self.inodes[own].names.is_empty()) {
            self.inodes[ROOT].names.remove(&b"lost+found"[..]);
        }
    }

    fn add(&self, directory: &mut Directory, name: &[u8], inode: usize) {
        let Inode { what, links, .. } = &self.inodes[inode];
        let child = u32_from_usize(directory.nodes.len());
        let text = directory.add_text(name);
        let mut node = node(what, text);
        if what.kind == FileType::Symlink {
            node.target = directory.add_text(&what.target);
        }
        if *links > 1 {
            directory.linked.push((child, (0, u64_from_usize(inode))));
        }
        if what.kind == FileType::Regular {
            directory.stored.push((child, what.stored));
            directory.data.extend(what.data.clone().map(|data| (child, data)));
        }
        if !what.attributes.is_empty() {
            directory.attributes.push((child, what.attributes.clone()));
        }
        if !what.flags.is_empty() {
            directory.flags.push((child, what.flags));
        }
        directory.nodes.push(node);
    }

    /// Refuses targets that Linux does not allow for a symbolic link.
    pub(super) fn check_target(&self, path: &[u8], target: &[u8]) -> Result<()> {
        if target.is_empty() || target.len() > TARGET_MAX || target.contains(&0) {
            return Err(
                self.refused(path, "a symbolic link whose target is empty, too long, or has a zero in it")
            );
        }
        Ok(())
    }
}

fn node(what: &Staged, name: Text) -> Node {
    let size = if what.kind == FileType::Symlink { u64_from_usize(what.target.len()) } else { what.size };
    Node {
        name,
        kind: what.kind,
        permissions: what.permissions & 0o7777,
        links: 0,
        uid: what.uid,
        gid: what.gid,
        modified: what.modified,
        accessed: what.accessed,
        size,
        directory: 0,
        target: Text::default(),
        inode: 0,
        is_alias: false,
    }
}
