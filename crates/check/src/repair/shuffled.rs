//! Blocks of inode tables that were swapped with each other, or written over another block.
//!
//! The checksum of an inode covers its number. A block is a stray if most of its inodes are wrong
//! where the block lies, and right with the numbers of another block, its home. If a sound block
//! lies at the home, the stray is only a copy, and is cleared. Otherwise the stray is moved home.

use std::collections::BTreeSet;

use blockyard_device::DeviceError;
use blockyard_disk::inode::InodeSlot;
use blockyard_disk::num::{u32_from_u64, u32_from_usize, u64_from_u32};
use blockyard_disk::{BlockCount, BlockNr, GroupNr, InodeNr};

use super::editor::Editor;
use super::log::Cost;
use crate::code::Code;
use crate::finding::Site;

/// If more blocks than this hold wrong inodes, none of them is moved or cleared.
const BLOCKS_MAX: usize = 64;
/// If all inode tables together have more blocks than this, only some of the blocks are searched.
const PLACES_MAX: u64 = 1 << 18;

/// A block of an inode table: its group and its index in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TableBlock {
    pub(super) group: GroupNr,
    pub(super) index: u32,
}

impl TableBlock {
    fn place(self, ed: &Editor<'_, '_>) -> BlockNr {
        let blocks = ed.volume().geometry.inode_table_blocks();
        assert!(u64_from_u32(self.index) < blocks, "block {} of a table of {blocks}", self.index);
        let table = ed.volume().group_of(self.group).desc.inode_table();
        table + BlockCount::new(u64_from_u32(self.index))
    }

    fn first_inode(self, ed: &Editor<'_, '_>) -> InodeNr {
        let geometry = &ed.volume().geometry;
        let per_block = geometry.block_size() / usize::from(geometry.inode_size());
        geometry.inode_at(self.group, self.index * u32_from_usize(per_block))
    }
}

/// Blocks of inode tables that hold several inodes with wrong checksums. Returns none unless the
/// first block of the first table is such a block or is blank, because only the inodes of that
/// block are needed before pass 1.
///
/// If all tables together have at most [`PLACES_MAX`] blocks, blocks of never-used inodes are
/// looked at, too, although pass 1 does not scan them. Such a block is returned if it belongs at
/// the start of the first table.
pub(super) fn wrong_with_first(ed: &Editor<'_, '_>) -> Vec<TableBlock> {
    let first = TableBlock { group: GroupNr::new(0), index: 0 };
    if ed.volume().checksums.fs_seed().is_none() || !(wrong_in(ed, first) > 1 || is_blank(ed, first)) {
        return Vec::new();
    }
    let geometry = &ed.volume().geometry;
    let per_block = u32_from_usize(geometry.block_size() / usize::from(geometry.inode_size()));
    let table = geometry.inode_table_blocks();
    let is_small = u64_from_u32(geometry.groups()).saturating_mul(table) <= PLACES_MAX;
    let all = geometry.all_groups().flat_map(|group| {
        let used = ed.volume().group_of(group).inodes_used.div_ceil(per_block);
        let looked_at = if is_small { u32_from_u64(table) } else { used };
        (0..looked_at).map(move |index| (TableBlock { group, index }, index < used))
    });
    let is_wrong = |block: TableBlock, used: bool| match used {
        true => wrong_in(ed, block) > 1,
        false => ed.volume().block(block.place(ed)).is_ok_and(|bytes| belongs(ed, &bytes, first)),
    };
    all.filter(|(block, used)| is_wrong(*block, *used)).map(|found| found.0).take(BLOCKS_MAX + 1).collect()
}

/// Whether a block holds only zeroes.
fn is_blank(ed: &Editor<'_, '_>, block: TableBlock) -> bool {
    ed.volume().block(block.place(ed)).is_ok_and(|bytes| bytes.iter().all(|byte| *byte == 0))
}

