//! One measured cell: one run of a workload under one policy with one number of workers.
//!
//! The field names are the keys of the JSON rows. The columns of the CSV file, README and `--help`
//! use the same names. Lists and most figures of modelled devices have no column.

use std::collections::BTreeMap;

use blockyard_disk::num::count_as_f64;
use serde::{Deserialize, Serialize};

use super::free_runs::FreeRuns;
use crate::reading::Reading;

/// How the workers of a cell share time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Interleave {
    /// Free-running threads of the operating system: fast, not repeatable.
    Threads,
    /// One operation after the other, workers in turn: repeatable to the byte.
    Lockstep,
    /// All workers of a round are within an operation at the same time. Each keeps its group's lock
    /// until the round ends. Repeatable; shows what contention does to placement.
    Overlap,
    /// Every worker on a CPU of a modelled machine, in virtual time. Repeatable; rates are
    /// predictions.
    Virtual,
}

impl Interleave {
    /// The name on the command line and in rows.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::Lockstep => "lockstep",
            Self::Overlap => "overlap",
            Self::Virtual => "virtual",
        }
    }
}

/// One measured cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name of the workload.
    pub workload: String,
    /// The policy arm as given on the command line, overrides included.
    pub policy: String,
    /// `fresh`, or the ageing of the image.
    #[serde(default = "crate::figures::states::fresh")]
    pub state: String,
    /// Number of workers.
    pub workers: u32,
    /// Number of logical CPUs, on which CPU slots, zones and locality groups depend.
    pub cpus: u32,
    /// How the workers shared time.
    pub interleave: Interleave,
    /// Seed of every random choice.
    pub seed: u64,
    /// Operations performed.
    pub ops: u64,
    /// Seconds, by the wall clock or in the time of a modelled device or machine.
    pub seconds: f64,
    /// Operations a second, all workers together.
    pub ops_per_s: f64,
    /// Operations a second of each worker, on average.
    pub ops_per_s_per_worker: f64,
    /// MiB of file space allocated, written or read a second.
    pub bw_mib_s: f64,
    /// Mean latency of an operation in microseconds.
    pub lat_us_mean: f64,
    /// Median latency in microseconds.
    pub lat_us_p50: f64,
    /// 99th percentile in microseconds.
    pub lat_us_p99: f64,
    /// 99.99th percentile in microseconds.
    pub lat_us_p9999: f64,
    /// Longest operation in microseconds.
    pub lat_us_max: f64,
    /// Mean number of extents of a file; contiguous ones count as one.
    pub extents_per_file: f64,
    /// Mean length of an extent in KiB.
    pub mean_extent_kb: f64,
    /// Free extents of the image (e2freefrag).
    pub free_extents: u64,
    /// Average length of a free extent in KiB (e2freefrag).
    pub avg_free_extent_kb: u64,
    /// Free extents by length; empty in virtual time.
    #[serde(default)]
    pub free_by_length: Vec<FreeRuns>,
    /// Groups that hold file data.
    pub groups_touched: u64,
    /// Acquisitions of shared locks per operation; `None` for the kernel, where they cannot be
    /// counted.
    pub lock_acquisitions: Option<f64>,
    /// Acquisitions of shared locks and group locks that had to wait, per operation; `None` for the
    /// kernel.
    pub lock_waits: Option<f64>,
    /// Groups skipped because their lock was held; `None` for the kernel.
    pub groups_skipped_busy: Option<u64>,
    /// Requests whose result starts exactly at the goal; `None` for the kernel.
    #[serde(default)]
    pub goal_hits: Option<u64>,
    /// Requests of large files that found space in the group of their stream goal, counted apart
    /// from `goal_hits`; `None` for the kernel, and if the policy's stream goal is not
    /// `group-only`.
    #[serde(default)]
    pub stream_goal_hits: Option<u64>,
    /// Entries of group indexes that searches visited; `None` for the kernel.
    #[serde(default)]
    pub index_entries: Option<u64>,
    /// Searches that ended at each criterion, by the names that the kernel's `mb_stats` gives them;
    /// empty for the kernel.
    pub hits: BTreeMap<String, u64>,
    /// Fragmentation score (e4defrag -c); `None` without files.
    pub score: Option<f64>,
    /// How long it takes to read the image afterwards; empty in virtual time.
    #[serde(default, flatten)]
    pub reading: Reading,
    /// The modelled machine; `None` unless the cell ran in virtual time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// Waits for each lock and cache line; only in virtual time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<Waits>,
    /// Figures of the modelled device, in whose time all rates and latencies then are; `None`
    /// without a modelled device.
    #[serde(flatten)]
    pub modelled: Option<OnDevice>,
}

/// Additional figures of a cell on a modelled device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OnDevice {
    /// The model, as given on the command line.
    pub device: String,
    /// The name of the workload in tables of devices.
    pub job: String,
    /// Standard deviation of the latency in microseconds.
    pub lat_us_stdev: f64,
    /// 99.9th percentile of the latency in microseconds.
    pub lat_us_p999: f64,
    /// Requests to the device.
    pub requests: u64,
    /// Flash pages programmed for each page written; `None` without writes, and for models other
    /// than `ftl`.
    pub write_amplification: Option<f64>,
    /// Fewest and most erasures of a flash block while the workers ran; `None` for models other
    /// than `ftl`.
    pub wear_spread: Option<(u64, u64)>,
    /// Mean number of metadata reads per operation.
    pub meta_reads_mean: f64,
    /// Most metadata reads in one operation.
    pub meta_reads_max: u64,
    /// All metadata reads by kind.
    pub meta_reads: crate::metered::MetadataReads,
}

