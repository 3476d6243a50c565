//! Bitmaps and inode tables whose descriptors say an impossible place, and no backup knows better.
//!
//! A bitmap is computed anyway: any free block does. A table is looked for: that of the first group by the root, which is
//! a directory that names itself; the others where mke2fs puts them after it.

use blockyard_device::DeviceError;
use blockyard_disk::group_desc::GroupFlags;
use blockyard_disk::inode::{FileType, InodeSlot};
use blockyard_disk::num::{u64_from_u32, usize_from_u32, usize_from_u64};
use blockyard_disk::{BlockNr, GroupNr, InodeNr};

use super::bitmaps::put_descriptor;
use super::editor::Editor;
use super::log::Cost;
use crate::code::Code;
use crate::finding::{Finding, Site};

/// Bytes read at a time while looking for a table.
const CHUNK: u64 = 1 << 20;

fn groups_with(before: &[Finding], codes: [Code; 2]) -> Vec<GroupNr> {
    let mut groups: Vec<GroupNr> = before
        .iter()
        .filter(|finding| codes.contains(&finding.code))
        .filter_map(|finding| finding.site.group)
        .collect();
    groups.sort_unstable();
    groups.dedup();
    groups
}

/// Gives every inode table a place; true when some got one.
pub(crate) fn place_tables(ed: &mut Editor<'_, '_>, before: &[Finding]) -> Result<bool, DeviceError> {
    let groups = groups_with(before, [Code::INODE_TABLE_PLACE, Code::INODE_TABLE_CONFLICT]);
    let first = GroupNr::new(0);
    if !groups.contains(&first) && is_table_elsewhere(ed, before) {
        let tries = ed.log.try_again(super::log::Tried::Table, InodeNr::new(0));
        let found = if tries == 0 { find_root(ed) } else { None };
        if let Some(place) = found {
            put_table(ed, first, place)?;
            let what = format!("inode table found at block {place}");
            ed.add(Code::INODE_TABLE_PLACE, Site::group(first), Cost::Nothing, what);
            return Ok(true);
        }
    }
    let mut placed = false;
    for group in groups {
        let site = Site::group(group);
        let tries = ed.log.try_again(super::log::Tried::Table, InodeNr::new(group.raw()));
        let found = match tries {
            0 => find_table(ed, group),
            1 => free_run(ed, ed.volume().geometry.inode_table_blocks()),
            _ => None,
        };
        let Some(place) = found else { continue };
        put_table(ed, group, place)?;
        let (cost, what) = if tries == 0 { (Cost::Nothing, "found") } else { (Cost::Removed, "made empty") };
        ed.add(Code::INODE_TABLE_PLACE, site, cost, format!("inode table {what} at block {place}"));
        placed = true;
    }
    Ok(placed)
}

/// Whether the first descriptor is not to be believed, and its table begins without a root.
fn is_table_elsewhere(ed: &Editor<'_, '_>, before: &[Finding]) -> bool {
    let doubtful = groups_with(before, [Code::GROUP_CHECKSUM, Code::GROUP_CHECKSUM]);
    doubtful.contains(&GroupNr::new(0)) && ed.slot(InodeNr::ROOT).is_ok_and(|slot| !is_root(ed, slot.bytes()))
}

/// Says in a descriptor where the table lies. What else it says is as doubtful: the whole table is read.
fn put_table(ed: &Editor<'_, '_>, group: GroupNr, place: BlockNr) -> Result<(), DeviceError> {
    let mut desc = ed.volume().group_of(group).desc;
    desc.set_inode_table(place);
    let mut flags = desc.flags();
    flags.remove(GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT);
    desc.set_flags(flags | GroupFlags::ITABLE_ZEROED);
    desc.set_itable_unused(0);
    put_descriptor(ed, group, &desc)
}

/// Where the table of a group lies.
fn find_table(ed: &Editor<'_, '_>, group: GroupNr) -> Option<BlockNr> {
    let volume = ed.volume();
    let geometry = &volume.geometry;
    if group.raw() == 0 {
        return find_root(ed);
    }
    let first = &volume.groups[0];
    if !first.inode_table_ok {
        return None;
    }
    let table = geometry.inode_table_blocks();
    let flex = geometry.flex_size().max(1);
    let inside = u64_from_u32(group.raw() % flex);
    let base = first.desc.inode_table().raw();
    let start = geometry.group_first_block(GroupNr::new(group.raw() - group.raw() % flex));
    let start = start.raw() - geometry.group_first_block(GroupNr::new(0)).raw();
    let place = BlockNr::new(base + start + inside * table);
    volume.contains_range(place, table).then_some(place)
}

