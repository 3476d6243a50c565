//! Published figures, for print beside ours and marked as such.
//!
//! They come from other machines: what may be compared is ratios and shapes, never absolute numbers.

/// One column of the append test: 64 threads appending 4 KiB by fallocate to 1 GiB files.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Append64 {
    /// Which kernel and scan mode.
    pub arm: &'static str,
    /// MiB a second.
    pub bandwidth_mib_s: f64,
    /// Average free extent in KiB.
    pub average_free_extent_kb: u64,
    /// Number of free extents.
    pub free_extents: u64,
    /// Average extents a file.
    pub extents_per_file: u64,
    /// Average size of an extent in KiB.
    pub kb_per_extent: u64,
    /// Score of `e4defrag -c`.
    pub score: u32,
}

/// The append test before and after the scalability series (Linux 6.17, July 2025).
pub const APPEND64: [Append64; 4] = [
    Append64 {
        arm: "base linear",
        bandwidth_mib_s: 217.0,
        average_free_extent_kb: 1_943_732,
        free_extents: 71,
        extents_per_file: 261_967,
        kb_per_extent: 4,
        score: 100,
    },
    Append64 {
        arm: "base opt_scan",
        bandwidth_mib_s: 217.0,
        average_free_extent_kb: 1_943_732,
        free_extents: 71,
        extents_per_file: 261_973,
        kb_per_extent: 4,
        score: 100,
    },
    Append64 {
        arm: "patched linear",
        bandwidth_mib_s: 5718.0,
        average_free_extent_kb: 1_316_212,
        free_extents: 105,
        extents_per_file: 588,
        kb_per_extent: 1780,
        score: 2,
    },
    Append64 {
        arm: "patched opt_scan",
        bandwidth_mib_s: 5626.0,
        average_free_extent_kb: 1_171_208,
        free_extents: 118,
        extents_per_file: 570,
        kb_per_extent: 1837,
        score: 2,
    },
];

/// Workers and operations a second and worker of `fallocate2` before the series.
pub const FALLOCATE2_BASE: [(u32, f64); 7] =
    [(1, 295_287.0), (2, 70_665.0), (4, 33_865.0), (8, 19_387.0), (16, 10_104.0), (32, 5588.0), (64, 3588.0)];

/// `fallocate2` on one machine and scan mode: operations a second and worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fallocate2 {
    /// The machine.
    pub machine: &'static str,
    /// Workers in the columns "all CPUs".
    pub workers: u32,
    /// Whether the scan was optimised.
    pub optimize_scan: bool,
    /// All CPUs, before.
    pub all_base: f64,
    /// All CPUs, after.
    pub all_patched: f64,
    /// One worker, before.
    pub one_base: f64,
    /// One worker, after.
    pub one_patched: f64,
}

/// `fallocate2` before and after the series.
pub const FALLOCATE2: [Fallocate2; 4] = [
    Fallocate2 {
        machine: "Kunpeng 920",
        workers: 80,
        optimize_scan: false,
        all_base: 2667.0,
        all_patched: 20_049.0,
        one_base: 314_065.0,
        one_patched: 316_724.0,
    },
    Fallocate2 {
        machine: "Kunpeng 920",
        workers: 80,
        optimize_scan: true,
        all_base: 2643.0,
        all_patched: 19_342.0,
        one_base: 316_344.0,
        one_patched: 328_324.0,
    },
    Fallocate2 {
        machine: "2 x AMD 9654",
        workers: 96,
        optimize_scan: false,
        all_base: 3450.0,
        all_patched: 52_125.0,
        one_base: 205_851.0,
        one_patched: 215_136.0,
    },
    Fallocate2 {
        machine: "2 x AMD 9654",
        workers: 96,
        optimize_scan: true,
        all_base: 3209.0,
        all_patched: 50_331.0,
        one_base: 207_373.0,
        one_patched: 209_431.0,
    },
];

/// One row of the round-robin comparison (February 2026).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundRobin {
    /// The workload.
    pub workload: &'static str,
    /// `regular` or `rralloc`.
    pub policy: &'static str,
    /// MiB a second.
    pub bandwidth_mib_s: f64,
    /// I/O operations a second.
    pub iops: f64,
    /// Mean latency in microseconds.
    pub latency_us: f64,
}

