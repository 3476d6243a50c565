//! What each object's checksum covers. A function with the name of an object computes the checksum
//! of that object. If the object contains its own checksum, that field counts as zero or is left
//! out, as the format says. The parent module compares the results with stored checksums.

use std::ops::Range;

use super::{crc16, crc32c_raw};
use crate::num::u64_from_usize;
use crate::units::{BlockNr, GroupNr, InodeNr};

/// Continues a checksum over `bytes`, with one field taken as zero. The field has at most 4 bytes
/// and lies inside `bytes`.
fn crc32c_with_zeroed(state: u32, bytes: &[u8], field: usize, width: usize) -> u32 {
    let state = crc32c_raw(state, &bytes[..field]);
    let state = crc32c_raw(state, &[0; 4][..width]);
    crc32c_raw(state, &bytes[field + width..])
}

/// Seed for an inode, and for its extent blocks, directory blocks and orphan-file blocks.
#[must_use]
pub fn inode_seed(fs_seed: u32, inode: InodeNr, generation: u32) -> u32 {
    let both = u64::from(generation) << 32 | u64::from(inode.raw());
    crc32c_raw(fs_seed, &both.to_le_bytes())
}

/// Checksum of a superblock copy: the bytes before the field, without a seed.
#[must_use]
pub fn superblock(sb: &[u8; 1024]) -> u32 {
    crc32c_raw(!0, &sb[..0x3FC])
}

/// Offset of `bg_checksum`.
const GROUP_DESC_FIELD: usize = 0x1E;

/// Checksum of a group descriptor under metadata_csum. `desc` is the whole descriptor: 32 bytes, or
/// `s_desc_size`.
#[must_use]
pub fn group_desc_crc32c(fs_seed: u32, group: GroupNr, desc: &[u8]) -> u16 {
    let state = crc32c_raw(fs_seed, &group.raw().to_le_bytes());
    crate::num::low16(crc32c_with_zeroed(state, desc, GROUP_DESC_FIELD, 2))
}

/// Checksum of a group descriptor under uninit_bg: the field is skipped, not taken as zero.
#[must_use]
pub fn group_desc_crc16(uuid: &[u8; 16], group: GroupNr, desc: &[u8]) -> u16 {
    let state = crc16(crc16(!0, uuid), &group.raw().to_le_bytes());
    let state = crc16(state, &desc[..GROUP_DESC_FIELD]);
    crc16(state, &desc[GROUP_DESC_FIELD + 2..])
}

/// Checksum of a block or inode bitmap: its first `bits / 8` bytes. `bits` is the number of
/// clusters or inodes in a full group.
///
/// # Panics
/// When the bitmap is shorter.
#[must_use]
pub fn bitmap(fs_seed: u32, bitmap: &[u8], bits: u32) -> u32 {
    crc32c_raw(fs_seed, &bitmap[..crate::num::usize_from_u32(bits / 8)])
}

/// Checksum of an inode: the whole slot, with the low half of the stored checksum taken as zero.
/// With `has_high`, its high half is taken as zero, too.
#[must_use]
pub fn inode(seed: u32, slot: &[u8], has_high: bool) -> u32 {
    // Few calls over many bytes are faster than many calls over few bytes. So the fields are
    // cleared in a copy of the bytes around them, and the copy is hashed in one call. A slot of the
    // usual size is copied whole.
    if let Ok(mut copy) = <[u8; 256]>::try_from(slot) {
        clear_inode_fields(&mut copy, 0, has_high);
        return crc32c_raw(seed, &copy);
    }
    const AROUND: Range<usize> = 0x78..0x88;
    let end = slot.len().min(AROUND.end);
    let mut piece = [0; AROUND.end - AROUND.start];
    let piece = &mut piece[..end - AROUND.start];
    piece.copy_from_slice(&slot[AROUND.start..end]);
    clear_inode_fields(piece, AROUND.start, has_high);
    let state = crc32c_raw(seed, &slot[..AROUND.start]);
    crc32c_raw(crc32c_raw(state, piece), &slot[end..])
}

/// Sets the stored checksum of an inode to zero: its low half, and with `has_high` its high half.
/// `piece` is a part of the slot and begins at byte `start` of the slot.
fn clear_inode_fields(piece: &mut [u8], start: usize, has_high: bool) {
    piece[0x7C - start..0x7E - start].fill(0);
    if has_high {
        piece[0x82 - start..0x84 - start].fill(0);
    }
}

