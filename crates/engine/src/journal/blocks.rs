//! The blocks of the log on their device, by log block number.

use blockyard_device::{BlockDevice, Result};
use blockyard_disk::jbd2::{JournalFeatures, JournalIncompat, LogFormat, Ring};
use blockyard_disk::num::{u32_from_usize, u64_from_usize, usize_from_u32};
use blockyard_recovery::JournalPlace;
use std::ops::Range;
use std::sync::Arc;

/// The format that the file system wants for its journal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// Whether tags have 64-bit block numbers.
    pub(crate) is_64bit: bool,
    /// Whether the log has checksums (version 3).
    pub(crate) has_checksums: bool,
}

impl Wanted {
    /// The features that Linux sets at each read-write mount, and also REVOKE. If REVOKE were set
    /// only with the first revoke record, a crash before the next superblock write would leave
    /// revoke records in a log that does not announce them.
    fn features(self) -> JournalFeatures {
        let mut incompat = JournalIncompat::REVOKE;
        incompat.set(JournalIncompat::BIT64, self.is_64bit);
        incompat.set(JournalIncompat::CSUM_V3, self.has_checksums);
        JournalFeatures { incompat, ..JournalFeatures::NONE }
    }
}

/// Where the log's blocks are, their device and their format.
pub(crate) struct LogBlocks {
    device: Arc<dyn BlockDevice>,
    is_external: bool,
    place: JournalPlace,
    ring: Ring,
    features: JournalFeatures,
    format: LogFormat,
    block_size: usize,
}

impl LogBlocks {
    /// The log at `place`, on the file system's device or a separate one, with its new format.
    pub(crate) fn new(
        home: Arc<dyn BlockDevice>,
        external: Option<Arc<dyn BlockDevice>>,
        place: JournalPlace,
        wanted: Wanted,
    ) -> Self {
        let raw = place.superblock().raw();
        let ring = Ring::new(raw.s_first.get(), raw.s_maxlen.get());
        debug_assert!(!ring.is_empty(), "recovery refuses a log without blocks");
        let block_size = place.superblock().format().block_size();
        assert!(block_size.is_power_of_two(), "log blocks of {block_size} bytes");
        let features = wanted.features();
        let format = LogFormat::new(block_size, features, &raw.s_uuid);
        let is_external = external.is_some();
        Self { is_external, device: external.unwrap_or(home), place, ring, features, format, block_size }
    }

    /// Whether the log's blocks carry checksums.
    pub(super) fn has_checksums(&self) -> bool {
        self.format.has_block_checksums()
    }

    /// Where the log is, and what its superblock said when it was found.
    pub(super) const fn place(&self) -> &JournalPlace {
        &self.place
    }

    pub(super) const fn features(&self) -> JournalFeatures {
        self.features
    }

    pub(super) const fn format(&self) -> &LogFormat {
        &self.format
    }

    pub(super) const fn ring(&self) -> Ring {
        self.ring
    }

    pub(super) const fn block_size(&self) -> usize {
        self.block_size
    }

    /// Writes blocks from log block `start` on, wrapping around at the end of the ring, with as few
    /// device calls as their positions allow. Returns the log block that follows them in the ring.
    pub(super) fn write(&self, start: u32, bytes: &[u8]) -> Result<u32> {
        self.runs(start, bytes.len())
            .try_for_each(|(offset, part)| self.device.write_at(offset, &bytes[part]))?;
        Ok(self.ring.advance(start, u32_from_usize(bytes.len() / self.block_size)))
    }

    /// Reads blocks from log block `start` on, wrapping around like [`Self::write`].
    pub(super) fn read(&self, start: u32, bytes: &mut [u8]) -> Result<()> {
        self.runs(start, bytes.len())
            .try_for_each(|(offset, part)| self.device.read_at(offset, &mut bytes[part]))
    }

    /// Writes one block, or the beginning of one; it is durable afterwards.
    pub(super) fn write_durable(&self, at: u32, block: &[u8]) -> Result<()> {
        assert!(block.len() <= self.block_size, "one block of the log, or the beginning of one");
        self.device.write_durable_at(self.offset(at), block)
    }

    /// Flushes the log's device, if it is a separate one.
    pub(super) fn flush_external(&self) -> Result<()> {
        if self.is_external { self.device.flush() } else { Ok(()) }
    }

    /// Splits `length` bytes from log block `start` on into parts that are contiguous on the
    /// device. Returns each part's byte offset on the device, and its range of the `length` bytes.
    fn runs(&self, start: u32, length: usize) -> impl Iterator<Item = (u64, Range<usize>)> {
        debug_assert!(
            (self.ring.first()..self.ring.end()).contains(&start),
            "log block {start} is outside of the ring"
        );
        debug_assert!(length.is_multiple_of(self.block_size), "{length} bytes are no blocks of the log");
        let (mut at, mut done) = (start, 0);
        std::iter::from_fn(move || {
            let left = u32_from_usize((length - done) / self.block_size);
            if left == 0 {
                return None;
            }
            let first = self.place.physical(at).raw();
            let most = left.min(self.ring.end() - at);
            let follows = |n: &u32| self.place.physical(at + n).raw() == first + u64::from(*n);
            let run = 1 + u32_from_usize((1..most).take_while(follows).count());
            let part = done..done + usize_from_u32(run) * self.block_size;
            let offset = self.offset(at);
            (at, done) = (self.ring.advance(at, run), part.end);
            Some((offset, part))
        })
    }

    /// The byte offset of a log block on the device.
    pub(super) fn offset(&self, log_block: u32) -> u64 {
        self.place.physical(log_block).raw() * u64_from_usize(self.block_size)
    }
}
