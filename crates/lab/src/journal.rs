//! `lab journal`: what the journal costs, which locks it takes, and how many fsyncs share a commit.
//!
//! Three tables:
//!
//! - *Cost*: the workload `fallocate2` with the journal off and on in turns, by number of workers.
//!   Next to the rate stands the CPU time of an operation, which stays reliable on a busy machine.
//! - *Locks*: how often one worker's operation takes locks of each rank. Only debug builds count
//!   locks.
//! - *Sharing*: several threads create a file, write 4 KiB and fsync, again and again, on a device
//!   whose flush takes time. The table shows how many fsyncs share a commit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use blockyard_alloc::Policy;
use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_disk::InodeNr;
use blockyard_disk::inode::FileType;
use blockyard_disk::num::count_as_f64;
use blockyard_engine::{FileSystem, JournalUse, NewInode, OpenOptions, mkfs};
use blockyard_inspect::units::{self, counted};
use blockyard_sync::{Native, locks_taken};
use serde::Serialize;

use crate::figures::Table;
use crate::figures::row::Interleave;
use crate::run::default_mkfs;
use crate::runner::{self, Limit};
use crate::target::engine::{EngineTarget, context};
use crate::workload::{GIB, Workload};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Numbers of workers in the table of cost.
    pub workers: Vec<u32>,
    /// Operations of a cell in the tables of cost and locks, all workers together.
    pub ops: u64,
    /// Repetitions of each cell in the table of cost.
    pub repeat: u32,
    /// Numbers of threads in the table of sharing.
    pub threads: Vec<u32>,
    /// Number of files that each thread syncs.
    pub fsyncs: u32,
    /// Durations of a flush in microseconds.
    pub flush_us: Vec<u64>,
    /// Seed.
    pub seed: u64,
    /// The allocation policy for the tables of cost and locks.
    pub policy: String,
}

/// `fallocate2` with the journal off or on: medians over the repetitions.
#[derive(Clone, Debug, Serialize)]
pub struct CostRow {
    /// Workers.
    pub workers: u32,
    /// Operations a second without a journal.
    pub off_ops_per_s: f64,
    /// Operations a second with a journal.
    pub on_ops_per_s: f64,
    /// The rate with a journal divided by the rate without.
    pub ratio: f64,
    /// CPU nanoseconds of an operation without a journal.
    pub off_cpu_ns: f64,
    /// CPU nanoseconds of an operation with a journal.
    pub on_cpu_ns: f64,
    /// Transactions committed with the journal on, in the first repetition.
    pub commits: u64,
}

/// How often an operation takes locks of one rank.
#[derive(Clone, Debug, Serialize)]
pub struct LockRow {
    /// The rank, as in docs/locking.md.
    pub lock: &'static str,
    /// Acquisitions for each operation without a journal.
    pub off: f64,
    /// Acquisitions for each operation with a journal.
    pub on: f64,
    /// What a lock of this rank covers.
    pub covers: &'static str,
}

/// Threads that create, write and fsync.
#[derive(Clone, Debug, Serialize)]
pub struct SharingRow {
    /// Threads.
    pub threads: u32,
    /// Microseconds that a flush of the device takes.
    pub flush_us: u64,
    /// Files made durable, one fsync each.
    pub fsyncs: u64,
    /// Transactions that made them durable.
    pub commits: u64,
    /// Flushes of the device.
    pub flushes: u64,
    /// Fsyncs a second.
    pub fsyncs_per_s: f64,
    /// Commits a second.
    pub commits_per_s: f64,
    /// Mean number of fsyncs that share a commit.
    pub fsyncs_per_commit: f64,
}

/// The three tables.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The table of cost.
    pub cost: Vec<CostRow>,
    /// The table of locks; empty in release builds, which do not count them.
    pub locks: Vec<LockRow>,
    /// The table of sharing.
    pub sharing: Vec<SharingRow>,
}

impl Plan {
    /// Number of parts of a measurement: one for each row of the tables of cost and sharing, and
    /// one for all locks if they are counted.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.workers.len() + usize::from(COUNTS_LOCKS) + self.flush_us.len() * self.threads.len()
    }
}

/// Whether this build counts the locks that a thread takes.
const COUNTS_LOCKS: bool = cfg!(debug_assertions);

