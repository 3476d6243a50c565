//! One operation's membership in the running transaction.

use super::Transactions;
use crate::Result;
use crate::cache::{BlockKind, Buffer, MetaCache};
use blockyard_disk::{BlockNr, TxnId};
use blockyard_sync::CpuSlot;
use std::cell::Cell;
use std::sync::Arc;

/// A handle: what is changed through it lands in one transaction. Dropping it ends the operation.
///
/// A handle belongs to one thread. It may wait for reads of metadata, never for a commit.
pub(crate) struct Handle<'a> {
    transactions: &'a Transactions,
    cache: &'a MetaCache,
    tid: TxnId,
    slot: CpuSlot,
    credits: Cell<usize>,
    write_back: Cell<bool>,
}

impl<'a> Handle<'a> {
    /// Enters the running transaction; the caller has seen to it that `credits` blocks fit (see `Core::begin`).
    pub(crate) fn enter(
        transactions: &'a Transactions,
        cache: &'a MetaCache,
        slot: CpuSlot,
        credits: usize,
    ) -> (Self, u64) {
        let entries = transactions.gate.enter(slot);
        let handle = Self {
            transactions,
            cache,
            tid: transactions.running(),
            slot,
            credits: Cell::new(credits),
            write_back: Cell::new(false),
        };
        (handle, entries)
    }

    /// The transaction that this handle's changes belong to.
    pub(crate) const fn tid(&self) -> TxnId {
        self.tid
    }

    /// The CPU slot that the operation acts on.
    pub(crate) const fn slot(&self) -> CpuSlot {
        self.slot
    }

    /// The operation writes back data whose space was promised: its tree blocks may use the reserve.
    pub(crate) fn note_write_back(&self) {
        self.write_back.set(true);
    }

    /// See [`Self::note_write_back`].
    pub(crate) fn is_write_back(&self) -> bool {
        self.write_back.get()
    }

    /// Blocks that the operation said it may change.
    pub(crate) fn credits(&self) -> usize {
        self.credits.get()
    }

    /// Adds to the blocks that may change when `most` allows it; otherwise the caller must end this handle in a state
    /// that recovery can go on from, and begin another.
    pub(crate) fn extend(&self, credits: usize, most: usize) -> bool {
        let fits = self.transactions.dirty_blocks() + credits <= most;
        if fits {
            self.credits.set(self.credits.get() + credits);
        }
        fits
    }

    /// Reads a block and joins it to the transaction.
    pub(crate) fn read_for_write(
        &self,
        block: BlockNr,
        kind: BlockKind,
        check: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<Arc<Buffer>> {
        let buffer = self.cache.read(block, kind, check)?;
        self.join(&buffer);
        Ok(buffer)
    }

    /// Joins a buffer that was read before.
    pub(crate) fn join(&self, buffer: &Arc<Buffer>) {
        self.transactions.join(buffer, self.slot);
    }

    /// A zeroed buffer for a freshly allocated block, in the transaction.
    pub(crate) fn create(&self, block: BlockNr, kind: BlockKind) -> Arc<Buffer> {
        self.transactions.cancel_revoke(block);
        let buffer = self.cache.create(block, kind);
        self.join(&buffer);
        buffer
    }

    /// A metadata block was freed: its content is dropped and no older logged copy may be replayed.
    pub(crate) fn forget(&self, block: BlockNr) {
        self.cache.forget(block);
        self.transactions.revoke(block);
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        self.transactions.gate.leave(self.slot);
    }
}
