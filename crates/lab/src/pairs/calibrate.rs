//! Measures how much computation an allocate/free pair takes on this machine, under its group's
//! lock and outside.
//!
//! One thread makes pairs, and another samples whether the group's lock is held. Then a virtual CPU
//! makes pairs, with cache lines and locks as the only costs. On this machine a pair takes longer
//! than on the virtual CPU, and holds the lock for longer: the differences are computation.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Error, Result, anyhow, ensure};
use blockyard_alloc::{Allocator, Policy};
use blockyard_disk::GroupNr;
use blockyard_disk::num::count_as_f64;
use blockyard_sync::virtual_time::{Program, simulate};
use blockyard_sync::{Native, Virtual};

use super::worker::{PairWorker, open};
use super::{CPUS, measure};
use crate::cpus;
use crate::machine::{GROUP_LOCK, Machine};

/// The policy whose pairs are measured.
const POLICY: &str = "linux-6.18";
/// Pairs that the virtual CPU makes, after a warm-up of as many pairs.
const PAIRS: u64 = 20_000;
/// Repetitions on this machine, and how long each takes.
const REPETITIONS: u32 = 51;
const REPETITION: Duration = Duration::from_millis(5);
/// How often a pair takes its group's lock.
const HOLDS: f64 = 2.0;

/// Times of a pair, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Times {
    pair: f64,
    /// The part of a pair in which a group's lock is held.
    held: f64,
}

/// Sets the machine's `operation_ns` and its group lock's `work_ns` so that a virtual CPU takes as
/// long for a pair, and holds the lock for as long, as one thread on this computer.
///
/// # Errors
/// With fewer than two CPUs, and those of the allocator.
pub fn calibrate(machine: Machine) -> Result<Machine> {
    fitted(machine, native()?)
}

fn fitted(mut machine: Machine, native: Times) -> Result<Machine> {
    set_work(&mut machine, 0.0, 0.0);
    let idle = modelled(&machine)?;
    let work_ns = (native.held - idle.held).max(0.0) / HOLDS;
    set_work(&mut machine, work_ns, native.pair - idle.pair - HOLDS * work_ns);
    machine.sources.insert(
        0,
        format!(
            "work_ns, operation_ns: measured: a pair of {POLICY} in one thread takes {:.0} ns, and holds a \
             group's lock for {:.0} ns; in the model without computation, {:.0} and {:.0} ns",
            native.pair, native.held, idle.pair, idle.held
        ),
    );
    Ok(machine)
}

/// Sets the computation under a group's lock and outside, in nanoseconds.
fn set_work(machine: &mut Machine, inside: f64, outside: f64) {
    machine.operation_ns = rounded(outside);
    for held in machine.sections.iter_mut().filter(|held| held.name == GROUP_LOCK) {
        held.work_ns = rounded(inside);
    }
}

/// Times of one thread's pairs on this machine. The time of a pair is the minimum over many
/// repetitions without a second thread. In a further run, a second thread samples the share of time
/// in which the lock is held.
fn native() -> Result<Times> {
    let allowed = cpus::allowed();
    ensure!(allowed.len() >= 2, "lab machine measure needs two CPUs, this process may use {}", allowed.len());
    let allocator: Allocator<Native> = open(Policy::parse(POLICY)?, CPUS)?;
    let pair_ns = |time| Ok::<_, Error>(measure(&allocator, POLICY, 1, time)?.wall_ns);
    let mut repeated = (0..REPETITIONS).map(|_| pair_ns(REPETITION));
    let pair = repeated.try_fold(f64::MAX, |least, time| Ok::<_, Error>(least.min(time?)))?;
    let mut worker = PairWorker::new(&allocator, 0);
    worker.run(1)?;
    let group = worker.group();
    let is_done = AtomicBool::new(false);
    let share = std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let _ = cpus::stay_on(&allowed, 1);
            held_share(&allocator, group, &is_done)
        });
        let worked = pair_ns(REPETITION * REPETITIONS);
        is_done.store(true, Ordering::Relaxed);
        let share = looking.join().map_err(|_| anyhow!("a thread panicked"))?;
        worked.map(|_| share)
    })?;
    Ok(Times { pair, held: pair * share })
}