/// The round-robin comparison: one run a cell.
pub const ROUND_ROBIN: [RoundRobin; 6] = [
    RoundRobin {
        workload: "seqwrite",
        policy: "regular",
        bandwidth_mib_s: 497.0,
        iops: 496.0,
        latency_us: 9190.0,
    },
    RoundRobin {
        workload: "seqwrite",
        policy: "rralloc",
        bandwidth_mib_s: 538.0,
        iops: 537.0,
        latency_us: 9370.0,
    },
    RoundRobin {
        workload: "smallfiles",
        policy: "regular",
        bandwidth_mib_s: 707.0,
        iops: 181e3,
        latency_us: 2.03,
    },
    RoundRobin {
        workload: "smallfiles",
        policy: "rralloc",
        bandwidth_mib_s: 586.0,
        iops: 150e3,
        latency_us: 2.18,
    },
    RoundRobin {
        workload: "allocstress",
        policy: "regular",
        bandwidth_mib_s: 166.0,
        iops: 42.4e3,
        latency_us: 1130.0,
    },
    RoundRobin {
        workload: "allocstress",
        policy: "rralloc",
        bandwidth_mib_s: 283.0,
        iops: 72.5e3,
        latency_us: 660.0,
    },
];

/// What the published allocation maps show after one copy of a tree over itself (818 groups, 32 squares a group).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CopyMap {
    /// `regular` or `rralloc`.
    pub policy: &'static str,
    /// Which copy, from 1.
    pub copy: u32,
    /// Changes between used and free squares.
    pub boundaries: u64,
    /// Groups without a used square.
    pub empty_groups: u64,
    /// Jaccard index with the map after the copy before; none for the first.
    pub overlap_previous: Option<f64>,
}

/// The maps of the round-robin comparison.
pub const COPY_MAPS: [CopyMap; 6] = [
    CopyMap { policy: "regular", copy: 1, boundaries: 126, empty_groups: 542, overlap_previous: None },
    CopyMap { policy: "regular", copy: 2, boundaries: 180, empty_groups: 509, overlap_previous: Some(0.63) },
    CopyMap { policy: "regular", copy: 3, boundaries: 320, empty_groups: 479, overlap_previous: Some(0.69) },
    CopyMap { policy: "rralloc", copy: 1, boundaries: 108, empty_groups: 543, overlap_previous: None },
    CopyMap { policy: "rralloc", copy: 2, boundaries: 1018, empty_groups: 428, overlap_previous: Some(0.31) },
    CopyMap { policy: "rralloc", copy: 3, boundaries: 884, empty_groups: 430, overlap_previous: Some(0.26) },
];

/// The bigalloc experiment (2011): a file server with direct I/O on preallocated files, after days of steady state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clusters {
    /// Which file system.
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
pub const CLUSTERS: [Clusters; 4] = [
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

/// e2fsck on one file system of the layout comparison (2009): a tree of 312,820 files on 32 GB.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layout {
    /// Which file system.
    pub name: &'static str,
    /// Passes 1 to 5 and their sum: seconds real, user and system, MB read, MB a second.
    pub passes: [[f64; 5]; 6],
}

/// The layout comparison.
pub const LAYOUTS: [Layout; 3] = [
    Layout {
        name: "ext3",
        passes: [
            [108.40, 13.74, 11.53, 583.0, 5.38],
            [5.91, 1.74, 2.56, 133.0, 22.51],
            [0.03, 0.01, 0.0, 1.0, 31.21],
            [0.28, 0.27, 0.0, 0.0, 0.0],
            [3.17, 0.92, 0.13, 2.0, 0.63],
            [118.15, 16.75, 14.25, 718.0, 6.08],
        ],
    },
    Layout {
        name: "ext4 old allocator",
        passes: [
            [6.69, 4.06, 0.90, 82.0, 12.25],
            [13.34, 2.30, 3.78, 133.0, 9.97],
            [0.02, 0.01, 0.0, 1.0, 63.85],
            [0.28, 0.27, 0.0, 0.0, 0.0],
            [2.60, 2.31, 0.03, 1.0, 0.38],
            [23.06, 9.03, 4.74, 216.0, 9.37],
        ],
    },
    Layout {
        name: "ext4 new allocator",
        passes: [
            [6.70, 3.63, 1.58, 82.0, 12.23],
            [4.24, 1.27, 2.46, 133.0, 31.36],
            [0.01, 0.01, 0.01, 1.0, 82.69],
            [0.23, 0.22, 0.0, 0.0, 0.0],
            [2.42, 2.15, 0.07, 1.0, 0.41],
            [13.78, 7.33, 4.19, 216.0, 15.68],
        ],
    },
];
