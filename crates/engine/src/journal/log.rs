//! The log as a whole, with its superblock.

use super::blocks::LogBlocks;
use crate::Result;
use blockyard_disk::TxnId;
use blockyard_disk::jbd2::{BlockKind, LogFormat, RawHeader, RawJournalSuperblock, Ring};
use std::sync::Arc;
use zerocopy::IntoBytes;
use zerocopy::big_endian::U32;

/// The log and its superblock.
pub(super) struct Log {
    blocks: Arc<LogBlocks>,
    raw: RawJournalSuperblock,
}

impl Log {
    /// The log in these blocks. Sets the features of `blocks` in the superblock, in memory only.
    pub(super) fn open(blocks: Arc<LogBlocks>) -> Self {
        let mut raw = *blocks.place().superblock().raw();
        if raw.s_header.h_blocktype.get() != BlockKind::SuperblockV2.raw() {
            // A superblock of version 1 has no feature words, so it becomes version 2. The bytes in
            // their place mean nothing and are overwritten.
            raw.s_header = RawHeader::new(BlockKind::SuperblockV2, TxnId::new(raw.s_header.h_sequence.get()));
        }
        raw.set_features(blocks.features());
        Self { blocks, raw }
    }

    /// Writes the superblock, so that the log announces its new features. The write is durable.
    pub(super) fn write_features(&mut self) -> Result<()> {
        self.write_superblock()
    }

    pub(super) fn format(&self) -> &LogFormat {
        self.blocks.format()
    }

    pub(super) fn blocks(&self) -> &LogBlocks {
        &self.blocks
    }

    pub(super) fn ring(&self) -> Ring {
        self.blocks.ring()
    }

    /// The log block at which the next transaction begins if the log is empty.
    pub(super) fn first_block(&self) -> u32 {
        let head = self.raw.s_head.get();
        if self.ring().contains(head) { head } else { self.ring().first() }
    }

    /// Whether the log is marked empty: recovery would look for no transaction.
    pub(super) fn is_marked_empty(&self) -> bool {
        self.raw.s_start.get() == 0
    }

    /// Writes the tail: the oldest transaction that recovery needs is `tid`, which begins at log
    /// block `start`. If `start` is 0, the log is empty and `tid` comes next. The write is durable.
    pub(super) fn write_tail(&mut self, start: u32, tid: TxnId) -> Result<()> {
        assert!(start == 0 || self.ring().contains(start), "the tail {start} lies outside of the ring");
        self.raw.s_start = U32::new(start);
        self.raw.s_sequence = U32::new(tid.raw());
        self.write_superblock()
    }

    /// Marks the log empty: the next transaction is `next`, at `head`. The write is durable.
    pub(super) fn mark_empty(&mut self, next: TxnId, head: u32) -> Result<()> {
        self.raw.s_head = U32::new(head);
        self.write_tail(0, next)
    }

    /// Records the error code of an instance that failed, for whoever opens the log next. The write
    /// is durable.
    pub(super) fn write_error(&mut self, errno: u32) -> Result<()> {
        self.raw.s_errno = U32::new(errno);
        self.write_superblock()
    }

    fn write_superblock(&mut self) -> Result<()> {
        self.raw.seal();
        let found = self.blocks.place().superblock().raw();
        assert_eq!(self.raw.s_maxlen, found.s_maxlen, "the log keeps its length");
        assert_eq!(self.raw.s_header.h_blocktype.get(), BlockKind::SuperblockV2.raw(), "version 2");
        Ok(self.blocks.write_durable(self.blocks.place().superblock_at(), self.raw.as_bytes())?)
    }
}
