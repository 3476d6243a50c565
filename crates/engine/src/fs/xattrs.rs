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
    /// [`Error::Exists`] or [`Error::NoAttribute`], depending on `mode`, [`Error::AttributeRoom`]
    /// when the attribute fits neither into the inode nor into the inode's attribute block, and its
    /// value may not have an inode of its own, [`Error::NoSpace`], [`Error::NoInodes`] when its
    /// value needs an inode, [`Error::Range`] for a value above 64 KiB and for a name that is empty
    /// or beyond 255 bytes, [`Error::NotPermitted`] for immutable and append-only inodes,
    /// [`Error::NotSupported`] for unknown prefixes, [`Error::Invalid`] for a name that is only a
    /// prefix or contains NUL. For an access control list also [`Error::Invalid`] if it is
    /// malformed or incomplete, [`Error::NotSupported`] for another version of lists and on
    /// symbolic links, and [`Error::Denied`] for a default list on anything but a directory. Also
    /// [`Error::ReadOnly`], [`Error::StaleInode`], [`Error::Corrupt`], [`Error::Device`]. After an
    /// error nothing has changed.
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
