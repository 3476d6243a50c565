//! Which holes of a file Linux remembers: kept only where its decisions are to be followed exactly.
//!
//! Linux 6.18 caches the state of ranges of blocks beside the extent tree. A range that it remembers as a hole may be
//! shorter than the hole, since what was freed beside it is not remembered with it; `fallocate` then asks for blocks in pieces
//! that end there. Observed with the tracepoints of the status tree: a look-up that finds a hole remembers it, as far
//! as nothing in it waits for its place; a punched hole is remembered as such; truncation forgets what it cuts off,
//! collapse and insert range everything from their start on. Whoever reads an extent tree that is no more than its root
//! remembers all holes between its extents, but not one of which a part is known.

use std::collections::BTreeMap;
use std::ops::Range;

/// Remembered holes; no two of them touch.
#[derive(Debug, Default)]
pub(in crate::requests) struct Holes {
    ends: BTreeMap<u32, u32>,
}

impl Holes {
    /// Where the remembered hole ends that a block lies in.
    pub(in crate::requests) fn end_of(&self, block: u32) -> Option<u32> {
        self.ends.range(..=block).next_back().map(|(_, &end)| end).filter(|end| block < *end)
    }

    /// Whether any block of a range lies in a remembered hole.
    pub(in crate::requests) fn touches(&self, range: &Range<u32>) -> bool {
        self.ends.range(..range.end).next_back().is_some_and(|(_, end)| *end > range.start)
    }

    /// Remembers a range as a hole, joined with what touches it.
    pub(in crate::requests) fn remember(&mut self, mut range: Range<u32>) {
        if range.is_empty() {
            return;
        }
        while let Some((&start, &end)) =
            self.ends.range(..=range.end).next_back().filter(|(_, end)| **end >= range.start)
        {
            self.ends.remove(&start);
            range = range.start.min(start)..range.end.max(end);
        }
        debug_assert!(!self.touches(&range), "holes that touch are one");
        self.ends.insert(range.start, range.end);
    }

    /// Forgets a range: it is no hole any more, or not known to be one.
    pub(in crate::requests) fn forget(&mut self, range: Range<u32>) {
        if range.is_empty() {
            return;
        }
        while let Some((&start, &end)) =
            self.ends.range(..range.end).next_back().filter(|(_, end)| **end > range.start)
        {
            self.ends.remove(&start);
            if end > range.end {
                self.ends.insert(range.end, end);
            }
            if start < range.start {
                self.ends.insert(start, range.start);
            }
        }
        debug_assert!(!self.touches(&range), "{range:?} was to be forgotten");
    }
}

#[cfg(test)]
mod tests {
    use super::Holes;

    fn list(holes: &Holes) -> Vec<(u32, u32)> {
        holes.ends.iter().map(|(&start, &end)| (start, end)).collect()
    }

    #[test]
    fn what_touches_is_one_hole() {
        let mut holes = Holes::default();
        for range in [10..20, 30..40, 5..8, 8..8] {
            holes.remember(range);
        }
        assert_eq!(list(&holes), [(5, 8), (10, 20), (30, 40)]);
        holes.remember(20..30);
        assert_eq!(list(&holes), [(5, 8), (10, 40)]);
        holes.remember(0..6);
        assert_eq!(list(&holes), [(0, 8), (10, 40)]);
        assert_eq!(
            [(8..10), (7..8), (39..60), (40..60)].map(|range| holes.touches(&range)),
            [false, true, true, false]
        );
        assert_eq!(
            [8, 9, 10, 39, 40].map(|block| holes.end_of(block)),
            [None, None, Some(40), Some(40), None]
        );
    }

    #[test]
    fn forgetting_cuts() {
        let mut holes = Holes::default();
        holes.remember(0..100);
        holes.forget(10..20);
        holes.forget(15..15);
        assert_eq!(list(&holes), [(0, 10), (20, 100)]);
        holes.forget(5..30);
        assert_eq!(list(&holes), [(0, 5), (30, 100)]);
        holes.forget(0..u32::MAX);
        assert_eq!(list(&holes), []);
    }
}
