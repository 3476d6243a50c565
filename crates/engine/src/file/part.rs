//! A part of a write: bytes, and where in the file they go.

use blockyard_disk::num::{u32_from_u64, u64_from_usize, usize_from_u64};
use std::ops::Range;

/// Bytes to be written. They lie within the largest possible file, so no sum of offsets overflows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'b> {
    /// Where the first byte goes.
    pub(super) offset: u64,
    /// At least one byte.
    pub(super) bytes: &'b [u8],
}

impl<'b> Part<'b> {
    /// The offset behind the last byte.
    pub(super) fn end(&self) -> u64 {
        self.offset + u64_from_usize(self.bytes.len())
    }

    /// The bytes of the file that the part covers.
    pub(super) fn range(&self) -> Range<u64> {
        self.offset..self.end()
    }

    /// The blocks that the part touches.
    pub(super) fn blocks(&self, block_bits: u32) -> Range<u32> {
        debug_assert!(!self.bytes.is_empty(), "a part without bytes touches no block");
        u32_from_u64(self.offset >> block_bits)..u32_from_u64((self.end() - 1) >> block_bits) + 1
    }

    /// The bytes that go to `range` of the file, which must lie inside [`Self::range`].
    pub(super) fn within(&self, range: Range<u64>) -> Self {
        debug_assert!(
            self.offset <= range.start && range.end <= self.end(),
            "{range:?} of {:?}",
            self.range()
        );
        let [from, to] = [range.start, range.end].map(|at| usize_from_u64(at - self.offset));
        Part { offset: range.start, bytes: &self.bytes[from..to] }
    }
}

#[cfg(test)]
mod tests {
    use super::Part;

    #[test]
    fn a_part_keeps_bytes_and_place_together() {
        let bytes: Vec<u8> = (0..100).collect();
        let all = Part { offset: 4000, bytes: &bytes };
        assert_eq!((all.range(), all.blocks(12), all.blocks(10)), (4000..4100, 0..2, 3..5));
        let part = all.within(4032..4096);
        assert_eq!((part.offset, part.bytes, part.end()), (4032, &bytes[32..96], 4096));
    }
}
