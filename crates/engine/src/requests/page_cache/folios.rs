//! The folios in which Linux's page cache would hold a file. These folios are kept only where
//! Linux's decisions must be followed exactly.
//!
//! Linux 6.18 caches ext4 files in *folios*, naturally aligned runs of 2^n pages. Write-back maps
//! blocks across folios, but if a mapped run ends inside a folio, the next request covers only the
//! rest of that folio. So requests end at boundaries that depend on how the file was written.
//! Observed: a write creates folios as large as the rest of the write, rounded down to a power of
//! two. They are at most 2 MiB long, naturally aligned, and do not overlap existing folios. A folio
//! whose tail was cut off by a truncation is split if it is clean, and stays if it is dirty.

use std::collections::BTreeMap;
use std::ops::Range;

/// log2 of the page size.
const PAGE_BITS: u32 = 12;
/// log2 of the largest folio's pages.
const ORDER_MAX: u32 = 9;

/// The folios of a file: the first page of each → log2 of its number of pages.
#[derive(Debug, Default)]
pub(in crate::requests) struct Folios {
    orders: BTreeMap<u64, u32>,
}

impl Folios {
    /// The folio that holds a page.
    fn at(&self, page: u64) -> Option<Range<u64>> {
        let (&first, &order) = self.orders.range(..=page).next_back()?;
        let end = first + (1 << order);
        (page < end).then_some(first..end)
    }

    /// Adds the folios that a write of these bytes creates.
    pub(in crate::requests) fn note_write(&mut self, mut bytes: Range<u64>) {
        while bytes.start < bytes.end {
            bytes.start = self.next_end(bytes.clone());
        }
    }

    /// Adds the folio that holds the first of these bytes, if there is none. Returns the byte where
    /// a write of these bytes ends or leaves that folio.
    pub(in crate::requests) fn next_end(&mut self, bytes: Range<u64>) -> u64 {
        const CHUNK: u64 = 1 << (PAGE_BITS + ORDER_MAX);
        let len = (bytes.end - bytes.start).min(CHUNK - bytes.start % CHUNK);
        let folio = self.get(bytes.start >> PAGE_BITS, len);
        (bytes.start + len).min(folio.end << PAGE_BITS)
    }

    /// Adds a folio for the page that holds `byte`, if there is none.
    pub(in crate::requests) fn note_page(&mut self, byte: u64) {
        self.get(byte >> PAGE_BITS, 1);
    }

    /// The folio of a page. If there is none, adds one as for a write of `len` bytes.
    fn get(&mut self, page: u64, len: u64) -> Range<u64> {
        if let Some(folio) = self.at(page) {
            return folio;
        }
        let mut order = (len >> PAGE_BITS).checked_ilog2().unwrap_or(0).min(ORDER_MAX);
        order = order.min(page.trailing_zeros());
        while self.orders.range(page..page + (1 << order)).next().is_some() {
            order -= 1;
        }
        debug_assert!(
            page.is_multiple_of(1 << order) && order <= ORDER_MAX,
            "a folio of 2^{order} pages at {page}"
        );
        self.orders.insert(page, order);
        page..page + (1 << order)
    }

    /// Drops the pages that lie entirely in a byte range. `is_dirty` says whether any byte of a
    /// range is dirty. A dirty folio that lies only partly in the range is not split and stays.
    pub(in crate::requests) fn drop_bytes(
        &mut self,
        bytes: Range<u64>,
        is_dirty: impl Fn(Range<u64>) -> bool,
    ) {
        let pages = bytes.start.div_ceil(1 << PAGE_BITS)..bytes.end >> PAGE_BITS;
        for edge in [bytes.start >> PAGE_BITS, pages.end] {
            let Some(folio) = self.at(edge) else { continue };
            let apart = folio.start >= bytes.end >> PAGE_BITS && bytes.end.is_multiple_of(1 << PAGE_BITS);
            let inside = folio.start >= pages.start && folio.end <= pages.end;
            if !inside && !apart && !is_dirty(folio.start << PAGE_BITS..folio.end << PAGE_BITS) {
                self.part(folio, edge);
            }
        }
        let gone: Vec<u64> = self
            .orders
            .range(pages.start..pages.end.max(pages.start))
            .filter(|(first, order)| **first + (1 << **order) <= pages.end)
            .map(|(&first, _)| first)
            .collect();
        for first in gone {
            self.orders.remove(&first);
        }
    }

