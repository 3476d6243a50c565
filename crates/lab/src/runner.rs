//! Runs the workers of a workload: each in a thread of its own, or all in one thread, where they
//! take turns.
//!
//! Threads measure speed and are not repeatable. Lockstep and overlap run the workers' steps round
//! by round in one thread, worker 0 first, so that the same seed gives the same image. In overlap
//! the target treats the operations of a round as simultaneous.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use blockyard_disk::num::count_as_f64;
use hdrhistogram::Histogram;

use crate::figures::row::Interleave;
use crate::target::Target;
use crate::workload::{Step, Worker, Workers};

/// When a cell ends, if its workers do not end on their own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// Wall-clock time; only with threads. `None`: no such limit.
    pub time: Option<Duration>,
    /// Operations of each worker; `None`: no such limit.
    pub ops_per_worker: Option<u64>,
    /// Whether each worker ends with an fsync of its file, inside the measured time (fio's
    /// `end_fsync`).
    pub fsync_end: bool,
}

/// What the workers did, and how long it took.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Operations of all workers.
    pub ops: u64,
    /// Bytes allocated, written or read by all workers.
    pub bytes: u64,
    /// Seconds from the first worker's start to the last one's end, by the wall clock or in the
    /// time of a modelled device.
    pub seconds: f64,
    /// Latency of each operation in nanoseconds: 1 ns to an hour, with three significant digits.
    pub latency_ns: Histogram<u64>,
}

impl Measured {
    pub(crate) fn new() -> Self {
        Self { ops: 0, bytes: 0, seconds: 0.0, latency_ns: histogram() }
    }

    /// Latency at a quantile (0..=1) in microseconds.
    #[must_use]
    pub fn latency_us(&self, quantile: f64) -> f64 {
        count_as_f64(self.latency_ns.value_at_quantile(quantile)) / 1e3
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000_000, 3)
        .expect("the bounds are constants that hdrhistogram accepts")
}

/// Runs the workers until they end or reach the limit. Returns the workers, in order, for
/// [`finish`]. Does not return if neither a limit nor the workload ends the run.
///
/// # Errors
/// The first error of a worker, with its number; or that a worker panicked.
pub fn run<'t, T: Target + 't>(
    target: &T,
    workers: Workers<'t, T>,
    cpus: u32,
    interleave: Interleave,
    limit: Limit,
) -> Result<(Measured, Workers<'t, T>)> {
    match interleave {
        Interleave::Threads => run_threads(target, workers, cpus, limit),
        Interleave::Lockstep | Interleave::Overlap | Interleave::Virtual => {
            run_rounds(target, workers, cpus, limit)
        }
    }
}

fn run_threads<'t, T: Target + 't>(
    target: &T,
    workers: Workers<'t, T>,
    cpus: u32,
    limit: Limit,
) -> Result<(Measured, Workers<'t, T>)> {
    let start = std::sync::Barrier::new(workers.len());
    // For all workers, time runs from the first one's start. With many workers on few CPUs, some
    // begin much later than others. If each worker counted its time from its own start, CPUs would
    // be idle at the end while the last workers used up their time.
    let began = std::sync::OnceLock::new();
    let ended: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0u32..)
            .zip(workers)
            .map(|(index, mut worker)| {
                let (start, began) = (&start, &began);
                scope.spawn(move || {
                    target.enter_worker(index % cpus.max(1));
                    start.wait();
                    let began = *began.get_or_init(Instant::now);
                    let driven = drive(target, &mut *worker, began, limit);
                    (driven.with_context(|| format!("worker {index}")), worker)
                })
            })
            .collect();
        threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
    });
    let mut all = Measured::new();
    let mut last = None;
    let mut workers: Workers<'t, T> = Vec::with_capacity(ended.len());
    for joined in ended {
        let (driven, worker) = joined.map_err(|_| anyhow!("a worker panicked"))?;
        let (measured, end) = driven?;
        all.ops += measured.ops;
        all.bytes += measured.bytes;
        all.latency_ns.add(&measured.latency_ns).context("latency histograms have one shape")?;
        last = last.max(Some(end));
        workers.push(worker);
    }
    all.seconds = began.get().zip(last).map_or(0.0, |(began, last)| (last - *began).as_secs_f64());
    Ok((all, workers))
}

