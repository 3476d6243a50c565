//! Inode tables whose descriptors name an impossible or wrong place.
//!
//! If a copy of the descriptor names a better place, that place is taken. Otherwise the table is
//! searched for:
//!
//! - The first group's table is found by the inode of the root, or else by inodes whose checksums
//!   cover their numbers, or else by its reserved inodes.
//! - For another table, the places where mke2fs may have put it are tried.
//!
//! Journals hold copies of table blocks, and stale copies can be anywhere. So candidates are rated:
//! inodes that are right at their places count for a candidate, wrong ones against it. The best
//! candidate is taken. (If only the reserved inodes are left to judge by, the first candidate that
//! fits is taken.)
//!
//! If a table is not found, an empty one is made. This comes last, when the inodes of the other
//! tables show which blocks are in use: an empty table must not be written over a file's blocks.

mod conflicts;
mod copies;
mod numbered;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use blockyard_device::DeviceError;
use blockyard_disk::extent;
use blockyard_disk::group_desc::{GroupFlags, RawGroupDesc};
use blockyard_disk::inode::{FileType, InodeFlags, InodeSlot};
use blockyard_disk::jbd2::RawHeader;
use blockyard_disk::num::{u32_from_usize, u64_from_u32, u64_from_usize, usize_from_u32, usize_from_u64};
use blockyard_disk::{BlockNr, GroupNr, Incompat, InodeNr};

use super::bitmaps::{self, put_descriptor};
use super::editor::Editor;
use super::landmark;
use super::log::{Cost, Tried};
use crate::block_map::BlockMap;
use crate::code::Code;
use crate::facts::Facts;
use crate::finding::{Finding, Ledger, Site};
use crate::inode::Scan;
use crate::map::Run;
use crate::{inodes, xattr_blocks};

/// Bytes read at a time while looking for a table.
const CHUNK: u64 = 1 << 20;
/// The most inodes of a candidate that are rated.
const RATED_MAX: u32 = 4096;
/// Weight of a reserved inode in a rating if checksums do not cover inode numbers.
const RESERVED_WEIGHT: i64 = 64;
/// The most candidates for the first table: a journal holds many copies of the table's first block.
const CANDIDATES_MAX: usize = 1024;
const FIRST: GroupNr = GroupNr::new(0);
/// Reserved inodes that never have a mode: those for bad blocks, undeletion, snapshots and
/// replicas.
const NEVER_FILES: [u32; 4] = [1, 6, 9, 10];

/// Finds places for inode tables that need one. Returns whether anything was changed.
pub(super) fn place_tables(ed: &mut Editor<'_, '_>, before: &[Finding]) -> Result<bool, DeviceError> {
    if copies::take_places(ed)? || copies::take_usual_places(ed)? {
        return Ok(true);
    }
    let groups = conflicts::displaced(ed, before);
    if !groups.contains(&FIRST) && is_first_elsewhere(ed) {
        let tries = ed.log.try_again(Tried::Table, InodeNr::new(0));
        let here = ed.volume().group_of(FIRST).desc.inode_table();
        let found = if tries == 0 { find_first(ed) } else { None };
        // A copy of the table's first block may lie elsewhere, with other blocks after it. So the
        // inodes after the first block must not be worse there than here.
        let behind = ed.volume().geometry.block_size() / usize::from(ed.volume().geometry.inode_size());
        let rest = |place| rate_part(ed, FIRST, place, u32_from_usize(behind)..RATED_MAX);
        let is_better = |place| rate(ed, FIRST, place) > rate(ed, FIRST, here) && rest(place) >= rest(here);
        if let Some(place) = found.filter(|place| *place != here && is_better(*place)) {
            put_table(ed, FIRST, place)?;
            let what = format!("inode table found at block {place}");
            ed.add(Code::INODE_TABLE_PLACE, Site::group(FIRST), Cost::Nothing, what);
            return Ok(true);
        }
    }
    let kept = conflicts::places(ed).into_iter().filter(|(_, group)| !groups.contains(group));
    let kept = Placed { starts: kept.map(|(place, _)| place).collect(), of: BTreeMap::new() };
    let (mut placed, mut missing) = (kept.clone(), Vec::new());
    let decided = ed.log.actions.len();
    for group in groups {
        let tries = ed.log.try_again(Tried::Table, InodeNr::new(group.raw()));
        let found = if tries == 0 { find(ed, group, &placed) } else { None };
        if let Some(found) = &found {
            placed.insert(group, found.place);
        }
        match found {
            Some(Found { place, holds: Holds::Inodes }) => put_found(ed, group, place)?,
            _ => missing.push(group),
        }
    }
    if ed.log.actions.len() > decided {
        // Tables without inodes wait for the next round. It reads the tables that were found, and
        // so knows which blocks are in use.
        return Ok(true);
    }
    place_empty(ed, missing, kept)
}