/// The block in which the table with the root begins.
fn find_root(ed: &Editor<'_, '_>) -> Option<BlockNr> {
    let volume = ed.volume();
    let bits = volume.geometry.block_bits();
    let blocks = volume.geometry.blocks_count().raw();
    let at_once = (CHUNK >> bits).max(1);
    let size = usize::from(volume.geometry.inode_size());
    let block_size = volume.block_size();
    let mut buffer = vec![0; usize_from_u64(at_once << bits)];
    let mut first = volume.geometry.first_data_block().raw() + 1;
    while first < blocks {
        let count = at_once.min(blocks - first);
        let bytes = &mut buffer[..usize_from_u64(count << bits)];
        if volume.device.read_at(first << bits, bytes).is_ok() {
            for (block, bytes) in (first..).zip(bytes.chunks_exact(block_size)) {
                let root = bytes.get(size..2 * size).is_some_and(|slot| is_root(ed, slot));
                if root && !is_in_journal(ed, bytes, BlockNr::new(block)) {
                    return Some(BlockNr::new(block));
                }
            }
        }
        first += count;
    }
    None
}

/// Whether a block that begins a table is a copy of one: it lies in the journal that its own inode 8 maps.
fn is_in_journal(ed: &Editor<'_, '_>, table: &[u8], block: BlockNr) -> bool {
    let size = usize::from(ed.volume().geometry.inode_size());
    let at = usize_from_u32(InodeNr::JOURNAL.raw() - 1) * size;
    let Some(slot) = table.get(at..at + size) else { return false };
    let map = super::maps::read(ed, InodeNr::JOURNAL, InodeSlot::new(slot).raw());
    map.runs.iter().any(|run| (run.physical..run.physical + run.length).contains(&block.raw()))
}

/// Whether a slot is the root's: a directory in use, with a right checksum, whose first block names it.
fn is_root(ed: &Editor<'_, '_>, slot: &[u8]) -> bool {
    let volume = ed.volume();
    let slot = InodeSlot::new(slot);
    let raw = slot.raw();
    if raw.file_type() != Some(FileType::Directory) || raw.i_links_count.get() < 2 {
        return false;
    }
    if volume.checksums.verify_inode(InodeNr::ROOT, &slot).is_err() {
        return false;
    }
    let map = super::maps::read(ed, InodeNr::ROOT, raw);
    let inline = raw.flags().contains(blockyard_disk::inode::InodeFlags::INLINE_DATA);
    let block = map.runs.first().and_then(|run| volume.block(BlockNr::new(run.physical)).ok());
    inline || block.is_some_and(|block| block[..4] == [2, 0, 0, 0] && block[8] == b'.')
}

/// The first run of blocks that is no metadata and in nobody's bitmap: for a table of which nothing is left.
fn free_run(ed: &Editor<'_, '_>, count: u64) -> Option<BlockNr> {
    let volume = ed.volume();
    let blocks = volume.geometry.blocks_count().raw();
    let mut at = volume.geometry.first_data_block().raw() + 1;
    while at + count <= blocks {
        let taken = (at..at + count).rev().find(|&block| {
            crate::descriptors::touches(ed.scan.system, BlockNr::new(block), 1)
                || is_marked(ed, BlockNr::new(block))
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

/// Gives every bitmap a place; true when some got one.
pub(crate) fn place_bitmaps(ed: &mut Editor<'_, '_>, before: &[Finding]) -> Result<bool, DeviceError> {
    let blocks = groups_with(before, [Code::BLOCK_BITMAP_PLACE, Code::BLOCK_BITMAP_CONFLICT]);
    let inodes = groups_with(before, [Code::INODE_BITMAP_PLACE, Code::INODE_BITMAP_CONFLICT]);
    for &group in &blocks {
        move_bitmap(ed, group, Code::BLOCK_BITMAP_PLACE)?;
    }
    for &group in &inodes {
        move_bitmap(ed, group, Code::INODE_BITMAP_PLACE)?;
    }
    Ok(!blocks.is_empty() || !inodes.is_empty())
}

fn move_bitmap(ed: &mut Editor<'_, '_>, group: GroupNr, code: Code) -> Result<(), DeviceError> {
    let Some(place) = near(ed, group).or_else(|| ed.allocate()) else { return Ok(()) };
    let volume = ed.volume();
    let mut raw = vec![0; volume.desc_size];
    volume.device.read_at(super::bitmaps::descriptor_at(volume, group), &mut raw)?;
    let mut desc = blockyard_disk::group_desc::RawGroupDesc::from_disk(&raw);
    if code == Code::BLOCK_BITMAP_PLACE {
        desc.set_block_bitmap(place)
    } else {
        desc.set_inode_bitmap(place)
    }
    put_descriptor(ed, group, &desc)?;
    ed.log.rewrite_all = super::log::RewriteAll::Yes;
    ed.add(code, Site::group(group), Cost::Nothing, format!("bitmap moved to block {place}"));
    Ok(())
}

/// A free block of the group itself: without flex_bg it must lie there.
fn near(ed: &mut Editor<'_, '_>, group: GroupNr) -> Option<BlockNr> {
    let geometry = &ed.volume().geometry;
    let first = ed.scan.map.cluster(geometry.group_first_block(group));
    let cluster = ed.scan.map.free_from(first)?;
    if cluster >= first + u64_from_u32(geometry.clusters_in_group(group)) {
        return None;
    }
    ed.scan.map.claim(cluster, 1);
    let ratio = u64_from_u32(geometry.cluster_ratio());
    Some(BlockNr::new(geometry.first_data_block().raw() + cluster * ratio))
}
