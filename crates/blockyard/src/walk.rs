//! A directory tree as an iterator.

use std::collections::HashSet;
use std::path::Path;

use blockyard_disk::{FileType, InodeNr};
use blockyard_inspect::path::LastLink;

use crate::error::Result;
use crate::file_system::FileSystem;
use crate::read_dir::{DirEntry, ReadDir};

/// Everything below a directory, each directory before its entries. See [`FileSystem::walk`].
pub struct Walk {
    fs: FileSystem,
    /// The directories that are being read, from the top down, each with its inode number.
    open: Vec<(ReadDir, InodeNr)>,
    /// The inode numbers in `open`. Directories with these numbers are not entered again: in a
    /// damaged tree, a directory can be its own descendant.
    above: HashSet<InodeNr>,
    /// The entry that was returned last, if it is a directory that is to be entered next.
    entered: Option<DirEntry>,
}

impl FileSystem {
    /// Everything below a directory, each directory before its entries, which are unsorted. `path`
    /// itself may be a symbolic link to a directory. Other symbolic links are not followed.
    ///
    /// # Errors
    /// There is no such directory.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.create_dir_all("a/b")?;
    /// fs.write("a/b/file", "text")?;
    /// let found: Vec<_> = fs.walk("a")?.collect::<blockyard::Result<_>>()?;
    /// assert_eq!(found[1].path(), std::path::Path::new("a/b/file"));
    /// assert_eq!(found[1].depth(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn walk(&self, path: impl AsRef<Path>) -> Result<Walk> {
        Walk::new(self, path.as_ref())
    }
}

impl Walk {
    fn new(fs: &FileSystem, path: &Path) -> Result<Self> {
        let number = fs.metadata(path)?.ino();
        let open = vec![(fs.read_dir(path)?, number)];
        Ok(Self { fs: fs.clone(), open, above: HashSet::from([number]), entered: None })
    }

    /// Skips the content of the entry that was returned last, if that is a directory.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.create_dir_all("a/b")?;
    /// fs.create_dir_all("c/d")?;
    /// let mut walk = fs.walk("/")?;
    /// let mut seen = Vec::new();
    /// while let Some(entry) = walk.next() {
    ///     let entry = entry?;
    ///     if entry.file_name() == "a" {
    ///         walk.skip_dir();
    ///     }
    ///     seen.push(entry.file_name());
    /// }
    /// assert!(seen.iter().any(|name| name == "d") && seen.iter().all(|name| name != "b"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn skip_dir(&mut self) {
        self.entered = None;
    }
}

impl Iterator for Walk {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(directory) = self.entered.take()
            && self.above.insert(directory.ino())
        {
            // In a damaged image, a directory entry may record the type "directory" for a symbolic
            // link. `LastLink::Keep` does not follow the link.
            match self.fs.read_located_dir(directory.path(), LastLink::Keep) {
                Ok(entries) => self.open.push((entries, directory.ino())),
                Err(error) => {
                    self.above.remove(&directory.ino());
                    // A directory that was removed after its entry was read is not an error.
                    if !error.is_missing() {
                        return Some(Err(error));
                    }
                }
            }
        }
        loop {
            let depth = self.open.len();
            let (entries, number) = self.open.last_mut()?;
            let number = *number;
            let Some(entry) = entries.next() else {
                self.open.pop();
                self.above.remove(&number);
                continue;
            };
            let entry = entry.map(|entry| entry.at_depth(depth));
            if let Ok(entry) = &entry
                && entry.file_type().is_ok_and(|kind| kind == FileType::Directory)
            {
                self.entered = Some(entry.clone());
            }
            return Some(entry);
        }
    }
}