fn put_found(ed: &mut Editor<'_, '_>, group: GroupNr, place: BlockNr) -> Result<(), DeviceError> {
    put_table(ed, group, place)?;
    let what = format!("inode table found at block {place}");
    ed.add(Code::INODE_TABLE_PLACE, Site::group(group), Cost::Nothing, what);
    Ok(())
}

/// Places tables in which no inodes were found. `placed` are the tables that stay. Returns whether
/// anything was changed.
///
/// A table is first tried where mke2fs may have put it. It gets such a place if no inode claims the
/// blocks, and if at least as many inodes there are right as wrong. Otherwise an empty table is
/// made in a free run of blocks, if there is one where the table may lie.
fn place_empty(
    ed: &mut Editor<'_, '_>,
    groups: Vec<GroupNr>,
    mut placed: Placed,
) -> Result<bool, DeviceError> {
    let inode = |group: GroupNr| InodeNr::new(group.raw());
    let mut groups = groups;
    groups.retain(|group| ed.log.tries(Tried::EmptyTable, inode(*group)) <= 1);
    if groups.is_empty() {
        return Ok(false);
    }
    let (claimed, facts) = claims(ed);
    if bitmaps::open_named(ed, &facts)? {
        return Ok(true);
    }
    let decided = ed.log.actions.len();
    let try_again = |group: GroupNr| (group, ed.log.try_again(Tried::EmptyTable, inode(group)));
    let groups: Vec<(GroupNr, u32)> = groups.into_iter().map(try_again).collect();
    let (table, mut next) = (ed.volume().geometry.inode_table_blocks(), 0);
    let is_claimed = |block| claimed.is_claimed(claimed.cluster(BlockNr::new(block)));
    let is_unclaimed = |place: &BlockNr| !(place.raw()..place.raw() + table).any(is_claimed);
    for (group, tries) in groups {
        // The first table is not empty: it has the root.
        let may_be_usual = tries == 0 && group != FIRST;
        let usual = if may_be_usual { best_usual(ed, group, &placed, is_unclaimed) } else { None };
        if let Some((_, place)) = usual {
            put_found(ed, group, place)?;
            placed.insert(group, place);
            continue;
        }
        let mut range = allowed(ed, group);
        // An earlier group got the first run that suits. The search goes on behind that run.
        if range.contains(&next) {
            range.start = next;
        }
        let free = |range| free_run(ed, range, &placed, &claimed);
        let Some(place) = free(range).or_else(|| free(allowed(ed, group))) else { continue };
        debug_assert!(allowed(ed, group).contains(&place.raw()), "a table of group {group} at {place}");
        debug_assert!(is_unclaimed(&place), "a table over a file's blocks at {place}");
        next = place.raw() + table;
        put_table(ed, group, place)?;
        let what = format!("inode table created empty at block {place}");
        ed.add(Code::INODE_TABLE_PLACE, Site::group(group), Cost::Removed, what);
        placed.insert(group, place);
    }
    Ok(ed.log.actions.len() > decided)
}

/// A map of what the inodes of all placed tables claim (content, maps and attributes), and the
/// facts about these inodes. The block bitmaps cannot be used instead, because they may be lost.
fn claims(ed: &Editor<'_, '_>) -> (BlockMap, Facts) {
    let map = BlockMap::new(&ed.volume().geometry);
    let scan = Scan { volume: ed.volume(), system: ed.scan.system, map: &map, orphans: ed.scan.orphans };
    let facts = inodes::gather(&scan, &mut Ledger::default());
    xattr_blocks::claim(&map, &xattr_blocks::references(&facts));
    (map, facts)
}

