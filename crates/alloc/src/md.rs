//! The `md` lock: one lock for the file system, as in Linux's allocator, and what it guards.
//!
//! In today's Linux it guards the two lists of freed records, one for each parity of the
//! transaction id. Before the scalability series it also guarded the single stream goal and the
//! count of pending clusters. In this crate, three slots of a policy say what it guards:
//!
//! - the lists, unless `freed_merge=by-group`;
//! - the stream goals, if `slot_lock=md`;
//! - the count of pending clusters, if `free_pending=md`, but not with `freed_merge=by-group`.
//!
//! [`Md::figures`] says how often the lock was taken.

use std::sync::Arc;

use blockyard_disk::TxnId;
use blockyard_disk::num::usize_from_u32;
use blockyard_sync::{Backend, CachePadded, CpuSlot, LockClass, LockClassFigures, Mutex, MutexGuard, rank};

use crate::pending::Record;

/// What the lock guards, except the stream goals.
pub(crate) struct MdState<B: Backend> {
    lists: [Vec<Arc<Record<B>>>; 2],
    /// Pending clusters, under `free_pending=md`.
    pub(crate) pending: u64,
}

/// The lock.
pub(crate) struct Md<B: Backend> {
    state: CachePadded<Mutex<MdState<B>, B>>,
    class: LockClass,
}

impl<B: Backend> MdState<B> {
    pub(crate) fn append(&mut self, record: Arc<Record<B>>) {
        debug_assert!(record.count() > 0, "a record that is done goes into a list");
        self.lists[usize_from_u32(record.txn.raw() % 2)].push(record);
    }
}

impl<B: Backend> Md<B> {
    pub(crate) fn new(cpus: u32) -> Self {
        let state = MdState { lists: [Vec::new(), Vec::new()], pending: 0 };
        Self {
            state: CachePadded::new(B::on_line("md lock", || Mutex::new(rank::PENDING_FREES, state))),
            class: LockClass::new("md", usize_from_u32(cpus)),
        }
    }

    /// Takes the lock and counts the acquisition.
    pub(crate) fn lock(&self, cpu: CpuSlot) -> MutexGuard<'_, MdState<B>, B> {
        self.state.lock_counted(&self.class, cpu)
    }

    /// Takes the records that a commit of `txn` releases out of their list. The kernel needs no
    /// lock for this, since nobody can append to the list of `txn` any more. So this acquisition is
    /// not counted.
    pub(crate) fn detach(&self, txn: TxnId) -> Vec<Arc<Record<B>>> {
        let mut state = self.state.lock();
        let list = &mut state.lists[usize_from_u32(txn.raw() % 2)];
        let (due, later) = core::mem::take(list).into_iter().partition(|record| !record.txn.is_after(txn));
        *list = later;
        due
    }

    pub(crate) fn figures(&self) -> (&'static str, LockClassFigures) {
        (self.class.name(), self.class.figures())
    }
}
