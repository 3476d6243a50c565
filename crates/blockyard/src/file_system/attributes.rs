//! Attributes of files, directories and links, by path.

use std::path::Path;
use std::time::SystemTime;

use blockyard_engine::SetAttributes;
use blockyard_inspect::path::LastLink;

use crate::error::Result;
use crate::file_system::FileSystem;
use crate::metadata::{Flags, Metadata, timestamp};

impl FileSystem {
    /// What `stat` returns.
    ///
    /// # Errors
    /// The path names nothing.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.write("file", "text")?;
    /// fs.symlink("file", "link")?;
    /// assert_eq!(fs.metadata("link")?.len(), 4);
    /// # Ok(())
    /// # }
    /// ```
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.on_found(path.as_ref(), LastLink::Follow, |engine, _, found| engine.attributes(found.inode))
            .map(Metadata::new)
    }

    /// What `lstat` returns: a symbolic link is not followed.
    ///
    /// # Errors
    /// As [`FileSystem::metadata`].
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.symlink("nowhere", "link")?;
    /// assert!(fs.symlink_metadata("link")?.is_symlink() && fs.metadata("link").is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.on_found(path.as_ref(), LastLink::Keep, |engine, _, found| engine.attributes(found.inode))
            .map(Metadata::new)
    }

    /// Sets the permissions and the set-id and sticky bits. An access control list is updated to
    /// match.
    ///
    /// # Errors
    /// The path names nothing, the file is immutable or append-only, or the image is read-only.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.write("script", "#!/bin/sh\n")?;
    /// fs.set_permissions("script", 0o755)?;
    /// assert_eq!(fs.metadata("script")?.mode(), 0o755);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_permissions(&self, path: impl AsRef<Path>, mode: u16) -> Result<()> {
        self.set_attributes(path, &SetAttributes { permissions: Some(mode), ..SetAttributes::default() })
    }

    /// Sets the owner and the group; `None` leaves the owner or group as it is. Unlike chown(2),
    /// this keeps the set-id bits.
    ///
    /// # Errors
    /// As [`FileSystem::set_permissions`].
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.write("file", "text")?;
    /// fs.set_owner("file", Some(1000), None)?;
    /// assert_eq!(fs.metadata("file")?.uid(), 1000);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_owner(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.set_attributes(path, &SetAttributes { uid, gid, ..SetAttributes::default() })
    }

    /// Sets the access and modification times; `None` leaves a time as it is.
    ///
    /// # Errors
    /// As [`FileSystem::set_permissions`].
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let time = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    /// fs.write("file", "text")?;
    /// fs.set_times("file", None, Some(time))?;
    /// assert_eq!(fs.metadata("file")?.modified(), time);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_times(
        &self,
        path: impl AsRef<Path>,
        accessed: Option<SystemTime>,
        modified: Option<SystemTime>,
    ) -> Result<()> {
        let changes = SetAttributes {
            accessed: accessed.map(timestamp),
            modified: modified.map(timestamp),
            ..SetAttributes::default()
        };
        self.set_attributes(path, &changes)
    }

    /// Sets several attributes at once.
    ///
    /// # Errors
    /// The path names nothing; otherwise as
    /// [`engine::FileSystem::set_attributes`](blockyard_engine::FileSystem::set_attributes).
    ///
    /// ```
    /// use blockyard::SetAttributes;
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.write("file", "text")?;
    /// let changes = SetAttributes { permissions: Some(0o600), uid: Some(1000), ..SetAttributes::default() };
    /// fs.set_attributes("file", &changes)?;
    /// assert_eq!((fs.metadata("file")?.mode(), fs.metadata("file")?.uid()), (0o600, 1000));
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_attributes(&self, path: impl AsRef<Path>, changes: &SetAttributes) -> Result<()> {
        self.on_found(path.as_ref(), LastLink::Follow, |engine, ctx, found| {
            engine.set_attributes(ctx, found.inode, changes)
        })
    }

    /// As [`FileSystem::set_attributes`], but on a symbolic link itself.
    ///
    /// # Errors
    /// As [`FileSystem::set_attributes`].
    ///
    /// ```
    /// use blockyard::SetAttributes;
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.symlink("nowhere", "link")?;
    /// fs.set_symlink_attributes("link", &SetAttributes { uid: Some(1000), ..SetAttributes::default() })?;
    /// assert_eq!(fs.symlink_metadata("link")?.uid(), 1000);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_symlink_attributes(&self, path: impl AsRef<Path>, changes: &SetAttributes) -> Result<()> {
        self.on_found(path.as_ref(), LastLink::Keep, |engine, ctx, found| {
            engine.set_attributes(ctx, found.inode, changes)
        })
    }

    /// The flags of a file, as `lsattr` shows them.
    ///
    /// # Errors
    /// As [`FileSystem::metadata`].
    ///
    /// ```
    /// use blockyard::Flags;
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.write("file", "text")?;
    /// assert!(!fs.flags("file")?.contains(Flags::IMMUTABLE));
    /// # Ok(())
    /// # }
    /// ```
    pub fn flags(&self, path: impl AsRef<Path>) -> Result<Flags> {
        Ok(self.metadata(path)?.flags())
    }

    /// Gives each flag that users may change the value that it has in `flags`, as `chattr =` does.
    /// All other flags keep their values.
    ///
    /// # Errors
    /// As [`FileSystem::metadata`]. Also:
    ///
    /// - The image is read-only.
    /// - The file is neither a regular file nor a directory.
    /// - `flags` contains a flag that this type of file cannot have.
    /// - `flags` contains a flag that nobody may set and that the file does not have already.
    /// - `flags` contains `DAX`, and the file's data is in the inode or is journaled.
    ///
    /// ```
    /// use blockyard::Flags;
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.write("file", "text")?;
    /// fs.set_flags("file", fs.flags("file")? | Flags::IMMUTABLE)?;
    /// assert!(fs.remove_file("file").is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_flags(&self, path: impl AsRef<Path>, flags: Flags) -> Result<()> {
        self.on_found(path.as_ref(), LastLink::Follow, |engine, ctx, found| {
            engine.set_flags(ctx, found.inode, flags.bits())
        })
    }
}
