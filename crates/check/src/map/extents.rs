//! Extent trees.

use std::borrow::Cow;

use blockyard_disk::BlockNr;
use blockyard_disk::checksum::verify_extent_block;
use blockyard_disk::extent::{
    DEPTH_MAX, MAGIC, ROOT_CAPACITY, RawExtent, RawExtentHeader, RawExtentIndex, block_capacity,
};
use blockyard_disk::num::u64_from_u32;
use zerocopy::FromBytes;

use super::{Run, Walk};
use crate::code::Code;
use crate::finding::Site;

/// One more than the last logical block that a file may map.
pub(crate) const LOGICAL_END: u64 = u64_from_u32(u32::MAX);

/// A node on the way from the root to where the walk is.
struct Node<'b> {
    bytes: Cow<'b, [u8]>,
    entries: usize,
    next: usize,
    depth: u16,
    /// One more than the last logical block that this node may map.
    end: u64,
    place: Option<BlockNr>,
}

impl Node<'_> {
    fn entry(&self, index: usize) -> &[u8] {
        debug_assert!(index < self.entries, "entry {index} of {}", self.entries);
        &self.bytes[12 + 12 * index..24 + 12 * index]
    }

    fn extent(&self, index: usize) -> RawExtent {
        RawExtent::read_from_bytes(self.entry(index)).expect("an entry has 12 bytes")
    }

    fn site(&self, walk: &Walk<'_, '_>) -> Site {
        self.place.map_or_else(|| walk.site(), |block| walk.site().at_block(block))
    }

    /// The end of the range of entry `index`: the key of the next entry, or the end of the node if
    /// there is no next entry or its key is larger.
    fn following(&self, index: usize) -> u64 {
        if index + 1 < self.entries {
            let [a, b, c, d, ..] = *self.entry(index + 1) else { return self.end };
            u64::from(u32::from_le_bytes([a, b, c, d])).min(self.end)
        } else {
            self.end
        }
    }
}

/// Walks the tree in `i_block`.
pub(crate) fn walk_extents(walk: &mut Walk<'_, '_>, i_block: &[u8; 60]) {
    let Some(root) = open_node(walk, Cow::Borrowed(i_block), None, None, LOGICAL_END) else { return };
    // The walk goes over the whole tree once, from left to right. The next entry must not begin
    // below this logical block.
    let mut floor = 0;
    if root.depth == 0 {
        // Nearly all trees are this shallow.
        let (site, end) = (root.site(walk), root.end);
        return (0..root.entries)
            .for_each(|index| leaf_entry(walk, &root.extent(index), site, end, &mut floor));
    }
    let mut levels = Levels::default();
    let depth = root.depth;
    let mut stack = vec![root];
    while let Some(node) = stack.last_mut() {
        let index = node.next;
        if index >= node.entries {
            stack.pop();
            continue;
        }
        node.next += 1;
        let node = stack.last().expect("just looked at");
        if node.depth == 0 {
            let (site, end) = (node.site(walk), node.end);
            leaf_entry(walk, &node.extent(index), site, end, &mut floor);
        } else if let Some(child) = index_entry(walk, node, index, floor) {
            levels.add(&child);
            stack.push(child);
            assert!(stack.len() <= usize::from(DEPTH_MAX) + 1, "{} levels of a tree", stack.len());
        }
    }
    let capacity = usize::from(block_capacity(walk.volume.block_size())).saturating_sub(2);
    if !walk.damaged && levels.are_loose(depth, capacity) {
        walk.sink.add(Code::EXTENT_TREE_LOOSE, walk.site(), "");
    }
}

/// How many nodes there are below the root, and how many entries they have, by the depth of the
/// nodes (0 for leaves).
#[derive(Default)]
struct Levels([(usize, usize); 5]);

impl Levels {
    fn add(&mut self, node: &Node<'_>) {
        if let Some((nodes, entries)) = self.0.get_mut(usize::from(node.depth)) {
            *nodes += 1;
            *entries += node.entries;
        }
    }

    /// Whether e2fsck would rebuild a tree. As observed, e2fsck does so in two cases:
    /// - The entries of the nodes right below the root fit into the root with room to spare.
    /// - A level of E entries has more than E / `capacity` + 1 nodes, where the quotient is rounded
    ///   down, and `capacity` is two less than a node can hold.
    fn are_loose(&self, depth: u16, capacity: usize) -> bool {
        let Some(levels) = self.0.get(..usize::from(depth)) else { return false };
        let is_short = levels.last().is_some_and(|(_, entries)| *entries < usize::from(ROOT_CAPACITY));
        debug_assert!(levels.iter().all(|(nodes, entries)| nodes <= entries), "an empty node");
        is_short || levels.iter().any(|(nodes, entries)| entries / capacity + 1 < *nodes)
    }
}

