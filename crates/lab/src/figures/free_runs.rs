//! The free extents of an image by length, as e2freefrag's histogram counts them.

use blockyard_inspect::frag::free_space::{Bucket, FreeSpace};
use serde::{Deserialize, Serialize};

/// The free extents whose lengths in blocks are from one power of two up to the next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FreeRuns {
    /// The lower bound of these lengths, in KiB.
    pub from_kb: u64,
    /// Number of these extents.
    pub extents: u64,
    /// Share (0..=1) of the free blocks that are in these extents and all longer ones.
    pub share_from: f64,
}

/// The free extents for each range of lengths that occurs, shortest first.
pub(crate) fn by_length(free: &FreeSpace) -> Vec<FreeRuns> {
    let row = |(bucket, of_bucket): (usize, Bucket)| {
        let order = bucket.saturating_sub(1);
        FreeRuns {
            from_kb: (free.block_size() << order) / 1024,
            extents: of_bucket.extents,
            share_from: free.share_in_runs_of(order),
        }
    };
    free.rows().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_counts_all_longer_runs() {
        let mut free = FreeSpace::new(4096);
        for (first, blocks) in [(10, 1), (20, 1), (40, 5), (100, 8), (1000, 1009)] {
            free.add_run(first, blocks);
        }
        let of = |from_kb, extents, blocks: f64| FreeRuns { from_kb, extents, share_from: blocks / 1024.0 };
        let expected = [of(4, 2, 1024.0), of(16, 1, 1022.0), of(32, 1, 1017.0), of(2048, 1, 1009.0)];
        assert_eq!(by_length(&free), expected);
        assert!(by_length(&FreeSpace::new(1024)).is_empty());
    }
}
