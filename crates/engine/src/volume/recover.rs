//! The journal at open. If it must be replayed, it is replayed before the engine reads anything but
//! the superblock; with [`Recovery::Refuse`] the image is refused instead. If the log is not empty
//! although the superblock does not request recovery, a read-only instance ignores the log. An
//! instance that may write refuses the image.

use crate::options::Recovery;
use crate::{Error, Refusal, Result};
use blockyard_device::{BlockDevice, OverlayDevice};
use blockyard_disk::superblock::Superblock;
use blockyard_recovery::{JournalState, Session};
use std::sync::Arc;

/// The device to continue with: recovered if that was needed. A read-only instance recovers into
/// memory.
pub(super) fn recovered(
    device: Arc<dyn BlockDevice>,
    external: Option<&Arc<dyn BlockDevice>>,
    sb: &Superblock,
    read_only: bool,
    recovery: Recovery,
) -> Result<Arc<dyn BlockDevice>> {
    if sb.journal_inode().is_none() && !sb.needs_recovery() {
        return Ok(device);
    }
    let status = session(&*device, external)?.status().clone();
    match status.state {
        // The error code says that the journal was aborted. A replay clears the code and marks the
        // file system's superblock as having errors.
        JournalState::Clean if status.errno != 0 => replay(device, external, read_only, recovery),
        JournalState::None | JournalState::Clean => Ok(device),
        JournalState::Unflagged if read_only => Ok(device),
        JournalState::Unflagged => Err(Error::Refused(Refusal::UnflaggedLog)),
        JournalState::FlagOnly | JournalState::NeedsReplay => replay(device, external, read_only, recovery),
    }
}

fn session<'a>(
    device: &'a dyn BlockDevice,
    external: Option<&'a Arc<dyn BlockDevice>>,
) -> Result<Session<'a>> {
    Ok(match external {
        Some(journal) => Session::open_with_journal(device, &**journal),
        None => Session::open(device),
    }?)
}

fn replay(
    device: Arc<dyn BlockDevice>,
    external: Option<&Arc<dyn BlockDevice>>,
    read_only: bool,
    recovery: Recovery,
) -> Result<Arc<dyn BlockDevice>> {
    if recovery == Recovery::Refuse {
        return Err(Error::Refused(Refusal::NeedsRecovery));
    }
    let options = blockyard_recovery::Options::default();
    if read_only {
        let overlay = OverlayDevice::new(device);
        // The replay ends by emptying the log, so an external log needs an overlay, too.
        let log = external
            .map(|journal| -> Arc<dyn BlockDevice> { Arc::new(OverlayDevice::new(Arc::clone(journal))) });
        session(&overlay, log.as_ref())?.replay(&options)?;
        return Ok(Arc::new(overlay));
    }
    session(&*device, external)?.replay(&options)?;
    Ok(device)
}

impl From<blockyard_recovery::Error> for Error {
    fn from(error: blockyard_recovery::Error) -> Self {
        match error {
            blockyard_recovery::Error::Device(error) => Self::Device(error),
            blockyard_recovery::Error::Disk(error) => error.into(),
            blockyard_recovery::Error::LoggedSuperblock(blockyard_disk::Error::UnsupportedFeatures(
                names,
            )) => Self::UnsupportedFeatures(names),
            damaged @ (blockyard_recovery::Error::Damaged(_)
            | blockyard_recovery::Error::LoggedSuperblock(_)) => Self::DamagedLog(damaged),
            other => Self::Refused(Refusal::Journal(other)),
        }
    }
}
