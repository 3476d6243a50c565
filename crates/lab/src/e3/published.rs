//! Published figures, printed next to ours and marked as published.
//!
//! Published figures come from other machines. So compare ratios and the shapes of curves, never
//! absolute numbers.

/// One column of the bigalloc experiment (2011): a file server with direct I/O on preallocated
/// files, after days of steady state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Clusters {
    /// Name of the file system.
    pub name: &'static str,
    /// Mean time of a call in microseconds: fallocate, truncate.
    pub mean_us: [f64; 2],
    /// Mean metadata reads a call: fallocate, truncate.
    pub mean_reads: [f64; 2],
    /// Most metadata reads in a call: fallocate, truncate.
    pub most_reads: [u64; 2],
    /// Per cent of direct reads, and of direct writes, that took over 100 ms.
    pub slow_percent: [f64; 2],
}

/// The bigalloc experiment, from no clusters to the largest.
pub(super) const CLUSTERS: [Clusters; 4] = [
    Clusters {
        name: "stock ext4",
        mean_us: [14_262.0, 12_944.0],
        mean_reads: [1.1494, 0.8256],
        most_reads: [11, 27],
        slow_percent: [0.498, 0.202],
    },
    Clusters {
        name: "64k clusters",
        mean_us: [895.0, 6911.0],
        mean_reads: [0.0417, 0.4877],
        most_reads: [2, 3],
        slow_percent: [0.228, 0.134],
    },
    Clusters {
        name: "256k",
        mean_us: [318.0, 4541.0],
        mean_reads: [0.0084, 0.2822],
        most_reads: [2, 3],
        slow_percent: [0.257, 0.109],
    },
    Clusters {
        name: "1M",
        mean_us: [122.0, 4558.0],
        mean_reads: [0.000_77, 0.2744],
        most_reads: [1, 3],
        slow_percent: [0.269, 0.0582],
    },
];
