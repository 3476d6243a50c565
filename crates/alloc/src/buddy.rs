//! The free clusters of one group, as bits and as buddy chunks.
//!
//! Level 0 has one bit per cluster: 1 = free in core. Level `k >= 1` has one bit for each aligned
//! run of `2^k` clusters: 1 = that run is a free chunk of *exactly* order `k`. Key decision: the
//! chunks are a pure function of level 0. A free cluster belongs to the largest aligned
//! power-of-two run around it, at most `2^(orders-1)` long, that is wholly free. So loading,
//! splitting and merging always agree, and a model test can recompute the chunks.
//!
//! Buddies of neighbouring groups are often built one after the other and lie side by side on the
//! heap, but different CPUs may work on them. So the words end with padding, which keeps the buddy
//! of each group in cache lines of its own.
//!
//! Invariants: `free = popcount(level 0)`; `counters[k] = popcount(level k)` for `k >= 1`;
//! `sum(counters[k] * 2^k) = free`; `fragments` = number of maximal free runs; nothing free lies
//! below `first_free`.

use blockyard_disk::num::{u32_from_usize, usize_from_u32};

/// Orders of the biggest supported block (64 KiB): `log2(block size) + 2`.
pub(crate) const ORDERS_MAX: usize = 18;

/// Words of padding after the last level: two cache lines.
const PADDING: usize = 16;

/// A range to be freed has clusters that are free already, or were freed and wait for a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AlreadyFree {
    /// The first of these clusters.
    pub(crate) at: u32,
}

/// Bitmap and buddy chunks of one loaded group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Buddy {
    words: Box<[u64]>,
    /// Where each level starts in `words`; `level_start[orders]` is the end.
    level_start: [u32; ORDERS_MAX + 1],
    counters: [u32; ORDERS_MAX],
    orders: u32,
    /// Clusters of this group.
    clusters: u32,
    free: u32,
    fragments: u32,
    first_free: u32,
    /// No free cluster lies below this word. The hint only shortens scans and has no visible
    /// effect.
    hint_word: u32,
}

impl Buddy {
    /// Builds the chunks of a group from its block bitmap (1 = used), of which the first `clusters`
    /// bits count.
    ///
    /// `full_size` is the number of clusters of every group except perhaps the last, which may be
    /// shorter. `first_free` shows `full_size` when nothing is free in the bitmap. `orders` is
    /// `log2(block size) + 2`.
    ///
    /// # Panics
    /// When `orders` exceeds [`ORDERS_MAX`] or the bitmap is shorter than `clusters` bits.
    #[must_use]
    pub(crate) fn from_used_bitmap(bitmap: &[u8], clusters: u32, full_size: u32, orders: u32) -> Self {
        assert!(usize_from_u32(orders) <= ORDERS_MAX && bitmap.len() * 8 >= usize_from_u32(clusters));
        let bits = u32_from_usize(bitmap.len() * 8);
        let mut level_start = [0u32; ORDERS_MAX + 1];
        let mut at = 0;
        for (order, start) in (0..).zip(&mut level_start) {
            *start = at;
            if order < orders {
                at += (bits >> order).div_ceil(64).max(1);
            }
        }
        let mut words = vec![0u64; usize_from_u32(at) + PADDING].into_boxed_slice();
        for (word, bytes) in words.iter_mut().zip(bitmap.chunks(8)) {
            let mut raw = [0xffu8; 8];
            raw[..bytes.len()].copy_from_slice(bytes);
            *word = !u64::from_le_bytes(raw);
        }
        mask_from(&mut words[..usize_from_u32(level_start[1].max(1))], clusters);
        let mut buddy = Self {
            words,
            level_start,
            counters: [0; ORDERS_MAX],
            orders,
            clusters,
            free: 0,
            fragments: 0,
            first_free: full_size,
            hint_word: 0,
        };
        buddy.build_chunks();
        debug_assert_eq!(buddy.contradiction(), None, "a buddy just built");
        buddy
    }

    fn build_chunks(&mut self) {
        let mut at = 0;
        while let Some(start) = self.next_free(at) {
            let end = self.next_used(start);
            if self.fragments == 0 {
                self.first_free = start;
            }
            self.fragments += 1;
            self.free += end - start;
            self.add_chunks(start, end);
            at = end;
        }
        self.hint_word = (self.first_free / 64).min(self.level_end(0) - 1);
    }

    /// Free clusters.
    #[inline]
    #[must_use]
    pub(crate) const fn free(&self) -> u32 {
        self.free
    }

