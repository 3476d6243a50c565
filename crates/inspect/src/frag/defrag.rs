//! The totals and the fragmentation score of `e4defrag -c` (version 1.47.0).
//!
//! Over all counted files, let N be the number of records (extents now), M the number of extents at
//! best, and B the number of blocks. With r = 100 (N - M) / B, the score is 8 r if r is at most 10,
//! and otherwise 80 + r / 5. So the score jumps from 80 to 82 where r exceeds 10. The score stays
//! below 100 unless content lies in inodes: that has records but no blocks.

use std::fmt::{self, Write as _};

use super::file::Record;

/// Largest number of files that the ranking keeps.
pub const RANKED: usize = 5;

/// One file as the ranking shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct RankedFile {
    /// The name that it was added with, as bytes.
    pub name: Vec<u8>,
    /// Number of records of the file.
    pub now: u64,
    /// The number of extents that it would have at best.
    pub best: u64,
    /// Average KiB per extent, rounded down.
    pub kib_per_extent: u64,
    ratio: f32,
}

/// Totals over files, which [`DefragTotals::add`] counts one by one.
#[derive(Clone, Debug)]
pub struct DefragTotals {
    block_size: u64,
    /// The most blocks that one extent could have: all blocks of a flex group, or of one group if
    /// flex_bg is off.
    blocks_per_best_extent: u64,
    now: u64,
    best: u64,
    blocks: u64,
    files: u64,
    ranked: Vec<RankedFile>,
}

impl DefragTotals {
    /// Totals of no files. `block_size` is in bytes, `blocks_per_group` in blocks;
    /// `groups_per_flex` is 1 without flex_bg.
    #[must_use]
    pub fn new(block_size: u64, blocks_per_group: u64, groups_per_flex: u64) -> Self {
        Self {
            block_size,
            blocks_per_best_extent: blocks_per_group * groups_per_flex,
            now: 0,
            best: 0,
            blocks: 0,
            files: 0,
            ranked: Vec::new(),
        }
    }

    /// Counts a file under one of its names. A file with several names is counted once for each
    /// name. The caller passes only regular files that are not empty and have a block or inline
    /// data. A file without records is not counted.
    pub fn add(&mut self, name: &[u8], records: &[Record]) {
        if records.is_empty() {
            return;
        }
        let now = blockyard_disk::num::u64_from_usize(records.len());
        let blocks: u64 = records.iter().map(|record| record.length).sum();
        self.files += 1;
        self.now += now;
        if blocks == 0 {
            // Content in the inode is one record without blocks. As in `e4defrag`, it adds to the
            // extents now, but not to the extents at best.
            return;
        }
        let best = (blocks - 1) / self.blocks_per_best_extent + 1;
        self.best += best;
        self.blocks += blocks;
        // A file with fewer runs than its best count is not ranked.
        let Some(excess) = physical_runs(records).checked_sub(best) else { return };
        let file = RankedFile {
            name: name.to_owned(),
            now,
            best,
            kib_per_extent: blocks * (self.block_size / 1024) / now,
            ratio: 100.0 * single(excess) / single(blocks),
        };
        self.rank(file);
    }

    /// Inserts by ratio, descending. A file goes before earlier files of the same ratio.
    fn rank(&mut self, file: RankedFile) {
        let place =
            self.ranked.iter().position(|other| file.ratio >= other.ratio).unwrap_or(self.ranked.len());
        if place < RANKED {
            self.ranked.insert(place, file);
            self.ranked.truncate(RANKED);
        }
    }

    /// The number of files counted.
    #[must_use]
    pub fn files(&self) -> u64 {
        self.files
    }

    /// The number of records of all files, and the number of extents they would have at best.
    #[must_use]
    pub fn now_and_best(&self) -> (u64, u64) {
        (self.now, self.best)
    }

    /// Average KiB per extent over all files, rounded down.
    #[must_use]
    pub fn kib_per_extent(&self) -> u64 {
        (self.blocks * (self.block_size / 1024)).checked_div(self.now).unwrap_or(0)
    }

    /// The score before rounding: 0 to just under 100, more if much content lies in inodes, and
    /// infinite when no file has a block; `None` when no file was counted.
    #[must_use]
    pub fn score(&self) -> Option<f32> {
        (self.files > 0).then(|| {
            let ratio = 100.0 * single(self.now - self.best.min(self.now)) / single(self.blocks);
            if ratio <= 10.0 { 8.0 * ratio } else { 80.0 + ratio / 5.0 }
        })
    }

