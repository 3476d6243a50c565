//! The image of a cell: a fresh file system in memory, or a copy-on-write view of an image file.
//!
//! Key decision: an image file is only read while cells run. With `in_place` the changes of the
//! single cell are written to the file at the end, after the judges have passed them. So an earlier
//! error leaves the file as it was.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use blockyard_alloc::Policy;
use blockyard_device::{BlockDevice, FileDevice, ImagePath, MemoryDevice, OverlayDevice};
use blockyard_disk::FeatureSet;
use blockyard_disk::num::u64_from_usize;
use blockyard_engine::{FileSystem, JournalUse, OpenOptions, mkfs};
use blockyard_inspect::reader::Reader;

use crate::scratch::Scratch;
use crate::target::engine::context;
use crate::workload::MIB;

/// Where Linux distributions mount a tmpfs.
const TMPFS: &str = "/dev/shm";

/// Where the image of each cell comes from.
#[derive(Clone, Debug)]
pub enum ImageSource {
    /// A fresh file system in memory for each cell.
    Memory {
        /// Bytes of the device.
        bytes: u64,
        /// How the file system is created. These options fix the seed and the creation time, so all
        /// cells start from the same bytes.
        mkfs: Box<mkfs::Options>,
        /// Where it is stored.
        held: Held,
    },
    /// An image file, or a block device. Each cell sees it unchanged and writes to memory.
    File {
        /// Its path.
        path: ImagePath,
        /// Whether to write the changes back at the end; only for a plan with one cell.
        in_place: bool,
    },
}

/// Where an image in memory is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// In this process.
    Process,
    /// In a file on tmpfs: writes go through the kernel, as those of a loop device do.
    Tmpfs,
}

/// The device of one cell.
pub(crate) enum CellDevice {
    Memory(Arc<MemoryDevice>),
    /// A file on tmpfs, which is deleted when this value is dropped.
    Tmpfs {
        device: Arc<FileDevice>,
        _folder: Scratch,
    },
    Overlay(Arc<OverlayDevice<FileDevice>>),
}

/// An estimate of the space that this many bytes of files need, with the blocks of their extent
/// trees and with what the file system reserves for itself.
pub(super) const fn with_mapping(bytes: u64) -> u64 {
    bytes + bytes / 64 + 4 * MIB
}

impl ImageSource {
    /// ext4 with 4 KiB blocks in memory. UUID and hash seed are made from `seed`.
    #[must_use]
    pub fn memory(bytes: u64, seed: u64) -> Self {
        Self::Memory { bytes, mkfs: Box::new(default_mkfs(seed)), held: Held::Process }
    }

    /// Refuses an image that cannot work, before anything runs: no file system, truncated, damaged,
    /// in use, or too small for files of `bytes` bytes in total. Writes nothing.
    ///
    /// # Errors
    /// Names the image, and says what is wrong and what to do.
    pub fn check(&self, bytes: u64) -> Result<()> {
        let free = match self {
            Self::Memory { bytes, mkfs, .. } => {
                let summary = mkfs::plan(*bytes, mkfs).context("--memory, --mkfs")?;
                summary.free_blocks * u64::from(summary.block_size)
            }
            Self::File { .. } => {
                // Opens the image as a cell would, so that what a cell would refuse is refused now.
                let statistics = || -> Result<_> {
                    let options = OpenOptions { journal: JournalUse::Ignored, ..OpenOptions::default() };
                    let fs = FileSystem::open(self.device()?.shared(), options, &context(0))?;
                    Ok(fs.statistics())
                };
                let found = statistics().with_context(|| self.name())?;
                found.blocks_free * u64::from(found.block_size)
            }
        };
        let needed = with_mapping(bytes);
        ensure!(
            needed <= free,
            "{}: too small, {} MiB are free and the files need {}; give a larger one, fewer --workers or a smaller \
             --scale",
            self.name(),
            free / MIB,
            needed.div_ceil(MIB)
        );
        Ok(())
    }

