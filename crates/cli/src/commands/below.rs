//! A path of an image and everything below it, for commands that change inodes one by one.
//!
//! There is no recursion: directories may be nested deeper than the stack allows, and in a damaged
//! image a directory may even contain itself. Symbolic links below a path are never followed.

use std::collections::HashSet;

use anyhow::Result;
use blockyard_disk::{FileType, InodeNr};
use blockyard_inspect::path::join;

use super::volume::{AtPath, Volume};

/// How far a change at a path reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Only the inode at the path.
    Itself,
    /// The inode at the path and everything below the path.
    Below,
}

/// A name to work on.
pub(super) struct Named<'p> {
    pub(super) path: &'p [u8],
    pub(super) inode: InodeNr,
    pub(super) kind: FileType,
}

impl Volume<'_> {
    /// Calls `change` for the inode and, with [`Reach::Below`], for everything below it. A
    /// directory comes before its entries. A failure is reported, and the work goes on.
    ///
    /// # Errors
    /// Only an error that ends the work (see [`Volume::report`]).
    pub(super) fn each_below(
        &mut self,
        path: &[u8],
        inode: InodeNr,
        reach: Reach,
        mut change: impl FnMut(&mut Self, &Named<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut left = vec![(path.to_vec(), inode)];
        let mut seen = HashSet::new();
        while let Some((path, inode)) = left.pop() {
            let done = self.kind(inode).at(&path).map_err(anyhow::Error::from).and_then(|kind| {
                change(self, &Named { path: &path, inode, kind })?;
                let is_open = kind == FileType::Directory && reach == Reach::Below && seen.insert(inode);
                if is_open { self.names_in(&path, inode) } else { Ok(Vec::new()) }
            });
            left.extend(self.settle(done)?.unwrap_or_default());
        }
        Ok(())
    }

    /// Paths and inodes of the entries of a directory, in reverse order, because the caller takes
    /// them from the end.
    fn names_in(&self, path: &[u8], directory: InodeNr) -> Result<Vec<(Vec<u8>, InodeNr)>> {
        let mut found = Vec::new();
        let mut visit = |entry: blockyard_engine::DirEntry| {
            if entry.name != b"." && entry.name != b".." {
                found.push((join(path, &entry.name), entry.inode));
            }
            true
        };
        self.fs.read_dir(directory, 0, &mut visit).at(path)?;
        found.sort_by(|one, other| other.cmp(one));
        Ok(found)
    }
}
