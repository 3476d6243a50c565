//! The checksum of an inode: low half in the fixed part, high half in the extra fields if
//! `i_extra_isize` covers it.

use zerocopy::little_endian::U16;

use super::raw::RawInode;
use super::slot::InodeSlot;
use crate::checksum::{Checksums, compare, object};
use crate::error::{Corruption, CorruptionKind};
use crate::num::{high16, low16};
use crate::units::InodeNr;

impl Checksums {
    /// Compares an inode's checksum. An all-zero slot counts as unused and passes.
    ///
    /// # Errors
    /// [`CorruptionKind::InodeChecksum`].
    pub fn verify_inode<B: AsRef<[u8]>>(
        &self,
        inode: InodeNr,
        slot: &InodeSlot<B>,
    ) -> Result<(), Corruption> {
        let Some(sum) = self.inode(inode, slot) else { return Ok(()) };
        let low = slot.raw().i_checksum_lo.get();
        let matches = if has_wide_inode_checksum(slot) {
            let bytes = slot.bytes();
            let high = u16::from_le_bytes([bytes[0x82], bytes[0x83]]);
            (low16(sum), high16(sum)) == (low, high)
        } else {
            low16(sum) == low
        };
        let unused = || slot.bytes().iter().all(|byte| *byte == 0);
        compare(matches || unused(), CorruptionKind::InodeChecksum).map_err(|found| found.in_inode(inode))
    }

    /// Stores an inode's checksum. Call it after every change of the slot.
    pub fn seal_inode<B: AsRef<[u8]> + AsMut<[u8]>>(&self, inode: InodeNr, slot: &mut InodeSlot<B>) {
        let Some(sum) = self.inode(inode, slot) else { return };
        slot.raw_mut().i_checksum_lo = U16::new(low16(sum));
        if has_wide_inode_checksum(slot) {
            slot.bytes_mut()[0x82..0x84].copy_from_slice(&high16(sum).to_le_bytes());
        }
    }

    fn inode<B: AsRef<[u8]>>(&self, inode: InodeNr, slot: &InodeSlot<B>) -> Option<u32> {
        let seed = self.inode_seed(inode, slot.raw().i_generation.get())?;
        Some(object::inode(seed, slot.bytes(), has_wide_inode_checksum(slot)))
    }
}

/// Whether an inode keeps all 32 bits of its checksum.
fn has_wide_inode_checksum<B: AsRef<[u8]>>(slot: &InodeSlot<B>) -> bool {
    slot.bytes().len() > RawInode::SIZE && slot.extra_isize() >= 4
}
