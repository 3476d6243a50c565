//! Inserts an extent. It merges with a neighbour or gets an entry of its own. If the leaf is full,
//! the entry goes into the next leaf, or nodes are split, or the tree gets one level more. If the
//! tree has only one leaf afterwards, and the leaf fits into the root, it is pulled into the root.
//!
//! A split allocates one block per level below the nearest ancestor with a free entry, before
//! anything changes. It moves only what lies right of the new entry. So an append starts a fresh
//! leaf and moves nothing, which keeps the leaves of sequential files full. The blocks of a split
//! are requested near the data of the extent that needs them; [`Tree::grow`] has a goal of its own.

use super::{At, DEPTH_MAX, Extent, NodeBlock, Path, ROOT_ENTRIES, Tree, TreeStore, node};
use crate::{Error, Result};
use blockyard_disk::BlockNr;

impl<S: TreeStore> Tree<'_, S> {
    /// Maps an extent whose logical blocks are not mapped. Merges with the neighbours in its leaf
    /// if possible.
    pub(crate) fn insert(&mut self, new: Extent) -> Result<()> {
        debug_assert!(new.len > 0 && new.len <= new.len_max(), "{new:?}");
        let path = self.find(new.logical)?;
        self.prepare_path(&path)?;
        let (count, max) = (path.leaf().count, path.leaf().max);
        // An insertion removes at most two entries: the entry that grows may join the one after it
        // and the one before it. So a leaf with more than `ROOT_ENTRIES + 2` entries stays too full
        // for the root.
        let may_fit_root = count <= ROOT_ENTRIES + 2;
        // If `new` directly follows an extent that it cannot join, it first gets an entry of its
        // own, which may then join the extent after it (as in Linux, observed on 6.18). If there is
        // no room for an entry of its own, `new` is merged into the extent after it directly. The
        // order matters only if the leaf is full.
        let apart = count == max && self.follows_without_joining(&path, &new);
        if apart || !self.merge_into_neighbour(&path, &new) {
            match self.insert_entry(path, new) {
                Err(Error::NoSpace | Error::FileTooLarge) if apart && self.insert_into_right(&new)? => {}
                other => other?,
            }
            if count == max {
                self.join_around(new.logical)?;
            }
        }
        if may_fit_root { self.pull_into_root() } else { Ok(()) }
    }

    /// Whether `new` directly follows an extent of the leaf, but does not join it.
    fn follows_without_joining(&self, path: &Path<S::Node>, new: &Extent) -> bool {
        let leaf = path.leaf();
        leaf.position.is_some_and(|position| {
            let left = self.read(&leaf.at, |bytes| node::leaf_entry(bytes, position));
            left.end() == new.logical && !left.joins(new)
        })
    }

    /// The fallback of [`Self::insert`] when there is no room for a separate entry: merges `new`
    /// into the extent after it. Returns whether that was possible.
    fn insert_into_right(&mut self, new: &Extent) -> Result<bool> {
        let path = self.find(new.logical)?;
        self.prepare_path(&path)?;
        Ok(self.merge_into_neighbour(&path, new))
    }

    /// Joins the entry at `logical` with its neighbours in the leaf.
    fn join_around(&mut self, logical: u32) -> Result<()> {
        let path = self.find(logical)?;
        self.prepare_path(&path)?;
        let Some(index) = path.leaf().position else { return Ok(()) };
        self.write(&path.leaf().at, |bytes| join_both_sides(bytes, index));
        Ok(())
    }

    /// [`Self::insert`] as Linux maps written-back data: unwritten before the write, converted
    /// after it. In between, the extent needs an entry of its own, which shows in the tree if the
    /// leaf is full.
    pub(crate) fn insert_and_convert(&mut self, new: Extent) -> Result<()> {
        let path = self.find(new.logical)?;
        let leaf = path.leaf();
        if leaf.count < leaf.max {
            return self.insert(new);
        }
        self.insert_separately(Extent { unwritten: true, ..new })?;
        self.set_state(new.logical..new.end(), false)
    }

    /// Maps an extent as an entry of its own. If the entry before it reaches beyond `new.logical`,
    /// that entry is cut there. So splitting an extent is one change, made once all tree blocks
    /// that it needs are allocated.
    pub(crate) fn insert_separately(&mut self, new: Extent) -> Result<()> {
        let path = self.find(new.logical)?;
        self.prepare_path(&path)?;
        self.insert_entry(path, new)
    }

    fn insert_entry(&mut self, mut path: Path<S::Node>, new: Extent) -> Result<()> {
        // A round that places nothing makes the tree one level deeper or empties part of the leaf.
        // So two rounds per level are enough.
        for _ in 0..2 * (DEPTH_MAX + 1) {
            let leaf = path.leaf();
            if leaf.count < leaf.max {
                self.place(&path, &new);
                return Ok(());
            }
            if self.use_next_leaf(&path, &new)? || self.make_room(&path, &new)? {
                return Ok(());
            }
            path = self.find(new.logical)?;
            self.prepare_path(&path)?;
        }
        Err(Error::FileTooLarge)
    }

    /// Extends the entry before `new`, or else the entry after it, to cover `new`. Returns whether
    /// that was possible.
    ///
    /// If the entry before `new` grows, it then joins its own neighbours on both sides if possible.
    /// As in Linux (observed on 6.18), that includes the left neighbour, from which a write-back
    /// may have separated the entry.
    fn merge_into_neighbour(&mut self, path: &Path<S::Node>, new: &Extent) -> bool {
        let leaf = path.leaf();
        let next = leaf.position.map_or(0, |position| position + 1);
        let (position, count) = (leaf.position, leaf.count);
        let (merged, first_changed) = self.write(&leaf.at, |bytes| {
            if let Some(position) = position {
                let left = node::leaf_entry(bytes, position);
                if left.joins(new) {
                    let grown = Extent { len: left.len + new.len, ..left };
                    node::set_leaf_entry(bytes, position, &grown);
                    join_both_sides(bytes, position);
                    return (true, false);
                }
            }
            if next < count {
                let right = node::leaf_entry(bytes, next);
                if new.joins(&right) {
                    node::set_leaf_entry(bytes, next, &Extent { len: new.len + right.len, ..*new });
                    return (true, next == 0);
                }
            }
            (false, false)
        });
        if first_changed {
            self.set_first_key(path, new.logical);
        }
        merged
    }

    /// Puts `new` into the path's leaf, which has room.
    fn place(&mut self, path: &Path<S::Node>, new: &Extent) {
        let leaf = path.leaf();
        let index = leaf.position.map_or(0, |position| position + 1);
        self.write(&leaf.at, |bytes| {
            cut_before(bytes, leaf.position, new.logical);
            debug_assert!(
                index == node::count(bytes) || new.end() <= node::key(bytes, index),
                "{new:?} goes over what is behind it"
            );
            node::open_gap(bytes, index);
            node::set_leaf_entry(bytes, index, new);
        });
        if index == 0 {
            self.set_first_key(path, new.logical);
        }
    }

    /// The leaf's first key became `key`. Sets the key of the leaf in its parent. If the changed
    /// entry is the first of the parent, goes on in the node above, and so on.
    pub(super) fn set_first_key(&mut self, path: &Path<S::Node>, key: u32) {
        self.set_first_key_below(path, path.depth(), key);
    }

    /// As [`Self::set_first_key`], for the node at level `level`.
    pub(super) fn set_first_key_below(&mut self, path: &Path<S::Node>, level: usize, key: u32) {
        for index in (0..level).rev() {
            let above = path.level(index);
            let entry = above.followed();
            self.write(&above.at, |bytes| node::set_key(bytes, entry, key));
            if entry > 0 {
                break;
            }
        }
    }

    /// Makes `new` the first entry of the next leaf, if `new` belongs behind all entries of its own
    /// full leaf and the next leaf has room. Returns whether it did.
    fn use_next_leaf(&mut self, path: &Path<S::Node>, new: &Extent) -> Result<bool> {
        let leaf = path.leaf();
        let last = leaf.position.is_some_and(|position| position + 1 == leaf.count);
        // While an extent is split, its entry in the leaf still covers `new`.
        let behind =
            last && self.read(&leaf.at, |bytes| node::leaf_entry(bytes, leaf.count - 1).end() <= new.logical);
        let Some(key) = path.next_leaf_key(self.root).filter(|_| behind) else { return Ok(false) };
        let next = self.find(key)?;
        if next.leaf().count >= next.leaf().max {
            return Ok(false);
        }
        self.prepare_path(&next)?;
        self.write(&next.leaf().at, |bytes| {
            node::open_gap(bytes, 0);
            node::set_leaf_entry(bytes, 0, new);
        });
        self.set_first_key(&next, new.logical);
        Ok(true)
    }

    /// Splits below the nearest ancestor with room, or makes the tree deeper. Returns whether `new`
    /// was placed on the way.
    fn make_room(&mut self, path: &Path<S::Node>, new: &Extent) -> Result<bool> {
        let ancestor = (0..path.depth()).rev().find(|&index| {
            let level = path.level(index);
            level.count < level.max
        });
        match ancestor {
            Some(ancestor) => self.split(path, ancestor, new),
            None => self.grow(path).map(|()| false),
        }
    }

    /// Moves the root's entries to a new block. The root becomes an index with one entry, which
    /// leads to this block.
    fn grow(&mut self, path: &Path<S::Node>) -> Result<()> {
        let depth = path.depth();
        if depth >= DEPTH_MAX {
            return Err(Error::FileTooLarge);
        }
        // If the root is an index already, the block right before its first child is an exact goal:
        // it is tried before any other.
        let first_child = (depth > 0).then(|| node::child(self.root, 0));
        let goal = first_child.filter(|&child| child > 0).map(|child| BlockNr::new(child - 1));
        let (block, fresh) = self.store.allocate(goal, goal.is_some())?;
        self.store.prepare(&fresh)?;
        let key = node::key(self.root, 0);
        debug_assert!(node::count(self.root) > 0, "an empty root is full");
        fresh.write(|bytes| {
            node::format(bytes, depth);
            node::move_tail(self.root, 0, bytes);
        });
        node::format(self.root, depth + 1);
        node::set_count(self.root, 1);
        node::set_index_entry(self.root, 0, key, block.raw());
        Ok(())
    }

    /// Splits the path's nodes below level `ancestor`, right of the position followed. Returns
    /// whether `new` was placed on the way.
    fn split(&mut self, path: &Path<S::Node>, ancestor: usize, new: &Extent) -> Result<bool> {
        let depth = path.depth();
        debug_assert!(ancestor < depth, "level {ancestor} of {depth} has room: nothing is split");
        if path.leaf().max == 1 {
            return Err(Error::NotSupported("a leaf of the file's extent tree holds one extent only"));
        }
        let fresh = self.allocate_nodes(depth - ancestor, self.goal_beside(path, new.logical))?;
        let leaf = path.leaf();
        // If `new` belongs before all entries, the first entry still stays in the old leaf, so no
        // node is left empty.
        let index = leaf.followed() + 1;
        let appends = index == leaf.count;
        let border = if appends { new.logical } else { self.read(&leaf.at, |bytes| node::key(bytes, index)) };
        let mut below = self.split_leaf(path, &fresh[depth - ancestor - 1], appends.then_some(new));
        for index in (ancestor + 1..depth).rev() {
            below = self.split_index(path, index, &fresh[index - ancestor - 1], border, below);
        }
        let level = path.level(ancestor);
        let entry = level.followed() + 1;
        self.write(&level.at, |bytes| {
            node::open_gap(bytes, entry);
            node::set_index_entry(bytes, entry, border, below.raw());
        });
        Ok(appends)
    }

    /// The goal for the data of a logical block (docs/behaviour/block-allocation.md, "Requests").
    fn goal_beside(&self, path: &Path<S::Node>, logical: u32) -> Option<BlockNr> {
        let leaf = path.leaf();
        if leaf.count == 0 {
            return leaf.at.block();
        }
        let near = self.read(&leaf.at, |bytes| node::leaf_entry(bytes, leaf.position.unwrap_or(0)));
        let distance = u64::from(logical.abs_diff(near.logical));
        let goal = if logical >= near.logical {
            near.physical + distance
        } else {
            near.physical.wrapping_sub(distance)
        };
        Some(BlockNr::new(goal))
    }

    /// One new node for each level that is split; all or none.
    fn allocate_nodes(&mut self, n: usize, goal: Option<BlockNr>) -> Result<NewNodes<S::Node>> {
        let mut fresh: NewNodes<S::Node> = NewNodes::new();
        for _ in 0..n {
            let made = self.store.allocate(goal, false).and_then(|(block, node)| {
                self.store.prepare(&node)?;
                Ok((block, node))
            });
            match made {
                Ok(pair) => fresh.push(pair),
                Err(error) => {
                    for (block, _) in fresh.iter() {
                        self.store.free(*block)?;
                    }
                    return Err(error);
                }
            }
        }
        Ok(fresh)
    }

    /// Moves the entries right of the position to the new leaf. If `only` is given, starts the new
    /// leaf with `only` instead.
    fn split_leaf(
        &mut self,
        path: &Path<S::Node>,
        (block, fresh): &(BlockNr, S::Node),
        only: Option<&Extent>,
    ) -> BlockNr {
        let leaf = path.leaf();
        let index = leaf.followed() + 1;
        fresh.write(|to| node::format(to, 0));
        if let Some(extent) = only {
            fresh.write(|to| {
                node::set_count(to, 1);
                node::set_leaf_entry(to, 0, extent);
            });
            self.write(&leaf.at, |from| cut_before(from, leaf.position, extent.logical));
        } else {
            self.move_tail(&leaf.at, index, fresh);
        }
        *block
    }

    /// Moves entry `index` and all behind it to the end of another node. Works on copies and never
    /// locks both nodes: buffers must be locked in ascending order of blocks, and either node may
    /// have the smaller number.
    fn move_tail(&mut self, from: &At<S::Node>, index: usize, to: &S::Node) {
        let mut source = self.read(from, <[u8]>::to_vec);
        let mut target = to.read(<[u8]>::to_vec);
        node::move_tail(&mut source, index, &mut target);
        to.write(|bytes| bytes.copy_from_slice(&target));
        self.write(from, |bytes| bytes.copy_from_slice(&source));
    }

    /// Starts a new index node with the new child `below`. Moves the entries right of the followed
    /// entry to the new node, behind that child.
    fn split_index(
        &mut self,
        path: &Path<S::Node>,
        index: usize,
        (block, fresh): &(BlockNr, S::Node),
        border: u32,
        below: BlockNr,
    ) -> BlockNr {
        let level = path.level(index);
        fresh.write(|to| {
            node::format(to, path.depth() - index);
            node::set_count(to, 1);
            node::set_index_entry(to, 0, border, below.raw());
        });
        self.move_tail(&level.at, level.followed() + 1, fresh);
        *block
    }
}

