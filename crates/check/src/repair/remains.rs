//! What is left of a directory whose inode is cleared or gone: the names in it, which its files get
//! in lost+found.

use std::collections::BTreeSet;

use blockyard_disk::inode::InodeFlags;
use blockyard_disk::num::{u64_from_u32, usize_from_u64};
use blockyard_disk::{BlockNr, InodeNr};

use super::attributes;
use super::editor::{Editor, Slot};
use super::entries::{Name, entries};
use super::maps;

/// The most blocks that are read for names.
const BLOCKS_MAX: u64 = 4096;
/// The most clusters that nobody claims and that are read for names.
const CLUSTERS_MAX: usize = 1 << 16;

/// Remembers the names in a directory that is about to be cleared.
pub(super) fn remember(ed: &mut Editor<'_, '_>, inode: InodeNr, slot: &Slot) {
    let raw = slot.raw();
    let names: Vec<Name> = if raw.flags().contains(InodeFlags::INLINE_DATA) {
        let tail = attributes::inline_tail(slot);
        [&raw.i_block[4..], &tail].into_iter().flat_map(|area| entries(ed, area, &mut false)).collect()
    } else {
        let map = maps::read(ed, inode, raw);
        let blocks = map.runs.iter().flat_map(|run| run.physical..run.physical + run.length.min(BLOCKS_MAX));
        let blocks = blocks.take(usize_from_u64(BLOCKS_MAX));
        let read = blocks.filter_map(|place| ed.volume().block(BlockNr::new(place)).ok());
        read.flat_map(|block| entries(ed, &block, &mut false)).collect()
    };
    keep(ed, Some(inode), &names);
}

/// Remembers names, but not `.` and `..`.
fn keep(ed: &mut Editor<'_, '_>, directory: Option<InodeNr>, names: &[Name]) {
    let others = names.iter().filter(|name| !is_dot(name));
    others.for_each(|name| ed.log.remember(name.inode, directory, &name.bytes));
}

fn is_dot(name: &Name) -> bool {
    matches!(&name.bytes[..], b"." | b"..")
}

/// Remembers the names of lost inodes in blocks that the bitmap calls used although nobody claims
/// them: directories whose inodes are gone leave such blocks.
pub(super) fn search(ed: &mut Editor<'_, '_>, lost: &[u32]) {
    let nameless = lost.iter().copied().filter(|inode| ed.log.remembered(*inode).is_none());
    let nameless: BTreeSet<u32> = nameless.collect();
    if nameless.is_empty() {
        return;
    }
    let volume = ed.volume();
    let ratio = u64_from_u32(volume.geometry.cluster_ratio());
    let first = volume.geometry.first_data_block().raw();
    let clusters = (volume.geometry.blocks_count().raw() - first).div_ceil(ratio);
    let leaked: Vec<u64> = (0..clusters).filter(|at| ed.is_leaked(*at)).take(CLUSTERS_MAX).collect();
    let blocks = leaked.into_iter().flat_map(|at| first + at * ratio..first + (at + 1) * ratio);
    for place in blocks.map(BlockNr::new).filter(|place| volume.contains(*place)) {
        let Ok(block) = volume.block(place) else { continue };
        let mut broken = false;
        let names = entries(ed, &block, &mut broken);
        // Only the first block of a directory says whose it is.
        let own = names.iter().find(|name| name.bytes == b".").map(|own| InodeNr::new(own.inode));
        // If the chain of entries is broken, the block holds something else.
        let wanted = names.into_iter().filter(|name| !broken && nameless.contains(&name.inode));
        keep(ed, own, &wanted.collect::<Vec<_>>());
    }
}
