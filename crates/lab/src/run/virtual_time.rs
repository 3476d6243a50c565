//! A cell in virtual time: every worker runs on a CPU of a modelled machine.
//!
//! A CPU with several workers runs one for a quantum and then the next. It switches only between
//! operations, like a kernel without preemption. The journal's thread has its own CPU.
//!
//! A workload that repeats a cycle is measured while every worker is at work. The measurement
//! begins when the last worker has finished its first cycle. It ends when all workers together have
//! done the operations of the plan. A worker that is ahead keeps running, so that the others meet
//! the same contention as on a real machine. A row counts only what happens during the measurement,
//! because locks are far more contended while files grow for the first time.

use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use blockyard_alloc::MbStats;
use blockyard_disk::num::{count_as_f64, u32_from_usize, u64_from_u32, u64_from_usize, usize_from_u32};
use blockyard_inspect::frag::defrag::DefragTotals;
use blockyard_inspect::frag::file::Record;
use blockyard_sync::Virtual;
use blockyard_sync::virtual_time::{LineFigures, Program, Report, simulate};

use super::Plan;
use super::cell::{CRITERION_NAMES, Cell, Census};
use crate::figures::row::{Row, Waits};
use crate::machine::{CPUS_MAX, Machine};
use crate::reading::Reading;
use crate::runner::Measured;
use crate::target::modelled::{self, ModelledTarget};
use crate::workload::{MIB, Step, Worker, Workers, Workload};

/// A group of 32,768 blocks of 4 KiB.
const GROUP_BYTES: u64 = 128 * MIB;

impl Plan {
    /// Refuses what virtual time cannot do.
    pub(super) fn check_virtual(&self) -> Result<()> {
        ensure!(
            matches!(
                self.workload,
                Workload::Fallocate2 { .. } | Workload::ScanSwitch { .. } | Workload::Append64 { .. }
            ),
            "--interleave virtual takes workloads that allocate only: fallocate2, scanswitch, append64"
        );
        ensure!(self.machine.is_some(), "--interleave virtual: name a --machine");
        ensure!(
            self.workers.iter().all(|&workers| self.cpus.unwrap_or(workers) <= CPUS_MAX),
            "--interleave virtual: at most {CPUS_MAX} CPUs"
        );
        ensure!(
            self.image.memory_bytes().is_some() && !self.beside_kernel && self.journal == [false],
            "--interleave virtual runs on a modelled file system: leave out --image, --beside and --journal"
        );
        ensure!(
            !self.limit.fsync_end && self.dirty_limit.is_none(),
            "--interleave virtual writes no data: leave out --fsync-end and --dirty-limit"
        );
        self.check_aged()
    }

    /// Refuses an aged file system on which the workers could run out of space, or whose last group
    /// is not whole.
    fn check_aged(&self) -> Result<()> {
        let Some(bytes) = self.image.memory_bytes().filter(|_| self.aged.is_some()) else { return Ok(()) };
        // The modelled file system has whole groups only. If the last group of the image were not
        // whole, the modelled file system would lack it, and the files that ageing put there.
        ensure!(
            bytes.is_multiple_of(GROUP_BYTES),
            "{}: in virtual time --aged takes a file system of whole groups; give a multiple of {} MiB",
            self.image.name(),
            GROUP_BYTES / MIB
        );
        // Files that are never truncated (append64) may take more than half: they free no space
        // that would have to wait for a commit.
        let (half, needed) = (bytes / 2, self.space_before_commit());
        ensure!(
            needed <= half.max(self.space_of_files()),
            "{}: the workers may allocate {} MiB before a commit, and --aged leaves them {}, half of the image; give \
             fewer --ops or --workers, or, where the command takes it, a larger --memory",
            self.image.name(),
            needed.div_ceil(MIB),
            half / MIB
        );
        Ok(())
    }

