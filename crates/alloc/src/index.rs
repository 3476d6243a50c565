//! The two group indexes: by the order of the largest free chunk, and by the order of the average
//! free run.
//!
//! While optimised scanning is on, a group whose order changes goes to the set of its new order. A
//! group that becomes full has no order and leaves both indexes. (With `full_groups=keep` it stays
//! in its set of the average index.) While optimised scanning is off, the average index stays as it
//! is, and a group whose largest order changes leaves the largest-order index. (With
//! `scan_toggle=freeze` it stays in the set where it was.)
//!
//! A group is moved under its lock, so its entries have one writer at a time. A reader checks every
//! group that an index gives it, so a stale entry costs time but does no harm. A group that was
//! never loaded is in no set.

pub(crate) mod by_group;
pub(crate) mod fifo;

use blockyard_disk::GroupNr;
use blockyard_sync::{Atomic, Backend, CpuSlot, LockClassFigures, Ordering};

use crate::policy::Policy;
use crate::policy::slots::{FullGroups, OrderIndex, ScanToggle};
use by_group::OrderedSets;
use fifo::FifoLists;

/// The sets of one index, one for each order.
pub(crate) enum Sets<B: Backend> {
    /// Sets ordered by group number, read without a lock.
    ByGroup(OrderedSets<B>),
    /// Lists in order of insertion, each under a lock.
    Fifo(FifoLists<B>),
}

impl<B: Backend> Sets<B> {
    fn new(kind: OrderIndex, name: &'static str, orders: u32, groups: u32, cpus: u32) -> Self {
        match kind {
            OrderIndex::ByGroup => Self::ByGroup(OrderedSets::new(orders, groups)),
            OrderIndex::Fifo => Self::Fifo(FifoLists::new(name, orders, groups, cpus)),
        }
    }

    fn insert(&self, order: u32, group: GroupNr, cpu: CpuSlot) {
        match self {
            Self::ByGroup(sets) => sets.insert(order, group),
            Self::Fifo(lists) => lists.append(order, group, cpu),
        }
    }

    fn remove(&self, order: u32, group: GroupNr, cpu: CpuSlot) {
        match self {
            Self::ByGroup(sets) => sets.remove(order, group),
            Self::Fifo(lists) => lists.unlink(group, cpu),
        }
    }

    /// Removes the group from the set that it is in, if any. This set may differ from the set of
    /// its stored order.
    fn remove_anywhere(&self, orders: u32, group: GroupNr, cpu: CpuSlot) {
        match self {
            Self::ByGroup(sets) => (0..orders).for_each(|order| sets.remove(order, group)),
            Self::Fifo(lists) => lists.unlink(group, cpu),
        }
    }

    /// Whether the set of an order holds a group. The caller holds the group's lock.
    fn contains(&self, order: u32, group: GroupNr) -> bool {
        match self {
            Self::ByGroup(sets) => sets.contains(order, group),
            Self::Fifo(lists) => lists.contains(order, group),
        }
    }

    /// Number of groups in a set.
    pub(crate) fn len(&self, order: u32) -> u32 {
        match self {
            Self::ByGroup(sets) => sets.len(order),
            Self::Fifo(lists) => lists.len(order),
        }
    }

    fn lock_figures(&self) -> Option<(&'static str, LockClassFigures)> {
        match self {
            Self::ByGroup(_) => None,
            Self::Fifo(lists) => Some(lists.lock_figures()),
        }
    }
}

/// The orders of a group that its summary stores: those that the last [`Indexes::update`] returned.
/// −1 means none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredOrders {
    /// Largest free order.
    pub(crate) largest: i32,
    /// Order of the average free run.
    pub(crate) average: i32,
}

/// What the indexes need to know about a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    /// Free clusters.
    pub(crate) free: u32,
    /// Free runs.
    pub(crate) fragments: u32,
    /// Highest order with a free chunk.
    pub(crate) largest: Option<u32>,
}

/// Both indexes, and the rules by which they are kept up to date.
pub(crate) struct Indexes<B: Backend> {
    pub(crate) largest: Sets<B>,
    pub(crate) average: Sets<B>,
    orders: u32,
    /// `mb_optimize_scan`. Accessed relaxed: concurrent allocations may see a switch a bit later.
    optimised: B::AtomicBool,
    full_groups: FullGroups,
    scan_toggle: ScanToggle,
}

