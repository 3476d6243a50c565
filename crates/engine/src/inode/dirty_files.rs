//! The order in which files are written back, and when the data of each file became dirty, which
//! write-back by age needs.
//!
//! Linux writes files back in the order in which their data became dirty, not by inode number
//! (observed on 6.18). A file's position in this order is kept in its inode and in a list, so that
//! the oldest file is found without looking at all others. Inode and list change together, under
//! the inode's content lock or when nobody else has a reference to the inode.

use super::Inode;
use blockyard_disk::InodeNr;
use blockyard_disk::num::{u64_from_usize, usize_from_u64};
use blockyard_sync::{AtomicU64, CachePadded, Mutex, Ordering, rank};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Number of lists over which the positions are spread.
const LISTS: usize = 16;

/// A file's position in the order of write-back, and when its data became dirty. Only a hint, so
/// accesses are relaxed: whoever acts on it takes the content lock and looks again.
#[derive(Default)]
pub(crate) struct DirtySince {
    /// Position among all files that became dirty, 0 for none. A file that fsync has written keeps
    /// its position.
    order: AtomicU64,
    /// When the data became dirty, by the writer's clock, in seconds.
    seconds: AtomicU64,
}

impl DirtySince {
    /// The position and the time in seconds; `None` for a file without a position.
    pub(crate) fn get(&self) -> Option<(u64, i64)> {
        let order = self.order.load(Ordering::Relaxed);
        (order > 0).then(|| (order, self.seconds.load(Ordering::Relaxed).cast_signed()))
    }
}

/// The positions of all files that have one.
pub(super) struct DirtyFiles {
    /// The last position assigned. Accessed relaxed: positions need only be unique.
    last: AtomicU64,
    lists: Box<[List]>,
}

/// Some positions, and the file at each.
type List = CachePadded<Mutex<BTreeMap<u64, InodeNr>>>;

impl DirtyFiles {
    /// No dirty files.
    pub(super) fn new() -> Self {
        let list = || CachePadded::new(Mutex::new(rank::LEAF, BTreeMap::new()));
        Self { last: AtomicU64::new(0), lists: (0..LISTS).map(|_| list()).collect() }
    }

    fn list(&self, order: u64) -> &Mutex<BTreeMap<u64, InodeNr>> {
        &self.lists[usize_from_u64(order % u64_from_usize(LISTS))]
    }

    /// Assigns the next position to a file without one.
    pub(super) fn add(&self, inode: &Inode, seconds: i64) {
        debug_assert!(inode.dirty_since.get().is_none(), "inode {} has a place", inode.number());
        let order = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        inode.dirty_since.seconds.store(seconds.cast_unsigned(), Ordering::Relaxed);
        inode.dirty_since.order.store(order, Ordering::Relaxed);
        self.list(order).lock().insert(order, inode.number());
    }

    /// Removes the file's position.
    pub(super) fn remove(&self, inode: &Inode) {
        let order = inode.dirty_since.order.swap(0, Ordering::Relaxed);
        if order > 0 {
            let was_there = self.list(order).lock().remove(&order);
            debug_assert_eq!(was_there, Some(inode.number()), "the place of another file");
        }
    }

    /// The last position assigned, 0 for none.
    pub(super) fn last(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }

    /// How many files have a position.
    pub(super) fn len(&self) -> u64 {
        self.lists.iter().map(|list| u64_from_usize(list.lock().len())).sum()
    }

    /// The lowest position in use within a range, and the file there.
    pub(super) fn first_in(&self, places: RangeInclusive<u64>) -> Option<(u64, InodeNr)> {
        if places.is_empty() {
            return None;
        }
        let first =
            |list: &List| list.lock().range(places.clone()).next().map(|(order, number)| (*order, *number));
        self.lists.iter().filter_map(first).min()
    }
}
