//! Extent trees: which physical blocks hold which logical blocks of a file.
//!
//! The tree is edited in its on-disk form: the root is the inode's 60-byte `i_block`, other nodes
//! are blocks of the metadata cache behind [`TreeStore`]. There is no decoded copy that must be
//! kept in step. For a small file, whose extents (at most four) lie in the root, no block is read.
//!
//! Invariants, after every public call, even if it failed:
//! * leaf entries are sorted and disjoint;
//! * the first key of a node equals the key of the parent's entry that leads to the node;
//! * a node other than the root is never empty; the root of an empty tree has depth 0;
//! * `len <= 32768` when written, `<= 32767` when unwritten.
//!
//! Failure discipline: each step of a change reads and allocates its tree blocks before it changes
//! the first byte. So an insertion that runs out of space leaves the mapping as it was, but the
//! tree may be deeper. A failed change of a range may have been made for a part of the range.

mod bound;
mod convert;
mod insert;
mod node;
mod path;
mod remove;
mod shift;

#[cfg(test)]
mod model;

pub(crate) use bound::blocks_for_entries;
pub(crate) use node::{check_node, empty_root, has_sound_header};

use crate::Result;
use blockyard_disk::BlockNr;
use path::{At, Path};
use std::collections::HashSet;

/// Bytes of the root node: all of `i_block`.
pub(crate) const ROOT_BYTES: usize = 60;
/// Entries that the root can hold.
const ROOT_ENTRIES: usize = (ROOT_BYTES - 12) / 12;
/// Deepest tree that the format allows.
pub(crate) const DEPTH_MAX: usize = 5;
/// Longest written extent, in blocks.
pub(crate) const WRITTEN_MAX: u32 = 32_768;
/// Longest unwritten extent, in blocks.
pub(crate) const UNWRITTEN_MAX: u32 = 32_767;

/// A run of logical blocks mapped to a run of physical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First logical block.
    pub logical: u32,
    /// Blocks, at least 1.
    pub len: u32,
    /// First physical block.
    pub physical: u64,
    /// Whether the blocks are allocated but read as zeroes.
    pub unwritten: bool,
}

impl Extent {
    /// One past the last logical block. Never wraps: the format's last logical block is 2^32 - 2.
    pub const fn end(&self) -> u32 {
        self.logical + self.len
    }

    /// The greatest length of an extent in this state.
    const fn len_max(&self) -> u32 {
        if self.unwritten { UNWRITTEN_MAX } else { WRITTEN_MAX }
    }

    /// Whether `next` continues this extent logically and physically, has the same state, and both
    /// together fit into one entry.
    const fn joins(&self, next: &Self) -> bool {
        self.unwritten == next.unwritten
            && self.end() == next.logical
            && self.physical + blockyard_disk::num::u64_from_u32(self.len) == next.physical
            && self.len + next.len <= self.len_max()
    }

    /// The part from logical block `from` (inside the extent) on.
    fn tail(&self, from: u32) -> Self {
        debug_assert!((self.logical..=self.end()).contains(&from), "{from} in {self:?}");
        let skip = from - self.logical;
        Self { logical: from, len: self.len - skip, physical: self.physical + u64::from(skip), ..*self }
    }
}

/// A block of a tree or a directory that stays in memory while this value lives.
pub(crate) trait NodeBlock: Clone {
    /// Runs `f` on the block's bytes.
    fn read<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R;
    /// Runs `f` on the block's bytes to change them. The block must have joined the transaction.
    fn write<R>(&self, f: impl FnOnce(&mut [u8]) -> R) -> R;
}

/// Source of tree blocks: the cache and the transaction in the engine, a map in the tests.
pub(crate) trait TreeStore {
    /// One tree block.
    type Node: NodeBlock;
    /// Reads a node. Fails unless the node has the stated depth and passes [`check_node`].
    fn load(&self, block: BlockNr, depth: u16) -> Result<Self::Node>;
    /// Joins a node to the transaction. Must be called before the node is changed.
    fn prepare(&self, node: &Self::Node) -> Result<()>;
    /// A new zeroed node, near `goal` if there is space. With `exact`, that very block is tried
    /// first.
    fn allocate(&self, goal: Option<BlockNr>, exact: bool) -> Result<(BlockNr, Self::Node)>;
    /// Prepares to free a node: until the handle ends, [`TreeStore::free`] cannot fail for it.
    fn prepare_free(&self, block: BlockNr) -> Result<()>;
    /// Frees a node: the transaction forgets and revokes it.
    fn free(&self, block: BlockNr) -> Result<()>;
}

/// What a lookup found at a logical block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lookup {
    /// The extent that contains the block.
    pub(crate) found: Option<Extent>,
    /// The nearest extent that ends at or before the block (only if no extent contains it).
    pub(crate) left: Option<Extent>,
    /// The nearest extent that starts after the block.
    pub(crate) right: Option<Extent>,
    /// The block that holds the leaf, when it is not the root.
    pub(crate) leaf: Option<BlockNr>,
    /// The first entry of the leaf. If no extent lies to the left, the goal of an allocation is
    /// computed from it (docs/behaviour/block-allocation.md, "Requests").
    pub(crate) first_in_leaf: Option<Extent>,
}

