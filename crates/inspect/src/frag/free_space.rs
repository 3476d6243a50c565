//! The free extents of an image: totals, minimum, maximum, average and the histogram of
//! `e2freefrag`.
//!
//! A free extent is a maximal run of blocks that the block bitmaps show as free. It may cross group
//! borders. Bucket `i` of the histogram holds runs of `[2^(i-1), 2^i)` blocks; the last bucket has
//! no upper limit.

use std::fmt::{self, Write as _};

/// Number of histogram buckets; the last one is open-ended.
pub const BUCKETS: usize = 32;

/// One row of the histogram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// Free extents whose length falls in this row.
    pub extents: u64,
    /// Blocks of these extents.
    pub blocks: u64,
}

/// Free extents gathered run by run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeSpace {
    block_size: u64,
    extents: u64,
    blocks: u64,
    longest: u64,
    shortest: u64,
    buckets: [Bucket; BUCKETS],
    chunks: Option<Chunks>,
}

/// Free aligned chunks of a chosen size (`e2freefrag -c`).
#[derive(Clone, Debug, PartialEq, Eq)]
struct Chunks {
    blocks_per_chunk: u64,
    free: u64,
}

/// A chunk size that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "chunk size {chunk_bytes} bytes: give a power of two of at least the block size ({block_size} bytes)"
)]
pub struct BadChunkSize {
    /// The size that was asked for, in bytes.
    pub chunk_bytes: u64,
    /// Bytes of a block.
    pub block_size: u64,
}

impl FreeSpace {
    /// No free extents yet. `block_size` in bytes.
    #[must_use]
    pub fn new(block_size: u64) -> Self {
        Self {
            block_size,
            extents: 0,
            blocks: 0,
            longest: 0,
            shortest: u64::MAX,
            buckets: [Bucket::default(); BUCKETS],
            chunks: None,
        }
    }

    /// Also counts free aligned chunks of `chunk_bytes`, which must be a power of two, at least
    /// 1 KiB, and at least the block size.
    ///
    /// # Errors
    /// When the size breaks a rule.
    pub fn with_chunks(mut self, chunk_bytes: u64) -> Result<Self, BadChunkSize> {
        if chunk_bytes < 1024 || !chunk_bytes.is_power_of_two() || chunk_bytes < self.block_size {
            return Err(BadChunkSize { chunk_bytes, block_size: self.block_size });
        }
        self.chunks = Some(Chunks { blocks_per_chunk: chunk_bytes / self.block_size, free: 0 });
        Ok(self)
    }

    /// Adds one maximal run of free blocks. Runs must not touch each other.
    ///
    /// # Panics
    /// When the run is empty.
    pub fn add_run(&mut self, first_block: u64, blocks: u64) {
        assert!(blocks > 0, "an empty run is not a free extent");
        self.extents += 1;
        self.blocks += blocks;
        self.longest = self.longest.max(blocks);
        self.shortest = self.shortest.min(blocks);
        let bucket = &mut self.buckets[bucket_of(blocks)];
        bucket.extents += 1;
        bucket.blocks += blocks;
        if let Some(chunks) = &mut self.chunks {
            let first_whole = first_block.div_ceil(chunks.blocks_per_chunk);
            let end_whole = (first_block + blocks) / chunks.blocks_per_chunk;
            chunks.free += end_whole.saturating_sub(first_whole);
        }
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_size(&self) -> u64 {
        self.block_size
    }

    /// Number of free extents.
    #[must_use]
    pub fn extents(&self) -> u64 {
        self.extents
    }

    /// Free blocks in all runs.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The shortest free extent in KiB; 0 when there is none.
    #[must_use]
    pub fn min_kib(&self) -> u64 {
        if self.extents == 0 { 0 } else { self.shortest * self.block_size / 1024 }
    }

    /// The longest free extent in KiB; 0 when there is none.
    #[must_use]
    pub fn max_kib(&self) -> u64 {
        self.longest * self.block_size / 1024
    }

    /// The average free extent in KiB, rounded down to whole blocks before scaling, as in
    /// `e2freefrag`; 0 when there is none.
    #[must_use]
    pub fn average_kib(&self) -> u64 {
        self.blocks.checked_div(self.extents).unwrap_or(0) * (self.block_size / 1024)
    }

    /// Share (0..=1) of the free blocks that lie in runs of at least `2^order` blocks; 0 without
    /// free blocks.
    #[must_use]
    pub fn share_in_runs_of(&self, order: usize) -> f64 {
        let long: u64 = self.buckets.iter().skip(order + 1).map(|bucket| bucket.blocks).sum();
        if self.blocks == 0 { 0.0 } else { ratio(long, self.blocks) }
    }

    /// The rows of the histogram that are not empty, with their bucket numbers.
    pub fn rows(&self) -> impl Iterator<Item = (usize, Bucket)> + '_ {
        self.buckets.iter().copied().enumerate().filter(|(_, bucket)| bucket.extents > 0)
    }

    /// The text that `e2freefrag` prints for `name`: `total_blocks` and `free_blocks` are the
    /// superblock's fields.
    #[must_use]
    pub fn report(&self, name: &str, total_blocks: u64, free_blocks: u64) -> String {
        let mut text = String::new();
        self.write_report(&mut text, name, total_blocks, free_blocks).expect("a String takes any text");
        text
    }

