//! Errors of the allocator. Running out of space is an answer, not a fault: [`NoSpace`] says what could still help.

use blockyard_disk::GroupNr;

/// What a [`GroupSource`](crate::GroupSource) reports when it cannot give a bitmap.
pub type SourceError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// Why nothing was allocated, and what the caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSpace {
    /// Freed clusters that wait for a commit: when not 0, committing the running transaction and asking again may
    /// help. At most three such retries; outside the journal handle.
    pub pending_clusters: u64,
    /// Whether one cluster could be claimed right now: when nothing is pending, a retry is worth it only then.
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
        /// What the source said.
        source: SourceError,
    },
    /// A range was freed that is free already, waits for its commit, or lies outside the file system.
    #[error("cluster {at} of group {group} is freed twice")]
    DoubleFree {
        /// The group.
        group: GroupNr,
        /// Offset of the first such cluster in the group.
        at: u32,
    },
    /// A range that leaves the file system.
    #[error("blocks {first}..+{count} leave the file system")]
    OutOfRange {
        /// First block.
        first: u64,
        /// Blocks.
        count: u64,
    },
    /// A group whose bitmap contradicts its descriptor is not changed any more.
    #[error("group {0} is corrupt: its bitmap contradicts its descriptor")]
    CorruptGroup(GroupNr),
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

/// Result of an allocator operation.
pub type Result<T> = std::result::Result<T, AllocError>;
