//! Simulates many CPUs in virtual time on one core, to find out how much time a machine with many
//! CPUs would spend on locks and cache lines.
//!
//! [`simulate`] runs one program per CPU, each as a coroutine. Each CPU has a clock. The CPU whose
//! clock is furthest behind runs, and every access to a lock or an atomic adds its cost from
//! [`Costs`]. A side table records which CPU holds which lock and which CPU's cache has which line.
//! The code under test is the code that ships, with [`Virtual`] as its backend.
//!
//! The model, and what it leaves out:
//! - A line is in the caches of the CPU that last wrote it and of all CPUs that read it since. A
//!   CPU can read a line that is in its cache, and can write a line that is only in its cache. For
//!   any other access the line moves first. The cost is the distance to another CPU that has the
//!   line: the nearest for a read, the farthest for a write. A line that is in no cache comes from
//!   memory.
//! - While a line is on its way to a CPU that writes it, and for [`Costs::keep_ns`] more, other
//!   CPUs that want the line wait. Which of them gets the line next is drawn at random, because
//!   caches promise no order ([`Costs::neighbours_first_percent`]).
//! - Moves of different lines are independent. A CPU waits for one line after the other, unless
//!   [`Costs::moves_overlap`]. Caches hold any number of lines, and nothing is prefetched.
//! - Each lock and atomic has its own line, unless it was created inside [`Backend::on_line`].
//! - A contended lock is handed over in order of arrival; the hand-over moves the line. No CPU
//!   sleeps. With [`Costs::barging`] instead, the first CPU that finds a lock free takes it, and a
//!   CPU that has found it taken too often sleeps.
//! - Plain memory and computation cost nothing, except what a program states with [`Virtual::work`]
//!   and what [`Section`] says about a lock's holder.
//! - CPUs may run ahead of each other by [`Costs::slack_ns`]; with 0 every access happens in the
//!   order of virtual time.
//!
//! Nothing depends on the real clock, the real scheduler or on addresses: the same programs and
//! costs give the same figures.

mod atomics;
mod costs;
mod draws;
mod lines;
mod locks;
mod place;
mod scheduler;

use std::rc::Rc;

use generator::Gn;

use super::Backend;
use super::native::Native;
use crate::atomic::Ordering;
use crate::held_set::HeldSet;
use crate::slot::CpuSlot;
use scheduler::Scheduler;

pub use costs::{Barging, Costs, Level, Section, Tick};

/// Words of stack per CPU.
const STACK_WORDS: usize = 1 << 15;

/// Logical CPUs of a [`simulate`] call. Outside of one, operations work natively and cost nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Virtual;

/// What one logical CPU did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuFigures {
    /// The CPU's clock at the end of its program.
    pub finished_ns: u64,
    /// Lines moved to this CPU's cache from another's, including those that came with a lock that
    /// was handed over.
    pub lines_moved: u64,
    /// Time of these moves, including the time in the lines' queues. Moves that overlap each count
    /// with their whole time. Hand-overs of locks are not included: their time is in
    /// `lock_wait_ns`. With [`Barging`], a CPU that waits for a lock looks at the lock's line again
    /// and again: these moves count here and in `lock_wait_ns`.
    pub lines_moved_ns: u64,
    /// How often the CPU had to wait for a lock.
    pub lock_waits: u64,
    /// Time spent waiting for locks.
    pub lock_wait_ns: u64,
}

/// Figures of all lines with one name, and of the locks on them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineFigures {
    /// The name.
    pub name: &'static str,
    /// How often a lock was taken.
    pub taken: u64,
    /// How often a CPU had to wait for a lock.
    pub waits: u64,
    /// Time spent waiting for locks.
    pub wait_ns: u64,
    /// Time of the sections under these locks, see [`Section`].
    pub section_ns: u64,
    /// Time for which mutexes were held, and reader-writer locks were held for writing. A lock that
    /// was handed over counts from when its new holder runs.
    pub held_ns: u64,
    /// Lines moved from another CPU's cache, except those handed over with a lock.
    pub moved: u64,
    /// Time of these moves, including queueing. Moves that overlap each count with their whole
    /// time.
    pub moved_ns: u64,
}

impl LineFigures {
    /// What was added since `before`, which are earlier figures of the same lines.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        debug_assert_eq!(self.name, before.name, "figures of different lines");
        Self {
            name: self.name,
            taken: self.taken - before.taken,
            waits: self.waits - before.waits,
            wait_ns: self.wait_ns - before.wait_ns,
            section_ns: self.section_ns - before.section_ns,
            held_ns: self.held_ns - before.held_ns,
            moved: self.moved - before.moved,
            moved_ns: self.moved_ns - before.moved_ns,
        }
    }
}

