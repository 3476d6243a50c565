//! The undo file: the old content of the blocks that a repair overwrites. It is durable before the
//! repair's first write.
//!
//! The file has two parts:
//!
//! - a head of 4096 bytes: magic, size of the image during the repair, number of records, size of
//!   the image before the repair, states, checksum;
//! - the records: offset, length, number of later states, checksum of the record, old bytes, and
//!   for each later state the checksum of each sector.
//!
//! If the repair makes a truncated image longer, the two sizes in the head differ.
//!
//! The head is written last. So if saving was interrupted, the file is not an undo file, and
//! nothing was written to the image.
//!
//! A *state* is the checksums of the sectors at one point of the repair: before the repair, after
//! the replay of the journal, after an earlier repair was finished, or after the repair. An
//! interrupted repair may leave different sectors in different states.
//!
//! Before an undo, every compared sector must be in one of the states. If not, the file belongs to
//! another image, or somebody used the image after the repair. The superblock's sectors are
//! compared without the marks that a repair sets while it runs. Blocks that may hold a redo log are
//! not compared.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;

use blockyard_device::{BlockDevice, DeviceError, OverlayDevice};
use blockyard_disk::Incompat;
use blockyard_disk::checksum::crc32c_raw;
use blockyard_disk::num::{
    join32, u32_from_u64, u32_from_usize, u64_from_u32, u64_from_usize, usize_from_u32, usize_from_u64,
};
use blockyard_disk::superblock::{FsState, PRIMARY_OFFSET, RawSuperblock};
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use super::{Plan, redo};
use crate::finding::Sink;
use crate::replay;

const HEAD: usize = 4096;
const MAGIC: &[u8; 16] = b"blockyard undo 3";
/// What every version of the magic begins with.
const ANY_VERSION: &[u8] = b"blockyard undo ";
/// Where the states begin in the head. Their fields are: offset of the first sector, number of
/// sectors, number of states, checksums.
const STATES: usize = 36;
/// Bytes of a sector, which a device writes as a whole.
const SECTOR: u64 = 512;
/// The most sectors whose states are kept in the head.
const SECTORS_MAX: u64 = 8;
/// The most states: before the repair, after the replay, after an earlier repair was finished, and
/// after the repair.
const STATES_MAX: u32 = 4;
/// The most old bytes in one record.
const RECORD_MAX: u64 = 1 << 20;

/// Why an undo file could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum UndoError {
    /// The undo file cannot be read or written.
    #[error("undo file: {0}")]
    File(#[from] std::io::Error),
    /// The file is not an undo file, is damaged, was made by another version, or belongs to an
    /// image of another size.
    #[error("undo file: {0}")]
    Format(&'static str),
    /// The image is not as the repair found or left it: see [`undo_forced`].
    #[error("the image was changed after the repair, or is another one than the undo file's")]
    Changed,
    /// The image cannot be read or written.
    #[error("{0}")]
    Device(#[from] DeviceError),
}

/// What [`undo()`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undone {
    /// Bytes that were written back.
    pub bytes: u64,
    /// The image's size in bytes before the repair, if the repair made the image longer
    /// ([`RepairOptions::cut_at`](super::RepairOptions::cut_at)). The caller truncates the image to
    /// this size.
    pub cut_at: Option<u64>,
}

impl Plan<'_> {
    /// Saves to a new file what [`apply`](Plan::apply) will overwrite. The file is durable when
    /// this returns.
    ///
    /// # Errors
    /// [`UndoError`], also when the file exists.
    pub fn save_undo(&self, device: &dyn BlockDevice, path: &Path) -> Result<(), UndoError> {
        let (size, end) = (1 << self.block_bits, self.overlay.size());
        let log = self.places_of_undo();
        let log = log.into_iter().map(|block| block * size..((block + 1) * size).min(end));
        let replayed = self.is_replayed().then(|| self.replayed(device));
        let resumed = self.resumed(device, replayed.as_ref())?;
        let states = replayed.iter().chain(&resumed).chain([&self.overlay]);
        let saving = Saving {
            device,
            cut_at: self.cut_at.unwrap_or(end),
            sectors: Sectors::SUPERBLOCK,
            judged: with_superblock(device, self.overlay.dirty_ranges()),
            unjudged: log.collect(),
            later: states.map(|state| -> &dyn BlockDevice { state }).collect(),
        };
        saving.save(path)
    }

    /// The device as the replay of the journal leaves it.
    fn replayed<'d>(&self, device: &'d dyn BlockDevice) -> OverlayDevice<&'d dyn BlockDevice> {
        let image = OverlayDevice::new(device);
        let journal = self.journal.as_ref().map(|journal| OverlayDevice::new(*journal.below()));
        replay::replay_over(&image, journal.as_ref(), &mut Sink::default());
        image
    }

    /// The device as it is after the replay and after an earlier repair was finished; `None` if no
    /// earlier repair had to be finished.
    fn resumed<'d>(
        &self,
        device: &'d dyn BlockDevice,
        replayed: Option<&'d OverlayDevice<&'d dyn BlockDevice>>,
    ) -> Result<Option<OverlayDevice<&'d dyn BlockDevice>>, DeviceError> {
        let below = replayed.map_or(device, |replayed| replayed);
        let Some(redo) = redo::Redo::of(below).filter(|_| self.is_resumed) else { return Ok(None) };
        let resumed = OverlayDevice::new(below);
        redo.carry_out(below, &resumed)?;
        Ok(Some(resumed))
    }

    /// As [`save_undo`](Self::save_undo), for an external journal. Makes no file and returns false
    /// if nothing of the journal changes.
    ///
    /// # Errors
    /// As [`save_undo`](Self::save_undo).
    pub fn save_undo_of_journal(&self, journal: &dyn BlockDevice, path: &Path) -> Result<bool, UndoError> {
        self.journal.as_ref().map_or(Ok(false), |planned| save_journal(journal, planned, path))
    }
}

