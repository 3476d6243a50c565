//! Features that a single wrong bit can set, and that make sound inodes look wrong: bigalloc where
//! each cluster is one block, and casefold without an encoding.

use blockyard_device::{BlockDevice, DeviceError, OverlayDevice};
use blockyard_disk::inode::{InodeFlags, InodeSlot};
use blockyard_disk::superblock::RawSuperblock;
use blockyard_disk::{Incompat, InodeNr, RoCompat};

use super::constants;
use super::editor;
use crate::code::Code;
use crate::finding::{Sink, Site};
use crate::repair::log::{Cost, Log};
use crate::superblock::{self, Opened};
use crate::volume::Volume;
use crate::{Error, descriptors};

/// The only known value of `s_encoding`.
const ENCODING_UTF8: u16 = 1;

/// Removes the feature bigalloc if it is set by mistake. If the feature casefold is set without a
/// known encoding, sets the encoding if a backup or an inode has casefold, and otherwise removes
/// the feature.
pub(super) fn settle(overlay: &OverlayDevice<&dyn BlockDevice>, log: &mut Log) -> Result<(), Error> {
    let Ok(Opened::Volume(mut volume)) = superblock::open(overlay, &mut Sink::default()) else {
        return Ok(());
    };
    descriptors::load(&mut volume, &mut Sink::default());
    let copy = super::own_backup(overlay, &volume.sb);
    let mut change = |what: &str, change: &dyn Fn(&mut RawSuperblock)| {
        log.add(Code::SUPERBLOCK_CONSTANT, Site::NOWHERE, Cost::Nothing, what);
        editor::change_superblock(overlay, change)
    };
    if has_stray_bigalloc(&volume.sb, copy.as_ref()) {
        change("feature bigalloc removed: a cluster is a block", &|sb| {
            sb.set_ro_compat(sb.ro_compat().difference(RoCompat::BIGALLOC));
        })?;
    }
    if !volume.incompat.contains(Incompat::CASEFOLD) || volume.sb.s_encoding.get() == ENCODING_UTF8 {
        return Ok(());
    }
    let is_copied = copy.is_some_and(|copy| copy.incompat().contains(Incompat::CASEFOLD));
    if is_copied || has_folded(&volume)? {
        change("encoding of names set to UTF-8, the only one", &|sb| sb.s_encoding.set(ENCODING_UTF8))?;
    } else {
        change("feature casefold removed: no directory uses it", &|sb| {
            sb.set_incompat(sb.incompat().difference(Incompat::CASEFOLD));
            sb.s_encoding.set(0);
        })?;
    }
    Ok(())
}

/// Whether bigalloc is set by mistake: clusters are blocks, and a backup lacks the feature. Without
/// a backup, the other fields decide.
fn has_stray_bigalloc(sb: &RawSuperblock, copy: Option<&RawSuperblock>) -> bool {
    let is_lacking = copy.map(|copy| !copy.ro_compat().contains(RoCompat::BIGALLOC));
    constants::has_block_clusters(sb) && is_lacking.unwrap_or_else(|| constants::refutes_bigalloc(sb))
}

/// Whether an inode in use with a correct checksum has the casefold flag.
fn has_folded(volume: &Volume<'_>) -> Result<bool, DeviceError> {
    for (group, known) in volume.geometry.all_groups().zip(&volume.groups) {
        for index in 0..known.inodes_used {
            let inode: InodeNr = volume.geometry.inode_at(group, index);
            let slot = InodeSlot::new(volume.inode(inode)?);
            let raw = slot.raw();
            let is_folded = raw.i_links_count.get() > 0 && raw.flags().contains(InodeFlags::CASEFOLD);
            if is_folded && volume.checksums.verify_inode(inode, &slot).is_ok() {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
