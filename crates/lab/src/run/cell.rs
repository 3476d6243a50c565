//! One run of one policy with one number of workers, on blockyard's engine or, in virtual time, on
//! its allocator alone.

use anyhow::Result;
use blockyard_alloc::policy::slots::StreamGoal;
use blockyard_alloc::{CRITERIA, LockCensus, MbStats, Policy, Tunable};
use blockyard_disk::num::count_as_f64;
use blockyard_engine::{FileSystem, JournalUse, OpenOptions};
use blockyard_inspect::scan::ImageScan;

use super::on_device::{CACHE_BYTES, DeviceStack};
use super::{CellDevice, Judged, Plan};
use crate::device_model::DeviceModel;
use crate::figures::free_runs::by_length;
use crate::figures::row::{Interleave, Row};
use crate::reading::Reading;
use crate::runner::{self, Measured};
use crate::target::engine::{EngineTarget, context};
use crate::workload::MIB;

/// The kernel's names for the criteria in `mb_stats`.
pub(super) const CRITERION_NAMES: [&str; CRITERIA] =
    ["p2_aligned", "goal_fast", "best_avail", "goal_slow", "any_free"];

pub(super) struct Cell<'a> {
    pub(super) plan: &'a Plan,
    pub(super) policy: Policy,
    pub(super) journal: bool,
    pub(super) name: &'a str,
    pub(super) workers: u32,
}

impl Cell<'_> {
    pub(super) fn run(&self, judged: &mut Judged, is_last: bool) -> Result<Row> {
        let plan = self.plan;
        if plan.interleave == Interleave::Virtual {
            return self.run_virtual();
        }
        let cpus = plan.cpus.unwrap_or(self.workers);
        let device = plan.image.device()?;
        if let Some(model) = &plan.device {
            return self.run_on(&device, model, judged, is_last);
        }
        plan.age(device.shared(), self.policy)?;
        let target = self.target(device.shared(), cpus)?;
        target.file_system().allocator().set_tunable(Tunable::Stats, 1)?;
        let workers = plan.workload.workers(&target, self.workers, cpus)?;
        let before = census(&target);
        let (measured, workers) = runner::run(&target, workers, cpus, plan.interleave, plan.limit)?;
        let after = census(&target);
        runner::finish(&target, workers, cpus, plan.interleave)?;
        target.close()?;
        let scan = judged.image(&device, is_last)?;
        let mut row = figures(plan, self.name, (self.workers, cpus), &measured, &scan);
        row.count(&self.policy, &measured, (&before, &after));
        row.reading = Reading::of(device.shared(), plan.seed)?;
        judged.note_map(self.name, self.workers, scan);
        self.write_back(&device, judged)?;
        Ok(row)
    }

    /// If the plan works on the image file in place, writes the changes to this file. Refuses if
    /// the judges found errors.
    fn write_back(&self, device: &CellDevice, judged: &Judged) -> Result<()> {
        if self.plan.image.is_in_place() {
            anyhow::ensure!(judged.verdict.is_clean(), "the image was not written: the judges found errors");
            device.commit()?;
        }
        Ok(())
    }

    /// Runs the cell on a modelled device.
    fn run_on(
        &self,
        device: &CellDevice,
        model: &DeviceModel,
        judged: &mut Judged,
        is_last: bool,
    ) -> Result<Row> {
        let plan = self.plan;
        let cpus = plan.cpus.unwrap_or(self.workers);
        let mut stack = DeviceStack::new(device.shared(), model)?;
        plan.age(stack.shared(), self.policy)?;
        let target = self.target(stack.shared(), cpus)?;
        target.file_system().allocator().set_tunable(Tunable::Stats, 1)?;
        let workers = plan.workload.workers(&target, self.workers, cpus)?;
        if plan.workload.lays_out() {
            // Otherwise, the first reads would wait until the device has ended the writes that laid
            // out the files.
            target.file_system().sync(&context(0))?;
            stack.shared().flush()?;
        }
        if plan.requests.is_some() {
            stack.modelled().keep_trace();
        }
        if plan.operations.is_some() {
            stack.keep_operations();
        }
        let before = census(&target);
        let (measured, workers) = stack.run(&target, workers, cpus, plan.limit)?;
        let after = census(&target);
        if let Some(path) = &plan.requests {
            let trace = stack.modelled().take_trace().unwrap_or_default();
            crate::new_file::write(path, &trace.to_string())?;
        }
        let content = target.content()?;
        if let Some(path) = &plan.operations {
            crate::new_file::write(path, &stack.operations(&content)?)?;
        }
        let modelled = stack.figures(plan.workload.name(), &measured, &content);
        runner::finish(&target, workers, cpus, plan.interleave)?;
        target.close()?;
        let scan = judged.image(device, is_last)?;
        let mut row = figures(plan, self.name, (self.workers, cpus), &measured, &scan);
        row.count(&self.policy, &measured, (&before, &after));
        row.reading = Reading::of(device.shared(), plan.seed)?;
        row.modelled = Some(modelled);
        judged.note_map(self.name, self.workers, scan);
        self.write_back(device, judged)?;
        Ok(row)
    }

    fn target(
        &self,
        device: std::sync::Arc<dyn blockyard_device::BlockDevice>,
        cpus: u32,
    ) -> Result<EngineTarget> {
        let options = OpenOptions {
            cpus,
            policy: self.policy,
            rotational: self.plan.rotational,
            seed: self.plan.seed,
            journal: if self.journal { JournalUse::Journaled } else { JournalUse::Ignored },
            dirty_data_bytes: self.plan.dirty_data_bytes(),
            ..OpenOptions::default()
        };
        let is_short = self.plan.device.is_some();
        let cache_bytes =
            if is_short { self.plan.cache_bytes.unwrap_or(CACHE_BYTES) } else { options.cache_bytes };
        let options = OpenOptions { cache_bytes, ..options };
        if self.plan.interleave == Interleave::Overlap {
            return EngineTarget::overlapping(device, options);
        }
        Ok(EngineTarget::new(FileSystem::open(device, options, &context(0))?))
    }
}