/// Fills every file to its full size, and closes all files in order. The workers are interleaved as
/// in the run, but nothing is counted.
///
/// # Errors
/// The first error of a worker; or that a worker panicked.
pub fn finish<'t, T: Target + 't>(
    target: &T,
    mut workers: Workers<'t, T>,
    cpus: u32,
    interleave: Interleave,
) -> Result<()> {
    match interleave {
        Interleave::Threads => std::thread::scope(|scope| -> Result<()> {
            let threads: Vec<_> = (0u32..)
                .zip(&mut workers)
                .map(|(index, worker)| {
                    scope.spawn(move || {
                        target.enter_worker(index % cpus.max(1));
                        while worker.fill(target)? != Step::Finished {}
                        Ok(())
                    })
                })
                .collect();
            let ended: Vec<Result<()>> = threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow!("a worker panicked"))))
                .collect();
            ended.into_iter().collect()
        })?,
        Interleave::Lockstep | Interleave::Overlap | Interleave::Virtual => {
            let mut is_filling = true;
            while is_filling {
                is_filling = false;
                let mut slots = Slots::new(cpus);
                for (index, worker) in workers.iter_mut().enumerate() {
                    slots.take(target, index);
                    is_filling |= worker.fill(target)? != Step::Finished;
                }
                target.next_round();
            }
        }
    }
    workers.into_iter().try_for_each(|worker| worker.close(target))
}

/// Operations between two checks of whether the time is up. The latency of every operation is
/// measured all the same.
const CLOCK_EVERY: u64 = 64;

