//! Removing whole trees.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use blockyard_disk::FileType;
use blockyard_engine::{Error as EngineError, FileSystem as Engine, InodeId, OpContext};
use blockyard_inspect::path;

use crate::batch::read_batch;
use crate::error::{Bare, Error, Reason, Result};
use crate::file_system::{FileSystem, TRIES};

/// Entries that are read from a directory before any of them is removed.
const BATCH: usize = 256;

impl FileSystem {
    /// Removes a directory and everything in it, or a symbolic link. Entries that other threads
    /// remove meanwhile are not an error.
    ///
    /// # Errors
    /// There is no such directory; the path is the root or ends in `.` or `..`; or something in it
    /// cannot be removed. What was removed by then stays removed.
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
        let found = self.on_name(path, |_, _, place| Ok(place.found().ok_or(EngineError::NotFound)?))?;
        match found.kind {
            FileType::Directory => {}
            FileType::Symlink => return self.remove_file(path),
            _ => return Err(Error::at(path, EngineError::NotDirectory)),
        }
        // `remove_dir` refuses these paths, too, but is called only after the directory is emptied.
        if path::ends_in_dot(path.as_os_str().as_bytes()) || path.file_name().is_none() {
            return Err(Error::at(path, Reason::Invalid("the root, `.` and `..` cannot be removed")));
        }
        let emptied = self.empty(found.inode);
        self.at(path, emptied)?;
        self.remove_dir(path)
    }

    /// Empties a directory depth first. Keeps the directories from `top` to the current one in
    /// memory.
    fn empty(&self, top: InodeId) -> Bare<()> {
        let mut way: Vec<(InodeId, Vec<u8>)> = vec![(top, Vec::new())];
        let mut progress = Progress::default();
        while let Some((directory, _)) = way.last() {
            let directory = *directory;
            match self.run(|engine, ctx| remove_files(engine, ctx, directory, &mut progress))? {
                // In a damaged tree, a directory can be its own descendant.
                Some((below, _)) if way.iter().any(|(above, _)| *above == below) => {
                    return Err(Reason::Invalid("the directory tree has a loop; run the checker"));
                }
                Some(below) => way.push(below),
                None => {
                    let (_, name) = way.pop().unwrap_or((top, Vec::new()));
                    if let Some((above, _)) = way.last() {
                        let removed = self.run(|engine, ctx| engine.rmdir(ctx, *above, &name));
                        progress.note(is_removed(removed)?)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Ends the removal of a tree if nothing can be removed any more: a damaged directory can list
/// names that a look-up does not find.
#[derive(Default)]
struct Progress {
    /// Attempts in a row that removed nothing.
    in_vain: usize,
}

impl Progress {
    /// Notes whether an attempt removed something, and fails after [`TRIES`] attempts in a row that
    /// removed nothing. A few attempts may have failed only because of other threads.
    fn note(&mut self, has_removed: bool) -> Bare<()> {
        self.in_vain = if has_removed { 0 } else { self.in_vain + 1 };
        if self.in_vain == TRIES {
            return Err(Reason::Invalid("a directory lists names that cannot be found; run the checker"));
        }
        Ok(())
    }
}

/// Removes the entries of a directory up to the first subdirectory that is not empty, and returns
/// that subdirectory with its name. `None` if the directory is empty now or was deleted.
fn remove_files(
    engine: &Engine,
    ctx: &OpContext,
    directory: InodeId,
    progress: &mut Progress,
) -> Bare<Option<(InodeId, Vec<u8>)>> {
    loop {
        let (batch, _) = match read_batch(engine, directory.into(), 0, BATCH) {
            Err(EngineError::StaleInode(_)) => return Ok(None),
            batch => batch?,
        };
        if batch.is_empty() {
            return Ok(None);
        }
        let mut has_removed = false;
        for entry in batch {
            let removed = match engine.unlink(ctx, directory, &entry.name) {
                Err(EngineError::IsDirectory) => engine.rmdir(ctx, directory, &entry.name),
                removed => removed,
            };
            match removed {
                Ok(()) => has_removed = true,
                Err(EngineError::NotFound | EngineError::StaleInode(_)) => {}
                Err(EngineError::NotEmpty) => match engine.find(directory, &entry.name) {
                    Ok(found) => return Ok(Some((found.inode, entry.name))),
                    Err(EngineError::NotFound | EngineError::StaleInode(_)) => {}
                    Err(error) => return Err(error.into()),
                },
                Err(error) => return Err(error.into()),
            }
        }
        progress.note(has_removed)?;
    }
}

/// Whether this thread removed the directory that it had emptied. False, not an error, if another
/// thread removed the directory or added entries to it. The caller then reads the parent again.
fn is_removed(removed: Bare<()>) -> Bare<bool> {
    match removed {
        Err(Reason::FileSystem(
            EngineError::NotFound | EngineError::StaleInode(_) | EngineError::NotEmpty,
        )) => Ok(false),
        removed => removed.map(|()| true),
    }
}