    /// Maximal runs of free clusters.
    #[inline]
    #[must_use]
    pub(crate) const fn fragments(&self) -> u32 {
        self.fragments
    }

    /// A position below which nothing is free. The cluster at this position need not be free
    /// itself. If nothing was free when the buddy was built, the position is the `full_size` of
    /// [`Self::from_used_bitmap`] until something is freed.
    #[inline]
    #[must_use]
    pub(crate) const fn first_free(&self) -> u32 {
        self.first_free
    }

    /// Number of free chunks of each order.
    #[inline]
    #[must_use]
    pub(crate) fn counters(&self) -> &[u32] {
        &self.counters[..usize_from_u32(self.orders)]
    }

    /// The highest order with a free chunk; `None` if nothing is free.
    #[inline]
    #[must_use]
    pub(crate) fn largest_order(&self) -> Option<u32> {
        let largest = (0..self.orders).rev().find(|&order| self.counters[usize_from_u32(order)] > 0);
        debug_assert_eq!(
            largest.is_some(),
            self.free > 0,
            "{} free clusters, largest {largest:?}",
            self.free
        );
        largest
    }

    /// Clusters of the group.
    #[inline]
    #[must_use]
    pub(crate) const fn clusters(&self) -> u32 {
        self.clusters
    }

    /// Whether a cluster is free in core.
    #[inline]
    #[must_use]
    pub(crate) fn is_free(&self, at: u32) -> bool {
        at < self.clusters && self.bit(0, at)
    }

    /// The lowest free cluster at or after `from`; `None` if there is none.
    #[inline]
    #[must_use]
    pub(crate) fn next_free(&self, from: u32) -> Option<u32> {
        if from >= self.clusters {
            return None;
        }
        let first = from / 64;
        let mut index = first.max(self.hint_word);
        let end = self.level_end(0);
        let mut word = self.words[usize_from_u32(index)];
        if index == first {
            word &= !0 << (from % 64);
        }
        loop {
            if word != 0 {
                return Some(index * 64 + word.trailing_zeros());
            }
            index += 1;
            if index == end {
                return None;
            }
            word = self.words[usize_from_u32(index)];
        }
    }

    /// The lowest used cluster at or after `from`; the group's size if there is none.
    #[inline]
    #[must_use]
    pub(crate) fn next_used(&self, from: u32) -> u32 {
        let end = self.level_end(0);
        let mut index = from / 64;
        if index >= end {
            return self.clusters;
        }
        let mut word = !self.words[usize_from_u32(index)] & (!0 << (from % 64));
        while word == 0 {
            index += 1;
            if index == end {
                return self.clusters;
            }
            word = !self.words[usize_from_u32(index)];
        }
        (index * 64 + word.trailing_zeros()).min(self.clusters)
    }

    /// The order of the chunk that the free cluster `at` belongs to.
    #[inline]
    fn order_at(&self, at: u32) -> u32 {
        (1..self.orders).find(|&order| self.bit(order, at >> order)).unwrap_or(0)
    }

    /// The order of the free chunk that starts at `at`.
    #[inline]
    fn order_from(&self, at: u32) -> u32 {
        let aligned = at.trailing_zeros().min(self.orders - 1);
        (1..=aligned).find(|&order| self.bit(order, at >> order)).unwrap_or(0)
    }

    /// As [`Self::run`], for a free cluster that starts a chunk. A free cluster starts a chunk if
    /// it is the first of the group, or if the cluster before it is used or ends a chunk.
    #[inline]
    pub(crate) fn run_from(&self, at: u32, want: u32) -> u32 {
        let mut end = at + (1 << self.order_from(at));
        while end - at < want && self.is_free(end) {
            end += 1 << self.order_from(end);
        }
        end - at
    }

    /// Whether `count` clusters from the free cluster `at` are free.
    #[inline]
    pub(crate) fn is_run(&self, at: u32, count: u32) -> bool {
        count == 1 || self.next_used_before(at, at.saturating_add(count)) == at.saturating_add(count)
    }

    /// The lowest used cluster in `[from, end)`, or `end`.
    #[inline]
    fn next_used_before(&self, from: u32, end: u32) -> u32 {
        let mut at = from;
        while at < end {
            if at >= self.clusters {
                return at;
            }
            let used = !self.words[usize_from_u32(at / 64)] >> (at % 64);
            if used != 0 {
                return (at + used.trailing_zeros()).min(end);
            }
            at = (at / 64 + 1) * 64;
        }
        end
    }