    fn write_report(&self, out: &mut String, name: &str, total: u64, free: u64) -> fmt::Result {
        writeln!(out, "Device: {name}\nBlocksize: {} bytes\nTotal blocks: {total}", self.block_size)?;
        writeln!(out, "Free blocks: {free} ({:.1}%)\n", percent(free, total))?;
        if let Some(chunks) = &self.chunks {
            let per_chunk = chunks.blocks_per_chunk;
            // If the total is a multiple of the chunk size, this is one too many, as in
            // `e2freefrag`.
            let all = (total + per_chunk) / per_chunk;
            writeln!(out, "Chunksize: {} bytes ({per_chunk} blocks)", per_chunk * self.block_size)?;
            writeln!(
                out,
                "Total chunks: {all}\nFree chunks: {} ({:.1}%)\n",
                chunks.free,
                percent(chunks.free, all)
            )?;
        }
        writeln!(out, "Min. free extent: {} KB ", self.min_kib())?;
        writeln!(
            out,
            "Max. free extent: {} KB\nAvg. free extent: {} KB",
            self.max_kib(),
            self.average_kib()
        )?;
        writeln!(out, "Num. free extent: {}\n\nHISTOGRAM OF FREE EXTENT SIZES:", self.extents)?;
        out.push_str("Extent Size Range :  Free extents   Free Blocks  Percent\n");
        for (index, bucket) in self.rows() {
            let range = size_range(index, self.block_size);
            let share = percent(bucket.blocks, free);
            writeln!(out, "{range}  :  {:>12}  {:>12}  {share:>6.2}%", bucket.extents, bucket.blocks)?;
        }
        Ok(())
    }
}

/// floor(log2(blocks)) + 1; the last bucket takes everything above.
fn bucket_of(blocks: u64) -> usize {
    let order = blocks_order(blocks) + 1;
    order.min(BUCKETS - 1)
}

fn blocks_order(blocks: u64) -> usize {
    blockyard_disk::num::usize_from_u32(blocks.ilog2())
}

/// A range as `  512K... 1024K-`: both ends are in the unit of the start.
fn size_range(bucket: usize, block_size: u64) -> String {
    let start = block_size << (bucket - 1);
    let (divisor, unit) = unit_of(start);
    if bucket == BUCKETS - 1 {
        return format!("{:>5}{unit}...{:>6}-", start / divisor, "max ");
    }
    format!("{:>5}{unit}...{:>5}{unit}-", start / divisor, (start << 1) / divisor)
}

fn unit_of(bytes: u64) -> (u64, char) {
    let mut divisor = 1u64 << 10;
    let mut units = ['K', 'M', 'G', 'T', 'P'].into_iter();
    let mut unit = units.next().expect("the list of units is not empty");
    for larger in units {
        if bytes < divisor << 10 {
            break;
        }
        divisor <<= 10;
        unit = larger;
    }
    (divisor, unit)
}

fn percent(part: u64, whole: u64) -> f64 {
    100.0 * ratio(part, whole)
}

/// A quotient for print; counts of blocks stay far below 2^53.
#[allow(clippy::as_conversions, reason = "u64 to f64 has no From; exact below 2^53")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_is_cut_to_blocks_before_it_is_scaled() {
        let mut space = FreeSpace::new(4096);
        for (first, blocks) in [(10, 5), (20, 3000), (4000, 10_000), (20_000, 232)] {
            space.add_run(first, blocks);
        }
        assert_eq!((space.blocks(), space.extents()), (13_237, 4));
        assert_eq!(space.average_kib(), 3309 * 4);
    }

    #[test]
    fn a_row_keeps_the_unit_of_its_start() {
        assert_eq!(size_range(10, 1024), "  512K... 1024K-");
        assert_eq!(size_range(11, 1024), "    1M...    2M-");
        assert_eq!(size_range(2, 1024), "    2K...    4K-");
    }

    #[test]
    fn whole_chunks_only_and_one_chunk_too_many_in_the_total() {
        let mut space = FreeSpace::new(4096).with_chunks(1 << 20).unwrap();
        space.add_run(1, 255 + 256 + 10);
        assert_eq!(space.chunks.as_ref().unwrap().free, 1);
        assert!(space.report("x", 16_384, 521).contains("Total chunks: 65\nFree chunks: 1 (1.5%)"));
        for chunk_bytes in [3000, 2048] {
            let refused = BadChunkSize { chunk_bytes, block_size: 4096 };
            assert_eq!(FreeSpace::new(4096).with_chunks(chunk_bytes).err(), Some(refused));
        }
    }

    #[test]
    fn no_free_extent_prints_zeroes() {
        let text = FreeSpace::new(1024).report("full.img", 100, 0);
        assert!(text.contains("Min. free extent: 0 KB \nMax. free extent: 0 KB\nAvg. free extent: 0 KB\n"));
    }

    #[test]
    fn long_runs_have_their_share() {
        let mut space = FreeSpace::new(4096);
        space.add_run(0, 64);
        space.add_run(100, 64);
        space.add_run(1000, 128);
        assert!((space.share_in_runs_of(7) - 0.5).abs() < 1e-9);
        assert!((space.share_in_runs_of(6) - 1.0).abs() < 1e-9);
    }
}
