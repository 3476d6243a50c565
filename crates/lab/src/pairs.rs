//! `lab pairs`: allocate/free pairs in memory, by policy and number of threads.
//!
//! After a warm-up in each thread, the wall clock runs from the start of the first thread to the
//! end of the last. CPU time for each pair comes from the scheduler. Even on a busy machine, CPU
//! time shows what threads cost each other; wall-clock time does not.

pub mod calibrate;
pub mod worker;

use std::collections::VecDeque;
use std::num::NonZero;
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use blockyard_alloc::{Allocator, LockCensus, Policy};
use blockyard_disk::num::{count_as_f64, u32_from_usize, usize_from_u32};
use blockyard_inspect::units::counted;
use blockyard_sync::virtual_time::{Costs, Program, simulate};
use blockyard_sync::{Backend, InTurn, Native, Virtual};
use serde::Serialize;

use crate::machine::{CPUS_MAX, Machine};
use crate::run::refuse_twice;

use self::worker::{PairWorker, open};

/// Pairs each thread makes before the clock starts.
const WARM_UP: u64 = 2000;
/// Pairs between two readings of the clock.
const CHUNK: u64 = 1000;
/// Number of CPU slots for real threads, however many of them there are.
const CPUS: u32 = 64;
/// Most threads in virtual time.
const THREADS_MAX: u32 = 4096;
/// Most pairs of each thread in virtual time.
const PAIRS_MAX: u64 = 1_000_000_000;

/// The figures of one policy with one number of threads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PairsRow {
    /// The arm, as given on the command line.
    pub policy: String,
    /// Threads.
    pub threads: u32,
    /// Pairs made by all threads.
    pub pairs: u64,
    /// Pairs a second, all threads together.
    pub pairs_per_s: f64,
    /// Elapsed nanoseconds, by the wall clock or in virtual time, divided by the pairs of all
    /// threads.
    pub wall_ns: f64,
    /// CPU nanoseconds per pair; `None` if the scheduler does not report them.
    pub cpu_ns: Option<f64>,
    /// Group locks waited for, per pair.
    pub waits: f64,
    /// Acquisitions of locks that the whole file system shares, per pair.
    pub shared_locks: f64,
}

/// The work of one thread.
struct Span {
    start: Instant,
    end: Instant,
    pairs: u64,
    cpu: Option<Duration>,
}

/// How threads get locks that others hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locks {
    /// Whoever finds the lock free takes it. A thread that waits long goes to sleep. These are the
    /// locks that the library uses outside the lab.
    Library,
    /// Threads are served in turn and never sleep, as with the kernel's spin locks.
    InTurn,
}

/// Makes pairs for about `time` under each policy with each number of threads. `progress` is called
/// before each row is measured, with the number of the row (from 1) and a description.
///
/// # Errors
/// As [`check`], and those of the allocator.
pub fn run(
    policies: &[String],
    threads: &[u32],
    (time, locks): (Duration, Locks),
    progress: impl FnMut(usize, &str),
) -> Result<Vec<PairsRow>> {
    check(policies, threads, (time, locks))?;
    match locks {
        Locks::Library => run_on::<Native>(policies, threads, time, progress),
        Locks::InTurn => run_on::<InTurn>(policies, threads, time, progress),
    }
}

fn run_on<B: Backend>(
    policies: &[String],
    threads: &[u32],
    time: Duration,
    mut progress: impl FnMut(usize, &str),
) -> Result<Vec<PairsRow>> {
    let mut rows = Vec::new();
    for (name, policy) in policies.iter().zip(parsed(policies)?) {
        for &count in threads {
            progress(rows.len() + 1, &format!("{name}, {}", counted(count.into(), "thread")));
            let allocator: Allocator<B> = open(policy, CPUS)?;
            rows.push(measure(&allocator, name, count, time)?);
        }
    }
    Ok(rows)
}

/// Refuses what [`run`] cannot measure.
///
/// # Errors
/// Says what is wrong: an unknown policy, no or too many threads, a value given twice, no time.
pub fn check(policies: &[String], threads: &[u32], (time, locks): (Duration, Locks)) -> Result<()> {
    check_arms(policies, threads)?;
    ensure!(
        threads.iter().all(|&count| count <= CPUS),
        "--workers: at most {CPUS} threads; --interleave virtual takes more"
    );
    let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
    ensure!(
        locks == Locks::Library || threads.iter().all(|&count| usize_from_u32(count) <= cpus),
        "--workers: at most {cpus} with --interleave in-turn, because threads that wait keep their CPUs"
    );
    ensure!(!time.is_zero(), "--seconds: give a time above 0");
    Ok(())
}

