//! Extended attributes.

#[cfg(doc)]
use crate::Error;
use crate::{FileSystem, InodeRef, OpContext, Result, XattrMode};

impl FileSystem {
    /// The value of an attribute; `name` includes its prefix (`user.x`). The value of an access
    /// control list has the form that the system calls use.
    ///
    /// # Errors
    /// [`Error::NoAttribute`], [`Error::NotSupported`] for an unknown prefix, [`Error::Invalid`]
    /// for a name that is only a prefix or contains NUL, [`Error::Range`] for an empty name or one
    /// of more than 255 bytes with its prefix; [`Error::StaleInode`], [`Error::Corrupt`],
    /// [`Error::Device`].
    pub fn xattr(&self, inode: impl Into<InodeRef>, name: &[u8]) -> Result<Vec<u8>> {
        let _operation = self.volume.watch();
        self.xattrs.xattr(inode.into(), name)
    }

    /// The names of all attributes that [`FileSystem::xattr`] can read, with their prefixes.
    ///
    /// # Errors
    /// [`Error::StaleInode`], [`Error::Corrupt`], [`Error::Device`].
    pub fn xattr_names(&self, inode: impl Into<InodeRef>) -> Result<Vec<Vec<u8>>> {
        let _operation = self.volume.watch();
        self.xattrs.xattr_names(inode.into())
    }

    /// Sets an attribute. An access control list is set whatever `mode` says; a list without
    /// entries removes the old one. The list that governs access, unlike a default list, also
    /// changes the permissions of the inode. If this list says no more than the permissions, it is
    /// not stored.
    ///
    /// # Errors
    /// After an error nothing has changed.
    /// * [`Error::Exists`] or [`Error::NoAttribute`], depending on `mode`.
    /// * [`Error::AttributeRoom`] if the attribute fits neither into the inode nor into its
    ///   attribute block, and its value cannot go into an inode of its own. [`Error::NoInodes`] if
    ///   the value needs such an inode and none is free.
    /// * [`Error::Range`] for a value above 64 KiB, and for a name that is empty or beyond 255
    ///   bytes.
    /// * [`Error::NotSupported`] for unknown prefixes; [`Error::Invalid`] for a name that is only a
    ///   prefix or contains NUL.
    /// * [`Error::NotPermitted`] for immutable and append-only inodes.
    /// * For an access control list: [`Error::Invalid`] if it is malformed or incomplete,
    ///   [`Error::NotSupported`] for another version of lists and on symbolic links, and
    ///   [`Error::Denied`] for a default list on anything but a directory.
    /// * [`Error::NoSpace`], [`Error::ReadOnly`], [`Error::StaleInode`], [`Error::Corrupt`],
    ///   [`Error::Device`].
    pub fn set_xattr(
        &self,
        ctx: &OpContext,
        inode: impl Into<InodeRef>,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let _operation = self.volume.watch();
        self.xattrs.set_xattr(ctx, inode.into(), name, value, mode)
    }

    /// Removes an attribute.
    ///
    /// # Errors
    /// [`Error::NoAttribute`], but not for access control lists; and as [`FileSystem::set_xattr`].
    pub fn remove_xattr(&self, ctx: &OpContext, inode: impl Into<InodeRef>, name: &[u8]) -> Result<()> {
        let _operation = self.volume.watch();
        self.xattrs.remove_xattr(ctx, inode.into(), name)
    }
}
