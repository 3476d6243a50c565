//! Why a tree was not read, or an image or an archive not made.

use std::path::{Path, PathBuf};

/// Why an operation of this crate failed. After an error of [`Plan::write`](crate::Plan::write) the
/// device holds no file system, except perhaps if clearing it or the last flush failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The source cannot be read.
    #[error("{}: {error}", path.display())]
    Source {
        /// The file or stream.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A file's size has changed since the tree was read.
    #[error("{}: the file changed while the image was made; make it again from a tree that does not change", .0.display())]
    Changed(PathBuf),
    /// The image cannot hold something.
    #[error("{}: {reason}", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// Why, and what to do.
        reason: String,
    },
    /// The content does not fit the size asked for.
    #[error(
        "the content needs an image of {needed} bytes and {asked} are asked for; {}",
        advice(*smaller)
    )]
    TooSmall {
        /// Bytes asked for.
        asked: u64,
        /// A size in bytes above `asked` that holds the content, about as small as possible.
        needed: u64,
        /// About the smallest size in bytes that holds the content, if it is below `asked`. An
        /// image of that size has a smaller journal.
        smaller: Option<u64>,
    },
    /// The options of the file system are wrong.
    #[error(transparent)]
    Mkfs(#[from] blockyard_engine::mkfs::Error),
    /// An archive or a container image cannot be written.
    #[error("{}: {error}", path.display())]
    Output {
        /// The output.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The device failed. What it holds now must not be used.
    #[error(transparent)]
    Device(#[from] blockyard_device::DeviceError),
}

/// What to do about an image that is too small.
fn advice(smaller: Option<u64>) -> String {
    match smaller {
        None => "ask for more, or for --size auto".to_owned(),
        Some(bytes) => format!(
            "larger images have larger journals: ask for more, for {bytes} bytes (--size auto), or for a \
             small journal (-J size=)"
        ),
    }
}

/// Result of this crate's operations.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn source(path: &Path, error: impl Into<std::io::Error>) -> Self {
        Self::Source { path: path.to_owned(), error: error.into() }
    }

    pub(crate) fn image(path: &Path, error: blockyard_inspect::reader::Error) -> Self {
        Self::source(path, std::io::Error::other(error))
    }
}
