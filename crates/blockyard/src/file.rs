//! An open file.

mod io;
mod ranges;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use blockyard_disk::num::{u64_from_usize, usize_from_u64};
use blockyard_engine::{
    Attributes, Error as EngineError, Fallocate, FileExtent, FileSystem as Engine, InodeId, OpContext, Seek,
    SetAttributes,
};
use blockyard_sync::{Mutex, rank};

use crate::error::{Bare, Error, Reason, Result};
use crate::metadata::{Metadata, timestamp};
use crate::reference::Reference;

/// The most bytes read or copied at a time.
const PIECE: u64 = 1 << 20;

/// What a file was opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Abilities {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) append: bool,
}

/// An open file of an image, the counterpart of [`std::fs::File`].
///
/// Many threads can use it at once: each at its own offsets with [`File::read_at`] and
/// [`File::write_at`], or all with one position through [`Read`](std::io::Read),
/// [`Write`](std::io::Write) and [`Seek`](std::io::Seek). The content stays while the file is open,
/// even after its last name is removed. Dropping a `File` discards no data. The data is durable
/// after [`File::sync_all`], or once the image is closed. All operations on a file of a closed
/// image fail.
///
/// ```
/// use std::io::{Read, Seek, SeekFrom, Write};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
/// let mut file = fs.create("story")?;
/// file.write_all(b"once upon a time")?;
/// file.seek(SeekFrom::Start(5))?;
/// let mut word = [0; 4];
/// fs.open("story")?.read_at(&mut word, 5)?;
/// assert_eq!(&word, b"upon");
/// # Ok(())
/// # }
/// ```
pub struct File {
    reference: Arc<Reference>,
    path: PathBuf,
    abilities: Abilities,
    position: Arc<Mutex<u64>>,
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File").field("path", &self.path).field("inode", &self.reference.id().number).finish()
    }
}

impl File {
    pub(crate) fn new(reference: Reference, path: &Path, abilities: Abilities) -> Self {
        Self {
            reference: Arc::new(reference),
            path: path.to_owned(),
            abilities,
            position: Arc::new(Mutex::new(rank::FILE_POSITION, 0)),
        }
    }