/// The share of samples in which the lock was held.
fn held_share(allocator: &Allocator<Native>, group: GroupNr, is_done: &AtomicBool) -> f64 {
    let (mut looks, mut held, mut pauses) = (0_u64, 0_u64, 20);
    // Loaded relaxed, because nothing but the end of this loop depends on the flag.
    while !is_done.load(Ordering::Relaxed) {
        // Pauses of various lengths, so that the samples do not fall into step with the pairs.
        pauses = 20 + (pauses * 7 + 3) % 31;
        (0..pauses).for_each(|_| core::hint::spin_loop());
        looks += 1;
        held += u64::from(allocator.is_group_locked(group));
    }
    count_as_f64(held) / count_as_f64(looks.max(1))
}

/// Times of a virtual CPU's pairs.
fn modelled(machine: &Machine) -> Result<Times> {
    let allocator: Allocator<Virtual> = open(Policy::parse(POLICY)?, 1)?;
    let mut result = Ok(());
    let mut figures = (0, 0);
    let program = || {
        let mut worker = PairWorker::new(&allocator, 0);
        let mut run = || {
            (0..PAIRS).try_for_each(|_| {
                Virtual::work(machine.operation_ns);
                worker.run(1)
            })
        };
        result = run().and_then(|()| {
            let before = (Virtual::now_ns(), held_ns());
            run()?;
            figures = (Virtual::now_ns() - before.0, held_ns() - before.1);
            Ok(())
        });
    };
    let program: Program<'_> = Box::new(program);
    drop(simulate(&machine.costs(), vec![program]));
    result?;
    let each = |total| count_as_f64(total) / count_as_f64(PAIRS);
    Ok(Times { pair: each(figures.0), held: each(figures.1) })
}

/// For how long groups' locks were held so far.
fn held_ns() -> u64 {
    Virtual::line_figures().iter().find(|line| line.name == GROUP_LOCK).map_or(0, |line| line.held_ns)
}

fn rounded(ns: f64) -> u64 {
    let time = Duration::from_secs_f64(ns.max(0.0) / 1e9);
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockyard_sync::CpuSlot;

    #[test]
    fn a_fitted_machine_takes_the_measured_time() {
        let machine = Machine::open("kunpeng-920").unwrap();
        let fitted = fitted(machine, Times { pair: 900.0, held: 400.0 }).unwrap();
        let again = modelled(&fitted).unwrap();
        assert!((again.pair - 900.0).abs() < 2.0 && (again.held - 400.0).abs() < 2.0, "{again:?}");
        assert!(fitted.sources[0].contains("takes 900 ns, and holds a group's lock for 400 ns"));
    }

    /// Measured times that are shorter than the modelled cache accesses leave no time for
    /// computation.
    #[test]
    fn computation_is_never_negative() {
        let machine = Machine::open("kunpeng-920").unwrap();
        let fitted = fitted(machine, Times { pair: 1.0, held: 1.0 }).unwrap();
        let group_lock = fitted.sections.iter().find(|held| held.name == GROUP_LOCK).unwrap();
        assert_eq!((fitted.operation_ns, group_lock.work_ns), (0, 0));
    }

    #[test]
    fn looks_find_a_lock_that_is_held() {
        let allocator: Allocator<Native> = open(Policy::parse(POLICY).unwrap(), 1).unwrap();
        let (is_done, both_started) = (AtomicBool::new(false), std::sync::Barrier::new(2));
        let share = std::thread::scope(|scope| {
            let looking = scope.spawn(|| {
                both_started.wait();
                held_share(&allocator, GroupNr::ZERO, &is_done)
            });
            allocator.with_group_locked(GroupNr::ZERO, CpuSlot::ZERO, || {
                both_started.wait();
                std::thread::sleep(Duration::from_millis(500));
                is_done.store(true, Ordering::Relaxed);
            });
            looking.join().unwrap()
        });
        assert!(share > 0.0, "{share}");
    }
}