    /// Bytes that the workers of the largest cell may allocate before a commit.
    ///
    /// What the workers truncate is free only after a commit. So for workloads that truncate, this
    /// is the sum of two parts:
    ///
    /// - **Warm-up:** two cycles of each worker, because a worker may be a cycle ahead of the
    ///   others. If workers share CPUs, a worker may be a whole turn (a quantum of its CPU) ahead.
    ///   Then a turn counts instead of two cycles, if it is longer.
    /// - **Measurement:** the operations that the CPUs can do before the first commit, but no more
    ///   than the plan has.
    ///
    /// If the machine's `operation_ns` is 0, it is unknown how many operations fit into a turn, or
    /// into the time until a commit. Then turns are left out, and all operations of the plan count.
    pub(super) fn space_before_commit(&self) -> u64 {
        let (Workload::Fallocate2 { size, step } | Workload::ScanSwitch { size, step }) = self.workload
        else {
            return self.space_of_files();
        };
        let workers = u64_from_u32(self.workers.iter().copied().max().unwrap_or(1));
        let cpus = self.cpus.map_or(workers, |cpus| u64_from_u32(cpus).min(workers));
        let operations_within = |time_ns: fn(&Machine) -> u64| {
            let machine = self.machine.as_ref()?;
            time_ns(machine).checked_div(machine.operation_ns)
        };
        let turn = operations_within(|machine| machine.quantum_ns).filter(|_| cpus < workers).unwrap_or(0);
        let warm_up = turn.max(2 * (size / step + 1));
        let all = self.limit.ops_per_worker.unwrap_or(0).saturating_mul(workers);
        let measured = operations_within(|machine| machine.commit_every_ns)
            .map_or(all, |before_commit| all.min(before_commit.saturating_mul(cpus)));
        let bytes = warm_up.saturating_mul(workers).saturating_add(measured).saturating_mul(step);
        debug_assert!(bytes >= self.space_of_files(), "the warm-up fills every file");
        bytes
    }

    /// A warning about a machine that is not calibrated for the workload.
    #[must_use]
    pub fn uncalibrated(&self) -> Option<String> {
        let machine = self.machine.as_ref()?;
        let appends = matches!(self.workload, Workload::Append64 { .. });
        (appends && machine.append64_group_lock_ns.is_none()).then(|| {
            format!(
                "append64 on {}: the machine has no append64_group_lock_ns, so a group's lock is held only as long as in \
                 fallocate2; bandwidth and placement are not calibrated",
                machine.name
            )
        })
    }
}

/// Names of the cache lines of locks that the whole file system shares. `other` stands for all
/// lines without a name of their own; the cursor of the policy `rotalloc-v1` is on such a line.
const SHARED_LOCKS: [&str; 3] = ["md lock", "order list lock", "other"];
/// Names of the cache lines of group locks.
const GROUP_LOCKS: [&str; 2] = ["group lock", "hashed lock"];

/// The counters at one moment: everything that was counted since the beginning.
#[derive(Debug, Default)]
struct Counted {
    stats: MbStats,
    lines: Vec<LineFigures>,
}

impl Counted {
    /// The counters now. Reading them costs no virtual time.
    fn now(target: &ModelledTarget) -> Self {
        Self { stats: Virtual::aside(|| target.allocator.stats()), lines: Virtual::line_figures() }
    }

    /// What was counted after `before`.
    fn lines_since(&self, before: &Self) -> Vec<LineFigures> {
        let earlier = |line: &LineFigures| before.lines.iter().find(|other| other.name == line.name);
        self.lines.iter().map(|line| earlier(line).map_or(*line, |before| line.since(before))).collect()
    }

    fn census(&self) -> Census {
        let of = |names: &[&str], count: fn(&LineFigures) -> u64| -> u64 {
            self.lines.iter().filter(|line| names.contains(&line.name)).map(count).sum()
        };
        Census {
            stats: self.stats,
            acquisitions: of(&SHARED_LOCKS, |line| line.taken),
            waits: of(&SHARED_LOCKS, |line| line.waits) + of(&GROUP_LOCKS, |line| line.waits),
        }
    }
}

/// The work of the CPUs so far.
struct Tally<'t> {
    target: &'t ModelledTarget,
    measured: Measured,
    /// The counters when the measurement began, and when it ended.
    before: Counted,
    after: Option<Counted>,
    /// Workers that have not finished their first cycle.
    warming: u32,
    /// When the measurement began, in nanoseconds.
    began_ns: Option<u64>,
    /// Operations to measure.
    most: u64,
    /// Operations a second. If workers end by themselves, this is the sum of their own rates.
    ops_per_s: f64,
    failed: Option<anyhow::Error>,
    is_over: bool,
    running: u32,
}

