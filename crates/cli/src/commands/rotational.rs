//! `--rotational`: whether the device behind an image has seek times, which decides how the search
//! for blocks begins.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// The setting that Linux reads from the device's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Rotational {
    /// What a block device says; off for a file, for an image in memory, and with a fixed time
    /// (--time, E2FSPROGS_FAKE_TIME, SOURCE_DATE_EPOCH), so that the same input gives the same
    /// bytes on every machine
    Auto,
    /// A disk with seek times: the search tries four groups in order before it uses an index
    On,
    /// An SSD: the search uses an index at once
    Off,
}

impl Rotational {
    /// Whether the device of the image at a path has seek times. Callers pass `None` for an image
    /// in memory, or if the time is fixed.
    pub(super) fn of(self, image: Option<&Path>) -> bool {
        match self {
            Self::On => true,
            Self::Off => false,
            Self::Auto => image.is_some_and(|path| says_so(path).unwrap_or(false)),
        }
    }
}

/// What the queue of a block device reports; `None` for anything else, and if it cannot be read.
fn says_so(path: &Path) -> Option<bool> {
    let data = std::fs::metadata(path).ok().filter(|data| data.file_type().is_block_device())?;
    let (major, minor) = (rustix::fs::major(data.rdev()), rustix::fs::minor(data.rdev()));
    let device = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    // A partition uses the queue of its disk.
    let queues = [device.join("queue/rotational"), device.parent()?.join("queue/rotational")];
    let text = queues.iter().find_map(|queue| std::fs::read_to_string(queue).ok())?;
    Some(text.trim() == "1")
}
