//! The transaction seam: handles, the running transaction, commit points.
//!
//! Operations run inside a [`Handle`]: everything they change belongs to the transaction that was
//! running when the handle began. Handles are counted per CPU slot ([`gate`]) and draw their
//! credits from pools per CPU slot ([`credits`]), so operations on different CPU slots share no
//! lock here, except for revokes. A commit closes the gate, waits for the open handles, takes the
//! lists of what changed ([`Taken`]) and opens the gate to the next transaction. Only then does it
//! encode inodes and copy blocks. A thread that changes an object before the commit has copied it
//! makes the copy for the commit: see [`Epoch`].
//!
//! A *commit point* ends a transaction. Commit points come after every N handles of a CPU slot, by
//! the callers' clock, on demand, and when the transaction is full. With a durable journal, each is
//! a commit. Without a durable journal, the clock causes no commit points, and a transaction is
//! written at its end only if it is full or must be durable. Otherwise the commit point only gives
//! back to the allocator the clusters that the transaction freed.
//!
//! Lock order: inode content, handle, inode core, group, buffer. No thread waits for a commit
//! inside a handle. An operation first reserves, then applies: as far as possible, reads,
//! allocations and checks come before its first change. If an error comes later, the changes are
//! undone or the instance becomes read-only.

mod credits;
mod flushes;
mod gate;
mod handle;
mod journal;
#[cfg(test)]
mod shuttle_tests;
mod turn;

pub(crate) use flushes::Flushes;
pub(crate) use gate::{Closed, Gate};
pub(crate) use handle::{Handle, REVOKES_PER_CREDIT};
pub(crate) use journal::{Image, Journal, NullJournal, Prepared};
pub(crate) use turn::{MyTurn, Turn};

use crate::cache::{BlockKind, Buffer};
use crate::epoch::Epoch;
use blockyard_disk::num::{high32, join32, low32, u64_from_usize, usize_from_u64};
use blockyard_disk::{BlockNr, TxnId};
use blockyard_sync::{Atomic, AtomicInt, Backend, CachePadded, CpuSlot, Mutex, Native, Ordering, rank};
use credits::Credits;
use std::collections::BTreeSet;
use std::sync::Arc;

/// One CPU slot's list of changed buffers.
type DirtyList<B> = CachePadded<Mutex<Vec<Arc<Buffer<B>>>, B>>;

/// The running transaction, and the way to the next one.
pub(crate) struct Transactions<B: Backend = Native> {
    /// Counts the open handles.
    pub(crate) gate: Gate<B>,
    credits: Credits<B>,
    /// Epoch (high half) and id of the running transaction. Changed only while the gate is closed,
    /// so it is constant within a handle.
    running: B::AtomicU64,
    dirty: Box<[DirtyList<B>]>,
    revoked: Mutex<BTreeSet<BlockNr>, B>,
    /// Length of `revoked`, to be read without its lock. Accessed relaxed: a block is allocated
    /// again only after its former owner has revoked it, so the thread that allocates it sees a
    /// count that includes this revoke.
    revoked_count: B::AtomicU64,
    keeps_revokes: bool,
    /// The last transaction that was written at its end, or is being written. Set before `running`:
    /// a thread that finds the next transaction running sees this value or a newer one.
    written: B::AtomicU32,
    /// The last durable transaction. The release store at the end of a commit pairs with the
    /// acquire load in [`Self::is_durable`].
    durable: B::AtomicU32,
    /// An operation panicked inside its handle, so its changes must not be written. The release
    /// store before the handle leaves the gate pairs with the acquire load of the commit that has
    /// closed the gate.
    abandoned: B::AtomicBool,
    /// Lets only one commit run at a time.
    pub(crate) turn: Turn<B>,
}

/// What a transaction changed in the cache.
pub(crate) struct Taken<B: Backend = Native> {
    /// The changed buffers, in no particular order. The commit holds these references until readers
    /// can find the committed copies, because the cache does not evict a buffer in use.
    pub(crate) buffers: Vec<Arc<Buffer<B>>>,
    /// The revoked blocks, in ascending order.
    pub(crate) revoked: Vec<BlockNr>,
}

impl<B: Backend> Transactions<B> {
    /// Starts the first transaction of `journal`, for `slots` CPU slots.
    pub(crate) fn new(slots: usize, journal: &dyn Journal) -> Self {
        let list = || CachePadded::new(Mutex::new(rank::JOURNAL_STATE, Vec::new()));
        let budget = u64_from_usize(journal.blocks_max());
        Self {
            gate: Gate::new(slots),
            credits: Credits::new(budget, slots),
            running: B::AtomicU64::new(join32(Epoch::NONE.next().raw(), journal.first().raw())),
            dirty: (0..slots.max(1)).map(|_| list()).collect(),
            revoked: Mutex::new(rank::JOURNAL_STATE, BTreeSet::new()),
            revoked_count: B::AtomicU64::new(0),
            keeps_revokes: journal.is_durable(),
            written: B::AtomicU32::new(journal.first().raw().wrapping_sub(1)),
            durable: B::AtomicU32::new(journal.first().raw().wrapping_sub(1)),
            abandoned: B::AtomicBool::new(false),
            turn: Turn::new(),
        }
    }