impl<'t> Tally<'t> {
    fn new(target: &'t ModelledTarget, (workers, running): (u32, u32), warms_up: bool, most: u64) -> Self {
        Self {
            target,
            measured: Measured::new(),
            before: Counted::now(target),
            after: None,
            warming: if warms_up { workers } else { 0 },
            began_ns: (!warms_up).then_some(0),
            most,
            ops_per_s: 0.0,
            failed: None,
            is_over: false,
            running,
        }
    }

    /// Notes that a worker has finished its first cycle.
    fn note_warm(&mut self, now: u64) {
        debug_assert!(self.warming > 0, "more workers are warm than there are");
        self.warming -= 1;
        if self.warming == 0 {
            self.began_ns = Some(now);
            self.before = Counted::now(self.target);
        }
    }

    /// Counts an operation if it began during the measurement.
    fn count(&mut self, bytes: u64, before: u64, now: u64) {
        let Some(began) = self.began_ns.filter(|began| *began <= before && !self.is_over) else { return };
        self.measured.ops += 1;
        self.measured.bytes += bytes;
        self.measured.latency_ns.saturating_record((now - before).max(1));
        if self.measured.ops >= self.most {
            self.is_over = true;
            self.ops_per_s = rate(self.measured.ops, now - began);
            self.after = Some(Counted::now(self.target));
        }
    }
}

/// Operations a second.
fn rate(ops: u64, ns: u64) -> f64 {
    count_as_f64(ops) * 1e9 / count_as_f64(ns.max(1))
}

impl Cell<'_> {
    /// Runs the cell on the plan's machine.
    ///
    /// # Errors
    /// Those of a worker.
    pub(super) fn run_virtual(&self) -> Result<Row> {
        let plan = self.plan;
        let machine = plan.machine.clone().context("a plan in virtual time has a machine")?;
        let machine =
            if matches!(plan.workload, Workload::Append64 { .. }) { machine.appending() } else { machine };
        let cpus = plan.cpus.unwrap_or(self.workers);
        let bytes = plan.image.memory_bytes().context("a plan in virtual time has a size")?;
        let groups = u32::try_from(bytes / GROUP_BYTES).context("at most 2^32 groups")?.max(1);
        let start = self.start(groups)?;
        let target = ModelledTarget::new(self.policy, &machine, start, plan.rotational, (cpus, plan.seed))?;
        let workers = plan.workload.workers(&target, self.workers, cpus)?;
        let (mut tally, report) = run(plan, &machine, &target, workers, cpus.min(self.workers));
        if let Some(error) = tally.failed.take() {
            return Err(error);
        }
        let ended = || Counted { stats: target.allocator.stats(), lines: report.lines };
        let after = tally.after.take().unwrap_or_else(ended);
        let mut row = self.figures_virtual(cpus, &tally);
        row.machine = Some(machine.name.clone());
        row.count(&self.policy, &tally.measured, (&tally.before.census(), &after.census()));
        row.waits = after.lines_since(&tally.before).iter().map(waits).collect();
        Ok(row)
    }

    /// Which blocks are in use when the workers begin: only metadata on a fresh file system. For an
    /// aged one, an image is aged under the policy of the cell, and its used blocks are in use.
    fn start(&self, groups: u32) -> Result<modelled::Start> {
        if self.plan.aged.is_none() {
            return Ok(modelled::empty(groups));
        }
        let image = self.plan.image.device()?;
        self.plan.age(image.shared(), self.policy)?;
        modelled::in_use_on(image.shared(), groups)
    }

    fn figures_virtual(&self, cpus: u32, tally: &Tally<'_>) -> Row {
        let plan = self.plan;
        let measured = &tally.measured;
        let places = Places::of(tally.target);
        let ops = count_as_f64(measured.ops.max(1));
        let seconds = ops / tally.ops_per_s.max(1e-9);
        Row {
            workload: plan.workload.name(),
            policy: self.name.to_owned(),
            state: plan.state(),
            workers: self.workers,
            cpus,
            interleave: plan.interleave,
            seed: plan.seed,
            ops: measured.ops,
            seconds,
            ops_per_s: tally.ops_per_s,
            ops_per_s_per_worker: tally.ops_per_s / f64::from(self.workers),
            bw_mib_s: count_as_f64(measured.bytes) / count_as_f64(MIB) / seconds,
            lat_us_mean: measured.latency_ns.mean() / 1e3,
            lat_us_p50: measured.latency_us(0.5),
            lat_us_p99: measured.latency_us(0.99),
            lat_us_p9999: measured.latency_us(0.9999),
            lat_us_max: count_as_f64(measured.latency_ns.max()) / 1e3,
            extents_per_file: places.extents_per_file,
            mean_extent_kb: places.mean_extent_kb,
            free_extents: places.free_extents,
            avg_free_extent_kb: places.avg_free_extent_kb,
            free_by_length: Vec::new(),
            groups_touched: places.groups_touched,
            lock_acquisitions: None,
            lock_waits: None,
            groups_skipped_busy: None,
            goal_hits: None,
            stream_goal_hits: None,
            index_entries: None,
            hits: CRITERION_NAMES.into_iter().map(|name| (name.to_owned(), 0)).collect(),
            score: places.score,
            reading: Reading::default(),
            machine: None,
            waits: Vec::new(),
            modelled: None,
        }
    }
}

