//! The locality group of one CPU slot: preallocations that small files share, in ten buckets by
//! clusters left.
//!
//! The caller holds the locality group's mutex from its first look until its request is served, so
//! two requests of one slot never interleave. Each bucket is sorted by clusters left, ascending.
//! Deleted entries stay in a bucket until a search reaches them or the bucket is trimmed.

use std::sync::Arc;

use blockyard_disk::Geometry;
use blockyard_disk::num::{u64_from_u32, usize_from_u32};
use blockyard_sync::Backend;

use super::{Owner, Prealloc};
use crate::policy::slots::LocalityTies;

/// Number of buckets.
const BUCKETS: usize = 10;
/// A bucket with more live entries than this is trimmed to [`BUCKET_TRIMMED`].
const BUCKET_MAX: usize = 8;
/// Live entries of a bucket after trimming. There may be more if some are in use.
const BUCKET_TRIMMED: usize = 5;

/// Preallocations of one CPU slot.
pub(crate) struct LocalityGroup<B: Backend> {
    buckets: [Vec<Arc<Prealloc<B>>>; BUCKETS],
}

impl<B: Backend> Default for LocalityGroup<B> {
    fn default() -> Self {
        Self { buckets: core::array::from_fn(|_| Vec::new()) }
    }
}

/// `min(9, floor(log2 n))` for n at least 1.
fn bucket_of(clusters: u32) -> usize {
    usize_from_u32(clusters.max(1).ilog2()).min(BUCKETS - 1)
}

impl<B: Backend> LocalityGroup<B> {
    /// Takes out one of the live preallocations with at least `count` clusters left: the one whose
    /// first cluster left is nearest to block `goal`. `None` if there is none.
    pub(crate) fn take_nearest(
        &mut self,
        geometry: &Geometry,
        goal: u64,
        count: u32,
        ties: LocalityTies,
    ) -> Option<Arc<Prealloc<B>>> {
        let mut nearest: Option<(u64, usize, usize)> = None;
        for (nr, bucket) in self.buckets.iter_mut().enumerate().skip(bucket_of(count)) {
            let mut at = 0;
            while at < bucket.len() {
                let state = bucket[at].glance();
                if state.deleted {
                    bucket.remove(at);
                    continue;
                }
                if state.free >= count {
                    let first = geometry.group_first_block(bucket[at].group).raw();
                    let start = first + (u64_from_u32(state.front) << geometry.cluster_ratio_bits());
                    let distance = start.abs_diff(goal);
                    let is_nearer = nearest.is_none_or(|(best, ..)| match ties {
                        LocalityTies::First => distance < best,
                        LocalityTies::Last => distance <= best,
                    });
                    if is_nearer {
                        nearest = Some((distance, nr, at));
                    }
                }
                at += 1;
            }
        }
        nearest.map(|(_, nr, at)| self.buckets[nr].remove(at))
    }

    /// Puts a preallocation with clusters left into its bucket. Returns the preallocations that
    /// were deleted to make room. The caller must give their clusters back in this order.
    pub(crate) fn insert(&mut self, prealloc: Arc<Prealloc<B>>) -> Vec<Arc<Prealloc<B>>> {
        debug_assert_eq!(prealloc.owner, Owner::Locality, "a CPU slot got an inode's preallocation");
        let free = prealloc.glance().free;
        assert!(free > 0, "a preallocation with nothing left is kept");
        let bucket = &mut self.buckets[bucket_of(free)];
        let at = bucket.iter().position(|other| other.glance().free > free).unwrap_or(bucket.len());
        bucket.insert(at, prealloc);
        if bucket.len() > BUCKET_MAX { trim(bucket) } else { Vec::new() }
    }

    /// For each bucket, the clusters left in each live preallocation.
    #[cfg(test)]
    pub(crate) fn left(&self) -> Vec<Vec<u32>> {
        let live = |bucket: &Vec<Arc<Prealloc<B>>>| {
            bucket.iter().map(|p| p.glance()).filter(|s| !s.deleted).map(|s| s.free).collect()
        };
        self.buckets.iter().map(live).collect()
    }
}

/// Removes deleted entries. If more than [`BUCKET_MAX`] are left, deletes entries from the front
/// until [`BUCKET_TRIMMED`] are left; entries in use stay. Returns the entries that this call
/// deleted, the last one first.
fn trim<B: Backend>(bucket: &mut Vec<Arc<Prealloc<B>>>) -> Vec<Arc<Prealloc<B>>> {
    bucket.retain(|prealloc| !prealloc.glance().deleted);
    if bucket.len() <= BUCKET_MAX {
        return Vec::new();
    }
    let mut dropped = Vec::new();
    let mut at = 0;
    while at < bucket.len() && bucket.len() > BUCKET_TRIMMED {
        if bucket[at].try_delete() {
            dropped.push(bucket.remove(at));
        } else {
            at += 1;
        }
    }
    dropped.reverse();
    dropped
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockyard_disk::GroupNr;
    use blockyard_sync::Native;

    #[test]
    fn of_two_equally_near_the_first_or_the_last_is_taken() {
        let taken = |ties| {
            let mut locality = LocalityGroup::<Native>::default();
            for start in [90, 110] {
                let prealloc = Arc::new(Prealloc::new(Owner::Locality, GroupNr::new(0), start, 4));
                prealloc.put();
                locality.insert(prealloc);
            }
            let geometry = crate::memory::MemoryBitmaps::plain_geometry(2, 0);
            locality.take_nearest(&geometry, 100, 1, ties).map(|prealloc| prealloc.start)
        };
        assert_eq!((taken(LocalityTies::First), taken(LocalityTies::Last)), (Some(90), Some(110)));
    }

    #[test]
    fn the_ninth_leftover_sends_the_four_oldest_back() {
        let mut locality = LocalityGroup::<Native>::default();
        let leftover = |start: u32| {
            let prealloc = Arc::new(Prealloc::new(Owner::Locality, GroupNr::new(0), start, 2));
            prealloc.put();
            prealloc
        };
        for start in 0..8 {
            assert!(locality.insert(leftover(start * 10)).is_empty());
        }
        let last = leftover(80);
        assert_eq!(last.take_front(1), Some(80), "in use");
        let dropped: Vec<u32> = locality.insert(leftover(90)).iter().map(|p| p.start).collect();
        assert_eq!(dropped, [30, 20, 10, 0], "in reverse order of selection");
        assert_eq!(locality.left()[1], [2; 5]);
    }
}