/// The tables that have their places.
#[derive(Clone)]
struct Placed {
    /// Tables that got their places in this round.
    of: BTreeMap<GroupNr, BlockNr>,
    /// The first blocks of all placed tables.
    starts: BTreeSet<u64>,
}

impl Placed {
    fn insert(&mut self, group: GroupNr, place: BlockNr) {
        self.of.insert(group, place);
        self.starts.insert(place.raw());
    }

    /// Whether one of the tables, of `table` blocks each, has a block of a range.
    fn touches(&self, range: Range<u64>, table: u64) -> bool {
        debug_assert!(range.start < range.end && table > 0, "{range:?}, {table} blocks a table");
        self.starts.range((range.start + 1).saturating_sub(table)..range.end).next().is_some()
    }
}

/// Whether the first table seems to lie elsewhere than its descriptor says. It does in three cases:
///
/// - The root's inode cannot be read.
/// - The block that the descriptor names lies in the journal. Then this block is only a copy.
/// - There is no root in that table, and at least as many of its reserved inodes are wrong as are
///   right. Inodes after lost+found are not compared: without checksums that cover their numbers,
///   they say nothing about their place.
fn is_first_elsewhere(ed: &Editor<'_, '_>) -> bool {
    let Ok(root) = ed.slot(InodeNr::ROOT) else { return true };
    let here = ed.volume().group_of(FIRST).desc.inode_table();
    if is_in_sound_journal(ed, here) {
        return true;
    }
    !is_root(ed, root.bytes()) && rate_part(ed, FIRST, here, 0..ed.volume().first_inode()) <= 0
}

/// Sets the place of the table in a descriptor.
fn put_table(ed: &Editor<'_, '_>, group: GroupNr, place: BlockNr) -> Result<(), DeviceError> {
    let mut desc = ed.volume().group_of(group).desc;
    desc.set_inode_table(place);
    put_places(ed, group, desc)
}

/// Writes a descriptor for the sake of the places in it. The other fields of the descriptor are in
/// doubt, so the whole table is marked as used.
fn put_places(ed: &Editor<'_, '_>, group: GroupNr, mut desc: RawGroupDesc) -> Result<(), DeviceError> {
    let mut flags = desc.flags();
    flags.remove(GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT);
    desc.set_flags(flags | GroupFlags::ITABLE_ZEROED);
    desc.set_itable_unused(0);
    put_descriptor(ed, group, &desc)
}

/// The place that was found for a table.
struct Found {
    place: BlockNr,
    holds: Holds,
}

/// What is in a table.
enum Holds {
    /// Inodes, which show that the table is this group's.
    Inodes,
    /// As many inodes that are right for this group as wrong ones; usually no inodes.
    Nothing,
}

/// Where the table of a group lies. The first table is found by its inodes. For any other table,
/// this is the best of the places where mke2fs may have put it, without those that overlap a placed
/// table.
fn find(ed: &Editor<'_, '_>, group: GroupNr, placed: &Placed) -> Option<Found> {
    if group == FIRST {
        let place = find_first(ed).or_else(|| numbered::find_first(ed)).or_else(|| find_by_reserved(ed))?;
        return Some(Found { place, holds: Holds::Inodes });
    }
    let (rating, place) = best_usual(ed, group, placed, |_| true)?;
    Some(Found { place, holds: if rating > 0 { Holds::Inodes } else { Holds::Nothing } })
}

