//! Read-ahead: blocks that will be wanted one after another are read together.

use std::ops::Range;

use blockyard_device::DeviceError;
use blockyard_disk::BlockNr;
use blockyard_disk::num::{u64_from_usize, usize_from_u64};

use crate::volume::Volume;

/// The most bytes of one read.
const BYTES_MAX: u64 = 1 << 20;

/// The blocks that were read last.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    first: u64,
    bytes: Vec<u8>,
    /// Blocks that cannot be read together: one of them is bad.
    bad: Range<u64>,
}

impl Ahead {
    /// Returns a block. If the block is not among those that were read last, reads it together with
    /// up to `more` blocks after it, in one read of at most [`BYTES_MAX`].
    pub(crate) fn block(
        &mut self,
        volume: &Volume<'_>,
        block: BlockNr,
        more: u64,
    ) -> Result<Vec<u8>, DeviceError> {
        let bits = volume.geometry.block_bits();
        if more > 0 && !self.holds(block, bits) && !self.bad.contains(&block.raw()) {
            self.fetch(volume, block, more);
        }
        if !self.holds(block, bits) {
            // The block is wanted alone, or the read of several blocks failed.
            return volume.block(block);
        }
        debug_assert!(self.first <= block.raw(), "block {block} before {}", self.first);
        let at = usize_from_u64((block.raw() - self.first) << bits);
        Ok(self.bytes[at..at + volume.block_size()].to_vec())
    }

    fn holds(&self, block: BlockNr, bits: u32) -> bool {
        let count = u64_from_usize(self.bytes.len()) >> bits;
        (self.first..self.first + count).contains(&block.raw())
    }

    fn fetch(&mut self, volume: &Volume<'_>, block: BlockNr, more: u64) {
        let bits = volume.geometry.block_bits();
        let end = volume.geometry.blocks_count().raw();
        let count = (more + 1).min(BYTES_MAX >> bits).min(end.saturating_sub(block.raw()));
        debug_assert!(count > 0, "block {block} lies outside of the file system");
        self.first = block.raw();
        self.bytes.resize(usize_from_u64(count << bits), 0);
        if volume.device.read_at(block.raw() << bits, &mut self.bytes).is_err() {
            self.bytes.clear();
            self.bad = block.raw()..block.raw() + count;
        }
    }
}
