//! Maps of inodes: reads the sound parts of a map, and writes a map anew.
//!
//! The nodes of a new map (its extent blocks or indirect blocks) go to fresh blocks, so that the
//! old map stays valid until the inode refers to the new one. If there is no free space, they go to
//! the places of the old nodes. Nothing is written before every node has a place.

use std::ops::Range;

use blockyard_device::DeviceError;
use blockyard_disk::checksum::seal_extent_block;
use blockyard_disk::extent::{
    MAGIC, RawExtent, RawExtentHeader, RawExtentIndex, UNWRITTEN_LEN_MAX, WRITTEN_LEN_MAX, block_capacity,
};
use blockyard_disk::inode::{FileType, InodeFlags, RawInode};
use blockyard_disk::num::{
    low16, low32, u32_from_u64, u32_from_usize, u64_from_u32, u64_from_usize, usize_from_u64,
};
use blockyard_disk::{BlockNr, InodeNr, LogicalBlock};
use zerocopy::little_endian::U16;
use zerocopy::{FromZeros, IntoBytes};

use super::editor::{Editor, Slot, Walked};
use super::examined::claims_of;
use crate::finding::Sink;
use crate::map::{Budget, LOGICAL_END, NoClaims, Run, Walk, salvage_extents, walk_extents, walk_indirect};

/// Entries of a root in the inode.
pub(super) const ROOT_ENTRIES: usize = 4;

/// What a map holds.
#[derive(Debug)]
pub(crate) struct Map {
    /// Runs of data, ascending.
    pub(crate) runs: Vec<Run>,
    /// Blocks of the map itself, ascending.
    pub(crate) nodes: Vec<BlockNr>,
    /// Whether parts were left out.
    pub(crate) damaged: bool,
}

/// Reads what is sound of an inode's map.
pub(crate) fn read(ed: &Editor<'_, '_>, inode: InodeNr, raw: &RawInode) -> Map {
    if !raw.flags().contains(InodeFlags::EXTENTS) {
        return read_by(ed, inode, raw, |walk, raw| walk_indirect(walk, &raw.block_words()));
    }
    let map = read_by(ed, inode, raw, |walk, raw| walk_extents(walk, &raw.i_block));
    if !map.damaged {
        return map;
    }
    // A directory has no holes, so a run that ends past the last logical block only has the wrong
    // key.
    let is_directory = raw.file_type() == Some(FileType::Directory);
    let end = if is_directory { u64::MAX } else { LOGICAL_END };
    let mut salvaged = read_by(ed, inode, raw, |walk, raw| salvage_extents(walk, &raw.i_block, end));
    move_down(&mut salvaged.runs);
    Map { damaged: true, ..salvaged }
}

/// Closes the hole before the last run if the run ends past the last logical block.
fn move_down(runs: &mut [Run]) {
    let (end, last) = match runs {
        [.., before, last] => (before.logical + before.length, last),
        [only] => (0, only),
        [] => return,
    };
    if last.logical + last.length > LOGICAL_END {
        last.logical = end;
    }
}

/// Whether an inode's content is in blocks that it maps.
pub(super) fn has_map(raw: &RawInode) -> bool {
    let is_mapped = match raw.file_type() {
        Some(FileType::Regular | FileType::Directory) => true,
        Some(FileType::Symlink) => raw.size() >= 60,
        // A reserved inode without a mode may have a map.
        None => true,
        Some(_) => false,
    };
    is_mapped && !raw.flags().contains(InodeFlags::INLINE_DATA)
}

/// The blocks of a run as runs of one block.
pub(crate) fn blocks_of(run: &Run) -> impl Iterator<Item = Run> + use<> {
    let run = *run;
    (0..run.length).map(move |at| Run {
        logical: run.logical + at,
        physical: run.physical + at,
        length: 1,
        ..run
    })
}

/// The ranges of bytes below `size` that runs leave out. Runs and ranges ascend.
pub(crate) fn unmapped(runs: &[Run], block_bits: u32, size: u64) -> Vec<Range<u64>> {
    let mut left = Vec::new();
    let mut at = 0;
    for run in runs {
        let start = (run.logical << block_bits).min(size);
        if at < start {
            left.push(at..start);
        }
        at = at.max((run.logical + run.length) << block_bits);
    }
    if at < size {
        left.push(at..size);
    }
    left
}

/// The ranges of bytes of single blocks, joined where they touch. Blocks and ranges ascend.
pub(crate) fn bytes_of(blocks: &[u64], block_bits: u32) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for block in blocks {
        let (start, end) = (block << block_bits, (block + 1) << block_bits);
        match ranges.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => ranges.push(start..end),
        }
    }
    ranges
}

/// Reads a map by the given kind of walk.
fn read_by(
    ed: &Editor<'_, '_>,
    inode: InodeNr,
    raw: &RawInode,
    walk_map: impl FnOnce(&mut Walk<'_, '_>, &RawInode),
) -> Map {
    let volume = ed.volume();
    let seed = volume.checksums.inode_seed(inode, raw.i_generation.get());
    let (mut sink, mut claims, mut budget) = (Sink::default(), NoClaims, Budget::of(volume));
    let mut walk = Walk::new(volume, ed.scan.system, inode, seed, &mut sink, &mut claims, &mut budget);
    walk.keep_runs = true;
    walk_map(&mut walk, raw);
    let mut nodes: Vec<BlockNr> = walk.nodes().collect();
    nodes.sort_unstable();
    Map { damaged: walk.damaged, runs: walk.runs, nodes }
}

