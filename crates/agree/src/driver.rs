//! File operations of the load generators. The operations also write markers into the trace for
//! what no tracepoint shows.
//!
//! Running out of space or quota is a normal result here: operations return `Ok(false)` for it, and
//! opening returns `Ok(None)`. So a load can continue on a full file system.
//!
//! - After a write, a truncation or a call of `fallocate`, a `ba size` marker tells the file's
//!   size.
//! - Opening is followed by `ba open`, closing by `ba close`. Both markers are written after the
//!   system call has returned.

use std::ffi::CStr;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use blockyard_disk::num::usize_from_u64;
use blockyard_ranges::{Edges, Ranges};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::fs::{FallocateFlags, XattrFlags};

/// Alignment of direct I/O. Devices whose logical blocks have at most 4 KiB accept it.
const DIRECT_ALIGNMENT: usize = 4096;

/// Largest single write.
const WRITE_MAX: usize = 4 << 20;

/// A file open for writing.
pub(crate) struct Open {
    file: File,
    ino: u64,
}

/// Performs the operations of a load generator.
pub(crate) struct Driver {
    root: PathBuf,
    marker: File,
    content: Vec<u8>,
    /// Source of every random choice of the load.
    pub(crate) rng: ChaCha8Rng,
    /// How many operations the load should make, roughly.
    pub(crate) operations: u32,
    /// Block size in bytes.
    pub(crate) block: u64,
    /// Whether the files are mapped by indirect blocks. If so, loads must not preallocate.
    pub(crate) indirect: bool,
}

/// Whether the operation succeeded; false when space or quota ran out.
pub(crate) type Done = anyhow::Result<bool>;

