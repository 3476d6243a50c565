//! The undo file: what blocks held before a repair wrote them, durable before the first write.
//!
//! A head of 4096 bytes (magic, size of the image, number of records, states, checksum), then
//! records: offset, length, checksum of both and of the old bytes, old bytes. The head is written
//! last. So if saving was interrupted, the file is not an undo file, and nothing was written to the
//! image.
//!
//! The states say which image the file is of, and that nobody used it since: checksums of the
//! sectors that whoever uses the image changes, before the repair, after the replay of the journal,
//! and after the repair. A cut repair may leave each of these sectors in another of these states.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;

use blockyard_device::{BlockDevice, DeviceError, OverlayDevice};
use blockyard_disk::Incompat;
use blockyard_disk::checksum::crc32c_raw;
use blockyard_disk::num::{
    u32_from_u64, u32_from_usize, u64_from_u32, u64_from_usize, usize_from_u32, usize_from_u64,
};
use blockyard_disk::superblock::{FsState, PRIMARY_OFFSET, RawSuperblock};
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use super::{Plan, redo};
use crate::finding::Sink;
use crate::replay;

const HEAD: usize = 4096;
const MAGIC: &[u8; 16] = b"blockyard undo 2";
/// Where the states begin in the head: offset of the first sector, sectors, states, checksums.
const STATES: usize = 28;
/// A device writes a sector whole.
const SECTOR: u64 = 512;
/// Most sectors whose states are kept.
const SECTORS_MAX: u64 = 8;
/// Before, after the replay, and after the repair.
const STATES_MAX: u32 = 3;
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
    /// The image is not as the repair found or left it: see [`undo_forced`].
    #[error("the image was changed after the repair, or is another one than the undo file's")]
    Changed,
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
        let mut states = States::new(Sectors::SUPERBLOCK);
        states.add(device)?;
        if self.is_replayed() {
            states.add(&self.replayed(device))?;
        }
        states.add(&self.overlay)?;
        save(device, &ranges, &states, path)
    }

    /// The device as the replay of the journal leaves it.
    fn replayed<'d>(&self, device: &'d dyn BlockDevice) -> OverlayDevice<&'d dyn BlockDevice> {
        let image = OverlayDevice::new(device);
        let journal = self.journal.as_ref().map(|journal| OverlayDevice::new(*journal.below()));
        replay::replay_over(&image, journal.as_ref(), &mut Sink::default());
        image
    }

    /// As [`save_undo`](Self::save_undo), for an external journal. Makes no file and returns false
    /// if nothing of the journal changes.
    ///
    /// # Errors
    /// As [`save_undo`](Self::save_undo).
    pub fn save_undo_of_journal(&self, journal: &dyn BlockDevice, path: &Path) -> Result<bool, UndoError> {
        let ranges = self.journal.as_ref().map(OverlayDevice::dirty_ranges).unwrap_or_default();
        let (Some(first), Some(planned)) = (ranges.first(), &self.journal) else { return Ok(false) };
        let mut states = States::new(Sectors::beginning(first));
        states.add(journal)?;
        states.add(planned)?;
        save(journal, &ranges, &states, path).map(|()| true)
    }
}

/// Sectors that whoever uses a device changes: the superblock of a file system, or what a repair
/// changes first in a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sectors {
    first: u64,
    count: u64,
}

impl Sectors {
    const SUPERBLOCK: Self = Self { first: PRIMARY_OFFSET, count: 2 };

    fn beginning(range: &Range<u64>) -> Self {
        assert!(range.start < range.end, "an empty range: {range:?}");
        Self { first: range.start, count: (range.end - range.start).div_ceil(SECTOR).min(SECTORS_MAX) }
    }

    /// The checksums of the sectors.
    fn state_of(self, device: &dyn BlockDevice) -> Result<Vec<u32>, DeviceError> {
        let mut bytes = vec![0; usize_from_u64(self.count * SECTOR)];
        let length = device.size().saturating_sub(self.first).min(self.count * SECTOR);
        device.read_at(self.first, &mut bytes[..usize_from_u64(length)])?;
        if self == Self::SUPERBLOCK {
            forget_marks(&mut bytes);
        }
        Ok(bytes.chunks(usize_from_u64(SECTOR)).map(|sector| crc32c_raw(!0, sector)).collect())
    }
}

/// Removes from a superblock what a repair writes there before it is done.
fn forget_marks(bytes: &mut [u8]) {
    let (sb, _) = RawSuperblock::mut_from_prefix(bytes).expect("two sectors are a superblock");
    sb.set_state(sb.state().difference(FsState::VALID | FsState::ERROR));
    sb.set_incompat(sb.incompat().difference(Incompat::RECOVER));
    redo::forget(sb);
    sb.s_checksum = U32::ZERO;
}

/// The states in which a repair may leave sectors.
#[derive(Debug)]
struct States {
    sectors: Sectors,
    sums: Vec<Vec<u32>>,
}

impl States {
    fn new(sectors: Sectors) -> Self {
        Self { sectors, sums: Vec::new() }
    }