impl crate::figures::states::Stated for Row {
    fn state(&self) -> &str {
        &self.state
    }

    fn as_fresh(&self) -> Self {
        Self { state: crate::figures::states::fresh(), ..self.clone() }
    }
}

/// Time that all CPUs of a modelled machine spent on the locks and cache lines of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// The name of the locks or cache lines.
    pub name: String,
    /// Acquisitions of these locks.
    pub taken: u64,
    /// Acquisitions that had to wait.
    pub waits: u64,
    /// Nanoseconds of waiting for these locks.
    pub wait_ns: u64,
    /// Nanoseconds of work while these locks were held.
    pub section_ns: u64,
    /// Moves of these cache lines between CPUs.
    pub moved: u64,
    /// Nanoseconds that these moves took, queueing included.
    pub moved_ns: u64,
}

impl Row {
    /// Names and values of the measured figures, in the order of their columns in a CSV file. NaN
    /// stands for `None`. The columns of `hits` are left out.
    #[must_use]
    pub fn figures(&self) -> Vec<(&'static str, f64)> {
        let count = count_as_f64;
        vec![
            ("ops", count(self.ops)),
            ("seconds", self.seconds),
            ("ops_per_s", self.ops_per_s),
            ("ops_per_s_per_worker", self.ops_per_s_per_worker),
            ("bw_mib_s", self.bw_mib_s),
            ("lat_us_mean", self.lat_us_mean),
            ("lat_us_p50", self.lat_us_p50),
            ("lat_us_p99", self.lat_us_p99),
            ("lat_us_p9999", self.lat_us_p9999),
            ("lat_us_max", self.lat_us_max),
            ("extents_per_file", self.extents_per_file),
            ("mean_extent_kb", self.mean_extent_kb),
            ("free_extents", count(self.free_extents)),
            ("avg_free_extent_kb", count(self.avg_free_extent_kb)),
            ("groups_touched", count(self.groups_touched)),
            ("lock_acquisitions", self.lock_acquisitions.unwrap_or(f64::NAN)),
            ("lock_waits", self.lock_waits.unwrap_or(f64::NAN)),
            ("groups_skipped_busy", self.groups_skipped_busy.map_or(f64::NAN, count)),
            ("goal_hits", self.goal_hits.map_or(f64::NAN, count)),
            ("stream_goal_hits", self.stream_goal_hits.map_or(f64::NAN, count)),
            ("index_entries", self.index_entries.map_or(f64::NAN, count)),
            ("score", self.score.unwrap_or(f64::NAN)),
            ("read_file_hdd_ms", self.reading.read_file_hdd_ms.unwrap_or(f64::NAN)),
            ("read_directory_hdd_ms", self.reading.read_directory_hdd_ms.unwrap_or(f64::NAN)),
            ("read_tree_hdd_ms", self.reading.read_tree_hdd_ms.unwrap_or(f64::NAN)),
            ("read_file_ssd_ms", self.reading.read_file_ssd_ms.unwrap_or(f64::NAN)),
            ("read_directory_ssd_ms", self.reading.read_directory_ssd_ms.unwrap_or(f64::NAN)),
            ("read_tree_ssd_ms", self.reading.read_tree_ssd_ms.unwrap_or(f64::NAN)),
            ("directory_runs", self.reading.directory_runs.map_or(f64::NAN, count)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::summary::tests::row;

    /// Nearly all figures differ, so hardly any columns can be swapped unnoticed.
    #[test]
    fn each_figure_stands_under_its_name() {
        let reading = Reading {
            read_file_hdd_ms: Some(11.0),
            read_directory_hdd_ms: Some(12.0),
            read_tree_hdd_ms: Some(13.0),
            read_file_ssd_ms: Some(14.0),
            read_directory_ssd_ms: Some(15.0),
            read_tree_ssd_ms: Some(16.0),
            directory_runs: Some(17),
        };
        let row = Row { score: Some(40.0), reading, ..row("yard", 4, 5000.0) };
        assert_eq!(
            row.figures(),
            [
                ("ops", 1000.0),
                ("seconds", 1.0),
                ("ops_per_s", 5000.0),
                ("ops_per_s_per_worker", 1250.0),
                ("bw_mib_s", 1.25),
                ("lat_us_mean", 0.5),
                ("lat_us_p50", 0.4),
                ("lat_us_p99", 2.0),
                ("lat_us_p9999", 9.0),
                ("lat_us_max", 50.0),
                ("extents_per_file", 1.5),
                ("mean_extent_kb", 700.0),
                ("free_extents", 70.0),
                ("avg_free_extent_kb", 12_000.0),
                ("groups_touched", 3.0),
                ("lock_acquisitions", 2.0),
                ("lock_waits", 0.1),
                ("groups_skipped_busy", 7.0),
                ("goal_hits", 80.0),
                ("stream_goal_hits", 30.0),
                ("index_entries", 900.0),
                ("score", 40.0),
                ("read_file_hdd_ms", 11.0),
                ("read_directory_hdd_ms", 12.0),
                ("read_tree_hdd_ms", 13.0),
                ("read_file_ssd_ms", 14.0),
                ("read_directory_ssd_ms", 15.0),
                ("read_tree_ssd_ms", 16.0),
                ("directory_runs", 17.0),
            ]
        );
    }
}
