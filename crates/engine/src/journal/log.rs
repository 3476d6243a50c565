//! The ring of log blocks on its device, and the journal superblock.

use crate::Result;
use blockyard_device::BlockDevice;
use blockyard_disk::TxnId;
use blockyard_disk::jbd2::{
    BlockKind, JournalFeatures, JournalIncompat, LogFormat, RawHeader, RawJournalSuperblock, Ring,
};
use blockyard_disk::num::{u32_from_usize, u64_from_usize, usize_from_u32};
use blockyard_recovery::JournalPlace;
use std::sync::Arc;
use zerocopy::IntoBytes;
use zerocopy::big_endian::U32;

/// What the file system asks of its journal's format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// Block numbers of 64 bits in tags.
    pub(crate) is_64bit: bool,
    /// Checksums of version 3.
    pub(crate) has_checksums: bool,
}

impl Wanted {
    /// As Linux sets them at each read-write mount, and REVOKE from the start: a crash before the next superblock
    /// write would leave revoke records in a log that does not announce them.
    fn features(self) -> JournalFeatures {
        let mut incompat = JournalIncompat::REVOKE;
        incompat.set(JournalIncompat::BIT64, self.is_64bit);
        incompat.set(JournalIncompat::CSUM_V3, self.has_checksums);
        JournalFeatures { incompat, ..JournalFeatures::NONE }
    }
}

/// The log on its device.
pub(super) struct Log {
    device: Arc<dyn BlockDevice>,
    is_external: bool,
    place: JournalPlace,
    raw: RawJournalSuperblock,
    format: LogFormat,
    ring: Ring,
}

impl Log {
    /// Sets the features, durably.
    pub(super) fn open(
        home: Arc<dyn BlockDevice>,
        external: Option<Arc<dyn BlockDevice>>,
        place: JournalPlace,
        wanted: Wanted,
    ) -> Result<Self> {
        let is_external = external.is_some();
        let features = wanted.features();
        let mut raw = *place.superblock().raw();
        if raw.s_header.h_blocktype.get() != BlockKind::SuperblockV2.raw() {
            // Version 1 has no feature words: what stands in their place means nothing.
            raw.s_header = RawHeader::new(BlockKind::SuperblockV2, TxnId::new(raw.s_header.h_sequence.get()));
        }
        raw.set_features(features);
        let format = LogFormat::new(place.superblock().format().block_size(), features, &raw.s_uuid);
        let ring = Ring::new(raw.s_first.get(), raw.s_maxlen.get());
        let mut log = Self { device: external.unwrap_or(home), is_external, place, raw, format, ring };
        log.write_superblock()?;
        Ok(log)
    }

    pub(super) const fn format(&self) -> &LogFormat {
        &self.format
    }

    pub(super) const fn ring(&self) -> Ring {
        self.ring
    }

    /// Where an empty log goes on.
    pub(super) fn first_block(&self) -> u32 {
        let head = self.raw.s_head.get();
        if self.ring.contains(head) { head } else { self.ring.first() }
    }

    /// Whether recovery would look for no transaction at all.
    pub(super) fn is_marked_empty(&self) -> bool {
        self.raw.s_start.get() == 0
    }

    /// The oldest transaction that is needed: `tid`, beginning at log block `start`. Durable.
    pub(super) fn write_tail(&mut self, start: u32, tid: TxnId) -> Result<()> {
        self.raw.s_start = U32::new(start);
        self.raw.s_sequence = U32::new(tid.raw());
        self.write_superblock()
    }

    /// Nothing in the log is needed; the next transaction is `next`, at `head`. Durable.
    pub(super) fn mark_empty(&mut self, next: TxnId, head: u32) -> Result<()> {
        self.raw.s_head = U32::new(head);
        self.write_tail(0, next)
    }

    /// Notes for the next user that this one gave up. Durable.
    pub(super) fn write_error(&mut self, errno: u32) -> Result<()> {
        self.raw.s_errno = U32::new(errno);
        self.write_superblock()
    }

    fn write_superblock(&mut self) -> Result<()> {
        self.raw.seal();
        let place = self.offset(self.place.superblock_at());
        Ok(self.device.write_durable_at(place, self.raw.as_bytes())?)
    }

    /// Writes blocks from log block `start` on, around the end of the ring, with as few calls as their places allow. Gives
    /// the log block behind them.
    pub(super) fn write_blocks(&self, start: u32, bytes: &[u8]) -> Result<u32> {
        let block_size = self.format.block_size();
        let mut rest = bytes;
        let mut at = start;
        while !rest.is_empty() {
            let most = u32_from_usize(rest.len() / block_size);
            let run = self.contiguous(at, most);
            let (now, later) = rest.split_at(usize_from_u32(run) * block_size);
            self.device.write_at(self.offset(at), now)?;
            rest = later;
            at = self.ring.advance(at, run);
        }
        Ok(at)
    }

    /// Blocks from `at` on, at most `most`, that follow each other on the device.
    fn contiguous(&self, at: u32, most: u32) -> u32 {
        let first = self.place.physical(at).raw();
        let most = most.min(self.ring.end() - at);
        (1..most).find(|&n| self.place.physical(at + n).raw() != first + u64::from(n)).unwrap_or(most)
    }

    pub(super) fn write_durable(&self, at: u32, block: &[u8]) -> Result<()> {
        Ok(self.device.write_durable_at(self.offset(at), block)?)
    }

    /// Flushes the log's device when it is not the file system's.
    pub(super) fn flush_external(&self) -> Result<()> {
        if self.is_external { Ok(self.device.flush()?) } else { Ok(()) }
    }

    fn offset(&self, log_block: u32) -> u64 {
        self.place.physical(log_block).raw() * u64_from_usize(self.format.block_size())
    }
}
