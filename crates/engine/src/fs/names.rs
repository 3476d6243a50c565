//! Names: looking them up, making and removing them, and open references to what they name.

use crate::{DirEntry, FileSystem, NewInode, OpContext, RenameMode, Result};
use blockyard_disk::InodeNr;

impl FileSystem {
    /// The inode that a name in a directory stands for. `.` and `..` are names.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::NameTooLong`], corruption, device.
    pub fn lookup(&self, parent: InodeNr, name: &[u8]) -> Result<InodeNr> {
        self.namespace.lookup(parent, name)
    }

    /// Calls `visit` with the entries of a directory from the position `from` (0 is the start) until it gives false.
    /// [`DirEntry::next`] is the position after an entry. `visit` must not call the file system.
    ///
    /// # Errors
    /// As [`FileSystem::lookup`].
    pub fn read_dir(&self, dir: InodeNr, from: u64, visit: impl FnMut(DirEntry) -> bool) -> Result<()> {
        self.namespace.read_dir(dir, from, visit)
    }

    /// Makes an inode with a name: a file, a directory, a pipe, a socket or a device.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NoSpace`], [`Error::NoInodes`], [`Error::TooManyLinks`], [`Error::NameTooLong`],
    /// [`Error::NotDirectory`], [`Error::NotPermitted`], [`Error::ReadOnly`], corruption, device. Nothing has changed then.
    pub fn create(&self, ctx: &OpContext, parent: InodeNr, name: &[u8], new: &NewInode) -> Result<InodeNr> {
        self.namespace.create(ctx, parent, name, new)
    }

    /// Makes a regular file without a name, placed as if it were made in `parent`, and opens it for writing: it goes
    /// with [`FileSystem::release_inode`] unless [`FileSystem::link`] has named it by then.
    ///
    /// # Errors
    /// As [`FileSystem::create`].
    pub fn create_unnamed(&self, ctx: &OpContext, parent: InodeNr, permissions: u16) -> Result<InodeNr> {
        self.namespace.create_unnamed(ctx, parent, permissions)
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// [`Error::NotFound`] for an empty target, [`Error::NameTooLong`] for one above 4,095 bytes or a block, and as
    /// [`FileSystem::create`].
    pub fn symlink(&self, ctx: &OpContext, parent: InodeNr, name: &[u8], target: &[u8]) -> Result<InodeNr> {
        self.namespace.symlink(ctx, parent, name, target)
    }

    /// Gives an inode one more name.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::TooManyLinks`]; [`Error::NotPermitted`] for directories, immutable and append-only
    /// files; [`Error::NotFound`] for an inode without a name; as [`FileSystem::create`].
    pub fn link(&self, ctx: &OpContext, inode: InodeNr, parent: InodeNr, name: &[u8]) -> Result<()> {
        self.namespace.link(ctx, inode, parent, name)
    }

    /// Removes the name of anything but a directory; the inode goes with its last name and reference.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsDirectory`], [`Error::NotPermitted`], and as [`FileSystem::create`].
    pub fn unlink(&self, ctx: &OpContext, parent: InodeNr, name: &[u8]) -> Result<()> {
        self.namespace.unlink(ctx, parent, name)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::NotDirectory`], and as [`FileSystem::unlink`].
    pub fn rmdir(&self, ctx: &OpContext, parent: InodeNr, name: &[u8]) -> Result<()> {
        self.namespace.rmdir(ctx, parent, name)
    }

    /// Renames `name` in `from` to `new_name` in `to`. Two names of one inode are left as they are.
    ///
    /// A file that replaces another is written back first, so that the usual write-and-rename of programs leaves
    /// either content after a crash.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Exists`] (no-replace), [`Error::NotEmpty`], [`Error::IsDirectory`],
    /// [`Error::NotDirectory`], [`Error::Invalid`] (a directory into itself), [`Error::TooManyLinks`], and as
    /// [`FileSystem::create`]. Nothing has changed then.
    pub fn rename(
        &self,
        ctx: &OpContext,
        from: (InodeNr, &[u8]),
        to: (InodeNr, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        self.namespace.rename(ctx, from, to, mode)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::Invalid`] for anything else; corruption, device.
    pub fn read_link(&self, inode: InodeNr) -> Result<Vec<u8>> {
        self.namespace.read_link(inode)
    }

    /// Notes an open reference: the inode's content stays until it is released, whatever happens to its names.
    ///
    /// # Errors
    /// As [`FileSystem::attributes`].
    pub fn open_inode(&self, inode: InodeNr, write: bool) -> Result<()> {
        self.namespace.open_inode(inode, write)
    }

    /// Ends an open reference; `write` as it was opened.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an inode that is not open so. Of deleting the inode, when this was its last reference.
    pub fn release_inode(&self, ctx: &OpContext, inode: InodeNr, write: bool) -> Result<()> {
        self.namespace.release_inode(ctx, inode, write)
    }
}
