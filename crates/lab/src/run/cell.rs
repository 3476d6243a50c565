//! One policy with one number of workers, once, on blockyard's engine.

use anyhow::Result;
use blockyard_alloc::{CRITERIA, MbStats, Policy, Tunable};
use blockyard_disk::num::count_as_f64;
use blockyard_engine::{FileSystem, JournalUse, OpenOptions};
use blockyard_inspect::scan::ImageScan;

use super::{Judged, Plan};
use crate::figures::row::{Interleave, Row};
use crate::runner::{self, Measured};
use crate::target::engine::{EngineTarget, context};
use crate::workload::MIB;

/// What the kernel calls the criteria in `mb_stats`.
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
        let cpus = plan.cpus.unwrap_or(self.workers);
        let device = plan.image.device()?;
        let target = self.target(device.shared(), cpus)?;
        target.file_system().allocator().set_tunable(Tunable::Stats, 1)?;
        let workers = plan.workload.workers(&target, self.workers, cpus)?;
        let before = census(&target);
        let (measured, workers) = runner::run(&target, workers, cpus, plan.interleave, plan.limit)?;
        let after = census(&target);
        runner::finish(&target, workers, cpus, plan.interleave)?;
        target.close()?;
        let shared = device.shared();
        let scan = ImageScan::of(std::sync::Arc::clone(&shared))?;
        judged.verdict.check(&*shared)?;
        if is_last {
            judged.verdict.e2fsck(|path| device.save(path))?;
        }
        let mut row = figures(plan, self.name, self.workers, cpus, &measured, &scan);
        row.count(&measured, &before, &after);
        judged.note_map(self.name, self.workers, scan);
        if plan.image.is_in_place() {
            anyhow::ensure!(judged.verdict.is_clean(), "the image was not written: the judges found errors");
            device.commit()?;
        }
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
        if self.plan.interleave == Interleave::Overlap {
            return EngineTarget::overlapping(device, options);
        }
        Ok(EngineTarget::new(FileSystem::open(device, options, &context(0))?))
    }
}

/// A row of everything that can be told from outside the file system.
pub(super) fn figures(
    plan: &Plan,
    policy: &str,
    workers: u32,
    cpus: u32,
    measured: &Measured,
    scan: &ImageScan,
) -> Row {
    let seconds = measured.seconds.max(1e-9);
    let ops_per_s = count_as_f64(measured.ops) / seconds;
    Row {
        workload: plan.workload.name(),
        policy: policy.to_owned(),
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
        groups_touched: scan.groups_touched,
        lock_acquisitions: None,
        lock_waits: None,
        groups_skipped_busy: None,
        hits: std::collections::BTreeMap::new(),
        score: scan.defrag.score().map(f64::from),
    }
}

impl Row {
    /// Adds what the allocator counted between two moments.
    fn count(&mut self, measured: &Measured, before: &Census, after: &Census) {
        let per_op = |count: u64| Some(count_as_f64(count) / count_as_f64(measured.ops.max(1)));
        self.lock_acquisitions = per_op(after.acquisitions - before.acquisitions);
        self.lock_waits = per_op(after.waits - before.waits);
        self.groups_skipped_busy = Some(after.stats.busy_skips[0] - before.stats.busy_skips[0]);
        let hits = after.stats.hits.iter().zip(before.stats.hits).map(|(after, before)| after - before);
        self.hits = CRITERION_NAMES.into_iter().map(str::to_owned).zip(hits).collect();
    }
}

/// Counters of the allocator at one moment.
struct Census {
    stats: MbStats,
    acquisitions: u64,
    waits: u64,
}

fn census(target: &EngineTarget) -> Census {
    let allocator = target.file_system().allocator();
    let locks = allocator.lock_census();
    Census {
        stats: allocator.stats(),
        acquisitions: locks.shared_acquisitions(),
        waits: locks.shared.iter().map(|(_, figures)| figures.waits).sum::<u64>() + locks.groups.waits,
    }
}