/// Measures everything. `progress` is called before each of the [`Plan::parts`] with the part's
/// number (from 1) and name.
///
/// # Errors
/// When the plan is invalid, and errors of the engine.
pub fn run(plan: &Plan, mut progress: impl FnMut(usize, &str)) -> Result<Outcome> {
    ensure!(
        plan.ops > 0 && plan.repeat > 0 && plan.fsyncs > 0,
        "--ops, --repeat and --fsyncs take numbers from 1 up"
    );
    ensure!(
        plan.workers.iter().chain(&plan.threads).all(|count| (1..=4096).contains(count)),
        "--workers and --threads take numbers from 1 to 4096"
    );
    let policy = Policy::parse(&plan.policy).with_context(|| format!("--policy {}", plan.policy))?;
    let mut part = 0;
    let mut begin = |name: String| {
        part += 1;
        progress(part, &name);
    };
    let mut outcome = Outcome { cost: Vec::new(), locks: Vec::new(), sharing: Vec::new() };
    for &workers in &plan.workers {
        begin(format!("fallocate2, {}", counted(workers.into(), "worker")));
        outcome.cost.push(cost(plan, policy, workers)?);
    }
    if COUNTS_LOCKS {
        begin("locks of fallocate2".to_owned());
        outcome.locks = locks(plan, policy)?;
    }
    for &flush_us in &plan.flush_us {
        for &threads in &plan.threads {
            let flush = units::micros(count_as_f64(flush_us));
            begin(format!("{} that fsync, a flush of {flush}", counted(threads.into(), "thread")));
            outcome.sharing.push(sharing(plan, threads, flush_us)?);
        }
    }
    Ok(outcome)
}

/// The figures of one run of `fallocate2`.
struct Ran {
    ops_per_s: f64,
    cpu_ns: f64,
    commits: u64,
    /// How many locks of each rank the calling thread took for each operation; empty in release
    /// builds. With one worker, the calling thread does all operations.
    locks: BTreeMap<&'static str, f64>,
}

fn fallocate2(plan: &Plan, policy: Policy, workers: u32, journal: JournalUse) -> Result<Ran> {
    let device = MemoryDevice::new(64 * GIB);
    mkfs::format(&device, &default_mkfs(plan.seed))?;
    let options = OpenOptions { cpus: workers, policy, seed: plan.seed, journal, ..OpenOptions::default() };
    let target = EngineTarget::new(FileSystem::open(Arc::new(device), options, &context(0))?);
    let workload = Workload::by_name("fallocate2", 1.0).context("fallocate2 is a workload")?;
    let made = workload.workers(&target, workers, workers)?;
    // A single worker runs in this thread, so that its locks are counted.
    let interleave = if workers == 1 { Interleave::Lockstep } else { Interleave::Threads };
    let limit =
        Limit { time: None, ops_per_worker: Some((plan.ops / u64::from(workers)).max(1)), fsync_end: false };
    let (cpu, locks) = (process_cpu(), taken());
    let (measured, made) = runner::run(&target, made, workers, interleave, limit)?;
    let (cpu, locks_after) = (process_cpu().saturating_sub(cpu), taken());
    let each = |total: f64| total / count_as_f64(measured.ops.max(1));
    let commits = target.file_system().commits();
    runner::finish(&target, made, workers, interleave)?;
    target.close()?;
    let difference = locks_after
        .iter()
        .map(|(lock, after)| (*lock, each(count_as_f64(after - locks.get(lock).copied().unwrap_or(0)))));
    Ok(Ran {
        ops_per_s: count_as_f64(measured.ops) / measured.seconds.max(1e-9),
        cpu_ns: each(cpu.as_secs_f64() * 1e9),
        commits,
        locks: difference.collect(),
    })
}

fn cost(plan: &Plan, policy: Policy, workers: u32) -> Result<CostRow> {
    let (mut off, mut on) = (Vec::new(), Vec::new());
    for repetition in 0..plan.repeat {
        let mut modes = [JournalUse::Ignored, JournalUse::Journaled];
        if repetition % 2 == 1 {
            modes.reverse();
        }
        for mode in modes {
            let ran = fallocate2(plan, policy, workers, mode)?;
            if mode == JournalUse::Journaled { on.push(ran) } else { off.push(ran) }
        }
    }
    let (off_ops_per_s, on_ops_per_s) = (median(&off, |ran| ran.ops_per_s), median(&on, |ran| ran.ops_per_s));
    Ok(CostRow {
        workers,
        off_ops_per_s,
        on_ops_per_s,
        ratio: on_ops_per_s / off_ops_per_s,
        off_cpu_ns: median(&off, |ran| ran.cpu_ns),
        on_cpu_ns: median(&on, |ran| ran.cpu_ns),
        commits: on.first().map_or(0, |ran| ran.commits),
    })
}