fn space(result: std::io::Result<()>) -> Done {
    match result {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

impl Driver {
    /// A driver for the file system mounted at `root`, writing markers to `marker`.
    pub(crate) fn new(root: &Path, marker: &Path, seed: u64, operations: u32) -> anyhow::Result<Self> {
        let mut content = vec![0; WRITE_MAX + DIRECT_ALIGNMENT];
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.fill(&mut content[..]);
        Ok(Self {
            root: root.to_owned(),
            marker: OpenOptions::new().write(true).open(marker)?,
            content,
            rng,
            operations,
            block: 4096,
            indirect: false,
        })
    }

    fn mark(&mut self, text: &str) -> anyhow::Result<()> {
        self.marker.write_all(text.as_bytes())?;
        Ok(())
    }

    fn mark_size(&mut self, open: &Open) -> anyhow::Result<()> {
        let size = open.file.metadata()?.len();
        self.mark(&format!("ba size {} {size}\n", open.ino))
    }

    /// A random number below `limit`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.rng.random_range(0..limit)
    }

    /// A source of random ranges in one file of the image, for [`Self::range`]. The edges from
    /// which it draws are at most `reach` bytes into the file.
    pub(crate) fn ranges(&self, reach: u64) -> Ranges {
        let edges = if self.indirect { Edges::indirect(self.block) } else { Edges::extents(self.block) };
        Ranges::new(edges.up_to(reach))
    }

    /// Draws an offset and a length in bytes for an operation on a file; the length is at most
    /// `longest`. Most ranges begin or end at an edge, such as the end of a block or of the file,
    /// or one byte beside an edge.
    pub(crate) fn range(
        &mut self,
        ranges: &mut Ranges,
        open: &Open,
        longest: u64,
    ) -> anyhow::Result<(u64, u64)> {
        let size = open.file.metadata()?.len();
        let range = ranges.range(&mut self.rng, size, longest);
        Ok((range.start, range.end - range.start))
    }

    /// Opens a file for reading and writing, and creates it when it is missing; `None` when there
    /// is no space or quota for it.
    pub(crate) fn open(&mut self, path: &str) -> anyhow::Result<Option<Open>> {
        self.open_with(path, 0)
    }

    /// As [`Self::open`], for direct I/O.
    pub(crate) fn open_direct(&mut self, path: &str) -> anyhow::Result<Option<Open>> {
        let flags = rustix::fs::OFlags::DIRECT.bits();
        self.open_with(path, i32::try_from(flags)?)
    }

    fn open_with(&mut self, path: &str, flags: i32) -> anyhow::Result<Option<Open>> {
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(flags)
            .open(self.root.join(path));
        match opened {
            Ok(file) => {
                let ino = file.metadata()?.ino();
                self.mark(&format!("ba open {ino}\n"))?;
                Ok(Some(Open { file, ino }))
            }
            Err(error) => space(Err(error)).map(|_| None),
        }
    }

    /// Closes a file.
    pub(crate) fn close(&mut self, open: Open) -> anyhow::Result<()> {
        let ino = open.ino;
        drop(open);
        self.mark(&format!("ba close {ino}\n"))
    }

    /// Writes `len` bytes at `at`, in calls of at most 4 MiB.
    pub(crate) fn write(&mut self, open: &Open, at: u64, len: u64) -> Done {
        let mut done = 0;
        while done < len {
            let piece = (len - done).min(4 << 20);
            let wrote = space(open.file.write_all_at(&self.content[..usize_from_u64(piece)], at + done))?;
            self.mark_size(open)?;
            if !wrote {
                return Ok(false);
            }
            done += piece;
        }
        Ok(true)
    }

    /// Writes with direct I/O. Position and length must be multiples of 4 KiB, and the length at
    /// most 4 MiB.
    pub(crate) fn write_direct(&mut self, open: &Open, at: u64, len: u64) -> Done {
        let skip = self.content.as_ptr().align_offset(DIRECT_ALIGNMENT);
        let wrote = space(open.file.write_all_at(&self.content[skip..skip + usize_from_u64(len)], at))?;
        self.mark_size(open)?;
        Ok(wrote)
    }

    /// Preallocates a range. Extends the file if the range reaches beyond the end of the file.
    pub(crate) fn allocate(&mut self, open: &Open, at: u64, len: u64) -> Done {
        self.fallocate(open, FallocateFlags::empty(), at, len)
    }

    /// Preallocates a range without extending the file.
    pub(crate) fn allocate_keep_size(&mut self, open: &Open, at: u64, len: u64) -> Done {
        self.fallocate(open, FallocateFlags::KEEP_SIZE, at, len)
    }

    /// Punches a hole: deallocates the whole blocks in a range and zeroes the rest of the range.
    pub(crate) fn punch(&mut self, open: &Open, at: u64, len: u64) -> Done {
        self.fallocate(open, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len)
    }

    fn fallocate(&mut self, open: &Open, flags: FallocateFlags, at: u64, len: u64) -> Done {
        let result = space(rustix::fs::fallocate(&open.file, flags, at, len).map_err(Into::into));
        self.mark_size(open)?;
        result
    }

    /// Sets the size.
    pub(crate) fn truncate(&mut self, open: &Open, size: u64) -> Done {
        let result = space(open.file.set_len(size));
        self.mark_size(open)?;
        result
    }

    /// Makes data and metadata of a file durable.
    pub(crate) fn sync(&mut self, open: &Open) -> Done {
        space(open.file.sync_all())
    }

    /// Makes the whole file system durable.
    pub(crate) fn sync_all(&mut self) -> Done {
        let root = File::open(&self.root)?;
        space(rustix::fs::syncfs(&root).map_err(Into::into))
    }

    /// Opens a file, writes `len` bytes at its beginning, syncs it if `sync` says so, and closes
    /// it. Returns false when space or quota ran out.
    pub(crate) fn put(&mut self, path: &str, len: u64, sync: bool) -> Done {
        let Some(open) = self.open(path)? else { return Ok(false) };
        let mut done = self.write(&open, 0, len)?;
        if sync {
            done &= self.sync(&open)?;
        }
        self.close(open)?;
        Ok(done)
    }

    /// Removes a file if it is there.
    pub(crate) fn remove(&mut self, path: &str) -> Done {
        match fs::remove_file(self.root.join(path)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
            result => space(result),
        }
    }

    /// Makes a directory if it is missing.
    pub(crate) fn make_directory(&mut self, path: &str) -> Done {
        match fs::create_dir(self.root.join(path)) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(true),
            result => space(result),
        }
    }

    /// Removes an empty directory.
    pub(crate) fn remove_directory(&mut self, path: &str) -> Done {
        space(fs::remove_dir(self.root.join(path)))
    }

    /// Renames a file.
    pub(crate) fn rename(&mut self, from: &str, to: &str) -> Done {
        space(fs::rename(self.root.join(from), self.root.join(to)))
    }

    /// Makes a symbolic link whose target has `len` characters.
    pub(crate) fn symlink(&mut self, path: &str, len: usize) -> Done {
        space(std::os::unix::fs::symlink("t".repeat(len), self.root.join(path)))
    }

    /// Sets an extended attribute of `len` bytes.
    pub(crate) fn set_attribute(&mut self, path: &str, name: &CStr, len: usize) -> Done {
        let value = &self.content[..len];
        let result = rustix::fs::setxattr(self.root.join(path), name, value, XattrFlags::empty());
        space(result.map_err(Into::into))
    }

    /// Free space in bytes.
    pub(crate) fn free_bytes(&self) -> anyhow::Result<u64> {
        let state = rustix::fs::statvfs(&self.root)?;
        Ok(state.f_bfree * state.f_frsize)
    }
}
