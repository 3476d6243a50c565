//! Measures what moving a cache line and handing over a lock cost on the current machine.
//!
//! Two threads on two CPUs take turns on one counter, so each turn moves its line once. A turn that
//! also changes a second contended line, the lock, takes longer. The additional time, less one
//! move, is the hand-over. Lines of plain data each add less than a move to a turn, because the CPU
//! moves several at once. The result is the minimum over many short repetitions, because time taken
//! by other work is not a cost of the machine.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Result, ensure};
use blockyard_disk::num::u32_from_usize;

use super::{Held, Machine, Placement};
use crate::cpus;

/// Turns of one measurement.
const TURNS: u64 = 20_000;
const REPETITIONS: usize = 51;
/// Cache lines of plain data that an allocation under a group's lock changes: bitmap, group,
/// counters.
const FOLLOWERS: usize = 4;

/// Measures this machine. Every CPU is assumed to be as far from every other as the first two are.
///
/// # Errors
/// With fewer than two CPUs.
pub fn this_machine() -> Result<Machine> {
    let allowed = cpus::allowed();
    ensure!(allowed.len() >= 2, "lab machine measure needs two CPUs, this process may use {}", allowed.len());
    let move_ns = least(|| turns(&allowed, Turn::Alone)).max(1);
    let with_lock = least(|| turns(&allowed, Turn::Lock));
    let with_data = least(|| turns(&allowed, Turn::Data));
    let hit_ps = least(alone_ps).max(1);
    let lines = (with_data.saturating_sub(move_ns) + move_ns / 2) / move_ns;
    Ok(Machine {
        name: "this-machine".to_owned(),
        about: format!("Measured on this machine, {} CPUs, by blockyard lab machine measure.", allowed.len()),
        cpus: u32_from_usize(allowed.len()),
        sources: vec![
            "across_ns, hit_ps: measured: turns of two threads on one atomic, one thread alone".to_owned(),
            "hand_over_ns: measured: what a turn takes more with a second line in it".to_owned(),
            format!(
                "lines: measured: what a turn takes more with {FOLLOWERS} lines of plain data in it, in moves"
            ),
            "memory_ns, tick, sections, operation_ns: assumed; set operation_ns so that one worker comes out"
                .to_owned(),
        ],
        hit_ps,
        memory_ns: 90,
        levels: Vec::new(),
        across_ns: move_ns,
        hand_over_ns: with_lock.saturating_sub(2 * move_ns),
        keep_ns: 0,
        neighbours_first_percent: 0,
        tick_every_ns: 4_000_000,
        tick_costs_ns: 3000,
        sections: vec![Held { name: "group lock".to_owned(), work_ns: 60, lines }],
        append64_group_lock_ns: None,
        operation_ns: 0,
        operation_varies_percent: 20,
        shared_accesses: 0,
        commit_every_ns: 5_000_000_000,
        switch_ns: 1500,
        quantum_ns: 3_000_000,
        placement: Placement::InOrder,
    })
}

fn least(measure: impl Fn() -> u64) -> u64 {
    (0..REPETITIONS).map(|_| measure()).min().unwrap_or_default()
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
    let play = |me: u64| {
        let _ = cpus::stay_on(allowed, usize::from(me == 1));
        for round in 0..TURNS {
            // Acquire and release pair with each other: each thread sees the other's turn.
            while turn.0.load(Ordering::Acquire) != 2 * round + me {
                core::hint::spin_loop();
            }
            match with {
                Turn::Alone => {}
                Turn::Lock => {
                    lock.0.fetch_add(1, Ordering::Relaxed);
                }
                // Plain loads and stores, so that no line waits for the previous one.
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

/// Picoseconds of changing a counter that no other CPU uses.
fn alone_ps() -> u64 {
    let line = Line(AtomicU64::new(0));
    let start = Instant::now();
    for _ in 0..TURNS {
        line.0.fetch_add(1, Ordering::Relaxed);
    }
    each(start, TURNS / 1000)
}
