//! An ext2, ext3 or ext4 image as a source.

use crate::error::{Error, Result};
use crate::left_out::{LeftOut, kept};
use crate::tree::{Directory, KEPT_FLAGS, Node, NodeId, Origin, Text, Tree, below};
use blockyard_device::BlockDevice;
use blockyard_disk::inode::{FileType, InodeFlags};
use blockyard_disk::num::{u32_from_usize, u64_from_u32, usize_from_u32};
use blockyard_disk::xattr::{self, Attribute, AttributeList, Value};
use blockyard_disk::{Inode, InodeMap, InodeNr};
use blockyard_inspect::path::{LastLink, last_name};
use blockyard_inspect::reader::{DirEntry, Error as ReadError, Reader};
use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

impl Tree {
    /// Reads what is at `path` in an image: names, attributes and sizes, but no content. A file
    /// becomes a tree with one name. `name` is the image's name in messages. Nothing is written,
    /// and no journal is replayed. If the journal needs recovery, replay it into an overlay and
    /// pass the overlay as `device`. An empty lost+found directly in `path` is left out.
    ///
    /// # Errors
    /// [`Error::Source`] if something cannot be read or is damaged; [`Error::Refused`] for a name
    /// that a directory holds twice, and for a directory with two names, such as one inside itself.
    pub fn read_image(device: Arc<dyn BlockDevice>, name: &Path, path: &[u8]) -> Result<Self> {
        let at = |error: ReadError| Error::image(name, error);
        let reader = Reader::open(Arc::clone(&device)).map_err(at)?;
        let top = reader.resolve(path, LastLink::Follow).map_err(at)?;
        let root_attributes = attributes(&reader, &top).map_err(|error| Error::source(name, error))?;
        let (root_attributes, others) = root_attributes;
        let mut left_out = None;
        LeftOut::add(&mut left_out, || name.to_owned(), others);
        let mut tree = Self {
            top: name.to_owned(),
            origin: Origin::Image(device),
            has_root: top.is_directory(),
            root: node(&top, Text::default()),
            root_attributes,
            root_flags: top.flags() & KEPT_FLAGS,
            left_out,
            directories: vec![Directory::default()],
        };
        let mut seen = HashSet::from([top.number()]);
        if !top.is_directory() {
            tree.root = Node { kind: FileType::Directory, permissions: 0o755, uid: 0, gid: 0, ..tree.root };
            (tree.root_attributes, tree.root_flags) = (AttributeList::default(), InodeFlags::empty());
            let name = last_name(path).unwrap_or(b"file");
            let mut reading =
                Reading { reader: &reader, tree: &tree, number: 0, directory: Directory::default() };
            reading.add(name, &top)?;
            let directory = reading.directory;
            tree.directories[0] = directory;
            return Ok(tree);
        }
        let mut waiting = vec![top.number()];
        let mut number = 0;
        // Directories are read in the order of their numbers, which is the order in `waiting`.
        while let Some(&inode) = waiting.get(usize_from_u32(number)) {
            let inode = reader.inode(inode).map_err(at)?;
            let mut reading =
                Reading { reader: &reader, tree: &tree, number, directory: Directory::default() };
            let inodes = reading.all(&inode)?;
            let mut directory = reading.directory;
            for ((child, node), inode) in (0..).zip(&mut directory.nodes).zip(inodes) {
                if node.kind == FileType::Directory {
                    if !seen.insert(inode) {
                        let name = directory.text.get(node.name.range()).unwrap_or_default();
                        let path = tree.host_path(&below(&tree.directory_path(number), name));
                        let reason = "a directory that occurs in two places; the image is damaged".to_owned();
                        return Err(Error::Refused { path, reason });
                    }
                    node.directory = u32_from_usize(tree.directories.len());
                    waiting.push(inode);
                    let own = Some(NodeId { directory: number, child });
                    tree.directories.push(Directory { own, ..Directory::default() });
                }
            }
            directory.own = tree.directory(number).own;
            tree.directories[usize_from_u32(number)] = directory;
            number += 1;
        }
        Ok(tree)
    }
}

/// The state of reading one directory.
struct Reading<'a> {
    reader: &'a Reader,
    tree: &'a Tree,
    number: u32,
    directory: Directory,
}

