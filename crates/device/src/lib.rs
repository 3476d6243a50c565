//! Block devices: the trait through which everything above reads and writes, and its
//! implementations.
//!
//! Offsets and lengths are bytes. Devices are shared (`&self`) between threads. Two operations on
//! disjoint ranges never disturb each other. A read sees every write that returned before the read
//! began.
//!
//! | kind | what for |
//! |---|---|
//! | [`FileDevice`] | image files and block devices, or parts of them ([`ImagePath`]) |
//! | [`MemoryDevice`] | sparse image in memory, loaded from and saved to sparse files |
//! | [`RecorderDevice`] | logs writes and flushes; rebuilds what a power cut could have left |
//! | [`FaultyDevice`] | fails on purpose, and counts operations |
//! | [`StallingDevice`] | stops answering until it is told to answer again |
//! | [`Modelled`](modelled::Modelled) | takes time by a clock of its own, as a disk, an SSD or a network disk would |
//! | [`OverlayDevice`] | copy-on-write view of another device: look at the result before (or instead of) writing it |

#![deny(unsafe_code)]

mod claim;
mod clone_range;
mod faulty;
mod file;
mod image_path;
pub mod in_use;
mod memory;
pub mod modelled;
mod overlay;
mod pages;
mod partitions;
mod random;
mod recorder;
mod stalling;
mod stripe;

use blockyard_disk::num::u64_from_usize;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

pub use claim::{Claim, DeviceId};
pub use faulty::{Effect, Fault, FaultyDevice, Operation, OperationCounts, When};
pub use file::FileDevice;
pub use image_path::{BadOffset, ImagePath};
pub use memory::MemoryDevice;
pub use overlay::OverlayDevice;
pub use partitions::{PartitionTable, TableKind};
pub use recorder::{CrashPlan, CrashState, Event, Piece, RecorderDevice, Step, WriteLog};
pub use stalling::StallingDevice;

/// Errors of a device, with the operation and the position.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The file or block device cannot be opened or made.
    #[error("cannot open {}: {source}", path.display())]
    Open {
        /// The file or block device.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The operation reaches past the end of the device.
    #[error(
        "{operation} of {length} bytes at byte {offset} reaches past the end of the device ({size} bytes)"
    )]
    OutOfRange {
        /// What was tried: `read`, `write`, `write zeroes`, ...
        operation: &'static str,
        /// First byte.
        offset: u64,
        /// Bytes asked for.
        length: u64,
        /// Size of the device in bytes.
        size: u64,
    },
    /// The operating system or an injected fault refused the operation.
    #[error("{operation} of {length} bytes at byte {offset} failed: {source}")]
    Io {
        /// What was tried.
        operation: &'static str,
        /// First byte.
        offset: u64,
        /// Bytes asked for.
        length: u64,
        /// The cause.
        source: std::io::Error,
    },
    /// A write to a device that was opened read-only.
    #[error("{operation} at byte {offset}: the device is read-only")]
    ReadOnly {
        /// What was tried.
        operation: &'static str,
        /// First byte.
        offset: u64,
    },
    /// Somebody else uses the device, in a way that excludes this use.
    #[error("the device is in use: {0}")]
    Busy(&'static str),
}

impl DeviceError {
    /// Whether the device is used by somebody else.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        match self {
            Self::Busy(_) => true,
            Self::Open { source, .. } => source.kind() == std::io::ErrorKind::ResourceBusy,
            Self::OutOfRange { .. } | Self::Io { .. } | Self::ReadOnly { .. } => false,
        }
    }
}

/// Result of a device operation.
pub type Result<T> = std::result::Result<T, DeviceError>;

/// A device of bytes with a volatile write cache: written data is durable only after a
/// [`flush`](Self::flush), or if written by [`write_durable_at`](Self::write_durable_at).
///
/// A device that passes writes on to a device below also passes on [`identity`](Self::identity), so
/// that only one of the two is opened for writing. It should pass on the other provided methods,
/// too: by default, each part of a vectored write is a write of its own, a durable write is
/// followed by a flush, and nothing is shared.
pub trait BlockDevice: Send + Sync {
    /// Size in bytes.
    fn size(&self) -> u64;