/// Looks up a logical block in the tree below `root`.
pub(crate) fn lookup<S: TreeStore>(root: &[u8; ROOT_BYTES], store: &S, logical: u32) -> Result<Lookup> {
    if node::depth(root) == 0 {
        return Ok(lookup_in_root(root, logical));
    }
    let path = Path::find(root, store, logical)?;
    let leaf = path.leaf();
    let (at, count) = (leaf.at.clone(), leaf.count);
    let (here, next, first) = at.read(root, |bytes| {
        let here = leaf.position.map(|position| node::leaf_entry(bytes, position));
        let next_position = leaf.position.map_or(0, |position| position + 1);
        let next = (next_position < count).then(|| node::leaf_entry(bytes, next_position));
        let first = (count > 0).then(|| node::leaf_entry(bytes, 0));
        (here, next, first)
    });
    let found = here.filter(|extent| logical < extent.end());
    let right = match next {
        Some(extent) => Some(extent),
        None => path.next_leaf_first(root, store)?,
    };
    Ok(Lookup {
        found,
        left: here.filter(|_| found.is_none()),
        right,
        leaf: at.block(),
        first_in_leaf: first,
    })
}

/// [`lookup`] in a tree that has no node but its root, as in most files.
fn lookup_in_root(root: &[u8; ROOT_BYTES], logical: u32) -> Lookup {
    let count = node::count(root);
    let position = node::position(root, logical);
    let here = position.map(|position| node::leaf_entry(root, position));
    let next = position.map_or(0, |position| position + 1);
    let found = here.filter(|extent| logical < extent.end());
    Lookup {
        found,
        left: here.filter(|_| found.is_none()),
        right: (next < count).then(|| node::leaf_entry(root, next)),
        leaf: None,
        first_in_leaf: (count > 0).then(|| node::leaf_entry(root, 0)),
    }
}

/// The holes between the extents of a tree that has no node but its root; none for a deeper tree.
pub(crate) fn gaps_in_root(root: &[u8; ROOT_BYTES]) -> impl Iterator<Item = std::ops::Range<u32>> {
    let count = if node::depth(root) == 0 { node::count(root) } else { 0 };
    (1..count)
        .map(|index| node::leaf_entry(root, index - 1).end()..node::key(root, index))
        .filter(|gap| !gap.is_empty())
}

/// Nodes of a tree that stay in memory while this value lives, so that they can be changed without
/// reading a block.
#[must_use = "the nodes may leave memory when this is dropped"]
pub(crate) struct HeldNodes<N> {
    /// One path for each leaf.
    _paths: Vec<Path<N>>,
    blocks: HashSet<BlockNr>,
}

impl<N> HeldNodes<N> {
    /// How many nodes there are: the leaves, and those between them and the root. The root lies in
    /// the inode and is not counted.
    pub(crate) fn count(&self) -> usize {
        self.blocks.len()
    }
}

/// Holds the leaf that covers the block before `logical`, every later leaf, and the nodes above
/// them. Stops as soon as more than `most` nodes are held.
pub(crate) fn hold_from<S: TreeStore>(
    root: &[u8; ROOT_BYTES],
    store: &S,
    logical: u32,
    most: usize,
) -> Result<HeldNodes<S::Node>> {
    let mut held = HeldNodes { _paths: Vec::new(), blocks: HashSet::new() };
    let mut at = Some(logical.saturating_sub(1));
    while let Some(logical) = at.filter(|_| held.blocks.len() <= most) {
        let path = Path::find(root, store, logical)?;
        // Keys ascend in a sound tree. In a damaged one the walk ends where they do not.
        at = path.next_leaf_key(root).filter(|next| *next > logical);
        held.blocks.extend(path.levels().filter_map(|level| level.at.block()));
        held._paths.push(path);
    }
    Ok(held)
}

/// A tree open for changes: the root's bytes and the store of its other nodes.
pub(crate) struct Tree<'a, S: TreeStore> {
    root: &'a mut [u8; ROOT_BYTES],
    store: &'a S,
}

impl<'a, S: TreeStore> Tree<'a, S> {
    /// Opens the tree below `root`, which has passed [`check_node`].
    pub(crate) const fn new(root: &'a mut [u8; ROOT_BYTES], store: &'a S) -> Self {
        Self { root, store }
    }

    /// See [`lookup`].
    pub(crate) fn lookup(&self, logical: u32) -> Result<Lookup> {
        lookup(self.root, self.store, logical)
    }

    fn find(&self, logical: u32) -> Result<Path<S::Node>> {
        Path::find(self.root, self.store, logical)
    }

    fn read<R>(&self, at: &At<S::Node>, f: impl FnOnce(&[u8]) -> R) -> R {
        at.read(self.root, f)
    }

    fn write<R>(&mut self, at: &At<S::Node>, f: impl FnOnce(&mut [u8]) -> R) -> R {
        match at {
            At::Root => f(self.root),
            At::Block(_, node) => node.write(f),
        }
    }

    fn prepare(&self, at: &At<S::Node>) -> Result<()> {
        match at {
            At::Root => Ok(()),
            At::Block(_, node) => self.store.prepare(node),
        }
    }

    /// [`Self::prepare_path`] for a change that may empty nodes: freeing them cannot fail
    /// afterwards.
    fn prepare_removal(&self, path: &Path<S::Node>) -> Result<()> {
        self.prepare_path(path)?;
        path.levels()
            .filter_map(|level| level.at.block())
            .try_for_each(|block| self.store.prepare_free(block))
    }

    /// Joins every node of a path to the transaction, because keys may change up to the root.
    fn prepare_path(&self, path: &Path<S::Node>) -> Result<()> {
        path.levels().try_for_each(|level| self.prepare(&level.at))
    }
}
