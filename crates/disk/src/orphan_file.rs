//! One block of the orphan file: slots for inode numbers, then a magic number and a checksum in the
//! last eight bytes.

use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use crate::error::{Corruption, CorruptionKind};
use crate::layout::on_disk;
use crate::units::InodeNr;

on_disk! {
    /// The last eight bytes of an orphan file block.
    pub struct RawOrphanTail[8] {
        /// 0x0B10CA04.
        0 ob_magic: U32,
        /// crc32c of the slots, seeded with the orphan file's inode and the block's number.
        4 ob_checksum: U32,
    }
}

/// `ob_magic`.
pub const MAGIC: u32 = 0x0B10_CA04;

/// Slots for inode numbers in one block.
#[must_use]
pub const fn slots_per_block(block_size: usize) -> usize {
    (block_size - RawOrphanTail::SIZE) / 4
}

/// A block of the orphan file whose magic was checked.
#[derive(Clone, Copy, Debug)]
pub struct OrphanBlock<'a> {
    slots: &'a [U32],
}

impl<'a> OrphanBlock<'a> {
    /// Checks the magic of a whole block.
    ///
    /// # Errors
    /// [`CorruptionKind::OrphanBlockMagic`].
    pub fn parse(block: &'a [u8]) -> Result<Self, Corruption> {
        let bad = Corruption::new(CorruptionKind::OrphanBlockMagic);
        let (slots, tail) = block.split_at_checked(slots_per_block(block.len().max(8)) * 4).ok_or(bad)?;
        let tail = RawOrphanTail::ref_from_bytes(tail).map_err(|_| bad)?;
        if tail.ob_magic.get() != MAGIC {
            return Err(bad);
        }
        Ok(Self { slots: <[U32]>::ref_from_bytes(slots).map_err(|_| bad)? })
    }

    /// The inode numbers in used (nonzero) slots, in slot order; not verified.
    pub fn inodes(&self) -> impl Iterator<Item = InodeNr> + use<'a> {
        self.slots.iter().map(|slot| InodeNr::new(slot.get())).filter(|inode| *inode != InodeNr::ZERO)
    }
}
