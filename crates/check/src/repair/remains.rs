//! What is left of a directory whose inode is cleared: the names in it, which its files get in
//! lost+found.

use blockyard_disk::inode::InodeFlags;
use blockyard_disk::num::usize_from_u64;
use blockyard_disk::{BlockNr, InodeNr};

use super::attributes;
use super::editor::{Editor, Slot};
use super::entries::{Name, entries};
use super::maps;

/// Most blocks that are read for names.
const BLOCKS_MAX: u64 = 4096;

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
    for name in names.into_iter().filter(|name| name.bytes != b"." && name.bytes != b"..") {
        ed.log.remember(name.inode, &name.bytes);
    }
}