/// Salvages a tree whose keys contradict one another: keeps as many extents as possible that are in
/// logical order, and ignores the keys in index nodes. So one extent out of order does not cost the
/// extents after it. No run that is kept ends past `end`.
pub(crate) fn salvage_extents(walk: &mut Walk<'_, '_>, i_block: &[u8; 60], end: u64) {
    let Some(root) = open_node(walk, Cow::Borrowed(i_block), None, None, end) else { return };
    let mut runs = Vec::new();
    let mut stack = vec![root];
    while let Some(node) = stack.last_mut() {
        let index = node.next;
        if index >= node.entries {
            stack.pop();
            continue;
        }
        node.next += 1;
        if node.depth == 0 {
            runs.extend(possible_run(walk, &node.extent(index), end));
            continue;
        }
        let depth = node.depth - 1;
        let raw = RawExtentIndex::read_from_bytes(node.entry(index)).expect("an entry has 12 bytes");
        let place = Some(raw.leaf()).filter(|place| walk.volume.contains(*place));
        let child = place.and_then(|place| {
            let bytes = walk.enter(place, 0)?;
            open_node(walk, Cow::Owned(bytes), Some(place), Some(depth), end)
        });
        if let Some(child) = child {
            stack.push(child);
            assert!(stack.len() <= usize::from(DEPTH_MAX) + 1, "{} levels of a tree", stack.len());
        }
    }
    for run in most_in_order(&runs) {
        walk.data(run);
    }
}

/// The run of an extent; `None` when it is empty, leaves the file system, or ends past `end`.
fn possible_run(walk: &Walk<'_, '_>, extent: &RawExtent, end: u64) -> Option<Run> {
    let (logical, length) = (u64::from(extent.ee_block.get()), u64::from(extent.length()));
    let inside = length > 0 && walk.volume.contains_range(extent.start(), length);
    let run = Run { logical, physical: extent.start().raw(), length, unwritten: extent.is_unwritten() };
    Some(run).filter(|_| inside && logical + length <= end)
}

/// As many of the runs as possible, in the list's order, so that they ascend without overlapping.
fn most_in_order(runs: &[Run]) -> Vec<Run> {
    // `ends[n]`: the last run of the best chain of n + 1 runs so far. The best is the one that ends
    // at the lowest logical block. `before[i]`: the run before run i in the chain that ends with i.
    let mut ends: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = Vec::with_capacity(runs.len());
    let end_of = |nth: usize| runs[nth].logical + runs[nth].length;
    for (nth, run) in runs.iter().enumerate() {
        let length = ends.partition_point(|&last| end_of(last) <= run.logical);
        before.push(length.checked_sub(1).map(|shorter| ends[shorter]));
        match ends.get_mut(length) {
            Some(last) if end_of(nth) < end_of(*last) => *last = nth,
            Some(_) => {}
            None => ends.push(nth),
        }
    }
    let mut chain: Vec<Run> =
        std::iter::successors(ends.last().copied(), |&nth| before[nth]).map(|nth| runs[nth]).collect();
    chain.reverse();
    debug_assert!(chain.is_sorted_by(|a, b| a.logical + a.length <= b.logical), "a chain out of order");
    chain
}

/// Checks a node's header and checksum. `None` if the header is unusable. For the root, `place` and
/// `depth` (the depth that the parent requires) are `None`.
fn open_node<'b>(
    walk: &mut Walk<'_, '_>,
    bytes: Cow<'b, [u8]>,
    place: Option<BlockNr>,
    depth: Option<u16>,
    end: u64,
) -> Option<Node<'b>> {
    let site = place.map_or_else(|| walk.site(), |block| walk.site().at_block(block));
    let (header, _) = RawExtentHeader::read_from_prefix(&bytes).expect("a node has 60 bytes at least");
    let capacity = if place.is_some() { block_capacity(walk.volume.block_size()) } else { ROOT_CAPACITY };
    let (entries, max, found) = (header.eh_entries.get(), header.eh_max.get(), header.eh_depth.get());
    let sound = header.eh_magic.get() == MAGIC
        && entries <= max
        && max <= capacity
        && max > 0
        // In a block, `eh_max` may be up to two less than the capacity.
        && (place.is_none() || max + 2 >= capacity)
        && (depth.is_some() || found <= DEPTH_MAX || entries == 0)
        && (entries > 0 || depth.is_none());
    if !sound {
        let code = if place.is_some() { Code::EXTENT_HEADER } else { Code::EXTENT_TREE_READ };
        let magic = header.eh_magic.get();
        walk.fault(code, site, format!("magic {magic:#06x}, {entries} of {max} entries, depth {found}"));
        return None;
    }
    if depth.is_some_and(|depth| depth != found) {
        walk.sink.add(Code::EXTENT_DEPTH, site, format!("{found}"));
    }
    if depth.is_none() && found > DEPTH_MAX {
        walk.sink.add(Code::EXTENT_ROOT_DEPTH, site, format!("{found}"));
    }
    if place.is_some() && verify_extent_block(walk.seed, &bytes).is_err() {
        walk.sink.add(Code::EXTENT_CHECKSUM, site, "");
    }
    let ends = 12 + 12 * usize::from(entries);
    assert!(ends <= bytes.len(), "{entries} entries end at byte {ends} of {}", bytes.len());
    Some(Node { bytes, entries: usize::from(entries), next: 0, depth: depth.unwrap_or(found), end, place })
}

