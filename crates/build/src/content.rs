//! Reads the content of a tree's files, whatever the tree's source.

use crate::error::{Error, Result};
use crate::tree::{NodeId, Origin, Tree};
use blockyard_device::BlockDevice;
use blockyard_disk::num::{
    high32, join32, low32, u32_from_u64, u32_from_usize, u64_from_usize, usize_from_u64,
};
use blockyard_disk::{Inode, InodeNr};
use blockyard_inspect::reader::Reader;
use rustix::io::Errno;
use std::io::{self, Read};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Size in bytes of the largest file that is read whole by [`read_whole`].
const SMALL: u64 = 4096;
/// The length of the buffer for [`read_whole`]: one byte more than [`SMALL`], to see whether the
/// file has grown.
const SMALL_READ: usize = 4097;

/// Reads a file into a buffer that is one byte longer than its expected size. Returns the number of
/// bytes read. A `read` that fills all but the last byte has reached the end of the file, so one
/// call is enough for most files.
fn read_whole(file: &OwnedFd, into: &mut [u8]) -> rustix::io::Result<usize> {
    let mut done = 0;
    while done + 1 < into.len() {
        match rustix::io::read(file, &mut into[done..]) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Reads files of a tree, in one thread. Keeps the last host directory open, and the last host file
/// that was not read by [`read_whole`].
pub(crate) struct Contents<'t> {
    tree: &'t Tree,
    /// The host directory that was read last.
    directory: Option<(u32, OwnedFd)>,
    /// The last host file that was not read by [`read_whole`].
    file: Option<(NodeId, OwnedFd)>,
    reader: Option<Reader>,
    /// The image's inode that was read last.
    inode: Option<Inode>,
    /// For a merged tree, the readers of the trees that were merged.
    parts: Vec<Self>,
}

impl<'t> Contents<'t> {
    pub(crate) fn new(tree: &'t Tree) -> Self {
        let parts = match &tree.origin {
            Origin::Trees(trees) => trees.iter().map(Self::new).collect(),
            Origin::Directory(_) | Origin::Spool(_) | Origin::Image(_) => Vec::new(),
        };
        Self { tree, directory: None, file: None, reader: None, inode: None, parts }
    }

    /// Fills a buffer with the bytes of a regular file from `offset` on. The file must have that
    /// many bytes from there on.
    ///
    /// # Errors
    /// [`Error::Source`]; [`Error::Changed`] if a file of the host or of an image no longer has the
    /// size that the tree says.
    pub(crate) fn read_at(&mut self, id: NodeId, offset: u64, into: &mut [u8]) -> Result<()> {
        let tree = self.tree;
        let stored = tree.directory(id.directory).stored(id.child).unwrap_or(0);
        match &tree.origin {
            Origin::Directory(_) => self.read_host(id, offset, into),
            Origin::Spool(spool) => spool
                .read_exact_at(into, stored + offset)
                .map_err(|error| Error::source(&tree.host_path_of(id), error)),
            Origin::Image(device) => self.read_image(device, (id, stored), offset, into),
            Origin::Trees(trees) => {
                let (part, id) = part_of(trees, stored);
                self.parts[part].read_at(id, offset, into)
            }
        }
    }

    /// The open host file that holds a file's content, and the position of `offset` in that file.
    /// `None` if the content is in an image, or in a host file that is not open now.
    pub(crate) fn file_of(&self, id: NodeId, offset: u64) -> Option<(BorrowedFd<'_>, u64)> {
        let stored = self.tree.directory(id.directory).stored(id.child).unwrap_or(0);
        match &self.tree.origin {
            Origin::Directory(_) => {
                let (_, file) = self.file.as_ref().filter(|(open, _)| *open == id)?;
                Some((file.as_fd(), offset))
            }
            Origin::Spool(spool) => Some((spool.as_fd(), stored + offset)),
            Origin::Image(_) => None,
            Origin::Trees(trees) => {
                let (part, id) = part_of(trees, stored);
                self.parts[part].file_of(id, offset)
            }
        }
    }

    fn read_host(&mut self, id: NodeId, offset: u64, into: &mut [u8]) -> Result<()> {
        let tree = self.tree;
        let failed = |error: Errno| Error::source(&tree.host_path_of(id), error);
        let file = match &mut self.file {
            Some((open, file)) if *open == id => file,
            other => {
                let file = Self::open(tree, &mut self.directory, id)?;
                // Read one byte more than a small file should have: that shows whether it has
                // grown.
                let size = tree.node(id).size;
                if offset == 0 && u64_from_usize(into.len()) == size && size <= SMALL {
                    let mut bytes = [0; SMALL_READ];
                    let read = read_whole(&file, &mut bytes[..into.len() + 1]).map_err(failed)?;
                    if read != into.len() {
                        return Err(Error::Changed(tree.host_path_of(id)));
                    }
                    into.copy_from_slice(&bytes[..read]);
                    return Ok(());
                }
                let stat = rustix::fs::fstat(&file).map_err(failed)?;
                if u64::try_from(stat.st_size) != Ok(tree.node(id).size) {
                    return Err(Error::Changed(tree.host_path_of(id)));
                }
                &mut other.insert((id, file)).1
            }
        };
        let mut done = 0;
        while done < into.len() {
            match rustix::io::pread(&*file, &mut into[done..], offset + u64_from_usize(done)) {
                Ok(0) => return Err(Error::Changed(tree.host_path_of(id))),
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }

    fn open(tree: &Tree, directory: &mut Option<(u32, OwnedFd)>, id: NodeId) -> Result<OwnedFd> {
        let directory = match directory {
            Some((number, open)) if *number == id.directory => open,
            other => &mut other.insert((id.directory, tree.open_directory(id.directory)?)).1,
        };
        tree.open_file(directory.as_fd(), id)
    }

    fn read_image(
        &mut self,
        device: &Arc<dyn BlockDevice>,
        (id, stored): (NodeId, u64),
        offset: u64,
        into: &mut [u8],
    ) -> Result<()> {
        let tree = self.tree;
        let failed = |error| Error::image(&tree.host_path_of(id), error);
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => none.insert(Reader::open(Arc::clone(device)).map_err(failed)?),
        };
        let number = InodeNr::new(u32_from_u64(stored));
        let inode = match &mut self.inode {
            Some(inode) if inode.number() == number => inode,
            other => other.insert(reader.inode(number).map_err(failed)?),
        };
        let mut done = 0;
        while done < into.len() {
            let at = offset + u64_from_usize(done);
            match reader.read(inode, at, &mut into[done..]).map_err(failed)? {
                0 => return Err(Error::Changed(tree.host_path_of(id))),
                n => done += n,
            }
        }
        Ok(())
    }
}

/// The number that a merged tree stores for the file `id` of its part with index `part`.
pub(crate) fn number_of(trees: &[Tree], part: usize, id: NodeId) -> u64 {
    let before: usize = trees[..part].iter().map(|tree| tree.directories.len()).sum();
    join32(u32_from_usize(before) + id.directory, id.child)
}

/// The part, and the file in it, for a number that [`number_of`] returned.
fn part_of(trees: &[Tree], number: u64) -> (usize, NodeId) {
    let mut directory = high32(number);
    for (part, tree) in trees.iter().enumerate() {
        let len = u32_from_usize(tree.directories.len());
        if directory < len {
            return (part, NodeId { directory, child: low32(number) });
        }
        directory -= len;
    }
    unreachable!("numbers come from number_of")
}

impl Tree {
    /// The ranges of a regular file that are not holes, in bytes.
    pub(crate) fn data_of(&self, id: NodeId) -> Vec<Range<u64>> {
        match self.directory(id.directory).data(id.child) {
            Some(data) => data.to_vec(),
            None => Some(0..self.node(id).size).into_iter().filter(|all| !all.is_empty()).collect(),
        }
    }
}

/// Reads one file from start to end.
pub(crate) struct Content<'t> {
    contents: Contents<'t>,
    id: NodeId,
    /// The position in the file.
    at: u64,
    /// Bytes of the file.
    size: u64,
    /// Ranges that are still to be read, the next one last. Between them are holes.
    ranges: Vec<Range<u64>>,
}

impl<'t> Content<'t> {
    pub(crate) fn new(tree: &'t Tree, id: NodeId) -> Self {
        let mut ranges = tree.data_of(id);
        ranges.reverse();
        Self { contents: Contents::new(tree), id, at: 0, size: tree.node(id).size, ranges }
    }
}

impl Read for Content<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let next = self.ranges.last().cloned().unwrap_or(self.size..self.size);
        let is_hole = self.at < next.start;
        let end = if is_hole { next.start } else { next.end };
        let n = usize_from_u64((end - self.at).min(u64_from_usize(into.len())));
        if is_hole {
            into[..n].fill(0);
        } else if n > 0 {
            self.contents.read_at(self.id, self.at, &mut into[..n]).map_err(io::Error::other)?;
        }
        self.at += u64_from_usize(n);
        if self.at == next.end {
            self.ranges.pop();
        }
        Ok(n)
    }
}