/// As [`Plan::save_undo`], for a replay of the journal without a repair. An external journal gets
/// an undo file of its own if the replay changes it. Makes no file and returns false if there is
/// nothing to replay, or if the replay fails.
///
/// # Errors
/// As [`Plan::save_undo`].
pub fn save_undo_of_replay(
    device: &dyn BlockDevice,
    path: &Path,
    journal: Option<(&dyn BlockDevice, &Path)>,
) -> Result<bool, UndoError> {
    let below = journal.map(|(journal, _)| journal);
    let Some(after) = replay::replayed(device, below, &mut Sink::default()) else { return Ok(false) };
    let saving = Saving {
        device,
        cut_at: device.size(),
        sectors: Sectors::SUPERBLOCK,
        judged: with_superblock(device, after.image.dirty_ranges()),
        unjudged: Vec::new(),
        later: vec![&after.image],
    };
    saving.save(path)?;
    if let (Some((journal, of_journal)), Some(after)) = (journal, &after.journal)
        && let Err(error) = save_journal(journal, after, of_journal)
    {
        // Without both files the caller does not write, so there is nothing to undo.
        let _ = std::fs::remove_file(path);
        return Err(error);
    }
    Ok(true)
}

/// Saves what is overwritten in an external journal. Returns false if nothing is overwritten.
fn save_journal(
    journal: &dyn BlockDevice,
    after: &OverlayDevice<&dyn BlockDevice>,
    path: &Path,
) -> Result<bool, UndoError> {
    let judged = after.dirty_ranges();
    let Some(first) = judged.first() else { return Ok(false) };
    let sectors = Sectors::beginning(first);
    let (cut_at, unjudged) = (journal.size(), Vec::new());
    Saving { device: journal, cut_at, sectors, judged, unjudged, later: vec![after] }.save(path)?;
    Ok(true)
}

/// Adds the superblock to the ranges: a repair changes it even if the plan does not.
fn with_superblock(device: &dyn BlockDevice, mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.insert(0, 0..device.size().min(4096));
    ranges
}

/// The sectors whose states are kept in the head: those of the superblock, or the first ones that a
/// repair changes in an external journal. These sectors change when somebody uses the device.
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

/// Clears the fields of a superblock that a repair changes while it runs.
fn forget_marks(bytes: &mut [u8]) {
    let (sb, _) = RawSuperblock::mut_from_prefix(bytes).expect("two sectors are a superblock");
    sb.set_state(sb.state().difference(FsState::VALID | FsState::ERROR));
    sb.set_incompat(sb.incompat().difference(Incompat::RECOVER));
    redo::forget(sb);
    sb.s_checksum = U32::ZERO;
}

/// The states in which a repair may leave the sectors of [`Sectors`].
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

    /// Reads what [`put`](Self::put) wrote; `None` if `put` cannot have written these bytes.
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

/// What goes into an undo file.
struct Saving<'a> {
    device: &'a dyn BlockDevice,
    /// The size of the image before the repair.
    cut_at: u64,
    sectors: Sectors,
    /// Ranges that are overwritten with content that is known now.
    judged: Vec<Range<u64>>,
    /// Ranges that may be overwritten with content that is not known yet: those of a redo log.
    unjudged: Vec<Range<u64>>,
    /// The device in each later state.
    later: Vec<&'a dyn BlockDevice>,
}

