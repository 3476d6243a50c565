//! Pieces of a file whose data is on the device but which are still mapped as unwritten.

use std::ops::Range;

/// The written pieces that are still mapped as unwritten, in the order of their writes. Usually
/// there are few, those of one write-back. There may be more if conversions wait for an observer
/// that reports the ends of I/O ([`crate::instruments`]).
#[derive(Debug, Default)]
pub(crate) struct Unconverted(Vec<Range<u32>>);

impl Unconverted {
    /// An empty list.
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Whether there are no such pieces.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a piece whose data was written.
    pub(crate) fn push(&mut self, piece: Range<u32>) {
        debug_assert!(!piece.is_empty(), "no block at {} was written", piece.start);
        self.0.push(piece);
    }

    /// Whether a block's data is on the device, although the mapping does not say so yet.
    pub(crate) fn covers(&self, logical: u32) -> bool {
        self.0.iter().any(|piece| piece.contains(&logical))
    }

    /// Whether a piece overlaps a range.
    pub(crate) fn touches(&self, range: &Range<u32>) -> bool {
        self.0.iter().any(|piece| piece.start < range.end && range.start < piece.end)
    }

    /// A block up to which (exclusive) [`Self::covers`] gives the same answer as for `logical`. If
    /// pieces touch or overlap, the answer may be the same beyond this block, too.
    pub(crate) fn alike_until(&self, logical: u32) -> u32 {
        let ends = |piece: &Range<u32>| if piece.contains(&logical) { piece.end } else { piece.start };
        self.0.iter().map(ends).filter(|&end| end > logical).min().unwrap_or(u32::MAX)
    }

    /// The parts of the pieces in a range, in the order of their writes.
    pub(crate) fn within(&self, range: &Range<u32>) -> Vec<Range<u32>> {
        let parts = self.0.iter().map(|piece| piece.start.max(range.start)..piece.end.min(range.end));
        parts.filter(|part| !part.is_empty()).collect()
    }

    /// Takes out the parts of the pieces in a range, in the order of their writes.
    pub(crate) fn take(&mut self, range: &Range<u32>) -> Vec<Range<u32>> {
        let mut taken = Vec::new();
        let mut left = Vec::with_capacity(self.0.len());
        for piece in self.0.drain(..) {
            let inside = piece.start.max(range.start)..piece.end.min(range.end);
            if inside.is_empty() {
                left.push(piece);
                continue;
            }
            left.extend(
                [piece.start..inside.start, inside.end..piece.end]
                    .into_iter()
                    .filter(|part| !part.is_empty()),
            );
            taken.push(inside);
        }
        self.0 = left;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::Unconverted;

    #[test]
    fn pieces_are_taken_in_their_order_and_cut_at_the_range() {
        let mut pieces = Unconverted::default();
        for piece in [20..30, 0..8, 40..41] {
            pieces.push(piece);
        }
        assert_eq!(
            [0, 7, 8, 20, 40, 41].map(|block| pieces.covers(block)),
            [true, true, false, true, true, false]
        );
        assert_eq!([0, 8, 25, 41].map(|block| pieces.alike_until(block)), [8, 20, 30, u32::MAX]);
        assert_eq!(pieces.within(&(4..24)), [20..24, 4..8]);
        assert_eq!(pieces.take(&(4..24)), [20..24, 4..8]);
        assert!(!pieces.covers(20) && pieces.covers(24) && pieces.covers(3));
        assert_eq!(pieces.take(&(0..u32::MAX)), [24..30, 0..4, 40..41]);
        assert!(pieces.is_empty());
    }
}
