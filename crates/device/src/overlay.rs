//! Copy-on-write view over another device: writes stay in memory until they are committed or
//! discarded.
//!
//! Granularity is 4 KiB: the first partial write to a page copies the page from the device below.
//! No lock is held while the device below is read. That device must not change while the overlay
//! exists, except by [`OverlayDevice::commit`].

use std::ops::Range;

use blockyard_disk::num::{u64_from_usize, usize_from_u64};

use crate::pages::{PAGE_SIZE, PageStore, Present, Zeroing, zero_page};
use crate::{BlockDevice, Result, check_range};

/// A writable view over `below`, which is only read until [`commit`](Self::commit).
pub struct OverlayDevice<D> {
    below: D,
    pages: PageStore,
}

impl<D: BlockDevice> std::fmt::Debug for OverlayDevice<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OverlayDevice")
            .field("size", &self.below.size())
            .field("resident_bytes", &self.resident_bytes())
            .finish_non_exhaustive()
    }
}

impl<D: BlockDevice> OverlayDevice<D> {
    /// A view that shows `below` unchanged.
    #[must_use]
    pub fn new(below: D) -> Self {
        Self { below, pages: PageStore::new() }
    }

    /// The device below.
    pub fn below(&self) -> &D {
        &self.below
    }

    /// The device below. What was written to the overlay is lost.
    #[must_use]
    pub fn into_below(self) -> D {
        self.below
    }

    /// Bytes of memory held by changed pages.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.pages.resident_bytes()
    }

    /// The written byte ranges, in ascending order, merged, and rounded outwards to whole pages
    /// (but not beyond the end of the device).
    #[must_use]
    pub fn dirty_ranges(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let Ok(()) = self.pages.for_each_present(|present| {
            let range = match present {
                Present::Zero(range) => range,
                Present::Data(at, _) => at..at + u64_from_usize(PAGE_SIZE),
            };
            match ranges.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => ranges.push(range),
            }
            Ok::<(), std::convert::Infallible>(())
        });
        if let Some(last) = ranges.last_mut() {
            last.end = last.end.min(self.below.size());
        }
        ranges
    }

    /// Writes every change to the device below in ascending order, flushes it, and forgets the
    /// changes.
    ///
    /// Nobody else may use the overlay meanwhile.
    ///
    /// # Errors
    /// Those of the device below. The overlay keeps the changes then, and can be committed again.
    pub fn commit(&self) -> Result<()> {
        let size = self.below.size();
        self.pages.for_each_present(|present| match present {
            Present::Zero(range) => self.below.write_zeroes(range.start, range.end.min(size) - range.start),
            Present::Data(at, data) => {
                let length = usize_from_u64((size - at).min(u64_from_usize(PAGE_SIZE)));
                self.below.write_at(at, &data[..length])
            }
        })?;
        self.below.flush()?;
        self.pages.clear();
        Ok(())
    }

    /// Forgets every change: the overlay shows the device below again. Nobody else may use the
    /// overlay meanwhile.
    pub fn discard_changes(&self) {
        self.pages.clear();
    }

    /// Copies, from the device below, the absent pages that a range covers only in part. The caller
    /// then overwrites the range.
    fn copy_up_edges(&self, offset: u64, length: u64) -> Result<()> {
        let page = u64_from_usize(PAGE_SIZE);
        let end = offset + length;
        if length == 0 {
            return Ok(());
        }
        if !offset.is_multiple_of(page) {
            self.copy_up(offset - offset % page)?;
        }
        if !end.is_multiple_of(page) {
            self.copy_up(end - end % page)?;
        }
        Ok(())
    }

    fn copy_up(&self, start: u64) -> Result<()> {
        if !self.pages.is_absent(start) {
            return Ok(());
        }
        let mut page = zero_page();
        let length = usize_from_u64((self.below.size() - start).min(u64_from_usize(PAGE_SIZE)));
        self.below.read_at(start, &mut page[..length])?;
        self.pages.insert_if_absent(start, page);
        Ok(())
    }
}

impl<D: BlockDevice> BlockDevice for OverlayDevice<D> {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        check_range("read", offset, buf.len(), self.size())?;
        for hole in self.pages.read(offset, buf) {
            let start = offset + u64_from_usize(hole.start);
            self.below.read_at(start, &mut buf[hole])?;
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        check_range("write", offset, data.len(), self.size())?;
        self.copy_up_edges(offset, u64_from_usize(data.len()))?;
        self.pages.write(offset, data, false);
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> Result<()> {
        check_range("write zeroes", offset, length, self.size())?;
        self.copy_up_edges(offset, length)?;
        self.pages.zero(offset, length, Zeroing::Remember);
        Ok(())
    }

    /// Leaves the content as it is, which is allowed and costs nothing.
    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        check_range("discard", offset, length, self.size())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }
}
