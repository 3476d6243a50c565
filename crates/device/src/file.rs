//! A device that is a file or a block device, or a part of one: positional reads and writes, hole
//! punching, advisory lock.
//!
//! - A writer holds an exclusive `flock` while it lives, so no two of our writers use a file at
//!   once. Copies of one open file share its lock, so every device takes a [`FileClaim`] before the
//!   lock.
//! - A writer that opens a block device by its path also asks the kernel for exclusive use, which
//!   fails while the device is mounted.
//! - A file that backs a loop device is not opened for writing. The kernel caches what it has read
//!   of the file, and would not see our changes.
//! - A reader takes a shared lock only on request ([`FileDevice::lock_for_reading`]).

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, IoSlice, Seek, SeekFrom};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use blockyard_disk::num::{u64_from_usize, usize_from_u64};
use rustix::fs::{FallocateFlags, FlockOperation, OFlags};

use crate::claim::FileClaim;
use crate::clone_range::clone_range;
use crate::{BlockDevice, DeviceError, PartitionTable, Result, check_range, in_use};

/// The most bytes that are read, written as zeroes, or gathered for a write at a time.
const CHUNK: usize = 1 << 20;
/// The most parts of one `pwritev`.
const PARTS_MAX: usize = 1024;

/// A file or block device, or a part of one.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    path: PathBuf,
    /// The byte of the file where the device begins: offsets of all methods count from there.
    start: u64,
    size: u64,
    is_read_only: bool,
    /// Set once this device has the lock.
    claim: OnceLock<FileClaim>,
    /// Whether others may have copies of the open file, which share its lock.
    is_shared: bool,
}

impl FileDevice {
    /// Opens for reading only; takes no lock.
    ///
    /// # Errors
    /// [`DeviceError::Open`].
    pub fn open_read_only(path: &Path) -> Result<Self> {
        let opened = refuse_other_kinds(path).and_then(|()| OpenOptions::new().read(true).open(path));
        Self::finish_open(opened, path, true).map_err(|source| open_error(path, source))
    }