/// The best of the places where mke2fs may have put the table of a group that is not the first, and
/// the rating of that place. Places that do not suit, that overlap a placed table, or that have a
/// negative rating are left out. Returns `None` if no place is left.
fn best_usual(
    ed: &Editor<'_, '_>,
    group: GroupNr,
    placed: &Placed,
    suits: impl Fn(&BlockNr) -> bool,
) -> Option<(i64, BlockNr)> {
    debug_assert_ne!(group, FIRST, "the first table is found by its inodes");
    let table = ed.volume().geometry.inode_table_blocks();
    let is_free = |place: &BlockNr| !placed.touches(place.raw()..place.raw() + table, table) && suits(place);
    let rated: Vec<(i64, BlockNr)> = usual_places(ed, group, &placed.of)
        .into_iter()
        .filter(is_free)
        .map(|place| (rate(ed, group, place), place))
        .collect();
    let best = rated.iter().map(|one| one.0).max()?;
    // The first of equally good places is taken. A rating of 0 is enough: the table may hold no
    // inodes.
    rated.into_iter().find(|one| one.0 == best && best >= 0)
}

/// The places where mke2fs may have put the table of a group that is not the first. `placed` are
/// the tables that got their places before.
fn usual_places(ed: &Editor<'_, '_>, group: GroupNr, placed: &BTreeMap<GroupNr, BlockNr>) -> Vec<BlockNr> {
    let volume = ed.volume();
    let geometry = &volume.geometry;
    let table = geometry.inode_table_blocks();
    let known = |group: GroupNr| {
        let desc = volume.group_of(group);
        placed.get(&group).copied().or_else(|| desc.inode_table_ok.then(|| desc.desc.inode_table()))
    };
    let flex = geometry.flex_size().max(1);
    let leader = GroupNr::new(group.raw() - group.raw() % flex);
    let inside = u64_from_u32(group.raw() % flex);
    let mut places = Vec::new();
    // The place after superblock and descriptors, if there are any, and the bitmaps of the flex
    // group. The last flex group may have fewer groups, so both numbers of bitmaps are tried.
    let together = u64_from_u32(flex.min(geometry.groups() - leader.raw()));
    let area = volume.backup_area(leader).into_iter().next();
    let head = area.map_or(geometry.group_first_block(leader).raw(), |(block, count)| block.raw() + count);
    places.extend([together, u64_from_u32(flex)].map(|groups| head + 2 * groups + inside * table));
    if let Some(first) = known(FIRST) {
        let shift = geometry.group_first_block(leader).raw() - geometry.group_first_block(FIRST).raw();
        places.push(first.raw() + shift + inside * table);
        // The place without flex_bg. It is tried in any case: if the superblock is inferred, the
        // feature is a guess.
        let own_shift = geometry.group_first_block(group).raw() - geometry.group_first_block(FIRST).raw();
        places.push(first.raw() + own_shift);
    }
    if let Some(before) = known(GroupNr::new(group.raw() - 1)) {
        places.push(before.raw() + table);
    }
    // The place after the group's own two bitmaps.
    let start = geometry.group_first_block(group).raw();
    places.push(start + 2);
    places.extend(volume.backup_area(group).iter().map(|(block, count)| block.raw() + count + 2));
    let allowed = allowed(ed, group);
    let is_inside = |place: &u64| allowed.contains(place) && place + table <= allowed.end;
    places.into_iter().filter(is_inside).map(BlockNr::new).collect()
}

/// The blocks among which the table of a group must lie: without flex_bg, those of the group.
fn allowed(ed: &Editor<'_, '_>, group: GroupNr) -> Range<u64> {
    let volume = ed.volume();
    let geometry = &volume.geometry;
    if volume.incompat.contains(Incompat::FLEX_BG) {
        return geometry.first_data_block().raw() + 1..geometry.blocks_count().raw();
    }
    let start = geometry.group_first_block(group).raw();
    let next = start + geometry.blocks_per_group();
    start.max(geometry.first_data_block().raw() + 1)..next.min(geometry.blocks_count().raw())
}

