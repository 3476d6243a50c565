//! Reads the blocks of directories in disk order. Directories are sorted by their lowest block and
//! split into units of work, which threads do in parallel. One request reads neighbouring blocks.
//!
//! The blocks of a unit's small directories are read by the thread that checks them, just before
//! the check, so that they are still in that CPU's cache. A large directory is read as it is
//! walked, many blocks at a time. When a request fails, the block that is wanted is read alone, so
//! that the error names the right block.

use blockyard_device::DeviceError;
use blockyard_disk::BlockNr;
use blockyard_disk::num::{u64_from_usize, usize_from_u64};

use super::{DirBody, DirFact, mapped_blocks};
use crate::volume::Volume;

/// The most bytes that the directories of a unit map together, if there is more than one directory.
const UNIT_BYTES: u64 = 1 << 18;
/// The most directories in a unit.
const UNIT_MAX: usize = 64;
/// The fewest units for each thread, if there are enough directories.
const UNITS_PER_THREAD: usize = 4;
/// Bytes of the longest request.
const REQUEST_BYTES: u64 = 1 << 18;
/// The longest gap between two blocks, in bytes, that one request reads across. A second request
/// would cost more.
const GAP_BYTES: u64 = 1 << 14;
/// The most blocks of a directory that is read with its unit. A larger one is read as it is walked.
const LARGE_BLOCKS: u64 = 64;

/// Runs of blocks that were read, ascending by their first block.
#[derive(Debug, Default)]
pub(super) struct Fetched {
    runs: Vec<(u64, Vec<u8>)>,
    block_size: usize,
}

/// Sorts directories by their lowest block, so that the head of a disk passes over them once.
pub(super) fn sort_by_place(facts: &mut [&DirFact]) {
    facts.sort_by_cached_key(|fact| match &fact.body {
        DirBody::Blocks { runs } => runs.iter().map(|run| run.physical).min(),
        DirBody::Inline(_) => None,
    });
}

/// Splits directories into units of work. A directory that maps more than [`UNIT_BYTES`] is a unit
/// of its own.
pub(super) fn units<'f, 'a>(volume: &Volume<'_>, mut facts: &'f [&'a DirFact]) -> Vec<&'f [&'a DirFact]> {
    let size = u64_from_usize(volume.block_size());
    let most = (facts.len() / (UNITS_PER_THREAD * rayon::current_num_threads())).clamp(1, UNIT_MAX);
    let all = facts.len();
    let mut units = Vec::new();
    while !facts.is_empty() {
        let mut bytes = 0u64;
        let fits = |fact: &&&DirFact| {
            bytes = bytes.saturating_add(mapped_blocks(fact).saturating_mul(size));
            bytes <= UNIT_BYTES
        };
        let count = facts.iter().take(most).take_while(fits).count().max(1);
        let (unit, rest) = facts.split_at(count);
        units.push(unit);
        facts = rest;
    }
    let parted: usize = units.iter().map(|unit| unit.len()).sum();
    assert_eq!(parted, all, "each directory is in one unit");
    units
}

/// Blocks of a directory that are read with its unit; 0 for a large one.
fn small_blocks(fact: &DirFact) -> u64 {
    Some(mapped_blocks(fact)).filter(|&blocks| blocks <= LARGE_BLOCKS).unwrap_or(0)
}

impl Fetched {
    /// Reads the blocks of small directories.
    pub(super) fn read(volume: &Volume<'_>, facts: &[&DirFact]) -> Self {
        let mut blocks: Vec<u64> = Vec::new();
        for fact in facts.iter().filter(|fact| small_blocks(fact) > 0) {
            if let DirBody::Blocks { runs } = &fact.body {
                blocks.extend(runs.iter().flat_map(|run| run.physical..run.physical + run.length));
            }
        }
        blocks.sort_unstable();
        let size = u64_from_usize(volume.block_size());
        let mut requests: Vec<(u64, u64)> = Vec::new();
        for block in blocks {
            match requests.last_mut() {
                Some((first, count))
                    if block <= *first + *count + GAP_BYTES / size
                        && (block + 1 - *first) * size <= REQUEST_BYTES =>
                {
                    *count = (block + 1 - *first).max(*count);
                }
                _ => requests.push((block, 1)),
            }
        }
        let longest = REQUEST_BYTES.max(size);
        debug_assert!(requests.iter().all(|request| request.1 * size <= longest), "a request is too long");
        let read = |&(first, count): &(u64, u64)| {
            let mut bytes = vec![0; usize_from_u64(count * size)];
            let read = volume.device.read_at(first << volume.geometry.block_bits(), &mut bytes);
            read.is_ok().then_some((first, bytes))
        };
        let runs: Vec<_> = requests.iter().filter_map(read).collect();
        assert!(runs.is_sorted_by(|a, b| a.0 < b.0), "requests out of order");
        Self { runs, block_size: volume.block_size() }
    }

    /// A block that was read.
    fn block(&self, place: BlockNr) -> Option<&[u8]> {
        let after = self.runs.partition_point(|run| run.0 <= place.raw());
        let (first, bytes) = self.runs.get(after.checked_sub(1)?)?;
        let at = usize_from_u64(place.raw() - first).checked_mul(self.block_size)?;
        bytes.get(at..at + self.block_size)
    }
}

/// The blocks of one directory. The blocks of a small directory were read with its unit. The blocks
/// of a large directory are read ahead into a buffer.
pub(super) struct Window<'a, 'v> {
    volume: &'a Volume<'v>,
    fetched: &'a Fetched,
    first: u64,
    bytes: Vec<u8>,
}

impl<'a, 'v> Window<'a, 'v> {
    pub(super) fn new(volume: &'a Volume<'v>, fetched: &'a Fetched) -> Self {
        Self { volume, fetched, first: 0, bytes: Vec::new() }
    }

    /// Returns a block. The `following` blocks after it will be asked for next.
    pub(super) fn block(&mut self, place: BlockNr, following: u64) -> Result<&[u8], DeviceError> {
        if let Some(block) = self.fetched.block(place) {
            return Ok(block);
        }
        let size = self.volume.block_size();
        let buffered = u64_from_usize(self.bytes.len() / size);
        let nth = place.raw().checked_sub(self.first).filter(|nth| *nth < buffered);
        let nth = match nth {
            Some(nth) => usize_from_u64(nth),
            None => {
                self.fill(place, following)?;
                0
            }
        };
        Ok(&self.bytes[nth * size..(nth + 1) * size])
    }

    fn fill(&mut self, place: BlockNr, following: u64) -> Result<(), DeviceError> {
        let size = u64_from_usize(self.volume.block_size());
        let most = (REQUEST_BYTES / size).clamp(1, following + 1);
        assert!(most <= following + 1, "{most} blocks from {place} on, {following} come next");
        for count in [most, 1] {
            self.first = place.raw();
            self.bytes.resize(usize_from_u64(count * size), 0);
            let read = self.volume.device.read_at(self.first * size, &mut self.bytes);
            match read {
                Ok(()) => return Ok(()),
                Err(error) if count == 1 => {
                    self.bytes.clear();
                    return Err(error);
                }
                Err(_) => {}
            }
        }
        unreachable!("one block was read, or was not")
    }
}