    fn add(&mut self, device: &dyn BlockDevice) -> Result<(), DeviceError> {
        self.sums.push(self.sectors.state_of(device)?);
        Ok(())
    }

    /// Whether each sector of a device is in one of the states.
    fn hold(&self, device: &dyn BlockDevice) -> Result<bool, DeviceError> {
        let now = self.sectors.state_of(device)?;
        Ok(now.iter().enumerate().all(|(nth, sum)| self.sums.iter().any(|state| state[nth] == *sum)))
    }

    fn put(&self, head: &mut [u8; HEAD]) {
        let counts = [self.sectors.count, u64_from_usize(self.sums.len())].map(u32_from_u64);
        let sums = counts.iter().chain(self.sums.iter().flatten()).flat_map(|word| word.to_le_bytes());
        let bytes = self.sectors.first.to_le_bytes().into_iter().chain(sums);
        head[STATES..].iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
    }

    /// Reads what [`put`](Self::put) wrote; `None` if that is impossible.
    fn of(head: &[u8; HEAD]) -> Option<Self> {
        let (first, rest) = u64::read_from_prefix(&head[STATES..]).ok()?;
        let word = |at: usize| U32::read_from_bytes(rest.get(4 * at..4 * at + 4)?).ok().map(U32::get);
        let (count, states) = (word(0)?, word(1)?);
        if count == 0 || u64_from_u32(count) > SECTORS_MAX || states > STATES_MAX {
            return None;
        }
        let sectors = Sectors { first: u64::from_le(first), count: u64_from_u32(count) };
        let count = usize_from_u32(count);
        let state = |nth: usize| (0..count).map(|at| word(2 + nth * count + at)).collect();
        let sums = (0..usize_from_u32(states)).map(state).collect::<Option<Vec<Vec<u32>>>>()?;
        Some(Self { sectors, sums })
    }
}

/// Saves ranges of a device in a new file. After an error there is no file.
fn save(
    device: &dyn BlockDevice,
    ranges: &[Range<u64>],
    states: &States,
    path: &Path,
) -> Result<(), UndoError> {
    let file = OpenOptions::new().write(true).create_new(true).open(path)?;
    let done = save_in(file, device, ranges, states).and_then(|()| sync_folder(path));
    if done.is_err() {
        // Half a file is of no use, and would refuse the next repair.
        let _ = std::fs::remove_file(path);
    }
    done
}

fn save_in(
    mut file: File,
    device: &dyn BlockDevice,
    ranges: &[Range<u64>],
    states: &States,
) -> Result<(), UndoError> {
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
    file.write_all(&head(device.size(), records, states))?;
    file.sync_all()?;
    Ok(())
}

fn sync_folder(path: &Path) -> Result<(), UndoError> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

fn record_sum(at: [u8; 8], length: [u8; 4], old: &[u8]) -> u32 {
    crc32c_raw(crc32c_raw(crc32c_raw(!0, &at), &length), old)
}

fn head(size: u64, records: u32, states: &States) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..16].copy_from_slice(MAGIC);
    head[16..24].copy_from_slice(&size.to_le_bytes());
    head[24..28].copy_from_slice(&records.to_le_bytes());
    states.put(&mut head);
    let sum = crc32c_raw(!0, &head[..HEAD - 4]);
    head[HEAD - 4..].copy_from_slice(&sum.to_le_bytes());
    head
}

/// Restores an image to what it was when the undo file was made; returns how many bytes were
/// written. Every record is checked before the first write. The image must be as the repair left
/// it, even if that was cut, or as it was before.
///
/// # Errors
/// [`UndoError`]; the image is unchanged after [`UndoError::Format`] and [`UndoError::Changed`].
pub fn undo(device: &dyn BlockDevice, path: &Path) -> Result<u64, UndoError> {
    restore(device, path, Since::Refused)
}

/// As [`undo`], for an image that may be another one, or changed after the repair: what was written
/// to these places since is lost.
///
/// # Errors
/// As [`undo`], but never [`UndoError::Changed`].
pub fn undo_forced(device: &dyn BlockDevice, path: &Path) -> Result<u64, UndoError> {
    restore(device, path, Since::Overwritten)
}

/// What becomes of changes of an image after the repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Since {
    Refused,
    Overwritten,
}

fn restore(device: &dyn BlockDevice, path: &Path, since: Since) -> Result<u64, UndoError> {
    let mut file = File::open(path)?;
    let mut first = [0; HEAD];
    read_whole(&mut file, &mut first)?;
    let records = u32::from_le_bytes([first[24], first[25], first[26], first[27]]);
    let states = States::of(&first).filter(|_| first[..16] == MAGIC[..]);
    let states = states.filter(|states| first == head(device.size(), records, states));
    let Some(states) = states else {
        return Err(UndoError::Format("not an undo file, or one of an image of another size"));
    };
    for_each_record(&mut file, records, |_, _| Ok(()))?;
    if since == Since::Refused && !states.hold(device)? {
        return Err(UndoError::Changed);
    }
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
