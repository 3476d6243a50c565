//! Removing whole trees.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use blockyard_disk::FileType;
use blockyard_engine::{Error as EngineError, FileSystem as Engine, InodeId, OpContext};
use blockyard_inspect::path::{self, LastLink};

use crate::batch::read_batch;
use crate::error::{Bare, Error, Reason, Result};
use crate::file_system::FileSystem;

/// Entries that are read from a directory before any of them is removed.
const BATCH: usize = 256;

impl FileSystem {
    /// Removes a directory and everything in it, or a symbolic link. Entries that others remove
    /// meanwhile are not an error.
    ///
    /// # Errors
    /// There is no such directory, or something in it cannot be removed. What was removed by then
    /// stays removed.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.create_dir_all("a/b/c")?;
    /// fs.write("a/b/file", "text")?;
    /// fs.remove_dir_all("a")?;
    /// assert!(!fs.exists("a")?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let found = self.on_found(path, LastLink::Keep, |_, _, found| Ok(found))?;
        match found.kind {
            FileType::Directory => {}
            FileType::Symlink => return self.remove_file(path),
            _ => return Err(Error::at(path, EngineError::NotDirectory)),
        }
        // Check before anything is removed.
        if path::ends_in_dot(path.as_os_str().as_bytes()) || path.file_name().is_none() {
            return Err(Error::at(path, Reason::Invalid("the root, `.` and `..` can not be removed")));
        }
        let emptied = self.empty(found.inode);
        self.at(path, emptied)?;
        self.remove_dir(path)
    }

    /// Empties a directory depth first. Keeps the directories from `top` to the current one in
    /// memory.
    fn empty(&self, top: InodeId) -> Bare<()> {
        let mut way: Vec<(InodeId, Vec<u8>)> = vec![(top, Vec::new())];
        while let Some((directory, _)) = way.last() {
            let directory = *directory;
            match self.run(|engine, ctx| remove_files(engine, ctx, directory))? {
                // In a damaged tree a directory can lie below itself.
                Some((below, _)) if way.iter().any(|(above, _)| *above == below) => {
                    return Err(Reason::Invalid("the directory tree has a loop; run the checker"));
                }
                Some(below) => way.push(below),
                None => {
                    let (_, name) = way.pop().unwrap_or((top, Vec::new()));
                    if let Some((above, _)) = way.last() {
                        let removed = self.run(|engine, ctx| engine.rmdir(ctx, *above, &name));
                        is_gone(removed)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Removes the entries of a directory. Stops at a subdirectory that is not empty, and returns it
/// with its name.
fn remove_files(
    engine: &Engine,
    ctx: &OpContext,
    directory: InodeId,
) -> std::result::Result<Option<(InodeId, Vec<u8>)>, EngineError> {
    loop {
        let (batch, _) = match read_batch(engine, directory.into(), 0, BATCH) {
            Err(EngineError::StaleInode(_)) => return Ok(None),
            batch => batch?,
        };
        if batch.is_empty() {
            return Ok(None);
        }
        for entry in batch {
            let removed = match engine.unlink(ctx, directory, &entry.name) {
                Err(EngineError::IsDirectory) => engine.rmdir(ctx, directory, &entry.name),
                removed => removed,
            };
            match removed {
                Ok(()) | Err(EngineError::NotFound | EngineError::StaleInode(_)) => {}
                Err(EngineError::NotEmpty) => match engine.find(directory, &entry.name) {
                    Ok(found) => return Ok(Some((found.inode, entry.name))),
                    Err(EngineError::NotFound | EngineError::StaleInode(_)) => {}
                    Err(error) => return Err(error),
                },
                Err(error) => return Err(error),
            }
        }
    }
}

/// Accepts that someone else removed the emptied directory or filled it again. The caller then
/// reads the parent directory once more.
fn is_gone(removed: Bare<()>) -> Bare<()> {
    match removed {
        Err(Reason::FileSystem(
            EngineError::NotFound | EngineError::StaleInode(_) | EngineError::NotEmpty,
        )) => Ok(()),
        removed => removed,
    }
}
