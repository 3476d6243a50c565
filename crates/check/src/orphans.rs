//! Inodes whose deletion or truncation must be finished: the list through the superblock, and the
//! orphan file.

use std::collections::BTreeSet;

use blockyard_disk::checksum::verify_orphan_block;
use blockyard_disk::inode::{FileType, InodeFlags, InodeSlot};
use blockyard_disk::num::usize_from_u32;
use blockyard_disk::orphan_file::OrphanBlock;
use blockyard_disk::{BlockNr, Compat, InodeNr, RoCompat};

use crate::code::Code;
use crate::finding::{Sink, Site};
use crate::map::{Budget, NoClaims, Run, Walk, walk_extents, walk_indirect};
use crate::volume::Volume;

/// Reads the orphan list and the orphan file, and reports the inodes that they name. Returns those
/// that are in use: the rules about deletion times and names do not apply to them.
pub(crate) fn collect(volume: &Volume<'_>, sink: &mut Sink) -> BTreeSet<u32> {
    let mut orphans = BTreeSet::new();
    walk_list(volume, &mut orphans, sink);
    walk_file(volume, &mut orphans, sink);
    debug_assert!(orphans.iter().all(|&inode| plausible(volume, inode)), "an impossible orphan");
    orphans.retain(|&inode| is_pending(volume, InodeNr::new(inode), sink));
    orphans
}

/// Reports an orphan, and returns whether it is in use. Unless the journal was replayed, an orphan
/// makes the file system unclean in two cases:
/// - It has no links, but is in use.
/// - It has links, and its `i_dtime` is not 0. In the orphan list, `i_dtime` is the number of the
///   next orphan. So the last orphan of the list, with 0, is no error if it has links.
fn is_pending(volume: &Volume<'_>, inode: InodeNr, sink: &mut Sink) -> bool {
    let Ok(slot) = volume.inode(inode) else { return false };
    let raw = InodeSlot::new(&slot[..]);
    let raw = raw.raw();
    let linked = raw.i_links_count.get() > 0;
    let deleting = !linked && raw.i_mode.get() != 0 && is_allocated(volume, inode);
    let begun = deleting || linked && raw.i_dtime.get() != 0;
    // Whoever replays the journal also finishes these deletions and truncations, so after a replay
    // they are no error.
    let code = if begun && !volume.is_replayed { Code::ORPHAN_UNFINISHED } else { Code::ORPHAN_PENDING };
    sink.add(code, Site::inode(inode), "");
    linked || deleting
}

/// Whether the inode bitmap says that an inode is in use.
fn is_allocated(volume: &Volume<'_>, inode: InodeNr) -> bool {
    let (group, index) = volume.geometry.locate_inode(inode);
    let bitmap = volume.block(volume.group_of(group).desc.inode_bitmap()).unwrap_or_default();
    bitmap.get(usize_from_u32(index / 8)).is_some_and(|byte| byte >> (index % 8) & 1 == 1)
}

/// Whether an inode with this number can be an orphan.
fn plausible(volume: &Volume<'_>, inode: u32) -> bool {
    inode >= volume.first_inode() && inode <= volume.geometry.inodes_count()
}

fn walk_list(volume: &Volume<'_>, orphans: &mut BTreeSet<u32>, sink: &mut Sink) {
    let mut next = volume.sb.s_last_orphan.get();
    let mut code = Code::ORPHAN_HEAD;
    // Terminates: no inode is inserted twice.
    while next != 0 {
        if !plausible(volume, next) || !orphans.insert(next) {
            sink.add(code, Site::NOWHERE, format!("inode {next}"));
            return;
        }
        let Ok(slot) = volume.inode(InodeNr::new(next)) else { return };
        next = InodeSlot::new(&slot[..]).raw().i_dtime.get();
        code = Code::ORPHAN_LINK;
    }
}

