//! What a cell runs on: a fresh file system in memory, or a copy-on-write view of an image file.
//!
//! Key decision: an image file is only read while cells run. `in_place` means that the changes of
//! the one cell are written to it at the end, after the judges have passed them; so an error leaves
//! it as it was.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use blockyard_device::{BlockDevice, FileDevice, ImagePath, MemoryDevice, OverlayDevice};
use blockyard_disk::Incompat;
use blockyard_engine::{FileSystem, JournalUse, OpenOptions, mkfs};
use blockyard_inspect::reader::Reader;

use crate::scratch::Scratch;
use crate::target::engine::context;
use crate::workload::MIB;

/// A tmpfs that every Linux has.
const TMPFS: &str = "/dev/shm";

/// Where the image of each cell comes from.
#[derive(Clone, Debug)]
pub enum ImageSource {
    /// A fresh file system in memory for each cell.
    Memory {
        /// Bytes of the device.
        bytes: u64,
        /// How it is made; seed and time are inputs, so all cells start from the same bytes.
        mkfs: Box<mkfs::Options>,
        /// What holds it.
        held: Held,
    },
    /// An image file, or a block device. Each cell sees it as it is and writes to memory.
    File {
        /// Where it lies.
        path: ImagePath,
        /// Write the changes to it in the end; only for a plan of one cell.
        in_place: bool,
    },
}

/// What holds an image in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// This process.
    Process,
    /// A file on tmpfs: what is written crosses into the kernel, as what a loop device writes does.
    Tmpfs,
}

/// The device of one cell.
pub(crate) enum CellDevice {
    Memory(Arc<MemoryDevice>),
    /// A file that goes with the cell.
    Tmpfs {
        device: Arc<FileDevice>,
        _folder: Scratch,
    },
    Overlay(Arc<OverlayDevice<FileDevice>>),
}

/// What so many bytes of files need: mapping blocks, one for some 340 extents, and what the file
/// system keeps for itself.
pub(super) const fn with_mapping(bytes: u64) -> u64 {
    bytes + bytes / 64 + 4 * MIB
}

impl ImageSource {
    /// ext4 with 4 KiB blocks in memory, its UUID and hash seed made from `seed`.
    #[must_use]
    pub fn memory(bytes: u64, seed: u64) -> Self {
        Self::Memory { bytes, mkfs: Box::new(default_mkfs(seed)), held: Held::Process }
    }

    /// Refuses what cannot work, before anything runs: no file system, cut short, damaged, in use,
    /// too small for `files` files of `file_bytes` bytes. Writes nothing.
    ///
    /// # Errors
    /// What is wrong, with the image and what to do.
    pub fn check(&self, files: u64, file_bytes: u64) -> Result<()> {
        let free = match self {
            Self::Memory { bytes, mkfs, .. } => {
                let summary = mkfs::plan(*bytes, mkfs).context("--memory, --mkfs")?;
                summary.free_blocks * u64::from(summary.block_size)
            }
            Self::File { .. } => {
                // As a cell opens it: what it would refuse is refused now.
                let statistics = || -> Result<_> {
                    let options = OpenOptions { journal: JournalUse::Ignored, ..OpenOptions::default() };
                    let fs = FileSystem::open(self.device()?.shared(), options, &context(0))?;
                    Ok(fs.statistics())
                };
                let found = statistics().with_context(|| self.name())?;
                found.blocks_free * u64::from(found.block_size)
            }
        };
        let needed = with_mapping(files * file_bytes);
        ensure!(
            needed <= free,
            "{}: too small, {} MiB are free and {files} files of {} KiB need {}; give a larger one, fewer \
             --workers or a smaller --scale",
            self.name(),
            free / MIB,
            file_bytes / 1024,
            needed / MIB
        );
        Ok(())
    }

