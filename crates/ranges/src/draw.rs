//! Draws offsets and ranges.

use crate::Edges;
use rand::Rng;
use std::ops::Range;

/// How many earlier offsets and ends of ranges may be drawn again.
const RECENT: usize = 16;

/// A multiple of a step is small if it is at most this many steps. (A step is a number of bytes,
/// such as a block, whose multiples are edges.) Small multiples are drawn as offsets near the
/// beginning of a file, and as lengths.
const NEAR: u64 = 8;

/// Draws ranges of one file. It remembers the last offsets and ends of ranges that it drew, so that
/// a range may begin or end where an earlier one did.
#[derive(Clone, Debug)]
pub struct Ranges {
    edges: Edges,
    recent: [u64; RECENT],
    drawn: usize,
}

impl Ranges {
    /// Ranges that are drawn from these edges.
    #[must_use]
    pub const fn new(edges: Edges) -> Self {
        Self { edges, recent: [0; RECENT], drawn: 0 }
    }

    /// The edges that are drawn from.
    #[must_use]
    pub const fn edges(&self) -> &Edges {
        &self.edges
    }

    /// An offset for an operation on a file of `size` bytes, or a new size for it: at most one byte
    /// beyond the reach of the edges.
    pub fn offset(&mut self, rng: &mut impl Rng, size: u64) -> u64 {
        let at = self.near_edge(rng, size);
        self.note(at);
        at
    }

    /// A range of at least one and at most `longest` bytes for an operation on a file of `size`
    /// bytes. It ends at most one byte beyond the reach of the edges.
    pub fn range(&mut self, rng: &mut impl Rng, size: u64, longest: u64) -> Range<u64> {
        let longest = longest.clamp(1, self.edges.reach() + 1);
        let start = self.near_edge(rng, size).min(self.edges.reach());
        let end = self.other_end(rng, start, size, longest);
        let (start, end) = (start.min(end), start.max(end).max(start + 1));
        let range = self.bounded(rng, start..end, longest);
        self.note(range.start);
        self.note(range.end);
        range
    }

    /// As [`Ranges::range`], with both ends on multiples of `unit`, for operations that need
    /// aligned ranges. The range has at least one unit, even if `longest` is less. It lies within
    /// the reach if the reach is at least one unit.
    pub fn aligned(&mut self, rng: &mut impl Rng, size: u64, longest: u64, unit: u64) -> Range<u64> {
        let range = self.range(rng, size, longest.max(unit));
        let last = (self.edges.reach() / unit).max(1) * unit;
        let start = (range.start / unit * unit).min(last - unit);
        let units = ((range.end - range.start) / unit).max(1);
        start..(start + units * unit).min(last)
    }

    fn note(&mut self, at: u64) {
        self.recent[self.drawn % RECENT] = at;
        self.drawn += 1;
    }

    /// Usually an edge or a byte beside it. Now and then any byte up to twice the file's size, or
    /// in the first [`NEAR`] blocks if they reach further.
    fn near_edge(&self, rng: &mut impl Rng, size: u64) -> u64 {
        let reach = self.edges.reach();
        let edge = match rng.random_range(0..16) {
            0 => 0,
            1..5 => self.near_multiple(rng),
            5..7 => self.multiple_up_to(rng, size.min(reach)),
            7 => self.multiple_up_to(rng, reach),
            8..11 => self.near_end(rng, size),
            11 if !self.edges.points().is_empty() => *pick(rng, self.edges.points()),
            12..14 => *pick(rng, &self.recent),
            14 => self.far(rng),
            _ => {
                return rng
                    .random_range(0..=reach.min(size.saturating_mul(2).max(self.edges.block() * NEAR)));
            }
        };
        beside(rng, edge.min(reach))
    }

    /// A random step. At least half the time it is the block.
    fn step(&self, rng: &mut impl Rng) -> u64 {
        if rng.random_range(0..2) == 0 { self.edges.block() } else { *pick(rng, self.edges.steps()) }
    }

    /// A small multiple of a step.
    fn near_multiple(&self, rng: &mut impl Rng) -> u64 {
        self.step(rng) * rng.random_range(0..=NEAR)
    }

    /// A multiple of a step, at most `most`. Each power of two is about equally likely, so small
    /// multiples are drawn often.
    fn multiple_up_to(&self, rng: &mut impl Rng, most: u64) -> u64 {
        let step = self.step(rng);
        let count = most / step;
        let bits = rng.random_range(0..=count.checked_ilog2().unwrap_or(0));
        step * rng.random_range(0..=count.min((2 << bits) - 1))
    }

    /// The end of the file, or the nearest multiple of a step before or after it.
    fn near_end(&self, rng: &mut impl Rng, size: u64) -> u64 {
        let step = self.step(rng);
        match rng.random_range(0..4) {
            0 => size / step * step,
            1 => size.next_multiple_of(step),
            _ => size,
        }
    }

    /// The end of the reach, or one or two blocks before it.
    fn far(&self, rng: &mut impl Rng) -> u64 {
        self.edges.reach().saturating_sub(self.edges.block() * rng.random_range(0..3))
    }

    /// The other end of a range that begins or ends at `start`.
    fn other_end(&self, rng: &mut impl Rng, start: u64, size: u64, longest: u64) -> u64 {
        let within = start % self.edges.block();
        let begin = start - within;
        match rng.random_range(0..12) {
            // In the block that contains `start`: any later byte, or a byte at or beside the end of
            // the block.
            0..3 => rng.random_range(start + 1..=begin + self.edges.block()),
            3 => beside(rng, begin + self.edges.block()),
            4 => start + 1,
            5..7 => self.near_edge(rng, size),
            7 => size,
            _ => start + self.length(rng, longest),
        }
    }