/// Runs one worker; also returns the time of its end. The clock is read once for each operation:
/// the end of one is the start of the next.
fn drive<T: Target>(
    target: &T,
    worker: &mut (dyn Worker<T> + '_),
    began: Instant,
    limit: Limit,
) -> Result<(Measured, Instant)> {
    let mut measured = Measured::new();
    let most = limit.ops_per_worker.unwrap_or(u64::MAX);
    let mut last = Instant::now();
    while measured.ops < most {
        match worker.step(target)? {
            Step::Finished => break,
            Step::Done { bytes } => {
                let now = Instant::now();
                measured.latency_ns.saturating_record(nanoseconds(now - last));
                last = now;
                measured.ops += 1;
                measured.bytes += bytes;
            }
        }
        if measured.ops.is_multiple_of(CLOCK_EVERY) && limit.time.is_some_and(|time| last - began >= time) {
            break;
        }
    }
    if limit.fsync_end {
        worker.sync(target)?;
        last = Instant::now();
    }
    Ok((measured, last))
}

fn run_rounds<'t, T: Target + 't>(
    target: &T,
    mut workers: Workers<'t, T>,
    cpus: u32,
    limit: Limit,
) -> Result<(Measured, Workers<'t, T>)> {
    let rounds = limit.ops_per_worker.unwrap_or(u64::MAX);
    let mut measured = Measured::new();
    let mut running: Vec<usize> = (0..workers.len()).collect();
    let began = Instant::now();
    let mut last = began;
    let mut round = 0;
    while round < rounds && !running.is_empty() {
        let mut still = Vec::with_capacity(running.len());
        let mut slots = Slots::new(cpus);
        for &index in &running {
            slots.take(target, index);
            match workers[index].step(target).with_context(|| format!("worker {index}"))? {
                Step::Finished => continue,
                Step::Done { bytes } => {
                    let now = Instant::now();
                    measured.latency_ns.saturating_record(nanoseconds(now - last));
                    last = now;
                    measured.ops += 1;
                    measured.bytes += bytes;
                }
            }
            still.push(index);
        }
        running = still;
        target.next_round();
        round += 1;
    }
    if limit.fsync_end {
        workers.iter_mut().try_for_each(|worker| worker.sync(target))?;
    }
    measured.seconds = began.elapsed().as_secs_f64();
    Ok((measured, workers))
}

/// The CPUs that are busy in the current round. A CPU runs one worker in a round, so a worker whose
/// CPU is busy begins a new round.
struct Slots {
    cpus: usize,
    /// The CPU of the previous worker. Workers run in ascending order, so a worker's CPU is busy if
    /// its number is not greater than this number.
    last: Option<usize>,
}

impl Slots {
    fn new(cpus: u32) -> Self {
        Self { cpus: blockyard_disk::num::usize_from_u32(cpus.max(1)), last: None }
    }

    /// Puts a worker on its CPU, and begins a new round if that CPU is busy.
    fn take<T: Target>(&mut self, target: &T, worker: usize) {
        let cpu = worker % self.cpus;
        if self.last.is_some_and(|last| cpu <= last) {
            target.next_round();
        }
        self.last = Some(cpu);
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Workload;
    use crate::workload::tests::Log;

    #[test]
    fn rounds_take_turns_and_drop_finished_workers() {
        let log = Log::default();
        let workload = Workload::Append64 { size: 8192, step: 4096 };
        let workers = workload.workers(&log, 2, 2).unwrap();
        let limit = Limit { time: None, ops_per_worker: None, fsync_end: false };
        let (measured, _) = run(&log, workers, 2, Interleave::Lockstep, limit).unwrap();
        assert_eq!((measured.ops, measured.bytes), (4, 16_384));
        let log = log.asked.into_inner().unwrap();
        assert_eq!(
            log[2..],
            ["0 fallocate 0 4096", "1 fallocate 0 4096", "0 fallocate 4096 4096", "1 fallocate 4096 4096"]
        );
    }

    #[test]
    fn files_are_filled_in_the_manner_of_the_run() {
        let log = Log::default();
        let workload = Workload::Fallocate2 { size: 16_384, step: 8192 };
        let workers = workload.workers(&log, 2, 2).unwrap();
        let limit = Limit { time: None, ops_per_worker: Some(0), fsync_end: false };
        let (_, workers) = run(&log, workers, 2, Interleave::Lockstep, limit).unwrap();
        finish(&log, workers, 2, Interleave::Lockstep).unwrap();
        let lines = log.asked.into_inner().unwrap();
        assert_eq!(
            lines[2..],
            [
                "0 fallocate 0 8192",
                "1 fallocate 0 8192",
                "0 fallocate 8192 8192",
                "1 fallocate 8192 8192",
                "0 close fallocate2.0.0",
                "1 close fallocate2.1.0",
            ]
        );
    }

    #[test]
    fn threads_count_every_operation() {
        let log = Log::default();
        let workload = Workload::by_name("fallocate2", 1.0).unwrap();
        let workers = workload.workers(&log, 4, 2).unwrap();
        let limit = Limit { time: None, ops_per_worker: Some(1000), fsync_end: false };
        let (measured, workers) = run(&log, workers, 2, Interleave::Threads, limit).unwrap();
        assert_eq!((measured.ops, workers.len()), (4000, 4));
        // 1000 operations are 7 times 128 appends, which fill a file, and a truncate; then 97
        // appends.
        assert_eq!(measured.bytes, 4 * (7 * (1 << 20) + 97 * 8192));
        assert_eq!(measured.latency_ns.len(), 4000);
        assert_eq!(log.asked.into_inner().unwrap().len(), 4004);
    }

    /// With five workers on two CPUs, it takes three rounds until each worker has had a turn.
    #[test]
    fn a_cpu_runs_one_worker_at_a_time() {
        let log = Log::default();
        let workload = Workload::Append64 { size: 4096, step: 4096 };
        let workers = workload.workers(&log, 5, 2).unwrap();
        log.rounds.store(0, std::sync::atomic::Ordering::Relaxed);
        let limit = Limit { time: None, ops_per_worker: Some(1), fsync_end: false };
        let (_, workers) = run(&log, workers, 2, Interleave::Overlap, limit).unwrap();
        assert_eq!(log.rounds.load(std::sync::atomic::Ordering::Relaxed), 3);
        finish(&log, workers, 5, Interleave::Overlap).unwrap();
        assert_eq!(log.rounds.load(std::sync::atomic::Ordering::Relaxed), 4);
    }

    #[test]
    fn time_ends_a_run() {
        let log = Log::default();
        let workers = Workload::by_name("fallocate2", 1.0).unwrap().workers(&log, 2, 2).unwrap();
        let limit = Limit { time: Some(Duration::from_millis(20)), ops_per_worker: None, fsync_end: false };
        let (measured, _) = run(&log, workers, 2, Interleave::Threads, limit).unwrap();
        assert!(measured.ops > 0 && measured.seconds >= 0.02);
    }
}
