//! Which blocks of a future file system are taken, as disjoint ranges.
//!
//! Key decision: the ranges are kept in an ordered map, instead of bitmaps. A fresh ext4 image of
//! 16 TiB has about eight thousand used ranges, but its bitmaps would be 512 MiB. Invariants:
//! ranges are not empty, do not overlap and do not adjoin.

use std::collections::BTreeMap;
use std::ops::Range;

/// The used blocks of a file system of `end` blocks.
#[derive(Clone, Debug)]
pub(super) struct Space {
    /// Start of a used range → its end (exclusive).
    used: BTreeMap<u64, u64>,
    end: u64,
}

impl Space {
    /// A file system of `end` blocks, none of them used.
    pub(super) const fn new(end: u64) -> Self {
        Self { used: BTreeMap::new(), end }
    }

    /// Takes a range, whether or not parts of it are taken already.
    pub(super) fn mark(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        while let Some((&s, &e)) = self.used.range(..=end).next_back() {
            if e < start {
                break;
            }
            self.used.remove(&s);
            start = start.min(s);
            end = end.max(e);
        }
        debug_assert!(
            self.used.range(..=end).next_back().is_none_or(|(_, &before)| before < start),
            "used ranges neither overlap nor touch"
        );
        self.used.insert(start, end);
    }

    /// Releases a range that is taken entirely.
    pub(super) fn release(&mut self, range: Range<u64>) {
        let Some((&start, &end)) = self.used.range(..=range.start).next_back() else {
            unreachable!("{range:?} is free")
        };
        assert!(end >= range.end, "{range:?} is not taken as a whole");
        self.used.remove(&start);
        for rest in [start..range.start, range.end..end] {
            self.mark(rest);
        }
    }

    /// The lowest `start` in `from..limit`, a multiple of `step`, from which `len` blocks are free.
    pub(super) fn find(&self, from: u64, limit: u64, len: u64, step: u64) -> Option<u64> {
        debug_assert!(len > 0 && step > 0, "{len} blocks in steps of {step}");
        let mut start = from.next_multiple_of(step);
        while start < limit && start + len <= self.end {
            match self.blocker(&(start..start + len)) {
                None => return Some(start),
                Some(end) => start = end.next_multiple_of(step),
            }
        }
        None
    }

    /// End of the last used range that overlaps `range`.
    fn blocker(&self, range: &Range<u64>) -> Option<u64> {
        let (_, &end) = self.used.range(..range.end).next_back()?;
        (end > range.start).then_some(end)
    }

    /// Length of the free run that starts at `start`, at most `max`; 0 when the block is used.
    pub(super) fn free_run(&self, start: u64, max: u64) -> u64 {
        if self.blocker(&(start..start + 1)).is_some() {
            return 0;
        }
        let next = self.used.range(start..).next().map_or(self.end, |(&s, _)| s);
        next.min(self.end).saturating_sub(start).min(max)
    }

    /// Number of used blocks in a range.
    pub(super) fn used_in(&self, range: Range<u64>) -> u64 {
        self.ranges_in(range).map(|used| used.end - used.start).sum()
    }

    /// The parts of the used ranges that lie in `range`, in ascending order.
    pub(super) fn ranges_in(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let first = self.used.range(..range.start).next_back();
        let rest = self.used.range(range.start..range.end);
        first.into_iter().chain(rest).filter_map(move |(&s, &e)| {
            let cut = s.max(range.start)..e.min(range.end);
            (!cut.is_empty()).then_some(cut)
        })
    }

    /// Widens every used range to whole clusters of `step` blocks, but not beyond the end of the
    /// file system.
    pub(super) fn widen(&mut self, step: u64) {
        let old = std::mem::take(&mut self.used);
        for (start, end) in old {
            self.mark(start - start % step..end.next_multiple_of(step).min(self.end));
        }
    }
}

#[cfg(test)]
#[allow(clippy::as_conversions)]
mod tests {
    use proptest::prelude::{any, prop, proptest};

    use super::Space;

    const END: usize = 96;

    proptest! {
        /// Compares with a plain array of flags.
        #[test]
        fn behaves_like_an_array_of_flags(
            marks in prop::collection::vec((0..END as u64, 0..20u64), 0..12),
            from in 0..END as u64, len in 1..20u64, step in prop::sample::select(vec![1u64, 2, 4]), widen in any::<bool>(),
        ) {
            let mut space = Space::new(END as u64);
            let mut model = [false; END];
            for (start, len) in marks {
                let end = (start + len).min(END as u64);
                space.mark(start..end);
                (start..end).for_each(|b| model[b as usize] = true);
            }
            if widen {
                space.widen(step);
                for chunk in model.chunks_mut(step as usize) {
                    let any = chunk.iter().any(|&u| u);
                    chunk.fill(any);
                }
            }
            let free = |s: u64, l: u64| s + l <= END as u64 && (s..s + l).all(|b| !model[b as usize]);
            let expected = (from..END as u64).find(|&s| s % step == 0 && free(s, len));
            assert_eq!(space.find(from, END as u64, len, step), expected);
            let used = (from..(from + len).min(END as u64)).filter(|&b| model[b as usize]).count();
            assert_eq!(space.used_in(from..(from + len).min(END as u64)), used as u64);
            let run = (from..END as u64).take_while(|&b| !model[b as usize]).count() as u64;
            assert_eq!(space.free_run(from, len), run.min(len));
        }
    }
}
