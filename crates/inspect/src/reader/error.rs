//! Errors of the reader.

use blockyard_device::DeviceError;
use blockyard_disk::{Corruption, CorruptionKind};

/// Result of a reader operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The image fails a check or is not supported.
    #[error(transparent)]
    Disk(#[from] blockyard_disk::Error),
    /// The device ends before the file system does.
    #[error(
        "the device has {size} bytes, the file system {needed}: the image was cut short (resize2fs may shrink the file system)"
    )]
    DeviceTooSmall {
        /// Bytes of the device.
        size: u64,
        /// Bytes of the file system.
        needed: u64,
    },
    /// Nothing has this path.
    #[error("no such file or directory: {0}")]
    NotFound(String),
    /// This path or inode is not a directory, and a directory is needed.
    #[error("not a directory: {0}")]
    NotDirectory(String),
    /// This path passes more symbolic links than [`crate::path::SYMLINKS_MAX`].
    #[error("too many symbolic links: {0}")]
    TooManySymlinks(String),
}

impl From<Corruption> for Error {
    fn from(found: Corruption) -> Self {
        Self::Disk(found.into())
    }
}

impl Error {
    /// The check that failed, when this is a corruption.
    #[must_use]
    pub const fn corruption(&self) -> Option<CorruptionKind> {
        match self {
            Self::Disk(blockyard_disk::Error::Corrupt(found)) => Some(found.kind),
            _ => None,
        }
    }
}