/// The placement of a target's files.
struct Places {
    extents_per_file: f64,
    mean_extent_kb: f64,
    free_extents: u64,
    avg_free_extent_kb: u64,
    groups_touched: u64,
    score: Option<f64>,
}

impl Places {
    fn of(target: &ModelledTarget) -> Self {
        let geometry = target.allocator.geometry();
        let mut defrag = DefragTotals::new(4096, u64_from_u32(geometry.clusters_per_group()), 16);
        let (mut extents, mut blocks) = (0u64, 0u64);
        let mut groups = std::collections::BTreeSet::new();
        let files = target.extents();
        for file in &files {
            let mut logical = 0;
            let mut records = Vec::with_capacity(file.len());
            for &(first, count) in file {
                let length = u64_from_u32(count);
                records.push(Record { logical, physical: first.raw(), length, unwritten: true });
                logical += length;
                groups.insert(first.raw() / u64_from_u32(geometry.clusters_per_group()));
            }
            defrag.add(b"", &records);
            extents += u64_from_usize(file.len());
            blocks += logical;
        }
        let (free_extents, free) = target.allocator.free_runs();
        let count = u64_from_usize(files.len()).max(1);
        Self {
            extents_per_file: count_as_f64(extents) / count_as_f64(count),
            mean_extent_kb: count_as_f64(4 * blocks) / count_as_f64(extents.max(1)),
            free_extents,
            avg_free_extent_kb: 4 * free / free_extents.max(1),
            groups_touched: u64_from_usize(groups.len()),
            score: defrag.score().map(f64::from),
        }
    }
}

fn waits(line: &LineFigures) -> Waits {
    Waits {
        name: line.name.to_owned(),
        taken: line.taken,
        waits: line.waits,
        wait_ns: line.wait_ns,
        section_ns: line.section_ns,
        moved: line.moved,
        moved_ns: line.moved_ns,
    }
}

fn run<'t>(
    plan: &Plan,
    machine: &Machine,
    target: &'t ModelledTarget,
    workers: Workers<'t, ModelledTarget>,
    cpus: u32,
) -> (Tally<'t>, Report) {
    let mut of_cpus: Vec<Workers<'t, ModelledTarget>> = (0..cpus).map(|_| Vec::new()).collect();
    for (index, worker) in workers.into_iter().enumerate() {
        of_cpus[index % usize_from_u32(cpus)].push(worker);
    }
    let warm_up = match plan.workload {
        Workload::Fallocate2 { size, step } | Workload::ScanSwitch { size, step } => size / step + 1,
        _ => 0,
    };
    let count = of_cpus.iter().map(Vec::len).sum::<usize>();
    let most = plan.limit.ops_per_worker.map_or(u64::MAX, |ops| ops.saturating_mul(u64_from_usize(count)));
    let tally = Mutex::new(Tally::new(target, (u32_from_usize(count), cpus), warm_up > 0, most));
    let tally_of = &tally;
    let seats: Vec<usize> = (0..cpus).map(|cpu| usize_from_u32(machine.seat(cpu))).collect();
    let used = seats.iter().max().map_or(0, |last| last + 1);
    let mut programs: Vec<Program<'_>> = (0..used).map(|_| -> Program<'_> { Box::new(|| ()) }).collect();
    for (seat, workers) in seats.into_iter().zip(of_cpus) {
        programs[seat] = Box::new(move || {
            let mut shift = Shift::new(machine, target, tally_of, workers);
            shift.run(warm_up);
            locked(tally_of).running -= 1;
        });
    }
    programs.push(Box::new(move || {
        loop {
            Virtual::work(machine.commit_every_ns);
            <Virtual as blockyard_sync::Backend>::yield_now();
            if locked(tally_of).running == 0 {
                break;
            }
            target.commit(cpus);
        }
    }));
    let report = simulate(&machine.costs(), programs);
    (tally.into_inner().unwrap_or_else(PoisonError::into_inner), report)
}

