//! Where file data is read from and written to: the device, and the clean data kept in memory.

use super::clean::CleanBlocks;
use crate::Result;
use blockyard_device::BlockDevice;
use blockyard_disk::num::{u64_from_u32, u64_from_usize, usize_from_u64};
use std::ops::Range;
use std::sync::Arc;

/// The most bytes that one read of the device may add to the kept data.
const READ_MAX: usize = 2 << 20;

/// The data blocks of a device. Positions are bytes on the device.
///
/// All file data is read and written through this store, except data that is logged or lies in an
/// inode. A freed block may leave a copy here. If the block is reused for file data, the new data
/// is written through this store before it is read, and the write replaces the old copy. So no
/// stale copy is ever read.
pub(crate) struct DataStore {
    device: Arc<dyn BlockDevice>,
    block_bits: u32,
    clean: Option<CleanBlocks>,
}

impl DataStore {
    /// A store that keeps up to `clean_bytes` of clean data; none if that is 0.
    pub(crate) fn new(device: Arc<dyn BlockDevice>, block_bits: u32, clean_bytes: usize) -> Self {
        let clean = (clean_bytes > 0).then(|| CleanBlocks::new(block_bits, clean_bytes));
        Self { device, block_bits, clean }
    }

    /// How many blocks one read may read ahead; 0 if no data is kept.
    pub(crate) fn ahead_max(&self) -> usize {
        let fits = self.clean.as_ref().map_or(0, |clean| clean.blocks_max() / 4);
        fits.min(READ_MAX >> self.block_bits)
    }

    /// Fills `buf` from byte `place` of the device on. May also read and keep up to `ahead` blocks
    /// that follow these bytes.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn read(&self, place: u64, buf: &mut [u8], ahead: u32) -> Result<()> {
        let Some(clean) = &self.clean else { return self.read_direct(place, buf) };
        let mut done = 0;
        while done < buf.len() {
            let at = |done| place + u64_from_usize(done);
            done += clean.copy_to(at(done), &mut buf[done..]);
            if done < buf.len() {
                done += self.read_missing(clean, at(done), &mut buf[done..], ahead)?;
            }
        }
        Ok(())
    }

    /// Fills `buf` from the device, bypassing the kept data.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn read_direct(&self, place: u64, buf: &mut [u8]) -> Result<()> {
        Ok(self.device.read_at(place, buf)?)
    }

    /// Fills the beginning of `buf` from the device, and keeps the blocks that were read. Returns
    /// the number of bytes filled.
    ///
    /// The block of `place` is not kept yet. The read begins with this block and may go `ahead`
    /// blocks beyond `buf`. But it ends before the next block that is kept already, and after at
    /// most [`READ_MAX`] bytes. If the read fails, a second one fills all of `buf` without reading
    /// ahead, and nothing is kept.
    fn read_missing(&self, clean: &CleanBlocks, place: u64, buf: &mut [u8], ahead: u32) -> Result<usize> {
        let first = place >> self.block_bits;
        let last = (place + u64_from_usize(buf.len()) - 1) >> self.block_bits;
        let longest = first + u64_from_usize((READ_MAX >> self.block_bits).max(1));
        let blocks = first..(last + 1 + u64_from_u32(ahead)).min(longest);
        let blocks = first..clean.missing_until(blocks);
        debug_assert!(!blocks.is_empty(), "block {first} is missing");
        let note = clean.begin_read(blocks.clone());
        let mut bytes = vec![0; usize_from_u64(blocks.end - blocks.start) << self.block_bits];
        if self.device.read_at(first << self.block_bits, &mut bytes).is_err() {
            clean.end_read(&note, None);
            // The read-ahead blocks may be the unreadable ones.
            self.read_direct(place, buf)?;
            return Ok(buf.len());
        }
        clean.end_read(&note, Some(&bytes));
        let inside = usize_from_u64(place - (first << self.block_bits));
        let n = (bytes.len() - inside).min(buf.len());
        buf[..n].copy_from_slice(&bytes[inside..inside + n]);
        Ok(n)
    }

    /// Writes `parts`, which together are whole blocks, one after the other from byte `place` of
    /// the device on.
    ///
    /// # Errors
    /// Errors of the device. The content of the blocks is then undefined.
    pub(crate) fn write(&self, place: u64, parts: &[&[u8]]) -> Result<()> {
        let written = self.device.write_vectored_at(place, parts);
        let Some(clean) = &self.clean else { return Ok(written?) };
        match &written {
            Ok(()) => clean.note_written(place >> self.block_bits, parts),
            Err(_) => {
                let len = parts.iter().map(|part| u64_from_usize(part.len())).sum();
                clean.forget(self.blocks(place, len));
            }
        }
        Ok(written?)
    }

    /// Makes whole blocks read as zeroes.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub(crate) fn write_zeroes(&self, place: u64, len: u64) -> Result<()> {
        let written = self.device.write_zeroes(place, len);
        self.forget(place, len);
        Ok(written?)
    }

    /// Zeroes `len` bytes inside one block.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub(crate) fn zero_inside(&self, place: u64, len: usize) -> Result<()> {
        let written = self.device.write_at(place, &vec![0; len]);
        self.forget(place >> self.block_bits << self.block_bits, 1 << self.block_bits);
        Ok(written?)
    }

    fn forget(&self, place: u64, len: u64) {
        if let Some(clean) = &self.clean {
            clean.forget(self.blocks(place, len));
        }
    }

    fn blocks(&self, place: u64, len: u64) -> Range<u64> {
        let whole = (1 << self.block_bits) - 1;
        debug_assert!(place & whole == 0 && len & whole == 0, "{len} bytes at {place} are no whole blocks");
        place >> self.block_bits..(place + len) >> self.block_bits
    }
}