fn walk_file(volume: &Volume<'_>, orphans: &mut BTreeSet<u32>, sink: &mut Sink) {
    let present = volume.ro_compat.contains(RoCompat::ORPHAN_PRESENT);
    if !volume.compat.contains(Compat::ORPHAN_FILE) {
        if present {
            sink.add(Code::ORPHAN_PRESENT_NO_FILE, Site::NOWHERE, "");
        }
        return;
    }
    if !volume.compat.contains(Compat::HAS_JOURNAL) {
        sink.add(Code::ORPHAN_FILE_NO_JOURNAL, Site::NOWHERE, "");
    }
    let inode = InodeNr::new(volume.sb.s_orphan_file_inum.get());
    let site = Site::inode(inode);
    let slot = if plausible(volume, inode.raw()) { volume.inode(inode).ok() } else { None };
    let Some(slot) = slot else {
        return sink.add(Code::ORPHAN_FILE_MODE, site, "s_orphan_file_inum is no inode");
    };
    let slot = InodeSlot::new(&slot[..]);
    if slot.raw().file_type() != Some(FileType::Regular) {
        return sink.add(Code::ORPHAN_FILE_MODE, site, "");
    }
    let runs = file_runs(volume, inode, &slot);
    let size = slot.raw().size();
    let bits = volume.geometry.block_bits();
    let mapped: u64 = runs.iter().map(|run| run.length).sum();
    if size == 0 || size >> bits << bits != size || size >> bits > 512 {
        return sink.add(Code::ORPHAN_FILE_SIZE, site, format!("{size} bytes"));
    }
    if mapped < size >> bits {
        sink.add(Code::ORPHAN_FILE_HOLE, site, "");
    }
    let seed = volume.checksums.inode_seed(inode, slot.raw().i_generation.get());
    let mut slots = 0;
    for run in &runs {
        for index in 0..run.length.min(512) {
            let site = site.at_logical(run.logical + index);
            slots += read_block(volume, seed, BlockNr::new(run.physical + index), site, orphans, sink);
        }
    }
    // A file system that needed a replay was in use, so ORPHAN_PRESENT may be set without orphans.
    if present && slots == 0 && !volume.is_replayed {
        sink.add(Code::ORPHAN_PRESENT_EMPTY, site, "");
    }
    if !present && slots > 0 {
        sink.add(Code::ORPHAN_FILE_ENTRY, site, "");
    }
}

/// Reads one block; returns how many slots are in use.
fn read_block(
    volume: &Volume<'_>,
    seed: Option<u32>,
    place: BlockNr,
    site: Site,
    orphans: &mut BTreeSet<u32>,
    sink: &mut Sink,
) -> u32 {
    let site = site.at_block(place);
    let Ok(bytes) = volume.block(place) else {
        sink.add(Code::MAP_READ, site, "");
        return 0;
    };
    let Ok(block) = OrphanBlock::parse(&bytes) else {
        sink.add(Code::ORPHAN_FILE_MAGIC, site, "");
        return 0;
    };
    let mut slots = 0;
    // Without the feature metadata_csum, the field for the checksum is zero.
    let is_wrong = match seed {
        Some(_) => verify_orphan_block(seed, place, &bytes).is_err(),
        None => !bytes.ends_with(&[0; 4]),
    };
    if is_wrong {
        sink.add(Code::ORPHAN_FILE_CHECKSUM, site, "");
    }
    for inode in block.inodes() {
        slots += 1;
        if plausible(volume, inode.raw()) {
            orphans.insert(inode.raw());
        } else {
            sink.add(Code::ORPHAN_LINK, site, format!("inode {inode}"));
        }
    }
    slots
}

/// The runs that a file maps. The walk reports no findings and claims no clusters.
pub(crate) fn file_runs(volume: &Volume<'_>, inode: InodeNr, slot: &InodeSlot<&[u8]>) -> Vec<Run> {
    let raw = slot.raw();
    let seed = volume.checksums.inode_seed(inode, raw.i_generation.get());
    let (mut sink, mut claims, mut budget) = (Sink::default(), NoClaims, Budget::of(volume));
    let mut walk = Walk::new(volume, &[], inode, seed, &mut sink, &mut claims, &mut budget);
    walk.keep_runs = true;
    if raw.flags().contains(InodeFlags::EXTENTS) {
        walk_extents(&mut walk, &raw.i_block);
    } else {
        walk_indirect(&mut walk, &raw.block_words());
    }
    walk.runs
}