impl Saving<'_> {
    /// Makes the file. An error leaves no new file.
    fn save(&self, path: &Path) -> Result<(), UndoError> {
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        let done = self.write(file).and_then(|()| sync_folder(path));
        if done.is_err() {
            // An incomplete file is of no use, and the next repair would fail because it exists.
            let _ = std::fs::remove_file(path);
        }
        done
    }

    fn write(&self, mut file: File) -> Result<(), UndoError> {
        let mut states = States::new(self.sectors);
        for state in [self.device].iter().chain(&self.later) {
            states.add(*state)?;
        }
        file.write_all(&[0; HEAD])?;
        let ranges = self.judged.iter().map(|range| (range, &self.later[..]));
        let ranges = ranges.chain(self.unjudged.iter().map(|range| (range, &[][..])));
        let mut records = 0;
        for (range, later) in ranges {
            debug_assert!(range.start <= range.end, "a range that ends before it begins: {range:?}");
            let end = range.end.min(self.cut_at);
            let mut at = range.start;
            while at < end {
                let length = (end - at).min(RECORD_MAX);
                file.write_all(&Record::of(self.device, later, at, length)?.bytes())?;
                records += 1;
                at += length;
            }
        }
        file.sync_all()?;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&head(self.device.size(), self.cut_at, records, &states))?;
        file.sync_all()?;
        Ok(())
    }
}

/// A piece of the image before the repair.
struct Record {
    at: u64,
    old: Vec<u8>,
    /// The checksums of the sectors in each later state. Empty in an unjudged range.
    later: Vec<Vec<u32>>,
}

impl Record {
    /// The bytes that offset, length, number of later states, and checksum take together.
    const HEAD: usize = 20;

    fn of(
        device: &dyn BlockDevice,
        later: &[&dyn BlockDevice],
        at: u64,
        length: u64,
    ) -> Result<Self, DeviceError> {
        debug_assert!(length <= RECORD_MAX, "a record of {length} bytes");
        let mut old = vec![0; usize_from_u64(length)];
        let mut sums = Vec::with_capacity(later.len());
        for state in later {
            state.read_at(at, &mut old)?;
            sums.push(sector_sums(&old));
        }
        device.read_at(at, &mut old)?;
        Ok(Self { at, old, later: sums })
    }

    fn bytes(&self) -> Vec<u8> {
        let counts = [self.old.len(), self.later.len()].map(|count| u32_from_usize(count).to_le_bytes());
        let fields = [&self.at.to_le_bytes()[..], &counts[0], &counts[1]].concat();
        let sums = self.later.iter().flatten().flat_map(|sum| sum.to_le_bytes());
        let body: Vec<u8> = self.old.iter().copied().chain(sums).collect();
        let sum = crc32c_raw(crc32c_raw(!0, &fields), &body);
        [&fields, &sum.to_le_bytes()[..], &body].concat()
    }

    fn read(file: &mut File) -> Result<Self, UndoError> {
        let mut fields = [0; Self::HEAD];
        read_whole(file, &mut fields)?;
        let word = |at: usize| U32::read_from_bytes(&fields[at..at + 4]).map_or(0, U32::get);
        let at = join32(word(4), word(0));
        let (length, states) = (usize_from_u32(word(8)), usize_from_u32(word(12)));
        if u64_from_usize(length) > RECORD_MAX || word(12) >= STATES_MAX {
            return Err(UndoError::Format("a record is too long"));
        }
        let sectors = length.div_ceil(usize_from_u64(SECTOR));
        let mut body = vec![0; length + 4 * sectors * states];
        read_whole(file, &mut body)?;
        if crc32c_raw(crc32c_raw(!0, &fields[..16]), &body) != word(16) {
            return Err(UndoError::Format("a record does not match its checksum"));
        }
        let sums: Vec<u32> =
            body[length..].chunks_exact(4).map(|sum| U32::read_from_bytes(sum).map_or(0, U32::get)).collect();
        body.truncate(length);
        let later = sums.chunks(sectors.max(1)).map(<[u32]>::to_vec).collect();
        Ok(Self { at, old: body, later })
    }

