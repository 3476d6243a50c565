//! Positions of block bitmaps, inode bitmaps and inode tables.
//!
//! Without flex groups, each group holds its own bitmaps and inode table, in the first free blocks
//! after its head, if they fit. (With a RAID stride, the bitmaps are shifted one stride further in
//! each group, so that they are not all on one disk.) With flex groups, the block bitmaps of all
//! groups of a flex group are packed one after the other, then their inode bitmaps, then their
//! inode tables. Blocks that are used already (heads of later groups) are skipped.

use std::ops::Range;

use blockyard_disk::num::u64_from_u32;
use blockyard_disk::{BlockNr, Geometry, GroupNr};

use super::error::{Error, Result};
use super::space::Space;

/// The three addresses of a group descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GroupPlaces {
    pub(super) block_bitmap: BlockNr,
    pub(super) inode_bitmap: BlockNr,
    pub(super) inode_table: BlockNr,
}

impl GroupPlaces {
    /// Blocks of both bitmaps and of the table.
    pub(super) fn ranges(&self, geometry: &Geometry) -> [Range<u64>; 3] {
        let (bb, ib, it) = (self.block_bitmap.raw(), self.inode_bitmap.raw(), self.inode_table.raw());
        [bb..bb + 1, ib..ib + 1, it..it + geometry.inode_table_blocks()]
    }
}

/// How bitmaps and inode tables are placed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// Number of groups whose bitmaps and inode tables are packed together; 1 for no packing.
    pub(super) flex: u64,
    /// RAID stride in blocks, 0 for none.
    pub(super) stride: u64,
}

/// Places the bitmaps and inode tables of all groups and takes their blocks.
pub(super) fn place_all(geometry: &Geometry, rules: Rules, space: &mut Space) -> Result<Vec<GroupPlaces>> {
    let mut placer = Placer { geometry, rules, space, done: Vec::new() };
    for group in geometry.all_groups() {
        let places = if rules.flex > 1 { placer.flexed(group)? } else { placer.alone(group)? };
        placer.done.push(places);
    }
    assert_eq!(placer.done.len(), geometry.all_groups().len(), "places for each group");
    Ok(placer.done)
}

struct Placer<'a> {
    geometry: &'a Geometry,
    rules: Rules,
    space: &'a mut Space,
    done: Vec<GroupPlaces>,
}

/// One group's block bitmap, inode bitmap or inode table, to be packed in its flex group.
#[derive(Clone, Copy)]
struct Item {
    /// Number of blocks.
    len: u64,
    /// The block at which the search begins:
    /// * In the first group of a flex group: none for the block bitmap. For the inode bitmap, a
    ///   block that leaves room for all block bitmaps of the flex group. For the inode table, a
    ///   block that leaves room for all inode bitmaps.
    /// * In any other group: the end of the previous group's item of the same kind.
    hint: Option<u64>,
}