/// The block in which the table with the root begins.
fn find_first(ed: &Editor<'_, '_>) -> Option<BlockNr> {
    let volume = ed.volume();
    let bits = volume.geometry.block_bits();
    let size = usize::from(volume.geometry.inode_size());
    // If an inode fills a block, the root is in the second one.
    let skipped = u64_from_usize(size >> bits);
    let slot_at = size - usize_from_u64(skipped << bits);
    let candidates = candidates(ed, |block, bytes| {
        let has_root = bytes.get(slot_at..slot_at + size).is_some_and(|slot| is_root(ed, slot));
        if has_root { block.checked_sub(skipped) } else { None }
    });
    let logs = logs_of(ed, &candidates);
    let is_logged = |place: &BlockNr| logs.iter().any(|runs| is_in(runs, *place));
    let rated: Vec<(i64, BlockNr)> = candidates
        .into_iter()
        .filter(|place| !is_logged(place))
        .map(|place| (rate(ed, FIRST, place), place))
        .collect();
    let best = rated.iter().map(|one| one.0).max().filter(|best| *best > i64::MIN)?;
    rated.into_iter().find(|one| one.0 == best).map(|one| one.1)
}

/// The logs that the journal inodes of these candidates for the first table map. A log holds copies
/// of table blocks, and many copies in a row can look like a table.
fn logs_of(ed: &Editor<'_, '_>, places: &[BlockNr]) -> Vec<Vec<Run>> {
    let geometry = &ed.volume().geometry;
    let size = usize::from(geometry.inode_size());
    let at = u64_from_usize(usize_from_u32(InodeNr::JOURNAL.raw() - 1) * size);
    let read = |place: &BlockNr| {
        let mut slot = vec![0; size];
        ed.volume().device.read_at((place.raw() << geometry.block_bits()) + at, &mut slot).ok()?;
        maps_log(ed, &slot).map(|map| map.runs)
    };
    let mut logs: Vec<Vec<Run>> = places.iter().filter_map(read).collect();
    logs.dedup();
    logs
}

fn is_in(runs: &[Run], block: BlockNr) -> bool {
    runs.iter().any(|run| (run.physical..run.physical + run.length).contains(&block.raw()))
}

/// The block in which the first table begins, judged by its reserved inodes and lost+found alone.
/// All of these inodes must be plausible, and the journal's inode must lead to a log. The root's
/// blocks are not read, because they may be lost.
fn find_by_reserved(ed: &Editor<'_, '_>) -> Option<BlockNr> {
    let volume = ed.volume();
    let size = usize::from(volume.geometry.inode_size());
    if volume.first_inode() > u32_from_usize(volume.block_size() / size) {
        return None;
    }
    let places = candidates(ed, |block, bytes| {
        let slots = (1..).map(InodeNr::new).zip(bytes.chunks_exact(size));
        let mut reserved = slots.take(usize_from_u32(volume.first_inode()));
        (reserved.all(|(inode, slot)| is_plausible(ed, inode, slot)) && leads_to_log(ed, bytes))
            .then_some(block)
    });
    places.into_iter().find(|place| rate(ed, FIRST, *place) > i64::MIN)
}

/// Whether the journal's inode in the first block of a table maps a log.
fn leads_to_log(ed: &Editor<'_, '_>, table: &[u8]) -> bool {
    let size = usize::from(ed.volume().geometry.inode_size());
    let at = usize_from_u32(InodeNr::JOURNAL.raw() - 1) * size;
    table.get(at..at + size).is_some_and(|slot| maps_log(ed, slot).is_some())
}

/// Blocks where the first table may begin. `begin` gets the number and the bytes of one block after
/// the other. If the block looks like one of the first table, `begin` returns that table's first
/// block. The search ends after about [`CANDIDATES_MAX`] candidates.
fn candidates(ed: &Editor<'_, '_>, begin: impl Fn(u64, &[u8]) -> Option<u64>) -> Vec<BlockNr> {
    let volume = ed.volume();
    let bits = volume.geometry.block_bits();
    let (blocks, table) = (volume.geometry.blocks_count().raw(), volume.geometry.inode_table_blocks());
    let at_once = (CHUNK >> bits).max(1);
    let mut buffer = vec![0; usize_from_u64(at_once << bits)];
    let mut candidates = Vec::new();
    let mut first = volume.geometry.first_data_block().raw() + 1;
    while first < blocks && candidates.len() < CANDIDATES_MAX {
        let count = at_once.min(blocks - first);
        let bytes = &mut buffer[..usize_from_u64(count << bits)];
        if volume.device.read_at(first << bits, bytes).is_ok() {
            let pieces = (first..).zip(bytes.chunks_exact(volume.block_size()));
            candidates.extend(pieces.filter_map(|(block, bytes)| begin(block, bytes)).map(BlockNr::new));
        }
        first += count;
    }
    candidates.dedup();
    candidates.retain(|place| volume.contains_range(*place, table));
    candidates
}

