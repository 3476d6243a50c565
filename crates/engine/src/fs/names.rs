//! Names: looking them up, creating and removing them, and open references to their inodes.

#[cfg(doc)]
use crate::Error;
use crate::{DirEntry, FileSystem, Found, InodeId, InodeRef, NewInode, OpContext, RenameMode, Result};
use blockyard_disk::InodeNr;

impl FileSystem {
    /// The inode that a name in a directory stands for. `.` and `..` are names.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::NameTooLong`]; [`Error::Invalid`] for
    /// an empty name and for one with `/` or NUL; [`Error::StaleInode`], [`Error::Corrupt`],
    /// [`Error::Device`].
    pub fn lookup(&self, parent: impl Into<InodeRef>, name: &[u8]) -> Result<InodeNr> {
        let _operation = self.volume.watch();
        self.namespace.lookup(parent.into(), name)
    }

    /// As [`FileSystem::lookup`], but returns the inode's type and its identity, which no later
    /// inode with the same number has.
    ///
    /// # Errors
    /// As [`FileSystem::lookup`].
    pub fn find(&self, parent: impl Into<InodeRef>, name: &[u8]) -> Result<Found> {
        let _operation = self.volume.watch();
        self.namespace.find(parent.into(), name)
    }

    /// The identity and the type of the inode that has a number now.
    ///
    /// # Errors
    /// [`Error::StaleInode`] if no inode has the number; [`Error::Corrupt`], [`Error::Device`].
    pub fn identify(&self, inode: impl Into<InodeRef>) -> Result<Found> {
        let _operation = self.volume.watch();
        let inode = self.volume.inodes.inode(inode)?;
        inode.core().check_alive(inode.number())?;
        Ok(Found { inode: inode.id(), kind: inode.kind() })
    }

    /// Calls `visit` with the entries of a directory from the position `from` (0 is the start)
    /// until `visit` returns false. [`DirEntry::next`] is the position after an entry. `visit` must
    /// not call the file system.
    ///
    /// # Errors
    /// As [`FileSystem::lookup`]. A damaged block hides only its own names: `visit` gets the names
    /// of the other blocks before the error is returned. But more than 1,024 damaged blocks in a
    /// row end the listing.
    pub fn read_dir(
        &self,
        dir: impl Into<InodeRef>,
        from: u64,
        visit: impl FnMut(DirEntry) -> bool,
    ) -> Result<()> {
        let _operation = self.volume.watch();
        self.namespace.read_dir(dir.into(), from, visit)
    }

    /// Creates an inode with a name: a file, a directory, a pipe, a socket or a device.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NoSpace`], [`Error::NoInodes`], [`Error::TooManyLinks`],
    /// [`Error::NameTooLong`], [`Error::NotDirectory`], [`Error::NotPermitted`],
    /// [`Error::ReadOnly`]; [`Error::Invalid`] for `.`, `..` and bytes that are no valid name, for
    /// a symbolic link, and for a device without a valid number; [`Error::NotFound`] for a parent
    /// that was removed and is still open; [`Error::AttributeRoom`] when access control lists that
    /// are inherited do not fit; [`Error::StaleInode`], [`Error::Corrupt`], [`Error::Device`].
    /// After an error nothing has changed.
    pub fn create(
        &self,
        ctx: &OpContext,
        parent: impl Into<InodeRef>,
        name: &[u8],
        new: &NewInode,
    ) -> Result<InodeNr> {
        let _operation = self.volume.watch();
        self.namespace.create(ctx, parent.into(), name, new)
    }

    /// As [`FileSystem::create`], but also opens the new inode, so nobody can delete it before its
    /// creator has it open. A regular file is opened for writing. The reference ends with
    /// [`FileSystem::release_inode`].
    ///
    /// # Errors
    /// As [`FileSystem::create`].
    pub fn create_open(
        &self,
        ctx: &OpContext,
        parent: impl Into<InodeRef>,
        name: &[u8],
        new: &NewInode,
    ) -> Result<InodeId> {
        let _operation = self.volume.watch();
        self.namespace.create_open(ctx, parent.into(), name, new)
    }

    /// Creates a regular file without a name, placed as if it were created in `parent`, and opens
    /// it for writing. [`FileSystem::release_inode`] deletes it unless [`FileSystem::link`] has
    /// named it by then.
    ///
    /// # Errors
    /// As [`FileSystem::create`].
    pub fn create_unnamed(
        &self,
        ctx: &OpContext,
        parent: impl Into<InodeRef>,
        permissions: u16,
    ) -> Result<InodeNr> {
        let _operation = self.volume.watch();
        self.namespace.create_unnamed(ctx, parent.into(), permissions)
    }

