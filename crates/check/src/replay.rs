//! Replays a dirty journal in memory before anything is judged. The device is not written.

use blockyard_device::{BlockDevice, OverlayDevice};
use blockyard_disk::Incompat;
use blockyard_disk::superblock::{MAGIC, PRIMARY_OFFSET, RawSuperblock};
use blockyard_recovery::{Error, OnDamage, Options, Session};
use zerocopy::FromBytes;

use crate::code::Code;
use crate::finding::{Sink, Site};

/// A file system with its journal replayed in memory, and the external journal, if there is one, as
/// the replay leaves it.
pub(crate) struct Replayed<'a> {
    pub(crate) image: OverlayDevice<&'a dyn BlockDevice>,
    pub(crate) journal: Option<OverlayDevice<&'a dyn BlockDevice>>,
}

/// Replays the journal in memory; `None` when the superblock does not ask for a replay, or when the
/// replay fails, which is a finding.
pub(crate) fn replayed<'a>(
    image: &'a dyn BlockDevice,
    journal: Option<&'a dyn BlockDevice>,
    sink: &mut Sink,
) -> Option<Replayed<'a>> {
    if !asks_for_recovery(image) {
        return None;
    }
    let replayed = Replayed { image: OverlayDevice::new(image), journal: journal.map(OverlayDevice::new) };
    replay_over(&replayed.image, replayed.journal.as_ref(), sink).then_some(replayed)
}

/// Replays the journal of an image in its overlay. Returns false if the replay fails; the overlay
/// may then hold anything.
pub(crate) fn replay_over(
    image: &OverlayDevice<&dyn BlockDevice>,
    journal: Option<&OverlayDevice<&dyn BlockDevice>>,
    sink: &mut Sink,
) -> bool {
    let options = Options { on_damage: OnDamage::ReplayGood, ..Options::default() };
    let session = match journal {
        Some(journal) => Session::open_with_journal(image, journal),
        None => Session::open(image),
    };
    match session.and_then(|session| session.replay(&options)) {
        Ok(report) => {
            for damage in &report.damage {
                sink.add(Code::LOG_CORRUPT, Site::NOWHERE, damage.to_string());
            }
            let detail = format!("{} transactions, {} blocks", report.transactions, report.written);
            sink.add(Code::JOURNAL_REPLAYED, Site::NOWHERE, detail);
            true
        }
        Err(error) => {
            let code = if is_unsupported(&error) { Code::LOG_UNSUPPORTED } else { Code::NOT_REPLAYED };
            sink.add(code, Site::NOWHERE, error.to_string());
            false
        }
    }
}

/// Whether a log was refused not for damage, but because it holds something that the recovery does
/// not support.
fn is_unsupported(error: &Error) -> bool {
    use blockyard_disk::Error::{Unsupported, UnsupportedFeatures};
    matches!(
        error,
        Error::FastCommits { .. } | Error::LoggedSuperblock(Unsupported(_) | UnsupportedFeatures(_))
    )
}

/// Whether the superblock says that the journal needs recovery.
pub(crate) fn asks_for_recovery(device: &dyn BlockDevice) -> bool {
    let mut bytes = [0; RawSuperblock::SIZE];
    device.read_at(PRIMARY_OFFSET, &mut bytes).is_ok_and(|()| {
        let sb = RawSuperblock::read_from_bytes(&bytes).expect("1024 bytes are a superblock");
        sb.s_magic.get() == MAGIC && sb.incompat().contains(Incompat::RECOVER)
    })
}