    /// Opens for reading and writing, with the exclusive lock.
    ///
    /// # Errors
    /// [`DeviceError::Open`], also when somebody holds the lock, the block device is in use, or the
    /// file backs a loop device.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_writable(path).map_err(|source| open_error(path, source))
    }

    /// A device over a file that the caller has opened. If the file was opened for reading and
    /// writing, the device is writable and holds the exclusive lock. Otherwise it is read-only and
    /// unlocked.
    ///
    /// As [`FileDevice::open`], but a block device counts as in use only if the list of mounts
    /// shows a writable mount of it or of one of its partitions. [`DeviceError::Open`] also if the
    /// file was opened for writing only, or to append. (The kernel moves every write to the end of
    /// a file that was opened to append.)
    pub fn from_file(file: File) -> Result<Self> {
        use std::os::fd::AsRawFd;
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        let path = std::fs::read_link(&link).unwrap_or_else(|_| link.into());
        let flags = rustix::fs::fcntl_getfl(&file).map_err(|errno| open_error(&path, errno.into()))?;
        if flags & OFlags::RWMODE == OFlags::WRONLY {
            let message = "it was opened for writing only; open it for reading, too";
            return Err(open_error(&path, io::Error::new(io::ErrorKind::InvalidInput, message)));
        }
        let is_writable = flags & OFlags::RWMODE == OFlags::RDWR;
        if is_writable && flags.contains(OFlags::APPEND) {
            let message = "it was opened to append; open it for reading and writing instead";
            return Err(open_error(&path, io::Error::new(io::ErrorKind::InvalidInput, message)));
        }
        let opened = if is_writable { refuse_in_use(&path).map(|()| file) } else { Ok(file) };
        let mut device =
            Self::finish_open(opened, &path, !is_writable).map_err(|source| open_error(&path, source))?;
        device.is_shared = true;
        Ok(device)
    }

    /// Takes a reader's shared lock: while this device lives, no writer that takes the lock can
    /// open the file. Does nothing if this device already has a lock, as every writer has.
    ///
    /// # Errors
    /// [`DeviceError::Open`] when somebody holds the exclusive lock, or the kernel has the file or
    /// device mounted and may change it.
    pub fn lock_for_reading(&self) -> Result<()> {
        if !self.is_read_only || self.claim.get().is_some() {
            return Ok(());
        }
        if let Some(mount) = in_use::kernel_mount(&self.path) {
            let place = mount.place.map(|place| format!(" at {place}")).unwrap_or_default();
            let why = format!("{} is mounted{place}", mount.device.display());
            return Err(open_error(&self.path, busy(why)));
        }
        self.lock(FlockOperation::NonBlockingLockShared).map_err(|source| open_error(&self.path, source))
    }

    /// Creates a sparse file of `size` bytes, or empties and resizes an existing one, with the
    /// exclusive lock.
    ///
    /// The content is dropped only once the lock is held. A block device keeps its content, and
    /// must have at least `size` bytes; only the first `size` are used.
    ///
    /// # Errors
    /// [`DeviceError::Open`]; [`DeviceError::OutOfRange`] for a block device that is too small.
    pub fn create(path: &Path, size: u64) -> Result<Self> {
        Self::create_at(path, 0, size)
    }

    /// As [`Self::create`], for a device that begins at byte `start` of the file. The bytes before
    /// `start` keep their content.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn create_at(path: &Path, start: u64, size: u64) -> Result<Self> {
        let end = start.saturating_add(size);
        let create = || {
            if std::fs::metadata(path).is_ok_and(|data| data.file_type().is_block_device()) {
                return Self::open_writable(path);
            }
            refuse_other_kinds(path)?;
            refuse_attached(path)?;
            let is_new = !path.exists();
            let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
            let mut device = Self::finish_open(opened, path, false)?;
            // Try the new size before the content is dropped. If the size is impossible, an old
            // file keeps its content, and a new file is removed.
            let length_before = device.size;
            if let Err(error) = device.file.set_len(end) {
                if is_new {
                    let _ = std::fs::remove_file(path);
                }
                return Err(error);
            }
            device.file.set_len(start.min(length_before))?;
            device.file.set_len(end)?;
            device.size = end;
            Ok(device)
        };
        let device: Self = create().map_err(|source| open_error(path, source))?;
        check_range("create", start, size, device.size)?;
        device.window(start, Some(size))
    }

    /// The part that begins at byte `start` and has at most `bytes` bytes. With `None` it reaches
    /// to the end of the device.
    ///
    /// # Errors
    /// [`DeviceError::Open`] when `start` is not 0 and is at or after the end of the device.
    pub fn window(mut self, start: u64, bytes: Option<u64>) -> Result<Self> {
        if start >= self.size && start > 0 {
            let message = format!("it has {} bytes, the image would begin at byte {start}", self.size);
            return Err(open_error(&self.path, io::Error::new(io::ErrorKind::InvalidInput, message)));
        }
        self.start += start;
        self.size = bytes.unwrap_or(u64::MAX).min(self.size - start);
        Ok(self)
    }

    /// The part that begins at byte `offset`. It reaches to the end of the partition that begins
    /// there, or, if none does, to the end of the file. Offset 0 is the whole device.
    ///
    /// # Errors
    /// As [`FileDevice::window`]; errors of reading the partition table.
    pub fn part_at(self, offset: u64) -> Result<Self> {
        if offset == 0 {
            return Ok(self);
        }
        let table = PartitionTable::read(&self, self.sector_bytes())?;
        let partition = table.as_ref().and_then(|table| table.beginning_at(offset));
        self.window(offset, partition.map(|partition| partition.bytes))
    }

    /// Sector size of a block device; `None` for a file, which can be the image of any disk.
    #[must_use]
    pub fn sector_bytes(&self) -> Option<u64> {
        rustix::fs::ioctl_blksszget(&self.file).ok().map(u64::from)
    }

    fn open_writable(path: &Path) -> io::Result<Self> {
        refuse_other_kinds(path)?;
        refuse_attached(path)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        if std::fs::metadata(path)?.file_type().is_block_device() {
            options.custom_flags(rustix_exclusive());
        }
        Self::finish_open(options.open(path), path, false)
    }

    fn finish_open(opened: io::Result<File>, path: &Path, is_read_only: bool) -> io::Result<Self> {
        let file = opened?;
        check_kind(file.metadata()?.file_type())?;
        let claim = OnceLock::new();
        let path = path.to_owned();
        let mut device = Self { file, path, start: 0, size: 0, is_read_only, claim, is_shared: false };
        if !is_read_only {
            device.lock(FlockOperation::NonBlockingLockExclusive)?;
        }
        // Seeking to the end gives the size of a block device too.
        device.size = device.file.seek(SeekFrom::End(0))?;
        Ok(device)
    }

    fn lock(&self, operation: FlockOperation) -> io::Result<()> {
        let found = self.file.metadata()?;
        let claim = match operation {
            FlockOperation::NonBlockingLockExclusive => FileClaim::write(&found),
            _ => FileClaim::read(&found),
        };
        let claim = claim.map_err(|how| busy(how.to_owned()))?;
        if let Err(errno) = rustix::fs::flock(&self.file, operation) {
            claim.release(|| {});
            let is_held = errno == rustix::io::Errno::WOULDBLOCK;
            return Err(if is_held { busy(in_use::lock_holder(&self.file)) } else { errno.into() });
        }
        if let Err(second) = self.claim.set(claim) {
            // Another thread locked this device meanwhile.
            second.release(|| {});
        }
        Ok(())
    }

    /// The path by which the device was opened. For a file that the caller opened, the path that
    /// the kernel reports.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes that the file occupies in its file system (0 for a block device).
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    pub fn allocated_bytes(&self) -> Result<u64> {
        use std::os::unix::fs::MetadataExt;
        match self.file.metadata() {
            Ok(data) => Ok(data.blocks() * 512),
            Err(source) => Err(io_error("stat", 0, self.size, source)),
        }
    }

    /// Calls `visit` with every stretch of data, in ascending order and in pieces of at most 1 MiB.
    /// Holes are left out.
    ///
    /// # Errors
    /// [`DeviceError::Io`], and errors of `visit`.
    pub fn for_each_data(&self, mut visit: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let mut buf = vec![0; CHUNK];
        let mut position = 0;
        while let Some((start, end)) = self.next_data(position)? {
            let mut at = start;
            while at < end {
                let length = usize_from_u64((end - at).min(u64_from_usize(CHUNK)));
                self.read_at(at, &mut buf[..length])?;
                visit(at, &buf[..length])?;
                at += u64_from_usize(length);
            }
            position = end;
        }
        Ok(())
    }

    /// The first stretch of data at or after `position`: its first byte, and the byte after its
    /// last. `None` if only a hole follows.
    fn next_data(&self, position: u64) -> Result<Option<(u64, u64)>> {
        if position >= self.size {
            return Ok(None);
        }
        let start = match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(self.start + position)) {
            Ok(start) => start - self.start,
            Err(rustix::io::Errno::NXIO) => return Ok(None),
            // Block devices and some file systems have no holes: everything is data.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOTSUP) => {
                return Ok(Some((position, self.size)));
            }
            Err(errno) => return Err(io_error("seek", position, 0, errno.into())),
        };
        let end = rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Hole(self.start + start));
        let end = end.map_or(self.size, |end| end - self.start);
        Ok((start < self.size).then(|| (start, end.clamp(start + 1, self.size))))
    }

    fn check_writable(&self, operation: &'static str, offset: u64, length: u64) -> Result<()> {
        if self.is_read_only {
            return Err(DeviceError::ReadOnly { operation, offset });
        }
        check_range(operation, offset, length, self.size)
    }

    /// Writes parts one after the other from byte `at` of the file on. Returns where they end.
    fn write_parts(&self, at: u64, parts: &[&[u8]]) -> io::Result<u64> {
        let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let (mut at, mut left) = (at, &mut slices[..]);
        while left.iter().any(|slice| !slice.is_empty()) {
            match rustix::io::pwritev(&self.file, left, at) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    at += u64_from_usize(written);
                    IoSlice::advance_slices(&mut left, written);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(at)
    }

    fn write_zeroes_by_hand(&self, offset: u64, length: u64) -> Result<()> {
        let zeroes = vec![0; usize_from_u64(length.min(u64_from_usize(CHUNK)))];
        let mut at = offset;
        let end = offset + length;
        while at < end {
            let piece = usize_from_u64((end - at).min(u64_from_usize(zeroes.len())));
            self.write_at(at, &zeroes[..piece])?;
            at += u64_from_usize(piece);
        }
        Ok(())
    }
}

