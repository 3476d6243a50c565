//! The path from the root to a leaf: one level per node, with the entry that was followed.
//!
//! A path pins its nodes, so they stay in memory until a change that uses the path is applied.

use super::{DEPTH_MAX, Extent, NodeBlock, ROOT_BYTES, TreeStore, node};
use crate::Result;
use blockyard_disk::num::{low16, u32_from_usize};
use blockyard_disk::{BlockNr, Corruption, CorruptionKind};

/// Which node: the root in the inode, or a block.
#[derive(Clone)]
pub(super) enum At<N> {
    /// The 60 bytes in the inode.
    Root,
    /// A tree block.
    Block(BlockNr, N),
}

impl<N: NodeBlock> At<N> {
    /// Runs `f` on the node's bytes.
    pub(super) fn read<R>(&self, root: &[u8; ROOT_BYTES], f: impl FnOnce(&[u8]) -> R) -> R {
        match self {
            Self::Root => f(root),
            Self::Block(_, node) => node.read(f),
        }
    }

    /// The node's block number, unless it is the root.
    pub(super) const fn block(&self) -> Option<BlockNr> {
        match self {
            Self::Root => None,
            Self::Block(block, _) => Some(*block),
        }
    }
}

/// One node on a path.
#[derive(Clone)]
pub(super) struct Level<N> {
    /// The node.
    pub(super) at: At<N>,
    /// The entry with the largest key that is at most the target; `None` if all keys are larger. In
    /// that case the first entry of an index node is followed.
    pub(super) position: Option<usize>,
    /// Entries in the node when it was visited.
    pub(super) count: usize,
    /// Entries that fit the node.
    pub(super) max: usize,
}

impl<N> Level<N> {
    /// The entry followed from an index node. In a leaf: the entry at the position, or the first.
    pub(super) fn followed(&self) -> usize {
        self.position.unwrap_or(0)
    }
}

/// The nodes from the root (first) to a leaf (last).
pub(super) struct Path<N> {
    levels: [Option<Level<N>>; DEPTH_MAX + 1],
    depth: usize,
}

impl<N: NodeBlock> Path<N> {
    /// Walks down to the leaf that holds, or would hold, `logical`.
    pub(super) fn find<S: TreeStore<Node = N>>(
        root: &[u8; ROOT_BYTES],
        store: &S,
        logical: u32,
    ) -> Result<Self> {
        let mut path = Self { levels: [const { None }; DEPTH_MAX + 1], depth: node::depth(root) };
        debug_assert!(path.depth <= DEPTH_MAX, "a tree of depth {}", path.depth);
        let mut at = At::Root;
        for level in 0..=path.depth {
            let (position, count, max, child) = at.read(root, |bytes| {
                let position = node::position(bytes, logical);
                let child = (level < path.depth).then(|| node::child(bytes, position.unwrap_or(0)));
                (position, node::count(bytes), node::max(bytes), child)
            });
            path.levels[level] = Some(Level { at, position, count, max });
            let Some(child) = child else { break };
            let block = BlockNr::new(child);
            let below = low16(u32_from_usize(path.depth - level - 1));
            at = At::Block(block, store.load(block, below)?);
        }
        Ok(path)
    }

    /// Levels below the root.
    pub(super) const fn depth(&self) -> usize {
        self.depth
    }

    /// A level, 0 for the root.
    pub(super) fn level(&self, level: usize) -> &Level<N> {
        self.levels[level].as_ref().expect("find fills levels 0..=depth")
    }

    /// The leaf's level.
    pub(super) fn leaf(&self) -> &Level<N> {
        self.level(self.depth)
    }

    /// All levels from the root down.
    pub(super) fn levels(&self) -> impl Iterator<Item = &Level<N>> {
        self.levels.iter().flatten()
    }

    /// The logical block at which the next leaf begins, as the keys of the nodes above say; `None`
    /// for the last leaf.
    pub(super) fn next_leaf_key(&self, root: &[u8; ROOT_BYTES]) -> Option<u32> {
        (0..self.depth).rev().find_map(|index| {
            let level = self.level(index);
            let next = level.followed() + 1;
            (next < level.count).then(|| level.at.read(root, |bytes| node::key(bytes, next)))
        })
    }

    /// The first extent of the next leaf; `None` for the last leaf, or if the next one is empty.
    pub(super) fn next_leaf_first<S: TreeStore<Node = N>>(
        &self,
        root: &[u8; ROOT_BYTES],
        store: &S,
    ) -> Result<Option<Extent>> {
        let Some(key) = self.next_leaf_key(root) else { return Ok(None) };
        let next = Self::find(root, store, key)?;
        let leaf = next.leaf();
        let first = (leaf.count > 0).then(|| leaf.at.read(root, |bytes| node::leaf_entry(bytes, 0)));
        // A walk from leaf to leaf follows the keys in the parents. If a leaf did not start at its
        // key, the walk could go backwards.
        if first.is_some_and(|first| first.logical != key) {
            let found = Corruption::new(CorruptionKind::ExtentParentKey);
            return Err(leaf.at.block().map_or(found, |block| found.in_block(block)).into());
        }
        Ok(first)
    }
}
