//! Location of an image: a file or block device, and the byte at which the image begins in it.
//!
//! The form is that of e2fsprogs: `disk.img?offset=1048576`. If a file of that very name exists,
//! the name means that file. Every command that takes an image parses its operand here, so the form
//! means the same everywhere.
//!
//! If the offset is not 0 and a partition begins there, the image ends where the partition ends.
//! Otherwise the image ends where the file ends.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::{FileDevice, Result};

/// The separator between the file and the number.
const MARK: &[u8] = b"?offset=";

/// A file or block device, and the first byte of the image in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImagePath {
    given: PathBuf,
    file: PathBuf,
    offset: u64,
}

/// An invalid offset.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "?offset={0}: not a number of bytes; a suffix k, m, g or t may follow it, or s for sectors of 512 bytes"
)]
pub struct BadOffset(String);

impl ImagePath {
    /// Parses an operand of the command line.
    ///
    /// # Errors
    /// [`BadOffset`] if no number of bytes follows `?offset=`.
    pub fn parse(given: &OsStr) -> std::result::Result<Self, BadOffset> {
        let bytes = given.as_bytes();
        let mark = bytes.windows(MARK.len()).rposition(|window| window == MARK);
        let Some(mark) = mark.filter(|_| std::fs::symlink_metadata(given).is_err()) else {
            return Ok(Self::whole(given));
        };
        let number = &bytes[mark + MARK.len()..];
        let offset = byte_count(number).ok_or_else(|| BadOffset(String::from_utf8_lossy(number).into()))?;
        let file = OsString::from_vec(bytes[..mark].to_vec()).into();
        Ok(Self { given: given.into(), file, offset })
    }

    /// The whole of a file or device.
    pub fn whole(file: impl Into<PathBuf>) -> Self {
        Self::at(file, 0)
    }

    /// The part of a file or device from byte `offset` on.
    pub fn at(file: impl Into<PathBuf>, offset: u64) -> Self {
        let file = file.into();
        Self { given: file.clone(), file, offset }
    }

    /// The file or device alone.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The byte at which the image begins.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// The operand or path as it was given, for messages.
    pub fn display(&self) -> std::path::Display<'_> {
        self.given.display()
    }

    /// Opens the image for reading only; takes no lock.
    ///
    /// # Errors
    /// [`DeviceError::Open`](crate::DeviceError::Open), also when the file ends before the image
    /// begins; errors of reading the partition table.
    pub fn open_read_only(&self) -> Result<FileDevice> {
        self.narrow(FileDevice::open_read_only(&self.file)?)
    }

    /// Opens the image for reading and writing, with the exclusive lock on the whole file or
    /// device.
    ///
    /// # Errors
    /// As [`Self::open_read_only`]; also when somebody holds the lock, the block device is in use,
    /// or the file backs a loop device.
    pub fn open(&self) -> Result<FileDevice> {
        self.narrow(FileDevice::open(&self.file)?)
    }

    /// Creates the image, and takes the exclusive lock. In a file, the image becomes a hole of
    /// `size` bytes: everything from its first byte on is lost, and what precedes it stays. A block
    /// device keeps its content, and must be large enough for the image.
    ///
    /// # Errors
    /// As [`FileDevice::create`].
    pub fn create(&self, size: u64) -> Result<FileDevice> {
        FileDevice::create_at(&self.file, self.offset, size)
    }

    fn narrow(&self, device: FileDevice) -> Result<FileDevice> {
        device.part_at(self.offset)
    }
}

impl From<PathBuf> for ImagePath {
    fn from(file: PathBuf) -> Self {
        Self::whole(file)
    }
}

/// A number of bytes: decimal, optionally with a suffix, or hexadecimal after `0x`.
fn byte_count(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    if let Some(digits) = text.strip_prefix("0x").filter(|digits| !digits.starts_with('+')) {
        return u64::from_str_radix(digits, 16).ok();
    }
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let unit: u64 = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "s" => 512,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        "t" => 1 << 40,
        _ => return None,
    };
    if digits.starts_with('+') {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BlockDevice;

    #[test]
    fn offsets_are_read_and_real_names_win() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).into_os_string();
        for (name, file, offset) in [
            ("a", "a", 0),
            ("a?offset=0", "a", 0),
            ("a?offset=1048576", "a", 1 << 20),
            ("a?offset=1M", "a", 1 << 20),
            ("a?offset=2048s", "a", 1 << 20),
            ("a?offset=0x100000", "a", 1 << 20),
            ("a?offset=1?offset=2k", "a?offset=1", 2048),
        ] {
            let found = ImagePath::parse(&path(name)).unwrap();
            assert_eq!((found.file(), found.offset()), (Path::new(&path(file)), offset), "{name}");
        }
        for wrong in ["", "-1", "+1", "1x", "0x", "0x+1", "1.5m", "99999999t"] {
            assert!(ImagePath::parse(&path(&format!("a?offset={wrong}"))).is_err(), "{wrong}");
        }
        std::fs::write(path("a?offset=1M"), "").unwrap();
        assert_eq!(ImagePath::parse(&path("a?offset=1M")).unwrap().offset(), 0);
    }

    #[test]
    fn what_lies_before_an_image_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        std::fs::write(&path, [7; 8192]).unwrap();
        let image = ImagePath::parse(&[path.as_os_str(), OsStr::new("?offset=4096")].concat_os()).unwrap();
        let device = image.create(8192).unwrap();
        device.write_at(0, &[9; 512]).unwrap();
        device.write_zeroes(256, 256).unwrap();
        assert!(device.write_at(8000, &[0; 512]).is_err());
        drop(device);
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 12288);
        assert!(
            bytes[..4096].iter().all(|byte| *byte == 7) && bytes[4096..4352].iter().all(|byte| *byte == 9)
        );
        assert!(bytes[4352..].iter().all(|byte| *byte == 0));
        let device = image.open_read_only().unwrap();
        assert_eq!(device.size(), 8192);
        let mut data = Vec::new();
        device
            .for_each_data(|at, bytes| {
                data.push((at, bytes.len()));
                Ok(())
            })
            .unwrap();
        assert!(data.iter().all(|(at, length)| at + u64::try_from(*length).unwrap() <= 8192), "{data:?}");
        drop(device);
        assert!(
            ImagePath::parse(&[path.as_os_str(), OsStr::new("?offset=1g")].concat_os())
                .unwrap()
                .open()
                .is_err()
        );
    }

    trait ConcatOs {
        fn concat_os(&self) -> OsString;
    }

    impl ConcatOs for [&OsStr; 2] {
        fn concat_os(&self) -> OsString {
            self.iter().copied().collect()
        }
    }
}
