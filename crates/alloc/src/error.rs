//! Errors of the allocator. Running out of space is a normal answer: [`NoSpace`] says what could
//! still help.
//!
//! A free that contradicts the bitmaps, or a bitmap that contradicts its descriptor, is reported as
//! corruption of the image: a [`Corruption`] with its kind and location.

use blockyard_disk::{BlockNr, Corruption, CorruptionKind, GroupNr};

/// What a [`GroupSource`](crate::GroupSource) reports when it cannot provide a bitmap.
pub type SourceError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// Why nothing was allocated, and what the caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSpace {
    /// Freed clusters that wait for a commit. If there are any, it may help to commit the running
    /// transaction and to ask again, outside the journal handle and at most three times.
    pub pending_clusters: u64,
    /// Whether one cluster could be claimed right now. If nothing is pending, a retry makes sense
    /// only when this is true.
    pub claimable: bool,
}

/// Errors of block allocation and freeing.
#[derive(Debug, thiserror::Error)]
pub enum AllocError {
    /// No free cluster that this request may have.
    #[error("no space left: {} clusters wait for a commit", .0.pending_clusters)]
    NoSpace(NoSpace),
    /// The bitmap of a group could not be read.
    #[error("block bitmap of group {group}: {source}")]
    Load {
        /// The group.
        group: GroupNr,
        /// The error that the [`GroupSource`](crate::GroupSource) returned.
        source: SourceError,
    },
    /// One of the following:
    ///
    /// - A free of no blocks, or of blocks outside the file system.
    /// - A free of blocks that are free already, wait for a commit, or lie in a corrupt group.
    /// - An allocation that found nothing while some group is corrupt.
    ///
    /// A group is corrupt if its bitmap contradicts its descriptor.
    #[error(transparent)]
    Corrupt(#[from] Corruption),
    /// The request itself is impossible.
    #[error("impossible request: {0}")]
    BadRequest(&'static str),
    /// The configuration is impossible.
    #[error("impossible allocator configuration: {0}")]
    BadConfig(&'static str),
    /// A tunable refused a value.
    #[error("tunable {name}: {value} is out of range")]
    BadTunable {
        /// Name as in sysfs.
        name: &'static str,
        /// The refused value.
        value: u64,
    },
}

impl AllocError {
    /// The cluster to be freed is free already, or waits for a commit.
    pub(crate) fn freed_twice(group: GroupNr, block: BlockNr) -> Self {
        Corruption::new(CorruptionKind::BlockBitmapContradiction).in_group(group).in_block(block).into()
    }

    /// A group whose bitmap contradicts its descriptor.
    pub(crate) fn corrupt_group(group: GroupNr) -> Self {
        Corruption::new(CorruptionKind::BlockBitmapContradiction).in_group(group).into()
    }

    /// The blocks to be freed are not all inside the file system, or there are none.
    pub(crate) fn freed_outside(first: BlockNr) -> Self {
        Corruption::new(CorruptionKind::FreedOutside).in_block(first).into()
    }
}

/// Result of an allocator operation.
pub type Result<T> = std::result::Result<T, AllocError>;