impl Placer<'_> {
    fn group_range(&self, group: GroupNr) -> Range<u64> {
        let first = self.geometry.group_first_block(group).raw();
        first..first + self.geometry.blocks_in_group(group)
    }

    fn alone(&mut self, group: GroupNr) -> Result<GroupPlaces> {
        let range = self.group_range(group);
        let table_len = self.geometry.inode_table_blocks();
        let from = self.bitmap_start(group, &range, table_len);
        let block_bitmap = self.take_near(from, &range, 1)?;
        let inode_bitmap = self.take_near(from, &range, 1)?;
        let inode_table = self.take_near(range.start, &range, table_len)?;
        Ok(GroupPlaces {
            block_bitmap: BlockNr::new(block_bitmap),
            inode_bitmap: BlockNr::new(inode_bitmap),
            inode_table: BlockNr::new(inode_table),
        })
    }

    /// The block from which to look for a group's bitmaps. Without a stride, this is the start of
    /// the group. With a stride, the first `table_len` consecutive free blocks are left for the
    /// inode table. The search then begins `stride * group` blocks after them, modulo the length of
    /// the rest of the group, unless that leaves no room for two bitmaps.
    fn bitmap_start(&self, group: GroupNr, range: &Range<u64>, table_len: u64) -> u64 {
        if self.rules.stride == 0 {
            return range.start;
        }
        let Some(table) = self.space.find(range.start, range.end, table_len, 1) else { return range.start };
        let behind = table + table_len;
        let room = range.end.saturating_sub(behind).max(1);
        let shifted = behind + self.rules.stride * u64_from_u32(group.raw()) % room;
        if shifted + 1 < range.end { shifted } else { range.start }
    }

    /// Takes the first free run of `len` blocks that begins at or after `from` and before the last
    /// block of `range`, which is a group. If there is none, searches again from the start of the
    /// group, and at last from the start of the file system.
    fn take_near(&mut self, from: u64, range: &Range<u64>, len: u64) -> Result<u64> {
        let found = self
            .space
            .find(from, range.end - 1, len, 1)
            .or_else(|| self.space.find(range.start, range.end - 1, len, 1))
            .or_else(|| self.space.find(0, u64::MAX, len, 1));
        self.take(found, len)
    }

    fn take(&mut self, found: Option<u64>, len: u64) -> Result<u64> {
        let start = found.ok_or_else(|| {
            Error::Size(
                "the groups' own metadata does not fit; ask for more blocks or fewer inodes".to_owned(),
            )
        })?;
        assert_eq!(self.space.used_in(start..start + len), 0, "{len} blocks at {start} are given out twice");
        self.space.mark(start..start + len);
        Ok(start)
    }

    fn flexed(&mut self, group: GroupNr) -> Result<GroupPlaces> {
        let number = u64_from_u32(group.raw());
        let left =
            (self.rules.flex - number % self.rules.flex).min(u64_from_u32(self.geometry.groups()) - number);
        let is_first = number.is_multiple_of(self.rules.flex);
        // A flex group that has only one group leaves as much room as a full one.
        let span = if is_first && left == 1 { self.rules.flex } else { left };
        let previous = if is_first { None } else { self.done.last().copied() };
        let after = |place: fn(&GroupPlaces) -> BlockNr, len: u64| previous.map(|p| place(&p).raw() + len);
        let table_len = self.geometry.inode_table_blocks();

        let block_bitmap = self.pack(group, left, Item { len: 1, hint: after(|p| p.block_bitmap, 1) })?;
        let hint = after(|p| p.inode_bitmap, 1).or(Some(block_bitmap + span));
        let inode_bitmap = self.pack(group, left, Item { len: 1, hint })?;
        let hint = after(|p| p.inode_table, table_len).or(Some(inode_bitmap + span));
        let inode_table = self.pack(group, left, Item { len: table_len, hint })?;
        Ok(GroupPlaces {
            block_bitmap: BlockNr::new(block_bitmap),
            inode_bitmap: BlockNr::new(inode_bitmap),
            inode_table: BlockNr::new(inode_table),
        })
    }

    /// Places one group's item at the first of these that exists:
    /// * the first free run in the flex group that begins at the item's hint or after it;
    /// * a run in the flex group with room for the items of this group and of all later ones in the
    ///   flex group (`left` in all);
    /// * a run in the flex group with room for this item;
    /// * a run anywhere.
    fn pack(&mut self, group: GroupNr, left: u64, item: Item) -> Result<u64> {
        let flex_start = u64_from_u32(group.raw()) / self.rules.flex * self.rules.flex;
        let last = (flex_start + self.rules.flex).min(u64_from_u32(self.geometry.groups())) - 1;
        let last = GroupNr::new(blockyard_disk::num::u32_from_u64(last));
        let first =
            self.geometry.group_first_block(GroupNr::new(blockyard_disk::num::u32_from_u64(flex_start)));
        let (start, end) = (first.raw(), self.group_range(last).end);
        let near = item.hint.and_then(|hint| self.space.find(hint, end, item.len, 1));
        let found = near
            .or_else(|| self.space.find(start, end, item.len * left, 1))
            .or_else(|| self.space.find(start, end, item.len, 1))
            .or_else(|| self.space.find(0, u64::MAX, item.len, 1));
        self.take(found, item.len)
    }
}
