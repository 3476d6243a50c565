//! Why a journal is not replayed.

use blockyard_device::DeviceError;
use blockyard_disk::TxnId;

use crate::report::Damage;

/// Why a journal cannot be inspected or replayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The superblock, a group descriptor or the journal is corrupt, or the file system or the
    /// journal uses something that is not supported.
    #[error(transparent)]
    Disk(#[from] blockyard_disk::Error),
    /// The journal is on another device, which was not given.
    #[error("the journal is on an external device (UUID {}), which was not given", uuid_text(.uuid))]
    ExternalJournal {
        /// UUID of the journal device.
        uuid: [u8; 16],
    },
    /// The given device is not the journal of this file system.
    #[error("not the external journal of this file system: {0}")]
    NotTheJournal(&'static str),
    /// The fast-commit area holds changes that were made after the last full commit. This crate
    /// cannot replay them.
    #[error(
        "the journal holds fast commits for transaction {tid}, which are not supported: mount it with Linux or run e2fsck"
    )]
    FastCommits {
        /// The transaction to which the fast commits belong: the one after the last full commit.
        tid: TxnId,
    },
    /// The log is not empty although the superblock does not ask for recovery.
    #[error(
        "the log is not empty, but the superblock does not ask for recovery: the log may be older than the file system"
    )]
    Unflagged,
    /// The log is damaged. The list is never empty.
    #[error("the log is damaged ({} findings), first {}", .0.len(), .0[0])]
    Damaged(Vec<Damage>),
    /// The log holds a copy of the superblock with features or sizes that are not supported. (A
    /// corrupt copy is damage of the log.)
    #[error("the superblock in the log cannot be used: {0}")]
    LoggedSuperblock(blockyard_disk::Error),
}

impl From<blockyard_disk::Corruption> for Error {
    fn from(found: blockyard_disk::Corruption) -> Self {
        Self::Disk(found.into())
    }
}

/// Result of recovery.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A UUID as text, with its usual hyphens.
fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}
