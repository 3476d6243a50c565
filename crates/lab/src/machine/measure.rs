//! Measures what it costs on the current machine to access a cache line, to move one, to hand over
//! a lock and to wait for a lock.
//!
//! Two threads on two CPUs take turns on one counter:
//!
//! - A plain turn moves the counter's line once.
//! - A turn with a lock changes a second contended line, the lock. The additional time, less one
//!   move, is the cost of handing over a lock.
//! - A turn with data changes several lines of plain data. If this adds the time of at most one
//!   move for every two lines, moves overlap.
//!
//! Finally, one thread wakes the other again and again.
//!
//! The result is the minimum over many short repetitions, because time taken by other work is not a
//! cost of the machine. A median far above the minimum shows that other work took time from most
//! repetitions; then the minimum is in doubt, too. For wake-ups, the result is the median.

use std::fmt;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::Instant;

use anyhow::{Result, ensure};
use blockyard_disk::num::{u32_from_usize, u64_from_usize};

use super::{GROUP_LOCK, Held, LibraryLocks, Machine, Placement};
use crate::cpus;

/// Turns of each thread in one measurement.
const TURNS: u64 = 20_000;
const REPETITIONS: usize = 51;
/// Cache lines of plain data that an allocation under a group's lock changes: bitmap, group,
/// counters.
const FOLLOWERS: usize = 4;

/// How long one thread waits before it wakes the other, in nanoseconds, so that the other can fall
/// asleep.
const ASLEEP_NS: u64 = 20_000;

/// A machine counts as busy if a median of repetitions is more than this many per cent above the
/// minimum.
const BUSY_PERCENT: u64 = 25;

/// This machine, and how much the repetitions of each measurement differed.
#[derive(Debug)]
pub struct Measured {
    /// The machine.
    pub machine: Machine,
    repeated: [Repeated; 4],
    waiting: [Repeated; 4],
}

/// The repetitions of one measurement.
#[derive(Debug)]
struct Repeated {
    what: &'static str,
    unit: &'static str,
    least: u64,
    median: u64,
}

impl Repeated {
    fn of(what: &'static str, unit: &'static str, measure: impl Fn() -> u64) -> Self {
        Self::new(what, unit, std::array::from_fn(|_| measure()))
    }

    fn new(what: &'static str, unit: &'static str, mut times: [u64; REPETITIONS]) -> Self {
        times.sort_unstable();
        let (least, median) = (times[0].max(1), times[REPETITIONS / 2].max(1));
        debug_assert!(least <= median, "{what}: the times are sorted");
        Self { what, unit, least, median }
    }

    /// How far the median is above the minimum, in per cent of the minimum.
    const fn spread_percent(&self) -> u64 {
        (self.median - self.least).saturating_mul(100) / self.least
    }
}

impl fmt::Display for Repeated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, unit, least, median } = self;
        write!(f, "{what} took {least} {unit} at least and {median} {unit} in the median of {REPETITIONS}")
    }
}

impl Measured {
    /// A warning if the machine was too busy to trust the result.
    #[must_use]
    pub fn doubt(&self) -> Option<String> {
        // Wake-ups do not count here, because their time varies on idle machines, too.
        let worst = self
            .repeated
            .iter()
            .chain(&self.waiting[..2])
            .max_by_key(|repeated| repeated.spread_percent())?;
        (worst.spread_percent() > BUSY_PERCENT).then(|| {
            format!(
                "{worst} repetitions: other work was running, and another run will differ; measure when idle"
            )
        })
    }
}

/// Measures this machine. Every CPU is assumed to be as far from every other as the first two are.
///
/// # Errors
/// With fewer than two CPUs.
pub fn this_machine() -> Result<Measured> {
    let allowed = cpus::allowed();
    ensure!(allowed.len() >= 2, "lab machine measure needs two CPUs, this process may use {}", allowed.len());
    let turns = |what, with| Repeated::of(what, "ns", || turns(&allowed, with));
    let repeated = [
        turns("a move", Turn::Alone),
        turns("a turn with a lock", Turn::Lock),
        turns("a turn with data", Turn::Data),
        Repeated::of("an access alone", "ps", || {
            alone_ps(|line| {
                line.0.fetch_add(1, Ordering::Relaxed);
            })
        }),
    ];
    let (wakes, calls) = wake_ups(&allowed);
    let waiting = [
        Repeated::of("a pause", "ps", || alone_ps(|_| core::hint::spin_loop())),
        Repeated::of("a yield", "ps", || alone_ps(|_| std::thread::yield_now())),
        Repeated::new("a wake-up", "ns", wakes),
        Repeated::new("the call for a wake-up", "ns", calls),
    ];
    let machine = machine(u32_from_usize(allowed.len()), &repeated, &waiting);
    Ok(Measured { machine, repeated, waiting })
}

