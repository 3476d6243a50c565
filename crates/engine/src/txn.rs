//! The transaction seam: handles, the running transaction, commit points.
//!
//! Operations run inside a [`Handle`]: everything that they change belongs to the transaction that was running when
//! the handle began. Handles join by a sharded count ([`gate`]), so two operations share no lock here. A commit closes
//! the gate, waits for the open handles, takes a sealed copy of every block that changed, opens the gate to the next
//! transaction and hands the copies to the [`Journal`]. While there is no journal, [`NullJournal`] writes them home.
//!
//! A *commit point* ends a transaction without asking the device: it comes every N handles, by the caller's clock, or
//! on demand, and lets the frees of that transaction go back to the allocator. Only an instance whose journal keeps
//! nothing may have commit points that write nothing.
//!
//! Order: inode lock, then handle, then mapping, group, buffer. Nobody waits for a commit inside a handle. Every
//! operation is reserve, then apply: what can fail comes before the first change.

mod gate;
mod handle;
mod journal;

pub(crate) use gate::Gate;
pub(crate) use handle::Handle;
pub(crate) use journal::{Image, Journal, NullJournal, write_home};

use crate::cache::Buffer;
use blockyard_disk::num::{u64_from_usize, usize_from_u64};
use blockyard_disk::{BlockNr, TxnId};
use blockyard_sync::{AtomicU32, AtomicU64, CachePadded, CpuSlot, Mutex, Ordering, rank};
use std::sync::Arc;

/// One CPU slot's list of changed buffers.
type DirtyList = CachePadded<Mutex<Vec<Arc<Buffer>>>>;

/// The running transaction and the way to the next.
pub(crate) struct Transactions {
    /// Who is inside.
    pub(crate) gate: Gate,
    /// The running transaction. Changed while the gate is closed: a handle's view can not be torn.
    running: AtomicU32,
    dirty: Box<[DirtyList]>,
    /// Length of all lists in `dirty` together. Relaxed: a threshold.
    dirty_count: AtomicU64,
    revoked: Mutex<Vec<BlockNr>>,
    /// One commit at a time; the value is the number of commits so far.
    pub(crate) commit: Mutex<u64>,
}

impl Transactions {
    /// Transaction `first` running, nothing changed, for `slots` CPU slots.
    pub(crate) fn new(slots: usize, first: TxnId) -> Self {
        let list = || CachePadded::new(Mutex::new(rank::JOURNAL_STATE, Vec::new()));
        Self {
            gate: Gate::new(slots),
            running: AtomicU32::new(first.raw()),
            dirty: (0..slots.max(1)).map(|_| list()).collect(),
            dirty_count: AtomicU64::new(0),
            revoked: Mutex::new(rank::JOURNAL_STATE, Vec::new()),
            commit: Mutex::new(rank::COMMIT, 0),
        }
    }

    /// The transaction that new handles join. Acquire pairs with the release in [`Self::switch`].
    pub(crate) fn running(&self) -> TxnId {
        TxnId::new(self.running.load(Ordering::Acquire))
    }

    /// Starts the next transaction and gives the old one's id; the gate must be closed.
    pub(crate) fn switch(&self) -> TxnId {
        let old = self.running();
        self.running.store(old.next().raw(), Ordering::Release);
        old
    }

    /// Joins a buffer to the running transaction; cheap when it is in already.
    pub(crate) fn join(&self, buffer: &Arc<Buffer>, slot: CpuSlot) {
        if buffer.is_dirty() || !buffer.mark_dirty() {
            return;
        }
        self.dirty[slot.index(self.dirty.len())].lock().push(Arc::clone(buffer));
        self.dirty_count.fetch_add(1, Ordering::Relaxed);
    }

    /// Blocks that changed since they were last written; forgotten ones may still be counted.
    pub(crate) fn dirty_blocks(&self) -> usize {
        usize_from_u64(self.dirty_count.load(Ordering::Relaxed))
    }

    /// Takes all changed buffers, in ascending order of block; the gate must be closed.
    pub(crate) fn take_dirty(&self) -> Vec<Arc<Buffer>> {
        let mut all = Vec::new();
        for list in &self.dirty {
            all.append(&mut list.lock());
        }
        self.dirty_count.fetch_sub(u64_from_usize(all.len()), Ordering::Relaxed);
        all.retain(|buffer| buffer.is_dirty());
        all.sort_unstable_by_key(|buffer| buffer.block());
        all
    }

    /// Notes that no older logged copy of `block` may be replayed.
    pub(crate) fn revoke(&self, block: BlockNr) {
        self.revoked.lock().push(block);
    }

    /// The block is metadata again: its revoke of this transaction no longer holds.
    pub(crate) fn cancel_revoke(&self, block: BlockNr) {
        let mut revoked = self.revoked.lock();
        if !revoked.is_empty() {
            revoked.retain(|&other| other != block);
        }
    }

    /// Takes the revoked blocks, sorted; the gate must be closed.
    pub(crate) fn take_revoked(&self) -> Vec<BlockNr> {
        let mut all = std::mem::take(&mut *self.revoked.lock());
        all.sort_unstable();
        all.dedup();
        all
    }
}