/// How many inodes of a block have wrong checksums.
pub(super) fn wrong_in(ed: &Editor<'_, '_>, block: TableBlock) -> usize {
    let volume = ed.volume();
    let Ok(bytes) = volume.block(block.place(ed)) else { return 0 };
    let size = usize::from(volume.geometry.inode_size());
    debug_assert!(bytes.len().is_multiple_of(size), "inodes of {size} bytes in a block");
    let slots = bytes.chunks_exact(size).zip(block.first_inode(ed).raw()..);
    let used = slots.filter(|(slot, _)| slot.iter().any(|byte| *byte != 0));
    let is_wrong = |slot: &[u8], inode| {
        volume.checksums.verify_inode(InodeNr::new(inode), &InodeSlot::new(slot)).is_err()
    };
    used.filter(|(slot, inode)| is_wrong(slot, *inode)).count()
}

/// Moves blocks home and clears copies; returns whether something was done. `wrong` are blocks with
/// several inodes whose checksums are wrong.
pub(super) fn repair(ed: &mut Editor<'_, '_>, wrong: &[TableBlock]) -> Result<bool, DeviceError> {
    if ed.volume().checksums.fs_seed().is_none() || wrong.len() > BLOCKS_MAX {
        return Ok(false);
    }
    let mut strays = Vec::new();
    for &from in wrong {
        let bytes = ed.volume().block(from.place(ed))?;
        if belongs(ed, &bytes, from) {
            continue;
        }
        if let Some(home) = home_of(ed, &bytes, wrong) {
            strays.push((from, home, bytes));
        }
    }
    let homes: BTreeSet<TableBlock> = strays.iter().map(|stray| stray.1).collect();
    for (from, home, bytes) in &strays {
        let there = ed.volume().block(home.place(ed))?;
        if belongs(ed, &there, *home) {
            let what =
                format!("copy of the table block that begins with inode {} cleared", home.first_inode(ed));
            ed.add(Code::INODE_GARBAGE, site(ed, *from), Cost::Removed, what);
        } else {
            ed.put_block(home.place(ed), bytes)?;
            let what = format!("block of inodes restored from block {}", from.place(ed));
            ed.add(Code::INODE_GARBAGE, site(ed, *home), Cost::Nothing, what);
        }
        if !homes.contains(from) {
            ed.put_block(from.place(ed), &vec![0; ed.volume().block_size()])?;
        }
    }
    Ok(!strays.is_empty())
}

/// The place at which most inodes of a block are right. The places of the `wrong` blocks are tried
/// first, then all places in the inode tables. If the tables have more than [`PLACES_MAX`] blocks,
/// only the places of the `wrong` blocks are tried.
fn home_of(ed: &Editor<'_, '_>, bytes: &[u8], wrong: &[TableBlock]) -> Option<TableBlock> {
    if let Some(home) = wrong.iter().find(|home| belongs(ed, bytes, **home)) {
        return Some(*home);
    }
    let geometry = &ed.volume().geometry;
    let table = geometry.inode_table_blocks();
    if u64_from_u32(geometry.groups()).saturating_mul(table) > PLACES_MAX {
        return None;
    }
    let mut all = geometry
        .all_groups()
        .flat_map(|group| (0..table).map(move |index| TableBlock { group, index: u32_from_u64(index) }));
    all.find(|home| belongs(ed, bytes, *home))
}

fn site(ed: &Editor<'_, '_>, block: TableBlock) -> Site {
    Site::inode(block.first_inode(ed)).at_block(block.place(ed))
}

/// Whether most inodes of a block, and at least two, have right checksums at the place `home`.
fn belongs(ed: &Editor<'_, '_>, bytes: &[u8], home: TableBlock) -> bool {
    let volume = ed.volume();
    let size = usize::from(volume.geometry.inode_size());
    let first = home.first_inode(ed).raw();
    let slots = bytes.chunks_exact(size).zip(first..);
    let used = slots.filter(|(slot, _)| slot.iter().any(|byte| *byte != 0));
    let (mut all, mut right) = (0u32, 0u32);
    for (slot, inode) in used {
        all += 1;
        let sound = inode <= volume.geometry.inodes_count()
            && volume.checksums.verify_inode(InodeNr::new(inode), &InodeSlot::new(slot)).is_ok();
        right += u32::from(sound);
    }
    right > 1 && right * 2 > all
}