impl Judged {
    /// Scans the image that the workers left, and lets the judges check it.
    fn image(&mut self, device: &CellDevice, is_last: bool) -> Result<ImageScan> {
        let shared = device.shared();
        let scan = ImageScan::of(std::sync::Arc::clone(&shared))?;
        self.verdict.check(&*shared)?;
        if is_last {
            self.verdict.e2fsck(|path| device.save(path))?;
        }
        Ok(scan)
    }
}

/// A row with what was measured and what the scan of the image found. Callers fill in the other
/// fields.
pub(super) fn figures(
    plan: &Plan,
    policy: &str,
    (workers, cpus): (u32, u32),
    measured: &Measured,
    scan: &ImageScan,
) -> Row {
    let seconds = measured.seconds.max(1e-9);
    let ops_per_s = count_as_f64(measured.ops) / seconds;
    Row {
        workload: plan.workload.name(),
        policy: policy.to_owned(),
        state: plan.state(),
        workers,
        cpus,
        interleave: plan.interleave,
        seed: plan.seed,
        ops: measured.ops,
        seconds: measured.seconds,
        ops_per_s,
        ops_per_s_per_worker: ops_per_s / f64::from(workers),
        bw_mib_s: count_as_f64(measured.bytes) / count_as_f64(MIB) / seconds,
        lat_us_mean: measured.latency_ns.mean() / 1e3,
        lat_us_p50: measured.latency_us(0.5),
        lat_us_p99: measured.latency_us(0.99),
        lat_us_p9999: measured.latency_us(0.9999),
        lat_us_max: count_as_f64(measured.latency_ns.max()) / 1e3,
        extents_per_file: scan.extents_per_file(),
        mean_extent_kb: scan.mean_extent_kb(),
        free_extents: scan.free.extents(),
        avg_free_extent_kb: scan.free.average_kib(),
        free_by_length: by_length(&scan.free),
        groups_touched: scan.groups_touched,
        lock_acquisitions: None,
        lock_waits: None,
        groups_skipped_busy: None,
        goal_hits: None,
        stream_goal_hits: None,
        index_entries: None,
        hits: std::collections::BTreeMap::new(),
        score: scan.defrag.score().map(f64::from),
        reading: Reading::default(),
        machine: None,
        waits: Vec::new(),
        modelled: None,
    }
}