impl Drop for FileDevice {
    /// Releases the lock at once. Otherwise a child process that another thread is about to start
    /// could keep the lock: between fork and exec the child has a copy of the open file.
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take() {
            let unlock = || {
                let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
            };
            if self.is_shared {
                claim.release(unlock);
            } else {
                unlock();
                claim.release(|| {});
            }
        }
    }
}

impl BlockDevice for FileDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        check_range("read", offset, buf.len(), self.size)?;
        let length = u64_from_usize(buf.len());
        self.file
            .read_exact_at(buf, self.start + offset)
            .map_err(|source| io_error("read", offset, length, source))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let length = u64_from_usize(data.len());
        self.check_writable("write", offset, length)?;
        self.file
            .write_all_at(data, self.start + offset)
            .map_err(|source| io_error("write", offset, length, source))
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]]) -> Result<()> {
        let length = parts.iter().map(|part| u64_from_usize(part.len())).sum();
        self.check_writable("write", offset, length)?;
        let mut at = self.start + offset;
        for parts in parts.chunks(PARTS_MAX) {
            at = self.write_parts(at, parts).map_err(|source| io_error("write", offset, length, source))?;
        }
        Ok(())
    }

    /// Works only if the device is a file in the same file system as `file`, that file system can
    /// share blocks, and the range consists of whole blocks.
    fn share_from(&self, offset: u64, length: u64, file: BorrowedFd<'_>, from: u64) -> Result<bool> {
        self.check_writable("share", offset, length)?;
        // To the ioctl, a length of 0 means everything up to the end of the file.
        Ok(length > 0 && clone_range(&self.file, self.start + offset, length, file, from).is_ok())
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> Result<()> {
        self.check_writable("write zeroes", offset, length)?;
        if length == 0 {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.file, flags, self.start + offset, length) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::NOTSUP | rustix::io::Errno::NOSYS | rustix::io::Errno::INVAL) => {
                self.write_zeroes_by_hand(offset, length)
            }
            Err(errno) => Err(io_error("write zeroes", offset, length, errno.into())),
        }
    }

    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.check_writable("discard", offset, length)?;
        if length == 0 {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.file, flags, self.start + offset, length) {
            // A device that cannot discard keeps the content, which is allowed.
            Ok(()) | Err(rustix::io::Errno::NOTSUP | rustix::io::Errno::NOSYS | rustix::io::Errno::INVAL) => {
                Ok(())
            }
            Err(errno) => Err(io_error("discard", offset, length, errno.into())),
        }
    }

    fn flush(&self) -> Result<()> {
        if self.is_read_only {
            return Ok(());
        }
        self.file.sync_data().map_err(|source| io_error("flush", 0, self.size, source))
    }
}