/// A machine of `cpus` CPUs with the costs that [`this_machine`] measured.
fn machine(cpus: u32, repeated: &[Repeated; 4], waiting: &[Repeated; 4]) -> Machine {
    let [alone, with_lock, with_data, hit] = repeated;
    let [pause, yielding, wake, call] = waiting;
    let move_ns = alone.least;
    let lines = (with_data.least.saturating_sub(move_ns) + move_ns / 2) / move_ns;
    Machine {
        name: "this-machine".to_owned(),
        about: format!("Measured on this machine, {cpus} CPUs, by blockyard lab machine measure."),
        cpus,
        sources: vec![
            format!("across_ns: measured: turns of two threads on one atomic: {alone} repetitions"),
            format!("hit_ps: measured: one thread on one atomic: {hit} repetitions"),
            format!(
                "hand_over_ns: measured: the extra time of a turn with a second line in it, less a move: \
                 {with_lock} repetitions"
            ),
            format!(
                "lines, moves_overlap: measured: the extra time of a turn with {FOLLOWERS} lines of plain data in \
                 it, in moves: {with_data} repetitions"
            ),
            format!(
                "library_locks: measured: in one thread alone, {pause} repetitions, and {yielding}; between two \
                 threads, {wake}, and {call}: of these two the medians, because some sleepers had not yet \
                 gone to sleep"
            ),
            "all other costs and intervals: assumed".to_owned(),
        ],
        hit_ps: hit.least,
        memory_ns: 90,
        levels: Vec::new(),
        across_ns: move_ns,
        hand_over_ns: with_lock.least.saturating_sub(2 * move_ns),
        moves_overlap: 2 * lines <= u64_from_usize(FOLLOWERS),
        library_locks: Some(LibraryLocks {
            pause_ns: (pause.least + 500) / 1000,
            yield_ns: (yielding.least + 500) / 1000,
            wake_ns: wake.median,
            wake_call_ns: call.median,
        }),
        keep_ns: 0,
        neighbours_first_percent: 0,
        tick_every_ns: 4_000_000,
        tick_costs_ns: 3000,
        sections: vec![Held { name: GROUP_LOCK.to_owned(), work_ns: 60, lines }],
        append64_group_lock_ns: None,
        operation_ns: 0,
        operation_varies_percent: 20,
        shared_accesses: 0,
        commit_every_ns: 5_000_000_000,
        switch_ns: 1500,
        quantum_ns: 3_000_000,
        placement: Placement::InOrder,
    }
}

/// Nanoseconds since `start` divided by `times`.
fn each(start: Instant, times: u64) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX) / times
}

/// A counter with a cache line of its own.
#[repr(align(128))]
struct Line(AtomicU64);

/// What moves to the other CPU in a turn, in addition to the counter.
#[derive(Clone, Copy, Debug)]
enum Turn {
    Alone,
    Lock,
    Data,
}

/// Nanoseconds of a turn.
fn turns(allowed: &[usize], with: Turn) -> u64 {
    let (turn, lock) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let data = [const { Line(AtomicU64::new(0)) }; FOLLOWERS];
    // Both threads start before either spins: at a real-time priority, a spinning thread could keep
    // the other from starting.
    let both_started = Barrier::new(2);
    let play = |me: u64| {
        let _ = cpus::stay_on(allowed, usize::from(me == 1));
        both_started.wait();
        for round in 0..TURNS {
            // Pairs with the release store below: each thread sees what the other did in its turn.
            while turn.0.load(Ordering::Acquire) != 2 * round + me {
                core::hint::spin_loop();
            }
            match with {
                Turn::Alone => {}
                // As a lock is taken: a load, then a compare-and-exchange.
                Turn::Lock => {
                    let now = lock.0.load(Ordering::Relaxed);
                    let _ = lock.0.compare_exchange(now, now + 1, Ordering::Relaxed, Ordering::Relaxed);
                }
                // A load and a store, not an atomic addition, so that no line waits for the one
                // before.
                Turn::Data => data.iter().for_each(|line| {
                    line.0.store(line.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                }),
            }
            turn.0.store(2 * round + me + 1, Ordering::Release);
        }
    };
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| play(0));
        scope.spawn(|| play(1));
    });
    each(start, 2 * TURNS)
}

