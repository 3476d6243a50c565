//! Splits extents and changes their state between written and unwritten.

use super::insert::join_both_sides;
use super::{Extent, Path, Tree, TreeStore, UNWRITTEN_MAX, node};
use crate::Result;
use std::ops::Range;

/// Whether a piece at either end of an extent may be moved to a neighbour in the wanted state
/// without being split off first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Borders {
    /// Whenever the neighbour can take the piece.
    Move,
    /// Only if the neighbour can take the piece and splitting first would lead to the same tree.
    MoveInRoomyLeaves,
}

impl<S: TreeStore> Tree<'_, S> {
    /// Makes `logical` the start of an extent if it lies inside one. The tree maps the same blocks
    /// as before.
    pub(super) fn split_at(&mut self, logical: u32) -> Result<()> {
        let Some(extent) = self.lookup(logical)?.found.filter(|extent| extent.logical < logical) else {
            return Ok(());
        };
        self.insert_separately(extent.tail(logical))
    }

    /// Sets the state of every mapped block of `range`; holes stay holes.
    pub(crate) fn set_state(&mut self, range: Range<u32>, unwritten: bool) -> Result<()> {
        self.change_state(range, unwritten, Borders::MoveInRoomyLeaves)
    }

    /// Makes the mapped blocks of `range` written, as Linux does at write time (observed on 6.18).
    /// If a written neighbour can take blocks over, no extent is split, even in a full leaf.
    pub(crate) fn initialise(&mut self, range: Range<u32>) -> Result<()> {
        self.change_state(range, false, Borders::Move)
    }

    fn change_state(&mut self, range: Range<u32>, unwritten: bool, borders: Borders) -> Result<()> {
        let mut from = range.start;
        while from < range.end {
            let here = self.lookup(from)?;
            let Some(extent) = here.found else {
                from = here.right.map_or(range.end, |right| right.logical);
                continue;
            };
            // A written extent may be one block longer than the longest unwritten one. Then it is
            // converted in two pieces.
            let end = extent.end().min(range.end).min(from.saturating_add(UNWRITTEN_MAX));
            if extent.unwritten != unwritten {
                self.convert_piece(&extent, from..end, unwritten, borders)?;
            }
            from = end;
        }
        Ok(())
    }

    /// Makes a piece of an unwritten extent an entry of its own, to be converted later. Linux does
    /// this before it writes data there.
    pub(crate) fn separate(&mut self, piece: &Range<u32>) -> Result<()> {
        self.split_at(piece.end)?;
        self.split_at(piece.start)
    }

    /// Converts the part `piece` of `extent`. If `borders` allows it and the converted piece can
    /// join a neighbour, moves the boundary between the extent and this neighbour. Otherwise splits
    /// the extent.
    ///
    /// Then pulls the only leaf into the root if it fits there. As in Linux (observed on 6.18),
    /// this happens after each extent, even if the tree must grow again for the next one. It does
    /// not happen if a boundary moved under [`Borders::Move`].
    fn convert_piece(
        &mut self,
        extent: &Extent,
        piece: Range<u32>,
        unwritten: bool,
        borders: Borders,
    ) -> Result<()> {
        debug_assert!(extent.logical <= piece.start && piece.end <= extent.end(), "{piece:?} of {extent:?}");
        let whole = piece.start == extent.logical && piece.end == extent.end();
        let moves = !whole && (borders == Borders::Move || self.has_room_for(extent.logical, 2)?);
        if moves && self.move_boundary(extent, &piece, unwritten)? {
            return if borders == Borders::Move { Ok(()) } else { self.pull_into_root() };
        }
        self.split_at(piece.start)?;
        self.split_at(piece.end)?;
        let path = self.find(piece.start)?;
        self.prepare_path(&path)?;
        self.flip(&path, unwritten);
        self.pull_into_root()
    }

    /// Whether the leaf of a logical block has this many free entries. Linux splits first and joins
    /// afterwards. Moving a boundary leaves the same tree only if no entry would have to move to
    /// another leaf.
    fn has_room_for(&self, logical: u32, entries: usize) -> Result<bool> {
        let path = self.find(logical)?;
        Ok(path.leaf().count + entries <= path.leaf().max)
    }

    /// The blocks that become written when `piece` of an unwritten extent is initialised at write
    /// time, as in Linux (observed on 6.18). Blocks outside `piece` must be zeroed first.
    ///
    /// If a written neighbour in the leaf can take the piece over, only the piece becomes written.
    /// The same holds if the extent ends with the piece, or reaches beyond `end_of_file`. Otherwise
    /// short remainders of the extent become written too:
    /// * the blocks behind the piece, if they and the piece have at most `most` blocks;
    /// * the blocks before the piece, if they and all that becomes written behind them have fewer
    ///   than `most` blocks.
    pub(crate) fn initialised_with(
        &self,
        piece: Range<u32>,
        end_of_file: u32,
        most: u32,
    ) -> Result<Range<u32>> {
        let path = self.find(piece.start)?;
        let leaf = path.leaf();
        let Some(index) = leaf.position else { return Ok(piece) };
        let (extent, taken_over) = self.read(&leaf.at, |bytes| {
            let extent = node::leaf_entry(bytes, index);
            let part = Extent { len: piece.end - piece.start, unwritten: false, ..extent.tail(piece.start) };
            let left =
                index > 0 && piece.start == extent.logical && node::leaf_entry(bytes, index - 1).joins(&part);
            let right = index + 1 < leaf.count
                && piece.end == extent.end()
                && part.joins(&node::leaf_entry(bytes, index + 1));
            (extent, part.len < extent.len && (left || right))
        });
        if taken_over || piece.end == extent.end() || extent.end() > end_of_file {
            return Ok(piece);
        }
        let end = if extent.end() - piece.start <= most { extent.end() } else { piece.end };
        let start = if end - extent.logical < most { extent.logical } else { piece.start };
        Ok(start..end)
    }

    /// Flips the state of the entry at the path's position and joins it with its neighbours in the
    /// leaf.
    fn flip(&mut self, path: &Path<S::Node>, unwritten: bool) {
        let leaf = path.leaf();
        let index = leaf.position.expect("the piece starts an entry");
        self.write(&leaf.at, |bytes| {
            let extent = node::leaf_entry(bytes, index);
            node::set_leaf_entry(bytes, index, &Extent { unwritten, ..extent });
            join_both_sides(bytes, index);
        });
    }

    /// Converts without a new entry if the piece, once converted, can join a neighbour in the same
    /// leaf. Returns whether it did.
    fn move_boundary(&mut self, extent: &Extent, piece: &Range<u32>, unwritten: bool) -> Result<bool> {
        let path = self.find(extent.logical)?;
        let leaf = path.leaf();
        let Some(index) = leaf.position else { return Ok(false) };
        let count = leaf.count;
        let len = piece.end - piece.start;
        let changed = Extent { len, unwritten, ..extent.tail(piece.start) };
        let at_left = piece.start == extent.logical && index > 0;
        let at_right = piece.end == extent.end() && index + 1 < count;
        let (joins_left, joins_right) = self.read(&leaf.at, |bytes| {
            let left = at_left && node::leaf_entry(bytes, index - 1).joins(&changed);
            let right = at_right && changed.joins(&node::leaf_entry(bytes, index + 1));
            (left, right)
        });
        if !joins_left && !joins_right {
            return Ok(false);
        }
        self.prepare_path(&path)?;
        self.write(&leaf.at, |bytes| {
            if joins_left {
                let left = node::leaf_entry(bytes, index - 1);
                node::set_leaf_entry(bytes, index - 1, &Extent { len: left.len + len, ..left });
                node::set_leaf_entry(bytes, index, &extent.tail(piece.end));
            } else {
                let right = node::leaf_entry(bytes, index + 1);
                node::set_leaf_entry(bytes, index, &Extent { len: extent.len - len, ..*extent });
                node::set_leaf_entry(bytes, index + 1, &Extent { len: right.len + len, ..changed });
            }
        });
        Ok(true)
    }
}