/// Gathers small writes that follow one another into large ones.
pub(crate) struct Gather<'a> {
    target: &'a FileDevice,
    start: u64,
    bytes: Vec<u8>,
}

impl<'a> Gather<'a> {
    pub(crate) fn new(target: &'a FileDevice) -> Self {
        Self { target, start: 0, bytes: Vec::with_capacity(CHUNK) }
    }

    /// Adds data for byte `offset`, cut at the end of the device.
    pub(crate) fn push(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let end = self.start + u64_from_usize(self.bytes.len());
        if offset != end || self.bytes.len() >= CHUNK {
            self.write()?;
            self.start = offset;
        }
        let length = (self.target.size - offset).min(u64_from_usize(data.len()));
        self.bytes.extend_from_slice(&data[..usize_from_u64(length)]);
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Result<()> {
        self.write()
    }

    fn write(&mut self) -> Result<()> {
        self.target.write_at(self.start, &self.bytes)?;
        self.bytes.clear();
        Ok(())
    }
}

/// `O_EXCL` in the type that the standard library takes. With this flag, opening a block device
/// fails while the device is in use.
fn rustix_exclusive() -> i32 {
    OFlags::EXCL.bits().cast_signed()
}

/// Refuses files that can hold no image. Called before they are opened: opening a pipe waits for a
/// writer.
fn refuse_other_kinds(path: &Path) -> io::Result<()> {
    std::fs::metadata(path).map_or(Ok(()), |data| check_kind(data.file_type()))
}

/// Refuses to write to a file that backs a loop device.
fn refuse_attached(path: &Path) -> io::Result<()> {
    match in_use::loop_device_of(path) {
        Some(device) => Err(busy(format!("in use by {}; detach it first", device.display()))),
        None => Ok(()),
    }
}

/// Refuses what [`refuse_attached`] refuses, and a block device for which the list of mounts shows
/// a writable mount: the caller may have opened the device without asking for exclusive use.
fn refuse_in_use(path: &Path) -> io::Result<()> {
    refuse_attached(path)?;
    // Without a known mount point, the user of the device may be the caller, who may have opened it
    // exclusively.
    match in_use::kernel_mount(path).and_then(|mount| mount.place) {
        Some(place) => Err(busy(format!("is mounted at {place}; unmount it first"))),
        None => Ok(()),
    }
}

fn busy(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, why)
}

