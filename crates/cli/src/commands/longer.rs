//! A device for an image that was truncated. It can be as long as the file system: bytes past the
//! end of the file read as zeroes, and can be written only after [`Longer::grow`] has made the file
//! longer.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use anyhow::Context;
use blockyard_device::{BlockDevice, DeviceError, DeviceId, FileDevice, ImagePath, check_range};
use blockyard_disk::num::{u64_from_usize, usize_from_u64};

/// An image. The constructors decide whether this device is as long as the file system or only as
/// long as the image.
pub(super) struct Longer {
    below: FileDevice,
    size: u64,
    /// Once the file has been made longer: the file, and the byte in it where the device begins.
    grown: OnceLock<(File, u64)>,
}

impl Longer {
    /// A device as long as the superblock claims, or as long as `below` if that is longer.
    pub(super) fn as_claimed(below: FileDevice) -> Self {
        // No file is longer than `i64::MAX` bytes, so a superblock that claims more is wrong.
        let possible = |bytes: &u64| i64::try_from(*bytes).is_ok();
        let claimed = blockyard_check::claimed_bytes(&below).filter(possible).unwrap_or(0);
        let size = claimed.max(below.size());
        Self { below, size, grown: OnceLock::new() }
    }

    /// A device as long as `below`, whatever the superblock claims.
    pub(super) fn as_it_is(below: FileDevice) -> Self {
        let size = below.size();
        Self { below, size, grown: OnceLock::new() }
    }

    /// [`Self::as_claimed`] if the image ends where its file ends, else [`Self::as_it_is`], because
    /// bytes after a partition do not belong to the image.
    pub(super) fn as_file_can_be(below: FileDevice, path: &ImagePath) -> Self {
        let end = path.offset().checked_add(below.size());
        let is_last =
            std::fs::metadata(path.file()).is_ok_and(|data| data.is_file() && Some(data.len()) == end);
        if is_last { Self::as_claimed(below) } else { Self::as_it_is(below) }
    }

    /// The length of the image itself, if that is less than the length of this device.
    pub(super) fn cut_at(&self) -> Option<u64> {
        Some(self.below.size()).filter(|length| *length < self.size)
    }

    /// Makes the file so long that it holds all bytes of this device.
    pub(super) fn grow(&self, path: &ImagePath) -> anyhow::Result<()> {
        if self.cut_at().is_none() || self.grown.get().is_some() {
            return Ok(());
        }
        let shown = || path.display().to_string();
        let file = File::options().read(true).write(true).open(path.file()).with_context(shown)?;
        let end = path.offset().saturating_add(self.size);
        debug_assert!(file.metadata().is_ok_and(|data| data.len() < end), "{end} bytes would be shorter");
        let before = file.metadata().with_context(shown)?.len();
        if let Err(error) = file.set_len(end).and_then(|()| file.sync_all()) {
            // The image is left as it was: the caller now removes the undo file.
            let _ = file.set_len(before);
            return Err(error).with_context(shown);
        }
        let _ = self.grown.set((file, path.offset()));
        eprintln!("blockyard: {}: was cut short; made {} bytes long again", shown(), self.size);
        Ok(())
    }

    /// How many of the `length` bytes at `offset` lie within the device below.
    fn there(&self, offset: u64, length: usize) -> usize {
        usize_from_u64(self.below.size().saturating_sub(offset).min(u64_from_usize(length)))
    }

    /// The file that serves bytes past the end of the device below, and the position of `offset` in
    /// that file. `None` until [`Self::grow`] has made the file longer.
    fn behind(&self, offset: u64) -> Option<(&File, u64)> {
        self.grown.get().map(|(file, start)| (file, start + offset))
    }

    const fn refused(operation: &'static str, offset: u64) -> DeviceError {
        DeviceError::ReadOnly { operation, offset }
    }
}

impl BlockDevice for Longer {
    fn size(&self) -> u64 {
        self.size
    }

    fn is_read_only(&self) -> bool {
        self.below.is_read_only()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        check_range("read", offset, buf.len(), self.size)?;
        let (there, missing) = buf.split_at_mut(self.there(offset, buf.len()));
        if !there.is_empty() {
            self.below.read_at(offset, there)?;
        }
        missing.fill(0);
        let at = offset + u64_from_usize(there.len());
        match self.behind(at).filter(|_| !missing.is_empty()) {
            None => Ok(()),
            Some((file, place)) => {
                let length = u64_from_usize(missing.len());
                let read = file.read_exact_at(missing, place);
                read.map_err(|source| DeviceError::Io { operation: "read", offset: at, length, source })
            }
        }
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        check_range("write", offset, data.len(), self.size)?;
        let (there, missing) = data.split_at(self.there(offset, data.len()));
        if !there.is_empty() {
            self.below.write_at(offset, there)?;
        }
        if missing.is_empty() {
            return Ok(());
        }
        let at = offset + u64_from_usize(there.len());
        let (file, place) = self.behind(at).ok_or(Self::refused("write", at))?;
        let (length, written) = (u64_from_usize(missing.len()), file.write_all_at(missing, place));
        written.map_err(|source| DeviceError::Io { operation: "write", offset: at, length, source })
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        check_range("write zeroes", offset, length, self.size)?;
        if offset + length <= self.below.size() {
            return self.below.write_zeroes(offset, length);
        }
        let mut at = offset;
        while at < offset + length {
            let piece = (offset + length - at).min(1 << 20);
            self.write_at(at, &vec![0; usize_from_u64(piece)])?;
            at += piece;
        }
        Ok(())
    }

    fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        check_range("discard", offset, length, self.size)?;
        // Bytes past the device below are not discarded. `grow` added them as a hole, so only those
        // that a repair wrote take space.
        let there = self.below.size().saturating_sub(offset).min(length);
        if there == 0 { Ok(()) } else { self.below.discard(offset, there) }
    }

    fn flush(&self) -> Result<(), DeviceError> {
        // `below` and `grown` are the same file, so one flush is enough.
        self.below.flush()
    }

    fn identity(&self) -> DeviceId {
        self.below.identity()
    }
}
