//! The extent tree of a file that never changes, as it results from adding extents one by one in
//! order.
//!
//! When an entry is added to a full node, the node is split: its last entry moves to a new node. So
//! in each level, all nodes but the last hold one entry less than they could.
//!
//! Invariants: level 0 holds the extents; each higher level has one entry per node below. The
//! highest level has at most four entries and is the root, in the inode. With 1 KiB blocks, a tree
//! of depth 2 holds more than 27,000 extents.

use blockyard_disk::checksum::{seal_extent_block, verify_extent_block};
use blockyard_disk::extent::{
    MAGIC, ROOT_CAPACITY, RawExtent, RawExtentHeader, RawExtentIndex, block_capacity,
};
use blockyard_disk::num::{low16, u32_from_u64, u32_from_usize, usize_from_u64};
use blockyard_disk::{BlockNr, LogicalBlock};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U16;

/// Consecutive blocks of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First block of the run in the file.
    pub logical: u64,
    /// First block of the run on the device.
    pub physical: u64,
    /// Number of blocks; in an extent tree at most 32768.
    pub len: u64,
}

/// Extents in logical order and the blocks of the nodes that hold them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtentTree {
    pub(super) runs: Vec<Run>,
    /// Blocks of the nodes by level, leaves first; empty while the root holds all extents.
    levels: Vec<Vec<u64>>,
}

/// The size in bytes of the header, and also of each entry.
const ENTRY: usize = RawExtentHeader::SIZE;

fn capacity(block_size: u64) -> usize {
    usize::from(block_capacity(usize_from_u64(block_size)))
}

/// Number of nodes that one level needs for this many entries.
fn nodes_for(entries: usize, capacity: usize) -> usize {
    1 + entries.saturating_sub(capacity).div_ceil(capacity - 1)
}

impl ExtentTree {
    /// A tree of these extents. `nodes` are the blocks for its nodes, as many as
    /// [`Self::nodes_for`] returns.
    ///
    /// # Panics
    /// When `nodes` has more or fewer blocks.
    #[must_use]
    pub fn of(runs: Vec<Run>, nodes: &[u64], block_size: u64) -> Self {
        let mut tree = Self { runs, levels: Vec::new() };
        let mut nodes = nodes.iter();
        while let Some(level) = tree.lacking(block_size) {
            let node = nodes.next().expect("a block for each node");
            tree.add_node(level, *node);
        }
        assert!(nodes.next().is_none(), "a block for no node");
        tree
    }

    /// Number of nodes that this many extents need besides the inode.
    #[must_use]
    pub fn nodes_for(extents: usize, block_size: u64) -> usize {
        let (mut entries, mut nodes) = (extents, 0);
        while entries > usize::from(ROOT_CAPACITY) {
            entries = nodes_for(entries, capacity(block_size));
            nodes += entries;
        }
        nodes
    }

    /// The highest level that lacks a node; `None` if none does.
    pub(super) fn lacking(&self, block_size: u64) -> Option<usize> {
        let mut needed = Vec::new();
        let mut entries = self.runs.len();
        while entries > usize::from(ROOT_CAPACITY) {
            entries = nodes_for(entries, capacity(block_size));
            needed.push(entries);
        }
        let have = |level: usize| self.levels.get(level).map_or(0, Vec::len);
        (0..needed.len()).rev().find(|level| have(*level) < needed[*level])
    }

    /// Adds a node to a level.
    pub(super) fn add_node(&mut self, level: usize, block: u64) {
        if self.levels.len() <= level {
            self.levels.resize(level + 1, Vec::new());
        }
        self.levels[level].push(block);
    }

    /// The content of `i_block`. Entries that were in the root before the tree grew stay after the
    /// used ones, as mke2fs leaves them.
    #[must_use]
    pub fn root(&self, block_size: u64) -> [u8; 60] {
        let mut bytes = [0; 60];
        put_extents(&mut bytes[ENTRY..], &self.runs);
        let mut used = self.runs.len();
        for (level, nodes) in self.levels.iter().enumerate() {
            self.put_indexes(&mut bytes[ENTRY..], level, nodes, 0, block_size);
            used = nodes.len();
        }
        assert!(used <= usize::from(ROOT_CAPACITY), "{used} entries in a root");
        let header = header(used, usize::from(ROOT_CAPACITY), self.levels.len());
        bytes[..ENTRY].copy_from_slice(header.as_bytes());
        bytes
    }

