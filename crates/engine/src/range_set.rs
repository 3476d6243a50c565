//! A set of numbers, kept as ranges.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of numbers. No two of its ranges overlap or adjoin.
#[derive(Debug, Default)]
pub(crate) struct RangeSet {
    ends: BTreeMap<u32, u32>,
}

impl RangeSet {
    /// The empty set.
    pub(crate) const fn new() -> Self {
        Self { ends: BTreeMap::new() }
    }

    /// Whether the set is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The end of the range that contains a number; `None` if the set does not contain it.
    pub(crate) fn end_of(&self, number: u32) -> Option<u32> {
        self.ends.range(..=number).next_back().map(|(_, &end)| end).filter(|end| number < *end)
    }

    /// Whether the set contains any number of a range.
    pub(crate) fn touches(&self, range: &Range<u32>) -> bool {
        let last = self.ends.range(..range.end).next_back();
        !range.is_empty() && last.is_some_and(|(_, end)| *end > range.start)
    }

    /// The parts of a range that the set contains, in ascending order.
    pub(crate) fn within(&self, range: Range<u32>) -> impl Iterator<Item = Range<u32>> {
        let before = self.ends.range(..range.start).next_back().filter(|(_, end)| **end > range.start);
        let inside = self.ends.range(range.clone());
        before.into_iter().chain(inside).map(move |(&start, &end)| start.max(range.start)..end.min(range.end))
    }

    /// Adds a range, and merges it with the ranges that it overlaps or adjoins.
    pub(crate) fn insert(&mut self, mut range: Range<u32>) {
        if range.is_empty() {
            return;
        }
        while let Some((&start, &end)) =
            self.ends.range(..=range.end).next_back().filter(|(_, end)| **end >= range.start)
        {
            self.ends.remove(&start);
            range = range.start.min(start)..range.end.max(end);
        }
        debug_assert!(!self.touches(&range), "ranges that touch are one");
        self.ends.insert(range.start, range.end);
    }

    /// Removes a range. Returns how many numbers were removed.
    pub(crate) fn remove(&mut self, range: Range<u32>) -> u32 {
        let mut removed = 0;
        if range.is_empty() {
            return removed;
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
            removed += end.min(range.end) - start.max(range.start);
        }
        debug_assert!(!self.touches(&range), "a part of {range:?} is left");
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::RangeSet;
    use blockyard_disk::num::usize_from_u32;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn behaves_like_a_set(ops in proptest::collection::vec((any::<bool>(), 0..60u32, 0..20u32), 1..40)) {
            let (mut ranges, mut model) = (RangeSet::new(), BTreeSet::new());
            for (inserts, start, len) in ops {
                let range = start..start + len;
                if inserts {
                    ranges.insert(range.clone());
                    model.extend(range.clone());
                } else {
                    let gone = range.clone().filter(|number| model.remove(number)).count();
                    prop_assert_eq!(usize_from_u32(ranges.remove(range.clone())), gone);
                }
                prop_assert_eq!(ranges.is_empty(), model.is_empty());
                prop_assert!(ranges.ends.iter().zip(ranges.ends.iter().skip(1)).all(|(one, next)| one.1 < next.0));
                let within: Vec<u32> = ranges.within(range.clone()).flatten().collect();
                prop_assert_eq!(&within, &model.range(range.clone()).copied().collect::<Vec<_>>());
                prop_assert_eq!(ranges.touches(&range), !within.is_empty());
                for number in 0..85 {
                    let end = (number..).find(|next| !model.contains(next)).filter(|&end| end > number);
                    prop_assert_eq!(ranges.end_of(number), end);
                }
            }
        }
    }
}
