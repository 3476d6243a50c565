//! The entries of a directory, as an iterator.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use blockyard_disk::{FileType, InodeNr};
use blockyard_engine::{DirEntry as RawEntry, Error as EngineError, Found};
use blockyard_inspect::path::LastLink;

use crate::batch::read_batch;
use crate::error::{Bare, Error, Result};
use crate::file_system::FileSystem;
use crate::metadata::Metadata;
use crate::reference::{Access, Reference};

/// Entries per batch. A batch may hold a few more: entries with equal positions (their names have
/// the same hash) stay together.
const BATCH: usize = 256;

/// The entries of a directory; see [`FileSystem::read_dir`]. The position of the iteration stays
/// valid when the directory changes.
pub struct ReadDir {
    fs: FileSystem,
    reference: Reference,
    path: PathBuf,
    /// Where the next batch begins; `None` after the last.
    next: Option<u64>,
    batch: VecDeque<RawEntry>,
}

/// An entry of a directory.
#[derive(Clone, Debug)]
pub struct DirEntry {
    fs: FileSystem,
    directory: Found,
    path: PathBuf,
    inode: InodeNr,
    kind: Option<FileType>,
    depth: usize,
}

impl FileSystem {
    /// The entries of a directory, unsorted, without `.` and `..`. An entry that is added or
    /// removed meanwhile may or may not be returned; every other entry is returned exactly once.
    ///
    /// # Errors
    /// There is no such directory.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.write("file", "text")?;
    /// for entry in fs.read_dir("/")? {
    ///     let entry = entry?;
    ///     println!("{} {:?}", entry.path().display(), entry.file_type()?);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir> {
        self.read_located_dir(path.as_ref(), LastLink::Follow)
    }

    pub(crate) fn read_located_dir(&self, path: &Path, last: LastLink) -> Result<ReadDir> {
        let opened = self.again_while_stale(|| {
            let found = self.locate(path, last)?.found().ok_or(EngineError::NotFound)?;
            if found.kind != FileType::Directory {
                return Err(EngineError::NotDirectory.into());
            }
            Ok(Some(self.reference(found.inode, Access::Read)?))
        });
        Ok(ReadDir::new(self.clone(), self.at(path, opened)?, path))
    }
}

impl ReadDir {
    fn new(fs: FileSystem, reference: Reference, path: &Path) -> Self {
        Self { fs, reference, path: path.to_owned(), next: Some(0), batch: VecDeque::new() }
    }

    fn read_batch(&mut self, from: u64) -> Bare<()> {
        let id = self.reference.id();
        let found = self.fs.run(|engine, _| read_batch(engine, id.into(), from, BATCH));
        match found {
            Ok((batch, next)) => {
                self.next = next;
                self.batch = batch.into();
                Ok(())
            }
            Err(error) => {
                self.next = None;
                Err(error)
            }
        }
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.batch.is_empty() {
            let from = self.next?;
            if let Err(reason) = self.read_batch(from) {
                return Some(Err(Error::at(&self.path, reason)));
            }
        }
        let RawEntry { inode, kind, name, .. } = self.batch.pop_front()?;
        let directory = Found { inode: self.reference.id(), kind: FileType::Directory };
        let path = self.path.join(OsString::from_vec(name));
        Some(Ok(DirEntry { fs: self.fs.clone(), directory, path, inode, kind, depth: 1 }))
    }
}

impl DirEntry {
    /// The name.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.create_dir("a")?;
    /// fs.write("a/file", "text")?;
    /// let entry = fs.read_dir("a")?.next().expect("one entry")?;
    /// assert_eq!(entry.file_name(), "file");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn file_name(&self) -> OsString {
        self.name().to_owned()
    }

    fn name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }

    /// The path of the directory as it was given, joined with the name.
    ///
    /// ```
    /// use std::path::Path;
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.create_dir("a")?;
    /// fs.write("a/file", "text")?;
    /// let entry = fs.read_dir("a")?.next().expect("one entry")?;
    /// assert_eq!(entry.path(), Path::new("a/file"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The inode number.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.write("file", "text")?;
    /// let entry = fs.read_dir("/")?.next().expect("one entry")?;
    /// assert_eq!(entry.ino(), entry.metadata()?.ino());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn ino(&self) -> InodeNr {
        self.inode
    }

    /// The depth below the directory where a walk ([`FileSystem::walk`]) began: 1 for the entries
    /// of that directory. Always 1 for the entries of [`FileSystem::read_dir`].
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.create_dir_all("a/b/c")?;
    /// let depths: Vec<usize> = fs.walk("a")?.flatten().map(|entry| entry.depth()).collect();
    /// assert_eq!(depths, [1, 2]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn depth(&self) -> usize {
        self.depth
    }

    pub(crate) const fn at_depth(mut self, depth: usize) -> Self {
        self.depth = depth;
        self
    }

    /// The type that the directory entry records or, if it records none, the type of the inode. A
    /// symbolic link is not followed.
    ///
    /// # Errors
    /// As [`DirEntry::metadata`], but only for entries without a recorded type.
    ///
    /// ```
    /// use blockyard::FileType;
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let entry = fs.read_dir("/")?.next().expect("lost+found")?;
    /// assert_eq!(entry.file_type()?, FileType::Directory);
    /// # Ok(())
    /// # }
    /// ```
    pub fn file_type(&self) -> Result<FileType> {
        match self.kind {
            Some(kind) => Ok(kind),
            None => Ok(self.metadata()?.file_type()),
        }
    }

    /// What `lstat` returns.
    ///
    /// # Errors
    /// The entry has been removed, the image is damaged, or the device fails.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let entry = fs.read_dir("/")?.next().expect("lost+found")?;
    /// assert_eq!(entry.metadata()?.mode(), 0o700);
    /// # Ok(())
    /// # }
    /// ```
    pub fn metadata(&self) -> Result<Metadata> {
        let name = self.name().as_bytes();
        let found = self.fs.again_while_stale(|| {
            self.fs.run(|engine, _| {
                let found = engine.find(self.directory.inode, name)?;
                engine.attributes(found.inode).map(Some)
            })
        });
        self.fs.at(&self.path, found).map(Metadata::new)
    }
}