/// Picoseconds that `act` takes in a single thread, with a line that no other CPU uses.
fn alone_ps(act: impl Fn(&Line)) -> u64 {
    let line = Line(AtomicU64::new(0));
    let start = Instant::now();
    for _ in 0..TURNS {
        act(&line);
    }
    each(start, TURNS / 1000)
}

/// For each repetition, the nanoseconds from the call that wakes a sleeping thread until that
/// thread runs; and the nanoseconds that the call takes.
fn wake_ups(allowed: &[usize]) -> ([u64; REPETITIONS], [u64; REPETITIONS]) {
    let since = Instant::now();
    let now = || u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let (rounds_begun, woke_at) = (AtomicUsize::new(0), AtomicU64::new(0));
    let sleep = || {
        let _ = cpus::stay_on(allowed, 1);
        for round in 0..REPETITIONS {
            // Pairs with the release store before `unpark`, so the zero in `woke_at` is visible.
            while rounds_begun.load(Ordering::Acquire) <= round {
                std::thread::park();
            }
            woke_at.store(now(), Ordering::Release);
        }
    };
    let (mut wakes, mut calls) = ([0; REPETITIONS], [0; REPETITIONS]);
    let mut wake = |sleeper: &Thread| {
        let _ = cpus::stay_on(allowed, 0);
        for round in 0..REPETITIONS {
            let asleep = now() + ASLEEP_NS;
            while now() < asleep {
                core::hint::spin_loop();
            }
            woke_at.store(0, Ordering::Relaxed);
            let start = now();
            rounds_begun.store(round + 1, Ordering::Release);
            sleeper.unpark();
            calls[round] = now() - start;
            // Pairs with the sleeper's release store.
            while woke_at.load(Ordering::Acquire) == 0 {
                core::hint::spin_loop();
            }
            wakes[round] = woke_at.load(Ordering::Relaxed) - start;
        }
    };
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(sleep).thread().clone();
        scope.spawn(move || wake(&sleeper));
    });
    (wakes, calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figures in which the median of a turn with a lock is `percent` per cent above the minimum.
    fn measured(percent: u64) -> Measured {
        let steady = |what, least| Repeated::new(what, "ns", [least; REPETITIONS]);
        let mut busy = [100 + percent; REPETITIONS];
        busy[7] = 100;
        let repeated = [
            steady("a move", 40),
            Repeated::new("a turn with a lock", "ns", busy),
            steady("a turn with data", 80),
            steady("an access alone", 1700),
        ];
        let mut wakes = [16_000; REPETITIONS];
        wakes[3] = 60;
        let waiting = [
            Repeated::new("a pause", "ps", [24_600; REPETITIONS]),
            Repeated::new("a yield", "ps", [445_400; REPETITIONS]),
            Repeated::new("a wake-up", "ns", wakes),
            steady("the call for a wake-up", 8000),
        ];
        Measured { machine: machine(2, &repeated, &waiting), repeated, waiting }
    }

    #[test]
    fn a_busy_machine_puts_the_measurement_in_doubt() {
        assert_eq!(measured(25).doubt(), None);
        let text = measured(60).doubt().unwrap();
        assert!(
            text.starts_with("a turn with a lock took 100 ns at least and 160 ns in the median of 51"),
            "{text}"
        );
    }

    #[test]
    fn a_machine_has_the_least_of_each_measurement() {
        let machine = measured(60).machine;
        assert_eq!((machine.across_ns, machine.hand_over_ns, machine.hit_ps), (40, 20, 1700));
        assert_eq!(machine.sections[0].lines, 1);
        assert!(machine.moves_overlap, "four lines take the time of one move");
        assert!(machine.sources[2].contains("160 ns in the median"), "{:?}", machine.sources);
        // For wake-ups it has the medians.
        let locks = LibraryLocks { pause_ns: 25, yield_ns: 445, wake_ns: 16_000, wake_call_ns: 8000 };
        assert_eq!(machine.library_locks, Some(locks));
        let text = serde_json::to_string(&machine).unwrap();
        assert_eq!(Machine::parse(&text).unwrap(), machine);
    }
}