    /// Length of the free run from `at` as the search sees it. The run reaches to the end of the
    /// chunk that holds `at`. While it is shorter than `want` and another free chunk follows, this
    /// whole chunk is added. So the length may exceed `want`. It is 0 when `at` is used.
    #[inline]
    #[must_use]
    pub(crate) fn run(&self, at: u32, want: u32) -> u32 {
        if !self.is_free(at) {
            return 0;
        }
        let order = self.order_at(at);
        let mut end = ((at >> order) + 1) << order;
        while end - at < want && self.is_free(end) {
            end += 1 << self.order_from(end);
        }
        debug_assert!(end <= self.clusters, "a chunk at {at} ends at {end}, after the group");
        end - at
    }

    /// The first cluster of the lowest free chunk of exactly this order, which must be at least 1.
    /// `None` if there is no such chunk.
    #[inline]
    #[must_use]
    pub(crate) fn first_chunk(&self, order: u32) -> Option<u32> {
        debug_assert!(order >= 1 && order < self.orders);
        let start = usize_from_u32(self.level_start[usize_from_u32(order)]);
        let level = &self.words[start..usize_from_u32(self.level_end(order))];
        let index = level.iter().position(|&word| word != 0)?;
        Some((u32_from_usize(index) * 64 + level[index].trailing_zeros()) << order)
    }

    /// Marks `[start, start + count)` used.
    ///
    /// # Panics
    /// When the range is empty, leaves the group, or has more clusters than are free; in debug
    /// builds also when it is not wholly free. The caller found it free under the same lock.
    pub(crate) fn mark_used(&mut self, start: u32, count: u32) {
        let end = start + count;
        assert!(count > 0 && end <= self.clusters, "[{start}, {end}) leaves the group");
        debug_assert!(self.is_free(start) && self.next_used(start) >= end, "[{start}, {end}) is not free");
        assert!(count <= self.free, "{count} clusters used of {} free ones", self.free);
        self.free -= count;
        if self.first_free == start {
            self.first_free = end;
        }
        self.count_fragment_change(start, end, true);
        self.write_level0(start, end, false);
        if self.hint_word == start / 64 {
            self.raise_hint();
        }
        let mut at = start;
        while at < end {
            let order = if at == start { self.order_at(at) } else { self.order_from(at) };
            let chunk = (at >> order) << order;
            let chunk_end = chunk + (1 << order);
            self.remove_chunk(order, chunk);
            self.add_chunks(chunk, at);
            if chunk_end > end {
                self.add_chunks(end, chunk_end);
            }
            at = chunk_end;
        }
        debug_assert_eq!(self.counts_contradiction(), None, "after [{start}, {end}) was used");
    }

    /// Marks `[start, start + count)` free and merges chunks.
    ///
    /// # Errors
    /// [`AlreadyFree`] when a cluster of the range is free already; nothing is changed then.
    ///
    /// # Panics
    /// When the range is empty or leaves the group.
    pub(crate) fn mark_free(&mut self, start: u32, count: u32) -> Result<(), AlreadyFree> {
        let end = start + count;
        assert!(count > 0 && end <= self.clusters, "[{start}, {end}) leaves the group");
        if let Some(at) = self.next_free_in(start, end) {
            return Err(AlreadyFree { at });
        }
        assert!(count <= self.clusters - self.free, "{count} clusters freed, {} are free", self.free);
        self.free += count;
        self.first_free = self.first_free.min(start);
        self.hint_word = self.hint_word.min(start / 64);
        self.count_fragment_change(start, end, false);
        self.write_level0(start, end, true);
        let mut at = start;
        while at < end {
            let order = self.chunk_order(at, end);
            self.add_merging(order, at);
            at += 1 << order;
        }
        debug_assert_eq!(self.counts_contradiction(), None, "after [{start}, {end}) was freed");
        Ok(())
    }

