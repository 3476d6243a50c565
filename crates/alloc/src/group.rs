//! Block groups in core. Each has a small summary that is always in memory, and a bitmap with buddy
//! chunks while it is loaded.
//!
//! Key decisions: a search reads the summary before it locks the group. So the summary consists of
//! atomics (free clusters, fragments, stored orders and flags). They change only under the group's
//! lock, except for three flags: `BLOCK_UNINIT`, `PREFETCHED` and `TRIMMED`. Bitmap and buddy are
//! loaded on demand, and no group is locked while the bitmap is read. Bitmap and buddy may be
//! evicted unless the group is pinned.
//!
//! Invariant: the used clusters of the in-core bitmap are those of the on-disk bitmap, and in
//! addition those that are
//!
//! - left in a preallocation of the group's list,
//! - freed and not yet committed,
//! - claimed, or
//! - held for trimming.
//!
//! The last three pin the group. So a reload, which adds the preallocations to the bitmap from the
//! source, always yields the same in-core bitmap.

pub(crate) mod load;
pub(crate) mod table;

use std::sync::Arc;

use blockyard_disk::GroupNr;
use blockyard_disk::num::{u32_from_usize, usize_from_u32};
use blockyard_sync::{Atomic, AtomicInt, Backend, CachePadded, CpuSlot, Mutex, MutexGuard, Ordering, rank};

use crate::buddy::{AlreadyFree, Buddy};
use crate::index::{Figures, Indexes, StoredOrders};
use crate::pending::PendingTree;
use crate::prealloc::Prealloc;

/// The group has been loaded at least once, so its figures and orders are valid.
const INITIALISED: u32 = 1 << 16;
/// The bitmap contradicts the descriptor, so nothing is allocated from the group.
const CORRUPT: u32 = 1 << 17;
/// The bitmap was never written to disk.
const BLOCK_UNINIT: u32 = 1 << 18;
/// A prefetch has dealt with the group: it told the source that the bitmap will probably be loaded,
/// or the bitmap needs no reading.
const PREFETCHED: u32 = 1 << 19;
/// A trim of all free clusters began, and no cluster has become free since.
const TRIMMED: u32 = 1 << 20;
/// Bits 0..8 hold the stored largest order + 1, bits 8..16 the stored average order + 1.
const ORDER_MASK: u32 = 0xff;
const AVERAGE_SHIFT: u32 = 8;

/// The bit of `residency` that says that the bitmap is loaded. The lower bits count pins.
const LOADED: u32 = 1 << 31;

/// One block group. It has two cache lines of its own, because some processors fetch lines in pairs
/// and neighbouring groups may serve different CPUs.
#[repr(align(128))]
pub(crate) struct Group<B: Backend> {
    // The summary. Searches read it without the lock. Relaxed accesses are enough: before a search
    // takes anything, it checks again under the lock.
    free: B::AtomicU32,
    fragments: B::AtomicU32,
    shape: B::AtomicU32,
    /// `LOADED` and the number of pins. Only a loaded group can be pinned, and a pinned one is not
    /// evicted.
    residency: B::AtomicU32,
    /// Number of preallocations in the list. Accessed relaxed: it is only a hint to pass over
    /// groups that have none.
    preallocs: B::AtomicU32,
    state: Mutex<GroupState<B>, B>,
}

/// What the group's lock guards.
pub(crate) struct GroupState<B: Backend> {
    pub(crate) loaded: Option<Box<CachePadded<Buddy>>>,
    pub(crate) pending: Option<Box<PendingTree<B>>>,
    preallocs: Vec<Arc<Prealloc<B>>>,
    /// Number of loads. If it changed while a bitmap was read, that bitmap may be stale.
    generation: u32,
    acquisitions: u32,
    waits: u32,
}

/// The summary of a group at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) free: u32,
    pub(crate) fragments: u32,
    shape: u32,
}

impl Summary {
    /// Largest free order, −1 when none.
    #[inline]
    pub(crate) fn largest_order(self) -> i32 {
        (self.shape & ORDER_MASK).cast_signed() - 1
    }