fn locked<'a, 't>(tally: &'a Mutex<Tally<'t>>) -> std::sync::MutexGuard<'a, Tally<'t>> {
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One worker of a CPU and its progress.
struct Turn<'t> {
    worker: Box<dyn Worker<ModelledTarget> + 't>,
    steps: u64,
    began_ns: u64,
}

/// The workers of one CPU.
struct Shift<'a, 't> {
    machine: &'a Machine,
    target: &'t ModelledTarget,
    tally: &'a Mutex<Tally<'t>>,
    turns: std::collections::VecDeque<Turn<'t>>,
}

impl<'a, 't> Shift<'a, 't> {
    fn new(
        machine: &'a Machine,
        target: &'t ModelledTarget,
        tally: &'a Mutex<Tally<'t>>,
        workers: Workers<'t, ModelledTarget>,
    ) -> Self {
        let turns = workers.into_iter().map(|worker| Turn { worker, steps: 0, began_ns: 0 }).collect();
        Self { machine, target, tally, turns }
    }

    fn run(&mut self, warm_up: u64) {
        let several = self.turns.len() > 1;
        while let Some(mut turn) = self.turns.pop_front() {
            let until = Virtual::now_ns().saturating_add(self.machine.quantum_ns);
            let is_over = loop {
                if self.step(&mut turn, warm_up) {
                    break true;
                }
                if several && Virtual::now_ns() >= until {
                    break false;
                }
            };
            if !is_over {
                self.turns.push_back(turn);
                Virtual::work(self.machine.switch_ns);
            }
        }
    }