    /// How the counts contradict each other (clusters in chunks, free clusters, free runs); `None`
    /// if they do not.
    fn counts_contradiction(&self) -> Option<&'static str> {
        let in_chunks: u32 = (0u32..).zip(self.counters()).map(|(order, count)| count << order).sum();
        if in_chunks != self.free {
            return Some("the chunks of all orders hold more or less than what is free");
        }
        let runs_fit = self.fragments <= self.free && (self.fragments > 0) == (self.free > 0);
        (!runs_fit).then_some("runs without free clusters, or free clusters without runs")
    }

    /// How parts of the buddy contradict each other; `None` if they do not. Looks at every word.
    fn contradiction(&self) -> Option<&'static str> {
        let ones = |order: u32| {
            let start = usize_from_u32(self.level_start[usize_from_u32(order)]);
            let level = &self.words[start..usize_from_u32(self.level_end(order))];
            level.iter().map(|word| word.count_ones()).sum::<u32>()
        };
        if ones(0) != self.free {
            return Some("bits of free clusters and their count differ");
        }
        if (1..self.orders).any(|order| ones(order) != self.counters[usize_from_u32(order)]) {
            return Some("bits of chunks of an order and their count differ");
        }
        if self.next_free(0).is_some_and(|first| first < self.first_free) {
            return Some("a free cluster lies below the first one");
        }
        self.counts_contradiction()
    }

    /// The lowest free cluster in `[start, end)`.
    #[inline]
    #[must_use]
    pub(crate) fn next_free_in(&self, start: u32, end: u32) -> Option<u32> {
        if end - start == 1 {
            return self.is_free(start).then_some(start);
        }
        self.next_free(start).filter(|&at| at < end)
    }

    /// Counts one fragment more or less if both clusters beside the range are free, or neither is.
    /// If only one of them is free, the count stays.
    #[inline]
    fn count_fragment_change(&mut self, start: u32, end: u32, using: bool) {
        let left = start > 0 && self.is_free(start - 1);
        let right = self.is_free(end);
        match (left && right, !left && !right) {
            (true, _) if using => self.fragments += 1,
            (true, _) => self.fragments -= 1,
            (_, true) if using => self.fragments -= 1,
            (_, true) => self.fragments += 1,
            _ => {}
        }
    }

    /// The order of the chunk that starts at `at` when `[at, end)` is cut into maximal aligned
    /// chunks.
    #[inline]
    fn chunk_order(&self, at: u32, end: u32) -> u32 {
        at.trailing_zeros().min((end - at).ilog2()).min(self.orders - 1)
    }

    /// Adds `[start, end)` cut into maximal aligned chunks, without merging.
    #[inline]
    fn add_chunks(&mut self, start: u32, end: u32) {
        let mut at = start;
        while at < end {
            let order = self.chunk_order(at, end);
            self.set_chunk(order, at);
            at += 1 << order;
        }
    }

    /// Adds a chunk. Its mate is the other half of the chunk one order higher. While the mate is a
    /// free chunk, the two are merged.
    #[inline]
    fn add_merging(&mut self, order: u32, at: u32) {
        let (mut order, mut at) = (order, at);
        while order + 1 < self.orders {
            let mate = at ^ (1 << order);
            let mate_is_chunk = if order == 0 { self.is_free(mate) } else { self.has_chunk(order, mate) };
            if !mate_is_chunk {
                break;
            }
            self.remove_chunk(order, mate);
            at &= !(1 << order);
            order += 1;
        }
        self.set_chunk(order, at);
    }

    #[inline]
    fn has_chunk(&self, order: u32, at: u32) -> bool {
        at < self.clusters && self.bit(order, at >> order)
    }

    #[inline]
    fn set_chunk(&mut self, order: u32, at: u32) {
        debug_assert!(at.trailing_zeros() >= order, "a chunk of order {order} at {at}");
        debug_assert!(order == 0 || !self.has_chunk(order, at), "two chunks of order {order} at {at}");
        self.counters[usize_from_u32(order)] += 1;
        if order > 0 {
            let bit = at >> order;
            *self.word_mut(order, bit) |= 1 << (bit % 64);
        }
    }

    #[inline]
    fn remove_chunk(&mut self, order: u32, at: u32) {
        debug_assert!(order == 0 || self.has_chunk(order, at), "no chunk of order {order} at {at}");
        assert!(self.counters[usize_from_u32(order)] > 0, "no chunk of order {order} is left");
        self.counters[usize_from_u32(order)] -= 1;
        if order > 0 {
            let bit = at >> order;
            *self.word_mut(order, bit) &= !(1 << (bit % 64));
        }
    }

    #[inline]
    fn bit(&self, order: u32, bit: u32) -> bool {
        let word = self.level_start[usize_from_u32(order)] + bit / 64;
        (self.words[usize_from_u32(word)] >> (bit % 64)) & 1 == 1
    }

    #[inline]
    fn word_mut(&mut self, order: u32, bit: u32) -> &mut u64 {
        let word = self.level_start[usize_from_u32(order)] + bit / 64;
        &mut self.words[usize_from_u32(word)]
    }

    #[inline]
    fn level_end(&self, order: u32) -> u32 {
        self.level_start[usize_from_u32(order) + 1]
    }

    /// Writes the free bits of `[start, end)` a word at a time.
    #[inline]
    fn write_level0(&mut self, start: u32, end: u32, free: bool) {
        let mut at = start;
        while at < end {
            let stop = ((at / 64 + 1) * 64).min(end);
            let mask = (!0u64 >> (64 - (stop - at))) << (at % 64);
            let word = &mut self.words[usize_from_u32(at / 64)];
            *word = if free { *word | mask } else { *word & !mask };
            at = stop;
        }
    }

    /// Moves the hint over words that hold nothing free.
    #[inline]
    fn raise_hint(&mut self) {
        let last = self.level_end(0) - 1;
        while self.hint_word < last && self.words[usize_from_u32(self.hint_word)] == 0 {
            self.hint_word += 1;
        }
    }
}

