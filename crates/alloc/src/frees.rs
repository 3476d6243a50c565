//! Freed clusters that wait for the commit of the transaction that freed them.
//!
//! Clusters that a transaction freed stay used in core until the commit record of the transaction
//! is durable, so that a crash never leaves them in two files. The free count that `statfs` shows
//! rises at once.
//!
//! Each group keeps its pending records ordered by position. A commit finds the records of a
//! transaction through lists of the whole file system, which the `md` lock guards as in Linux. With
//! `freed_merge=by-group`, a commit instead asks a set of the groups that have records. This set
//! needs no shared lock.

use std::sync::Arc;

use blockyard_disk::num::u64_from_u32;
use blockyard_disk::{GroupNr, TxnId};
use blockyard_sync::{Atomic, AtomicInt, Backend, CachePadded, CpuSlot, Ordering, ShardedCounter};

use crate::buddy::AlreadyFree;
use crate::group::GroupGuard;
use crate::index::by_group::OrderedSets;
use crate::md::Md;
use crate::pending::{Added, Record};
use crate::policy::Policy;
use crate::policy::slots::{FreePending, FreedMerge};

/// How a range is freed.
#[derive(Clone, Copy, Debug, Default)]
pub struct FreeContext {
    /// The transaction that frees: the clusters wait for its commit. With `None` they are free at
    /// once (no journal, or data under `data=writeback`).
    pub txn: Option<TxnId>,
    /// The CPU slot of the caller.
    pub cpu: CpuSlot,
    /// Whether the first cluster is shared with blocks that stay. If so, that cluster is not freed
    /// when the range starts inside it.
    pub keep_partial_first: bool,
    /// Whether the last cluster is shared with blocks that stay. If so, that cluster is not freed
    /// when the range ends inside it.
    pub keep_partial_last: bool,
    /// Whether the clusters become reserved again, because they still have delayed blocks. Then
    /// both the free and the reserved count rise.
    pub reserve_again: bool,
}

/// A freed run of clusters in one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreedExtent {
    /// The group.
    pub group: GroupNr,
    /// Cluster offset in the group.
    pub start: u32,
    /// Clusters.
    pub count: u32,
}

/// Freed clusters that wait for a commit.
pub(crate) struct Frees<B: Backend> {
    merge: FreedMerge,
    counting: FreePending,
    md: Arc<Md<B>>,
    /// Pending clusters, under `free_pending=atomic` unless `freed_merge=by-group`. Accessed
    /// relaxed: it only helps to decide whether an allocation that found no space is tried again.
    pending: CachePadded<B::AtomicU64>,
    /// Pending clusters, under `freed_merge=by-group`.
    pending_sharded: ShardedCounter<B>,
    /// Groups with records, one set for each parity of the transaction id; under
    /// `freed_merge=by-group`.
    groups: Option<OrderedSets<B>>,
}

impl<B: Backend> Frees<B> {
    pub(crate) fn new(policy: &Policy, groups: u32, cpus: u32, md: Arc<Md<B>>) -> Self {
        let merge = policy.freed_merge;
        Self {
            merge,
            counting: policy.free_pending,
            md,
            pending: CachePadded::new(B::on_line("pending count", || B::AtomicU64::new(0))),
            pending_sharded: ShardedCounter::new(blockyard_disk::num::usize_from_u32(cpus)),
            groups: (merge == FreedMerge::ByGroup).then(|| OrderedSets::new(2, groups)),
        }
    }

    /// Clusters that wait for a commit.
    pub(crate) fn pending_clusters(&self, cpu: CpuSlot) -> u64 {
        match (self.merge, self.counting) {
            (FreedMerge::ByGroup, _) => self.pending_sharded.sum().max(0).unsigned_abs(),
            (_, FreePending::Atomic) => self.pending.load(Ordering::Relaxed),
            (_, FreePending::Md) => self.md.lock(cpu).pending,
        }
    }

