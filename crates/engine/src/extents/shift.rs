//! Moves the tail of a file by whole blocks, for collapse range and insert range.
//!
//! Entries move leaf by leaf, in an order in which they never collide. Moves to the left begin with
//! the leftmost leaf, moves to the right with the rightmost.

use super::{Path, Tree, TreeStore, node};
use crate::Result;
use std::ops::Range;

impl<S: TreeStore> Tree<'_, S> {
    /// Unmaps `range` and moves everything right of it down by its length.
    pub(crate) fn collapse(&mut self, range: Range<u32>, freed: impl FnMut(super::Extent)) -> Result<()> {
        debug_assert!(!range.is_empty(), "nothing moves");
        self.remove(range.clone(), freed)?;
        let by = range.end - range.start;
        let mut from = Some(range.end);
        while let Some(start) = from {
            from = self.shift_leaf(start, |key| key - by)?;
        }
        self.join_at(range.start)
    }

    /// Opens a hole of `len` blocks at `at`. The caller has checked that the file's end stays
    /// within the limit.
    pub(crate) fn open_hole(&mut self, at: u32, len: u32) -> Result<()> {
        debug_assert!(len > 0, "nothing moves");
        self.split_at(at)?;
        let mut end = u32::MAX;
        while let Some(first_moved) = self.shift_last_leaf(at..end, |key| key + len)? {
            end = first_moved;
        }
        Ok(())
    }

    /// Shifts the entries at or after `start` in the leaf of `start`. Returns the start of the next
    /// leaf; `None` after the last.
    fn shift_leaf(&mut self, start: u32, moved: impl Fn(u32) -> u32) -> Result<Option<u32>> {
        let path = self.find(start)?;
        let leaf = path.leaf();
        let next_leaf = path.next_leaf_key(self.root);
        let (first, count) = (first_at_or_after(self, &path, start), leaf.count);
        if first < count {
            self.prepare_path(&path)?;
            self.move_keys(&path, first..count, moved);
        }
        Ok(next_leaf)
    }

    /// Shifts the entries inside `range` in the last leaf that has any. Returns the old key of the
    /// first entry that moved; `None` if none did.
    fn shift_last_leaf(&mut self, range: Range<u32>, moved: impl Fn(u32) -> u32) -> Result<Option<u32>> {
        if range.is_empty() {
            return Ok(None);
        }
        let path = self.find(range.end - 1)?;
        let Some(last) = path.leaf().position else { return Ok(None) };
        let first = first_at_or_after(self, &path, range.start);
        if first > last {
            return Ok(None);
        }
        self.prepare_path(&path)?;
        let old_first = self.read(&path.leaf().at, |bytes| node::key(bytes, first));
        self.move_keys(&path, first..last + 1, moved);
        Ok(Some(old_first))
    }

    fn move_keys(&mut self, path: &Path<S::Node>, entries: Range<usize>, moved: impl Fn(u32) -> u32) {
        let from_first = entries.start == 0;
        let first = self.write(&path.leaf().at, |bytes| {
            for index in entries {
                let key = moved(node::key(bytes, index));
                node::set_key(bytes, index, key);
            }
            node::key(bytes, 0)
        });
        if from_first {
            self.set_first_key(path, first);
        }
    }

    /// Joins the extents that meet at `logical` if they lie in one leaf.
    fn join_at(&mut self, logical: u32) -> Result<()> {
        let path = self.find(logical)?;
        let Some(index) = path.leaf().position.filter(|&index| index > 0) else { return Ok(()) };
        self.prepare_path(&path)?;
        self.write(&path.leaf().at, |bytes| super::insert::join_with_next(bytes, index - 1));
        Ok(())
    }
}

/// Position of the first entry in the path's leaf that starts at or after `start`; the number of
/// entries if none does. The path must lead to a block at or after `start`.
fn first_at_or_after<S: TreeStore>(tree: &Tree<'_, S>, path: &Path<S::Node>, start: u32) -> usize {
    tree.read(&path.leaf().at, |bytes| {
        start.checked_sub(1).and_then(|before| node::position(bytes, before)).map_or(0, |index| index + 1)
    })
}