    /// A length of at most `longest` bytes. Usually the offset of an edge, taken as a length, or
    /// one byte more or less; otherwise at most a block, `longest` itself, or any length.
    fn length(&self, rng: &mut impl Rng, longest: u64) -> u64 {
        let len = match rng.random_range(0..8) {
            0 => rng.random_range(1..=self.edges.block()),
            1 => rng.random_range(1..=longest),
            2 => longest,
            3 if !self.edges.points().is_empty() => {
                let apart = *pick(rng, self.edges.points());
                beside(rng, apart)
            }
            _ => {
                let apart = self.near_multiple(rng);
                beside(rng, apart)
            }
        };
        if len > longest { rng.random_range(1..=longest) } else { len.max(1) }
    }

    /// Ends a range at most one byte beyond the reach. If the range is still longer than `longest`,
    /// one end stays, and the other moves closer.
    fn bounded(&self, rng: &mut impl Rng, range: Range<u64>, longest: u64) -> Range<u64> {
        let end = range.end.min(self.edges.reach() + 1);
        if end - range.start <= longest {
            return range.start..end;
        }
        let len = self.length(rng, longest);
        if rng.random_range(0..2) == 0 { range.start..range.start + len } else { end - len..end }
    }
}

fn pick<'a>(rng: &mut impl Rng, from: &'a [u64]) -> &'a u64 {
    &from[rng.random_range(0..from.len())]
}

/// The byte before, at or after an edge; half the time the edge itself.
fn beside(rng: &mut impl Rng, edge: u64) -> u64 {
    match rng.random_range(0..4) {
        0 => edge.saturating_sub(1),
        1 => edge + 1,
        _ => edge,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;
    use std::collections::BTreeSet;

    fn all_edges() -> impl Iterator<Item = Edges> {
        [1024, 2048, 4096, 16_384, 65_536].into_iter().flat_map(|block| {
            let extents = Edges::extents(block);
            [
                extents.clone(),
                extents.clone().up_to(1 << 20),
                extents.clone().clusters(16 * block).up_to(40 * block),
                extents.inline_data(256),
                Edges::indirect(block),
                Edges::indirect(block).up_to(block),
            ]
        })
    }

    #[test]
    fn ranges_keep_their_bounds() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for edges in all_edges() {
            let (reach, unit) = (edges.reach(), edges.cluster().min(edges.reach()));
            let mut ranges = Ranges::new(edges.clone());
            for _ in 0..2000 {
                let size = ranges.offset(&mut rng, reach / 2);
                assert!(size <= reach + 1);
                let longest = [rng.random_range(1..300_000), u64::MAX][rng.random_range(0..2)];
                let range = ranges.range(&mut rng, size, longest);
                assert!(range.start < range.end && range.end <= reach + 1, "{range:?} of {edges:?}");
                assert!(range.end - range.start <= longest, "{range:?}");
                let range = ranges.aligned(&mut rng, size, longest, unit);
                assert!(range.start.is_multiple_of(unit) && range.end.is_multiple_of(unit), "{range:?}");
                assert!(range.start < range.end && range.end <= reach, "{range:?} of {edges:?}");
            }
        }
    }

    /// Single edges, one multiple of each step, edges at the end of the file, and the bytes beside
    /// them must be drawn as starts and as ends. No range need begin beyond the reach.
    #[test]
    fn every_edge_is_met_on_both_sides() {
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let edges = Edges::indirect(1024).clusters(16_384).up_to(1 << 30);
        let (size, mut ranges) = (100_000, Ranges::new(edges.clone()));
        let (mut starts, mut ends) = (BTreeSet::new(), BTreeSet::new());
        for _ in 0..200_000 {
            let range = ranges.range(&mut rng, size, 1 << 30);
            starts.insert(range.start);
            ends.insert(range.end);
        }
        let steps = edges.steps().iter().copied();
        for edge in
            edges.points().iter().copied().chain(steps).chain([size, size / 1024 * 1024, 98 * 1024, 1 << 30])
        {
            for at in [edge - 1, edge, edge + 1] {
                assert!(starts.contains(&at) || at > 1 << 30, "no range begins at {at}");
                assert!(ends.contains(&at), "no range ends at {at}");
            }
        }
    }

    /// A regression: punching a hole of 1000 bytes at offset 4096 did nothing, and no test had
    /// drawn such a range.
    #[test]
    fn many_ranges_begin_on_a_block_and_end_inside_it() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        for edges in all_edges() {
            let block = edges.block();
            let mut ranges = Ranges::new(edges);
            let within =
                |range: &Range<u64>| range.start.is_multiple_of(block) && range.end - range.start < block;
            let met = (0..1000).filter(|_| within(&ranges.range(&mut rng, 20 * block, 1 << 20))).count();
            assert!(met > 40, "{met} of 1000");
        }
    }

    #[test]
    fn the_same_source_gives_the_same_ranges() {
        let list = || {
            let (mut rng, mut ranges) = (ChaCha8Rng::seed_from_u64(4), Ranges::new(Edges::extents(4096)));
            (0..100).map(|_| ranges.range(&mut rng, 5000, 1 << 40)).collect::<Vec<_>>()
        };
        assert_eq!(list(), list());
    }
}