    /// The inode number and its generation. Later inodes with the same number have other
    /// generations.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let file = fs.create("file")?;
    /// assert_eq!(file.id(), fs.metadata("file")?.id());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn id(&self) -> InodeId {
        self.reference.id()
    }

    /// The path by which the file was opened, or `inode N` if [`ByInode`](crate::ByInode) opened
    /// it. The file may have other names by now, or none.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// assert_eq!(fs.create("file")?.path(), "file".as_ref() as &std::path::Path);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads at byte `offset` and returns the number of bytes read, 0 at the end of the file. The
    /// position does not change.
    ///
    /// # Errors
    /// The file was not opened for reading or is a directory, `offset` is 2^63 or more (`EINVAL`),
    /// the image is damaged, or the device fails.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// fs.write("file", b"0123456789")?;
    /// let mut buf = [0; 8];
    /// assert_eq!(fs.open("file")?.read_at(&mut buf, 4)?, 6);
    /// assert_eq!(&buf[..6], b"456789");
    /// # Ok(())
    /// # }
    /// ```
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.named(self.read_bare(buf, offset))
    }

    fn read_bare(&self, buf: &mut [u8], offset: u64) -> Bare<usize> {
        check_offset(offset)?;
        if !self.abilities.read {
            return Err(Reason::NotOpenForThis);
        }
        self.run(|engine, ctx, id| engine.read(ctx, id, offset, buf))
    }

    /// Writes at byte `offset`. Returns the number of bytes written, which is short only when space
    /// runs out or the file reaches the largest size that it may have. The position does not
    /// change.
    ///
    /// If the file was opened for appending, the data goes to the end of the file whatever `offset`
    /// is, as on Linux.
    ///
    /// To write all or get an error, use `write_all_at` of [`std::os::unix::fs::FileExt`], which
    /// `File` implements.
    ///
    /// # Errors
    /// - The file was not opened for writing.
    /// - The file is immutable.
    /// - The file is append-only, and `offset` is not the end of the file.
    /// - There is no space, or the file would be too large.
    /// - The image is read-only or damaged, or the device fails.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let file = fs.create("file")?;
    /// file.write_at(b"end", 1 << 20)?;
    /// assert_eq!(file.metadata()?.len(), (1 << 20) + 3);
    /// # Ok(())
    /// # }
    /// ```
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<usize> {
        self.named(self.write_bare(buf, offset))
    }

    fn write_bare(&self, buf: &[u8], offset: u64) -> Bare<usize> {
        check_offset(offset)?;
        self.check_written()?;
        if buf.is_empty() {
            return Ok(0);
        }
        if self.abilities.append {
            return self.append_bare(buf).map(|appended| usize_from_u64(appended.end - appended.start));
        }
        self.run(|engine, ctx, id| engine.write_some(ctx, id, offset, buf))
    }

    /// Appends as much of `buf` as fits. Returns the range of the appended bytes in the file.
    fn append_bare(&self, buf: &[u8]) -> Bare<Range<u64>> {
        self.check_written()?;
        self.run(|engine, ctx, id| engine.append_some(ctx, id, buf))
    }

    /// Refuses a write at a given offset if the file was opened for appending.
    pub(crate) const fn check_not_appending(&self) -> Bare<()> {
        if self.abilities.append {
            Err(Reason::Invalid("an offset in a file opened for appending"))
        } else {
            Ok(())
        }
    }

    const fn check_written(&self) -> Bare<()> {
        if self.abilities.write { Ok(()) } else { Err(Reason::NotOpenForThis) }
    }

    /// Truncates the file, or extends it with a hole, which reads as zeroes.
    ///
    /// # Errors
    /// The file was not opened for writing (`EINVAL`, as on Linux), or it is append-only; otherwise
    /// as [`File::write_at`].
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let file = fs.create("sparse")?;
    /// file.set_len(1 << 30)?;
    /// assert_eq!((file.metadata()?.len(), file.metadata()?.blocks()), (1 << 30, 0));
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_len(&self, len: u64) -> Result<()> {
        if !self.abilities.write {
            return Err(self.error(Reason::Invalid("the file was not opened for writing")));
        }
        if i64::try_from(len).is_err() {
            return Err(self.error(Reason::Invalid("no file can be that long")));
        }
        self.named(self.run(|engine, ctx, id| engine.truncate(ctx, id, len)))
    }

    /// Allocates blocks for `len` bytes at byte `offset`, so that writes there cannot run out of
    /// space. The file grows to cover the range. Bytes that were never written read as zeroes.
    ///
    /// # Errors
    /// There is no space, the range is empty (`EINVAL`), or the file has a block map instead of
    /// extents (`EOPNOTSUPP`); otherwise as [`File::fallocate`].
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let file = fs.create("log")?;
    /// file.allocate(0, 1 << 20)?;
    /// assert!(file.metadata()?.blocks() >= 2048 && file.seek_data(0)?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        self.fallocate(Fallocate::Allocate, offset, len)
    }

    /// Makes `len` bytes at byte `offset` read as zeroes. The blocks wholly inside the range
    /// become a hole, and their space is freed (with bigalloc, in whole clusters). The size stays.
    ///
    /// # Errors
    /// As [`File::fallocate`].
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let file = fs.create("file")?;
    /// file.write_at(&[1; 65536], 0)?;
    /// file.punch_hole(8192, 16384)?;
    /// assert_eq!((file.seek_hole(0)?, file.seek_data(8192)?), (Some(8192), Some(24576)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn punch_hole(&self, offset: u64, len: u64) -> Result<()> {
        self.fallocate(Fallocate::PunchHole, offset, len)
    }

    /// Changes the allocation of a range, in one of the ways of `fallocate(2)` that [`Fallocate`]
    /// lists.
    ///
    /// # Errors
    /// The file was not opened for writing; otherwise as
    /// [`engine::FileSystem::fallocate`](blockyard_engine::FileSystem::fallocate).
    ///
    /// ```
    /// use blockyard::Fallocate;
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let file = fs.create("file")?;
    /// file.write_at(&[1; 16384], 0)?;
    /// file.fallocate(Fallocate::CollapseRange, 4096, 4096)?;
    /// assert_eq!(file.metadata()?.len(), 12288);
    /// # Ok(())
    /// # }
    /// ```
    pub fn fallocate(&self, what: Fallocate, offset: u64, len: u64) -> Result<()> {
        let done = self
            .check_written()
            .and_then(|()| self.run(|engine, ctx, id| engine.fallocate(ctx, id, what, offset, len)));
        self.named(done)
    }

    /// The first byte at or after `offset` that is not in a hole. `None` if only holes follow, or
    /// `offset` is not inside the file. Allocated blocks that were never written count as holes.
    ///
    /// # Errors
    /// The file is a directory, the image is damaged, or the device fails.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let file = fs.create("file")?;
    /// file.write_at(b"far out", 1 << 30)?;
    /// assert_eq!(file.seek_data(0)?, Some(1 << 30));
    /// # Ok(())
    /// # }
    /// ```
    pub fn seek_data(&self, offset: u64) -> Result<Option<u64>> {
        self.named(self.run(|engine, _, id| engine.seek(id, offset, Seek::Data)))
    }

    /// The first byte at or after `offset` that is in a hole. The end of the file counts as a hole.
    /// `None` if `offset` is not inside the file.
    ///
    /// # Errors
    /// As [`File::seek_data`].
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let file = fs.create("file")?;
    /// file.write_at(&[1; 4096], 0)?;
    /// assert_eq!((file.seek_hole(0)?, file.seek_hole(4097)?), (Some(4096), None));
    /// # Ok(())
    /// # }
    /// ```
    pub fn seek_hole(&self, offset: u64) -> Result<Option<u64>> {
        self.named(self.run(|engine, _, id| engine.seek(id, offset, Seek::Hole)))
    }

    /// The parts of the file that have data or blocks, in ascending order of their offsets, and the
    /// place of each on the device. Unlike in [`File::seek_data`], allocated blocks that were never
    /// written are included. [`FileExtent::physical`] is `None` for dirty data that has no blocks
    /// yet, and for content that is stored in the inode.
    ///
    /// # Errors
    /// As [`File::seek_data`].
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let file = fs.create("file")?;
    /// file.write_at(&[1; 65536], 0)?;
    /// assert!(file.extents()?[0].physical.is_none(), "not placed yet");
    /// file.sync_all()?;
    /// let found = file.extents()?;
    /// assert!(found.len() == 1 && found[0].len == 65536 && found[0].physical.is_some());
    /// # Ok(())
    /// # }
    /// ```
    pub fn extents(&self) -> Result<Vec<FileExtent>> {
        self.named(self.run(|engine, _, id| engine.extents(id, 0, usize::MAX)))
    }

    /// Makes the file durable: content, size and attributes, and the name of a new file.
    ///
    /// # Errors
    /// A device error; the instance became read-only after a failed operation; or data of this file
    /// that was written earlier could not be stored, and is lost. Such a loss is reported once.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let file = fs.create("order")?;
    /// file.write_at(b"42", 0)?;
    /// file.sync_all()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn sync_all(&self) -> Result<()> {
        self.named(self.run(|engine, ctx, id| engine.fsync(ctx, id)))
    }

    /// As [`File::sync_all`], but only for the content and what is needed to read it. The times and
    /// permissions on the device may stay out of date.
    ///
    /// # Errors
    /// As [`File::sync_all`].
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let file = fs.create("journal")?;
    /// file.write_at(b"entry", 0)?;
    /// file.sync_data()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn sync_data(&self) -> Result<()> {
        self.named(self.run(|engine, ctx, id| engine.fdatasync(ctx, id)))
    }

    /// What `fstat` returns.
    ///
    /// # Errors
    /// The image is damaged or the device fails.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// assert_eq!(fs.create("file")?.metadata()?.len(), 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn metadata(&self) -> Result<Metadata> {
        self.named(self.attributes()).map(Metadata::new)
    }

    fn attributes(&self) -> Bare<Attributes> {
        self.run(|engine, _, id| engine.attributes(id))
    }

    /// Sets the permissions and the set-id and sticky bits. An access control list is updated to
    /// match.
    ///
    /// # Errors
    /// The file is immutable or append-only, the image is read-only, or the device fails.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let file = fs.create("script")?;
    /// file.set_permissions(0o755)?;
    /// assert_eq!(file.metadata()?.mode(), 0o755);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_permissions(&self, mode: u16) -> Result<()> {
        self.set_attributes(&SetAttributes { permissions: Some(mode), ..SetAttributes::default() })
    }

    /// Sets the access and modification times; `None` leaves a time as it is.
    ///
    /// # Errors
    /// As [`File::set_permissions`].
    ///
    /// ```
    /// use std::time::UNIX_EPOCH;
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let file = fs.create("file")?;
    /// file.set_times(None, Some(UNIX_EPOCH))?;
    /// assert_eq!(file.metadata()?.modified(), UNIX_EPOCH);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_times(&self, accessed: Option<SystemTime>, modified: Option<SystemTime>) -> Result<()> {
        self.set_attributes(&SetAttributes {
            accessed: accessed.map(timestamp),
            modified: modified.map(timestamp),
            ..SetAttributes::default()
        })
    }

    /// Sets several attributes at once.
    ///
    /// # Errors
    /// As [`engine::FileSystem::set_attributes`](blockyard_engine::FileSystem::set_attributes).
    ///
    /// ```
    /// use blockyard::SetAttributes;
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let file = fs.create("file")?;
    /// file.set_attributes(&SetAttributes { uid: Some(7), gid: Some(8), ..SetAttributes::default() })?;
    /// assert_eq!((file.metadata()?.uid(), file.metadata()?.gid()), (7, 8));
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_attributes(&self, changes: &SetAttributes) -> Result<()> {
        self.named(self.run(|engine, ctx, id| engine.set_attributes(ctx, id, changes)))
    }

    /// Another handle to the same open file. Both share one position.
    ///
    /// # Errors
    /// None today. The function returns a `Result` because [`std::fs::File::try_clone`] does.
    ///
    /// ```
    /// use std::io::Write;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let mut file = fs.create("file")?;
    /// file.try_clone()?.write_all(b"one ")?;
    /// file.write_all(b"two")?;
    /// assert_eq!(fs.read("file")?, b"one two");
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_clone(&self) -> Result<Self> {
        Ok(Self {
            reference: Arc::clone(&self.reference),
            path: self.path.clone(),
            abilities: self.abilities,
            position: Arc::clone(&self.position),
        })
    }

    /// Reads the content outside holes piece by piece, in ascending order, and calls `visit` with
    /// each piece and its offset.
    pub(crate) fn each_data(&self, mut visit: impl FnMut(&[u8], u64) -> Result<()>) -> Result<()> {
        let mut buf = Vec::new();
        let mut at = 0;
        while let Some(start) = self.seek_data(at)? {
            let end = self.seek_hole(start)?.unwrap_or(start);
            at = start;
            while at < end {
                buf.resize(usize_from_u64((end - at).min(PIECE)), 0);
                let read = self.read_at(&mut buf, at)?;
                if read == 0 {
                    // The file was truncated meanwhile.
                    return Ok(());
                }
                visit(&buf[..read], at)?;
                at += u64_from_usize(read);
            }
        }
        Ok(())
    }

    /// Runs an operation on the inode.
    fn run<T>(
        &self,
        operation: impl FnOnce(&Engine, &OpContext, InodeId) -> std::result::Result<T, EngineError>,
    ) -> Bare<T> {
        let ctx = self.reference.context().now();
        self.reference.instance().run(&ctx, |engine| operation(engine, &ctx, self.reference.id()))
    }

    fn named<T>(&self, done: Bare<T>) -> Result<T> {
        done.map_err(|reason| self.error(reason))
    }

    fn error(&self, reason: Reason) -> Error {
        Error::at(&self.path, reason)
    }
}

/// Refuses offsets of 2^63 or more, which Linux's signed file offsets cannot hold.
fn check_offset(offset: u64) -> Bare<()> {
    if i64::try_from(offset).is_ok() { Ok(()) } else { Err(Reason::Invalid("an offset that large")) }
}