/// Refuses what [`run_virtual`] cannot measure.
///
/// # Errors
/// Says what is wrong.
pub fn check_virtual(
    policies: &[String],
    threads: &[u32],
    (machine, locks, cpus): (&Machine, Locks, Option<u32>),
    pairs: u64,
) -> Result<()> {
    costs(machine, locks)?;
    ensure!(
        cpus.is_none_or(|cpus| (1..=CPUS_MAX).contains(&cpus)),
        "--cpus takes numbers from 1 to {CPUS_MAX}"
    );
    check_arms(policies, threads)?;
    ensure!(threads.iter().all(|&count| count <= THREADS_MAX), "--workers: at most {THREADS_MAX}");
    ensure!(
        cpus.is_some() || threads.iter().all(|&count| count <= CPUS_MAX),
        "--workers: at most {CPUS_MAX}, one CPU for each; --cpus lets more take turns"
    );
    ensure!((1..=PAIRS_MAX).contains(&pairs), "--pairs takes numbers from 1 to {PAIRS_MAX}");
    Ok(())
}

/// The machine's costs with locks of this kind.
fn costs(machine: &Machine, locks: Locks) -> Result<Costs> {
    match locks {
        Locks::InTurn => Ok(machine.costs()),
        Locks::Library => machine.costs_with_library_locks().with_context(|| {
            format!(
                "--machine {}: its file has no library_locks, the costs of waiting for such locks; \
                 blockyard lab machine measure writes a file with them",
                machine.name
            )
        }),
    }
}

fn check_arms(policies: &[String], threads: &[u32]) -> Result<()> {
    parsed(policies)?;
    ensure!(!threads.is_empty() && !threads.contains(&0), "--workers takes numbers from 1 up");
    refuse_twice("--policy", policies)?;
    refuse_twice("--workers", threads)
}

/// Like [`run`], with the threads on the CPUs of a modelled machine in virtual time.
///
/// - There are `cpus` CPUs, but at most one for each thread; with `None`, one for each thread.
/// - Threads that share a CPU take turns, each for the machine's quantum.
/// - Each thread makes `pairs` pairs, after a warm-up of as many pairs.
/// - A pair costs the machine's `operation_ns`, and what its locks and cache lines cost.
/// - CPU time is the sum over all CPUs, including the time in which they wait.
///
/// # Errors
/// As [`check_virtual`], and those of the allocator.
pub fn run_virtual(
    policies: &[String],
    threads: &[u32],
    (machine, locks, cpus): (&Machine, Locks, Option<u32>),
    pairs: u64,
    mut progress: impl FnMut(usize, &str),
) -> Result<Vec<PairsRow>> {
    check_virtual(policies, threads, (machine, locks, cpus), pairs)?;
    let costs = costs(machine, locks)?;
    let mut rows = Vec::new();
    for (name, policy) in policies.iter().zip(parsed(policies)?) {
        for &count in threads {
            progress(rows.len() + 1, &format!("{name}, {} in virtual time", counted(count.into(), "thread")));
            let cpus = cpus.unwrap_or(count).min(count);
            let allocator: Allocator<Virtual> = open(policy, cpus)?;
            rows.push(predict(&allocator, name, (count, cpus), (machine, &costs, pairs))?);
        }
    }
    Ok(rows)
}

fn parsed(policies: &[String]) -> Result<Vec<Policy>> {
    let parse = |text: &String| Policy::parse(text).with_context(|| format!("--policy {text}"));
    policies.iter().map(parse).collect()
}