    /// The text that `e4defrag -c` prints as root about a file, directory or device, from the table
    /// on. If no file was counted, the text says that nothing can be defragmented. `what` is
    /// "device", "directory" or "file"; `shown` formats a name.
    #[must_use]
    pub fn report(&self, what: &str, name: &[u8], shown: &dyn Fn(&[u8]) -> String) -> String {
        let names = Names { whole: shown(name), shown };
        let Some(score) = self.score() else {
            return match what {
                "file" => format!(" This file({}) can't be defragmented.\n Done.\n", names.whole),
                _ => format!(" In this {what}({}), none can be defragmented.\n Done.\n", names.whole),
            };
        };
        let mut text = String::new();
        self.write_report(&mut text, what, &names, score).expect("a String takes any text");
        text
    }

    fn write_report(&self, out: &mut String, what: &str, names: &Names<'_>, score: f32) -> fmt::Result {
        let title = if what == "file" { "<File>" } else { "<Fragmented files>" };
        writeln!(out, "{title:<40}{:>10}/{:<10}{:>9}", "now", "best", "size/ext")?;
        for (number, file) in (1..).zip(&self.ranked) {
            let (label, width) =
                if what == "file" { (String::new(), 40) } else { (format!("{number}. "), 37) };
            let name = (names.shown)(&file.name);
            if name.chars().count() > width {
                writeln!(out, "{label}{name}")?;
                write!(out, "{:>50}", file.now)?;
            } else {
                write!(out, "{label}{name:<width$}{:>10}", file.now)?;
            }
            writeln!(out, "/{:<10}{:>6} KB", file.best, file.kib_per_extent)?;
        }
        writeln!(out, "\n Total/best extents\t\t\t\t{}/{}", self.now, self.best)?;
        writeln!(out, " Average size per extent\t\t\t{} KB", self.kib_per_extent())?;
        writeln!(out, " Fragmentation score\t\t\t\t{score:.0}")?;
        writeln!(out, " [0-30 no problem: 31-55 a little bit fragmented: 56- needs defrag]")?;
        let verdict = if score > 55.0 { "needs" } else { "does not need" };
        writeln!(out, " This {what} ({}) {verdict} defragmentation.\n Done.", names.whole)
    }

    /// The worst files, at most [`RANKED`], worst first. The measure is the number of runs beyond
    /// the best number, divided by the number of blocks.
    #[must_use]
    pub fn worst(&self) -> &[RankedFile] {
        &self.ranked
    }
}

/// Names as they are printed.
struct Names<'s> {
    whole: String,
    shown: &'s dyn Fn(&[u8]) -> String,
}

/// Number of runs of records in physical order. A record belongs to the run of its predecessor if
/// it continues that record both physically and logically.
fn physical_runs(records: &[Record]) -> u64 {
    let mut sorted = records.to_vec();
    sorted.sort_unstable_by_key(|record| record.physical);
    let breaks = sorted.windows(2).filter(|pair| {
        pair[1].physical != pair[0].physical + pair[0].length
            || pair[1].logical != pair[0].logical + pair[0].length
    });
    1 + blockyard_disk::num::u64_from_usize(breaks.count())
}

#[allow(clippy::as_conversions, reason = "the instrument computes in single precision")]
fn single(count: u64) -> f32 {
    count as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(now: u64, best: u64, blocks: u64) -> DefragTotals {
        DefragTotals { now, best, blocks, files: 1, ..DefragTotals::new(4096, 32_768, 16) }
    }

    #[test]
    fn scores_seen_from_the_tool() {
        for (now, best, blocks, rounded) in [
            (70, 9, 106, 92.0),
            (2, 1, 25, 32.0),
            (3, 1, 10, 84.0),
            (711, 5, 41_675, 14.0),
            (20, 1, 20, 99.0),
        ] {
            let score = totals(now, best, blocks).score().unwrap();
            assert!((score.round() - rounded).abs() < 0.1, "{now}/{best} of {blocks}: {score}");
        }
        assert_eq!(DefragTotals::new(4096, 32_768, 1).score(), None);
    }

    #[test]
    fn the_best_count_follows_group_and_flex_size() {
        let file = [Record { logical: 0, physical: 0, length: 40_960, unwritten: false }];
        let mut plain = DefragTotals::new(1024, 8192, 1);
        plain.add(b"f", &file);
        assert_eq!(plain.now_and_best(), (1, 5));
        let mut flex = DefragTotals::new(1024, 8192, 16);
        flex.add(b"f", &file);
        assert_eq!(flex.now_and_best(), (1, 1));
    }

    #[test]
    fn among_equals_the_last_comes_first() {
        let mut totals = DefragTotals::new(4096, 32_768, 16);
        let one = [Record { logical: 0, physical: 9, length: 1, unwritten: false }];
        for name in [b"a", b"b", b"c", b"d", b"e", b"f"] {
            totals.add(name, &one);
        }
        let names: Vec<_> = totals.worst().iter().map(|file| file.name.as_slice()).collect();
        assert_eq!(names, [b"f", b"e", b"d", b"c", b"b"]);
    }
}
