//! The marks of the superblock that say how a check ended: clean or not, when, and which errors
//! were recorded.

use std::ops::Range;

use blockyard_device::BlockDevice;
use blockyard_disk::RoCompat;
use blockyard_disk::superblock::{FsState, RawSuperblock};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U16;

use super::editor;
use crate::Error;

/// Bytes of the superblock that record errors: the count with the first and the last error, and the
/// high bytes of their times with their codes.
const ERROR_RECORDS: [Range<usize>; 2] = [0x194..0x200, 0x278..0x27C];

/// Marks a file system with errors as not clean; an error mark on the device stays. Returns whether
/// this changes the marks that the superblock on the device has.
pub(super) fn take_mark(device: &dyn BlockDevice, overlay: &dyn BlockDevice) -> Result<bool, Error> {
    let Some(sb) = editor::sound_superblock(overlay) else { return Ok(false) };
    let before = editor::sound_superblock(device).map(|sb| sb.state());
    let error = before.unwrap_or(FsState::empty()) & FsState::ERROR;
    let state = sb.state().difference(FsState::VALID) | error;
    debug_assert!(!state.contains(FsState::VALID), "errors are left: {state:?}");
    editor::change_superblock(overlay, |sb| sb.set_state(state))?;
    Ok(before != Some(state))
}

/// Marks a file system without errors as clean, and clears its record of errors. Returns false if
/// it was marked clean already and had no such record.
pub(super) fn set_mark(device: &dyn BlockDevice, now: u64) -> Result<bool, Error> {
    let Some(sb) = editor::sound_superblock(device) else { return Ok(false) };
    let is_clean = sb.state().contains(FsState::VALID) && !sb.state().contains(FsState::ERROR);
    if is_clean && sb.s_error_count.get() == 0 {
        return Ok(false);
    }
    editor::change_superblock(device, |sb| mark_clean(sb, now))?;
    Ok(true)
}

/// Whether the superblock says that the file system was not closed.
pub(super) fn is_open(device: &dyn BlockDevice) -> bool {
    editor::sound_superblock(device).is_some_and(|sb| !sb.state().contains(FsState::VALID))
}

/// Marks the file system as checked and clean. As in e2fsck, this also clears the record of errors.
pub(super) fn mark_clean(sb: &mut RawSuperblock, now: u64) {
    sb.set_state(sb.state().difference(FsState::ERROR | FsState::ORPHAN) | FsState::VALID);
    debug_assert!(!sb.state().contains(FsState::ERROR), "clean with errors");
    for record in ERROR_RECORDS {
        debug_assert!(record.end <= RawSuperblock::SIZE, "{record:?} is no part of the superblock");
        sb.as_mut_bytes()[record].fill(0);
    }
    mark_checked(sb, now);
}

/// Records that a whole check ended now.
pub(super) fn mark_checked(sb: &mut RawSuperblock, now: u64) {
    sb.s_mnt_count = U16::new(0);
    sb.set_check_time(now);
    sb.set_write_time(now);
}

/// Whether a superblock says that deletions or truncations have to be finished.
pub(super) fn has_orphans(sb: &RawSuperblock) -> bool {
    sb.s_last_orphan.get() != 0 || sb.ro_compat().contains(RoCompat::ORPHAN_PRESENT)
}