/// How much a run of blocks looks like the table of a group: the weight of the inodes that are
/// right at their places, minus the weight of those that are wrong. `i64::MIN` if the run cannot be
/// read, or if it would be the first table and lies in the journal.
fn rate(ed: &Editor<'_, '_>, group: GroupNr, place: BlockNr) -> i64 {
    rate_part(ed, group, place, 0..RATED_MAX)
}

/// As [`rate`], but only for the inodes with these indexes in the table.
fn rate_part(ed: &Editor<'_, '_>, group: GroupNr, place: BlockNr, inodes: Range<u32>) -> i64 {
    let volume = ed.volume();
    let geometry = &volume.geometry;
    let (bits, size) = (geometry.block_bits(), usize::from(geometry.inode_size()));
    let count = geometry.inodes_per_group().min(inodes.end);
    let mut bytes = vec![0; usize_from_u32(count) * size];
    let unread = volume.device.read_at(place.raw() << bits, &mut bytes).is_err();
    if unread || (group == FIRST && is_in_journal(ed, &bytes, place)) {
        return i64::MIN;
    }
    let slots = bytes.chunks_exact(size).enumerate().skip(usize_from_u32(inodes.start));
    let judged = slots.filter(|(_, slot)| slot.iter().any(|byte| *byte != 0)).map(|(index, slot)| {
        let inode = geometry.inode_at(group, u32_from_usize(index));
        // If checksums do not cover the numbers, the reserved inodes say most.
        let numbered = volume.checksums.fs_seed().is_some();
        let weight = if !numbered && inode.raw() <= volume.first_inode() { RESERVED_WEIGHT } else { 1 };
        if is_plausible(ed, inode, slot) { weight } else { -weight }
    });
    judged.sum()
}

/// Whether a run that begins like the first table is only a copy in a journal: its first block
/// belongs to the journal that the run's own inode 8 maps, or to the one that inode 8 of the
/// present table maps.
fn is_in_journal(ed: &Editor<'_, '_>, table: &[u8], place: BlockNr) -> bool {
    let size = usize::from(ed.volume().geometry.inode_size());
    let at = usize_from_u32(InodeNr::JOURNAL.raw() - 1) * size;
    let is_mapped = |slot: &[u8]| {
        let map = super::maps::read(ed, InodeNr::JOURNAL, InodeSlot::new(slot).raw());
        is_in(&map.runs, place)
    };
    table.get(at..at + size).is_some_and(is_mapped)
        || ed.slot(InodeNr::JOURNAL).is_ok_and(|slot| is_mapped(slot.bytes()))
}

/// Whether a block lies in the journal that inode 8 of the present table maps. The map must lead to
/// a log, because a wrong map may include the table itself.
fn is_in_sound_journal(ed: &Editor<'_, '_>, block: BlockNr) -> bool {
    let Ok(slot) = ed.slot(InodeNr::JOURNAL) else { return false };
    maps_log(ed, slot.bytes()).is_some_and(|map| is_in(&map.runs, block))
}

/// The map of what may be the journal's inode, if it leads to a log.
fn maps_log(ed: &Editor<'_, '_>, slot: &[u8]) -> Option<super::maps::Map> {
    let map = super::maps::read(ed, InodeNr::JOURNAL, InodeSlot::new(slot).raw());
    let first = map.runs.first().filter(|run| run.logical == 0 && !map.damaged)?;
    let head = ed.volume().block(BlockNr::new(first.physical)).ok()?;
    RawHeader::read(&head)?;
    Some(map)
}