    /// Whether writes are refused.
    fn is_read_only(&self) -> bool;

    /// Fills all of `buf` from byte `offset` on.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`], [`DeviceError::Io`].
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Writes all of `data` at byte `offset`.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`], [`DeviceError::ReadOnly`], [`DeviceError::Io`]; after an error
    /// the range holds any mix of old and new sectors.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()>;

    /// Writes `parts` one after the other, the first at byte `offset`. Each part may be a separate
    /// write, as in the default implementation.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]]) -> Result<()> {
        let mut at = offset;
        for part in parts {
            self.write_at(at, part)?;
            at += u64_from_usize(part.len());
        }
        Ok(())
    }

    /// As [`write_at`](Self::write_at), and durable when it returns (force unit access). Other
    /// writes may stay volatile. The default writes, then flushes.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    fn write_durable_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.write_at(offset, data)?;
        self.flush()
    }

    /// Makes a range hold the content of `file` from its byte `from` on, without a copy: the device
    /// and the file share the storage until one of them is written to. Returns `false` if that is
    /// not possible; the caller then writes the whole range. The default always returns `false`.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`], [`DeviceError::ReadOnly`].
    fn share_from(&self, offset: u64, length: u64, file: BorrowedFd<'_>, from: u64) -> Result<bool> {
        let _ = (offset, length, file, from);
        Ok(false)
    }

    /// Makes a range read as zeroes, and frees its storage if the device can.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    fn write_zeroes(&self, offset: u64, length: u64) -> Result<()>;

    /// Tells the device that the content of a range is no longer needed. What the range reads as
    /// afterwards is undefined.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    fn discard(&self, offset: u64, length: u64) -> Result<()>;

    /// Makes every write that has returned durable.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    fn flush(&self) -> Result<()>;

    /// What tells this device from others. A view that writes to the device below has the identity
    /// of that device. The default is right for every other device.
    fn identity(&self) -> DeviceId {
        DeviceId::of(self)
    }
}

/// Checks that a range lies on a device of `size` bytes. `operation` is what the error names.
///
/// # Errors
/// [`DeviceError::OutOfRange`].
pub fn check_range<L: TryInto<u64>>(
    operation: &'static str,
    offset: u64,
    length: L,
    size: u64,
) -> Result<()> {
    let length = length.try_into().unwrap_or(u64::MAX);
    match offset.checked_add(length) {
        Some(end) if end <= size => Ok(()),
        _ => Err(DeviceError::OutOfRange { operation, offset, length, size }),
    }
}

/// Forwards every method through a pointer.
macro_rules! forward_through_pointer {
    ($($pointer:ty),*) => {$(
        impl<D: BlockDevice + ?Sized> BlockDevice for $pointer {
            fn size(&self) -> u64 {
                (**self).size()
            }
            fn is_read_only(&self) -> bool {
                (**self).is_read_only()
            }
            fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
                (**self).read_at(offset, buf)
            }
            fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
                (**self).write_at(offset, data)
            }
            fn write_vectored_at(&self, offset: u64, parts: &[&[u8]]) -> Result<()> {
                (**self).write_vectored_at(offset, parts)
            }
            fn write_durable_at(&self, offset: u64, data: &[u8]) -> Result<()> {
                (**self).write_durable_at(offset, data)
            }
            fn share_from(&self, offset: u64, length: u64, file: BorrowedFd<'_>, from: u64) -> Result<bool> {
                (**self).share_from(offset, length, file, from)
            }
            fn write_zeroes(&self, offset: u64, length: u64) -> Result<()> {
                (**self).write_zeroes(offset, length)
            }
            fn discard(&self, offset: u64, length: u64) -> Result<()> {
                (**self).discard(offset, length)
            }
            fn flush(&self) -> Result<()> {
                (**self).flush()
            }
            fn identity(&self) -> DeviceId {
                (**self).identity()
            }
        }
    )*};
}

forward_through_pointer!(&D, Box<D>, std::sync::Arc<D>);
