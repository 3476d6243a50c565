//! The allocation state of one inode: its preallocations by logical block, and its cursor.
//!
//! It lives in the caller's in-core inode, so the allocator needs no map from inode numbers to
//! these states.

use std::sync::Arc;

use blockyard_disk::GroupNr;
use blockyard_sync::{Atomic, Backend, Mutex, Native, Ordering, rank};

use super::reservation::Reservation;
use super::{Owner, Prealloc};

/// "No group" in a cursor.
const NO_CURSOR: u32 = u32::MAX;

/// The allocator's memory of one inode, owned by the caller's in-core inode.
///
/// Call [`Allocator::discard_inode_preallocations`](crate::Allocator) before dropping the state.
/// Otherwise the clusters left in the inode's preallocations are given back only when space runs
/// out, and under `search=windows` the inode's window stays for good.
pub struct InodeAlloc<B: Backend = Native> {
    /// Preallocations, ascending by logical block. Some may be deleted; the next search of the list
    /// drops them.
    preallocs: Mutex<Vec<Arc<Prealloc<B>>>, B>,
    /// Length of `preallocs`. Accessed relaxed: it is read without the lock, and only to tell
    /// whether there may be any preallocation.
    count: B::AtomicU32,
    /// State of the search by windows (ext3's reservation window); taken out while a request uses
    /// it.
    reservation: Mutex<Option<Box<Reservation>>, B>,
    /// Group of the last success, for policies that remember it per inode. Accessed relaxed: it is
    /// only a hint.
    cursor: B::AtomicU32,
}

impl<B: Backend> Default for InodeAlloc<B> {
    fn default() -> Self {
        B::on_line("inode", || Self {
            preallocs: Mutex::new(rank::PREALLOC_INODE, Vec::new()),
            count: B::AtomicU32::new(0),
            reservation: Mutex::new(rank::PREALLOC_INODE, None),
            cursor: B::AtomicU32::new(NO_CURSOR),
        })
    }
}

/// Borders that an inode's own preallocations set for a new window, in logical blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnBorders {
    /// End of the nearest preallocation that starts left of the request.
    pub(crate) left_end: Option<u64>,
    /// Start of the nearest preallocation right of the request.
    pub(crate) right_start: Option<u64>,
}

impl<B: Backend> InodeAlloc<B> {
    /// The state of an inode without preallocations and without a cursor.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of preallocations that are not deleted.
    #[must_use]
    pub fn preallocations(&self) -> usize {
        self.preallocs.lock().iter().filter(|prealloc| !prealloc.glance().deleted).count()
    }

    pub(crate) fn cursor(&self) -> Option<GroupNr> {
        let group = self.cursor.load(Ordering::Relaxed);
        (group != NO_CURSOR).then_some(GroupNr::new(group))
    }

    pub(crate) fn set_cursor(&self, group: GroupNr) {
        self.cursor.store(group.raw(), Ordering::Relaxed);
    }

    /// Takes out the state of the search by windows. The caller must put it back.
    pub(crate) fn take_reservation(&self) -> Option<Box<Reservation>> {
        self.reservation.lock().take()
    }

    /// Puts the state of the search by windows back. Returns the state that another request has put
    /// there meanwhile, if any.
    pub(crate) fn put_reservation(&self, reservation: Box<Reservation>) -> Option<Box<Reservation>> {
        self.reservation.lock().replace(reservation)
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    fn note_count(&self, list: &[Arc<Prealloc<B>>]) {
        self.count.store(blockyard_disk::num::u32_from_usize(list.len()), Ordering::Relaxed);
    }

    /// The preallocation whose first logical block is the greatest at or before `logical`. Drops
    /// deleted preallocations first.
    pub(crate) fn candidate(&self, logical: u32) -> Option<Arc<Prealloc<B>>> {
        if self.is_empty() {
            return None;
        }
        let mut list = self.preallocs.lock();
        drop_deleted(&mut list);
        self.note_count(&list);
        let after = list.partition_point(|prealloc| prealloc.logical() <= logical);
        debug_assert!(list.is_sorted_by_key(|prealloc| prealloc.logical()), "preallocations out of order");
        after.checked_sub(1).map(|at| Arc::clone(&list[at]))
    }

    /// The borders for a window that holds `logical`.
    pub(crate) fn borders(&self, logical: u32, ratio_bits: u32) -> OwnBorders {
        if self.is_empty() {
            return OwnBorders::default();
        }
        let mut list = self.preallocs.lock();
        drop_deleted(&mut list);
        self.note_count(&list);
        let at = list.partition_point(|prealloc| prealloc.logical() < logical);
        let right = list[at..].iter().find(|prealloc| prealloc.logical() > logical);
        OwnBorders {
            left_end: at
                .checked_sub(1)
                .map(|left| u64::from(list[left].logical()) + (u64::from(list[left].len) << ratio_bits)),
            right_start: right.map(|prealloc| u64::from(prealloc.logical())),
        }
    }

    pub(crate) fn insert(&self, prealloc: Arc<Prealloc<B>>) {
        debug_assert_ne!(prealloc.owner, Owner::Locality, "an inode got a CPU slot's preallocation");
        let mut list = self.preallocs.lock();
        let at = list.partition_point(|other| other.logical() < prealloc.logical());
        list.insert(at, prealloc);
        self.note_count(&list);
    }

    pub(crate) fn remove(&self, prealloc: &Arc<Prealloc<B>>) {
        let mut list = self.preallocs.lock();
        list.retain(|other| !Arc::ptr_eq(other, prealloc));
        self.note_count(&list);
    }

    /// Takes out all preallocations, to discard them.
    pub(crate) fn take_all(&self) -> Vec<Arc<Prealloc<B>>> {
        if self.is_empty() {
            return Vec::new();
        }
        let list = core::mem::take(&mut *self.preallocs.lock());
        self.count.store(0, Ordering::Relaxed);
        list
    }
}

fn drop_deleted<B: Backend>(list: &mut Vec<Arc<Prealloc<B>>>) {
    list.retain(|prealloc| !prealloc.glance().deleted);
}

impl<B: Backend> core::fmt::Debug for InodeAlloc<B> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("InodeAlloc").field("cursor", &self.cursor()).finish_non_exhaustive()
    }
}