fn median(runs: &[Ran], figure: impl Fn(&Ran) -> f64) -> f64 {
    let mut figures: Vec<f64> = runs.iter().map(figure).collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

fn locks(plan: &Plan, policy: Policy) -> Result<Vec<LockRow>> {
    let off = fallocate2(plan, policy, 1, JournalUse::Ignored)?;
    let on = fallocate2(plan, policy, 1, JournalUse::Journaled)?;
    let names: std::collections::BTreeSet<&str> = off.locks.keys().chain(on.locks.keys()).copied().collect();
    let figure = |ran: &Ran, name: &str| ran.locks.get(name).copied().unwrap_or(0.0);
    let rows =
        blockyard_sync::rank::ALL.iter().map(|rank| rank.name()).filter(|name| names.contains(name)).map(
            |lock| LockRow { lock, off: figure(&off, lock), on: figure(&on, lock), covers: covers(lock) },
        );
    Ok(rows.filter(|row| row.off + row.on > 0.0).collect())
}

/// What a lock covers. Two threads can contend for the lock only if they use the same thing of this
/// kind, such as the same file or the same group.
fn covers(lock: &str) -> &'static str {
    match lock {
        "INODE" | "INODE_SHAPE" | "MAPPING" | "WAITING_DATA" | "PREALLOC_INODE" => "one file",
        "GROUP" | "GROUP_DESC" | "GROUP_INODES" => "one group",
        "PREALLOC_LOCALITY" | "JOURNAL_STATE" => "one CPU slot (its list)",
        "PREALLOC" => "one preallocation",
        "BUFFER" => "one block, for readers and writers of its bytes",
        "CACHE_SHARD" | "INODE_TABLE" => "one shard",
        "DEVICE" => "one stripe of the memory device",
        "COMMITTED" => "readers of blocks that are not cached",
        _ => "the file system",
    }
}

fn taken() -> BTreeMap<&'static str, u64> {
    let counts = locks_taken::<Native>().unwrap_or_default();
    counts.into_iter().map(|(rank, count)| (rank.name(), count)).collect()
}

/// CPU time of this process so far, to a hundredth of a second; 0 if the system does not report it.
fn process_cpu() -> Duration {
    cpu_time(&std::fs::read_to_string("/proc/self/stat").unwrap_or_default())
}

