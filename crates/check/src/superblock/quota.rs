//! The quota files that the superblock names.

use blockyard_disk::inode::InodeSlot;
use blockyard_disk::num::{u64_from_u32, u64_from_usize};
use blockyard_disk::quota::{BLOCK, QuotaFile, QuotaType};
use blockyard_disk::superblock::RawSuperblock;
use blockyard_disk::{InodeNr, RoCompat};

use crate::orphans::file_runs;
use crate::volume::Volume;

/// The inodes that the superblock names as quota files, with or without the feature; 0 for none.
pub(crate) fn quota_inodes(sb: &RawSuperblock) -> [u32; 3] {
    [sb.s_usr_quota_inum, sb.s_grp_quota_inum, sb.s_prj_quota_inum].map(|inode| inode.get())
}

/// Whether the superblock may name an inode as the quota file of a type; inode 0 means no file.
pub(crate) fn is_possible(volume: &Volume<'_>, kind: QuotaType, inode: u32) -> bool {
    let quota = volume.ro_compat.contains(RoCompat::QUOTA);
    let used = quota && (kind != QuotaType::Project || volume.ro_compat.contains(RoCompat::PROJECT));
    let spare = !used && matches!(inode, 3 | 4);
    let ordinary = inode >= volume.first_inode() && inode <= volume.geometry.inodes_count();
    let free = ordinary && !(quota && is_of_others(volume, kind, InodeNr::new(inode)));
    inode == 0 || Some(inode) == usual(kind) || spare || free
}

/// The inode reserved for the quota file of a type.
pub(crate) fn usual(kind: QuotaType) -> Option<u32> {
    match kind {
        QuotaType::User => Some(3),
        QuotaType::Group => Some(4),
        QuotaType::Project => None,
    }
}

/// Whether an inode is in use for something else than a quota file of this type. False before the
/// descriptors are read, since no inode can be read then.
fn is_of_others(volume: &Volume<'_>, kind: QuotaType, inode: InodeNr) -> bool {
    if volume.groups.is_empty() {
        return false;
    }
    let slot = volume.inode(inode).map(InodeSlot::new);
    slot.is_ok_and(|slot| slot.raw().i_links_count.get() > 0) && !holds(volume, kind, inode)
}

/// Whether an inode, whatever its mode, holds a quota file of a type: either the magic number is
/// right, or the rest of the file has no defect.
pub(crate) fn holds(volume: &Volume<'_>, kind: QuotaType, inode: InodeNr) -> bool {
    let Ok(slot) = volume.inode(inode).map(InodeSlot::new) else { return false };
    let file = content(volume, inode, &slot);
    file.header.dqh_magic.get() == kind.magic() || file.defect.is_none()
}

/// The content of an inode, read as that of a quota file.
pub(crate) fn content(volume: &Volume<'_>, inode: InodeNr, slot: &InodeSlot<Vec<u8>>) -> QuotaFile {
    let bits = volume.geometry.block_bits();
    let runs = file_runs(volume, inode, &InodeSlot::new(slot.bytes()));
    debug_assert!(runs.is_sorted_by_key(|run| run.logical), "runs of inode {inode} out of order");
    let read = &mut |number: u32| {
        let at = u64_from_u32(number) * u64_from_usize(BLOCK);
        let mut block = [0; BLOCK];
        let after = runs.partition_point(|run| run.logical <= at >> bits);
        let run = after.checked_sub(1).map(|nth| &runs[nth]);
        let run = run.filter(|run| !run.unwritten && at >> bits < run.logical + run.length);
        if let Some(run) = run {
            let place = ((run.physical + (at >> bits) - run.logical) << bits) + at % (1 << bits);
            volume.device.read_at(place, &mut block).ok()?;
        }
        Some(block)
    };
    QuotaFile::read(slot.raw().size(), read)
}
