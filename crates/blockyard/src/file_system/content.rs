//! The content of files, as a whole or through an open file.

use std::io::{Read, Write};
use std::path::Path;

use blockyard_disk::num::usize_from_u64;

use crate::error::{Error, Result};
use crate::file::File;
use crate::file_system::FileSystem;
use crate::open_options::OpenOptions;

/// The most bytes to allocate for a file's content before reading it. The buffer grows further as
/// data arrives, so a false size in a damaged inode costs little.
const CAPACITY_MAX: u64 = 64 << 20;

impl FileSystem {
    /// Opens a file for reading; for all other modes, use [`OpenOptions`].
    ///
    /// # Errors
    /// There is no such file.
    ///
    /// ```
    /// use std::io::Read;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.write("greeting", "hello")?;
    /// let mut text = String::new();
    /// fs.open("greeting")?.read_to_string(&mut text)?;
    /// assert_eq!(text, "hello");
    /// # Ok(())
    /// # }
    /// ```
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        OpenOptions::new().read(true).open(self, path)
    }

    /// Opens a file for writing, creating it if it is missing and truncating it if it exists.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    ///
    /// ```
    /// use std::io::Write;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.create("greeting")?.write_all(b"hello")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn create(&self, path: impl AsRef<Path>) -> Result<File> {
        OpenOptions::new().write(true).create(true).truncate(true).open(self, path)
    }

    /// Creates a file and opens it for reading and writing; an existing file is an error.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.create_new("lock")?;
    /// assert!(fs.create_new("lock").is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn create_new(&self, path: impl AsRef<Path>) -> Result<File> {
        OpenOptions::new().read(true).write(true).create_new(true).open(self, path)
    }

    /// The whole content of a file.
    ///
    /// # Errors
    /// As [`FileSystem::open`] and [`File::read_at`].
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.write("file", [1, 2, 3])?;
    /// assert_eq!(fs.read("file")?, [1, 2, 3]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let mut file = self.open(path)?;
        let capacity = file.metadata()?.len().min(CAPACITY_MAX);
        let mut content = Vec::with_capacity(usize_from_u64(capacity));
        match file.read_to_end(&mut content) {
            Ok(_) => Ok(content),
            Err(error) => Err(Error::at(file.path(), error)),
        }
    }

    /// The whole content of a text file.
    ///
    /// # Errors
    /// As [`FileSystem::read`]; or the content is not UTF-8.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.write("greeting", "hello")?;
    /// assert_eq!(fs.read_to_string("greeting")?, "hello");
    /// # Ok(())
    /// # }
    /// ```
    pub fn read_to_string(&self, path: impl AsRef<Path>) -> Result<String> {
        let path = path.as_ref();
        let content = self.read(path)?;
        String::from_utf8(content)
            .map_err(|error| Error::at(path, std::io::Error::new(std::io::ErrorKind::InvalidData, error)))
    }

    /// Writes the whole content of a file, creating it if it is missing and replacing what it held.
    ///
    /// # Errors
    /// As [`FileSystem::create`] and [`File::write_at`]. After an error, the file may be empty or
    /// hold a part of the content.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.write("file", "text")?;
    /// fs.write("file", b"bytes")?;
    /// assert_eq!(fs.read("file")?, b"bytes");
    /// # Ok(())
    /// # }
    /// ```
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<()> {
        let mut file = self.create(path)?;
        file.write_all(content.as_ref()).map_err(|error| Error::at(file.path(), error))
    }

    /// Copies the content and permissions of a file to another file in the image, and returns the
    /// size in bytes. Holes stay holes.
    ///
    /// # Errors
    /// As [`FileSystem::read`] and [`FileSystem::write`]; `from` is not a regular file; or both
    /// paths lead to the same file.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.write("file", "text")?;
    /// assert_eq!(fs.copy("file", "other")?, 4);
    /// assert_eq!(fs.read("other")?, b"text");
    /// # Ok(())
    /// # }
    /// ```
    pub fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<u64> {
        let source = self.open(from)?;
        let found = source.metadata()?;
        if !found.is_file() {
            return Err(Error::at(source.path(), crate::Reason::Invalid("not a regular file")));
        }
        let dest = OpenOptions::new().write(true).create(true).mode(found.mode()).open(self, to)?;
        // `dest` may be the source under another name, so it was opened without truncation and is
        // emptied only after this check.
        if dest.id() == source.id() {
            return Err(Error::at(dest.path(), crate::Reason::Invalid("both are the same file")));
        }
        dest.set_len(0)?;
        source.each_data(|bytes, at| {
            std::os::unix::fs::FileExt::write_all_at(&dest, bytes, at)
                .map_err(|error| Error::at(dest.path(), error))
        })?;
        dest.set_len(found.len())?;
        dest.set_permissions(found.mode())?;
        Ok(found.len())
    }
}
