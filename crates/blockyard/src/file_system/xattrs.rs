//! Extended attributes and access control lists.

use std::path::Path;

use blockyard_engine::{Error as EngineError, XattrMode};
use blockyard_inspect::path::LastLink;

use crate::acl::{Acl, AclKind};
use crate::error::{Error, Reason, Result};
use crate::file_system::FileSystem;

impl FileSystem {
    /// The value of an extended attribute, named with its prefix (`user.note`); `None` if the file
    /// has no such attribute.
    ///
    /// # Errors
    /// There is no such file; the prefix is unknown; or the name is empty, is only a prefix,
    /// contains a NUL byte, or has more than 255 bytes.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.write("file", "text")?;
    /// fs.set_xattr("file", "user.note", "mine")?;
    /// assert_eq!(fs.xattr("file", "user.note")?.as_deref(), Some(&b"mine"[..]));
    /// assert_eq!(fs.xattr_names("file")?, [b"user.note"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn xattr(&self, path: impl AsRef<Path>, name: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.on_found(path.as_ref(), LastLink::Follow, |engine, _, found| {
            match engine.xattr(found.inode, name.as_ref()) {
                Ok(value) => Ok(Some(value)),
                Err(EngineError::NoAttribute) => Ok(None),
                Err(error) => Err(error),
            }
        })
    }

    /// The names of all extended attributes, with their prefixes.
    ///
    /// # Errors
    /// There is no such file.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.set_xattr("/", "user.note", "mine")?;
    /// assert_eq!(fs.xattr_names("/")?, [b"user.note"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn xattr_names(&self, path: impl AsRef<Path>) -> Result<Vec<Vec<u8>>> {
        self.on_found(path.as_ref(), LastLink::Follow, |engine, _, found| engine.xattr_names(found.inode))
    }

    /// Sets an extended attribute, creating or replacing it.
    ///
    /// All attributes of a file, with their names, must fit into its inode and one block. With the
    /// feature `ea_inode` a value can have up to 64 KiB.
    ///
    /// # Errors
    /// As [`FileSystem::xattr`]; or the value does not fit
    /// ([`AttributeRoom`](blockyard_engine::Error::AttributeRoom), `ENOSPC`) or has more than
    /// 64 KiB ([`Range`](blockyard_engine::Error::Range), `ERANGE`); or the file is immutable or
    /// append-only.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.set_xattr("/", "user.note", "mine")?;
    /// fs.set_xattr("/", "user.note", "yours")?;
    /// assert_eq!(fs.xattr("/", "user.note")?.as_deref(), Some(&b"yours"[..]));
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        self.on_found(path.as_ref(), LastLink::Follow, |engine, ctx, found| {
            engine.set_xattr(ctx, found.inode, name.as_ref(), value.as_ref(), XattrMode::Set)
        })
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// As [`FileSystem::xattr`]; or the file has no such attribute (a missing access control list
    /// is not an error); or it is immutable or append-only.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.set_xattr("/", "user.note", "mine")?;
    /// fs.remove_xattr("/", "user.note")?;
    /// assert!(fs.remove_xattr("/", "user.note").is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<[u8]>) -> Result<()> {
        self.on_found(path.as_ref(), LastLink::Follow, |engine, ctx, found| {
            engine.remove_xattr(ctx, found.inode, name.as_ref())
        })
    }

    /// As [`FileSystem::xattr`], but of a symbolic link itself.
    ///
    /// # Errors
    /// As [`FileSystem::xattr`].
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.symlink("nowhere", "link")?;
    /// assert_eq!(fs.symlink_xattr("link", "trusted.note")?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn symlink_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.on_found(path.as_ref(), LastLink::Keep, |engine, _, found| {
            match engine.xattr(found.inode, name.as_ref()) {
                Ok(value) => Ok(Some(value)),
                Err(EngineError::NoAttribute) => Ok(None),
                Err(error) => Err(error),
            }
        })
    }

    /// As [`FileSystem::xattr_names`], but of a symbolic link itself.
    ///
    /// # Errors
    /// As [`FileSystem::xattr_names`].
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.symlink("nowhere", "link")?;
    /// assert!(fs.symlink_xattr_names("link")?.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub fn symlink_xattr_names(&self, path: impl AsRef<Path>) -> Result<Vec<Vec<u8>>> {
        self.on_found(path.as_ref(), LastLink::Keep, |engine, _, found| engine.xattr_names(found.inode))
    }

    /// As [`FileSystem::set_xattr`], but on a symbolic link itself.
    ///
    /// # Errors
    /// As [`FileSystem::set_xattr`].
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.symlink("nowhere", "link")?;
    /// fs.set_symlink_xattr("link", "trusted.note", "mine")?;
    /// assert_eq!(fs.symlink_xattr_names("link")?, [b"trusted.note"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_symlink_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        self.on_found(path.as_ref(), LastLink::Keep, |engine, ctx, found| {
            engine.set_xattr(ctx, found.inode, name.as_ref(), value.as_ref(), XattrMode::Set)
        })
    }

    /// The access control list of a file, or the default list of a directory, which its new entries
    /// inherit; `None` if there is no such list.
    ///
    /// # Errors
    /// There is no such file, or the list is damaged.
    ///
    /// ```
    /// use blockyard::{Acl, AclEntry, AclKind, Subject};
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.write("file", "text")?;
    /// let mut list = Acl::of_mode(0o640);
    /// list.grant(AclEntry { subject: Subject::User(1000), permissions: 6 });
    /// fs.set_acl("file", AclKind::Access, &list)?;
    /// assert_eq!(fs.acl("file", AclKind::Access)?, Some(list));
    /// # Ok(())
    /// # }
    /// ```
    pub fn acl(&self, path: impl AsRef<Path>, kind: AclKind) -> Result<Option<Acl>> {
        let path = path.as_ref();
        let Some(value) = self.xattr(path, kind.attribute())? else { return Ok(None) };
        let list = Acl::parse(&value);
        list.map(Some).ok_or_else(|| Error::at(path, Reason::Invalid("the access control list is damaged")))
    }

    /// Sets an access control list. Setting the access list also sets the permissions of the file.
    /// If the permissions alone say the same as the list, only they are stored.
    ///
    /// # Errors
    /// There is no such file; the list is invalid; or it is a default list and the file is not a
    /// directory.
    ///
    /// ```
    /// use blockyard::{Acl, AclKind};
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.write("file", "text")?;
    /// fs.set_acl("file", AclKind::Access, &Acl::of_mode(0o600))?;
    /// assert_eq!(fs.metadata("file")?.mode(), 0o600);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_acl(&self, path: impl AsRef<Path>, kind: AclKind, list: &Acl) -> Result<()> {
        self.set_xattr(path, kind.attribute(), list.to_bytes())
    }

    /// Removes an access control list, if there is one.
    ///
    /// # Errors
    /// There is no such file.
    ///
    /// ```
    /// use blockyard::{Acl, AclKind};
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.create_dir("shared")?;
    /// fs.set_acl("shared", AclKind::Default, &Acl::of_mode(0o770))?;
    /// fs.remove_acl("shared", AclKind::Default)?;
    /// assert_eq!(fs.acl("shared", AclKind::Default)?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn remove_acl(&self, path: impl AsRef<Path>, kind: AclKind) -> Result<()> {
        self.on_found(path.as_ref(), LastLink::Follow, |engine, ctx, found| {
            match engine.remove_xattr(ctx, found.inode, kind.attribute().as_bytes()) {
                Err(EngineError::NoAttribute) => Ok(()),
                done => done,
            }
        })
    }
}