/// There is no space for what was to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoSpace;

/// How writing can end: done, no space, or an error of the device.
pub(crate) type Written = Result<Result<(), NoSpace>, DeviceError>;

/// Writes the nodes of a map of these runs, and puts the root of the map into the slot of an inode.
/// The inode's flags decide whether the map is an extent tree or a block map. The caller writes the
/// slot.
pub(crate) fn write(ed: &mut Editor<'_, '_>, inode: InodeNr, slot: &mut Slot, runs: &[Run]) -> Written {
    debug_assert!(runs.is_sorted_by_key(|run| run.logical), "runs out of order");
    let mut nodes = Nodes { inode, placed: Vec::new(), own: None };
    let root = if slot.raw().flags().contains(InodeFlags::EXTENTS) {
        extent_tree(ed, &mut nodes, slot.raw(), runs)?
    } else {
        block_map(ed, &mut nodes, runs)?
    };
    let Ok(root) = root else { return Ok(Err(NoSpace)) };
    for (place, bytes) in &nodes.placed {
        ed.put_block(*place, bytes)?;
    }
    slot.raw_mut().i_block = root;
    Ok(Ok(()))
}

/// The root of a map in `i_block`, if all nodes below it have places.
type Root = Result<Result<[u8; 60], NoSpace>, DeviceError>;

/// The nodes of a new map.
struct Nodes {
    inode: InodeNr,
    placed: Vec<(BlockNr, Vec<u8>)>,
    /// Nodes of the old map whose places are not taken yet; `None` while there is other space.
    own: Option<Vec<BlockNr>>,
}

impl Nodes {
    /// Gives a node its place; `None` when there is no space.
    fn place(&mut self, ed: &mut Editor<'_, '_>, bytes: Vec<u8>) -> Result<Option<BlockNr>, DeviceError> {
        let mut place = ed.allocate();
        if place.is_none() {
            if self.own.is_none() {
                self.own = Some(own_nodes(ed, self.inode)?);
            }
            place = self.own.as_mut().and_then(Vec::pop);
        }
        self.placed.extend(place.map(|place| (place, bytes)));
        Ok(place)
    }
}

/// The nodes of an inode's map, as it is on the device, that no other inode claims.
fn own_nodes(ed: &mut Editor<'_, '_>, inode: InodeNr) -> Result<Vec<BlockNr>, DeviceError> {
    if let Some(known) = ed.own_nodes.get(&inode) {
        return Ok(known.clone());
    }
    let slot = ed.slot(inode)?;
    let mut claims = claims_of(ed, inode, &slot);
    claims.sort_unstable_by_key(|claimed| claimed.start);
    let map = ed.scan.map;
    let is_own = |node: &BlockNr| {
        let cluster = map.cluster(*node);
        let after = claims.partition_point(|claimed| claimed.start <= cluster);
        let is_its = claims[..after].last().is_some_and(|claimed| claimed.contains(&cluster));
        !map.is_claimed(cluster) || (is_its && map.shared_in(cluster, 1) == 0)
    };
    let Map { mut nodes, damaged, .. } = read(ed, inode, slot.raw());
    nodes.retain(is_own);
    if damaged && ed.walked == Walked::NotYet {
        // The walk has not yet found out who else uses the blocks that a damaged map names.
        nodes.clear();
    }
    let volume = ed.volume();
    debug_assert!(nodes.iter().all(|node| volume.contains_range(*node, 1)), "a node is outside");
    // `Nodes::place` takes the last place first, and that is now the lowest.
    nodes.reverse();
    ed.own_nodes.insert(inode, nodes.clone());
    Ok(nodes)
}

/// Claims the parts of a damaged extent tree that the walk over the inodes left out, but that can
/// be salvaged: their blocks are in use.
pub(super) fn hold(ed: &mut Editor<'_, '_>, inode: InodeNr) -> Result<(), DeviceError> {
    let slot = ed.slot(inode)?;
    if !slot.raw().flags().contains(InodeFlags::EXTENTS) {
        return Ok(());
    }
    let left = read(ed, inode, slot.raw());
    if !left.damaged {
        return Ok(());
    }
    own_nodes(ed, inode)?;
    let map = ed.scan.map;
    for run in &left.runs {
        let (first, last) = (BlockNr::new(run.physical), BlockNr::new(run.physical + run.length - 1));
        map.mark(map.cluster(first), map.cluster(last) - map.cluster(first) + 1);
    }
    left.nodes.iter().for_each(|node| map.mark(map.cluster(*node), 1));
    Ok(())
}

fn header(entries: usize, max: u16, depth: u16) -> RawExtentHeader {
    let mut header = RawExtentHeader::new_zeroed();
    header.eh_magic = U16::new(MAGIC);
    header.eh_entries = U16::new(low16(u32_from_usize(entries)));
    header.eh_max = U16::new(max);
    header.eh_depth = U16::new(depth);
    header
}