fn predict(
    allocator: &Allocator<Virtual>,
    policy: &str,
    (threads, cpus): (u32, u32),
    (machine, costs, pairs): (&Machine, &Costs, u64),
) -> Result<PairsRow> {
    let before = allocator.lock_census();
    // For each CPU: when it began to count and when it ended, or what failed.
    let ended = Mutex::new(Vec::new());
    let work = |cpu| {
        let files = (cpu..threads).step_by(usize_from_u32(cpus));
        let mut workers: Vec<_> = files.map(|file| PairWorker::of_file(allocator, file, cpu)).collect();
        let mut run = || -> Result<(u64, u64)> {
            take_turns(machine, &mut workers, pairs)?;
            let began = Virtual::now_ns();
            take_turns(machine, &mut workers, pairs)?;
            Ok((began, Virtual::now_ns()))
        };
        let result = run();
        ended.lock().unwrap_or_else(PoisonError::into_inner).push(result);
    };
    let work = &work;
    let programs = (0..cpus).map(|cpu| -> Program<'_> { Box::new(move || work(cpu)) }).collect();
    let report = simulate(costs, programs);
    drop(report);
    let ended = ended.into_inner().unwrap_or_else(PoisonError::into_inner);
    let spans: Vec<(u64, u64)> = ended.into_iter().collect::<Result<_>>()?;
    let start = spans.iter().map(|span| span.0).min().unwrap_or(0);
    let end = spans.iter().map(|span| span.1).max().unwrap_or(0);
    let all = pairs * u64::from(threads);
    let each = |total: u64| count_as_f64(total) / count_as_f64(all);
    let after = allocator.lock_census();
    Ok(PairsRow {
        policy: policy.to_owned(),
        threads,
        pairs: all,
        pairs_per_s: 1e9 / each((end - start).max(1)),
        wall_ns: each(end - start),
        cpu_ns: Some(each(spans.iter().map(|span| span.1 - span.0).sum())),
        // The counters include the warm-up, which makes as many pairs.
        waits: each(after.groups.waits - before.groups.waits) / 2.0,
        shared_locks: each(after.shared_acquisitions() - before.shared_acquisitions()) / 2.0,
    })
}

/// Lets each worker of a virtual CPU make `pairs` pairs. One worker runs for a quantum, then the
/// next. The CPU switches only between pairs, like a kernel without preemption.
fn take_turns(machine: &Machine, workers: &mut [PairWorker<'_, Virtual>], pairs: u64) -> Result<()> {
    let several = workers.len() > 1;
    let mut turns: VecDeque<_> = workers.iter_mut().map(|worker| (worker, pairs)).collect();
    while let Some((worker, mut left)) = turns.pop_front() {
        let until = Virtual::now_ns().saturating_add(machine.quantum_ns);
        while left > 0 && !(several && Virtual::now_ns() >= until) {
            Virtual::work(machine.operation_ns);
            worker.run(1)?;
            left -= 1;
        }
        if left > 0 {
            turns.push_back((worker, left));
            Virtual::work(machine.switch_ns);
        }
    }
    Ok(())
}

fn measure<B: Backend>(
    allocator: &Allocator<B>,
    policy: &str,
    threads: u32,
    time: Duration,
) -> Result<PairsRow> {
    let barrier = Barrier::new(usize::try_from(threads)?);
    let before = allocator.lock_census();
    let spans: Vec<Span> = std::thread::scope(|scope| {
        let barrier = &barrier;
        let started: Vec<_> =
            (0..threads).map(|cpu| scope.spawn(move || work(allocator, cpu, barrier, time))).collect();
        let joined =
            started.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?);
        joined.collect::<Result<_>>()
    })?;
    figures(policy, &spans, (&before, &allocator.lock_census()))
}

/// The row for the work of the threads, with the locks counted before and after.
fn figures(policy: &str, spans: &[Span], (before, after): (&LockCensus, &LockCensus)) -> Result<PairsRow> {
    let pairs: u64 = spans.iter().map(|span| span.pairs).sum();
    let start = spans.iter().map(|span| span.start).min().context("at least one thread")?;
    let end = spans.iter().map(|span| span.end).max().context("at least one thread")?;
    let each = |total: f64| total / count_as_f64(pairs.max(1));
    let seconds = (end - start).as_secs_f64().max(1e-9);
    let cpu: Option<Duration> = spans.iter().map(|span| span.cpu).sum();
    Ok(PairsRow {
        policy: policy.to_owned(),
        threads: u32_from_usize(spans.len()),
        pairs,
        pairs_per_s: count_as_f64(pairs) / seconds,
        wall_ns: each(seconds * 1e9),
        cpu_ns: cpu.map(|cpu| each(cpu.as_secs_f64() * 1e9)),
        waits: each(count_as_f64(after.groups.waits - before.groups.waits)),
        shared_locks: each(count_as_f64(after.shared_acquisitions() - before.shared_acquisitions())),
    })
}

/// Runs one thread.
fn work<B: Backend>(allocator: &Allocator<B>, cpu: u32, barrier: &Barrier, time: Duration) -> Result<Span> {
    let mut worker = PairWorker::new(allocator, cpu);
    let warm = worker.run(WARM_UP);
    barrier.wait();
    warm?;
    let cpu_before = thread_cpu();
    let start = Instant::now();
    let mut pairs = 0;
    let mut end = start;
    while end - start < time {
        worker.run(CHUNK)?;
        pairs += CHUNK;
        end = Instant::now();
    }
    let cpu = thread_cpu().zip(cpu_before).map(|(after, before)| after.saturating_sub(before));
    Ok(Span { start, end, pairs, cpu })
}

/// CPU time of the calling thread so far.
fn thread_cpu() -> Option<Duration> {
    cpu_time(&std::fs::read_to_string("/proc/thread-self/schedstat").ok()?)
}

/// CPU time from a thread's `schedstat`. The first number is nanoseconds on a CPU, the second is
/// nanoseconds of waiting for one.
fn cpu_time(text: &str) -> Option<Duration> {
    text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockyard_sync::LockClassFigures;

    #[test]
    fn every_arm_gets_its_figures() {
        let arms = ["linux-6.16".to_owned(), "yard".to_owned()];
        let rows = run(&arms, &[1, 2], (Duration::from_millis(5), Locks::Library), |_, _| ()).unwrap();
        assert_eq!(rows.len(), 4);
        assert!(rows.iter().all(|row| row.pairs >= 1000 && row.wall_ns > 0.0));
        assert!(rows[0].shared_locks >= 2.0 && rows[3].shared_locks == 0.0, "{rows:?}");
    }

    /// Under [`Locks::InTurn`], too, two threads make pairs, and each pair takes two shared locks.
    #[test]
    fn locks_in_turn_serve_all_threads() {
        let arms = ["linux-6.16".to_owned()];
        let rows = run_on::<InTurn>(&arms, &[2], Duration::from_millis(5), |_, _| ()).unwrap();
        assert!(rows[0].pairs >= 2000 && rows[0].shared_locks >= 2.0, "{rows:?}");
    }

    #[test]
    fn virtual_pairs_repeat_and_show_what_is_shared() {
        let arms =
            ["linux-6.16".to_owned(), "linux-6.18".to_owned(), "rralloc-v2".to_owned(), "yard".to_owned()];
        let machine = Machine::open("kunpeng-920").unwrap();
        let run = || run_virtual(&arms, &[1, 8], (&machine, Locks::InTurn, None), 100, |_, _| ()).unwrap();
        let rows = run();
        assert_eq!(rows, run());
        let gain = |at: usize| rows[at + 1].pairs_per_s / rows[at].pairs_per_s;
        assert!(gain(6) > 4.0 && gain(0) < gain(6), "{rows:?}");
        assert!(run_virtual(&arms, &[1025], (&machine, Locks::InTurn, None), 100, |_, _| ()).is_err());
    }

    /// Under linux-6.16 two threads want the same group's lock. With library locks, the thread that
    /// releases the lock can take it again. So threads wait less than half as often as with locks
    /// in turn, and the rate is higher.
    #[test]
    fn library_locks_are_waited_for_less_often_than_locks_in_turn() {
        let arms = ["linux-6.16".to_owned()];
        let run = |machine: &str, locks| {
            let machine = Machine::open(machine).unwrap();
            run_virtual(&arms, &[2], (&machine, locks, None), 500, |_, _| ())
        };
        let error = run("kunpeng-920", Locks::Library).unwrap_err().to_string();
        assert!(error.contains("kunpeng-920: its file has no library_locks"), "{error}");
        let measured = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/experiments/two-cpus.json");
        let run = |locks| run(measured, locks).unwrap();
        let (library, in_turn) = (run(Locks::Library), run(Locks::InTurn));
        assert_eq!(library, run(Locks::Library));
        assert!(library[0].waits < in_turn[0].waits / 2.0, "{library:?} {in_turn:?}");
        assert!(library[0].pairs_per_s > in_turn[0].pairs_per_s, "{library:?} {in_turn:?}");
    }

    /// With a quantum of 1 ns the CPU switches threads after each pair, and each switch costs its
    /// time.
    #[test]
    fn switching_threads_costs_what_the_machine_says() {
        let arms = ["yard".to_owned()];
        let wall_ns = |quantum_ns, switch_ns| {
            let machine = Machine { quantum_ns, switch_ns, ..Machine::open("kunpeng-920").unwrap() };
            let run =
                || run_virtual(&arms, &[2], (&machine, Locks::InTurn, Some(1)), 100, |_, _| ()).unwrap();
            let rows = run();
            assert_eq!(rows, run());
            rows[0].wall_ns
        };
        let (free, costly) = (wall_ns(1, 0), wall_ns(1, 5000));
        assert!((costly - free - 5000.0).abs() < 100.0, "{free} {costly}");
        assert!(wall_ns(1_000_000_000, 5000) < free + 100.0);
    }

    #[test]
    fn more_threads_than_virtual_cpus_take_turns() {
        let machine = Machine::open("kunpeng-920").unwrap();
        let rate = |threads, cpus| {
            let arms = ["yard".to_owned()];
            let rows =
                run_virtual(&arms, &[threads], (&machine, Locks::InTurn, cpus), 100, |_, _| ()).unwrap();
            assert_eq!((rows[0].threads, rows[0].pairs), (threads, 100 * u64::from(threads)));
            rows[0].pairs_per_s
        };
        let (eight, two) = (rate(8, None), rate(8, Some(2)));
        assert!(two < eight / 2.0 && two > rate(1, None), "{two} {eight}");
        assert_eq!(rate(2, Some(9)), rate(2, None));
    }

    /// The limit holds for the number of CPUs that the user gives, however few threads use them.
    #[test]
    fn virtual_cpus_have_a_limit_whatever_the_threads() {
        let machine = Machine::open("kunpeng-920").unwrap();
        let check = |threads: u32, cpus, pairs| {
            check_virtual(&["yard".into()], &[threads], (&machine, Locks::InTurn, cpus), pairs)
        };
        assert!(check(2, Some(1024), 1).is_ok() && check(2000, Some(1024), 1).is_ok());
        for (threads, cpus, pairs, part) in [
            (2, Some(1025), 1, "--cpus takes numbers from 1 to 1024"),
            (2, Some(0), 1, "--cpus takes numbers from 1 to 1024"),
            (1025, None, 1, "--workers: at most 1024"),
            (4097, Some(2), 1, "--workers: at most 4096"),
            (2, None, u64::MAX, "--pairs takes numbers from 1 to 1000000000"),
        ] {
            let text = check(threads, cpus, pairs).unwrap_err().to_string();
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn bad_input_is_refused() {
        let short = (Duration::from_millis(1), Locks::Library);
        assert!(run(&["yard".into()], &[0], short, |_, _| ()).is_err());
        assert!(run(&["yard".into()], &[65], short, |_, _| ()).is_err());
        assert!(run(&["yard".into()], &[1, 1], short, |_, _| ()).is_err());
        assert!(run(&["nonsense".into()], &[1], short, |_, _| ()).is_err());
        assert!(run(&["yard".into()], &[1], (Duration::ZERO, Locks::Library), |_, _| ()).is_err());
    }

    /// The two threads make 8000 pairs. From the first start to the last end, 4 seconds pass.
    #[test]
    fn figures_are_those_of_all_threads_together() {
        let zero = Instant::now();
        let span = |from, to, pairs, cpu| Span {
            start: zero + Duration::from_secs(from),
            end: zero + Duration::from_secs(to),
            pairs,
            cpu: Some(Duration::from_secs(cpu)),
        };
        let locks = |waits, acquisitions| LockCensus {
            groups: LockClassFigures { acquisitions: 5 * waits, waits, busy: 0 },
            shared: vec![("md", LockClassFigures { acquisitions, waits: 1, busy: 0 })],
        };
        let spans = [span(1, 3, 3000, 1), span(2, 5, 5000, 5)];
        let row = figures("yard", &spans, (&locks(10, 100), &locks(26, 4100))).unwrap();
        let (policy, threads) = ("yard".to_owned(), 2);
        let (wall_ns, cpu_ns) = (500_000.0, Some(750_000.0));
        let (waits, shared_locks) = (0.002, 0.5);
        let expected = PairsRow {
            policy,
            threads,
            pairs: 8000,
            pairs_per_s: 2000.0,
            wall_ns,
            cpu_ns,
            waits,
            shared_locks,
        };
        assert_eq!(row, expected);
        let unknown = [Span { cpu: None, ..span(0, 1, 1, 0) }, span(0, 1, 1, 1)];
        assert_eq!(figures("yard", &unknown, (&locks(0, 0), &locks(0, 0))).unwrap().cpu_ns, None);
    }

    #[test]
    fn cpu_time_is_the_first_number_of_the_scheduler() {
        assert_eq!(cpu_time("1500000 77 9\n"), Some(Duration::from_micros(1500)));
        assert_eq!(cpu_time("\n"), None);
    }
}