    /// Bytes of an image in memory; `None` for a file.
    pub(crate) fn memory_bytes(&self) -> Option<u64> {
        match self {
            Self::Memory { bytes, .. } => Some(*bytes),
            Self::File { .. } => None,
        }
    }

    /// Refuses a policy that does not serve the features of this image, before anything is
    /// measured.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub(crate) fn check_policy(&self, name: &str, policy: &Policy) -> Result<()> {
        policy.serves(&self.features()?).with_context(|| format!("--policy {name}: {}", self.name()))
    }

    /// The features of the file system.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub(crate) fn features(&self) -> Result<FeatureSet> {
        Ok(match self {
            Self::Memory { bytes, mkfs, .. } => mkfs::plan(*bytes, mkfs)?.features,
            Self::File { .. } => *Reader::open(self.device()?.shared())?.superblock().features(),
        })
    }

    /// Number of groups.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub(crate) fn groups(&self) -> Result<u32> {
        match self {
            Self::Memory { bytes, mkfs, .. } => Ok(mkfs::plan(*bytes, mkfs)?.groups),
            Self::File { .. } => Ok(Reader::open(self.device()?.shared())?.superblock().geometry().groups()),
        }
    }

    /// Bytes of the file system, and of one of its groups.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub(crate) fn sizes(&self) -> Result<(u64, u64)> {
        Ok(match self {
            Self::Memory { bytes, mkfs, .. } => {
                let made = mkfs::plan(*bytes, mkfs)?;
                // The bitmap of a group is one block, with one bit for each cluster.
                (*bytes, 8 * u64::from(made.block_size) * u64::from(made.cluster_size))
            }
            Self::File { .. } => {
                let reader = Reader::open(self.device()?.shared())?;
                let geometry = reader.superblock().geometry();
                let block = u64_from_usize(geometry.block_size());
                (geometry.blocks_count().raw() * block, geometry.blocks_per_group() * block)
            }
        })
    }

    /// The image's name in messages.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Memory { bytes, .. } => format!("--memory {} MiB", bytes / MIB),
            Self::File { path, .. } => path.display().to_string(),
        }
    }

    /// Everything that determines the image on which a cell starts, as text: how it is created, or
    /// the path, inode, size and modification time of the file.
    ///
    /// # Errors
    /// When the file's metadata cannot be read.
    pub(crate) fn identity(&self) -> Result<String> {
        let Self::File { path, in_place } = self else { return Ok(format!("{self:?}")) };
        let data = std::fs::metadata(path.file()).with_context(|| self.name())?;
        let changed = (data.mtime(), data.mtime_nsec());
        Ok(format!("{} {in_place} {} {} {changed:?}", path.display(), data.ino(), data.size()))
    }

    /// A device in the state from which a cell starts.
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

    /// The title of a cell, prefixed by its image if that is a file.
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

/// The default options for a fresh file system. The creation time is fixed, so that the content
/// does not depend on when it is created.
#[must_use]
pub fn default_mkfs(seed: u64) -> mkfs::Options {
    mkfs::Options::ext4().block_size(4096).identity(seed, 1_700_000_000)
}

impl CellDevice {
    /// The device for the file system and the judges.
    pub(crate) fn shared(&self) -> Arc<dyn BlockDevice> {
        match self {
            Self::Memory(device) => Arc::<MemoryDevice>::clone(device),
            Self::Tmpfs { device, .. } => Arc::<FileDevice>::clone(device),
            Self::Overlay(device) => Arc::<OverlayDevice<FileDevice>>::clone(device),
        }
    }

    /// Saves a copy of the image as a sparse file, for programs that need a file.
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
                        at += u64_from_usize(length);
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
    /// Whether the cell's changes are written to the image file at the end.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        matches!(self, Self::File { in_place: true, .. })
    }
}
