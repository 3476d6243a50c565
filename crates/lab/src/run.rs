//! `lab run`: one workload over policies and numbers of workers, each cell on its own fresh image in memory.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use blockyard_alloc::{CRITERIA, Criterion, MbStats, Policy, Tunable};
use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_engine::{FileSystem, JournalUse, OpenOptions, mkfs};

use crate::row::{Interleave, Row, count_as_f64};
use crate::runner::{self, Limit, Measured};
use crate::scan::ImageScan;
use crate::spread::abba;
use crate::target::engine::{EngineTarget, context};
use crate::workload::{MIB, Workload};

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The workload.
    pub workload: Workload,
    /// Policy arms, as they were asked for.
    pub policies: Vec<String>,
    /// Numbers of workers.
    pub workers: Vec<u32>,
    /// Logical CPUs; `None`: as many as workers.
    pub cpus: Option<u32>,
    /// How workers share time.
    pub interleave: Interleave,
    /// Bytes of the image.
    pub memory: u64,
    /// When a cell ends.
    pub limit: Limit,
    /// Repetitions of each cell.
    pub repeat: u32,
    /// Seed.
    pub seed: u64,
}

/// What the judges said of the last image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Errors that our checker found over all images.
    pub check_errors: u64,
    /// Images checked.
    pub images: u64,
    /// Whether e2fsck found the last image clean; `None` where it is not installed.
    pub e2fsck_clean: Option<bool>,
}

/// Runs every cell; `progress` is told before each.
///
/// # Errors
/// For an unknown policy or an impossible plan, before anything runs; for a cell that fails, with its name.
pub fn run(plan: &Plan, mut progress: impl FnMut(&str)) -> Result<(Vec<Row>, Verdict)> {
    let policies = plan
        .policies
        .iter()
        .map(|text| Policy::parse(text).with_context(|| format!("--policy {text}")))
        .collect::<Result<Vec<_>>>()?;
    if plan.interleave == Interleave::Overlap {
        bail!("--interleave overlap: files through the engine run as threads or lockstep in this version");
    }
    if plan.interleave == Interleave::Threads
        && plan.limit.time.is_none()
        && plan.limit.ops_per_worker.is_none()
        && !plan.workload.ends_by_itself()
    {
        bail!("{}: give --seconds or --ops, it does not end by itself", plan.workload.name());
    }
    let arms: Vec<(usize, u32)> = (0..policies.len())
        .flat_map(|policy| plan.workers.iter().map(move |&count| (policy, count)))
        .collect();
    let mut rows = Vec::new();
    let mut verdict = Verdict { check_errors: 0, images: 0, e2fsck_clean: None };
    for (index, (repeat, arm)) in abba(arms.len(), plan.repeat).enumerate() {
        let (policy, workers) = arms[arm];
        let name = format!("{} {} x {workers}", plan.workload.name(), plan.policies[policy]);
        progress(&name);
        let is_last = index + 1 == arms.len() * usize::try_from(plan.repeat)?;
        let cell = Cell { plan, policy: policies[policy], name: &plan.policies[policy], workers, repeat };
        let row = cell.run(&mut verdict, is_last).with_context(|| name.clone())?;
        rows.push(row);
    }
    rows.sort_by_key(|row| {
        (plan.policies.iter().position(|policy| *policy == row.policy), row.workers, row.repeat)
    });
    Ok((rows, verdict))
}

/// One policy with one number of workers, once.
struct Cell<'a> {
    plan: &'a Plan,
    policy: Policy,
    name: &'a str,
    workers: u32,
    repeat: u32,
}