    /// Stored average-fragment order, −1 when none.
    #[inline]
    fn average_order(self) -> i32 {
        (self.shape >> AVERAGE_SHIFT & ORDER_MASK).cast_signed() - 1
    }

    #[inline]
    pub(crate) fn initialised(self) -> bool {
        self.shape & INITIALISED != 0
    }

    #[inline]
    pub(crate) fn corrupt(self) -> bool {
        self.shape & CORRUPT != 0
    }

    #[inline]
    pub(crate) fn block_uninit(self) -> bool {
        self.shape & BLOCK_UNINIT != 0
    }

    #[inline]
    pub(crate) fn prefetched(self) -> bool {
        self.shape & PREFETCHED != 0
    }
}

impl<B: Backend> Group<B> {
    pub(crate) fn new(free: u32, block_uninit: bool) -> Self {
        let state = GroupState {
            loaded: None,
            pending: None,
            preallocs: Vec::new(),
            generation: 0,
            acquisitions: 0,
            waits: 0,
        };
        // In virtual time the lock has a cache line of its own, because Linux keeps group locks
        // apart from the fields that searches read.
        let state = B::on_line("group lock", || Mutex::new(rank::GROUP, state));
        B::on_line("group summary", || Self {
            free: B::AtomicU32::new(free),
            fragments: B::AtomicU32::new(0),
            shape: B::AtomicU32::new(if block_uninit { BLOCK_UNINIT } else { 0 }),
            residency: B::AtomicU32::new(0),
            preallocs: B::AtomicU32::new(0),
            state,
        })
    }

    #[inline]
    pub(crate) fn summary(&self) -> Summary {
        Summary {
            free: self.free.load(Ordering::Relaxed),
            fragments: self.fragments.load(Ordering::Relaxed),
            shape: self.shape.load(Ordering::Relaxed),
        }
    }

    #[inline]
    pub(crate) fn free(&self) -> u32 {
        self.free.load(Ordering::Relaxed)
    }

    /// Notes that a prefetch has dealt with the group. Returns true to the first caller only.
    pub(crate) fn note_prefetch(&self) -> bool {
        self.shape.fetch_or(PREFETCHED, Ordering::Relaxed) & PREFETCHED == 0
    }

    /// Forbids eviction until [`Self::unpin`]. Returns false, and does nothing, if the group is not
    /// loaded.
    #[inline]
    pub(crate) fn pin(&self) -> bool {
        // Acquire pairs with the release of the eviction that may have come before.
        if self.residency.fetch_add(1, Ordering::Acquire) & LOADED != 0 {
            return true;
        }
        self.unpin();
        false
    }

    /// Ends one pin. Release pairs with the eviction's exchange.
    #[inline]
    pub(crate) fn unpin(&self) {
        let before = self.residency.fetch_sub(1, Ordering::Release);
        assert!(before & !LOADED > 0, "a group was unpinned more often than pinned");
    }

    /// Notes that the group's bitmap is on disk from now on.
    pub(crate) fn clear_block_uninit(&self) {
        if self.summary().block_uninit() {
            self.shape.fetch_and(!BLOCK_UNINIT, Ordering::Relaxed);
        }
    }

    /// Whether a trim of all free clusters began and nothing has become free since.
    pub(crate) fn is_trimmed(&self) -> bool {
        self.shape.load(Ordering::Relaxed) & TRIMMED != 0
    }

    /// Notes that all free clusters are about to be trimmed.
    pub(crate) fn note_trimmed(&self) {
        self.shape.fetch_or(TRIMMED, Ordering::Relaxed);
    }

    /// Notes that some free clusters are not trimmed.
    pub(crate) fn note_untrimmed(&self) {
        if self.is_trimmed() {
            self.shape.fetch_and(!TRIMMED, Ordering::Relaxed);
        }
    }

    /// Whether the list of preallocations looks non-empty.
    pub(crate) fn has_preallocs(&self) -> bool {
        self.preallocs.load(Ordering::Relaxed) > 0
    }

