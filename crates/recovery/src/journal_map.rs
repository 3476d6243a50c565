//! The map from log blocks to blocks of the device. It has no holes and no overlaps, and never
//! changes.

use std::ops::Range;

use blockyard_device::BlockDevice;
use blockyard_disk::num::u64_from_usize;
use blockyard_disk::{BlockCount, BlockNr, Corruption, CorruptionKind};

use crate::error::Result;

/// A run of log blocks that is contiguous on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) log: u32,
    pub(crate) physical: BlockNr,
    pub(crate) length: u32,
}

impl Run {
    pub(crate) fn end(&self) -> BlockNr {
        self.physical + BlockCount::new(u64::from(self.length))
    }
}

/// Where each log block is.
#[derive(Clone, Debug)]
pub(crate) struct JournalMap {
    /// In the order of log blocks, from 0 on and without gaps.
    runs: Vec<Run>,
    /// The same runs, in the order of their blocks on the device.
    by_place: Vec<Run>,
}

impl JournalMap {
    /// Maps every log block to the device block of the same number.
    pub(crate) fn identity(blocks: u32) -> Self {
        let runs = vec![Run { log: 0, physical: BlockNr::ZERO, length: blocks }];
        Self { by_place: runs.clone(), runs }
    }

    /// A map of these runs. Fails if two of them overlap on the device.
    pub(crate) fn new(runs: Vec<Run>) -> Result<Self, Corruption> {
        let mut by_place = runs.clone();
        by_place.sort_unstable_by_key(|run| run.physical);
        match by_place.windows(2).find(|pair| pair[0].end() > pair[1].physical) {
            Some(pair) => Err(Corruption::new(CorruptionKind::JournalMapping).in_block(pair[1].physical)),
            None => Ok(Self { runs, by_place }),
        }
    }

    /// How many log blocks are mapped.
    pub(crate) fn blocks(&self) -> u32 {
        self.runs.last().map_or(0, |run| run.log + run.length)
    }

    /// The block of the device that holds a log block.
    ///
    /// # Panics
    /// When the log block is beyond the map. The length in the journal superblock was checked
    /// against the map.
    pub(crate) fn physical(&self, log: u32) -> BlockNr {
        let after = self.runs.partition_point(|run| run.log <= log);
        let run = &self.runs[after - 1];
        assert!(log - run.log < run.length, "log block {log} is beyond the journal");
        run.physical + BlockCount::new(u64::from(log - run.log))
    }

    /// Whether a block of the device belongs to the journal.
    pub(crate) fn contains(&self, block: BlockNr) -> bool {
        self.overlaps(block, BlockCount::new(1))
    }

    /// Whether any of the `count` blocks from `start` on belongs to the journal.
    pub(crate) fn overlaps(&self, start: BlockNr, count: BlockCount) -> bool {
        let end = start.checked_add(count).unwrap_or(BlockNr::new(u64::MAX));
        let before_end = self.by_place.partition_point(|run| run.physical < end);
        before_end > 0 && start < self.by_place[before_end - 1].end()
    }

    /// The contiguous runs as ranges of device blocks, in the order of log blocks.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Range<BlockNr>> {
        self.runs.iter().map(|run| run.physical..run.end())
    }
}

/// Fills `buf` with the bytes of the device that begin `offset` bytes after the start of `block`.
pub(crate) fn read(
    device: &dyn BlockDevice,
    block_size: usize,
    block: BlockNr,
    offset: usize,
    buf: &mut [u8],
) -> Result<()> {
    let place = block.raw() * u64_from_usize(block_size) + u64_from_usize(offset);
    Ok(device.read_at(place, buf)?)
}