impl<B: Backend> Indexes<B> {
    pub(crate) fn new(policy: &Policy, orders: u32, groups: u32, cpus: u32, optimised: bool) -> Self {
        let sets = |name| Sets::new(policy.order_index, name, orders, groups, cpus);
        Self {
            largest: sets("largest-order lists"),
            average: sets("average-fragment lists"),
            orders,
            optimised: B::AtomicBool::new(optimised),
            full_groups: policy.full_groups,
            scan_toggle: policy.scan_toggle,
        }
    }

    /// Number of orders.
    pub(crate) const fn orders(&self) -> u32 {
        self.orders
    }

    /// Whether optimised scanning is on.
    #[inline]
    pub(crate) fn optimised(&self) -> bool {
        self.optimised.load(Ordering::Relaxed)
    }

    /// Switches optimised scanning. The indexes are not rebuilt.
    pub(crate) fn set_optimised(&self, on: bool) {
        self.optimised.store(on, Ordering::Relaxed);
    }

    /// Updates both indexes for a group whose figures changed. Returns the orders to store. The
    /// caller holds the group's lock.
    #[inline]
    pub(crate) fn update(
        &self,
        group: GroupNr,
        stored: StoredOrders,
        now: Figures,
        cpu: CpuSlot,
    ) -> StoredOrders {
        let optimised = self.optimised();
        debug_assert!(now.largest.is_none_or(|order| order < self.orders), "group {group}: {now:?}");
        debug_assert_eq!(now.fragments > 0, now.free > 0, "group {group}: runs and free clusters");
        let new = StoredOrders {
            largest: self.update_largest(group, stored.largest, now, optimised, cpu),
            average: self.update_average(group, stored.average, now, optimised, cpu),
        };
        debug_assert!(
            new.average < 0 || self.average.contains(new.average.cast_unsigned(), group),
            "group {group} is not in the set of its average order {}",
            new.average
        );
        new
    }

    fn update_largest(
        &self,
        group: GroupNr,
        stored: i32,
        now: Figures,
        optimised: bool,
        cpu: CpuSlot,
    ) -> i32 {
        let new = now.largest.map_or(-1, u32::cast_signed);
        if new == stored {
            return new;
        }
        if self.scan_toggle == ScanToggle::Freeze {
            if !optimised {
                return new;
            }
            self.largest.remove_anywhere(self.orders, group, cpu);
        } else if stored >= 0 {
            self.largest.remove(stored.cast_unsigned(), group, cpu);
        }
        if optimised && new >= 0 && now.free > 0 {
            debug_assert!(
                !self.largest.contains(new.cast_unsigned(), group),
                "group {group} is in the set of its largest order {new} before it got there"
            );
            self.largest.insert(new.cast_unsigned(), group, cpu);
        }
        new
    }

    fn update_average(
        &self,
        group: GroupNr,
        stored: i32,
        now: Figures,
        optimised: bool,
        cpu: CpuSlot,
    ) -> i32 {
        if !optimised || (now.fragments == 0 && self.full_groups == FullGroups::Keep) {
            return stored;
        }
        let new = match now.free.checked_div(now.fragments) {
            Some(average) => fragment_order(average, self.orders).cast_signed(),
            None => -1,
        };
        if new == stored {
            return new;
        }
        if stored >= 0 {
            debug_assert!(
                self.average.contains(stored.cast_unsigned(), group),
                "group {group} was lost from the set of its average order {stored}"
            );
            self.average.remove(stored.cast_unsigned(), group, cpu);
        }
        if new >= 0 {
            self.average.insert(new.cast_unsigned(), group, cpu);
        }
        new
    }

    /// For each index, how often the locks of its lists were taken. Empty if the sets have no
    /// locks.
    pub(crate) fn lock_figures(&self) -> impl Iterator<Item = (&'static str, LockClassFigures)> {
        self.largest.lock_figures().into_iter().chain(self.average.lock_figures())
    }
}

/// The average-fragment set for a run of `length` clusters. Set 0 has the lengths 1 to 3, set `k`
/// has `[2^(k+1), 2^(k+2))`, and the last set also has everything longer.
#[inline]
pub(crate) fn fragment_order(length: u32, orders: u32) -> u32 {
    debug_assert!(orders > 0, "an index without sets");
    let top = u32::BITS - length.leading_zeros();
    top.saturating_sub(2).min(orders - 1)
}

#[cfg(test)]
mod tests {
    use super::fragment_order;

    #[test]
    fn average_orders_are_one_below_the_logarithm() {
        let orders = [1, 3, 4, 7, 8, 300, 512, 16383, 16384, 32768].map(|length| fragment_order(length, 14));
        assert_eq!(orders, [0, 0, 1, 1, 2, 7, 8, 12, 13, 13]);
    }
}
