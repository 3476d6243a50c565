//! The file system's superblock during recovery. A replay may replace it by a logged copy, and must
//! then keep the errors that were recorded outside the journal.

use std::ops::Range;

use blockyard_device::BlockDevice;
use blockyard_disk::num::usize_from_u64;
use blockyard_disk::superblock::{FsState, PRIMARY_OFFSET, RawSuperblock, Superblock};
use blockyard_disk::{BlockNr, Checksums, Incompat};
use zerocopy::{FromBytes, IntoBytes};

use crate::error::Result;

/// Byte offsets of the superblock's record of the first and the last error.
const ERROR_RECORD: Range<usize> = 0x194..0x200;

/// Byte offsets of the rest of that record: the high bytes of its times, and its error codes.
const ERROR_RECORD_MORE: Range<usize> = 0x278..0x27C;

/// Reads and verifies the primary superblock.
pub(crate) fn read(device: &dyn BlockDevice) -> Result<Superblock> {
    let mut bytes = [0; RawSuperblock::SIZE];
    device.read_at(PRIMARY_OFFSET, &mut bytes)?;
    Ok(Superblock::parse(&bytes)?)
}

/// The block that holds the primary superblock, and the superblock's bytes in that block.
pub(crate) fn place(block_size: usize) -> (BlockNr, Range<usize>) {
    let start = usize_from_u64(PRIMARY_OFFSET);
    let inside = start % block_size;
    (BlockNr::new(u64::from(start == block_size)), inside..inside + RawSuperblock::SIZE)
}

/// If `before` records errors, copies the record and the ERROR state to `after`. Both may have been
/// written outside the journal, so a logged copy of the superblock may lack them.
pub(crate) fn carry_errors(before: &RawSuperblock, after: &mut RawSuperblock) {
    let has_error = before.state().contains(FsState::ERROR);
    if before.s_error_count.get() != 0 || has_error {
        for field in [ERROR_RECORD, ERROR_RECORD_MORE] {
            after.as_mut_bytes()[field.clone()].copy_from_slice(&before.as_bytes()[field]);
        }
    }
    if has_error {
        set_error_state(after);
    }
}

/// Marks the file system as having errors.
pub(crate) fn set_error_state(sb: &mut RawSuperblock) {
    sb.set_state(sb.state() | FsState::ERROR);
}

/// Sets or clears RECOVER.
pub(crate) fn set_recover(sb: &mut RawSuperblock, needed: bool) {
    let mut incompat = sb.incompat();
    incompat.set(Incompat::RECOVER, needed);
    sb.set_incompat(incompat);
}

/// Stores the checksum; call it after every change.
pub(crate) fn seal(sb: &mut RawSuperblock) {
    Checksums::of(sb).seal_superblock(sb);
}

/// Reads and verifies the superblock in a block, at the range that [`place`] returns.
pub(crate) fn from_block(block: &[u8], inside: Range<usize>) -> Result<Superblock, blockyard_disk::Error> {
    let raw = RawSuperblock::read_from_bytes(&block[inside]).expect("the range has the size of a superblock");
    Superblock::verify(raw)
}