    /// Creates a symbolic link.
    ///
    /// # Errors
    /// [`Error::NotFound`] for an empty target, [`Error::NameTooLong`] for one above 4,095 bytes or
    /// not smaller than a block, [`Error::Invalid`] for one with a NUL, and as
    /// [`FileSystem::create`].
    pub fn symlink(
        &self,
        ctx: &OpContext,
        parent: impl Into<InodeRef>,
        name: &[u8],
        target: &[u8],
    ) -> Result<InodeNr> {
        let _operation = self.volume.watch();
        Ok(self.namespace.symlink(ctx, parent.into(), name, target)?.number)
    }

    /// As [`FileSystem::symlink`], but returns the identity of the link.
    ///
    /// # Errors
    /// As [`FileSystem::symlink`].
    pub fn symlink_id(
        &self,
        ctx: &OpContext,
        parent: impl Into<InodeRef>,
        name: &[u8],
        target: &[u8],
    ) -> Result<InodeId> {
        let _operation = self.volume.watch();
        self.namespace.symlink(ctx, parent.into(), name, target)
    }

    /// Adds a name to an inode.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::TooManyLinks`]; [`Error::NotPermitted`] for directories,
    /// immutable and append-only files; [`Error::NotFound`] for an inode that has lost its last
    /// name; [`Error::CrossDevice`]; as [`FileSystem::create`].
    pub fn link(
        &self,
        ctx: &OpContext,
        inode: impl Into<InodeRef>,
        parent: impl Into<InodeRef>,
        name: &[u8],
    ) -> Result<()> {
        let _operation = self.volume.watch();
        self.namespace.link(ctx, inode.into(), parent.into(), name)
    }

    /// Removes the name of anything but a directory. The inode is deleted when it has neither a
    /// name nor an open reference.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsDirectory`], [`Error::NotPermitted`], and as
    /// [`FileSystem::create`].
    pub fn unlink(&self, ctx: &OpContext, parent: impl Into<InodeRef>, name: &[u8]) -> Result<()> {
        let _operation = self.volume.watch();
        self.namespace.unlink(ctx, parent.into(), name)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::NotDirectory`], and as [`FileSystem::unlink`].
    pub fn rmdir(&self, ctx: &OpContext, parent: impl Into<InodeRef>, name: &[u8]) -> Result<()> {
        let _operation = self.volume.watch();
        self.namespace.rmdir(ctx, parent.into(), name)
    }

    /// Renames `from` to `to`, each a directory and a name in it. If both names stand for one
    /// inode, nothing changes.
    ///
    /// A file that replaces another is written back first, so that after the usual write-and-rename
    /// a crash leaves either the old or the new content.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Exists`] (no-replace), [`Error::NotEmpty`],
    /// [`Error::IsDirectory`], [`Error::NotDirectory`], [`Error::Invalid`] (a directory into
    /// itself), [`Error::TooManyLinks`], [`Error::CrossDevice`], and as [`FileSystem::create`].
    /// After an error nothing has changed.
    pub fn rename(
        &self,
        ctx: &OpContext,
        from: (impl Into<InodeRef>, &[u8]),
        to: (impl Into<InodeRef>, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        let _operation = self.volume.watch();
        self.namespace.rename(ctx, (from.0.into(), from.1), (to.0.into(), to.1), mode)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the inode is no symbolic link; [`Error::StaleInode`],
    /// [`Error::Corrupt`], [`Error::Device`].
    pub fn read_link(&self, inode: impl Into<InodeRef>) -> Result<Vec<u8>> {
        let _operation = self.volume.watch();
        self.namespace.read_link(inode.into())
    }

    /// Adds an open reference to an inode; `write` says whether it is opened for writing. The
    /// inode's content stays until the reference is released, whatever happens to the inode's
    /// names.
    ///
    /// # Errors
    /// As [`FileSystem::attributes`].
    pub fn open_inode(&self, inode: impl Into<InodeRef>, write: bool) -> Result<()> {
        let _operation = self.volume.watch();
        self.namespace.open_inode(inode.into(), write)
    }

    /// Ends an open reference. `write` must be as it was in [`FileSystem::open_inode`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for an inode that is not open in the way that `write` says. Errors of
    /// deleting the inode, if it has no name and this was its last reference.
    pub fn release_inode(&self, ctx: &OpContext, inode: impl Into<InodeRef>, write: bool) -> Result<()> {
        let _operation = self.volume.watch();
        self.namespace.release_inode(ctx, inode.into(), write)
    }
}
