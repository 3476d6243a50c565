//! The engine's error and its one mapping to errno.
//!
//! Every public operation answers with [`Error`]; [`Error::errno`] is the only place where a number is chosen for it,
//! so that the mount, the library and the tests agree.

use blockyard_device::DeviceError;
use blockyard_disk::{Corruption, InodeNr};

/// Result of an engine operation.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation failed. Unless a variant says otherwise the file system is as it was before the call.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device failed; the operation may have been applied in memory, never half on a structure.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Data that was written to a file earlier could not be brought to the device.
    #[error("inode {0}: data written earlier could not be stored")]
    LostData(InodeNr),
    /// The image contradicts the format; names the check and the place.
    #[error(transparent)]
    Corrupt(#[from] Corruption),
    /// A directory block contradicts the format.
    #[error("inode {inode}, directory block {block}: {rule}")]
    Directory {
        /// The directory.
        inode: InodeNr,
        /// Logical block in the directory.
        block: u32,
        /// Which rule, and where in the block.
        rule: String,
    },
    /// The image uses features that this version can not open.
    #[error("unsupported incompatible features: {0}")]
    UnsupportedFeatures(String),
    /// The image can not be opened as asked; the text says what to do.
    #[error("{0}")]
    Refused(String),
    /// No entry of that name.
    #[error("no such file or directory")]
    NotFound,
    /// The inode number is free, out of range or reserved.
    #[error("inode {0} is not in use")]
    StaleInode(InodeNr),
    /// The name exists already.
    #[error("file exists")]
    Exists,
    /// A directory was needed.
    #[error("not a directory")]
    NotDirectory,
    /// A directory where it can not be.
    #[error("is a directory")]
    IsDirectory,
    /// A directory that still has entries.
    #[error("directory not empty")]
    NotEmpty,
    /// No free blocks or directory space, after pending frees were considered.
    #[error("no space left on the file system")]
    NoSpace,
    /// No free inode; how many there are is decided when the file system is made.
    #[error("no inode left on the file system, which was made for a number of files (mkfs -N or -i)")]
    NoInodes,
    /// The instance is or has become read-only.
    #[error("read-only file system")]
    ReadOnly,
    /// An argument outside what the operation accepts.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// A name longer than 255 bytes.
    #[error("file name too long")]
    NameTooLong,
    /// The link count limit of 65,000.
    #[error("too many links")]
    TooManyLinks,
    /// A file past the format's limit.
    #[error("file too large")]
    FileTooLarge,
    /// Immutable or append-only files, and other refusals by the inode's flags.
    #[error("operation not permitted")]
    NotPermitted,
    /// The format allows it, this version does not.
    #[error("operation not supported: {0}")]
    NotSupported(&'static str),
    /// No extended attribute of that name.
    #[error("no such attribute")]
    NoAttribute,
    /// A buffer too small for the answer.
    #[error("result too large for the buffer")]
    Range,
    /// Two places of different file systems or projects.
    #[error("cross-device link")]
    CrossDevice,
}

impl Error {
    /// The errno that a system call would give for this error (Linux numbers).
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Device(_) | Self::LostData(_) => 5,
            Self::Corrupt(_) | Self::Directory { .. } => 117,
            Self::UnsupportedFeatures(_) | Self::Refused(_) | Self::Invalid(_) => 22,
            Self::NotFound => 2,
            Self::StaleInode(_) => 116,
            Self::Exists => 17,
            Self::NotDirectory => 20,
            Self::IsDirectory => 21,
            Self::NotEmpty => 39,
            Self::NoSpace | Self::NoInodes => 28,
            Self::ReadOnly => 30,
            Self::NameTooLong => 36,
            Self::TooManyLinks => 31,
            Self::FileTooLarge => 27,
            Self::NotPermitted => 1,
            Self::NotSupported(_) => 95,
            Self::NoAttribute => 61,
            Self::Range => 34,
            Self::CrossDevice => 18,
        }
    }
}

impl From<blockyard_disk::Error> for Error {
    fn from(error: blockyard_disk::Error) -> Self {
        match error {
            blockyard_disk::Error::Corrupt(found) => Self::Corrupt(found),
            blockyard_disk::Error::UnsupportedFeatures(names) => Self::UnsupportedFeatures(names),
            other => Self::Refused(other.to_string()),
        }
    }
}