/// An entry of a node with its key.
type KeyedEntry = (u32, [u8; 12]);

fn extent_tree(ed: &mut Editor<'_, '_>, nodes: &mut Nodes, raw: &RawInode, runs: &[Run]) -> Root {
    let volume = ed.volume();
    let seed = volume.checksums.inode_seed(nodes.inode, raw.i_generation.get());
    let capacity = block_capacity(volume.block_size());
    let mut level: Vec<KeyedEntry> = runs.iter().flat_map(entries_of).collect();
    let mut depth = 0;
    while level.len() > ROOT_ENTRIES {
        let mut above = Vec::with_capacity(level.len() / usize::from(capacity) + 1);
        for entries in level.chunks(usize::from(capacity)) {
            let mut bytes = vec![0; volume.block_size()];
            fill_node(&mut bytes, entries, capacity, depth);
            seal_extent_block(seed, &mut bytes);
            let Some(block) = nodes.place(ed, bytes)? else { return Ok(Err(NoSpace)) };
            let key = entries[0].0;
            let index = RawExtentIndex::new(LogicalBlock::new(key), block);
            above.push((key, index.as_bytes().try_into().expect("an index has 12 bytes")));
        }
        depth += 1;
        level = above;
    }
    let mut root = [0; 60];
    fill_node(&mut root, &level, low16(u32_from_usize(ROOT_ENTRIES)), depth);
    Ok(Ok(root))
}

fn fill_node(bytes: &mut [u8], entries: &[KeyedEntry], max: u16, depth: u16) {
    bytes[..12].copy_from_slice(header(entries.len(), max, depth).as_bytes());
    for (nth, (_, entry)) in entries.iter().enumerate() {
        bytes[12 + 12 * nth..24 + 12 * nth].copy_from_slice(entry);
    }
}

/// The extents of a run: more than one when it is longer than an extent may be.
fn entries_of(run: &Run) -> Vec<KeyedEntry> {
    let longest = u64::from(if run.unwritten { UNWRITTEN_LEN_MAX } else { WRITTEN_LEN_MAX });
    let starts = (0..run.length).step_by(usize_from_u64(longest));
    starts
        .map(|from| {
            let length = (run.length - from).min(longest);
            let logical = u32_from_u64(run.logical + from);
            let extent = RawExtent::new(
                LogicalBlock::new(logical),
                low16(u32_from_u64(length)),
                BlockNr::new(run.physical + from),
                run.unwritten,
            );
            (logical, extent.as_bytes().try_into().expect("an extent has 12 bytes"))
        })
        .collect()
}

fn block_map(ed: &mut Editor<'_, '_>, nodes: &mut Nodes, runs: &[Run]) -> Root {
    let per = u64_from_usize(ed.volume().block_size() / 4);
    let mut words = [0u32; 15];
    // The pointers to data blocks that are not yet in the map, each with its logical block.
    let mut pointers: Vec<(u64, u32)> = runs
        .iter()
        .flat_map(|run| (0..run.length).map(|at| (run.logical + at, low32(run.physical + at))))
        .collect();
    let direct = pointers.partition_point(|pointer| pointer.0 < 12);
    for (logical, block) in pointers.drain(..direct) {
        words[usize_from_u64(logical)] = block;
    }
    let mut base = 12;
    for level in 1..=3u32 {
        let span = per.pow(level);
        let here = pointers.partition_point(|pointer| pointer.0 < base + span);
        let mut below: Vec<(u64, u32)> =
            pointers.drain(..here).map(|(logical, block)| (logical - base, block)).collect();
        for _ in 0..level {
            let mut above = Vec::new();
            for table in below.chunk_by(|a, b| a.0 / per == b.0 / per) {
                let mut bytes = vec![0; ed.volume().block_size()];
                for (at, pointer) in table {
                    let at = usize_from_u64(at % per) * 4;
                    bytes[at..at + 4].copy_from_slice(&pointer.to_le_bytes());
                }
                let Some(block) = nodes.place(ed, bytes)? else { return Ok(Err(NoSpace)) };
                above.push((table[0].0 / per, low32(block.raw())));
            }
            below = above;
        }
        if let Some(&(_, block)) = below.first() {
            words[usize_from_u64(11 + u64_from_u32(level))] = block;
        }
        base += span;
    }
    let mut root = [0; 60];
    for (bytes, word) in root.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    Ok(Ok(root))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_named_in_bytes() {
        let run = |logical, length| Run { logical, physical: 100 + logical, length, unwritten: false };
        let runs = [run(1, 2), run(5, 1)];
        assert_eq!(unmapped(&runs, 10, 7000), [0..1024, 3072..5120, 6144..7000]);
        assert_eq!(unmapped(&runs, 10, 4000), [0..1024, 3072..4000]);
        assert_eq!(unmapped(&[], 10, 0), []);
        assert_eq!(bytes_of(&[1, 2, 4], 12), [4096..12288, 16384..20480]);
    }
}
