//! Reading log blocks by their number, and replacing the journal superblock.

use blockyard_device::BlockDevice;
use blockyard_disk::jbd2::{JournalSuperblock, RawJournalSuperblock};
use blockyard_disk::num::u64_from_usize;
use zerocopy::IntoBytes;

use crate::error::Result;
use crate::journal_map::JournalMap;

/// A journal whose place and superblock are verified.
pub(crate) struct Log<'a> {
    pub(crate) device: &'a dyn BlockDevice,
    pub(crate) map: JournalMap,
    pub(crate) superblock: JournalSuperblock,
    /// Log block of the journal superblock: 0, except on external devices.
    pub(crate) superblock_at: u32,
}

impl Log<'_> {
    /// Fills `block`, whose length is the block size, from a log block.
    pub(crate) fn read(&self, log_block: u32, block: &mut [u8]) -> Result<()> {
        debug_assert_eq!(block.len(), self.superblock.format().block_size(), "a block of the log");
        Ok(self.device.read_at(self.place(log_block), block)?)
    }

    /// Replaces the journal superblock, durably.
    pub(crate) fn write_superblock(&self, raw: &RawJournalSuperblock) -> Result<()> {
        Ok(self.device.write_durable_at(self.place(self.superblock_at), raw.as_bytes())?)
    }

    fn place(&self, log_block: u32) -> u64 {
        self.map.physical(log_block).raw() * u64_from_usize(self.superblock.format().block_size())
    }
}
