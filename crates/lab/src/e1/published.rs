//! Published figures of the scalability series (Linux 6.17, July 2025). Tables print them next to
//! ours and mark them as published.
//!
//! Published figures come from other machines. So compare ratios and the shapes of curves, never
//! absolute numbers.

/// One column of the append test: 64 threads append 4 KiB at a time by fallocate, each to its own
/// file, until the file has 1 GiB.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Append64 {
    /// The kernel, before (`base`) or after (`patched`) the series, and its scan mode.
    pub arm: &'static str,
    /// MiB a second.
    pub bandwidth_mib_s: f64,
    /// Average free extent in KiB.
    pub average_free_extent_kb: u64,
    /// Number of free extents.
    pub free_extents: u64,
    /// Average number of extents a file.
    pub extents_per_file: u64,
    /// Average size of an extent in KiB.
    pub kb_per_extent: u64,
    /// Fragmentation score of `e4defrag -c`.
    pub score: u32,
}

/// The append test before and after the series.
pub(super) const APPEND64: [Append64; 4] = [
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

/// `fallocate2` before the series: the number of workers, and the operations a second of each
/// worker.
pub(super) const FALLOCATE2_BASE: [(u32, f64); 7] =
    [(1, 295_287.0), (2, 70_665.0), (4, 33_865.0), (8, 19_387.0), (16, 10_104.0), (32, 5588.0), (64, 3588.0)];

/// `fallocate2` on one machine in one scan mode: the operations a second of each worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Fallocate2 {
    /// The machine.
    pub machine: &'static str,
    /// Number of workers of `all_base` and `all_patched`.
    pub workers: u32,
    /// Whether the scan was optimised (`mb_optimize_scan`).
    pub optimize_scan: bool,
    /// On all CPUs, before the series.
    pub all_base: f64,
    /// On all CPUs, after the series.
    pub all_patched: f64,
    /// With one worker, before the series.
    pub one_base: f64,
    /// With one worker, after the series.
    pub one_patched: f64,
}

/// `fallocate2` before and after the series.
pub(super) const FALLOCATE2: [Fallocate2; 4] = [
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
