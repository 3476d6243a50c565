//! Paths: components separated by `/`, symbolic links followed inside the image.
//!
//! A path is taken from the image's root whether it begins with `/` or not. Work is a queue of components; a link
//! puts its target's components in front, at most [`SYMLINKS_MAX`] times.

use std::collections::VecDeque;

use blockyard_disk::{FileType, Inode};

use super::directory::is_possible_name;
use super::{Error, Reader, Result};

/// Symbolic links that one path may pass.
pub const SYMLINKS_MAX: usize = 40;

impl Reader {
    /// The inode of a path. Links in the middle are followed; the last component is followed with `follow_last`, and where a slash
    /// behind it says that a directory is meant.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::TooManySymlinks`], [`Error::Device`], [`Error::Disk`].
    pub fn resolve(&self, path: &[u8], follow_last: bool) -> Result<Inode> {
        let shown = || String::from_utf8_lossy(path).into_owned();
        let means_directory = path.ends_with(b"/") || path.ends_with(b"/.");
        let follow_last = follow_last || means_directory;
        let mut left: VecDeque<Vec<u8>> = components(path).collect();
        let mut at = self.root()?;
        let mut links = 0;
        while let Some(name) = left.pop_front() {
            if !at.is_directory() {
                return Err(Error::NotDirectory(shown()));
            }
            let found = if is_possible_name(&name) { self.lookup(&at, &name)? } else { None };
            let next = self.inode(found.ok_or_else(|| Error::NotFound(shown()))?)?;
            if next.file_type() != FileType::Symlink || (left.is_empty() && !follow_last) {
                at = next;
                continue;
            }
            links += 1;
            if links > SYMLINKS_MAX {
                return Err(Error::TooManySymlinks(shown()));
            }
            let target = self.symlink_target(&next)?;
            if target.first() == Some(&b'/') {
                at = self.root()?;
            }
            for component in components(&target).collect::<Vec<_>>().into_iter().rev() {
                left.push_front(component);
            }
        }
        if means_directory && !at.is_directory() {
            return Err(Error::NotDirectory(shown()));
        }
        Ok(at)
    }
}

/// The parts of a path that name something.
fn components(path: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".").map(<[u8]>::to_vec)
}
