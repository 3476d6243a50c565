//! Finishes deletions and truncations that were begun, as a mount would.

use std::collections::BTreeSet;

use blockyard_device::DeviceError;
use blockyard_disk::checksum::seal_orphan_block;
use blockyard_disk::inode::{FileType, InodeFlags};
use blockyard_disk::orphan_file;
use blockyard_disk::{BlockNr, Compat, InodeNr, RoCompat};
use zerocopy::little_endian::U32;

use super::editor::Editor;
use super::inode;
use super::log::Cost;
use super::maps;
use crate::code::Code;
use crate::finding::Site;

/// Finishes the deletions and truncations of `orphans`, then empties the orphan list and the orphan
/// file.
pub(crate) fn finish(ed: &mut Editor<'_, '_>, orphans: &BTreeSet<u32>) -> Result<(), DeviceError> {
    for &number in orphans {
        let number = InodeNr::new(number);
        let slot = ed.slot(number)?;
        if slot.raw().i_links_count.get() == 0 {
            inode::clear(ed, number, Code::ORPHAN_UNFINISHED)?;
        } else {
            truncate(ed, number)?;
        }
    }
    ed.change_superblock(|sb| {
        sb.s_last_orphan = U32::new(0);
        sb.set_ro_compat(sb.ro_compat().difference(RoCompat::ORPHAN_PRESENT));
    })?;
    ed.add(Code::ORPHAN_UNFINISHED, Site::NOWHERE, Cost::Nothing, "orphan list emptied");
    empty_file(ed)
}

fn truncate(ed: &mut Editor<'_, '_>, number: InodeNr) -> Result<(), DeviceError> {
    let mut slot = ed.slot(number)?;
    let bits = ed.volume().geometry.block_bits();
    let end = slot.raw().size().div_ceil(1 << bits);
    slot.raw_mut().i_dtime = U32::new(0);
    let is_mapped = !slot.raw().flags().contains(InodeFlags::INLINE_DATA);
    if slot.raw().file_type() == Some(FileType::Regular) && is_mapped {
        let mut runs = maps::read(ed, number, slot.raw()).runs;
        let before = runs.len();
        let is_longer = runs.iter().any(|run| run.logical + run.length > end);
        runs.retain(|run| run.logical < end);
        for run in &mut runs {
            run.length = run.length.min(end - run.logical);
        }
        if is_longer && maps::write(ed, number, &mut slot, &runs)?.is_ok() {
            let what = format!("truncation finished: {} of {before} runs kept", runs.len());
            ed.add(Code::ORPHAN_UNFINISHED, Site::inode(number), Cost::Nothing, what);
        }
    }
    ed.put_slot(number, &mut slot)
}

/// Empties the blocks of the orphan file. A valid orphan file has at most 512 blocks, so of each
/// run only the first 512 are written: a damaged map may claim more.
pub(crate) fn empty_file(ed: &mut Editor<'_, '_>) -> Result<(), DeviceError> {
    let volume = ed.volume();
    let number = InodeNr::new(volume.sb.s_orphan_file_inum.get());
    let known = number.raw() > 0 && number.raw() <= volume.geometry.inodes_count();
    if !volume.compat.contains(Compat::ORPHAN_FILE) || !known {
        return Ok(());
    }
    let slot = ed.slot(number)?;
    let seed = volume.checksums.inode_seed(number, slot.raw().i_generation.get());
    for run in maps::read(ed, number, slot.raw()).runs {
        for place in (run.physical..run.physical + run.length.min(512)).map(BlockNr::new) {
            let mut block = vec![0; volume.block_size()];
            let tail = block.len() - 8;
            block[tail..tail + 4].copy_from_slice(&orphan_file::MAGIC.to_le_bytes());
            seal_orphan_block(seed, place, &mut block);
            if volume.block(place).is_ok_and(|old| old != block) {
                ed.put_block(place, &block)?;
            }
        }
    }
    Ok(())
}
