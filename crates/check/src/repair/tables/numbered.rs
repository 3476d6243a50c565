//! Finds the first inode table by one of its later blocks. The checksum of an inode covers its
//! number, so the checksum tells which block of the table the inode is in.

use blockyard_disk::inode::InodeSlot;
use blockyard_disk::num::{u32_from_u64, u32_from_usize};
use blockyard_disk::{BlockNr, InodeNr};

use super::{FIRST, RATED_MAX, candidates, rate_part};
use crate::repair::editor::Editor;

/// How many blocks of the table after its first one are tried.
const INDEX_MAX: u32 = 8;

/// The block in which the first table begins, inferred from the blocks that follow, because the
/// first block may be destroyed. `None` if inodes have no checksums, or if no place fits.
pub(super) fn find_first(ed: &Editor<'_, '_>) -> Option<BlockNr> {
    let volume = ed.volume();
    volume.checksums.fs_seed()?;
    let begin = |block: u64, bytes: &[u8]| block.checked_sub(u64::from(index_of(ed, bytes)?));
    let places = candidates(ed, begin).into_iter();
    // For the same reason, candidates are rated by the inodes after the first block.
    let per_block = u32_from_usize(volume.block_size() / usize::from(volume.geometry.inode_size()));
    let rated = places.map(|place| (rate_part(ed, FIRST, place, per_block..RATED_MAX), place));
    rated.filter(|one| one.0 > 0).max_by_key(|one| (one.0, std::cmp::Reverse(one.1))).map(|one| one.1)
}

/// Which block of the first table has this content, by the checksum of its first inode in use. The
/// first block of the table is not tried.
fn index_of(ed: &Editor<'_, '_>, bytes: &[u8]) -> Option<u32> {
    let volume = ed.volume();
    let size = usize::from(volume.geometry.inode_size());
    let per_block = u32_from_usize(bytes.len() / size);
    let used = |slot: &InodeSlot<&[u8]>| {
        slot.raw().file_type().is_some()
            && slot.raw().i_links_count.get() > 0
            && slot.raw().i_dtime.get() == 0
    };
    let slots = bytes.chunks_exact(size).map(InodeSlot::new);
    let (nth, slot) = (0u32..).zip(slots).find(|(_, slot)| used(slot))?;
    let end = INDEX_MAX.min(u32_from_u64(volume.geometry.inode_table_blocks()) - 1);
    (1..=end).find(|index| {
        let inode = InodeNr::new(index * per_block + nth + 1);
        volume.checksums.verify_inode(inode, &slot).is_ok()
    })
}