    /// Queues a range by the policy's rule. The guard holds the group's lock.
    pub(crate) fn add(
        &self,
        guard: &mut GroupGuard<'_, B>,
        txn: TxnId,
        start: u32,
        count: u32,
        cpu: CpuSlot,
    ) -> core::result::Result<(), AlreadyFree> {
        let nr = guard.nr;
        let first = guard.state.pending.is_none();
        let tree = guard.state.pending.get_or_insert_with(Box::default);
        let added = match self.merge {
            FreedMerge::After => tree.add_then_merge(nr, txn, start, count),
            FreedMerge::Before | FreedMerge::ByGroup => tree.merge_or_add(nr, txn, start, count),
        };
        let empty = tree.is_empty();
        let added = match added {
            Ok(added) => added,
            Err(error) => {
                if empty {
                    guard.state.pending = None;
                }
                return Err(error);
            }
        };
        if first {
            let pinned = guard.group.pin();
            assert!(pinned, "clusters of group {nr} were freed while it is not loaded");
        }
        match self.merge {
            FreedMerge::ByGroup => self.note_group(nr, txn, count, cpu),
            FreedMerge::Before | FreedMerge::After => self.list(added, count, cpu),
        }
        Ok(())
    }

    /// The sets of groups with records, under `freed_merge=by-group`.
    pub(crate) fn groups(&self) -> Option<&OrderedSets<B>> {
        self.groups.as_ref()
    }

    /// Removes from the lists the records that a commit of `txn` releases.
    pub(crate) fn detach(&self, txn: TxnId) -> Vec<Arc<Record<B>>> {
        self.md.detach(txn)
    }

    fn note_group(&self, nr: GroupNr, txn: TxnId, count: u32, cpu: CpuSlot) {
        self.pending_sharded.add(cpu, i64::from(count));
        if let Some(groups) = &self.groups {
            groups.insert(txn.raw() % 2, nr);
        }
    }

    /// Updates the lists and the count of pending clusters. Takes the `md` lock as often as the
    /// kernel version whose rules the slots `freed_merge` and `free_pending` select.
    fn list(&self, added: Added<B>, count: u32, cpu: CpuSlot) {
        let counted_inside = self.counting == FreePending::Md && self.merge == FreedMerge::After;
        match self.counting {
            FreePending::Atomic => {
                self.pending.fetch_add(u64_from_u32(count), Ordering::Relaxed);
            }
            FreePending::Md if !counted_inside => self.md.lock(cpu).pending += u64_from_u32(count),
            FreePending::Md => {}
        }
        let unlinked = match added {
            Added::Linked { unlinked, .. } | Added::Grown { unlinked } => unlinked,
        };
        for _ in 0..unlinked {
            // A record is unlinked by setting its count to 0, which was done under the group's
            // lock. The `md` lock is taken here only to imitate the cost in Linux.
            drop(self.md.lock(cpu));
        }
        if let Added::Linked { record, .. } = added {
            let mut state = self.md.lock(cpu);
            state.append(record);
            if counted_inside {
                state.pending += u64_from_u32(count);
            }
        }
    }

    pub(crate) fn lower_pending(&self, count: u32, cpu: CpuSlot) {
        match (self.merge, self.counting) {
            (FreedMerge::ByGroup, _) => self.pending_sharded.add(cpu, -i64::from(count)),
            (_, FreePending::Atomic) => {
                let before = self.pending.fetch_sub(u64_from_u32(count), Ordering::Relaxed);
                assert!(before >= u64_from_u32(count), "{count} clusters committed of {before} that waited");
            }
            (_, FreePending::Md) => {
                let pending = &mut self.md.lock(cpu).pending;
                assert!(
                    *pending >= u64_from_u32(count),
                    "{count} clusters committed of {pending} that waited"
                );
                *pending -= u64_from_u32(count);
            }
        }
    }
}

impl<B: Backend> GroupGuard<'_, B> {
    /// Finishes a pending record whose transaction has committed. Returns the extent that became
    /// free; the extent's count is 0 if nothing is pending in the group.
    pub(crate) fn finish_pending(&mut self, record: &Arc<Record<B>>) -> FreedExtent {
        assert_eq!(record.group, self.nr, "a record of another group");
        let mut range = (0, 0);
        if let Some(tree) = &mut self.state.pending {
            range = tree.finish(record);
            if tree.is_empty() {
                self.state.pending = None;
                self.group.unpin();
            }
        }
        let marked = if range.1 > 0 { self.mark_free(range.0, range.1) } else { Ok(()) };
        assert!(
            marked.is_ok(),
            "clusters of group {} that waited for a commit were free: {marked:?}",
            self.nr
        );
        FreedExtent { group: self.nr, start: range.0, count: range.1 }
    }
}
