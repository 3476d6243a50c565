//! Directories with everything in them, in the order of names.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use blockyard_disk::{FileType, InodeNr};
use blockyard_engine::{Error, NewInode};
use blockyard_inspect::path::join;
use walkdir::WalkDir;

use super::Copy;
use crate::commands::host::{self, HostError, Links};
use crate::commands::volume::{AtPath, Place};

/// A directory of the image that is being filled.
struct Filling {
    inode: InodeNr,
    path: Vec<u8>,
    source: PathBuf,
    metadata: Metadata,
}

impl Copy<'_, '_> {
    /// Copies a directory with everything in it, in the order of names. The copy becomes `place`;
    /// without a place, the content goes into `dest`.
    pub(super) fn tree(&mut self, source: &Path, place: Option<Place>, dest: &[u8]) -> Result<()> {
        let mut open: Vec<Filling> = Vec::new();
        let ended = self.walk(source, place.as_ref(), dest, &mut open);
        // Finish the open directories even if the work ended early, so that what was made is as
        // complete as possible.
        while let Some(filled) = open.pop() {
            self.finish(Some(filled))?;
        }
        ended
    }

    fn walk(
        &mut self,
        source: &Path,
        place: Option<&Place>,
        dest: &[u8],
        open: &mut Vec<Filling>,
    ) -> Result<()> {
        let mut walk = WalkDir::new(source).follow_links(false).sort_by_file_name().into_iter();
        while let Some(entry) = walk.next() {
            let Some(entry) = self.settle(entry.map_err(|error| HostError::from(error).into()))? else {
                continue;
            };
            while open.len() > entry.depth() {
                self.finish(open.pop())?;
            }
            let metadata = entry.metadata().map_err(|error| HostError::from(error).into());
            let Some(metadata) = self.settle(metadata)? else { continue };
            let target = match (open.last(), place) {
                (Some(parent), _) => Some(inside(parent, entry.file_name())),
                (None, place) => place.cloned(),
            };
            if !metadata.is_dir() {
                let Some(target) = target else { continue };
                let done = self.leaf(entry.path(), Links::Kept, &metadata, &target);
                self.settle(done)?;
                continue;
            }
            let made = self.directory(target.as_ref(), &metadata, dest);
            match self.settle(made)? {
                Some((inode, path)) => {
                    open.push(Filling { inode, path, source: entry.path().to_owned(), metadata });
                }
                None => walk.skip_current_dir(),
            }
        }
        Ok(())
    }

    /// Makes a directory, or accepts an existing one.
    fn directory(
        &mut self,
        place: Option<&Place>,
        metadata: &Metadata,
        dest: &[u8],
    ) -> Result<(InodeNr, Vec<u8>)> {
        let (found, path) = match place {
            None => (Some(self.volume.directory(dest)?), dest.to_vec()),
            Some(place) => (self.volume.find(place.parent, &place.name).at(&place.path)?, place.path.clone()),
        };
        let inode = match (found, place) {
            (Some(inode), _) if self.volume.kind(inode).at(&path)? == FileType::Directory => inode,
            (None, Some(place)) => {
                let permissions = host::permissions(metadata);
                self.create(place, &NewInode { kind: FileType::Directory, permissions, device: None })?
            }
            _ => return Err(Error::NotDirectory).at(&path).map_err(Into::into),
        };
        Ok((inode, path))
    }

    /// Gives a directory its attributes once it is filled, because filling changes its times.
    fn finish(&mut self, filled: Option<Filling>) -> Result<()> {
        let Some(Filling { inode, path, source, metadata }) = filled else { return Ok(()) };
        let done = self.attributes(inode, (&source, Links::Kept), &metadata, &path).and_then(|()| {
            if let Some(flags) = File::open(&source).ok().as_ref().and_then(host::flags) {
                self.set_flags(inode, flags, &path)?;
            }
            self.done(&path, inode, &metadata)
        });
        self.settle(done).map(|_| ())
    }
}

fn inside(parent: &Filling, name: &OsStr) -> Place {
    let name = name.as_bytes().to_vec();
    Place { parent: parent.inode, path: join(&parent.path, &name), name }
}
