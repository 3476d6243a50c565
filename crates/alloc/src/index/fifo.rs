//! Lists of groups, one for each order (of the largest free chunk, or of the average free run),
//! each under its own reader-writer lock. In a list, groups stand in the sequence of their
//! insertion.
//!
//! Linux kept its indexes like this before the scalability series. A group whose order is unchanged
//! keeps its position. A group whose order changes goes to the tail of its new list. Picking a
//! group moves nothing.
//!
//! Invariants: a group is in at most one list, the one that its link names. The links of a list are
//! written under that list's write lock and followed under its read lock. A thread that adds or
//! removes a group also holds the lock of that group.

use blockyard_disk::GroupNr;
use blockyard_disk::num::usize_from_u32;
use blockyard_sync::{
    Atomic, Backend, CachePadded, CpuSlot, LockClass, LockClassFigures, Ordering, RwLock, rank,
};

/// "No group" in a link.
const NONE: u32 = u32::MAX;

/// One list of groups for each order.
pub(crate) struct FifoLists<B: Backend> {
    lists: Box<[CachePadded<RwLock<Ends, B>>]>,
    /// Lengths of the lists, read without the lock to pass over empty lists. Accessed relaxed: they
    /// are only a hint.
    lengths: Box<[CachePadded<B::AtomicU32>]>,
    links: Box<[Link<B>]>,
    locks: LockClass,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    head: u32,
    tail: u32,
}

/// The position of a group. Relaxed accesses are enough, because the lock of the list or of the
/// group orders them.
struct Link<B: Backend> {
    previous: B::AtomicU32,
    next: B::AtomicU32,
    list: B::AtomicU32,
}

impl<B: Backend> FifoLists<B> {
    pub(crate) fn new(name: &'static str, orders: u32, groups: u32, cpus: u32) -> Self {
        let ends = || RwLock::new(rank::GROUP_INDEX, Ends { head: NONE, tail: NONE });
        let list = |_| CachePadded::new(B::on_line("order list lock", ends));
        let length = |_| CachePadded::new(B::on_line("order list length", || B::AtomicU32::new(0)));
        let link = || Link {
            previous: B::AtomicU32::new(NONE),
            next: B::AtomicU32::new(NONE),
            list: B::AtomicU32::new(NONE),
        };
        Self {
            lists: (0..orders).map(list).collect(),
            lengths: (0..orders).map(length).collect(),
            links: (0..groups).map(|_| B::on_line("order list link", link)).collect(),
            locks: LockClass::new(name, usize_from_u32(cpus)),
        }
    }

    fn link(&self, group: u32) -> &Link<B> {
        &self.links[usize_from_u32(group)]
    }

    /// Appends a group that is in no list. The caller holds the group's lock.
    pub(crate) fn append(&self, order: u32, group: GroupNr, cpu: CpuSlot) {
        let nr = group.raw();
        let link = self.link(nr);
        debug_assert_eq!(link.list.load(Ordering::Relaxed), NONE, "group {group} is in a list already");
        self.locks.count_acquisition(cpu);
        let mut ends = self.lists[usize_from_u32(order)].write();
        link.previous.store(ends.tail, Ordering::Relaxed);
        link.next.store(NONE, Ordering::Relaxed);
        link.list.store(order, Ordering::Relaxed);
        if ends.tail == NONE {
            debug_assert_eq!(ends.head, NONE, "list {order} has a head and no tail");
            ends.head = nr;
        } else {
            self.link(ends.tail).next.store(nr, Ordering::Relaxed);
        }
        ends.tail = nr;
        self.change_length(order, 1);
    }

    /// Removes a group from the list it is in, if any. The caller holds the group's lock.
    pub(crate) fn unlink(&self, group: GroupNr, cpu: CpuSlot) {
        let link = self.link(group.raw());
        let order = link.list.load(Ordering::Relaxed);
        if order == NONE {
            return;
        }
        self.locks.count_acquisition(cpu);
        let mut ends = self.lists[usize_from_u32(order)].write();
        let previous = link.previous.load(Ordering::Relaxed);
        let next = link.next.load(Ordering::Relaxed);
        debug_assert_eq!(previous == NONE, ends.head == group.raw(), "the head of list {order} and {group}");
        debug_assert_eq!(next == NONE, ends.tail == group.raw(), "the tail of list {order} and {group}");
        if previous == NONE {
            ends.head = next;
        } else {
            self.link(previous).next.store(next, Ordering::Relaxed);
        }
        if next == NONE {
            ends.tail = previous;
        } else {
            self.link(next).previous.store(previous, Ordering::Relaxed);
        }
        link.list.store(NONE, Ordering::Relaxed);
        self.change_length(order, u32::MAX);
    }

    /// Adds to a length modulo 2^32, so `u32::MAX` takes 1 away. The caller holds the list's write
    /// lock.
    fn change_length(&self, order: u32, by: u32) {
        let length = &self.lengths[usize_from_u32(order)];
        let changed = length.load(Ordering::Relaxed).wrapping_add(by);
        debug_assert!(usize_from_u32(changed) <= self.links.len(), "list {order} holds {changed} groups");
        length.store(changed, Ordering::Relaxed);
    }

    /// The first group from the head for which `suits` is true. The list's read lock is held during
    /// the whole walk.
    pub(crate) fn pick(
        &self,
        order: u32,
        cpu: CpuSlot,
        mut suits: impl FnMut(GroupNr) -> bool,
    ) -> Option<GroupNr> {
        if self.len(order) == 0 {
            return None;
        }
        self.locks.count_acquisition(cpu);
        let ends = self.lists[usize_from_u32(order)].read();
        let mut at = ends.head;
        while at != NONE {
            if suits(GroupNr::new(at)) {
                return Some(GroupNr::new(at));
            }
            at = self.link(at).next.load(Ordering::Relaxed);
        }
        None
    }

    /// Whether a list holds a group; exact only under the group's lock.
    pub(crate) fn contains(&self, order: u32, group: GroupNr) -> bool {
        self.link(group.raw()).list.load(Ordering::Relaxed) == order
    }

    pub(crate) fn len(&self, order: u32) -> u32 {
        self.lengths[usize_from_u32(order)].load(Ordering::Relaxed)
    }

    pub(crate) fn lock_figures(&self) -> (&'static str, LockClassFigures) {
        (self.locks.name(), self.locks.figures())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockyard_sync::Native;

    fn members(lists: &FifoLists<Native>, order: u32) -> Vec<u32> {
        let mut seen = Vec::new();
        lists.pick(order, CpuSlot::ZERO, |group| {
            seen.push(group.raw());
            false
        });
        seen
    }

    #[test]
    fn a_changed_group_goes_to_the_tail() {
        let lists = FifoLists::new("test", 3, 8, 1);
        for group in [4, 1, 6] {
            lists.append(2, GroupNr::new(group), CpuSlot::ZERO);
        }
        lists.unlink(GroupNr::new(1), CpuSlot::ZERO);
        lists.append(2, GroupNr::new(1), CpuSlot::ZERO);
        assert_eq!(members(&lists, 2), [4, 6, 1]);
        lists.unlink(GroupNr::new(4), CpuSlot::ZERO);
        lists.unlink(GroupNr::new(1), CpuSlot::ZERO);
        assert_eq!(members(&lists, 2), [6]);
        lists.unlink(GroupNr::new(6), CpuSlot::ZERO);
        assert_eq!((members(&lists, 2), lists.len(2)), (vec![], 0));
    }
}