impl Cell<'_> {
    fn run(&self, verdict: &mut Verdict, judge_outside: bool) -> Result<Row> {
        let plan = self.plan;
        let cpus = plan.cpus.unwrap_or(self.workers);
        let device = Arc::new(MemoryDevice::new(plan.memory));
        mkfs::format(&*device, &mkfs::Options::ext4().block_size(4096).identity(plan.seed, 1_700_000_000))?;
        let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
        let options = OpenOptions {
            cpus,
            policy: self.policy,
            seed: plan.seed,
            // What is measured is allocation.
            journal: JournalUse::Ignored,
            ..OpenOptions::default()
        };
        let fs = FileSystem::open(Arc::clone(&shared), options, &context(0))?;
        fs.allocator().set_tunable(Tunable::Stats, 1)?;
        let target = EngineTarget::new(fs);
        let workers = plan.workload.workers(&target, self.workers, cpus)?;
        let before = census(&target);
        let (measured, workers) = runner::run(&target, workers, cpus, plan.interleave, plan.limit)?;
        let after = census(&target);
        for worker in workers {
            worker.finish(&target)?;
        }
        target.close()?;
        let scan = ImageScan::of(Arc::clone(&shared))?;
        let report = blockyard_check::check(&*shared, &blockyard_check::Options::default())?;
        verdict.check_errors += report.errors;
        verdict.images += 1;
        if judge_outside {
            verdict.e2fsck_clean = e2fsck(&device)?;
        }
        Ok(self.row(cpus, &measured, &before, &after, &scan))
    }

    fn row(&self, cpus: u32, measured: &Measured, before: &Census, after: &Census, scan: &ImageScan) -> Row {
        let seconds = measured.seconds.max(1e-9);
        let per_op = |count: u64| count_as_f64(count) / count_as_f64(measured.ops.max(1));
        let hits: [u64; CRITERIA] =
            std::array::from_fn(|index| after.stats.hits[index] - before.stats.hits[index]);
        let ops_per_s = count_as_f64(measured.ops) / seconds;
        Row {
            workload: self.plan.workload.name().to_owned(),
            policy: self.name.to_owned(),
            workers: self.workers,
            cpus,
            interleave: self.plan.interleave,
            seed: self.plan.seed,
            repeat: self.repeat,
            ops: measured.ops,
            seconds: measured.seconds,
            ops_per_s,
            ops_per_s_per_worker: ops_per_s / f64::from(self.workers),
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
            lock_acquisitions: per_op(after.acquisitions - before.acquisitions),
            lock_waits: per_op(after.waits - before.waits),
            groups_skipped_busy: after.stats.busy_skips[0] - before.stats.busy_skips[0],
            hits: Criterion::ALL
                .iter()
                .zip(hits)
                .map(|(criterion, count)| (format!("{criterion:?}"), count))
                .collect(),
            score: scan.defrag.score().map(f64::from),
        }
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

/// The verdict of `e2fsck -fn` on a copy of the image, `None` where it is not installed.
fn e2fsck(device: &MemoryDevice) -> Result<Option<bool>> {
    let folder = tempfile::tempdir().context("a folder for the image that e2fsck looks at")?;
    let image = folder.path().join("image");
    let found = ["e2fsck", "/sbin/e2fsck", "/usr/sbin/e2fsck"]
        .into_iter()
        .find(|program| Command::new(program).arg("-V").output().is_ok_and(|output| output.status.success()));
    let Some(program) = found else { return Ok(None) };
    device.save(Path::new(&image)).context("save the image for e2fsck")?;
    let output = Command::new(program).arg("-fn").arg(&image).output().context("run e2fsck")?;
    Ok(Some(output.status.success()))
}

/// Seconds as a limit.
#[must_use]
pub fn seconds(seconds: f64) -> Limit {
    Limit { time: Some(Duration::from_secs_f64(seconds)), ops_per_worker: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(name: &str, interleave: Interleave, ops: u64) -> Plan {
        Plan {
            workload: Workload::by_name(name, 0.002).unwrap(),
            policies: vec!["linux-6.16".into(), "linux-6.18".into(), "rralloc-v2".into(), "yard".into()],
            workers: vec![1, 3],
            cpus: None,
            interleave,
            memory: 1 << 30,
            limit: Limit { time: None, ops_per_worker: Some(ops) },
            repeat: 1,
            seed: 7,
        }
    }

    #[test]
    fn every_workload_runs_under_every_arm_and_leaves_clean_images() {
        for name in Workload::NAMES {
            let (rows, verdict) = run(&plan(name, Interleave::Lockstep, 300), |_| ()).unwrap();
            assert_eq!(rows.len(), 8, "{name}");
            assert_eq!((verdict.check_errors, verdict.images), (0, 8), "{name}");
            assert_ne!(verdict.e2fsck_clean, Some(false), "{name}");
            for row in &rows {
                assert!(row.ops > 0 && row.extents_per_file >= 1.0 && row.groups_touched > 0, "{row:?}");
            }
        }
    }

    #[test]
    fn lockstep_figures_repeat() {
        let figures = |rows: Vec<Row>| {
            rows.into_iter()
                .map(|row| (row.ops, row.extents_per_file, row.free_extents, row.lock_acquisitions, row.hits))
                .collect::<Vec<_>>()
        };
        let plan = plan("append64", Interleave::Lockstep, 400);
        let first = figures(run(&plan, |_| ()).unwrap().0);
        assert_eq!(first, figures(run(&plan, |_| ()).unwrap().0));
    }

    #[test]
    fn threads_run_and_bad_plans_are_refused() {
        let (rows, verdict) = run(&plan("fallocate2", Interleave::Threads, 500), |_| ()).unwrap();
        assert_eq!((rows.len(), verdict.check_errors), (8, 0));
        let unknown = Plan { policies: vec!["linux-9".into()], ..plan("fallocate2", Interleave::Threads, 1) };
        assert!(format!("{:#}", run(&unknown, |_| ()).unwrap_err()).contains("no policy \"linux-9\""));
        let endless = Plan {
            limit: Limit { time: None, ops_per_worker: None },
            ..plan("fallocate2", Interleave::Threads, 1)
        };
        assert!(run(&endless, |_| ()).unwrap_err().to_string().contains("--seconds or --ops"));
    }
}
