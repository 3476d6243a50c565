//! Sets of groups ordered by group number. A set has one bit per group, and two levels of summary
//! bits above. A single word for all sets says which sets are not empty.
//!
//! Key decision: a set is read without any lock. `next` takes a few word loads, and one more for
//! every 262,144 groups that it passes over. A walk visits groups in a sequence that depends only
//! on the content of the set, never on its history. There is one set for each order. Most sets are
//! empty most of the time, so a walk over the orders skips to the next one whose set holds a group
//! (`next_order`).
//!
//! Concurrency: a bit is set and cleared under the lock of its group, so each bit has one writer at
//! a time. A word may have several at once. Insertion sets the bit. If the word was empty before,
//! insertion also sets the summary bit above. Removal clears the bit. If the word became empty, the
//! remover clears the summary bit, looks at the word again, and sets the summary bit again if
//! somebody filled the word meanwhile.
//!
//! So a summary bit may be set over an empty word, which costs a reader one wasted load. The
//! summary bit of a non-empty word is clear only while an insertion or a removal is between two
//! steps. Readers then overlook the word's groups, as if these had been inserted later.

use blockyard_disk::GroupNr;
use blockyard_disk::num::{u32_from_usize, usize_from_u32};
use blockyard_sync::{Atomic, AtomicInt, Backend, Ordering};

/// Words in a cache line.
const LINE_WORDS: usize = 8;

/// One ordered set of groups for each order.
pub(crate) struct OrderedSets<B: Backend> {
    sets: Box<[OrderedSet<B>]>,
    /// One bit per order: whether its set holds a group. The bits are updated in the same way as
    /// the summary bits.
    held: B::AtomicU64,
}

/// An ordered set of groups.
struct OrderedSet<B: Backend> {
    bits: Box<[B::AtomicU64]>,
    summary: Box<[B::AtomicU64]>,
    top: Box<[B::AtomicU64]>,
}

impl<B: Backend> OrderedSets<B> {
    /// `orders` empty sets for `groups` groups; at most 64 orders.
    pub(crate) fn new(orders: u32, groups: u32) -> Self {
        assert!(orders <= u64::BITS, "{orders} orders do not fit one word");
        let held = B::on_line("order sets held", || B::AtomicU64::new(0));
        Self { sets: (0..orders).map(|_| OrderedSet::new(groups)).collect(), held }
    }

    /// Adds a group; the caller holds its lock.
    pub(crate) fn insert(&self, order: u32, group: GroupNr) {
        if self.sets[usize_from_u32(order)].insert(usize_from_u32(group.raw())) {
            self.held.fetch_or(1 << order, Ordering::AcqRel);
        }
    }

    /// Takes a group out; the caller holds its lock.
    pub(crate) fn remove(&self, order: u32, group: GroupNr) {
        let set = &self.sets[usize_from_u32(order)];
        if !set.remove(usize_from_u32(group.raw())) {
            return;
        }
        if set.is_empty() {
            self.held.fetch_and(!(1 << order), Ordering::AcqRel);
        }
        // Needed even if the set is not empty. This removal may have cleared a bit of the top and
        // then set that bit again. In between, another removal may have seen the set empty and
        // cleared the bit in `held`.
        if !set.is_empty() && self.held.load(Ordering::Acquire) & (1 << order) == 0 {
            self.held.fetch_or(1 << order, Ordering::AcqRel);
        }
    }

    /// Whether a set holds a group. The answer is exact only under the group's lock.
    pub(crate) fn contains(&self, order: u32, group: GroupNr) -> bool {
        let at = usize_from_u32(group.raw());
        self.sets[usize_from_u32(order)].bits[at / 64].load(Ordering::Relaxed) >> (at % 64) & 1 == 1
    }

    /// The first order at or after `from` whose set holds a group.
    #[inline]
    pub(crate) fn next_order(&self, from: u32) -> Option<u32> {
        let held = self.held.load(Ordering::Acquire) & u64::MAX.checked_shl(from)?;
        (held != 0).then(|| held.trailing_zeros())
    }

    /// The first group of a set in `[from, end)`.
    #[inline]
    pub(crate) fn next(&self, order: u32, from: u32, end: u32) -> Option<GroupNr> {
        if from >= end {
            return None;
        }
        let found = u32_from_usize(self.sets[usize_from_u32(order)].next(usize_from_u32(from))?);
        debug_assert!(found >= from, "group {found} was found from {from} on");
        (found < end).then_some(GroupNr::new(found))
    }

    /// Number of groups in a set, for reports. It is exact only if no group is added or removed
    /// meanwhile.
    pub(crate) fn len(&self, order: u32) -> u32 {
        let set = &self.sets[usize_from_u32(order)];
        set.bits.iter().map(|word| word.load(Ordering::Relaxed).count_ones()).sum()
    }
}

impl<B: Backend> OrderedSet<B> {
    fn new(groups: u32) -> Self {
        let words = |bits: usize| -> Box<[B::AtomicU64]> {
            let count = bits.div_ceil(64).max(1);
            let line = |first: usize| -> Vec<B::AtomicU64> {
                let made = || (first..count.min(first + LINE_WORDS)).map(|_| B::AtomicU64::new(0)).collect();
                B::on_line("order set", made)
            };
            (0..count).step_by(LINE_WORDS).flat_map(line).collect()
        };
        let bits = words(usize_from_u32(groups));
        let summary = words(bits.len());
        let top = words(summary.len());
        Self { bits, summary, top }
    }