/// Clears every bit at or after `from`.
fn mask_from(words: &mut [u64], from: u32) {
    for (index, word) in words.iter_mut().enumerate() {
        let base = u32_from_usize(index) * 64;
        if base >= from {
            *word = 0;
        } else if from - base < 64 {
            *word &= !(!0 << (from - base));
        }
    }
}

#[cfg(test)]
#[allow(clippy::as_conversions)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CLUSTERS: u32 = 1000;
    const ORDERS: u32 = 9;

    fn buddy_of(used: &[bool]) -> Buddy {
        let mut bitmap = vec![0u8; 128];
        for (i, &used) in used.iter().enumerate() {
            bitmap[i / 8] |= u8::from(used) << (i % 8);
        }
        Buddy::from_used_bitmap(&bitmap, CLUSTERS, CLUSTERS, ORDERS)
    }

    /// Everything that is a function of the bits. The hint and `first_free` are only lower bounds.
    fn visible(buddy: &Buddy) -> (Vec<u64>, Vec<u32>, u32, u32) {
        (buddy.words.to_vec(), buddy.counters().to_vec(), buddy.free(), buddy.fragments())
    }

    #[test]
    fn a_full_empty_group_of_4k_blocks_is_four_chunks_of_order_13() {
        let buddy = Buddy::from_used_bitmap(&[0; 4096], 32768, 32768, 14);
        assert_eq!(buddy.counters()[13], 4);
        assert_eq!(buddy.counters()[..13], [0; 13]);
        assert_eq!((buddy.free(), buddy.fragments(), buddy.largest_order()), (32768, 1, Some(13)));
    }

    #[test]
    fn a_long_run_is_delivered_chunk_by_chunk() {
        let mut buddy = Buddy::from_used_bitmap(&[0; 4096], 32768, 32768, 14);
        buddy.mark_used(0, 8487);
        let mut at = 8487;
        let mut seen = Vec::new();
        while at < 32768 {
            let run = buddy.run(at, 17);
            seen.push((at, run));
            at += run;
        }
        // Worked example c2, see tests/vectors.rs.
        assert_eq!(
            seen,
            [
                (8487, 25),
                (8512, 64),
                (8576, 128),
                (8704, 512),
                (9216, 1024),
                (10240, 2048),
                (12288, 4096),
                (16384, 8192),
                (24576, 8192)
            ]
        );
    }

    #[test]
    fn freeing_free_clusters_is_refused_and_changes_nothing() {
        let mut buddy = Buddy::from_used_bitmap(&[0; 128], CLUSTERS, CLUSTERS, ORDERS);
        buddy.mark_used(10, 10);
        let before = buddy.clone();
        assert_eq!(buddy.mark_free(15, 6), Err(AlreadyFree { at: 20 }));
        assert_eq!(buddy, before);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn chunks_are_a_function_of_the_bits(ops in prop::collection::vec((0..CLUSTERS, 1..70u32), 1..200)) {
            let mut used = vec![false; 1000];
            let mut buddy = buddy_of(&used);
            for (start, count) in ops {
                let end = (start + count).min(CLUSTERS);
                let range = start as usize..end as usize;
                if used[range.clone()].iter().all(|&used| !used) {
                    buddy.mark_used(start, end - start);
                    used[range].fill(true);
                } else if used[range.clone()].iter().all(|&used| used) {
                    buddy.mark_free(start, end - start).unwrap();
                    used[range].fill(false);
                }
                let rebuilt = buddy_of(&used);
                prop_assert_eq!(buddy.contradiction(), None);
                prop_assert_eq!(visible(&buddy), visible(&rebuilt));
                prop_assert!(buddy.first_free() <= rebuilt.first_free());
                prop_assert_eq!(buddy.next_free(0), rebuilt.next_free(0));
            }
        }
    }
}
