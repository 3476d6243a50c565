//! Removes a range of logical blocks, leaf by leaf from the right.
//!
//! Each step leaves a valid tree, so a caller may let the transaction commit between steps.

use super::{Extent, NodeBlock, Path, ROOT_ENTRIES, Tree, TreeStore, node};
use crate::{Error, Result};
use std::ops::Range;

impl<S: TreeStore> Tree<'_, S> {
    /// Unmaps `range` from its right end and calls `freed` with each piece. A failure comes before
    /// the change of a leaf: the pieces passed to `freed` are unmapped, and no others.
    pub(crate) fn remove(&mut self, range: Range<u32>, mut freed: impl FnMut(Extent)) -> Result<()> {
        self.cut_at_end(&range, &mut freed)?;
        while self.remove_from_leaf(&range, &mut freed)? {}
        Ok(())
    }

    /// Makes sure that no entry reaches over the end of `range`: splits an entry that starts before
    /// the range, and drops the head of one that starts inside. Linux (observed on 6.18) splits in
    /// both cases. The difference shows only in a full leaf, where a split needs room elsewhere. So
    /// an entry of a full leaf is split here, too, if there is space.
    fn cut_at_end(&mut self, range: &Range<u32>, freed: &mut impl FnMut(Extent)) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let path = self.find(range.end - 1)?;
        let leaf = path.leaf();
        let Some(index) = leaf.position else { return Ok(()) };
        let extent = self.read(&leaf.at, |bytes| node::leaf_entry(bytes, index));
        if extent.end() <= range.end {
            return Ok(());
        }
        if extent.logical < range.start {
            return self.split_at(range.end);
        }
        if leaf.count == leaf.max {
            match self.split_at(range.end) {
                // The split is not required: it is enough to drop the head, as below.
                Err(Error::NoSpace | Error::FileTooLarge) => {}
                other => return other,
            }
        }
        let path = self.find(range.end - 1)?;
        let leaf = path.leaf();
        let Some(index) = leaf.position else { return Ok(()) };
        self.prepare_path(&path)?;
        self.write(&leaf.at, |bytes| node::set_leaf_entry(bytes, index, &extent.tail(range.end)));
        if index == 0 {
            self.set_first_key(&path, range.end);
        }
        freed(Extent { len: range.end - extent.logical, ..extent });
        Ok(())
    }

    /// Unmaps the part of `range` in the last leaf that the range touches. No entry may reach over
    /// the end of `range`. Returns whether it unmapped anything.
    pub(crate) fn remove_from_leaf(
        &mut self,
        range: &Range<u32>,
        freed: &mut impl FnMut(Extent),
    ) -> Result<bool> {
        if range.is_empty() {
            return Ok(false);
        }
        let path = self.find(range.end - 1)?;
        let leaf = path.leaf();
        let Some(last) = leaf.position else { return Ok(false) };
        let touched = self.read(&leaf.at, |bytes| node::leaf_entry(bytes, last).end() > range.start);
        if !touched {
            return Ok(false);
        }
        self.prepare_removal(&path)?;
        let (old_first, new_first) = self.write(&leaf.at, |bytes| {
            let old = node::key(bytes, 0);
            trim_leaf(bytes, last, range, freed);
            (old, (node::count(bytes) > 0).then(|| node::key(bytes, 0)))
        });
        match new_first {
            None => self.drop_empty(&path)?,
            Some(key) if key != old_first => self.set_first_key(&path, key),
            Some(_) => {}
        }
        Ok(true)
    }

    /// Frees the path's empty leaf and every index node that becomes empty with it.
    fn drop_empty(&mut self, path: &Path<S::Node>) -> Result<()> {
        for index in (0..=path.depth()).rev() {
            let level = path.level(index);
            let Some(block) = level.at.block() else { break };
            self.store.free(block)?;
            let parent = path.level(index - 1);
            let entry = parent.followed();
            let (left, first) = self.write(&parent.at, |bytes| {
                node::close_gap(bytes, entry, 1);
                (node::count(bytes), node::key(bytes, 0))
            });
            if left == 0 {
                continue;
            }
            if entry == 0 {
                self.set_first_key_below(path, index - 1, first);
            }
            return Ok(());
        }
        // Everything is gone: the root becomes an empty leaf.
        node::format(self.root, 0);
        Ok(())
    }

    /// Pulls the only leaf of a tree of depth 1 back into the inode if its entries fit there. Linux
    /// does this after inserting and converting, not after removing. If the block of the leaf
    /// cannot be freed, the tree stays as it is.
    pub(super) fn pull_into_root(&mut self) -> Result<()> {
        if node::depth(self.root) != 1 || node::count(self.root) != 1 {
            return Ok(());
        }
        let path = self.find(0)?;
        let leaf = path.leaf();
        let Some(block) = leaf.at.block().filter(|_| leaf.count <= ROOT_ENTRIES) else { return Ok(()) };
        if self.prepare_removal(&path).is_err() {
            return Ok(());
        }
        let root = &mut *self.root;
        node::format(root, 0);
        if let super::At::Block(_, from) = &leaf.at {
            from.write(|bytes| node::move_tail(bytes, 0, root));
        }
        self.store.free(block)
    }
}

/// Removes `range` from the entries of a leaf up to `last`. No entry reaches over `range.end`,
/// because the caller has cut there.
fn trim_leaf(bytes: &mut [u8], last: usize, range: &Range<u32>, freed: &mut impl FnMut(Extent)) {
    debug_assert!(last < node::count(bytes), "entry {last} of {}", node::count(bytes));
    let mut first_gone = last + 1;
    for index in (0..=last).rev() {
        let extent = node::leaf_entry(bytes, index);
        if extent.end() <= range.start {
            break;
        }
        if extent.logical >= range.start {
            freed(extent);
            first_gone = index;
            continue;
        }
        freed(extent.tail(range.start));
        node::set_leaf_entry(bytes, index, &Extent { len: range.start - extent.logical, ..extent });
    }
    if first_gone <= last {
        node::close_gap(bytes, first_gone, last + 1 - first_gone);
    }
}
