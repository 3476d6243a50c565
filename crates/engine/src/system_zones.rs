//! The blocks that no inode may map: superblocks, descriptors, bitmaps, inode tables, and an
//! internal journal that is in use.
//!
//! If a damaged inode maps such a block, a write to the file would overwrite it, and a truncation
//! would free it.

use blockyard_disk::{BlockNr, Geometry};
use std::ops::Range;

/// The blocks that no inode may map.
#[derive(Debug)]
pub(crate) struct SystemZones {
    /// All blocks of the file system, mappable or not.
    all: Range<u64>,
    /// The blocks that no inode may map, in ascending order. Ranges neither overlap nor adjoin.
    zones: Box<[Range<u64>]>,
}

impl SystemZones {
    /// The zones that consist of these runs, which may be in any order and may overlap.
    pub(crate) fn new(geometry: &Geometry, mut runs: Vec<Range<BlockNr>>) -> Self {
        runs.retain(|run| !run.is_empty());
        runs.sort_unstable_by_key(|run| run.start);
        let mut zones: Vec<Range<u64>> = Vec::new();
        for run in runs {
            let run = run.start.raw()..run.end.raw();
            match zones.last_mut() {
                Some(last) if last.end >= run.start => last.end = last.end.max(run.end),
                _ => zones.push(run),
            }
        }
        let all = geometry.first_data_block().raw()..geometry.blocks_count().raw();
        Self { all, zones: zones.into_boxed_slice() }
    }

    /// Whether an inode may map `len` blocks from `first` on.
    pub(crate) fn may_map(&self, first: u64, len: u64) -> bool {
        let Some(end) = first.checked_add(len) else { return false };
        let next = self.zones.partition_point(|zone| zone.end <= first);
        let is_free = self.zones.get(next).is_none_or(|zone| zone.start >= end);
        self.all.start <= first && end <= self.all.end && is_free
    }
}

#[cfg(test)]
impl SystemZones {
    /// The zones of a file system of this many blocks, all of which may be mapped.
    pub(crate) fn none(blocks: u64) -> Self {
        Self { all: 0..blocks, zones: Box::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_and_what_lies_outside_are_not_mapped() {
        let mut zones = SystemZones::none(100);
        zones.zones = [0..10, 20..21, 90..100].into();
        for (first, len, may) in [
            (0, 1, false),
            (9, 1, false),
            (9, 2, false),
            (10, 10, true),
            (10, 11, false),
            (20, 1, false),
            (21, 69, true),
            (21, 70, false),
            (15, 10, false),
            (99, 1, false),
            (100, 1, false),
            (u64::MAX, 2, false),
        ] {
            assert_eq!(zones.may_map(first, len), may, "{len} from {first}");
        }
    }
}
