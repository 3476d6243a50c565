//! Group descriptors that name another place for the inode table than their backups do. There may
//! be no checksum that tells which is right, and both places may be possible. So the content of the
//! two places decides. A wrong place may hold the inodes of another group, or the right inodes
//! under shifted numbers. A repair that took such a place would lose sound files. If no backup is
//! better, the places where mke2fs would put the tables are compared in a similar way.

use std::collections::BTreeMap;

use blockyard_device::DeviceError;
use blockyard_disk::group_desc::{GroupFlags, RawGroupDesc};
use blockyard_disk::inode::InodeSlot;
use blockyard_disk::num::{u64_from_u32, usize_from_u32};
use blockyard_disk::{BlockCount, BlockNr, GroupNr};

use super::{put_places, put_table, rate, usual_places};
use crate::code::Code;
use crate::finding::Site;
use crate::repair::bitmaps::descriptor_at;
use crate::repair::editor::Editor;
use crate::repair::log::Cost;

/// A descriptor, and how credible it is.
struct Word {
    desc: RawGroupDesc,
    is_sealed: bool,
    rating: i64,
    agreeing: usize,
}

impl Word {
    fn of(ed: &Editor<'_, '_>, group: GroupNr, raw: &[u8]) -> Self {
        let desc = RawGroupDesc::from_disk(raw);
        Self {
            desc,
            is_sealed: ed.volume().checksums.verify_group_desc(group, raw).is_ok(),
            rating: rate(ed, group, desc.inode_table()),
            agreeing: agreeing(ed, &desc),
        }
    }

    /// Whether this descriptor is more credible than another one for the same group.
    fn is_better_than(&self, other: &Self) -> bool {
        if self.is_sealed != other.is_sealed {
            return self.is_sealed && self.rating >= other.rating;
        }
        // If a table is shifted, garbage at its end may look like inodes and raise the rating. The
        // bitmap can contradict that for every slot, so it counts too.
        self.score() > other.score()
    }

    fn score(&self) -> i64 {
        sum(self.rating, self.agreeing)
    }
}

/// How credible the place of a table is: the rating of its inodes plus the number of slots that
/// match the bitmap.
pub(super) fn score(ed: &Editor<'_, '_>, group: GroupNr, desc: &RawGroupDesc) -> i64 {
    sum(rate(ed, group, desc.inode_table()), agreeing(ed, desc))
}

fn sum(rating: i64, agreeing: usize) -> i64 {
    rating.saturating_add(i64::try_from(agreeing).unwrap_or(i64::MAX))
}

/// Compares descriptors with their first backups. If a backup names another table and is more
/// credible, takes the places of the table and of the bitmaps from the backup. Returns whether any
/// were taken.
pub(super) fn take_places(ed: &mut Editor<'_, '_>) -> Result<bool, DeviceError> {
    let volume = ed.volume();
    let mut taken = Vec::new();
    for index in 0..volume.desc_blocks() {
        let Some(copy) = copy_of(ed, index).filter(|copy| volume.contains(*copy)) else { continue };
        let Ok(copies) = volume.block(copy) else { continue };
        let first = index * volume.descs_per_block();
        let known = usize_from_u32(volume.geometry.groups() - first);
        let pairs = copies.chunks_exact(volume.desc_size).take(known).zip(first..);
        for (raw, group) in pairs.map(|(raw, nr)| (raw, GroupNr::new(nr))) {
            let table = RawGroupDesc::from_disk(raw).inode_table();
            if table == volume.group_of(group).desc.inode_table() || !is_possible(ed, table) {
                continue;
            }
            let mut here = vec![0; volume.desc_size];
            volume.device.read_at(descriptor_at(volume, group), &mut here)?;
            let word = Word::of(ed, group, raw);
            if word.is_better_than(&Word::of(ed, group, &here)) {
                taken.push((group, word.desc));
            }
        }
    }
    for (group, desc) in &taken {
        put_places(ed, *group, *desc)?;
        let what = format!(
            "positions taken from the copy of the descriptor, inode table at block {}",
            desc.inode_table()
        );
        ed.add(Code::INODE_TABLE_PLACE, Site::group(*group), Cost::Nothing, what);
    }
    Ok(!taken.is_empty())
}

