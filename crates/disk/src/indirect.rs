//! Block maps of ext2 and ext3: `i_block` holds the numbers of 12 data blocks, then those of a
//! single, a double and a triple indirect block. An indirect block contains only 32-bit block
//! numbers. The number 0 is a hole: one block, or all the blocks that the subtree would map.

use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use crate::error::{Corruption, CorruptionKind};
use crate::geometry::Geometry;
use crate::num::usize_from_u64;
use crate::units::{BlockNr, LogicalBlock};

/// Pointers to data blocks in `i_block`.
pub const DIRECT: usize = 12;

/// Levels of the deepest tree.
pub const LEVELS_MAX: usize = 3;

/// log2 of how many block numbers fit in an indirect block.
const fn pointers_bits(block_bits: u32) -> u32 {
    block_bits - 2
}

/// Logical blocks that a map can hold, not capped at 2^32.
#[must_use]
pub const fn blocks_max(block_bits: u32) -> u64 {
    let bits = pointers_bits(block_bits);
    12 + (1 << bits) + (1 << (2 * bits)) + (1 << (3 * bits))
}

/// Logical blocks below one pointer with `levels` levels of indirect blocks under it (0: the
/// pointer leads to a data block).
#[must_use]
pub const fn span(block_bits: u32, levels: usize) -> u64 {
    match levels {
        0 => 1,
        1 => 1 << pointers_bits(block_bits),
        2 => 1 << (2 * pointers_bits(block_bits)),
        _ => 1 << (3 * pointers_bits(block_bits)),
    }
}

/// Number of indirect blocks in a map of `blocks` logical blocks without holes.
#[must_use]
pub fn arrays_of(block_bits: u32, blocks: u64) -> u64 {
    let mut left = blocks.saturating_sub(12);
    let mut arrays = 0;
    for levels in 1..=LEVELS_MAX {
        let here = left.min(span(block_bits, levels));
        arrays += (1..=levels).map(|level| here.div_ceil(span(block_bits, level))).sum::<u64>();
        left -= here;
    }
    arrays
}

/// The path from `i_block` to one logical block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndirectPath {
    /// Index of the word of `i_block` where the path begins.
    pub root: usize,
    /// Number of indirect blocks on the path; 0 for a direct block.
    pub levels: usize,
    /// The index into each of these indirect blocks, from the root down; unused ones are 0.
    pub indexes: [usize; LEVELS_MAX],
}

/// The path to a logical block; `None` beyond the end of the map.
#[must_use]
pub fn path(block_bits: u32, logical: LogicalBlock) -> Option<IndirectPath> {
    let mut left = u64::from(logical.raw());
    if left < 12 {
        return Some(IndirectPath { root: usize_from_u64(left), levels: 0, indexes: [0; LEVELS_MAX] });
    }
    left -= 12;
    for levels in 1..=LEVELS_MAX {
        if left < span(block_bits, levels) {
            let mut indexes = [0; LEVELS_MAX];
            for (position, index) in indexes.iter_mut().enumerate().take(levels) {
                let below = span(block_bits, levels - 1 - position);
                *index = usize_from_u64(left / below);
                left %= below;
            }
            return Some(IndirectPath { root: DIRECT + levels - 1, levels, indexes });
        }
        left -= span(block_bits, levels);
    }
    None
}

/// Verifies a pointer of `i_block` or of an indirect block; `None` is a hole.
///
/// # Errors
/// [`CorruptionKind::IndirectPhysical`].
pub fn pointer(geometry: &Geometry, raw: u32) -> Result<Option<BlockNr>, Corruption> {
    let block = BlockNr::new(u64::from(raw));
    if block == BlockNr::ZERO {
        Ok(None)
    } else if geometry.contains(block) {
        Ok(Some(block))
    } else {
        Err(Corruption::new(CorruptionKind::IndirectPhysical))
    }
}

/// The pointers of an indirect block; bytes past the last whole pointer are ignored.
#[must_use]
pub fn pointers(block: &[u8]) -> &[U32] {
    let whole = block.len() / 4;
    <[U32]>::ref_from_prefix_with_elems(block, whole).map_or(&[], |(pointers, _)| pointers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_of_dense_maps_are_counted() {
        // An indirect block of 1 KiB holds 256 pointers.
        let counts = [0, 12, 13, 268, 269, 268 + 256, 268 + 257, 268 + 65_536, 268 + 65_537];
        assert_eq!(counts.map(|blocks| arrays_of(10, blocks)), [0, 0, 1, 1, 3, 3, 4, 258, 261]);
    }

    fn way(logical: u32) -> IndirectPath {
        path(10, LogicalBlock::new(logical)).unwrap()
    }

    #[test]
    fn every_boundary_of_a_small_map() {
        assert_eq!(way(11), IndirectPath { root: 11, levels: 0, indexes: [0; 3] });
        assert_eq!(way(12), IndirectPath { root: 12, levels: 1, indexes: [0, 0, 0] });
        assert_eq!(way(12 + 255), IndirectPath { root: 12, levels: 1, indexes: [255, 0, 0] });
        assert_eq!(way(12 + 256), IndirectPath { root: 13, levels: 2, indexes: [0, 0, 0] });
        assert_eq!(way(12 + 256 + 65_535), IndirectPath { root: 13, levels: 2, indexes: [255, 255, 0] });
        assert_eq!(way(12 + 256 + 65_536), IndirectPath { root: 14, levels: 3, indexes: [0, 0, 0] });
        let last = u32::try_from(blocks_max(10) - 1).unwrap();
        assert_eq!(way(last), IndirectPath { root: 14, levels: 3, indexes: [255, 255, 255] });
        assert_eq!(path(10, LogicalBlock::new(last + 1)), None);
    }

    #[test]
    fn paths_add_up_to_the_logical_block() {
        for bits in [10, 11, 12, 16] {
            for logical in [0u32, 5, 12, 1000, 65_535, 300_000, 16_000_000] {
                let way = path(bits, LogicalBlock::new(logical)).unwrap();
                let before: u64 =
                    (0..way.levels).map(|level| if level == 0 { 12 } else { span(bits, level) }).sum();
                let inside: u64 = (0..way.levels)
                    .map(|at| u64::try_from(way.indexes[at]).unwrap() * span(bits, way.levels - 1 - at))
                    .sum();
                let direct = if way.levels == 0 { u64::try_from(way.root).unwrap() } else { 0 };
                assert_eq!(before + inside + direct, u64::from(logical));
            }
        }
    }
}