/// CPU time from the text of `/proc/self/stat`, which counts in hundredths of a second.
fn cpu_time(text: &str) -> Duration {
    // User and system time are fields 14 and 15. The second field is in parentheses and may contain
    // blanks.
    let fields = text.rsplit_once(") ").map_or("", |(_, fields)| fields).split(' ');
    let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

/// A memory device whose flush takes time.
struct SlowFlush {
    below: MemoryDevice,
    flush: Duration,
    flushes: AtomicU64,
}

impl BlockDevice for SlowFlush {
    fn size(&self) -> u64 {
        self.below.size()
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> blockyard_device::Result<()> {
        self.below.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> blockyard_device::Result<()> {
        self.below.write_at(offset, data)
    }
    fn write_zeroes(&self, offset: u64, length: u64) -> blockyard_device::Result<()> {
        self.below.write_zeroes(offset, length)
    }
    fn discard(&self, offset: u64, length: u64) -> blockyard_device::Result<()> {
        self.below.discard(offset, length)
    }
    fn flush(&self) -> blockyard_device::Result<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        if !self.flush.is_zero() {
            std::thread::sleep(self.flush);
        }
        Ok(())
    }
}

fn sharing(plan: &Plan, threads: u32, flush_us: u64) -> Result<SharingRow> {
    let below = MemoryDevice::new(4 * GIB);
    mkfs::format(&below, &default_mkfs(plan.seed))?;
    let flush = Duration::from_micros(flush_us);
    let device = Arc::new(SlowFlush { below, flush, flushes: AtomicU64::new(0) });
    let shared: Arc<dyn BlockDevice> = Arc::<SlowFlush>::clone(&device);
    let options = OpenOptions { cpus: threads, seed: plan.seed, ..OpenOptions::default() };
    let fs = FileSystem::open(shared, options, &context(0))?;
    let (flushes, commits) = (device.flushes.load(Ordering::Relaxed), fs.commits());
    let start = Instant::now();
    std::thread::scope(|scope| {
        let fs = &fs;
        let work: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || create_and_sync(fs, thread, plan.fsyncs)))
            .collect();
        work.into_iter().try_for_each(|thread| match thread.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    let seconds = start.elapsed().as_secs_f64().max(1e-9);
    let commits = fs.commits() - commits;
    let flushes = device.flushes.load(Ordering::Relaxed) - flushes;
    fs.close(&context(0))?;
    let fsyncs = u64::from(threads) * u64::from(plan.fsyncs);
    Ok(SharingRow {
        threads,
        flush_us,
        fsyncs,
        commits,
        flushes,
        fsyncs_per_s: count_as_f64(fsyncs) / seconds,
        commits_per_s: count_as_f64(commits) / seconds,
        fsyncs_per_commit: count_as_f64(fsyncs) / count_as_f64(commits.max(1)),
    })
}

fn create_and_sync(fs: &FileSystem, thread: u32, count: u32) -> Result<()> {
    let ctx = context(thread);
    let new = NewInode { kind: FileType::Directory, permissions: 0o755, device: None };
    let dir = fs.create(&ctx, InodeNr::ROOT, format!("thread-{thread}").as_bytes(), &new)?;
    let new = NewInode { kind: FileType::Regular, ..new };
    for n in 0..count {
        let file = fs.create(&ctx, dir, format!("file-{n}").as_bytes(), &new)?;
        fs.write(&ctx, file, 0, &[1; 4096])?;
        fs.fsync(&ctx, file)?;
    }
    Ok(())
}

impl Outcome {
    /// The tables to print.
    #[must_use]
    pub fn tables(&self) -> Vec<Table> {
        let mut cost = Table::new(
            "fallocate2 with the journal off and on",
            ["workers", "k ops/s off", "k ops/s on", "on / off", "CPU ns/op off", "CPU ns/op on", "commits"],
        );
        for row in &self.cost {
            cost.push([
                row.workers.to_string(),
                format!("{:.0}", row.off_ops_per_s / 1e3),
                format!("{:.0}", row.on_ops_per_s / 1e3),
                format!("{:.2}", row.ratio),
                format!("{:.0}", row.off_cpu_ns),
                format!("{:.0}", row.on_cpu_ns),
                row.commits.to_string(),
            ]);
        }
        let mut locks = Table::new(
            "locks taken by an operation of fallocate2",
            ["lock", "off", "on", "keeps out users of"],
        );
        for row in &self.locks {
            let figure = |figure: f64| format!("{figure:.4}");
            locks.push([row.lock.to_owned(), figure(row.off), figure(row.on), row.covers.to_owned()]);
        }
        if self.locks.is_empty() {
            locks.note("not counted: release builds do not count locks; run a debug build");
        }
        let mut sharing = Table::new(
            "create, write 4 KiB, fsync",
            ["threads", "flush us", "fsyncs", "commits", "flushes", "fsyncs/s", "commits/s", "fsyncs/commit"],
        );
        for row in &self.sharing {
            sharing.push([
                row.threads.to_string(),
                row.flush_us.to_string(),
                row.fsyncs.to_string(),
                row.commits.to_string(),
                row.flushes.to_string(),
                format!("{:.0}", row.fsyncs_per_s),
                format!("{:.0}", row.commits_per_s),
                format!("{:.1}", row.fsyncs_per_commit),
            ]);
        }
        vec![cost, locks, sharing]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            workers: vec![1, 2],
            ops: 280_000,
            repeat: 1,
            threads: vec![16],
            fsyncs: 10,
            flush_us: vec![1000],
            seed: 1,
            policy: "linux-6.18".into(),
        }
    }

    #[test]
    fn fsyncs_share_commits_and_operations_no_lock() {
        let mut parts = Vec::new();
        let outcome = run(&plan(), |part, _| parts.push(part)).unwrap();
        assert_eq!(parts, (1..=plan().parts()).collect::<Vec<_>>());
        let [sharing] = &outcome.sharing[..] else { panic!("{:?}", outcome.sharing) };
        assert_eq!(sharing.fsyncs, 160);
        assert!(sharing.commits * 3 <= sharing.fsyncs, "{sharing:?}");
        assert!(outcome.cost.iter().all(|row| row.commits > 0 && row.ratio > 0.2), "{:?}", outcome.cost);
        // With a journal, too, a lock that covers the whole file system is taken less than once in
        // twenty operations. Commits take these locks.
        for row in &outcome.locks {
            assert!(row.covers != "the file system" || row.on < 0.05, "{row:?}");
        }
        assert!(outcome.locks.iter().any(|row| row.lock == "GROUP"), "{:?}", outcome.locks);
    }

    #[test]
    fn bad_plans_are_refused() {
        assert!(run(&Plan { ops: 0, ..plan() }, |_, _| ()).is_err());
        assert!(run(&Plan { threads: vec![0], ..plan() }, |_, _| ()).is_err());
        assert!(run(&Plan { policy: "none".into(), ..plan() }, |_, _| ()).is_err());
    }

    /// The name of a program may contain blanks and parentheses.
    #[test]
    fn cpu_time_is_that_of_program_and_kernel() {
        let text = "77 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 250 40 1000 2000 20 0 1\n";
        assert_eq!((cpu_time(text), cpu_time("")), (Duration::from_millis(2900), Duration::ZERO));
    }

    #[test]
    fn the_middle_one_of_the_repetitions_counts() {
        let run = |ops_per_s| Ran { ops_per_s, cpu_ns: 0.0, commits: 0, locks: BTreeMap::new() };
        assert_eq!(median(&[5.0, 1.0, 3.0].map(run), |ran| ran.ops_per_s), 3.0);
        assert!(median(&[], |ran| ran.ops_per_s).is_nan());
    }

    #[test]
    fn each_figure_stands_under_its_head() {
        let outcome = Outcome {
            cost: vec![CostRow {
                workers: 2,
                off_ops_per_s: 400_000.0,
                on_ops_per_s: 300_000.0,
                ratio: 0.75,
                off_cpu_ns: 2500.0,
                on_cpu_ns: 3100.0,
                commits: 17,
            }],
            locks: vec![LockRow { lock: "GROUP", off: 1.5, on: 2.25, covers: "one group" }],
            sharing: vec![SharingRow {
                threads: 16,
                flush_us: 1000,
                fsyncs: 160,
                commits: 20,
                flushes: 41,
                fsyncs_per_s: 3200.0,
                commits_per_s: 400.0,
                fsyncs_per_commit: 8.0,
            }],
        };
        let tables = outcome.tables();
        assert_eq!(tables[0].rows, [["2", "400", "300", "0.75", "2500", "3100", "17"]]);
        assert_eq!(tables[1].rows, [["GROUP", "1.5000", "2.2500", "one group"]]);
        assert_eq!(tables[2].rows, [["16", "1000", "160", "20", "41", "3200", "400", "8.0"]]);
    }

    /// Measured rates vary from run to run, but each quotient in a row must match the figures of
    /// the row.
    #[test]
    fn quotients_are_those_of_their_own_figures() {
        let outcome =
            run(&Plan { ops: 4000, workers: vec![1], flush_us: vec![0], fsyncs: 3, ..plan() }, |_, _| ())
                .unwrap();
        let [cost] = &outcome.cost[..] else { panic!("{:?}", outcome.cost) };
        assert!((cost.ratio - cost.on_ops_per_s / cost.off_ops_per_s).abs() < 1e-9, "{cost:?}");
        let [sharing] = &outcome.sharing[..] else { panic!("{:?}", outcome.sharing) };
        let (fsyncs, commits) = (count_as_f64(sharing.fsyncs), count_as_f64(sharing.commits));
        assert_eq!(sharing.fsyncs, 48);
        assert!((sharing.fsyncs_per_commit - fsyncs / commits).abs() < 1e-9, "{sharing:?}");
        assert!(
            (sharing.fsyncs_per_s / sharing.commits_per_s - fsyncs / commits).abs() < 1e-9,
            "{sharing:?}"
        );
        // 4000 operations are 31 times 129 (a full file and its truncation) and one more. Each
        // allocation and free takes a group lock.
        let group = outcome.locks.iter().find(|row| row.lock == "GROUP").unwrap();
        assert!(group.off > 0.5 && group.off < 10.0, "an operation, not all of them: {group:?}");
    }
}
