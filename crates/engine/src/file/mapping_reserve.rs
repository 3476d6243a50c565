//! How many blocks of the mapping write-back may have to add for delayed data.
//!
//! They are reserved with the data, so that write-back never finds that a leaf or an indirect block has no room. The
//! number is a bound: every reserved cluster may become an extent of its own, nodes may be half full, and indirect
//! blocks that are there already are counted as new. What was not needed is given back with the last reservation.

use crate::data::FileData;
use crate::inode::InodeCore;
use crate::{FileSystem, OpContext};
use blockyard_disk::inode::InodeMap;
use blockyard_disk::num::u64_from_usize;
use std::ops::Range;

/// Extents in the root of a tree.
const ROOT_EXTENTS: u64 = 4;
/// Bytes of a node's head and of an entry.
const EXTENT_BYTES: usize = 12;
/// Blocks that an inode maps by itself.
const DIRECT: u32 = 12;

impl FileSystem {
    /// Clusters to reserve for the mapping, beyond what `data` has, when the clusters `new` (ascending) are reserved
    /// too, and parts of `converted` unwritten extents written.
    pub(super) fn mapping_blocks(
        &self,
        core: &InodeCore,
        data: &FileData,
        new: &[u32],
        converted: usize,
    ) -> u64 {
        match core.map {
            InodeMap::Indirect => self.indirect_blocks(data, new),
            _ => {
                let extents = u64_from_usize(data.extents_to_come() + new.len() + 2 * converted);
                let wanted = extent_blocks(core.root(), self.block_size(), extents);
                wanted.saturating_sub(data.reserved_for_mapping())
            }
        }
    }

    /// Gives back what was reserved for the mapping when no data waits any more.
    pub(crate) fn settle_mapping_reserve(&self, ctx: &OpContext, data: &mut FileData) {
        let clusters = data.take_mapping_reservation();
        if clusters > 0 {
            self.unreserve(ctx, clusters);
        }
    }

    /// The indirect blocks over every array of pointers in which nothing was reserved yet.
    fn indirect_blocks(&self, data: &FileData, new: &[u32]) -> u64 {
        let bits = self.geometry().block_bits() - 2;
        let mut last = 0..0;
        let mut wanted = 0;
        for &logical in new.iter().filter(|&&logical| logical >= DIRECT) {
            if last.contains(&logical) {
                continue;
            }
            let (array, levels) = array_of(logical, bits);
            if data.first_reserved_in(array.clone()).is_none() {
                wanted += levels;
            }
            last = array;
        }
        wanted
    }
}

/// The logical blocks that share the lowest array of pointers with `logical`, and how many levels lie over them.
fn array_of(logical: u32, bits: u32) -> (Range<u32>, u64) {
    let behind = u64::from(logical - DIRECT);
    let levels = match behind >> bits {
        0 => 1,
        above if above - 1 < 1 << bits => 2,
        _ => 3,
    };
    let start = logical - ((logical - DIRECT) & ((1 << bits) - 1));
    (start..start.saturating_add(1 << bits), levels)
}

/// Blocks that a tree with this root may gain when `extents` are inserted.
fn extent_blocks(root: &[u8; 60], block_size: usize, extents: u64) -> u64 {
    let word = |at: usize| u64::from(u16::from_le_bytes([root[at], root[at + 1]]));
    let (entries, depth) = (word(2), word(6));
    if depth == 0 && entries + extents <= ROOT_EXTENTS {
        return 0;
    }
    let half = u64_from_usize((block_size - EXTENT_BYTES) / EXTENT_BYTES / 2);
    extents.div_ceil(half) + depth + 2
}

#[cfg(test)]
mod tests {
    use super::{array_of, extent_blocks};

    #[test]
    fn arrays_of_pointers_begin_behind_the_direct_blocks() {
        assert_eq!(array_of(12, 8), (12..268, 1));
        assert_eq!(array_of(267, 8), (12..268, 1));
        assert_eq!(array_of(268, 8), (268..524, 2));
        assert_eq!(array_of(12 + 256 + 65_535, 8).1, 2);
        assert_eq!(array_of(12 + 256 + 65_536, 8).1, 3);
    }

    #[test]
    fn a_root_with_room_needs_no_block() {
        let mut root = [0; 60];
        root[2] = 1;
        assert_eq!(extent_blocks(&root, 1024, 3), 0);
        assert_eq!(extent_blocks(&root, 1024, 4), 3);
        root[6] = 1;
        assert_eq!(extent_blocks(&root, 1024, 43), 5);
    }
}
