//! One operation's membership in the running transaction.

use super::Transactions;
use crate::Result;
use crate::cache::{BlockKind, Buffer, MetaCache};
use crate::epoch::Epoch;
use crate::pool::Pool;
use blockyard_disk::num::u64_from_usize;
use blockyard_disk::{BlockNr, TxnId};
use blockyard_sync::{Atomic, Backend, CpuSlot, Native, Ordering};
use std::cell::Cell;
use std::sync::Arc;

/// How many revokes are charged as one block. A log block of 1 KiB, the smallest, holds at least
/// 125.
pub(crate) const REVOKES_PER_CREDIT: usize = 100;

/// A handle: everything changed through it belongs to one transaction. Dropping it ends the
/// operation's part in the transaction.
///
/// A handle belongs to one thread. It may wait for reads of metadata, never for a commit.
pub(crate) struct Handle<'a, B: Backend = Native> {
    transactions: &'a Transactions<B>,
    cache: &'a MetaCache<B>,
    tid: TxnId,
    epoch: Epoch,
    slot: CpuSlot,
    credits: Cell<u64>,
    /// How many blocks this handle was the first to change in its transaction, each bitmap counted
    /// twice, plus the blocks for its revoke records.
    used: Cell<u64>,
    revokes: Cell<u64>,
    pool: Cell<Pool>,
    /// Whether the thread was already unwinding when the handle began. If so, the panic did not
    /// interrupt the operation of this handle.
    began_in_panic: bool,
}

impl<'a, B: Backend> Handle<'a, B> {
    /// Enters the running transaction with `credits`; `None` if the transaction has no room for
    /// them. Also returns the number of entries on the slot so far.
    pub(crate) fn enter(
        transactions: &'a Transactions<B>,
        cache: &'a MetaCache<B>,
        slot: CpuSlot,
        credits: usize,
    ) -> Option<(Self, u64)> {
        let entries = transactions.gate.enter(slot);
        // An operation that may change more than a transaction holds gets the whole budget.
        let credits = u64_from_usize(credits).min(transactions.credits.budget());
        if !transactions.credits.take(slot, credits) {
            transactions.gate.leave(slot);
            return None;
        }
        let (tid, epoch) = transactions.now();
        debug_assert!(epoch != Epoch::NONE, "changes would be marked as unchanged");
        let handle = Self {
            transactions,
            cache,
            tid,
            epoch,
            slot,
            credits: Cell::new(credits),
            used: Cell::new(0),
            revokes: Cell::new(0),
            pool: Cell::new(Pool::Ordinary),
            began_in_panic: std::thread::panicking(),
        };
        Some((handle, entries))
    }

    /// The transaction that this handle's changes belong to.
    pub(crate) const fn tid(&self) -> TxnId {
        self.tid
    }

    /// The epoch that changes are marked with.
    pub(crate) const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The CPU slot that the operation acts on.
    pub(crate) const fn slot(&self) -> CpuSlot {
        self.slot
    }

    /// Sets the pool from which blocks for the operation's mappings are allocated.
    pub(crate) fn set_pool(&self, pool: Pool) {
        self.pool.set(pool);
    }

    /// The pool from which blocks for the operation's mappings are allocated.
    pub(crate) fn pool(&self) -> Pool {
        self.pool.get()
    }

    /// Whether the pool is [`Pool::Reserved`], as for operations that write back data whose space
    /// was reserved.
    pub(crate) fn is_write_back(&self) -> bool {
        self.pool.get() == Pool::Reserved
    }

    /// Whether `blocks` more blocks may change. Takes more credits if they are needed and the
    /// transaction has room. If this returns false, the caller must end this handle in a state
    /// from which recovery can continue, and begin another.
    pub(crate) fn extend(&self, blocks: usize) -> bool {
        let wanted = self.used.get() + u64_from_usize(blocks);
        let missing = wanted.saturating_sub(self.credits.get());
        if missing > 0 && self.transactions.credits.take(self.slot, missing) {
            self.credits.set(wanted);
        }
        wanted <= self.credits.get()
    }

    /// Reads a block and joins it to the transaction.
    pub(crate) fn read_for_write(
        &self,
        block: BlockNr,
        kind: BlockKind,
        check: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<Arc<Buffer<B>>> {
        let buffer = self.cache.read(block, kind, check)?;
        debug_assert_eq!(buffer.block(), block, "the buffer of another block");
        self.join(&buffer);
        Ok(buffer)
    }

    /// Joins a buffer that was already read.
    pub(crate) fn join(&self, buffer: &Arc<Buffer<B>>) {
        if let Some(kind) = self.transactions.join(buffer, self.epoch, self.slot) {
            self.charge(kind);
        }
    }

    fn charge(&self, kind: BlockKind) {
        // A bitmap changes together with its group's descriptor. Descriptor blocks are not buffers,
        // so they are charged here.
        let blocks = if kind.is_bitmap() { 2 } else { 1 };
        self.used.set(self.used.get() + blocks);
    }

    /// A zeroed buffer for a freshly allocated block, in the transaction.
    pub(crate) fn create(&self, block: BlockNr, kind: BlockKind) -> Arc<Buffer<B>> {
        self.transactions.cancel_revoke(block);
        let buffer = self.cache.buffer(block);
        // Join first: joining sets the old content aside if a commit has not copied it yet.
        if self.transactions.join(&buffer, self.epoch, self.slot).is_some() {
            self.charge(kind);
        }
        self.cache.reset(&buffer, kind);
        debug_assert_eq!(buffer.changed_in(), self.epoch, "block {block} is new in another transaction");
        buffer
    }

    /// Forgets a freed metadata block: drops its content and revokes it, so that no older logged
    /// copy is replayed.
    pub(crate) fn forget(&self, block: BlockNr) {
        self.cache.forget(block, self.epoch);
        if self.transactions.revoke(block) {
            self.revokes.set(self.revokes.get() + 1);
            if self.revokes.get() % u64_from_usize(REVOKES_PER_CREDIT) == 1 {
                self.used.set(self.used.get() + 1);
            }
        }
    }
}

impl<B: Backend> Drop for Handle<'_, B> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.began_in_panic {
            self.transactions.abandoned.store(true, Ordering::Release);
        }
        debug_assert_eq!(
            self.transactions.now(),
            (self.tid, self.epoch),
            "the transaction ended under a handle"
        );
        self.transactions.credits.give_back(self.slot, self.credits.get(), self.used.get());
        self.transactions.gate.leave(self.slot);
    }
}