impl Row {
    /// Adds what the allocator counted between two moments.
    pub(super) fn count(
        &mut self,
        policy: &Policy,
        measured: &Measured,
        (before, after): (&Census, &Census),
    ) {
        debug_assert!(after.acquisitions >= before.acquisitions, "a lock was counted less than before");
        let per_op = |count: u64| Some(count_as_f64(count) / count_as_f64(measured.ops.max(1)));
        self.lock_acquisitions = per_op(after.acquisitions - before.acquisitions);
        self.lock_waits = per_op(after.waits - before.waits);
        let grown = |count: fn(&MbStats) -> u64| Some(count(&after.stats) - count(&before.stats));
        self.groups_skipped_busy = grown(|stats| stats.busy_skips[0]);
        self.goal_hits = grown(|stats| stats.goal_hits[0]);
        // Linux counts hits of the stream goal only since patch 2 of the 6.17 series.
        self.stream_goal_hits =
            grown(|stats| stats.stream_goal_hits[0]).filter(|_| policy.stream_goal == StreamGoal::GroupOnly);
        self.index_entries = grown(|stats| stats.index_entries[0]);
        let hits = after.stats.hits.iter().zip(before.stats.hits).map(|(after, before)| after - before);
        self.hits = CRITERION_NAMES.into_iter().map(str::to_owned).zip(hits).collect();
    }
}

/// Counters of the allocator at one moment.
pub(super) struct Census {
    pub(super) stats: MbStats,
    /// Acquisitions of locks that the whole file system shares.
    pub(super) acquisitions: u64,
    /// Waits for shared locks and for group locks.
    pub(super) waits: u64,
}

impl Census {
    pub(super) fn new(stats: MbStats, locks: &LockCensus) -> Self {
        Self {
            stats,
            acquisitions: locks.shared_acquisitions(),
            waits: locks.shared.iter().map(|(_, figures)| figures.waits).sum::<u64>() + locks.groups.waits,
        }
    }
}

