//! Opening files.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use blockyard_disk::FileType;
use blockyard_engine::{Error as EngineError, Found, NewInode};
use blockyard_inspect::path::{self, LastLink};

use crate::error::{Bare, Reason, Result};
use crate::file::{Abilities, File};
use crate::file_system::FileSystem;
use crate::open_options::OpenOptions;
use crate::paths::Place;
use crate::reference::{Access, Reference};

impl OpenOptions {
    /// Opens a file.
    ///
    /// # Errors
    /// Those of [`std::fs::OpenOptions::open`], except for permissions, which are not checked.
    /// Options that contradict each other are an error, whose message names them. In an image that
    /// is open read-only, no regular file can be opened for writing.
    ///
    /// ```
    /// use blockyard::OpenOptions;
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let file = OpenOptions::new().read(true).write(true).create(true).open(&fs, "table")?;
    /// file.write_at(b"row", 4096)?;
    /// assert_eq!(file.metadata()?.len(), 4099);
    /// # Ok(())
    /// # }
    /// ```
    pub fn open(&self, fs: &FileSystem, path: impl AsRef<Path>) -> Result<File> {
        let path = path.as_ref();
        fs.at(path, self.open_path(fs, path))
    }

    fn open_path(self, fs: &FileSystem, path: &Path) -> Bare<File> {
        let abilities = self.abilities()?;
        let bytes = path.as_os_str().as_bytes();
        if (self.create || self.create_new) && path::names_directory(bytes) {
            // The path ends in a slash or `/.`, so it can only name a directory, and no file can be
            // created by this path. If the look-up of the path fails, return that error instead.
            fs.locate(Path::new(OsStr::from_bytes(path::trimmed(bytes))), LastLink::Keep)?;
            let is_there = self.create_new && path::ends_in_dot(bytes);
            return Err(if is_there { EngineError::Exists } else { EngineError::IsDirectory }.into());
        }
        // Another thread may remove the file between the look-up of its name and the opening of its
        // inode.
        fs.again_while_stale(|| {
            let place = fs.locate(path, self.last())?;
            let reference = match place.found() {
                Some(found) => self.open_found(fs, found)?,
                None if self.create || self.create_new => match self.make(fs, &place) {
                    // Another thread created the file first: start again, and open that file.
                    Err(Reason::FileSystem(EngineError::Exists)) if !self.create_new => return Ok(None),
                    made => made?,
                },
                None => return Err(EngineError::NotFound.into()),
            };
            Ok(Some(File::new(reference, path, abilities)))
        })
    }

    const fn last(self) -> LastLink {
        if self.follow && !self.create_new { LastLink::Follow } else { LastLink::Keep }
    }

    /// What the file may be used for. An error if the options contradict each other, or if one is
    /// missing.
    fn abilities(self) -> Bare<Abilities> {
        let writes = self.write || self.append;
        let creates = self.create || self.create_new;
        let problem = if creates && !writes {
            "create and create_new need write or append"
        } else if self.truncate && !writes {
            "truncate needs write"
        } else if self.append && self.truncate && !self.create_new {
            "append and truncate contradict each other"
        } else if !writes && !self.read {
            "none of read, write and append is set"
        } else {
            return Ok(Abilities { read: self.read, write: writes, append: self.append });
        };
        Err(Reason::Invalid(problem))
    }

    fn open_found(self, fs: &FileSystem, found: Found) -> Bare<Reference> {
        if self.create_new {
            return Err(EngineError::Exists.into());
        }
        let writes = self.write || self.append;
        match found.kind {
            FileType::Directory if writes || self.create => return Err(EngineError::IsDirectory.into()),
            FileType::Symlink => return Err(Reason::Loop),
            _ => {}
        }
        // As on Linux, a pipe or device of a read-only image can be opened for writing.
        if writes && found.kind == FileType::Regular && fs.run(|engine, _| Bare::Ok(engine.is_read_only()))? {
            return Err(EngineError::ReadOnly.into());
        }
        let access = if writes { Access::Write } else { Access::Read };
        let reference = fs.reference(found.inode, access)?;
        if self.truncate && found.kind == FileType::Regular {
            fs.run(|engine, ctx| engine.truncate(ctx, found.inode, 0))?;
        }
        Ok(reference)
    }

    fn make(self, fs: &FileSystem, place: &Place) -> Bare<Reference> {
        let new = NewInode { kind: FileType::Regular, permissions: self.mode & 0o7777, device: None };
        let id = fs.run(|engine, ctx| engine.create_open(ctx, place.directory(), place.name(), &new))?;
        Ok(fs.opened_reference(id, Access::Write))
    }
}