    /// Whether files are mapped by extents, which fallocate needs.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub(crate) fn memory_bytes(&self) -> Option<u64> {
        match self {
            Self::Memory { bytes, .. } => Some(*bytes),
            Self::File { .. } => None,
        }
    }

    /// Whether files have extents.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub(crate) fn has_extents(&self) -> Result<bool> {
        let incompat = match self {
            Self::Memory { bytes, mkfs, .. } => mkfs::plan(*bytes, mkfs)?.features.incompat,
            Self::File { .. } => Reader::open(self.device()?.shared())?.superblock().raw().incompat(),
        };
        Ok(incompat.contains(Incompat::EXTENTS))
    }

    /// What it is called in messages.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Memory { bytes, .. } => format!("--memory {} MiB", bytes / MIB),
            Self::File { path, .. } => path.display().to_string(),
        }
    }

    /// All that decides what a cell starts from, as text: how it is made, or which state of which
    /// file it is.
    ///
    /// # Errors
    /// When the file cannot be looked at.
    pub(crate) fn identity(&self) -> Result<String> {
        let Self::File { path, in_place } = self else { return Ok(format!("{self:?}")) };
        let data = std::fs::metadata(path.file()).with_context(|| self.name())?;
        let changed = (data.mtime(), data.mtime_nsec());
        Ok(format!("{} {in_place} {} {} {changed:?}", path.display(), data.ino(), data.size()))
    }

    /// A device in the state that a cell starts from.
    pub(crate) fn device(&self) -> Result<CellDevice> {
        Ok(match self {
            Self::Memory { bytes, mkfs, held: Held::Process } => {
                let device = MemoryDevice::new(*bytes);
                mkfs::format(&device, mkfs)?;
                CellDevice::Memory(Arc::new(device))
            }
            Self::Memory { bytes, mkfs, held: Held::Tmpfs } => {
                let folder = Scratch::new("lab", Path::new(TMPFS))?;
                let device = FileDevice::create(&folder.path().join("image"), *bytes)?;
                mkfs::format(&device, mkfs)?;
                CellDevice::Tmpfs { device: Arc::new(device), _folder: folder }
            }
            Self::File { path, in_place } => {
                let file = if *in_place { path.open()? } else { path.open_read_only()? };
                CellDevice::Overlay(Arc::new(OverlayDevice::new(file)))
            }
        })
    }

    /// The title of a cell behind the image that it runs on, where that is a file.
    pub(crate) fn prefixed(&self, title: &str) -> String {
        match self {
            Self::Memory { .. } => title.to_owned(),
            Self::File { path, .. } => format!("{}: {title}", path.display()),
        }
    }

    /// One line for reports.
    #[must_use]
    pub fn description(&self) -> String {
        match self {
            Self::Memory { bytes, mkfs, held } => {
                let features = if mkfs.features.is_empty() {
                    String::new()
                } else {
                    format!(", features {}", mkfs.features.join(","))
                };
                let block = mkfs.block_size.map_or("the default".to_owned(), |size| size.to_string());
                let kind = mkfs.profile.name();
                let holder = match held {
                    Held::Process => "memory",
                    Held::Tmpfs => "a file on tmpfs",
                };
                format!("{holder}, {} MiB, {kind}, block size {block}{features}", bytes / MIB)
            }
            Self::File { path, in_place: false } => format!("{}, each cell on an overlay", path.display()),
            Self::File { path, in_place: true } => format!("{}, in place", path.display()),
        }
    }
}

/// How a fresh file system is made when nothing else is asked for. The time is fixed, so that the
/// seed alone decides the bytes.
#[must_use]
pub fn default_mkfs(seed: u64) -> mkfs::Options {
    mkfs::Options::ext4().block_size(4096).identity(seed, 1_700_000_000)
}

impl CellDevice {
    /// For the file system and the judges.
    pub(crate) fn shared(&self) -> Arc<dyn BlockDevice> {
        match self {
            Self::Memory(device) => Arc::<MemoryDevice>::clone(device),
            Self::Tmpfs { device, .. } => Arc::<FileDevice>::clone(device),
            Self::Overlay(device) => Arc::<OverlayDevice<FileDevice>>::clone(device),
        }
    }

    /// A copy of the image as a sparse file, for programs that want one.
    pub(crate) fn save(&self, path: &Path) -> Result<()> {
        match self {
            Self::Memory(device) => device.save(path)?,
            Self::Tmpfs { device, .. } => {
                let copy = FileDevice::create(path, device.size())?;
                device.for_each_data(|at, data| copy.write_at(at, data))?;
            }
            Self::Overlay(device) => {
                let copy = FileDevice::create(path, device.size())?;
                device.below().for_each_data(|at, data| copy.write_at(at, data))?;
                let mut buffer = vec![0; 1 << 20];
                for range in device.dirty_ranges() {
                    let mut at = range.start;
                    while at < range.end {
                        let length = blockyard_disk::num::usize_from_u64((range.end - at).min(1 << 20));
                        device.read_at(at, &mut buffer[..length])?;
                        copy.write_at(at, &buffer[..length])?;
                        at += blockyard_disk::num::u64_from_usize(length);
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes the changes to the image file.
    pub(crate) fn commit(&self) -> Result<()> {
        match self {
            Self::Memory(_) | Self::Tmpfs { .. } => bail!("an image in memory has no file to be written to"),
            Self::Overlay(device) => Ok(device.commit().context("write the image")?),
        }
    }
}

impl ImageSource {
    /// Whether the image file is changed in the end.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        matches!(self, Self::File { in_place: true, .. })
    }
}
