//! Why a file system was not made. Only [`Error::Device`] can be returned after
//! something has been written.

use blockyard_device::DeviceError;

/// Why mkfs refused or failed. Each message is one line, which also says what to do, except for
/// errors of the device.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An option of mke2fs that blockyard does not support.
    #[error("{option}: {reason}")]
    Refused {
        /// The option as the user gave it.
        option: String,
        /// Why not, and what to do instead.
        reason: String,
    },
    /// An unknown feature name.
    #[error("-O {name}: no such feature; supported are: {known}")]
    UnknownFeature {
        /// The name given.
        name: String,
        /// The accepted names.
        known: String,
    },
    /// A value outside its range, or one that cannot be parsed.
    #[error("{option}: {problem}")]
    Value {
        /// The option, with or without the value that the user gave.
        option: String,
        /// What is wrong with the value and which values are right.
        problem: String,
    },
    /// Parameters that are valid alone but impossible together.
    #[error("{0}")]
    Conflict(String),
    /// The file system would be too large for the device or the format, or too small for what it
    /// must hold.
    #[error("{0}")]
    Size(String),
    /// The target already holds something.
    #[error("the target holds {0}; nothing was written; overwrite it with --force (-F)")]
    Occupied(String),
    /// The device failed. What was written so far is not a file system (the superblock
    /// comes last), unless only the last flush failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Result of this module.
pub type Result<T> = std::result::Result<T, Error>;

/// Shorthand for [`Error::Value`].
pub(super) fn bad_value(option: impl Into<String>, problem: impl Into<String>) -> Error {
    Error::Value { option: option.into(), problem: problem.into() }
}