fn leaf_entry(walk: &mut Walk<'_, '_>, extent: &RawExtent, site: Site, end: u64, floor: &mut u64) {
    let logical = u64::from(extent.ee_block.get());
    let length = u64::from(extent.length());
    let start = extent.start();
    let site = site.at_logical(logical);
    if length == 0 {
        return walk.fault(Code::EXTENT_EMPTY, site, "");
    }
    if logical < *floor {
        let code = if logical + length > *floor { Code::EXTENT_OVERLAP } else { Code::EXTENT_ORDER };
        return walk.fault(code, site, "");
    }
    if !walk.volume.contains(start) {
        return walk.fault(Code::EXTENT_START, site, format!("block {start}"));
    }
    if !walk.volume.contains_range(start, length) {
        return walk.fault(Code::EXTENT_END, site, format!("{length} blocks from block {start}"));
    }
    if logical + length > end {
        let detail = format!(
            "goes on up to logical block {} (exclusive), the parent's range up to {end}",
            logical + length
        );
        return walk.fault(Code::EXTENT_BEYOND_PARENT, site, detail);
    }
    *floor = logical + length;
    walk.data(Run { logical, physical: start.raw(), length, unwritten: extent.is_unwritten() });
}

fn index_entry<'b>(walk: &mut Walk<'_, '_>, node: &Node<'_>, index: usize, floor: u64) -> Option<Node<'b>> {
    let raw = RawExtentIndex::read_from_bytes(node.entry(index)).expect("12 bytes");
    let key = u64::from(raw.ei_block.get());
    let (site, child) = (node.site(walk).at_logical(key), raw.leaf());
    let (depth, end) = (node.depth - 1, node.following(index));
    if key < floor || key >= end {
        walk.fault(Code::EXTENT_ORDER, site, "");
        return None;
    }
    if !walk.volume.contains(child) {
        walk.fault(Code::EXTENT_START, site, format!("index points to block {child}"));
        return None;
    }
    let bytes = walk.enter(child, 0)?;
    let child = open_node(walk, Cow::Owned(bytes), Some(child), Some(depth), end)?;
    let [a, b, c, d, ..] = *child.entry(0) else { return None };
    let first = u64::from(u32::from_le_bytes([a, b, c, d]));
    if first != key {
        walk.sink.add(Code::EXTENT_INDEX_KEY, site, format!("the first key below is {first}"));
    }
    Some(child)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(places: &[(u64, u64)]) -> Vec<Run> {
        places
            .iter()
            .map(|&(logical, length)| Run { logical, physical: 100, length, unwritten: false })
            .collect()
    }

    fn kept(places: &[(u64, u64)]) -> Vec<u64> {
        most_in_order(&runs(places)).iter().map(|run| run.logical).collect()
    }

    /// The expected answers are those of e2fsck, for nodes of 84 entries (blocks of 1 KiB). Each
    /// pair is the nodes and entries of one level, leaves first.
    #[test]
    fn trees_are_loose_where_e2fsck_says_so() {
        let is_loose = |levels: &[(usize, usize)]| {
            let mut all = Levels::default();
            all.0[..levels.len()].copy_from_slice(levels);
            all.are_loose(u16::try_from(levels.len()).expect("few levels"), 82)
        };
        for loose in [
            &[(1, 3)][..],
            &[(2, 2)],
            &[(2, 80)],
            &[(2, 81)],
            &[(4, 167)],
            &[(1, 4), (1, 1)],
            &[(4, 40), (1, 4)],
            &[(9, 583), (1, 9)],
            &[(10, 600), (1, 10)],
            &[(60, 4980), (3, 60)],
        ] {
            assert!(is_loose(loose), "{loose:?}");
        }
        for tight in [
            &[(1, 4)][..],
            &[(2, 82)],
            &[(2, 83)],
            &[(2, 84)],
            &[(4, 250)],
            &[(5, 333), (1, 5)],
            &[(4, 332), (1, 4)],
            &[(83, 6889), (2, 83)],
        ] {
            assert!(!is_loose(tight), "{tight:?}");
        }
    }

    #[test]
    fn the_run_out_of_order_goes_alone() {
        assert_eq!(kept(&[]), Vec::<u64>::new());
        assert_eq!(kept(&[(0, 4), (8, 4), (16, 4)]), [0, 8, 16]);
        assert_eq!(kept(&[(0, 4), (9000, 4), (16, 4), (24, 4)]), [0, 16, 24], "too far");
        assert_eq!(kept(&[(0, 4), (8, 4), (2, 4), (24, 4)]), [0, 8, 24], "too near");
        assert_eq!(kept(&[(0, 400), (8, 4), (16, 4)]), [8, 16], "too long");
        assert_eq!(kept(&[(0, 4), (4, 4), (8, 4)]), [0, 4, 8], "side by side");
    }
}