    /// The node blocks with their content; `seed` is that of the owner's checksums, `None` without
    /// metadata_csum.
    #[must_use]
    pub fn blocks(&self, block_size: u64, seed: Option<u32>) -> Vec<(u64, Vec<u8>)> {
        let capacity = capacity(block_size);
        let mut blocks = Vec::new();
        for (level, nodes) in self.levels.iter().enumerate() {
            for (index, at) in nodes.iter().enumerate() {
                let mut bytes = vec![0; usize_from_u64(block_size)];
                let first = index * (capacity - 1);
                let is_last = index + 1 == nodes.len();
                let end = |all: usize| if is_last { all } else { first + capacity - 1 };
                let used = if level == 0 {
                    let runs = &self.runs[first..end(self.runs.len())];
                    // After a split, the entry that moved to the new node is still in this node,
                    // after the used entries.
                    put_extents(&mut bytes[ENTRY..capacity * ENTRY + ENTRY], &self.runs[first..]);
                    runs.len()
                } else {
                    let below = &self.levels[level - 1];
                    let place = &mut bytes[ENTRY..capacity * ENTRY + ENTRY];
                    self.put_indexes(place, level - 1, &below[first..], first, block_size);
                    end(below.len()) - first
                };
                assert!(used <= capacity, "{used} entries in a node for {capacity}");
                bytes[..ENTRY].copy_from_slice(header(used, capacity, level).as_bytes());
                seal_extent_block(seed, &mut bytes);
                debug_assert!(verify_extent_block(seed, &bytes).is_ok(), "a node that would not be read");
                blocks.push((*at, bytes));
            }
        }
        blocks
    }

    /// Writes index entries for `nodes`, as many as fit in `bytes`. `nodes` are the nodes of
    /// `level` from number `first` on.
    fn put_indexes(&self, bytes: &mut [u8], level: usize, nodes: &[u64], first: usize, block_size: u64) {
        let level = u32_from_usize(level) + 1;
        let extents_per_node = (capacity(block_size) - 1).pow(level);
        for (index, (place, at)) in bytes.chunks_exact_mut(ENTRY).zip(nodes).enumerate() {
            let run = &self.runs[(first + index) * extents_per_node];
            let entry = RawExtentIndex::new(logical(run.logical), BlockNr::new(*at));
            place.copy_from_slice(entry.as_bytes());
        }
    }
}

fn header(entries: usize, max: usize, depth: usize) -> RawExtentHeader {
    let count = |n: usize| U16::new(low16(u32_from_usize(n)));
    let mut header = RawExtentHeader::zeroed();
    header.eh_magic = U16::new(MAGIC);
    header.eh_entries = count(entries);
    header.eh_max = count(max);
    header.eh_depth = count(depth);
    header
}

fn logical(block: u64) -> LogicalBlock {
    LogicalBlock::new(u32_from_u64(block))
}

fn put_extents(bytes: &mut [u8], runs: &[Run]) {
    for (place, run) in bytes.chunks_exact_mut(ENTRY).zip(runs) {
        let len = low16(u32_from_u64(run.len));
        let extent = RawExtent::new(logical(run.logical), len, BlockNr::new(run.physical), false);
        place.copy_from_slice(extent.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::{ExtentTree, Run};

    fn grown(extents: u64) -> ExtentTree {
        let mut tree = ExtentTree::default();
        let mut next = 10_000_000;
        for logical in 0..extents {
            tree.runs.push(Run { logical, physical: logical * 2, len: 1 });
            while let Some(level) = tree.lacking(1024) {
                tree.add_node(level, next);
                next += 1;
            }
        }
        tree
    }

    #[test]
    fn levels_grow_when_the_root_is_full() {
        let nodes = |extents| grown(extents).levels.iter().map(Vec::len).collect::<Vec<_>>();
        assert!(nodes(4).is_empty());
        assert_eq!(nodes(5), [1]);
        assert_eq!(nodes(84), [1]);
        assert_eq!(nodes(83 * 3 + 84), [4]);
        assert_eq!(nodes(83 * 3 + 85), [5, 1]);
        assert_eq!(nodes(83 * 83 + 85), [85, 2]);
    }

    #[test]
    fn the_root_names_the_top_level_only() {
        let tree = grown(400);
        let root = tree.root(1024);
        assert_eq!((root[2], root[6]), (1, 2), "one entry, depth 2");
        let at = u64::from(u32::from_le_bytes(root[16..20].try_into().unwrap()));
        let (_, top) = tree.blocks(1024, None).into_iter().find(|(block, _)| *block == at).unwrap();
        assert_eq!((top[2], top[6]), (5, 1), "five leaves");
        assert_eq!(u32::from_le_bytes(top[24..28].try_into().unwrap()), 83, "second leaf's first block");
    }
}