/// If a descriptor names no place that mke2fs would give its table, takes such a place if that
/// place is more credible. Returns whether any was taken.
pub(super) fn take_usual_places(ed: &mut Editor<'_, '_>) -> Result<bool, DeviceError> {
    let mut taken = Vec::new();
    for group in (1..ed.volume().geometry.groups()).map(GroupNr::new) {
        let known = ed.volume().group_of(group);
        // Without a valid bitmap (INODE_UNINIT) there is nothing to compare inodes with. A table
        // with an impossible place is searched for later.
        if !known.inode_table_ok || known.desc.flags().contains(GroupFlags::INODE_UNINIT) {
            continue;
        }
        let here = known.desc;
        let places = usual_places(ed, group, &BTreeMap::new());
        if places.contains(&here.inode_table()) {
            continue;
        }
        let agrees = |place| {
            let mut desc = here;
            desc.set_inode_table(place);
            agreeing(ed, &desc)
        };
        let (rating, agreed) = (rate(ed, group, here.inode_table()), agrees(here.inode_table()));
        let slots = ed.volume().geometry.inodes_per_group().min(super::RATED_MAX);
        // The table stays in its place if more inodes there are right than wrong, or if every slot
        // there matches the bitmap.
        if rating > 0 || agreed == usize_from_u32(slots) {
            continue;
        }
        let better = places.into_iter().filter(|place| {
            !is_anothers(ed, group, *place) && rate(ed, group, *place) > 0 && agrees(*place) > agreed
        });
        taken.extend(better.max_by_key(|place| agrees(*place)).map(|place| (group, place)));
    }
    for (group, place) in &taken {
        put_table(ed, *group, *place)?;
        let what = format!("inode table found at block {place}");
        ed.add(Code::INODE_TABLE_PLACE, Site::group(*group), Cost::Nothing, what);
    }
    Ok(!taken.is_empty())
}

/// Whether a table at `place` would overlap the table of another group.
fn is_anothers(ed: &Editor<'_, '_>, group: GroupNr, place: BlockNr) -> bool {
    let volume = ed.volume();
    let table = volume.geometry.inode_table_blocks();
    let others = (0..volume.geometry.groups()).map(GroupNr::new).filter(|other| *other != group);
    let known = others.map(|other| volume.group_of(other)).filter(|other| other.inode_table_ok);
    known.map(|other| other.desc.inode_table().raw()).any(|other| other.abs_diff(place.raw()) < table)
}

/// Where the first backup of descriptor block `index` lies.
fn copy_of(ed: &Editor<'_, '_>, index: u32) -> Option<BlockNr> {
    let volume = ed.volume();
    if index >= volume.old_desc_blocks() {
        return volume.second_meta_block(index);
    }
    let group = volume.superblock_groups().into_iter().find(|group| group.raw() != 0)?;
    Some(volume.geometry.group_first_block(group) + BlockCount::new(1 + u64_from_u32(index)))
}

fn is_possible(ed: &Editor<'_, '_>, table: BlockNr) -> bool {
    table.raw() > 0 && ed.volume().contains_range(table, ed.volume().geometry.inode_table_blocks())
}

/// How many slots of a table match the bitmap of the same descriptor: in use where the bitmap says
/// so, and free elsewhere. Only the slots that [`rate`] looks at are counted.
fn agreeing(ed: &Editor<'_, '_>, desc: &RawGroupDesc) -> usize {
    let volume = ed.volume();
    let (bitmap, table) = (desc.inode_bitmap(), desc.inode_table());
    if !volume.contains(bitmap) || !is_possible(ed, table) {
        return 0;
    }
    let size = usize::from(volume.geometry.inode_size());
    let mut slots = vec![0; usize_from_u32(volume.geometry.inodes_per_group().min(super::RATED_MAX)) * size];
    let at = table.raw() << volume.geometry.block_bits();
    let (Ok(bitmap), Ok(())) = (volume.block(bitmap), volume.device.read_at(at, &mut slots)) else {
        return 0;
    };
    let is_used = |slot: &[u8]| InodeSlot::new(slot).raw().i_links_count.get() != 0;
    let is_marked = |index: usize| bitmap.get(index / 8).is_some_and(|byte| byte >> (index % 8) & 1 == 1);
    slots.chunks_exact(size).enumerate().filter(|(index, slot)| is_used(slot) == is_marked(*index)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_of_which_every_slot_is_as_its_bitmap_says_is_better() {
        let word = |rating, agreeing| Word {
            desc: RawGroupDesc::from_disk(&[0; 32]),
            is_sealed: true,
            rating,
            agreeing,
        };
        // Seen on ext3: a table shifted by a block, followed by what looked like inodes.
        let (right, shifted) = (word(2, 2048), word(4, 2043));
        assert!(right.is_better_than(&shifted) && !shifted.is_better_than(&right));
        assert!(!right.is_better_than(&word(2, 2048)), "nothing speaks for another place");
    }
}