    /// Runs one operation; returns whether it was the worker's last.
    fn step(&self, turn: &mut Turn<'t>, warm_up: u64) -> bool {
        let before = Virtual::now_ns();
        if turn.steps == warm_up {
            turn.began_ns = before;
        }
        let stepped = turn.worker.step(self.target);
        let now = Virtual::now_ns();
        let mut tally = locked(self.tally);
        match stepped {
            Ok(Step::Done { bytes }) => {
                turn.steps += 1;
                if turn.steps == warm_up {
                    tally.note_warm(now);
                } else {
                    tally.count(bytes, before, now);
                }
                tally.is_over || tally.failed.is_some()
            }
            Ok(Step::Finished) => {
                if !tally.is_over {
                    tally.ops_per_s += rate(turn.steps.saturating_sub(warm_up), now - turn.began_ns);
                }
                true
            }
            Err(error) => {
                tally.failed = Some(error);
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::row::Interleave;

    fn plan(policies: &[&str], workers: &[u32], ops: u64) -> Plan {
        Plan {
            policies: policies.iter().map(|&name| name.to_owned()).collect(),
            workers: workers.to_vec(),
            machine: Some(Machine::open("kunpeng-920").unwrap()),
            image: crate::run::ImageSource::memory(200 << 30, 1),
            ..crate::run::tests::plan("fallocate2", Interleave::Virtual, ops)
        }
    }

    fn rows(policies: &[&str], workers: &[u32], ops: u64) -> Vec<Row> {
        crate::run::run(&plan(policies, workers, ops), |_, _| ()).unwrap().rows
    }

    /// A second run gives exactly the same rates, placement and waits.
    #[test]
    fn runs_repeat_to_the_byte() {
        let run = || rows(&["linux-6.16", "linux-6.18", "rralloc-v2", "yard"], &[1, 6], 200);
        let first = run();
        assert_eq!(serde_json::to_string(&first).unwrap(), serde_json::to_string(&run()).unwrap());
        assert!(first.iter().all(|row| row.ops == 200 * u64::from(row.workers)));
    }

    /// An aged file system has the free space of an image that was aged under the policy of the
    /// cell. A second run gives exactly the same.
    #[test]
    fn workers_begin_on_what_a_life_left() {
        let aged = Plan {
            aged: Some("mail:2000:60%".parse().unwrap()),
            image: crate::run::ImageSource::memory(2 << 30, 1),
            ..plan(&["linux-6.16", "linux-6.18", "yard"], &[1, 6], 200)
        };
        let run = |plan: &Plan| crate::run::run(plan, |_, _| ()).unwrap().rows;
        let rows = run(&aged);
        let fresh = run(&Plan { aged: None, ..aged.clone() });
        for (aged, fresh) in rows.iter().zip(&fresh) {
            assert_eq!((aged.state.as_str(), fresh.state.as_str()), ("mail:2000:60%", "fresh"));
            assert_eq!(aged.ops, fresh.ops, "{} x {}", aged.policy, aged.workers);
            let free = |row: &Row| row.free_extents * row.avg_free_extent_kb;
            assert!(free(aged) < free(fresh), "{aged:?}");
            assert!(aged.free_extents > 4 * fresh.free_extents, "{aged:?}");
        }
        let text = |rows: &[Row]| serde_json::to_string(rows).unwrap();
        assert_eq!(text(&rows), text(&run(&aged)));
        // Before the first operation, exactly those blocks are free that are free on the image.
        let policy = blockyard_alloc::Policy::parse("linux-6.18").unwrap();
        let image = aged.image.device().unwrap();
        aged.age(image.shared(), policy).unwrap();
        let scan = blockyard_inspect::scan::ImageScan::of(image.shared()).unwrap();
        let start = modelled::in_use_on(image.shared(), 16).unwrap();
        let machine = aged.machine.clone().unwrap();
        let target = ModelledTarget::new(policy, &machine, start, false, (1, 1)).unwrap();
        assert_eq!(target.allocator.free_runs(), (scan.free.extents(), scan.free.blocks()));
    }

    /// Truncated blocks are free only after a commit. So the space that ageing leaves is computed
    /// from all blocks that the workers may allocate before the first commit.
    #[test]
    fn a_life_leaves_room_for_what_is_allocated_before_a_commit() {
        let plan = plan(&["yard"], &[96], 1000);
        // 96 workers, each with 1000 operations and two cycles of 129 operations. Every operation
        // counts as 8 KiB.
        assert_eq!(plan.space_before_commit(), 96 * (1000 + 258) * 8192);
        let shared = Plan { cpus: Some(2), ..plan };
        assert_eq!(shared.space_before_commit(), 96 * (1000 + 3_000_000 / 2820) * 8192);
        // Two CPUs, and commits that come before the end.
        let machine = Machine { commit_every_ns: 5_000_000, ..Machine::open("kunpeng-920").unwrap() };
        let committed = Plan { machine: Some(machine), ..shared };
        let operations = 96 * (3_000_000 / 2820) + 2 * (5_000_000 / 2820);
        assert_eq!(committed.space_before_commit(), operations * 8192);
        // A regression: with `operation_ns` 0, one nanosecond an operation was assumed, so that a
        // turn had three million operations.
        let machine = Machine { operation_ns: 0, ..Machine::open("kunpeng-920").unwrap() };
        let unknown = Plan { machine: Some(machine), ..committed };
        assert_eq!(unknown.space_before_commit(), 96 * (1000 + 258) * 8192);
    }

    /// Regressions: the first plan failed in the middle of its run. The plans with uneven sizes
    /// compared an aged file system with a larger fresh one.
    #[test]
    fn aged_file_systems_without_room_are_refused() {
        let aged = |bytes| Plan {
            workload: Workload::by_name("scanswitch", 1.0).unwrap(),
            aged: Some("mail:9".parse().unwrap()),
            image: crate::run::ImageSource::memory(bytes, 1),
            ..plan(&["yard"], &[16], 1500)
        };
        let refused = |plan: &Plan| plan.check_words().err().map(|error| format!("{error:#}"));
        let short = refused(&aged(8 << 30)).unwrap();
        for part in ["--memory 8192 MiB", "7032 MiB before a commit", "--ops", "--workers"] {
            assert!(short.contains(part), "{short}");
        }
        assert_eq!(refused(&aged(16 << 30)), None);
        assert_eq!(refused(&Plan { aged: None, ..aged(8 << 30) }), None);
        // With frequent commits, the number of operations does not matter.
        let machine = Machine { commit_every_ns: 1_000_000, ..Machine::open("kunpeng-920").unwrap() };
        let limit = crate::runner::Limit { ops_per_worker: Some(1_000_000_000), ..aged(0).limit };
        assert_eq!(refused(&Plan { machine: Some(machine), limit, ..aged(8 << 30) }), None);
        for mib in [8000, 8250] {
            let uneven = refused(&aged(mib << 20)).unwrap();
            assert!(uneven.contains("give a multiple of 128 MiB"), "{uneven}");
            assert_eq!(refused(&Plan { aged: None, ..aged(mib << 20) }), None);
        }
    }

    /// If a commit did not wait for open operations, it would free clusters while an operation
    /// still merges its own freed clusters with them.
    #[test]
    fn commits_wait_for_the_operations_of_their_transaction() {
        let policies = ["linux-6.16", "linux-6.18", "linux-6.18:freed_merge=after", "yard"];
        let run = |commit_every_ns| {
            let machine = Machine { commit_every_ns, ..Machine::open("kunpeng-920").unwrap() };
            let plan = Plan { machine: Some(machine), ..plan(&policies, &[2, 12], 600) };
            crate::run::run(&plan, |_, _| ()).unwrap().rows
        };
        let free = |row: &Row| row.free_extents * row.avg_free_extent_kb;
        let (often, never) = (run(1_000_000), run(5_000_000_000));
        for (often, never) in often.iter().zip(&never) {
            assert_eq!(often.ops, 600 * u64::from(often.workers));
            // Freed clusters count as free only after a commit.
            assert!(free(often) > free(never), "{} x {}", often.policy, often.workers);
        }
        assert_eq!(often, run(1_000_000));
    }

    /// A cycle has 128 fallocates, each with one search (fewer under `yard`), and one truncate. The
    /// first cycle is the warm-up.
    #[test]
    fn rows_count_what_was_measured_and_not_the_warm_up() {
        for policy in ["linux-6.16", "linux-6.18", "yard"] {
            let [one, two] = [1, 2].map(|cycles| rows(&[policy], &[1], 129 * cycles).remove(0));
            let searches = |row: &Row| row.hits.values().sum::<u64>();
            assert_eq!((searches(&two), searches(&one) > 0), (2 * searches(&one), true), "{policy}");
            // yard takes several blocks ahead with one search.
            assert!(policy == "yard" || searches(&one) == 128, "{policy}");
            let taken = |row: &Row| -> u64 { row.waits.iter().map(|line| line.taken).sum() };
            assert_eq!(2 * taken(&one), taken(&two), "{policy}");
            assert_eq!(one.lock_acquisitions, two.lock_acquisitions, "{policy}");
        }
    }

    /// The allocator's lock census cannot be read while a CPU holds a lock, so rows take their
    /// counts from the cache lines. The two counts must agree.
    #[test]
    fn shared_locks_of_the_lines_are_those_of_the_allocator() {
        for name in ["linux-6.16", "linux-6.18", "rotalloc-v1", "rralloc-v2", "ext4-2008", "yard"] {
            let machine = Machine::open("kunpeng-920").unwrap();
            let plan = plan(&[name], &[8], 200);
            let policy = blockyard_alloc::Policy::parse(name).unwrap();
            let target = ModelledTarget::new(policy, &machine, modelled::empty(64), false, (8, 1)).unwrap();
            let workers = plan.workload.workers(&target, 8, 8).unwrap();
            let opened = target.allocator.lock_census().shared_acquisitions();
            let (_, report) = run(&plan, &machine, &target, workers, 8);
            let all = Counted { stats: target.allocator.stats(), lines: report.lines };
            let taken = target.allocator.lock_census().shared_acquisitions() - opened;
            assert_eq!(all.census().acquisitions, taken, "{name}");
        }
    }

    #[test]
    fn the_series_helps_many_workers_and_not_one() {
        let rows = rows(&["linux-6.16", "linux-6.18"], &[1, 16], 300);
        let rate = |at: usize| rows[at].ops_per_s_per_worker;
        assert!((rate(2) / rate(0) - 1.0).abs() < 0.1, "{} {}", rate(0), rate(2));
        assert!(rate(3) > 2.0 * rate(1), "{} {}", rate(1), rate(3));
        let waited = |row: &Row| row.waits.iter().map(|waits| waits.wait_ns).max();
        assert!(waited(&rows[1]) > waited(&rows[3]));
    }

    #[test]
    fn what_virtual_time_would_ignore_is_refused() {
        let plan = || Plan {
            machine: Some(Machine::open("kunpeng-920").unwrap()),
            ..crate::run::tests::plan("fallocate2", Interleave::Virtual, 1)
        };
        plan().check().unwrap();
        // A fresh file system has no image, so every policy serves it. An aged one begins as an
        // ext4 image, which the policy `ext3` does not serve.
        let old = || Plan { policies: vec!["ext3".to_owned()], ..plan() };
        old().check().unwrap();
        let aged = Plan { aged: Some("mail:9".parse().unwrap()), ..old() };
        let text = format!("{:#}", aged.check().unwrap_err());
        assert!(text.contains("policy ext3 serves no image with extent"), "{text}");
        let synced = crate::runner::Limit { fsync_end: true, ..plan().limit };
        for plan in [Plan { limit: synced, ..plan() }, Plan { dirty_limit: Some(1 << 20), ..plan() }] {
            let text = format!("{:#}", plan.check().unwrap_err());
            assert!(text.contains("leave out --fsync-end"), "{text}");
        }
    }

    #[test]
    fn a_machine_without_a_time_for_append64_is_told() {
        let noted = |machine: &str, workload: &str| {
            let machine = Some(Machine::open(machine).unwrap());
            Plan { machine, ..crate::run::tests::plan(workload, Interleave::Virtual, 1) }.uncalibrated()
        };
        assert!(noted("amd-9654-x2", "append64").unwrap().contains("not calibrated"));
        assert_eq!(noted("kunpeng-920", "append64"), None);
        assert_eq!(noted("amd-9654-x2", "fallocate2"), None);
    }

    /// A short append64 with `workers` workers on `cpus` CPUs.
    fn appended(workers: u32, cpus: u32) -> Row {
        let plan = Plan {
            policies: vec!["linux-6.18".to_owned()],
            workers: vec![workers],
            cpus: Some(cpus),
            machine: Some(Machine::open("kunpeng-920").unwrap()),
            image: crate::run::ImageSource::memory(16 << 30, 1),
            ..crate::run::tests::plan("append64", Interleave::Virtual, 1)
        };
        let plan = Plan { limit: crate::runner::Limit { ops_per_worker: None, ..plan.limit }, ..plan };
        crate::run::run(&plan, |_, _| ()).unwrap().rows.remove(0)
    }

    #[test]
    fn more_workers_than_cpus_take_turns() {
        let row = appended(6, 2);
        assert_eq!((row.cpus, row.workers), (2, 6));
        assert_eq!(row.ops % 6, 0);
        assert!(row.ops > 0);
        let text = |row: &Row| serde_json::to_string(row).unwrap();
        assert_eq!(text(&row), text(&appended(6, 2)), "it repeats to the byte");
    }

    /// A cell may have more CPUs than workers. Its row names all CPUs, also the idle ones.
    #[test]
    fn idle_cpus_belong_to_the_machine() {
        let row = appended(2, 6);
        assert_eq!((row.cpus, row.workers), (6, 2));
        assert!(row.ops > 0);
    }

    /// In append64, groups' locks are held for at least the time that is calibrated for append64.
    #[test]
    fn appending_has_its_own_time_under_the_lock() {
        let row = appended(1, 1);
        let lock = row.waits.iter().find(|waits| waits.name == "group lock").unwrap();
        let machine = Machine::open("kunpeng-920").unwrap();
        let work_ns = machine.append64_group_lock_ns.unwrap();
        assert!(lock.section_ns >= lock.taken * work_ns, "{lock:?}");
        assert!(lock.taken >= 2 * row.ops, "{lock:?}");
    }
}
