//! Why an image is not opened, or an instance cannot go on, although nothing in it contradicts the
//! format.

use blockyard_disk::GroupNr;

/// Why an image is refused as it is asked for; the text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// A size or revision that the format allows and this version does not.
    #[error(transparent)]
    Unsupported(blockyard_disk::Error),
    /// The file system is larger than its device.
    #[error("the file system has {needed} bytes, the device only {device}: the image is cut short")]
    CutShort {
        /// Bytes of the file system.
        needed: u64,
        /// Bytes of the device.
        device: u64,
    },
    /// What this version does not maintain when it writes.
    #[error("{0}: can only be opened read-only")]
    OnlyReadable(&'static str),
    /// The superblock says that errors were found.
    #[error("the file system is marked as having errors: run a check first")]
    MarkedErrors,
    /// The log has to be replayed first, which was not to be done.
    #[error("the journal needs recovery")]
    NeedsRecovery,
    /// The superblock does not ask for the recovery that the log would need.
    #[error("the journal is not empty although the superblock does not ask for recovery: run a check first")]
    UnflaggedLog,
    /// The log has transactions, and is not replayed here.
    #[error("the journal is not empty: it must be recovered first")]
    LogInUse,
    /// The journal cannot be read or replayed as it is.
    #[error(transparent)]
    Journal(blockyard_recovery::Error),
    /// The log is smaller than one transaction.
    #[error("a transaction of {blocks} blocks does not fit a log of {log}")]
    TransactionTooLarge {
        /// Blocks that it takes in the log.
        blocks: u32,
        /// Blocks of the log.
        log: u32,
    },
    /// The allocation policy is of a time that had no such images.
    #[error(transparent)]
    Policy(blockyard_alloc::policy::NotServed),
    /// The allocators take no such settings.
    #[error("impossible allocator configuration: {0}")]
    AllocatorConfiguration(&'static str),
    /// The bitmap of a group was not given to an allocator.
    #[error("bitmap of group {group}: {why}")]
    Bitmap {
        /// The group.
        group: GroupNr,
        /// What its source said.
        why: String,
    },
}
