//! Link counts and counts of references, one byte per inode. Nearly all counts fit in a byte; only
//! a group with a larger count needs more memory.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

/// How many references to each inode of a group were found: `low + 256 * high`. All threads count
/// at the same time. All operations are relaxed: counts are read only after the threads were
/// joined, and joining orders the reads after the counting.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    low: Box<[AtomicU8]>,
    /// How many times each low byte wrapped.
    high: OnceLock<Box<[AtomicU32]>>,
}

impl Counts {
    pub(super) fn new(inodes: usize) -> Self {
        Self { low: (0..inodes).map(|_| AtomicU8::new(0)).collect(), high: OnceLock::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.low.len()
    }

    /// Counts one more reference; ignores an index out of range.
    pub(super) fn add_one(&self, index: usize) {
        let Some(low) = self.low.get(index) else { return };
        if low.fetch_add(1, Ordering::Relaxed) == u8::MAX {
            let high = self.high.get_or_init(|| (0..self.low.len()).map(|_| AtomicU32::new(0)).collect());
            debug_assert_eq!(high.len(), self.low.len(), "counts of the same inodes");
            // `high` cannot overflow: that takes 2^40 references, which need 12 TiB of directory
            // entries.
            high[index].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The count; `u32::MAX` stands for every larger one, too.
    pub(crate) fn get(&self, index: usize) -> u32 {
        let Some(low) = self.low.get(index) else { return 0 };
        let high = self.high.get().map_or(0, |high| high[index].load(Ordering::Relaxed));
        let low = u32::from(low.load(Ordering::Relaxed));
        high.checked_mul(1 << u8::BITS).map_or(u32::MAX, |high| high | low)
    }
}

/// The link counts that inodes of a group store.
#[derive(Debug, Default)]
pub(crate) struct Links {
    low: Box<[u8]>,
    /// Counts of [`Self::MANY`] and more.
    many: BTreeMap<usize, u16>,
}

impl Links {
    /// Says that the count is in `many`.
    const MANY: u8 = u8::MAX;

    pub(super) fn new(inodes: usize) -> Self {
        Self { low: vec![0; inodes].into(), many: BTreeMap::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.low.len()
    }

    pub(crate) fn set(&mut self, index: usize, count: u16) {
        debug_assert!(index < self.len(), "link count {index} of {}", self.len());
        let low = u8::try_from(count).unwrap_or(Self::MANY);
        self.low[index] = low;
        if low == Self::MANY {
            self.many.insert(index, count);
        }
    }

    pub(crate) fn get(&self, index: usize) -> u16 {
        match self.low[index] {
            Self::MANY => self.many[&index],
            low => u16::from(low),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_go_beyond_a_byte() {
        let counts = Counts::new(3);
        (0..70_000).for_each(|_| counts.add_one(1));
        (0..255).for_each(|_| counts.add_one(2));
        counts.add_one(3);
        assert_eq!([0, 1, 2, 3].map(|index| counts.get(index)), [0, 70_000, 255, 0]);
    }

    #[test]
    fn a_count_beyond_32_bits_is_the_largest() {
        let counts = Counts::new(2);
        (0..256).for_each(|_| counts.add_one(1));
        counts.high.get().unwrap()[1].store(1 << 24, Ordering::Relaxed);
        assert_eq!([0, 1].map(|index| counts.get(index)), [0, u32::MAX]);
    }

    #[test]
    fn every_link_count_is_kept() {
        let mut links = Links::new(5);
        let all = [0, 1, 254, 255, u16::MAX];
        all.iter().enumerate().for_each(|(index, &count)| links.set(index, count));
        assert_eq!([0, 1, 2, 3, 4].map(|index| links.get(index)), all);
    }
}
