//! A sparse device in memory: holes read as zeroes and take no memory. So a newly made file system
//! of 16 TiB takes about 256 MiB, most of it for the copies of the group descriptors.
//!
//! Operations on different 64 KiB stripes rarely share a lock, and no lock is taken by all of them
//! (see `pages.rs`). A hole to which zeroes are written stays a hole.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use blockyard_disk::num::u64_from_usize;

use crate::file::{self, FileDevice};
use crate::pages::{PAGE_SIZE, PageStore, Present, Zeroing};
use crate::{BlockDevice, DeviceError, Result, check_range};

/// A sparse device in memory; everything in it is durable at once.
pub struct MemoryDevice {
    size: u64,
    pages: PageStore,
}

impl std::fmt::Debug for MemoryDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryDevice")
            .field("size", &self.size)
            .field("resident_bytes", &self.resident_bytes())
            .finish()
    }
}

impl MemoryDevice {
    /// A device of `size` bytes, all zero.
    #[must_use]
    pub fn new(size: u64) -> Self {
        Self { size, pages: PageStore::new() }
    }

    /// A device with the content of `bytes`.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let device = Self::new(u64_from_usize(bytes.len()));
        device.pages.write(0, bytes, true);
        device
    }

    /// A device with the content of a file. The file's holes stay holes.
    ///
    /// # Errors
    /// [`DeviceError::Open`] and
    /// [`DeviceError::Io`] when the file cannot be opened or read.
    pub fn load(path: &Path) -> Result<Self> {
        let source = FileDevice::open_read_only(path)?;
        let device = Self::new(source.size());
        source.for_each_data(|offset, data| {
            device.pages.write(offset, data, true);
            Ok(())
        })?;
        Ok(device)
    }

    /// A copy of this device in its present state.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        let copy = Self::new(self.size);
        let Ok(()) = self.pages.for_each_present(|present| {
            if let Present::Data(offset, data) = present {
                copy.pages.write(offset, data, true);
            }
            Ok::<(), std::convert::Infallible>(())
        });
        copy
    }

    /// Writes the content to a new or existing file, with holes where this device has them, and
    /// flushes the file, but not its directory. A file system on the device must be closed first.
    ///
    /// To replace an existing file, the new content is first made durable in another file beside
    /// it. So an error leaves the existing file as it was. A block device is written in place, and
    /// keeps its old content where this device has holes.
    ///
    /// # Errors
    /// [`DeviceError::Open`] and
    /// [`DeviceError::Io`] when the file cannot be made or written.
    pub fn save(&self, path: &Path) -> Result<()> {
        if fs::metadata(path).is_ok_and(|data| data.is_file()) {
            return self.replace(path);
        }
        let is_new = fs::symlink_metadata(path).is_err();
        let target = FileDevice::create(path, self.size)?;
        self.write_to(&target).inspect_err(|_| {
            if is_new {
                let _ = fs::remove_file(path);
            }
        })
    }

    /// Replaces an existing file by a new file with the content.
    fn replace(&self, path: &Path) -> Result<()> {
        let failed = |source| DeviceError::Open { path: path.to_owned(), source };
        let path = fs::canonicalize(path).map_err(failed)?;
        // Held until the end: nobody else has the lock while the file is replaced.
        let _old = FileDevice::open(&path)?;
        let like = fs::metadata(&path).map_err(failed)?;
        let name = format!(".blockyard-{}-{}", std::process::id(), like.ino());
        let beside = path.with_file_name(name);
        File::create_new(&beside).map_err(failed)?;
        let replaced = || {
            // Only root may change the owner of a file. If the caller is not root, it owns the new
            // file.
            let _ = std::os::unix::fs::chown(&beside, Some(like.uid()), Some(like.gid()));
            fs::set_permissions(&beside, like.permissions()).map_err(failed)?;
            self.write_to(&FileDevice::create(&beside, self.size)?)?;
            fs::rename(&beside, &path).map_err(failed)
        };
        replaced().inspect_err(|_| {
            let _ = fs::remove_file(&beside);
        })
    }

    fn write_to(&self, target: &FileDevice) -> Result<()> {
        let mut writer = file::Gather::new(target);
        self.pages.for_each_present(|present| match present {
            Present::Data(offset, data) => writer.push(offset, data),
            Present::Zero(_) => Ok(()),
        })?;
        writer.finish()?;
        target.flush()
    }

    /// Zeroes a checked range. A range that reaches the end of the device is first extended to the
    /// end of the last page, so that a last page without data need not stay in memory.
    fn drop_range(&self, offset: u64, length: u64) {
        let end = offset + length;
        let end = if end == self.size { end.next_multiple_of(u64_from_usize(PAGE_SIZE)) } else { end };
        self.pages.zero(offset, end - offset, Zeroing::Drop);
    }

    /// Bytes of memory held by pages with content.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.pages.resident_bytes()
    }
}

impl BlockDevice for MemoryDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        check_range("read", offset, buf.len(), self.size)?;
        for hole in self.pages.read(offset, buf) {
            buf[hole].fill(0);
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        check_range("write", offset, data.len(), self.size)?;
        self.pages.write(offset, data, true);
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> Result<()> {
        check_range("write zeroes", offset, length, self.size)?;
        self.drop_range(offset, length);
        Ok(())
    }

    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        check_range("discard", offset, length, self.size)?;
        self.drop_range(offset, length);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }
}
