//! Counting the extents of one file as the usual tools do. Their counts differ
//! (docs/format-notes.md).
//!
//! Input is the file's records in logical order, as FIEMAP returns them for an idle file
//! ([`crate::scan::records`]): without holes, in blocks.

/// One mapped run of a file, in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// First logical block.
    pub logical: u64,
    /// First physical block.
    pub physical: u64,
    /// Length in blocks.
    pub length: u64,
    /// Allocated but not written.
    pub unwritten: bool,
}

impl Record {
    fn logical_end(&self) -> u64 {
        self.logical + self.length
    }

    fn physical_end(&self) -> u64 {
        self.physical + self.length
    }

    /// Whether `next` continues this one, in the file and on disk, in the same state.
    pub(crate) fn joins(&self, next: &Self) -> bool {
        next.logical == self.logical_end()
            && next.physical == self.physical_end()
            && next.unwritten == self.unwritten
    }
}

const NOTHING: Record = Record { logical: 0, physical: 0, length: 0, unwritten: false };

/// The number in `filefrag`'s summary line: the first record, and each record that does not
/// continue its predecessor. A record continues its predecessor if the distance between the two is
/// the same on disk as in the file, or if the record comes directly after its predecessor on disk.
#[must_use]
pub fn filefrag_count(records: &[Record]) -> u64 {
    let mut count = 0;
    let mut previous = NOTHING;
    for record in records {
        if !continues(&previous, record) {
            count += 1;
        } else if count == 0 {
            count = 1;
        }
        previous = *record;
    }
    count
}

/// The `expected` column of `filefrag -v`: the block where the record would begin if its distance
/// from its predecessor were the same on disk as in the file. For the first record, block 0 takes
/// the place of the predecessor. Returns `None` if the record continues its predecessor, or is at
/// logical block 0.
#[must_use]
pub fn expected_physical(previous: Option<&Record>, record: &Record) -> Option<u64> {
    let previous = previous.unwrap_or(&NOTHING);
    (!continues(previous, record)).then(|| same_distance(previous, record))
}

fn continues(previous: &Record, record: &Record) -> bool {
    record.logical == 0
        || record.physical == same_distance(previous, record)
        || record.physical == previous.physical_end()
}

fn same_distance(previous: &Record, record: &Record) -> u64 {
    previous.physical.wrapping_add(record.logical.wrapping_sub(previous.logical))
}

/// The summary line of `filefrag`.
#[must_use]
pub fn filefrag_line(name: &str, records: &[Record]) -> String {
    match filefrag_count(records) {
        1 => format!("{name}: 1 extent found\n"),
        count => format!("{name}: {count} extents found\n"),
    }
}

/// Whether `e2fsck` regards the file as non-contiguous: some record does not begin right after the
/// previous record on disk. Logical holes and unwritten flags are ignored. (Whether `e2fsck`
/// *counts* such a file also depends on the file's size.)
#[must_use]
pub fn is_broken_on_disk(records: &[Record]) -> bool {
    records.windows(2).any(|pair| pair[1].physical != pair[0].physical_end())
}

/// The number of runs that are contiguous both logically and physically, whether written or
/// unwritten. Reports on allocation quote this number as a file's extents.
#[must_use]
pub fn contiguous_runs(records: &[Record]) -> u64 {
    let mut runs = u64::from(!records.is_empty());
    for pair in records.windows(2) {
        let adjacent = pair[1].physical == pair[0].physical_end() && pair[1].logical == pair[0].logical_end();
        runs += u64::from(!adjacent);
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(runs: &[(u64, u64, u64)]) -> Vec<Record> {
        runs.iter()
            .map(|&(logical, physical, length)| Record { logical, physical, length, unwritten: false })
            .collect()
    }

    /// Each case ends with the number of extents in `filefrag`'s summary, the number of lines of
    /// `filefrag -v`, and whether `e2fsck` regards the file as non-contiguous.
    #[test]
    fn the_instruments_count_different_things() {
        let scattered: Vec<_> = (0..20).map(|i| (i, 1000 + 7 * i, 1)).collect();
        let mirrored: Vec<_> = (0..700).map(|i| (2 * i, 5000 + 2 * i, 1)).collect();
        let cases = [
            ("20 scattered blocks", scattered, 20, 20, true),
            ("hole matched by a physical hole", vec![(0, 100, 4), (8, 108, 4)], 1, 2, true),
            ("hole, physically unrelated", vec![(0, 100, 4), (8, 300, 4)], 2, 2, true),
            ("written inside unwritten", vec![(0, 100, 4), (4, 104, 4), (8, 108, 4)], 1, 3, false),
            ("leading hole", vec![(5, 900, 4)], 1, 1, false),
            ("every second block, mirrored", mirrored, 1, 700, true),
            ("dense on disk with a logical gap", vec![(0, 100, 4), (50, 104, 4)], 1, 2, false),
        ];
        for (name, runs, filefrag, lines, broken) in cases {
            let mut records = records(&runs);
            if name == "written inside unwritten" {
                (records[0].unwritten, records[2].unwritten) = (true, true);
            }
            assert_eq!(filefrag_count(&records), filefrag, "{name}");
            assert_eq!(records.len(), lines, "{name}");
            assert_eq!(is_broken_on_disk(&records), broken, "{name}");
        }
        assert_eq!(filefrag_count(&[]), 0);
    }

    #[test]
    fn a_leading_hole_expects_its_logical_place() {
        let record = records(&[(5, 900, 4)])[0];
        assert_eq!(expected_physical(None, &record), Some(5));
    }

    #[test]
    fn contiguous_runs_join_written_and_unwritten_only_when_logically_adjacent() {
        let mut adjacent = records(&[(0, 100, 4), (4, 104, 4)]);
        assert_eq!(contiguous_runs(&adjacent), 1);
        adjacent[1].unwritten = true;
        assert_eq!(contiguous_runs(&adjacent), 1);
        assert_eq!(contiguous_runs(&records(&[(0, 100, 4), (50, 104, 4)])), 2);
        assert_eq!(contiguous_runs(&[]), 0);
    }
}