impl Reading<'_> {
    fn path(&self, name: &[u8]) -> std::path::PathBuf {
        let place = self.tree.directory_path(self.number);
        self.tree.host_path(&if name.is_empty() { place } else { below(&place, name) })
    }

    fn refused(&self, name: &[u8], reason: &str) -> Error {
        Error::Refused { path: self.path(name), reason: reason.to_owned() }
    }

    /// Reads all names, except `.`, `..` and an empty lost+found at the top. Returns their inodes.
    fn all(&mut self, inode: &Inode) -> Result<Vec<InodeNr>> {
        let failed = |error: ReadError| Error::image(&self.path(b""), error);
        let entries = self.reader.entries(inode).map_err(failed)?;
        let mut entries = entries.collect::<std::result::Result<Vec<DirEntry>, _>>().map_err(failed)?;
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        if let Some(pair) = entries.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(
                self.refused(&pair[0].name, "a name that its directory holds twice; the image is damaged")
            );
        }
        let mut inodes = Vec::new();
        for entry in entries {
            let inode = self.reader.inode(entry.inode);
            let inode = inode.map_err(|error| Error::image(&self.path(&entry.name), error))?;
            if entry.name == b"." || entry.name == b".." {
                continue;
            }
            if entry.name == b"lost+found" && self.number == 0 && self.is_empty(&inode) {
                continue;
            }
            self.add(&entry.name, &inode)?;
            inodes.push(inode.number());
        }
        Ok(inodes)
    }

    fn is_empty(&self, directory: &Inode) -> bool {
        let is_dots = |name: &[u8]| name == b"." || name == b"..";
        directory.is_directory()
            && self
                .reader
                .entries(directory)
                .is_ok_and(|mut entries| entries.all(|entry| entry.is_ok_and(|entry| is_dots(&entry.name))))
    }

    fn add(&mut self, name: &[u8], inode: &Inode) -> Result<()> {
        let failed = |error: io::Error| Error::source(&self.path(name), error);
        let (attributes, others) = attributes(self.reader, inode).map_err(failed)?;
        let data = match inode.file_type() {
            FileType::Regular => {
                data_ranges(self.reader, inode).map_err(|error| failed(io::Error::other(error)))?
            }
            _ => None,
        };
        let target = match inode.file_type() {
            FileType::Symlink => {
                let target = self.reader.symlink_target(inode);
                target.map_err(|error| Error::image(&self.path(name), error))?
            }
            _ => Vec::new(),
        };
        let mut left_out = self.directory.left_out.take();
        LeftOut::add(&mut left_out, || self.path(name), others);
        let directory = &mut self.directory;
        directory.left_out = left_out;
        let child = u32_from_usize(directory.nodes.len());
        let text = directory.add_text(name);
        let mut node = node(inode, text);
        match node.kind {
            FileType::Symlink => node.target = directory.add_text(&target),
            FileType::Regular => directory.stored.push((child, u64_from_u32(inode.number().raw()))),
            _ => {}
        }
        directory.data.extend(data.map(|data| (child, data)));
        if inode.links() > 1 && node.kind != FileType::Directory {
            directory.linked.push((child, (0, u64_from_u32(inode.number().raw()))));
        }
        let flags = inode.flags() & KEPT_FLAGS;
        if !flags.is_empty() {
            directory.flags.push((child, flags));
        }
        if !attributes.is_empty() {
            directory.attributes.push((child, attributes));
        }
        directory.nodes.push(node);
        Ok(())
    }
}

/// The ranges of a file that hold data. Unwritten extents count as holes. `None` if there are no
/// holes.
fn data_ranges(reader: &Reader, inode: &Inode) -> std::result::Result<Option<Vec<Range<u64>>>, ReadError> {
    if !matches!(inode.map(), InodeMap::Extents | InodeMap::Indirect) {
        return Ok(None);
    }
    let bits = reader.superblock().geometry().block_bits();
    let mut data: Vec<Range<u64>> = Vec::new();
    for extent in reader.extents(inode) {
        let extent = extent?;
        let start = u64_from_u32(extent.logical.raw()) << bits;
        let end = (start + (u64::from(extent.length) << bits)).min(inode.size());
        if extent.unwritten || start >= end {
            continue;
        }
        match data.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => data.push(start..end),
        }
    }
    let is_whole = inode.size() == 0 || data.first() == Some(&(0..inode.size()));
    Ok((!is_whole).then_some(data))
}

/// The attributes that are kept, and the names of the others.
fn attributes(reader: &Reader, inode: &Inode) -> io::Result<(AttributeList, Vec<Vec<u8>>)> {
    let (mut list, mut others) = (AttributeList::default(), Vec::new());
    for found in reader.xattrs(inode).map_err(io::Error::other)? {
        let Some((index, rest)) = kept(&found.name) else {
            others.push(found.name);
            continue;
        };
        let value = match found.name.starts_with(b"system.posix_acl_") {
            true => match xattr::acl_from_posix(&found.value) {
                Ok(Some(stored)) => stored,
                Ok(None) => continue,
                Err(_) => return Err(io::Error::other("its access control list is malformed")),
            },
            false => found.value,
        };
        list.set(Attribute { index, name: rest.to_vec(), value: Value::Bytes(value) });
    }
    Ok((list, others))
}

fn node(inode: &Inode, name: Text) -> Node {
    let raw = inode.slot().raw();
    let size = match inode.map() {
        InodeMap::Device(number) => rustix::fs::makedev(number.major, number.minor),
        _ if matches!(inode.file_type(), FileType::Regular | FileType::Symlink) => inode.size(),
        _ => 0,
    };
    Node {
        name,
        kind: inode.file_type(),
        permissions: inode.mode() & 0o7777,
        links: 0,
        uid: raw.uid(),
        gid: raw.gid(),
        modified: inode.slot().modified(),
        accessed: inode.slot().accessed(),
        size,
        directory: 0,
        target: Text::default(),
        inode: 0,
        is_alias: false,
    }
}