    #[inline]
    pub(crate) fn is_loaded(&self) -> bool {
        self.residency.load(Ordering::Relaxed) & LOADED != 0
    }
}

/// Exclusive access to one group. It holds the lock, and updates summary and indexes with every
/// change of the group's clusters.
pub(crate) struct GroupGuard<'a, B: Backend> {
    pub(crate) state: MutexGuard<'a, GroupState<B>, B>,
    /// The lock shared with other groups, under `locks=hashed`; released after the state.
    _shared: Option<MutexGuard<'a, (), B>>,
    pub(crate) group: &'a Group<B>,
    indexes: &'a Indexes<B>,
    pub(crate) nr: GroupNr,
    cpu: CpuSlot,
}

impl<B: Backend> GroupGuard<'_, B> {
    /// Bitmap and buddy, when loaded.
    #[inline]
    pub(crate) fn buddy(&self) -> Option<&Buddy> {
        self.state.loaded.as_deref().map(|padded| &**padded)
    }

    /// Bitmap and buddy of a group that the caller loaded under this guard, or had pinned.
    ///
    /// # Panics
    /// When the group is not loaded.
    #[inline]
    fn buddy_mut(&mut self) -> &mut Buddy {
        self.state
            .loaded
            .as_deref_mut()
            .expect("changes are made only to loaded groups: callers use lock_loaded or a pin")
    }

    #[inline]
    pub(crate) fn summary(&self) -> Summary {
        self.group.summary()
    }

    /// Marks clusters used in core.
    #[inline]
    pub(crate) fn mark_used(&mut self, start: u32, count: u32) {
        debug_assert!(!self.summary().corrupt(), "clusters of the corrupt group {} were handed out", self.nr);
        debug_assert!(!self.overlaps_prealloc(start, count), "preallocated clusters were handed out");
        debug_assert!(!self.is_pending(start, count), "clusters that wait for a commit were handed out");
        self.buddy_mut().mark_used(start, count);
        self.publish();
    }

    /// Marks clusters free in core.
    ///
    /// # Errors
    /// When a cluster of the range is free already. Then no cluster changes.
    #[inline]
    pub(crate) fn mark_free(&mut self, start: u32, count: u32) -> Result<(), AlreadyFree> {
        self.group.note_untrimmed();
        self.give_back(start, count)
    }

    /// As [`Self::mark_free`], for clusters that were held for trimming: `TRIMMED` stays as it is.
    #[inline]
    pub(crate) fn give_back(&mut self, start: u32, count: u32) -> Result<(), AlreadyFree> {
        self.buddy_mut().mark_free(start, count)?;
        self.publish();
        Ok(())
    }

    /// Writes the summary and the indexes from the buddy.
    fn publish(&mut self) {
        let buddy = self.buddy_mut();
        let now =
            Figures { free: buddy.free(), fragments: buddy.fragments(), largest: buddy.largest_order() };
        let summary = self.group.summary();
        let stored = StoredOrders { largest: summary.largest_order(), average: summary.average_order() };
        let new = self.indexes.update(self.nr, stored, now, self.cpu);
        debug_assert_eq!(
            new.largest,
            now.largest.map_or(-1, u32::cast_signed),
            "the largest order of {}",
            self.nr
        );
        self.group.free.store(now.free, Ordering::Relaxed);
        self.group.fragments.store(now.fragments, Ordering::Relaxed);
        if new != stored || !summary.initialised() {
            let orders =
                (new.largest + 1).cast_unsigned() | (new.average + 1).cast_unsigned() << AVERAGE_SHIFT;
            // Other threads change flags of this word without the lock, so those flags are kept.
            let _ = self.group.shape.update(Ordering::Relaxed, Ordering::Relaxed, |word| {
                Some(word & !(ORDER_MASK | ORDER_MASK << AVERAGE_SHIFT) | INITIALISED | orders)
            });
        }
    }

    /// Notes that the group's bitmap is on disk from now on.
    pub(crate) fn clear_block_uninit(&mut self) {
        self.group.clear_block_uninit();
    }

    fn mark_corrupt(&mut self) {
        self.group.shape.fetch_or(CORRUPT, Ordering::Relaxed);
    }

    /// Adds a preallocation to the group's list.
    pub(crate) fn add_prealloc(&mut self, prealloc: Arc<Prealloc<B>>) {
        assert_eq!(prealloc.group, self.nr, "a preallocation in another group's list");
        debug_assert!(
            self.buddy().is_some_and(|buddy| prealloc.start + prealloc.len <= buddy.clusters()
                && buddy.next_free_in(prealloc.start, prealloc.start + prealloc.len).is_none()),
            "a preallocation of clusters that are free, or not in group {}",
            self.nr
        );
        prealloc.set_place(u32_from_usize(self.state.preallocs.len()));
        self.state.preallocs.push(prealloc);
        self.note_preallocs();
    }

    /// Removes a deleted preallocation from the list and gives back the clusters left in it.
    /// Returns their number.
    pub(crate) fn release_prealloc(&mut self, prealloc: &Prealloc<B>) -> u32 {
        debug_assert!(
            prealloc.glance().deleted,
            "a preallocation that may still be taken from is given back"
        );
        let place = usize_from_u32(prealloc.place());
        let removed = self.state.preallocs.swap_remove(place);
        assert!(core::ptr::eq(&raw const *removed, prealloc), "another preallocation stood at {place}");
        if let Some(moved) = self.state.preallocs.get(place) {
            moved.set_place(prealloc.place());
        }
        self.note_preallocs();
        let mut returned = 0;
        prealloc.for_each_left(|start, count| {
            let freed = self.mark_free(start, count);
            assert!(freed.is_ok(), "clusters of a preallocation in group {} were free: {freed:?}", self.nr);
            returned += count;
        });
        returned
    }

    /// Deletes every preallocation of the list that is not in use. Returns the number of clusters
    /// given back, and whether some preallocations are in use.
    pub(crate) fn discard_preallocs(&mut self) -> (u32, bool) {
        let mut returned = 0;
        let mut busy = false;
        let mut at = 0;
        while let Some(prealloc) = self.state.preallocs.get(at).map(Arc::clone) {
            if prealloc.try_delete() {
                returned += self.release_prealloc(&prealloc);
            } else {
                busy |= prealloc.in_use();
                at += 1;
            }
        }
        (returned, busy)
    }

    fn note_preallocs(&self) {
        self.group.preallocs.store(u32_from_usize(self.state.preallocs.len()), Ordering::Relaxed);
    }

    /// Whether a cluster of `[start, start + count)` is left in a preallocation of the list.
    pub(crate) fn overlaps_prealloc(&self, start: u32, count: u32) -> bool {
        let mut overlaps = false;
        let near = |prealloc: &&Arc<Prealloc<B>>| {
            prealloc.start < start + count && start < prealloc.start + prealloc.len
        };
        for prealloc in self.state.preallocs.iter().filter(near) {
            prealloc.for_each_left(|first, left| overlaps |= first < start + count && start < first + left);
        }
        overlaps
    }

    /// Whether some of `[start, start + count)` was freed and waits for its commit.
    pub(crate) fn is_pending(&self, start: u32, count: u32) -> bool {
        self.state.pending.as_ref().is_some_and(|tree| tree.overlap(start, count).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockyard_sync::Native;

    #[test]
    #[cfg(not(debug_assertions))]
    fn a_group_that_is_not_loaded_takes_at_most_128_bytes() {
        assert!(size_of::<Group<Native>>() <= 128);
    }

    #[test]
    fn only_a_loaded_group_can_be_pinned() {
        let group = Group::<Native>::new(100, false);
        assert!(!group.pin());
        group.residency.fetch_or(LOADED, Ordering::Relaxed);
        assert!(group.pin());
        group.unpin();
        assert_eq!(group.residency.load(Ordering::Relaxed), LOADED);
    }
}
