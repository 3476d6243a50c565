//! Why an image is not opened, or why an instance cannot continue. Two other reasons have their own
//! variants of [`Error`](crate::Error): corruption that an operation found, and errors of the
//! device.

use blockyard_disk::GroupNr;

/// Why an image is refused. Where the reason alone does not show what to do, the message usually
/// says it.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// A size or revision that the format allows but this version does not support.
    #[error(transparent)]
    Unsupported(blockyard_disk::Error),
    /// The device has no bytes, such as an empty file.
    #[error("the image is empty; `blockyard mkfs` makes a file system")]
    Empty,
    /// No superblock is where it must be, or the device is too short for one.
    #[error(
        "the image holds no ext2, ext3 or ext4 file system: superblock magic is not 0xEF53; if it held one, \
         `blockyard check --plan` looks for copies of its superblock, else `blockyard mkfs` makes one"
    )]
    NoFileSystem,
    /// The file system is larger than its device.
    #[error("the file system has {needed} bytes, the device only {device}: the image is cut short")]
    CutShort {
        /// Bytes of the file system.
        needed: u64,
        /// Bytes of the device.
        device: u64,
    },
    /// A feature that this version does not maintain when writing.
    #[error("{0}: can only be opened read-only")]
    OnlyReadable(&'static str),
    /// The superblock says that errors were found.
    #[error("the file system is marked as having errors: run a check first")]
    MarkedErrors,
    /// The log must be replayed first, but the caller did not allow it.
    #[error("the journal needs recovery")]
    NeedsRecovery,
    /// The superblock does not request the recovery that the log needs.
    #[error("the journal is not empty although the superblock does not ask for recovery: run a check first")]
    UnflaggedLog,
    /// The log that an instance wants to write to still has transactions.
    #[error("the journal is not empty: it must be recovered first")]
    LogInUse,
    /// The journal's superblock leaves the log fewer blocks than the log of the smallest journal
    /// has. Linux does not mount such an image either.
    #[error(
        "the log of the journal has {blocks} blocks and needs at least {least}: make the journal again \
         (tune2fs -O ^has_journal, then tune2fs -j), or open the image read-only"
    )]
    LogTooShort {
        /// Blocks of the log.
        blocks: u32,
        /// The fewest blocks that a log may have.
        least: u32,
    },
    /// The journal cannot be read or replayed as it is.
    #[error(transparent)]
    Journal(blockyard_recovery::Error),
    /// The log is too small for the transaction.
    #[error("a transaction of {blocks} blocks does not fit a log of {log}")]
    TransactionTooLarge {
        /// Blocks that the transaction takes in the log.
        blocks: u32,
        /// Blocks of the log.
        log: u32,
    },
    /// The image has features that are newer than the era of the allocation policy.
    #[error(transparent)]
    Policy(blockyard_alloc::policy::NotServed),
    /// The allocators reject these settings.
    #[error("impossible allocator configuration: {0}")]
    AllocatorConfiguration(&'static str),
    /// A group's bitmap could not be loaded for an allocator.
    #[error("bitmap of group {group}: {why}")]
    Bitmap {
        /// The group.
        group: GroupNr,
        /// Why its source could not be read.
        why: String,
    },
}