fn check_kind(kind: FileType) -> io::Result<()> {
    if kind.is_file() || kind.is_block_device() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a regular file nor a block device"))
}

fn open_error(path: &Path, source: io::Error) -> DeviceError {
    DeviceError::Open { path: path.to_owned(), source }
}

fn io_error(operation: &'static str, offset: u64, length: u64, source: io::Error) -> DeviceError {
    DeviceError::Io { operation, offset, length, source }
}

#[cfg(test)]
mod tests {
    use super::FileDevice;
    use crate::{BlockDevice, DeviceError};
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    /// The lock ends with the device even if a child process has a copy of the open file, as
    /// between fork and exec.
    #[test]
    fn the_lock_ends_with_the_device_whoever_has_copies_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        let device = FileDevice::create(&path, 4096).unwrap();
        let copy = device.file.try_clone().unwrap();
        assert!(FileDevice::open(&path).is_err());
        drop(device);
        FileDevice::open(&path).unwrap();
        drop(copy);
    }

    /// A writer is alone. Readers that take the lock share it, and keep a writer out.
    #[test]
    fn readers_that_lock_and_a_writer_exclude_each_other() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        let writer = FileDevice::create(&path, 4096).unwrap();
        let reader = FileDevice::open_read_only(&path).unwrap();
        let error = reader.lock_for_reading().unwrap_err();
        assert!(error.is_busy() && error.to_string().contains("this process is writing to it"), "{error}");
        let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        assert!(FileDevice::from_file(file).unwrap_err().is_busy());
        writer.lock_for_reading().unwrap();
        drop(writer);
        reader.lock_for_reading().unwrap();
        FileDevice::from_file(std::fs::File::open(&path).unwrap()).unwrap().lock_for_reading().unwrap();
        let error = FileDevice::open(&path).unwrap_err();
        assert!(error.is_busy() && error.to_string().contains("this process is reading it"), "{error}");
        drop(reader);
        let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let device = FileDevice::from_file(file).unwrap();
        assert_eq!((device.path(), device.size(), device.is_read_only()), (path.as_path(), 4096, false));
    }

    /// For the kernel, copies of one open file share its lock: a second lock succeeds, and the
    /// first unlock releases the lock for all copies. Our devices exclude each other all the same.
    #[test]
    fn copies_of_one_open_file_are_one_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        let file = std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        let writer = FileDevice::from_file(file.try_clone().unwrap()).unwrap();
        let error = FileDevice::from_file(file.try_clone().unwrap()).unwrap_err();
        assert!(error.is_busy() && error.to_string().contains("this process is writing to it"), "{error}");
        assert!(FileDevice::open(&path).unwrap_err().is_busy(), "the refused one took the lock away");
        drop(writer);
        drop(FileDevice::from_file(file).unwrap());

        let file = std::fs::File::open(&path).unwrap();
        let [first, second, unlocked] =
            [(); 3].map(|()| FileDevice::from_file(file.try_clone().unwrap()).unwrap());
        first.lock_for_reading().unwrap();
        second.lock_for_reading().unwrap();
        first.lock_for_reading().unwrap();
        drop((first, unlocked));
        assert!(FileDevice::open(&path).unwrap_err().is_busy(), "one reader is left");
        drop(second);
        FileDevice::open(&path).unwrap();
    }

    /// The kernel moves every write to the end of a file that was opened to append.
    #[test]
    fn a_file_that_was_opened_to_append_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        std::fs::write(&path, [7; 4096]).unwrap();
        let file = std::fs::OpenOptions::new().read(true).append(true).open(&path).unwrap();
        let error = FileDevice::from_file(file).unwrap_err();
        assert!(error.to_string().contains("opened to append"), "{error}");
        FileDevice::open(&path).unwrap();
    }

    #[test]
    fn what_no_file_system_can_share_is_not_shared() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 8192], 0).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let device = FileDevice::create(&folder.path().join("image"), 1 << 20).unwrap();
        device.write_at(0, &[1; 8192]).unwrap();
        // Partial blocks, more than the file has, and a length of 0, which to the ioctl means
        // everything up to the end of the file.
        for (offset, length, from) in [(512, 4096, 0), (0, 4097, 0), (0, 4096, 1), (0, 1 << 19, 0), (0, 0, 0)]
        {
            assert!(
                !device.share_from(offset, length, file.as_fd(), from).unwrap(),
                "{offset} {length} {from}"
            );
        }
        let error = device.share_from(1 << 20, 4096, file.as_fd(), 0).unwrap_err();
        assert!(matches!(error, DeviceError::OutOfRange { operation: "share", .. }), "{error}");
        let mut bytes = [0; 8192];
        device.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, [1; 8192]);
    }

    #[test]
    fn parts_lie_one_behind_the_other() {
        let directory = tempfile::tempdir().unwrap();
        let device = FileDevice::create(&directory.path().join("image"), 1 << 20).unwrap();
        let bytes: Vec<u8> = (0..30_000u32).map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[1]).collect();
        // More parts than one call takes. Some of them are empty.
        let parts: Vec<&[u8]> = bytes.chunks(13).flat_map(|part| [part, &[]]).collect();
        device.write_vectored_at(4000, &parts).unwrap();
        let mut back = vec![0; bytes.len()];
        device.read_at(4000, &mut back).unwrap();
        assert_eq!(back, bytes);
        let beyond = device.write_vectored_at((1 << 20) - 4, &[&[1; 4], &[2; 1]]);
        assert!(matches!(beyond, Err(DeviceError::OutOfRange { length: 5, .. })));
    }
}