    /// Sets the bit, and the summary bits of words that were empty. Returns true if the words were
    /// empty at all three levels.
    fn insert(&self, at: usize) -> bool {
        // Release pairs with the acquire loads of `next`: whoever sees a summary bit sees the bits
        // below it.
        self.bits[at / 64].fetch_or(1 << (at % 64), Ordering::AcqRel) == 0
            && self.summary[at / 4096].fetch_or(1 << (at / 64 % 64), Ordering::AcqRel) == 0
            && self.top[at / 262_144].fetch_or(1 << (at / 4096 % 64), Ordering::AcqRel) == 0
    }

    /// Clears the bit, and the summary bits of words that became empty. Returns whether a bit at
    /// the top was cleared, or set again.
    fn remove(&self, at: usize) -> bool {
        let bit = 1u64 << (at % 64);
        self.bits[at / 64].fetch_and(!bit, Ordering::AcqRel) & !bit == 0 && self.clear_summary(at / 64)
    }

    /// Clears the summary bit of an empty word, and sets it again if the word was filled meanwhile.
    /// Returns as [`Self::remove`] does.
    fn clear_summary(&self, word: usize) -> bool {
        let bit = 1u64 << (word % 64);
        let emptied = self.summary[word / 64].fetch_and(!bit, Ordering::AcqRel) & !bit == 0;
        if emptied {
            self.clear_top(word / 64);
        }
        let refilled = self.bits[word].load(Ordering::Acquire) != 0
            && self.summary[word / 64].fetch_or(bit, Ordering::AcqRel) == 0;
        if refilled {
            self.top[word / 4096].fetch_or(1 << (word / 64 % 64), Ordering::AcqRel);
        }
        emptied || refilled
    }

    fn clear_top(&self, summary: usize) {
        let bit = 1u64 << (summary % 64);
        self.top[summary / 64].fetch_and(!bit, Ordering::AcqRel);
        if self.summary[summary].load(Ordering::Acquire) != 0 {
            self.top[summary / 64].fetch_or(bit, Ordering::AcqRel);
        }
    }

    fn is_empty(&self) -> bool {
        self.top.iter().all(|word| word.load(Ordering::Acquire) == 0)
    }

    /// The lowest member at or after `from`.
    fn next(&self, from: usize) -> Option<usize> {
        if let Some(at) = next_in_word(&self.bits, from) {
            return Some(at);
        }
        let mut word = from / 64 + 1;
        while let Some(candidate) = self.next_word(word) {
            if let Some(at) = next_in_word(&self.bits, candidate * 64) {
                return Some(at);
            }
            word = candidate + 1;
        }
        None
    }

    /// Index of the lowest word at or after `from` whose summary bit is set.
    fn next_word(&self, from: usize) -> Option<usize> {
        if from >= self.bits.len() {
            return None;
        }
        if let Some(word) = next_in_word(&self.summary, from) {
            return Some(word);
        }
        let mut at = from / 64 + 1;
        while at < self.summary.len() {
            let Some(summary) = next_in_word(&self.top, at) else {
                at = (at / 64 + 1) * 64;
                continue;
            };
            if let Some(word) = next_in_word(&self.summary, summary * 64) {
                return Some(word);
            }
            at = summary + 1;
        }
        None
    }
}

/// The lowest set bit at or after `from` in the word that holds `from`.
#[inline]
fn next_in_word<A: Atomic<u64>>(words: &[A], from: usize) -> Option<usize> {
    let word = words.get(from / 64)?.load(Ordering::Acquire) & (!0 << (from % 64));
    (word != 0).then(|| from / 64 * 64 + usize_from_u32(word.trailing_zeros()))
}

#[cfg(test)]
#[allow(clippy::as_conversions)]
mod tests {
    use super::*;
    use blockyard_sync::Native;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_set_is_a_btree_set(
            ops in prop::collection::vec((any::<bool>(), 0u32..300_000), 1..200),
            probes in prop::collection::vec(0u32..300_000, 20),
        ) {
            let sets = OrderedSets::<Native>::new(1, 300_000);
            let mut model = BTreeSet::new();
            for (add, group) in ops {
                if add {
                    sets.insert(0, GroupNr::new(group));
                    model.insert(group);
                } else {
                    let gone = model.range(group..).next().copied().unwrap_or(group);
                    sets.remove(0, GroupNr::new(gone));
                    model.remove(&gone);
                }
            }
            for from in probes {
                let next = sets.next(0, from, 299_000).map(GroupNr::raw);
                prop_assert_eq!(next, model.range(from..).next().copied().filter(|&g| g < 299_000));
            }
            prop_assert_eq!(sets.len(0) as usize, model.len());
        }

        /// A regression: a walk over the orders looked into every empty set at each allocation.
        #[test]
        fn the_next_order_is_the_next_that_holds_a_group(
            moves in prop::collection::vec((0u32..40, 0u32..14), 1..100),
            groups in prop::sample::select(vec![40u32, 600_000]),
        ) {
            let sets = OrderedSets::<Native>::new(14, groups);
            let spread = groups / 40;
            let mut order_of = std::collections::BTreeMap::new();
            for (group, order) in moves {
                let nr = GroupNr::new(group * spread);
                match order_of.insert(group, order) {
                    Some(old) if old == order => {
                        sets.remove(old, nr);
                        order_of.remove(&group);
                    }
                    Some(old) => {
                        sets.remove(old, nr);
                        sets.insert(order, nr);
                    }
                    None => sets.insert(order, nr),
                }
                let held: BTreeSet<u32> = order_of.values().copied().collect();
                for from in 0..=14 {
                    prop_assert_eq!(sets.next_order(from), held.range(from..).next().copied());
                }
            }
        }
    }
}