    /// Whether each sector is in one of the states. True for a record of an unjudged range. The
    /// sectors in `apart` are left out: [`States::hold`] judges them.
    fn holds(&self, device: &dyn BlockDevice, apart: Sectors) -> Result<bool, DeviceError> {
        if self.later.is_empty() {
            return Ok(true);
        }
        let mut now = vec![0; self.old.len()];
        device.read_at(self.at, &mut now)?;
        let old = sector_sums(&self.old);
        let apart = apart.first..apart.first + apart.count * SECTOR;
        Ok(sector_sums(&now).iter().enumerate().all(|(nth, sum)| {
            let states = [&old].into_iter().chain(&self.later);
            let place = self.at + u64_from_usize(nth) * SECTOR;
            apart.contains(&place) || states.into_iter().any(|state| state[nth] == *sum)
        }))
    }
}

fn sector_sums(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(usize_from_u64(SECTOR)).map(|sector| crc32c_raw(!0, sector)).collect()
}

/// Makes the name of a new file durable.
fn sync_folder(path: &Path) -> Result<(), UndoError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
    Ok(())
}

fn head(size: u64, cut_at: u64, records: u32, states: &States) -> [u8; HEAD] {
    debug_assert!(cut_at <= size, "a repair made {cut_at} bytes shorter: {size}");
    let mut head = [0; HEAD];
    head[..16].copy_from_slice(MAGIC);
    head[16..24].copy_from_slice(&size.to_le_bytes());
    head[24..28].copy_from_slice(&records.to_le_bytes());
    head[28..36].copy_from_slice(&cut_at.to_le_bytes());
    states.put(&mut head);
    let sum = crc32c_raw(!0, &head[..HEAD - 4]);
    head[HEAD - 4..].copy_from_slice(&sum.to_le_bytes());
    head
}

/// Restores an image to what it was when the undo file was made. Every record is checked before the
/// first write. The image must be as it was before the repair, or as the repair left it; the repair
/// may have been interrupted. If the repair made the image longer, the caller truncates it: see
/// [`Undone::cut_at`].
///
/// # Errors
/// [`UndoError`]; the image is unchanged after [`UndoError::Format`] and [`UndoError::Changed`].
pub fn undo(device: &dyn BlockDevice, path: &Path) -> Result<Undone, UndoError> {
    restore(device, path, Since::Refused)
}

/// As [`undo`], but restores an image even if it is another one or was changed after the repair.
/// Later writes to the places that the undo file restores are lost.
///
/// # Errors
/// As [`undo`], but never [`UndoError::Changed`].
pub fn undo_forced(device: &dyn BlockDevice, path: &Path) -> Result<Undone, UndoError> {
    restore(device, path, Since::Overwritten)
}

/// What becomes of changes that were made to an image after the repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Since {
    Refused,
    Overwritten,
}

fn restore(device: &dyn BlockDevice, path: &Path, since: Since) -> Result<Undone, UndoError> {
    let mut file = File::open(path)?;
    let mut first = [0; HEAD];
    read_whole(&mut file, &mut first)?;
    let records = u32::from_le_bytes([first[24], first[25], first[26], first[27]]);
    let word = |at: usize| U32::read_from_bytes(&first[at..at + 4]).map_or(0, U32::get);
    let [size, cut_at] = [16, 28].map(|at| join32(word(at + 4), word(at)));
    if first[..16] != MAGIC[..] && first.starts_with(ANY_VERSION) {
        return Err(UndoError::Format("another version of blockyard made it; only that one can use it"));
    }
    let is_size = device.size() == size || device.size() == cut_at;
    let states = States::of(&first).filter(|_| is_size && cut_at <= size);
    let Some(states) = states.filter(|states| first == head(size, cut_at, records, states)) else {
        return Err(UndoError::Format("not an undo file, or one of an image of another size"));
    };
    let mut is_known = states.hold(device)?;
    for _ in 0..records {
        let record = Record::read(&mut file)?;
        is_known = is_known && record.holds(device, states.sectors)?;
    }
    if since == Since::Refused && !is_known {
        return Err(UndoError::Changed);
    }
    file.seek(SeekFrom::Start(u64_from_u32(u32_from_usize(HEAD))))?;
    let mut bytes = 0;
    for _ in 0..records {
        let Record { at, old, .. } = Record::read(&mut file)?;
        device.write_at(at, &old)?;
        bytes += u64_from_usize(old.len());
    }
    device.flush()?;
    Ok(Undone { bytes, cut_at: Some(cut_at).filter(|cut_at| *cut_at < size) })
}

fn read_whole(file: &mut File, bytes: &mut [u8]) -> Result<(), UndoError> {
    file.read_exact(bytes).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => UndoError::Format("it was cut short"),
        _ => error.into(),
    })
}