/// Offset of an extent block's checksum, after the last entry slot. `None` if `eh_max` leaves no
/// room for a checksum in the block.
#[must_use]
pub fn extent_block_field(block: &[u8]) -> Option<usize> {
    let max = u16::from_le_bytes([*block.get(4)?, *block.get(5)?]);
    let field = 12 + 12 * usize::from(max);
    (field + 4 <= block.len()).then_some(field)
}

/// Checksum of an extent block: header and all entry slots. `None` as in [`extent_block_field`].
#[must_use]
pub fn extent_block(inode_seed: u32, block: &[u8]) -> Option<u32> {
    Some(crc32c_raw(inode_seed, &block[..extent_block_field(block)?]))
}

/// Checksum of a directory leaf: everything before the 12-byte tail.
#[must_use]
pub fn dir_leaf(inode_seed: u32, block: &[u8]) -> u32 {
    crc32c_raw(inode_seed, &block[..block.len().saturating_sub(12)])
}

/// Offset of an index block's tail ({reserved, checksum}), given the offset of its {limit, count}
/// word (32 in a root, 8 in a node). `None` if the count is above the limit, or the limit leaves no
/// room for the tail in the block.
#[must_use]
pub fn htree_tail(block: &[u8], count_offset: usize) -> Option<usize> {
    let head = block.get(count_offset..count_offset + 4)?;
    let limit = usize::from(u16::from_le_bytes([head[0], head[1]]));
    let count = usize::from(u16::from_le_bytes([head[2], head[3]]));
    let tail = count_offset + 8 * limit;
    (count <= limit && tail + 8 <= block.len()).then_some(tail)
}

/// Checksum of an index block: the bytes through the last used entry, the tail's reserved word, and
/// four zero bytes. `None` as in [`htree_tail`].
#[must_use]
pub fn htree(inode_seed: u32, block: &[u8], count_offset: usize) -> Option<u32> {
    let tail = htree_tail(block, count_offset)?;
    let count = usize::from(u16::from_le_bytes([block[count_offset + 2], block[count_offset + 3]]));
    let state = crc32c_raw(inode_seed, &block[..count_offset + 8 * count]);
    let state = crc32c_raw(state, &block[tail..tail + 4]);
    Some(crc32c_raw(state, &[0; 4]))
}

/// Offset of `h_checksum` in an attribute block.
pub const XATTR_BLOCK_FIELD: usize = 0x10;

/// Checksum of an attribute block: the block's number, then the whole block with `h_checksum` taken
/// as zero.
#[must_use]
pub fn xattr_block(fs_seed: u32, number: BlockNr, block: &[u8]) -> u32 {
    let state = crc32c_raw(fs_seed, &number.raw().to_le_bytes());
    crc32c_with_zeroed(state, block, XATTR_BLOCK_FIELD, 4)
}

/// Bytes after the slots of an orphan file block: magic and checksum.
pub(crate) const ORPHAN_TAIL_LEN: usize = 8;

/// Checksum of an orphan file block: the block's number, then the slots. `inode_seed` is the seed
/// of the orphan file's inode.
#[must_use]
pub fn orphan_block(inode_seed: u32, number: BlockNr, block: &[u8]) -> u32 {
    let state = crc32c_raw(inode_seed, &number.raw().to_le_bytes());
    crc32c_raw(state, &block[..(block.len() - ORPHAN_TAIL_LEN) / 4 * 4])
}

/// Checksum of the MMP block: the bytes before the field.
#[must_use]
pub fn mmp(fs_seed: u32, mmp: &[u8; 1024]) -> u32 {
    crc32c_raw(fs_seed, &mmp[..0x3FC])
}

/// Hash of an attribute value that is stored in an inode of its own.
#[must_use]
pub fn ea_inode_hash(fs_seed: u32, value: &[u8]) -> u32 {
    debug_assert!(u64_from_usize(value.len()) <= u64::from(u32::MAX), "attribute values are at most 64 KiB");
    crc32c_raw(fs_seed, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For slots of 128 to 4096 bytes, compares with the crc32c of a copy in which the checksum
    /// fields are zero.
    #[test]
    fn inodes_of_all_sizes_are_hashed_with_their_fields_as_zeroes() {
        for size in (7..=12).map(|log| 1usize << log) {
            let slot: Vec<u8> =
                (0..size).map(|at| crate::num::low8(crate::num::u32_from_usize(at * 7 + 1))).collect();
            for has_high in [false, size > 128] {
                let mut cleared = slot.clone();
                cleared[0x7C..0x7E].fill(0);
                if has_high {
                    cleared[0x82..0x84].fill(0);
                }
                assert_eq!(inode(5, &slot, has_high), crc32c_raw(5, &cleared), "{size} {has_high}");
            }
        }
    }
}