/// At most one node per level, kept without a heap allocation.
struct NewNodes<N> {
    nodes: [Option<(BlockNr, N)>; DEPTH_MAX],
    len: usize,
}

impl<N> NewNodes<N> {
    const fn new() -> Self {
        Self { nodes: [const { None }; DEPTH_MAX], len: 0 }
    }

    fn push(&mut self, node: (BlockNr, N)) {
        self.nodes[self.len] = Some(node);
        self.len += 1;
    }

    fn iter(&self) -> impl Iterator<Item = &(BlockNr, N)> {
        self.nodes.iter().flatten()
    }
}

impl<N> std::ops::Index<usize> for NewNodes<N> {
    type Output = (BlockNr, N);

    fn index(&self, index: usize) -> &Self::Output {
        self.nodes[index].as_ref().expect("one node was allocated for each level split")
    }
}

/// Cuts the entry at `position` to end at `logical` at the latest.
fn cut_before(bytes: &mut [u8], position: Option<usize>, logical: u32) {
    let Some(position) = position else { return };
    let extent = node::leaf_entry(bytes, position);
    if extent.end() > logical {
        node::set_leaf_entry(bytes, position, &Extent { len: logical - extent.logical, ..extent });
    }
}

/// Joins entry `index` of a leaf with the one after it when they are one run.
pub(super) fn join_with_next(bytes: &mut [u8], index: usize) {
    if index + 1 >= node::count(bytes) {
        return;
    }
    let (left, right) = (node::leaf_entry(bytes, index), node::leaf_entry(bytes, index + 1));
    if left.joins(&right) {
        node::set_leaf_entry(bytes, index, &Extent { len: left.len + right.len, ..left });
        node::close_gap(bytes, index + 1, 1);
    }
}

/// Joins entry `index` of a leaf with the ones after and before it when they are one run.
pub(super) fn join_both_sides(bytes: &mut [u8], index: usize) {
    join_with_next(bytes, index);
    if index > 0 {
        join_with_next(bytes, index - 1);
    }
}
