//! `FICLONERANGE`, which has no safe wrapper: the only unsafe code of this crate.

#![allow(unsafe_code)]

use rustix::ioctl::{self, Opcode, Setter};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// `struct file_clone_range` of ioctl_ficlonerange(2).
#[repr(C)]
struct CloneRange {
    file: i64,
    from: u64,
    length: u64,
    to: u64,
}

const FICLONERANGE: Opcode = ioctl::opcode::write::<CloneRange>(0x94, 13);

/// Makes `length` bytes of `into`, from byte `to` on, share the storage of `length` bytes of
/// `file`, from byte `from` on. After an error, a part of the range may be shared.
pub(crate) fn clone_range(
    into: impl AsFd,
    to: u64,
    length: u64,
    file: BorrowedFd<'_>,
    from: u64,
) -> rustix::io::Result<()> {
    let range = CloneRange { file: file.as_raw_fd().into(), from, length, to };
    // SAFETY: `FICLONERANGE` reads a `struct file_clone_range`, and `CloneRange` has its layout.
    // The kernel keeps no pointer to it. Both files stay open during the call.
    unsafe { ioctl::ioctl(into, Setter::<FICLONERANGE, CloneRange>::new(range)) }
}
