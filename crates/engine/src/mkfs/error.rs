//! Why a file system was not made. Nothing has been written when one of these but [`Error::Device`]
//! is returned.

use blockyard_device::DeviceError;

/// Why mkfs refused or failed; each message is one line that says what, where and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An option that mke2fs has and blockyard does not carry out.
    #[error("{option}: {reason}")]
    Refused {
        /// The option as the user gave it.
        option: String,
        /// Why not, and what to do instead.
        reason: String,
    },
    /// A feature name nobody knows.
    #[error("-O {name}: no such feature; supported are: {known}")]
    UnknownFeature {
        /// The name given.
        name: String,
        /// The names that would do.
        known: String,
    },
    /// A value outside its range, or one that cannot be read.
    #[error("{option}: {problem}")]
    Value {
        /// The option as the user gave it.
        option: String,
        /// What is wrong with the value and which values are right.
        problem: String,
    },
    /// Parameters that are right alone and impossible together.
    #[error("{0}")]
    Conflict(String),
    /// The file system would not fit the device or the format.
    #[error("{0}")]
    Size(String),
    /// The target holds something already.
    #[error("the target holds {0}; nothing was written; overwrite it with --force (-F)")]
    Occupied(String),
    /// The device failed; what was written so far is not a file system (the superblock comes last).
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Result of this module.
pub type Result<T> = std::result::Result<T, Error>;

/// Shorthand for [`Error::Value`].
pub(super) fn bad_value(option: impl Into<String>, problem: impl Into<String>) -> Error {
    Error::Value { option: option.into(), problem: problem.into() }
}