    /// Whether an operation panicked inside its handle.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    /// The transaction and the epoch that new handles join. The acquire load pairs with the release
    /// store in [`Self::switch`].
    fn now(&self) -> (TxnId, Epoch) {
        let running = self.running.load(Ordering::Acquire);
        (TxnId::new(low32(running)), Epoch::from_raw(high32(running)))
    }

    /// The transaction that new handles join.
    pub(crate) fn running(&self) -> TxnId {
        self.now().0
    }

    /// The epoch of the running transaction.
    pub(crate) fn epoch(&self) -> Epoch {
        self.now().1
    }

    /// Starts the next transaction, and the next epoch too if the ended transaction is written.
    /// Returns the ended transaction and its epoch. The gate must be closed.
    pub(crate) fn switch(&self, is_written: bool) -> (TxnId, Epoch) {
        let (tid, epoch) = self.now();
        let next = if is_written { epoch.next() } else { epoch };
        debug_assert!(tid.next().is_after(tid) && next != Epoch::NONE);
        // A thread that finds the next transaction running must see the ended one in `written`.
        if is_written {
            self.written.store(tid.raw(), Ordering::Release);
            self.credits.reset();
        }
        self.running.store(join32(next.raw(), tid.next().raw()), Ordering::Release);
        (tid, epoch)
    }

    /// The most blocks that a transaction may change.
    pub(crate) fn budget(&self) -> usize {
        usize_from_u64(self.credits.budget())
    }

    /// Gives back all credits. The gate must be closed, and the running transaction must have no
    /// changes.
    pub(crate) fn restock(&self) {
        debug_assert!(!self.has_changes(), "changes hold credits");
        self.credits.reset();
    }

    /// The last transaction that may have changed a block for which [`Buffer::changed_in`] has just
    /// returned `epoch`.
    pub(crate) fn last_to_change(&self, epoch: Epoch) -> TxnId {
        let (running, running_epoch) = self.now();
        if epoch == running_epoch { running } else { TxnId::new(self.written.load(Ordering::Acquire)) }
    }

    /// Whether a transaction is durable.
    pub(crate) fn is_durable(&self, tid: TxnId) -> bool {
        debug_assert!(!tid.is_after(self.running()), "transaction {tid:?} has not begun");
        !tid.is_after(TxnId::new(self.durable.load(Ordering::Acquire)))
    }

    /// Notes that a transaction is durable. The caller has the turn.
    pub(crate) fn note_durable(&self, tid: TxnId) {
        debug_assert!(self.running().is_after(tid), "transaction {tid:?} runs and cannot be durable");
        debug_assert!(
            !self.is_durable(tid) || self.durable.load(Ordering::Relaxed) == tid.raw(),
            "durability goes back"
        );
        self.durable.store(tid.raw(), Ordering::Release);
    }

    /// Joins a buffer to the transaction of `epoch`. Returns the buffer's kind if it had not joined
    /// yet.
    fn join(&self, buffer: &Arc<Buffer<B>>, epoch: Epoch, slot: CpuSlot) -> Option<BlockKind> {
        debug_assert_eq!(epoch, self.epoch(), "block {} joins another transaction", buffer.block());
        let kind = buffer.join(epoch)?;
        self.dirty[slot.index(self.dirty.len())].lock().push(Arc::clone(buffer));
        Some(kind)
    }

    /// Whether the running transaction contains a buffer or a revoke. Only a hint unless the gate
    /// is closed.
    pub(crate) fn has_changes(&self) -> bool {
        self.revoked_count.load(Ordering::Relaxed) > 0
            || self.dirty.iter().any(|list| !list.lock().is_empty())
    }

    /// Takes the lists of what the transaction changed. The gate must be closed.
    pub(crate) fn take(&self) -> Taken<B> {
        let mut buffers = Vec::new();
        for list in &self.dirty {
            buffers.append(&mut list.lock());
        }
        let revoked = std::mem::take(&mut *self.revoked.lock());
        debug_assert_eq!(self.revoked_count.load(Ordering::Relaxed), u64_from_usize(revoked.len()));
        self.revoked_count.store(0, Ordering::Relaxed);
        Taken { buffers, revoked: revoked.into_iter().collect() }
    }

    /// Revokes `block`: notes that no older logged copy of it may be replayed. Returns whether that
    /// is a new revoke; always false if the journal is not durable, because nothing is replayed
    /// then.
    fn revoke(&self, block: BlockNr) -> bool {
        let is_new = self.keeps_revokes && self.revoked.lock().insert(block);
        if is_new {
            self.revoked_count.fetch_add(1, Ordering::Relaxed);
        }
        is_new
    }

    /// Cancels this transaction's revoke of a block that is metadata again.
    fn cancel_revoke(&self, block: BlockNr) {
        if self.revoked_count.load(Ordering::Relaxed) > 0 && self.revoked.lock().remove(&block) {
            self.revoked_count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
