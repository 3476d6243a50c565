//! Resolving paths in an image.

use blockyard_disk::{FileType, Inode};

use super::directory::is_possible_name;
use super::{Error, Reader, Result};
use crate::path::{self, LastLink, Tree};

impl Reader {
    /// The inode of a path. Links in the middle are followed. A link at the end is followed if
    /// `last` says so, or if a slash or `/.` after it says that a directory is meant.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::TooManySymlinks`], [`Error::Device`],
    /// [`Error::Disk`].
    pub fn resolve(&self, path: &[u8], last: LastLink) -> Result<Inode> {
        path::resolve(&Walk { reader: self, path }, path, last)
    }
}

/// The tree for the walk of one path. Its errors name that path.
struct Walk<'a> {
    reader: &'a Reader,
    path: &'a [u8],
}

impl Walk<'_> {
    fn shown(&self) -> String {
        String::from_utf8_lossy(self.path).into_owned()
    }
}

impl Tree for Walk<'_> {
    type Node = Inode;
    type Error = Error;

    fn root(&self) -> Result<Inode> {
        self.reader.root()
    }

    fn look_up(&self, directory: &Inode, name: &[u8]) -> Result<Inode> {
        if !directory.is_directory() {
            return Err(self.not_directory());
        }
        let found = if is_possible_name(name) { self.reader.lookup(directory, name)? } else { None };
        self.reader.inode(found.ok_or_else(|| Error::NotFound(self.shown()))?)
    }

    fn kind(&self, node: &Inode) -> Result<FileType> {
        Ok(node.file_type())
    }

    fn read_link(&self, link: &Inode) -> Result<Vec<u8>> {
        self.reader.symlink_target(link)
    }

    fn too_many_symlinks(&self) -> Error {
        Error::TooManySymlinks(self.shown())
    }

    fn not_directory(&self) -> Error {
        Error::NotDirectory(self.shown())
    }

    fn is_missing(&self, error: &Error) -> bool {
        matches!(error, Error::NotFound(_))
    }
}