/// Whether a slot holds what could be an inode with this number.
fn is_plausible(ed: &Editor<'_, '_>, inode: InodeNr, slot: &[u8]) -> bool {
    let volume = ed.volume();
    let slot = InodeSlot::new(slot);
    if volume.checksums.inode_seed(inode, 0).is_some() {
        return volume.checksums.verify_inode(inode, &slot).is_ok();
    }
    let raw = slot.raw();
    if inode.raw() == volume.first_inode() || inode == InodeNr::ROOT {
        return raw.file_type() == Some(FileType::Directory);
    }
    if inode.raw() < volume.first_inode() {
        let is_file = raw.file_type() == Some(FileType::Regular) && !NEVER_FILES.contains(&inode.raw());
        return raw.i_mode.get() == 0 || is_file;
    }
    let has_size = match raw.file_type() {
        Some(FileType::Regular | FileType::Directory) => true,
        Some(FileType::Symlink) => raw.size() < u64_from_usize(volume.block_size()),
        _ => raw.size() == 0,
    };
    let header = raw.i_block[..2] == extent::MAGIC.to_le_bytes();
    let mapped = matches!(raw.file_type(), Some(FileType::Regular | FileType::Directory));
    let fits = if raw.flags().contains(InodeFlags::EXTENTS) {
        header
    } else {
        let blocks = volume.geometry.blocks_count().raw();
        !mapped || raw.block_words().iter().all(|word| u64_from_u32(*word) < blocks)
    };
    raw.file_type().is_some() && has_size && (fits || raw.flags().contains(InodeFlags::INLINE_DATA))
}

/// Whether a slot is the root's: a directory in use, with a right checksum. Unless the directory is
/// inline, its first block must name it, too.
fn is_root(ed: &Editor<'_, '_>, slot: &[u8]) -> bool {
    let slot = InodeSlot::new(slot);
    slot.raw().i_links_count.get() >= 2 && landmark::is_sound_directory(ed.volume(), InodeNr::ROOT, &slot)
}

/// Room for a table of which nothing is left: a run of blocks in a range that are neither metadata,
/// nor marked in a valid bitmap, nor claimed. If possible, they are all zeroes.
fn free_run(
    ed: &Editor<'_, '_>,
    allowed: Range<u64>,
    placed: &Placed,
    claimed: &BlockMap,
) -> Option<BlockNr> {
    let table = ed.volume().geometry.inode_table_blocks();
    let is_taken = |block: BlockNr| {
        placed.touches(block.raw()..block.raw() + 1, table) || claimed.is_claimed(claimed.cluster(block))
    };
    // Blocks with content may belong to inodes of tables that were not found, so they are avoided
    // at first.
    let is_filled = |block| is_taken(block) || holds_bytes(ed, block);
    first_run(ed, allowed.clone(), is_filled).or_else(|| first_run(ed, allowed, is_taken))
}

fn holds_bytes(ed: &Editor<'_, '_>, block: BlockNr) -> bool {
    ed.volume().block(block).map_or(true, |bytes| bytes.iter().any(|byte| *byte != 0))
}

fn first_run(
    ed: &Editor<'_, '_>,
    allowed: Range<u64>,
    is_avoided: impl Fn(BlockNr) -> bool,
) -> Option<BlockNr> {
    let count = ed.volume().geometry.inode_table_blocks();
    let mut at = allowed.start;
    while at + count <= allowed.end {
        let taken = (at..at + count).rev().find(|&block| {
            let block = BlockNr::new(block);
            crate::descriptors::touches(ed.scan.system, block, 1) || is_marked(ed, block) || is_avoided(block)
        });
        match taken {
            Some(taken) => at = taken + 1,
            None => return Some(BlockNr::new(at)),
        }
    }
    None
}

fn is_marked(ed: &Editor<'_, '_>, block: BlockNr) -> bool {
    let volume = ed.volume();
    let (group, offset) = volume.geometry.locate(block);
    let known = volume.group_of(group);
    if !known.block_bitmap_ok {
        return false;
    }
    let bitmap = volume.block(known.desc.block_bitmap()).unwrap_or_default();
    bitmap.get(usize_from_u32(offset.raw() / 8)).is_some_and(|byte| byte >> (offset.raw() % 8) & 1 == 1)
}
