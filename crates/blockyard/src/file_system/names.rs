//! Names: directories, links, renames and removals.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use blockyard_disk::FileType;
use blockyard_disk::device_number::DeviceNumber;
use blockyard_engine::{Error as EngineError, NewInode, RenameMode};
use blockyard_inspect::path::{self, LastLink};

use crate::error::{Bare, Error, Reason, Result};
use crate::file_system::FileSystem;
use crate::paths::Place;

/// Whether the name to remove must be a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removed {
    File,
    Directory,
}

impl FileSystem {
    /// Creates a directory with permissions 0o755.
    ///
    /// # Errors
    /// The name exists, or its parent directory does not.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.create_dir("directory")?;
    /// assert!(fs.create_dir("directory").is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.make(path.as_ref(), NewInode { kind: FileType::Directory, permissions: 0o755, device: None })
    }

    /// Creates a directory and any missing parents, each with permissions 0o755.
    ///
    /// # Errors
    /// A name in the path exists and does not lead to a directory.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.create_dir_all("usr/share/doc")?;
    /// fs.create_dir_all("usr/share/doc")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let mut prefixes: Vec<&Path> = path.ancestors().collect();
        while let Some(prefix) = prefixes.pop() {
            match self.create_dir(prefix) {
                Ok(()) => {}
                Err(error) if error.errno() == EngineError::Exists.errno() => {
                    if prefixes.is_empty() && !self.metadata(prefix)?.is_dir() {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Creates a pipe, a socket, a device node or an empty regular file. `device` is needed for a
    /// device node, and ignored for the other types.
    ///
    /// # Errors
    /// As [`FileSystem::create_dir`]; `kind` is a directory or symbolic link, which have methods of
    /// their own; or a device node has no `device`.
    ///
    /// ```
    /// use blockyard::{DeviceNumber, FileType};
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.make_node("null", FileType::CharDevice, 0o666, Some(DeviceNumber { major: 1, minor: 3 }))?;
    /// fs.make_node("pipe", FileType::Fifo, 0o600, None)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn make_node(
        &self,
        path: impl AsRef<Path>,
        kind: FileType,
        mode: u16,
        device: Option<DeviceNumber>,
    ) -> Result<()> {
        let path = path.as_ref();
        if matches!(kind, FileType::Directory | FileType::Symlink) {
            return Err(Error::at(path, Reason::Invalid("directories and links have methods of their own")));
        }
        self.make(path, NewInode { kind, permissions: mode & 0o7777, device })
    }

    fn make(&self, path: &Path, new: NewInode) -> Result<()> {
        self.on_new(path, new.kind, |engine, ctx, place| {
            engine.create(ctx, place.directory(), place.name(), &new)?;
            Ok(())
        })
    }

    /// Creates a symbolic link to `target`, which need not exist.
    ///
    /// # Errors
    /// As [`FileSystem::create_dir`]; or the target is empty, too long, or contains a NUL byte.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.write("file", "text")?;
    /// fs.symlink("file", "link")?;
    /// assert_eq!(fs.read("link")?, b"text");
    /// assert_eq!(fs.read_link("link")?, std::path::Path::new("file"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn symlink(&self, target: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let (target, link) = (target.as_ref().as_os_str().as_bytes(), link.as_ref());
        self.on_new(link, FileType::Symlink, |engine, ctx, place| {
            engine.symlink(ctx, place.directory(), place.name(), target)?;
            Ok(())
        })
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// There is no such link.
    ///
    /// ```
    /// use std::path::Path;
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.symlink("../target", "link")?;
    /// assert_eq!(fs.read_link("link")?, Path::new("../target"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let target =
            self.on_found(path.as_ref(), LastLink::Keep, |engine, _, found| engine.read_link(found.inode))?;
        Ok(OsString::from_vec(target).into())
    }

    /// Adds a name to a file. If `original` is a symbolic link, the link itself gets the new name.
    ///
    /// # Errors
    /// As [`FileSystem::create_dir`]; or the file is missing, is a directory, is immutable or
    /// append-only, or has too many names.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.write("file", "text")?;
    /// fs.hard_link("file", "other")?;
    /// assert_eq!(fs.metadata("other")?.nlink(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let (original, link) = (original.as_ref(), link.as_ref());
        let found = self.on_found(original, LastLink::Keep, |_, _, found| Ok(found))?;
        self.on_new(link, found.kind, |engine, ctx, place| {
            match engine.link(ctx, found.inode, place.directory(), place.name()) {
                // The original was deleted. Return `NotFound`: after `StaleInode`, `on_new` would
                // look up the new name and try again, in vain.
                Err(EngineError::StaleInode(inode)) if inode == found.inode.number => {
                    Err(EngineError::NotFound.into())
                }
                done => Ok(done?),
            }
        })
    }

    /// Renames a file or directory. A file or empty directory that has the new name is replaced.
    ///
    /// # Errors
    /// Those of rename(2).
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.write("new", "content")?;
    /// fs.write("old", "before")?;
    /// fs.rename("new", "old")?;
    /// assert_eq!(fs.read("old")?, b"content");
    /// # Ok(())
    /// # }
    /// ```
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_with(from, to, RenameMode::Replace)
    }

    /// As [`FileSystem::rename`], but `mode` says what happens if the new name exists: the file or
    /// empty directory with this name is replaced, the operation fails, or the two names are
    /// exchanged.
    ///
    /// # Errors
    /// Those of renameat2(2).
    ///
    /// ```
    /// use blockyard::RenameMode;
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.write("a", "1")?;
    /// fs.write("b", "2")?;
    /// fs.rename_with("a", "b", RenameMode::Exchange)?;
    /// assert_eq!((fs.read("a")?, fs.read("b")?), (b"2".to_vec(), b"1".to_vec()));
    /// assert!(fs.rename_with("a", "b", RenameMode::NoReplace).is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn rename_with(&self, from: impl AsRef<Path>, to: impl AsRef<Path>, mode: RenameMode) -> Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        self.on_name(from, |engine, ctx, source| {
            let found = source.found().ok_or(EngineError::NotFound)?;
            let dest = Place::locate_name(engine, to)?;
            check_movable(from, source)?;
            check_movable(to, &dest)?;
            if found.kind != FileType::Directory && dest.means_directory(to) {
                return Err(EngineError::NotDirectory.into());
            }
            let (source, dest) = ((source.directory(), source.name()), (dest.directory(), dest.name()));
            engine.rename(ctx, source, dest, mode)?;
            Ok(())
        })
    }

    /// Removes a file, symbolic link, device node, pipe or socket. A directory is an error.
    ///
    /// # Errors
    /// Those of unlink(2).
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.write("file", "text")?;
    /// fs.remove_file("file")?;
    /// assert!(!fs.exists("file")?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        self.remove(path.as_ref(), Removed::File)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// Those of rmdir(2).
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.create_dir_all("a/b")?;
    /// assert!(fs.remove_dir("a").is_err(), "it is not empty");
    /// fs.remove_dir("a/b")?;
    /// fs.remove_dir("a")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.remove(path.as_ref(), Removed::Directory)
    }

    fn remove(&self, path: &Path, what: Removed) -> Result<()> {
        self.on_name(path, |engine, ctx, place| {
            place.found().ok_or(EngineError::NotFound)?;
            check_removable(path, place, what)?;
            match what {
                Removed::File => engine.unlink(ctx, place.directory(), place.name())?,
                Removed::Directory => engine.rmdir(ctx, place.directory(), place.name())?,
            }
            Ok(())
        })
    }

    /// Whether the path names anything. A symbolic link counts only if its target exists.
    ///
    /// # Errors
    /// The look-up failed, but not because a name is missing: for example, a name before the last
    /// is that of a file.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// assert!(fs.exists("lost+found")? && !fs.exists("found")?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        match self.metadata(path) {
            Ok(_) => Ok(true),
            Err(error) if error.is_missing() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Fails if a path is the root or ends in `.` or `..`: these cannot be renamed.
fn check_movable(path: &Path, place: &Place) -> Bare<()> {
    let fixed = matches!(place.name(), b"" | b"..") || path::ends_in_dot(path.as_os_str().as_bytes());
    if fixed { Err(Reason::Invalid("the root, `.` and `..` cannot be renamed")) } else { Ok(()) }
}

fn check_removable(path: &Path, place: &Place, what: Removed) -> Bare<()> {
    let ends_in_dot = path::ends_in_dot(path.as_os_str().as_bytes());
    match what {
        Removed::File if ends_in_dot || matches!(place.name(), b"" | b"..") => {
            Err(EngineError::IsDirectory.into())
        }
        Removed::Directory if ends_in_dot || place.name().is_empty() => {
            Err(Reason::Invalid("the root and `.` cannot be removed"))
        }
        Removed::Directory if place.name() == b".." => Err(EngineError::NotEmpty.into()),
        _ => Ok(()),
    }
}
