//! Makes file systems with the layout that mke2fs 1.47 makes for the same parameters. If all inputs
//! are equal, UUID, time and hash seed included, the image is byte for byte that of mke2fs.
//!
//! There are two steps. Planning does no I/O: [`Options`] become checked parameters, then a shape
//! (groups, inodes), then a layout (every position). Writing then clears the device and writes each
//! block at most once. Everything that can be refused is refused before the first write, so a
//! refusal leaves the device as it was.
//!
//! ```
//! use blockyard_device::MemoryDevice;
//! use blockyard_engine::mkfs;
//!
//! let device = MemoryDevice::new(64 << 20);
//! let options = mkfs::Options::ext4().block_size(4096).label("scratch").identity(1, 1_700_000_000);
//! let summary = mkfs::format(&device, &options).unwrap();
//! assert_eq!(summary.blocks, 16384);
//! ```

mod blank;
mod content;
mod error;
mod extent_tree;
mod feature;
mod files;
mod groups;
mod heads;
mod identity;
mod image;
mod inodes;
mod journal;
mod layout;
mod options;
mod params;
mod profile;
mod reserved;
mod shape;
mod signature;
mod space;
mod superblock;
mod tables;

pub use blank::{Blank, Filled};
pub use content::Content;
pub use error::{Error, Result};
pub use extent_tree::{ExtentTree, Run};
pub use feature::supported_names as supported_features;
pub use options::{Amount, Options, UuidChoice};
pub use profile::{Profile, Usage};
pub use signature::find_signature;

use blockyard_device::BlockDevice;
use blockyard_disk::FeatureSet;

use layout::Layout;

/// The figures of a file system that was made or planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Bytes of one block.
    pub block_size: u32,
    /// Bytes of one cluster; the block size without bigalloc.
    pub cluster_size: u32,
    /// Blocks of the file system.
    pub blocks: u64,
    /// Blocks that are free.
    pub free_blocks: u64,
    /// Blocks kept for privileged users.
    pub reserved_blocks: u64,
    /// Block groups.
    pub groups: u32,
    /// Inodes.
    pub inodes: u32,
    /// Blocks of the journal, 0 without one.
    pub journal_blocks: u64,
    /// UUID of the file system.
    pub uuid: [u8; 16],
    /// Features of the file system.
    pub features: FeatureSet,
    /// Blocks with copies of the superblock.
    pub backup_superblocks: Vec<u64>,
}

/// Plans a file system for a device of `device_bytes` bytes without touching anything.
///
/// # Errors
/// Every error of [`format()`], except errors of the device and the refusal of a file system that
/// is larger than the device.
pub fn plan(device_bytes: u64, options: &Options) -> Result<Summary> {
    Ok(summary(&Layout::plan(options, device_bytes)?, options))
}

/// The size in bytes of the smallest device on which these options make a file system; `None` if
/// there is none up to 16 TiB. The size in the options is ignored.
#[must_use]
pub fn smallest(options: &Options) -> Option<u64> {
    /// Device sizes are rounded down to this.
    const STEP: u64 = 4096;
    let options = Options { size: None, ..options.clone() };
    let fits = |steps: u64| Layout::plan(&options, steps * STEP).is_ok();
    let mut fitting = (0..=32).map(|bits| 1_u64 << bits).find(|steps| fits(*steps))?;
    let mut too_small = fitting / 2;
    while fitting - too_small > 1 {
        let middle = too_small + (fitting - too_small) / 2;
        if fits(middle) {
            fitting = middle;
        } else {
            too_small = middle;
        }
    }
    Some(fitting * STEP)
}

/// Makes a file system on a device. The device's content is lost.
///
/// # Errors
/// Any [`Error`]; nothing has been written unless it is [`Error::Device`].
pub fn format(device: &dyn BlockDevice, options: &Options) -> Result<Summary> {
    let layout = Layout::plan(options, device.size())?;
    let needed = layout.geometry.blocks_count().raw() << layout.params.block_bits;
    if needed > device.size() {
        return Err(Error::Size(format!(
            "the file system needs {needed} bytes and the device has {}; ask for less or enlarge it",
            device.size()
        )));
    }
    image::write(device, &layout, options)?;
    Ok(summary(&layout, options))
}

fn summary(layout: &Layout, options: &Options) -> Summary {
    let block_size = 1 << layout.params.block_bits;
    let backups = layout.backups().into_iter();
    Summary {
        block_size,
        cluster_size: block_size << layout.params.cluster_ratio_bits,
        blocks: layout.geometry.blocks_count().raw(),
        free_blocks: layout.free_blocks(),
        reserved_blocks: layout.reserved_blocks,
        groups: layout.geometry.groups(),
        inodes: layout.geometry.inodes_count(),
        journal_blocks: layout.params.journal.map_or(0, |size| size.total),
        uuid: identity::Identity::of(options).uuid,
        features: layout.params.features,
        backup_superblocks: backups
            .filter_map(|group| layout.heads.superblock(&layout.geometry, group))
            .collect(),
    }
}