/// What a simulation cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Each CPU, in order.
    pub cpus: Vec<CpuFigures>,
    /// The figures of the lines, by name.
    pub lines: Vec<LineFigures>,
}

impl Report {
    /// When the last CPU finished.
    #[must_use]
    pub fn elapsed_ns(&self) -> u64 {
        self.cpus.iter().map(|cpu| cpu.finished_ns).max().unwrap_or(0)
    }

    /// The sum of all CPUs' counts; `finished_ns` is the time all of them spent.
    #[must_use]
    pub fn total(&self) -> CpuFigures {
        self.cpus.iter().fold(CpuFigures::default(), |sum, cpu| CpuFigures {
            finished_ns: sum.finished_ns + cpu.finished_ns,
            lines_moved: sum.lines_moved + cpu.lines_moved,
            lines_moved_ns: sum.lines_moved_ns + cpu.lines_moved_ns,
            lock_waits: sum.lock_waits + cpu.lock_waits,
            lock_wait_ns: sum.lock_wait_ns + cpu.lock_wait_ns,
        })
    }
}

/// What one logical CPU runs.
pub type Program<'a> = Box<dyn FnOnce() + Send + 'a>;

/// Runs each program on its own logical CPU, all from time 0, to the end.
///
/// # Panics
/// - When a program panics.
/// - When all programs that have not ended wait for a lock or a notification.
/// - When there are more than 1,088 programs.
/// - When it is called inside another simulation.
#[must_use]
pub fn simulate(costs: &Costs, programs: Vec<Program<'_>>) -> Report {
    let scheduler = Rc::new(Scheduler::new(costs.clone(), programs.len()));
    let _installed = scheduler::install(&scheduler);
    let mut coroutines: Vec<_> =
        programs.into_iter().map(|program| Gn::<()>::new_opt(STACK_WORDS, program)).collect();
    // Dropped before the coroutines, so that unfinished coroutines unwind without simulating.
    let _end = scheduler::EndOfTime(&scheduler);
    while let Some(cpu) = scheduler.next() {
        coroutines[cpu].resume();
        if coroutines[cpu].is_done() {
            scheduler.finish(cpu);
        }
    }
    scheduler.report()
}

impl Virtual {
    /// Advances the calling CPU's clock by the time of computation that the model does not see.
    pub fn work(ns: u64) {
        if let Some(scheduler) = scheduler::current() {
            scheduler.work(ns);
        }
    }

    /// The calling CPU's clock; 0 outside a simulation.
    #[must_use]
    pub fn now_ns() -> u64 {
        scheduler::current().map_or(0, |scheduler| scheduler.now())
    }

    /// The figures of all lines so far, by name; empty outside a simulation.
    #[must_use]
    pub fn line_figures() -> Vec<LineFigures> {
        scheduler::current().map_or_else(Vec::new, |scheduler| scheduler.line_figures())
    }

    /// Runs `f`, which reads something, while virtual time stands still: accesses in `f` cost
    /// nothing, and no other CPU runs. `f` must not take a lock, because another CPU may hold it.
    pub fn aside<R>(f: impl FnOnce() -> R) -> R {
        match scheduler::current() {
            Some(scheduler) => scheduler.aside(f),
            None => f(),
        }
    }

    /// The calling CPU; `None` outside a simulation.
    #[must_use]
    pub fn cpu() -> Option<CpuSlot> {
        let cpu = scheduler::current()?.cpu();
        u32::try_from(cpu).ok().map(CpuSlot::new)
    }
}

impl Backend for Virtual {
    type RawMutex<T: Send> = locks::VirtualMutex<T>;
    type RawRwLock<T: Send + Sync> = locks::VirtualRwLock<T>;
    type RawCondvar = locks::VirtualCondvar;
    type AtomicBool = atomics::VirtualBool;
    type AtomicU32 = atomics::VirtualU32;
    type AtomicU64 = atomics::VirtualU64;
    type AtomicUsize = atomics::VirtualUsize;

    fn thread_id() -> u64 {
        // Threads outside a simulation are numbered above all CPUs.
        Self::cpu().map_or_else(|| Native::thread_id() + (1 << 32), |cpu| u64::from(cpu.raw()))
    }

    fn yield_now() {
        match scheduler::current() {
            Some(scheduler) => scheduler.let_others_run(),
            None => Native::yield_now(),
        }
    }

    fn fence(_order: Ordering) {}

    fn on_line<R>(name: &'static str, make: impl FnOnce() -> R) -> R {
        place::on_line(name, make)
    }

    fn with_held<R>(f: impl FnOnce(&mut HeldSet) -> R) -> R {
        match scheduler::current() {
            Some(scheduler) => scheduler.with_held(f),
            None => Native::with_held(f),
        }
    }
}