    /// Drops the folios for which `is_kept` is false. `is_kept` gets the byte range of a folio.
    pub(in crate::requests) fn keep(&mut self, is_kept: impl Fn(Range<u64>) -> bool) {
        self.orders
            .retain(|&first, &mut order| is_kept(first << PAGE_BITS..(first + (1 << order)) << PAGE_BITS));
    }

    /// Splits a folio in halves until `page` has its own.
    fn part(&mut self, folio: Range<u64>, page: u64) {
        let Some(mut order) = self.orders.remove(&folio.start) else { return };
        let mut first = folio.start;
        while order > 0 {
            order -= 1;
            let middle = first + (1 << order);
            if page < middle {
                self.orders.insert(middle, order);
            } else {
                self.orders.insert(first, order);
                first = middle;
            }
        }
        self.orders.insert(first, 0);
    }

    /// The blocks of the folio that contains `block`; without one, the blocks of the block's page.
    pub(in crate::requests) fn around(&self, block: u32, block_bits: u32) -> Range<u32> {
        let byte = u64::from(block) << block_bits;
        let page = byte >> PAGE_BITS;
        let pages = self.at(page).unwrap_or(page..page + 1);
        let start = (pages.start << PAGE_BITS) >> block_bits;
        // A block may be larger than its folio; the range then holds the whole block.
        let end = (pages.end << PAGE_BITS).div_ceil(1 << block_bits);
        let [start, end] = [start, end].map(|block| u32::try_from(block).unwrap_or(u32::MAX));
        start..end
    }
}

#[cfg(test)]
mod tests {
    use super::{Folios, PAGE_BITS};

    fn list(folios: &Folios) -> Vec<(u64, u32)> {
        folios.orders.iter().map(|(&first, &order)| (first, order)).collect()
    }

    #[test]
    fn a_write_makes_aligned_folios_of_what_is_left_of_it() {
        let mut folios = Folios::default();
        // 49,104 bytes from byte 57,314 on, in pages 13 to 25.
        folios.note_write(57_314..106_418);
        assert_eq!(list(&folios), [(13, 0), (14, 1), (16, 3), (24, 0), (25, 0)]);
        // Existing folios stay.
        folios.note_write(95_192..127_681);
        assert_eq!(
            list(&folios),
            [(13, 0), (14, 1), (16, 3), (24, 0), (25, 0), (26, 1), (28, 1), (30, 0), (31, 0)]
        );
        assert_eq!((folios.around(17, 12), folios.around(40, 12)), (16..24, 40..41));
        assert_eq!(folios.around(70, 10), 64..96);
        // Blocks of 16 and 64 KiB. If the end were rounded down, the ranges would be empty.
        assert_eq!((folios.around(3, 14), folios.around(6, 14), folios.around(1, 16)), (3..4, 6..7, 1..2));
    }

    #[test]
    fn large_writes_stop_at_two_mebibytes() {
        let mut folios = Folios::default();
        folios.note_write(0..(4 << 20) + 4096);
        assert_eq!(list(&folios), [(0, 9), (512, 9), (1024, 0)]);
    }

    #[test]
    fn truncation_parts_clean_folios_only() {
        let mut folios = Folios::default();
        folios.note_write(0..16 << 12);
        folios.drop_bytes(5 << 12..1 << 40, |_| true);
        assert_eq!(list(&folios), [(0, 4)]);
        folios.drop_bytes((5 << 12) + 7..1 << 40, |_| false);
        assert_eq!(list(&folios), [(0, 2), (4, 0), (5, 0)]);
        folios.drop_bytes(4096..8192, |_| false);
        assert_eq!(list(&folios), [(0, 0), (2, 1), (4, 0), (5, 0)]);
    }

    #[test]
    fn folios_that_are_not_kept_leave_single_pages() {
        let mut folios = Folios::default();
        folios.note_write(0..16 << PAGE_BITS);
        folios.note_write(16 << PAGE_BITS..24 << PAGE_BITS);
        folios.keep(|bytes| bytes.start >= 16 << PAGE_BITS);
        assert_eq!((folios.around(3, PAGE_BITS), folios.around(17, PAGE_BITS)), (3..4, 16..24));
    }
}
