//! jbd2 journal recovery: scan, revoke, replay, to the device or in memory. This crate writes no
//! transactions.
//!
//! [`inspect`] says what state the journal is in. [`replay_to_device`] writes committed blocks to
//! their homes on the device and empties the log. [`replay_into_overlay`] does the same in memory
//! and only reads the device.
//!
//! Key decisions:
//! * One walk over the log collects the committed transactions: their tags and revoke records, not
//!   the logged copies of blocks. So the number of descriptor and revoke blocks bounds the memory
//!   use. Every copy that will be written is verified before the first write. Of each block, only
//!   the last good copy is written, and the blocks are written in ascending order.
//! * Order of writes: first the replayed blocks, and the superblock with its record of errors; then
//!   a flush; then the journal superblock, durably; then the superblock without RECOVER, durably.
//!   After a power cut at any point, the log is still in place or no longer needed, so recovery can
//!   simply run again.
//! * A damaged log is refused and nothing is written, unless the caller asks for a replay of the
//!   log's good part ([`OnDamage::ReplayGood`]). This replay marks the file system as having
//!   errors.

#![forbid(unsafe_code)]

mod apply;
mod error;
mod journal_file;
mod journal_map;
mod journal_place;
mod log;
mod metadata;
mod options;
mod plan;
mod report;
mod scan;
mod session;
mod superblock_file;

use blockyard_device::{BlockDevice, OverlayDevice};

pub use error::{Error, Result};
pub use journal_place::JournalPlace;
pub use options::{OnDamage, Options, Unflagged};
pub use report::{Damage, JournalSource, JournalState, JournalStatus, Report};
pub use session::Session;

/// The state of a file system's journal, without reading the log.
///
/// # Errors
/// [`Error::Disk`] when the superblock, the journal, or the group descriptor or inode that leads to
/// it is corrupt or uses something that is not supported; [`Error::ExternalJournal`];
/// [`Error::Device`].
pub fn inspect(device: &dyn BlockDevice) -> Result<JournalStatus> {
    Ok(Session::open(device)?.status().clone())
}

/// Writes the committed blocks to their homes, marks the log empty and clears RECOVER. Does nothing
/// without a journal, or when the journal is clean and holds no error code.
///
/// # Errors
/// Before the first write: the errors of [`inspect`], [`Error::Damaged`], [`Error::FastCommits`],
/// [`Error::Unflagged`], [`Error::LoggedSuperblock`]. After the first write: only
/// [`Error::Device`], and running again is safe.
pub fn replay_to_device(device: &dyn BlockDevice, options: &Options) -> Result<Report> {
    Session::open(device)?.replay(options)
}

/// As [`replay_to_device`], but in memory: the overlay shows the recovered file system, and the
/// device is only read.
///
/// # Errors
/// As [`replay_to_device`].
pub fn replay_into_overlay<D: BlockDevice>(
    device: D,
    options: &Options,
) -> Result<(OverlayDevice<D>, Report)> {
    let overlay = OverlayDevice::new(device);
    let report = replay_to_device(&overlay, options)?;
    Ok((overlay, report))
}
