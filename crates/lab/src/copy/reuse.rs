//! How soon an allocator returns to a group, measured from its decisions.
//!
//! Here, a *visit* is a series of consecutive allocations in one group. A *return* is a visit to a
//! group that was visited before. Its interval is the amount allocated elsewhere in between: a lap
//! for a policy that goes round the disk, little for a policy that reuses the nearest space. Only
//! file data counts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use blockyard_alloc::{AllocEvent, EventKind, EventSink, RequestFlags};
use blockyard_disk::num::count_as_f64;
use blockyard_sync::CpuSlot;

use crate::workload::MIB;

/// Collects the allocator's events.
#[derive(Default)]
pub(super) struct Reuse(Mutex<State>);

#[derive(Default)]
struct State {
    cluster_bytes: u64,
    /// Clusters allocated so far.
    clock: u64,
    current: Option<u32>,
    /// For each group that was left: the clock when it was left last.
    left: BTreeMap<u32, u64>,
    /// (group, interval in clusters) of each return since the last [`Reuse::take`].
    returns: Vec<(u32, u64)>,
    /// Groups that the running transaction allocated in.
    touched: BTreeSet<u32>,
    /// Transactions that ended since the last [`Reuse::take`].
    transactions: u64,
    /// The sum, over these transactions, of the number of groups in which each allocated.
    touches: u64,
}

/// Figures of the time since the last [`Reuse::take`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Figures {
    pub(super) returns: u64,
    pub(super) median_mib: Option<f64>,
    pub(super) group_mean_mib: Option<f64>,
    /// Mean number of groups that a transaction allocated in.
    pub(super) groups_per_transaction: Option<f64>,
}

impl Reuse {
    pub(super) fn set_cluster_bytes(&self, bytes: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).cluster_bytes = bytes;
    }

    /// Ends the running transaction.
    pub(super) fn end_transaction(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let groups = std::mem::take(&mut state.touched).len();
        state.transactions += 1;
        state.touches += blockyard_disk::num::u64_from_usize(groups);
    }

    /// The figures of the returns and transactions since the last call.
    pub(super) fn take(&self) -> Figures {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let returns = std::mem::take(&mut state.returns);
        let (transactions, touches) =
            (std::mem::take(&mut state.transactions), std::mem::take(&mut state.touches));
        let mib = |clusters: f64| clusters * count_as_f64(state.cluster_bytes) / count_as_f64(MIB);
        let mut intervals: Vec<u64> = returns.iter().map(|(_, interval)| *interval).collect();
        intervals.sort_unstable();
        let mut groups: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for (group, interval) in &returns {
            let (sum, count) = groups.entry(*group).or_default();
            *sum += interval;
            *count += 1;
        }
        let means = groups.values().map(|(sum, count)| count_as_f64(*sum) / count_as_f64(*count));
        let of = count_as_f64(blockyard_disk::num::u64_from_usize(groups.len()));
        Figures {
            returns: blockyard_disk::num::u64_from_usize(intervals.len()),
            median_mib: intervals.get(intervals.len() / 2).map(|&clusters| mib(count_as_f64(clusters))),
            group_mean_mib: (!groups.is_empty()).then(|| mib(means.sum::<f64>() / of)),
            groups_per_transaction: (transactions > 0)
                .then(|| count_as_f64(touches) / count_as_f64(transactions)),
        }
    }
}

impl EventSink for Reuse {
    fn emit(&self, _: CpuSlot, event: &AllocEvent) {
        let data = u32::from(event.flags) & RequestFlags::DATA.bits() != 0;
        if !data || event.kind == EventKind::NoSpace {
            return;
        }
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let group = event.result.group;
        state.touched.insert(group);
        if state.current != Some(group) {
            let clock = state.clock;
            if let Some(left) = state.current {
                state.left.insert(left, clock);
            }
            if let Some(before) = state.left.get(&group).copied() {
                state.returns.push((group, clock - before));
            }
            state.current = Some(group);
        }
        state.clock += u64::from(event.original.len.min(event.result.len));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockyard_alloc::EventExtent;

    #[test]
    fn a_return_counts_what_went_elsewhere() {
        let reuse = Reuse::default();
        reuse.set_cluster_bytes(MIB);
        let emit = |group, len| {
            let extent = EventExtent { group, len, ..EventExtent::default() };
            let flags = u16::try_from(RequestFlags::DATA.bits()).unwrap();
            let event = AllocEvent { original: extent, result: extent, flags, ..AllocEvent::default() };
            reuse.emit(CpuSlot::ZERO, &event);
        };
        // Group 1 is left at clock 3, visited again at 8 (interval 5), then at 11 (interval 1).
        for (group, len) in [(1, 1), (1, 2), (2, 5), (1, 2), (3, 1), (1, 9), (2, 1)] {
            emit(group, len);
        }
        reuse.end_transaction();
        emit(3, 1);
        reuse.end_transaction();
        let figures = reuse.take();
        // The first transaction allocated in three groups, the second in one.
        assert_eq!(figures.groups_per_transaction, Some(2.0));
        // Intervals: group 1: 5 and 1; group 2: from 8 to 20, 12; group 3: from 11 to 21, 10.
        assert_eq!(figures.returns, 4);
        assert_eq!(figures.median_mib, Some(10.0));
        assert_eq!(figures.group_mean_mib, Some(25.0 / 3.0));
        assert_eq!(reuse.take(), Figures::default());
    }

    /// If the found extent is longer than the request, only the requested length counts. Failed
    /// searches, and allocations for anything but data, do not count.
    #[test]
    fn only_data_that_was_given_counts() {
        let reuse = Reuse::default();
        reuse.set_cluster_bytes(MIB / 4);
        let emit = |group, len, is_data: bool, kind| {
            let original = EventExtent { group, len, ..EventExtent::default() };
            let result = EventExtent { len: len + 100, ..original };
            let flags = if is_data { u16::try_from(RequestFlags::DATA.bits()).unwrap() } else { 0 };
            reuse.emit(CpuSlot::ZERO, &AllocEvent { original, result, flags, kind, ..AllocEvent::default() });
        };
        emit(1, 8, true, EventKind::Search);
        emit(2, 16, true, EventKind::Prealloc);
        emit(3, 32, false, EventKind::Search);
        emit(4, 64, true, EventKind::NoSpace);
        emit(1, 8, true, EventKind::Search);
        // 16 clusters of a quarter of a MiB.
        let figures =
            Figures { returns: 1, median_mib: Some(4.0), group_mean_mib: Some(4.0), ..Figures::default() };
        assert_eq!(reuse.take(), figures);
    }
}
