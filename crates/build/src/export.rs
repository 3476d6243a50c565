//! Writes trees as archives and container images. Together with [`Tree::read_image`], this exports
//! the files of an image.

mod container;
mod entry;

use crate::content::Contents;
use crate::error::{Error, Result};
use crate::tree::{NodeId, SourceInode, Tree, below};
use blockyard_disk::inode::FileType;
use blockyard_disk::num::{u32_from_usize, u64_from_usize, usize_from_u64};
pub use container::ContainerOptions;
use entry::Entry;
use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

/// Bytes copied at a time.
const CHUNK: u64 = 1 << 20;
/// An archive ends with two records of zeroes.
const END: [u8; 1024] = [0; 1024];

/// What was exported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Names. The root counts if the source has a root directory.
    pub names: u64,
    /// Bytes of the files, not counting holes.
    pub bytes: u64,
}

impl Tree {
    /// Writes the tree as a tar archive (pax) with sorted names. GNU tar extracts it with `--xattrs
    /// --xattrs-include='*' --acls`, and [`Tree::read_archive`] reads it back. The archive keeps
    /// owners, permissions, times in nanoseconds, extended attributes, access control lists, hard
    /// links and devices, and holes as GNU tar writes them. Sockets and the flags of `chattr` use
    /// keywords of star (`SCHILY.filetype`, `SCHILY.fflags`). Programs that do not know these
    /// keywords turn sockets into pipes. `name` is the archive's name in messages.
    ///
    /// # Errors
    /// [`Error::Source`] and [`Error::Changed`] for content that cannot be read; [`Error::Output`].
    pub fn write_archive(&self, into: impl Write, name: &Path) -> Result<Exported> {
        let contents = Contents::new(self);
        let archive =
            Archive { tree: self, contents, into, name, linked: HashMap::new(), done: Exported::default() };
        archive.all()
    }

    /// Calls `visit` for every name with its path, each directory before its entries. If the source
    /// has a root directory, the root comes first, as `None`.
    pub(crate) fn walk(&self, mut visit: impl FnMut(Option<NodeId>, &[u8]) -> Result<()>) -> Result<()> {
        if self.has_root {
            visit(None, b"")?;
        }
        let mut open: Vec<(u32, u32, Vec<u8>)> = vec![(0, 0, Vec::new())];
        while let Some((directory, child, place)) = open.last_mut() {
            let here = self.directory(*directory);
            if *child == u32_from_usize(here.nodes.len()) {
                open.pop();
                continue;
            }
            let id = NodeId { directory: *directory, child: *child };
            *child += 1;
            let path = below(place, self.name(id));
            visit(Some(id), &path)?;
            let node = self.node(id);
            if node.kind == FileType::Directory {
                open.push((node.directory, 0, path));
            }
        }
        Ok(())
    }
}

/// An archive that is being written.
struct Archive<'a, W> {
    tree: &'a Tree,
    contents: Contents<'a>,
    into: W,
    name: &'a Path,
    /// The first path of each file with hard links.
    linked: HashMap<SourceInode, Vec<u8>>,
    done: Exported,
}

impl<W: Write> Archive<'_, W> {
    fn all(mut self) -> Result<Exported> {
        let tree = self.tree;
        tree.walk(|id, path| self.add(id, path))?;
        self.write(&END)?;
        self.into.flush().map_err(|error| self.failed(error))?;
        Ok(self.done)
    }

    fn failed(&self, error: std::io::Error) -> Error {
        Error::Output { path: self.name.to_owned(), error }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.into.write_all(bytes).map_err(|error| self.failed(error))
    }

    fn add(&mut self, id: Option<NodeId>, path: &[u8]) -> Result<()> {
        self.done.names += 1;
        let linked = id.and_then(|id| self.tree.directory(id.directory).linked(id.child));
        if let Some(inode) = linked {
            if let Some(first) = self.linked.get(&inode) {
                let entry = Entry::link(self.tree, id, path, first).bytes();
                return self.write(&entry);
            }
            self.linked.insert(inode, path.to_vec());
        }
        let entry = Entry::of(self.tree, id, path);
        self.write(&entry.bytes())?;
        let Some(id) = id.filter(|&id| self.tree.node(id).kind == FileType::Regular) else { return Ok(()) };
        self.content(id, entry.content_len())
    }

    /// Writes the parts of a file that are not holes, padded to whole records.
    fn content(&mut self, id: NodeId, len: u64) -> Result<()> {
        let mut buffer = vec![0; usize_from_u64(len.min(CHUNK))];
        for range in self.tree.data_of(id) {
            let mut at = range.start;
            while at < range.end {
                let part = &mut buffer[..usize_from_u64((range.end - at).min(CHUNK))];
                self.contents.read_at(id, at, part)?;
                let written = self.into.write_all(part);
                at += u64_from_usize(part.len());
                written.map_err(|error| self.failed(error))?;
            }
        }
        self.done.bytes += len;
        let filling = usize_from_u64(len.next_multiple_of(entry::RECORD) - len);
        self.write(&END[..filling])
    }
}
