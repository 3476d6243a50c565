//! A dirty journal is replayed in memory before anything is judged: the device stays as it is.

use blockyard_device::{BlockDevice, OverlayDevice};
use blockyard_disk::Incompat;
use blockyard_disk::superblock::{MAGIC, PRIMARY_OFFSET, RawSuperblock};
use blockyard_recovery::{OnDamage, Options, replay_into_overlay};
use zerocopy::FromBytes;

use crate::code::Code;
use crate::finding::{Sink, Site};

/// The device with its journal replayed into memory; `None` when the superblock does not ask for it or it cannot be
/// done, which is a finding.
pub(crate) fn replayed<'a>(
    device: &'a dyn BlockDevice,
    sink: &mut Sink,
) -> Option<OverlayDevice<&'a dyn BlockDevice>> {
    if !asks_for_recovery(device) {
        return None;
    }
    let options = Options { on_damage: OnDamage::ReplayGood, ..Options::default() };
    match replay_into_overlay(device, &options) {
        Ok((overlay, report)) => {
            for damage in &report.damage {
                sink.add(Code::LOG_CORRUPT, Site::NOWHERE, damage.to_string());
            }
            let detail = format!("{} transactions, {} blocks", report.transactions, report.written);
            sink.add(Code::JOURNAL_REPLAYED, Site::NOWHERE, detail);
            Some(overlay)
        }
        Err(error) => {
            sink.add(Code::NOT_REPLAYED, Site::NOWHERE, error.to_string());
            None
        }
    }
}

fn asks_for_recovery(device: &dyn BlockDevice) -> bool {
    let mut bytes = [0; RawSuperblock::SIZE];
    device.read_at(PRIMARY_OFFSET, &mut bytes).is_ok_and(|()| {
        let sb = RawSuperblock::read_from_bytes(&bytes).expect("1024 bytes are a superblock");
        sb.s_magic.get() == MAGIC && sb.incompat().contains(Incompat::RECOVER)
    })
}