fn census(target: &EngineTarget) -> Census {
    let allocator = target.file_system().allocator();
    Census::new(allocator.stats(), &allocator.lock_census())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::run::ImageSource;
    use blockyard_disk::InodeNr;
    use blockyard_disk::inode::FileType;
    use blockyard_engine::NewInode;
    use blockyard_inspect::frag::defrag::DefragTotals;
    use blockyard_inspect::frag::file::Record;
    use blockyard_inspect::frag::free_space::FreeSpace;
    use blockyard_sync::LockClassFigures;

    /// A scan with invented figures: two files with three runs and twelve blocks of 4 KiB in all,
    /// in five groups, and free runs of four and of ten blocks. The score is that of another file,
    /// with two extents and 20 blocks.
    pub(crate) fn scan() -> ImageScan {
        let device = ImageSource::memory(64 * MIB, 1).device().unwrap();
        let mut free = FreeSpace::new(4096);
        free.add_run(10, 4);
        free.add_run(100, 10);
        let mut defrag = DefragTotals::new(4096, 32_768, 1);
        let record = |logical, physical| Record { logical, physical, length: 10, unwritten: false };
        defrag.add(b"/f", &[record(0, 100), record(10, 200)]);
        let (runs, files, blocks, groups_touched, block_size) = (3, 2, 12, 5, 4096);
        ImageScan {
            free,
            defrag,
            runs,
            files,
            blocks,
            groups_touched,
            block_size,
            ..ImageScan::of(device.shared()).unwrap()
        }
    }

    /// Ten thousand operations in two seconds.
    fn measured() -> Measured {
        let mut latency_ns = hdrhistogram::Histogram::new_with_bounds(1, 1_000_000, 3).unwrap();
        for (ns, count) in [(100, 5000), (200, 4000), (300, 980), (400, 15), (500, 4), (2000, 1)] {
            latency_ns.record_n(ns, count).unwrap();
        }
        Measured { ops: 10_000, bytes: 64 * MIB, seconds: 2.0, latency_ns }
    }

    fn plan() -> Plan {
        Plan { cpus: Some(2), ..crate::run::tests::plan("fallocate2", Interleave::Threads, 1) }
    }

    /// Checks the units and divisors of a row's figures.
    #[test]
    fn a_row_has_the_figures_of_what_was_measured() {
        let row = figures(&plan(), "yard", (4, 2), &measured(), &scan());
        assert_eq!((row.workers, row.cpus, row.seed, row.ops), (4, 2, 7, 10_000));
        assert_eq!((row.seconds, row.ops_per_s, row.ops_per_s_per_worker), (2.0, 5000.0, 1250.0));
        assert_eq!(row.bw_mib_s, 32.0);
        // (5000 x 100 + 4000 x 200 + 980 x 300 + 15 x 400 + 4 x 500 + 2000) / 10,000 ns.
        assert!((row.lat_us_mean - 0.1604).abs() < 1e-9, "{}", row.lat_us_mean);
        assert_eq!((row.lat_us_p50, row.lat_us_p99, row.lat_us_p9999, row.lat_us_max), (0.1, 0.3, 0.5, 2.0));
        assert_eq!((row.extents_per_file, row.mean_extent_kb), (1.5, 16.0));
        assert_eq!((row.free_extents, row.avg_free_extent_kb, row.groups_touched), (2, 28, 5));
        // One extent record more than necessary, in 20 blocks, is 5 %. Up to 10 %, the score is 8
        // times this percentage.
        assert_eq!(row.score, Some(40.0));
    }

    fn policy(name: &str) -> Policy {
        Policy::parse(name).unwrap()
    }

    #[test]
    fn what_the_allocator_counted_is_told_an_operation() {
        let mut row = figures(&plan(), "yard", (4, 2), &measured(), &scan());
        let locks = |acquisitions, waits, of_groups| LockCensus {
            groups: LockClassFigures { acquisitions: 99, waits: of_groups, busy: 0 },
            shared: vec![
                ("md", LockClassFigures { acquisitions, waits, busy: 0 }),
                ("lists", LockClassFigures { acquisitions: 1, waits: 1, busy: 0 }),
            ],
        };
        let stats = |busy, hits| MbStats {
            busy_skips: [busy],
            hits,
            goal_hits: [2 * busy],
            stream_goal_hits: [3 * busy],
            index_entries: [4 * busy],
            ..MbStats::default()
        };
        let before = Census::new(stats(7, [1, 1, 1, 1, 1]), &locks(100, 10, 5));
        let after = Census::new(stats(19, [11, 21, 31, 41, 51]), &locks(25_100, 60, 55));
        row.count(&policy("yard"), &measured(), (&before, &after));
        assert_eq!((row.lock_acquisitions, row.lock_waits), (Some(2.5), Some(0.01)));
        assert_eq!(row.groups_skipped_busy, Some(12));
        assert_eq!((row.goal_hits, row.stream_goal_hits, row.index_entries), (Some(24), Some(36), Some(48)));
        // Before patch 2 of the series, Linux did not count hits of the stream goal.
        row.count(&policy("linux-6.16"), &measured(), (&before, &after));
        assert_eq!((row.goal_hits, row.stream_goal_hits), (Some(24), None));
        let hits: Vec<_> = row.hits.iter().map(|(name, count)| (name.as_str(), *count)).collect();
        let by_name =
            [("any_free", 50), ("best_avail", 30), ("goal_fast", 20), ("goal_slow", 40), ("p2_aligned", 10)];
        assert_eq!(hits, by_name);
    }

    /// A file of three blocks, a hole and two blocks, and a file of four blocks: three runs, nine
    /// blocks.
    #[test]
    fn a_scan_counts_the_runs_of_files() {
        let device = ImageSource::memory(1 << 30, 1).device().unwrap();
        let fs = FileSystem::open(device.shared(), OpenOptions::default(), &context(0)).unwrap();
        let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
        for (name, runs) in [(&b"two"[..], &[(0, 3), (10, 2)][..]), (b"one", &[(0, 4)])] {
            let file = fs.create(&context(0), InodeNr::ROOT, name, &new).unwrap();
            for &(block, count) in runs {
                fs.write(&context(0), file, block * 4096, &vec![1; count * 4096]).unwrap();
            }
        }
        fs.close(&context(0)).unwrap();
        let scan = ImageScan::of(device.shared()).unwrap();
        assert_eq!((scan.files, scan.runs, scan.blocks), (2, 3, 9));
        assert_eq!((scan.extents_per_file(), scan.mean_extent_kb()), (1.5, 12.0));
        let of_files = scan.file_map.figures();
        assert_eq!((of_files.used_clusters, of_files.touched_groups), (9, scan.groups_touched));
    }
}
