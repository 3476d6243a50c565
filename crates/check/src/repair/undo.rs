//! The undo file: what blocks held before a repair wrote them, durable before the first write.
//!
//! A head of 4096 bytes (magic, size of the image, number of records, checksum), then records:
//! offset, length, checksum of both and of the old bytes, old bytes. The head is written last. So
//! if saving was interrupted, the file is not an undo file, and nothing was written to the image.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;

use blockyard_device::{BlockDevice, DeviceError, OverlayDevice};
use blockyard_disk::checksum::crc32c_raw;
use blockyard_disk::num::{u32_from_u64, u32_from_usize, u64_from_u32, usize_from_u64};

use super::Plan;

const HEAD: usize = 4096;
const MAGIC: &[u8; 16] = b"blockyard undo 2";
/// Most old bytes in one record.
const RECORD_MAX: u64 = 1 << 20;

/// Why an undo file could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum UndoError {
    /// The undo file cannot be read or written.
    #[error("undo file: {0}")]
    File(#[from] std::io::Error),
    /// The file is not an undo file, is damaged, or is of an image of another size.
    #[error("undo file: {0}")]
    Format(&'static str),
    /// The image cannot be read or written.
    #[error("{0}")]
    Device(#[from] DeviceError),
}

impl Plan<'_> {
    /// Saves to a new file what [`apply`](Plan::apply) will overwrite. The file is durable when
    /// this returns.
    ///
    /// # Errors
    /// [`UndoError`], also when the file exists.
    pub fn save_undo(&self, device: &dyn BlockDevice, path: &Path) -> Result<(), UndoError> {
        let mut ranges = self.overlay.dirty_ranges();
        ranges.insert(0, 0..device.size().min(4096));
        let size = 1 << self.block_bits;
        let log = self.places_of_undo();
        ranges.extend(log.into_iter().map(|block| block * size..((block + 1) * size).min(device.size())));
        save(device, &ranges, path)
    }

    /// As [`save_undo`](Self::save_undo), for an external journal. Makes no file and returns false
    /// if nothing of the journal changes.
    ///
    /// # Errors
    /// As [`save_undo`](Self::save_undo).
    pub fn save_undo_of_journal(&self, journal: &dyn BlockDevice, path: &Path) -> Result<bool, UndoError> {
        let ranges = self.journal.as_ref().map(OverlayDevice::dirty_ranges).unwrap_or_default();
        if ranges.is_empty() {
            return Ok(false);
        }
        save(journal, &ranges, path).map(|()| true)
    }
}

/// Saves ranges of a device in a new file.
fn save(device: &dyn BlockDevice, ranges: &[Range<u64>], path: &Path) -> Result<(), UndoError> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(&[0; HEAD])?;
    let mut records = 0;
    for range in ranges {
        debug_assert!(range.start <= range.end, "a range that ends before it begins: {range:?}");
        let mut at = range.start;
        while at < range.end {
            let length = (range.end - at).min(RECORD_MAX);
            let mut old = vec![0; usize_from_u64(length)];
            device.read_at(at, &mut old)?;
            let length_field = u32_from_u64(length).to_le_bytes();
            file.write_all(&at.to_le_bytes())?;
            file.write_all(&length_field)?;
            file.write_all(&record_sum(at.to_le_bytes(), length_field, &old).to_le_bytes())?;
            file.write_all(&old)?;
            records += 1;
            at += length;
        }
    }
    file.sync_all()?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&head(device.size(), records))?;
    file.sync_all()?;
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

fn record_sum(at: [u8; 8], length: [u8; 4], old: &[u8]) -> u32 {
    crc32c_raw(crc32c_raw(crc32c_raw(!0, &at), &length), old)
}

fn head(size: u64, records: u32) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..16].copy_from_slice(MAGIC);
    head[16..24].copy_from_slice(&size.to_le_bytes());
    head[24..28].copy_from_slice(&records.to_le_bytes());
    let sum = crc32c_raw(!0, &head[..HEAD - 4]);
    head[HEAD - 4..].copy_from_slice(&sum.to_le_bytes());
    head
}

/// Restores an image to what it was when the undo file was made; returns how many bytes were
/// written. Every record is checked before the first write.
///
/// # Errors
/// [`UndoError`]; the image is unchanged after [`UndoError::Format`].
pub fn undo(device: &dyn BlockDevice, path: &Path) -> Result<u64, UndoError> {
    let mut file = File::open(path)?;
    let mut first = [0; HEAD];
    read_whole(&mut file, &mut first)?;
    let records = u32::from_le_bytes([first[24], first[25], first[26], first[27]]);
    if first[..16] != MAGIC[..] || first != head(device.size(), records) {
        return Err(UndoError::Format("not an undo file, or one of an image of another size"));
    }
    for_each_record(&mut file, records, |_, _| Ok(()))?;
    file.seek(SeekFrom::Start(u64_from_u32(u32_from_usize(HEAD))))?;
    let mut bytes = 0;
    for_each_record(&mut file, records, |at, old| {
        bytes += u64_from_u32(u32_from_usize(old.len()));
        Ok(device.write_at(at, old)?)
    })?;
    device.flush()?;
    Ok(bytes)
}

fn read_whole(file: &mut File, bytes: &mut [u8]) -> Result<(), UndoError> {
    file.read_exact(bytes).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => UndoError::Format("it was cut short"),
        _ => error.into(),
    })
}

fn for_each_record(
    file: &mut File,
    records: u32,
    mut visit: impl FnMut(u64, &[u8]) -> Result<(), UndoError>,
) -> Result<(), UndoError> {
    for _ in 0..records {
        let mut fields = [0; 16];
        read_whole(file, &mut fields)?;
        let [a, b, c, d, e, f, g, h, l0, l1, l2, l3, s0, s1, s2, s3] = fields;
        let (at_field, length_field) = ([a, b, c, d, e, f, g, h], [l0, l1, l2, l3]);
        let at = u64::from_le_bytes(at_field);
        let length = u64_from_u32(u32::from_le_bytes(length_field));
        if length > RECORD_MAX {
            return Err(UndoError::Format("a record is too long"));
        }
        let mut old = vec![0; usize_from_u64(length)];
        read_whole(file, &mut old)?;
        if record_sum(at_field, length_field, &old) != u32::from_le_bytes([s0, s1, s2, s3]) {
            return Err(UndoError::Format("a record does not match its checksum"));
        }
        visit(at, &old)?;
    }
    Ok(())
}
