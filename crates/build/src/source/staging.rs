//! A tree that is put together from paths in any order, as archives give them.

use crate::error::{Error, Result};
use crate::tree::{Directory, Node, NodeId, Origin, Text, Tree};
use blockyard_disk::Timestamp;
use blockyard_disk::inode::FileType;
use blockyard_disk::num::{u32_from_usize, u64_from_usize, usize_from_u32};
use blockyard_disk::xattr::AttributeList;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsStr;
use std::fs::File;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Longest name of a directory entry.
const NAME_MAX: usize = 255;
/// Longest target of a link.
const TARGET_MAX: usize = 4095;
/// The root's place among the inodes.
const ROOT: usize = 0;

/// What an archive says of one inode.
#[derive(Clone, Debug)]
pub(super) struct Staged {
    pub(super) kind: FileType,
    pub(super) permissions: u16,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) modified: Timestamp,
    /// Bytes of a file; the number of a device.
    pub(super) size: u64,
    pub(super) target: Vec<u8>,
    pub(super) attributes: AttributeList,
    /// Where in the spool the content begins.
    pub(super) stored: u64,
    /// What of a file with holes is none.
    pub(super) data: Option<Vec<Range<u64>>>,
}

impl Staged {
    /// A directory that no entry describes.
    pub(super) fn directory(modified: Timestamp) -> Self {
        Self {
            kind: FileType::Directory,
            permissions: 0o755,
            uid: 0,
            gid: 0,
            modified,
            size: 0,
            target: Vec::new(),
            attributes: AttributeList::default(),
            stored: 0,
            data: None,
        }
    }
}

/// One inode, and the names in it.
struct Inode {
    what: Staged,
    names: BTreeMap<Vec<u8>, usize>,
    links: usize,
}

/// The inodes of an archive so far, by number; the root is the first.
pub(super) struct Staging {
    archive: PathBuf,
    inodes: Vec<Inode>,
}

impl Staging {
    pub(super) fn new(archive: &Path) -> Self {
        let what = Staged::directory(Timestamp { seconds: 0, nanoseconds: 0 });
        Self { archive: archive.to_owned(), inodes: vec![Inode { what, names: BTreeMap::new(), links: 1 }] }
    }

    /// An error about an entry.
    pub(super) fn refused(&self, path: &[u8], reason: impl Into<String>) -> Error {
        Error::Refused { path: self.archive.join(OsStr::from_bytes(path)), reason: reason.into() }
    }

    /// Enters an inode under a path. Directories on the way that were not named yet are made; one that is there already keeps
    /// what is in it, anything else is replaced, as by an extraction.
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
        match self.inodes[parent].names.get(*last) {
            Some(&known) if self.is_directory(known) && what.kind == FileType::Directory => {
                self.inodes[known].what = what;
            }
            Some(&known) if self.is_directory(known) && !self.inodes[known].names.is_empty() => {
                return Err(self.refused(path, "a directory with content has this name already"));
            }
            _ => {
                let number = self.inodes.len();
                self.inodes.push(Inode { what, names: BTreeMap::new(), links: 1 });
                self.name(parent, last, number);
            }
        }
        Ok(())
    }

    /// Gives what is at a path another name.
    pub(super) fn link(&mut self, path: &[u8], existing: &[u8]) -> Result<()> {
        let there = self.find(existing).filter(|&inode| !self.is_directory(inode));
        let Some(inode) = there else {
            let what = String::from_utf8_lossy(existing).into_owned();
            return Err(self.refused(path, format!("a hard link to {what}, which is no file before it")));
        };
        let names = self.names(path)?;
        let Some((last, parents)) = names.split_last() else {
            return Err(self.refused(path, "the root is a directory"));
        };
        let parent = self.parent(path, parents, self.inodes[inode].what.modified)?;
        match self.inodes[parent].names.get(*last) {
            Some(&known) if known == inode => return Ok(()),
            Some(&known) if self.is_directory(known) => {
                return Err(self.refused(path, "a directory has this name already"));
            }
            _ => {}
        }
        self.inodes[inode].links += 1;
        self.name(parent, last, inode);
        Ok(())
    }

    fn name(&mut self, parent: usize, name: &[u8], inode: usize) {
        if let Some(old) = self.inodes[parent].names.insert(name.to_vec(), inode) {
            self.inodes[old].links -= 1;
        }
    }

    fn is_directory(&self, inode: usize) -> bool {
        self.inodes[inode].what.kind == FileType::Directory
    }

    /// The names of a path, without those that lead nowhere else.
    fn names<'p>(&self, path: &'p [u8]) -> Result<Vec<&'p [u8]>> {
        if path.starts_with(b"/") {
            return Err(
                self.refused(path, "an absolute name; make the archive with names below one directory")
            );
        }
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
        Ok(names)
    }

    /// The directory that some names lead to, made where it is missing.
    fn parent(&mut self, path: &[u8], names: &[&[u8]], modified: Timestamp) -> Result<usize> {
        let mut at = ROOT;
        for name in names {
            at = match self.inodes[at].names.get(*name) {
                Some(&known) if self.is_directory(known) => known,
                Some(_) => {
                    return Err(self.refused(path, "lies below something that is no directory"));
                }
                None => {
                    let number = self.inodes.len();
                    let what = Staged::directory(modified);
                    self.inodes.push(Inode { what, names: BTreeMap::new(), links: 1 });
                    self.name(at, name, number);
                    number
                }
            };
        }
        Ok(at)
    }

    fn find(&self, path: &[u8]) -> Option<usize> {
        let mut at = ROOT;
        for name in self.names(path).ok()? {
            at = *self.inodes[at].names.get(name)?;
        }
        Some(at)
    }

    /// The tree, whose content lies in `spool`.
    pub(super) fn into_tree(mut self, spool: File) -> Result<Tree> {
        self.drop_lost_found()?;
        let root = node(&self.inodes[ROOT].what, Text::default());
        let mut tree = Tree {
            top: self.archive.clone(),
            origin: Origin::Spool(spool),
            root,
            root_attributes: std::mem::take(&mut self.inodes[ROOT].what.attributes),
            directories: vec![Directory::default()],
        };
        let mut waiting = VecDeque::from([(0u32, ROOT)]);
        while let Some((number, inode)) = waiting.pop_front() {
            let mut directory = Directory { own: tree.directory(number).own, ..Directory::default() };
            for (name, &child) in &self.inodes[inode].names {
                self.add(&mut directory, name, child);
            }
            let children: Vec<usize> = self.inodes[inode].names.values().copied().collect();
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

    /// lost+found is made with the file system.
    fn drop_lost_found(&mut self) -> Result<()> {
        let Some(&own) = self.inodes[ROOT].names.get(&b"lost+found"[..]) else { return Ok(()) };
        if self.is_directory(own) && self.inodes[own].names.is_empty() {
            self.inodes[ROOT].names.remove(&b"lost+found"[..]);
            return Ok(());
        }
        Err(self.refused(b"lost+found", "the image has a lost+found of its own; move what is in this one"))
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
        directory.nodes.push(node);
    }

    /// Whether the target of a link is one that Linux follows.
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
        size,
        directory: 0,
        target: Text::default(),
        inode: 0,
        is_alias: false,
    }
}
