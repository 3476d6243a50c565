//! The clocks, which CPU runs next, and which CPUs wait for which lock.
//!
//! Everything here happens on one thread. No borrow of the state is held across a switch to another
//! CPU.

mod barging;

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::rc::Rc;

use super::draws::Draws;
use super::lines::{Access, CPUS_MAX, Lines, Outcome, Served};
use super::place::{ByNumber, LineId, LockId};
use super::{Costs, CpuFigures, LineFigures, Report};
use crate::held_set::HeldSet;

thread_local! {
    static CURRENT: RefCell<Option<Rc<Scheduler>>> = const { RefCell::new(None) };
}

/// The simulation in which the caller runs; `None` outside of one, while it is torn down, and
/// inside [`Scheduler::aside`].
pub(super) fn current() -> Option<Rc<Scheduler>> {
    let scheduler = CURRENT.with_borrow(Clone::clone)?;
    (!scheduler.over.get() && scheduler.running.get().is_some()).then_some(scheduler)
}

/// When dropped, uninstalls this thread's scheduler.
pub(super) struct Installed;

pub(super) fn install(scheduler: &Rc<Scheduler>) -> Installed {
    CURRENT.with_borrow_mut(|current| {
        assert!(current.is_none(), "a simulation inside a simulation");
        *current = Some(Rc::clone(scheduler));
    });
    Installed
}

impl Drop for Installed {
    fn drop(&mut self) {
        CURRENT.with_borrow_mut(|current| *current = None);
    }
}

/// When dropped, makes every later operation native.
pub(super) struct EndOfTime<'a>(pub(super) &'a Scheduler);

impl Drop for EndOfTime<'_> {
    fn drop(&mut self) {
        self.0.over.set(true);
    }
}

/// The holders of a lock, and the queue of CPUs that wait for it, in order of arrival. With
/// [`Costs::barging`], only CPUs that sleep are in the queue.
#[derive(Debug, Default)]
struct Lock {
    writer: bool,
    readers: u32,
    queue: VecDeque<(usize, Access)>,
    /// The last holder: plain data under the lock is in that CPU's cache.
    last: Option<usize>,
    /// When the lock was last taken.
    taken_at: u64,
    /// Used only with [`Costs::barging`].
    fairness: barging::Fairness,
}

impl Lock {
    /// Whether a CPU gets the lock without waiting. The lock must be free for this access, and for
    /// a reader, the queue must be empty, too. For a writer the queue does not matter: without
    /// barging, no CPU waits for a lock that is free for a writer.
    fn admits(&self, access: Access) -> bool {
        self.is_free(access) && (access == Access::Write || self.queue.is_empty())
    }

    /// With barging: whether a CPU can take the lock. While a writer sleeps, readers do not join
    /// other readers; otherwise that writer might never find the lock free.
    fn is_open(&self, access: Access) -> bool {
        let joins = access == Access::Read && self.readers > 0;
        let a_writer_sleeps = || self.queue.iter().any(|(_, wanted)| *wanted == Access::Write);
        self.is_free(access) && !(joins && a_writer_sleeps())
    }

    fn is_free(&self, access: Access) -> bool {
        match access {
            Access::Read => !self.writer,
            Access::Write => !self.writer && self.readers == 0,
        }
    }

    fn enter(&mut self, access: Access) {
        match access {
            Access::Read => self.readers += 1,
            Access::Write => self.writer = true,
        }
    }
}

#[derive(Debug)]
struct Cpu {
    clock: u64,
    /// Picoseconds beyond the clock, below 1,000.
    beyond_ps: u64,
    /// Counts wake-ups. An entry of [`State::ready`] for an earlier wake-up is stale.
    wake: u64,
    waiting: bool,
    /// Whether a notification of a condition variable woke the CPU, and not the time limit.
    notified: bool,
    done: bool,
    held: HeldSet,
    figures: CpuFigures,
    /// When the CPU's next clock interrupt comes.
    next_tick: u64,
    /// False while the CPU waits in a line's queue.
    has_line: bool,
    /// When the last of the lines arrives for which the CPU did not wait
    /// ([`Costs::moves_overlap`]).
    lines_arrive: u64,
}

impl Cpu {
    /// Counts a line that moved to this CPU.
    fn count_move(&mut self, served: Served) {
        if served.is_moved {
            self.figures.lines_moved += 1;
            self.figures.lines_moved_ns += served.end - served.since;
        }
    }

    /// Counts a line that moved to this CPU, and advances the clock to its arrival.
    fn got_line(&mut self, served: Served) {
        self.count_move(served);
        self.clock = served.end;
    }

    /// Waits for the lines that are on their way.
    fn wait_for_lines(&mut self) {
        self.clock = self.clock.max(self.lines_arrive);
    }

    fn pass_ps(&mut self, picoseconds: u64) {
        let all = self.beyond_ps + picoseconds;
        self.clock += all / 1000;
        self.beyond_ps = all % 1000;
    }
}

#[derive(Debug, Default)]
struct State {
    cpus: Vec<Cpu>,
    /// Wake-ups: the time, the CPU, and the number of the wake-up ([`Cpu::wake`]).
    ready: BinaryHeap<Reverse<(u64, usize, u64)>>,
    lines: Lines,
    locks: HashMap<u64, Lock, ByNumber>,
    conditions: HashMap<u64, VecDeque<usize>, ByNumber>,
    /// For the lengths of pauses with barging.
    draws: Draws,
}

impl State {
    /// Makes a CPU ready to run from `clock` on.
    fn make_ready(&mut self, cpu: usize, clock: u64) {
        let record = &mut self.cpus[cpu];
        record.clock = record.clock.max(clock);
        record.waiting = false;
        let clock = record.clock;
        self.wake_at(cpu, clock);
    }

    /// Adds a wake-up of a CPU at the time `at`, which replaces the CPU's earlier ones.
    fn wake_at(&mut self, cpu: usize, at: u64) {
        let record = &mut self.cpus[cpu];
        record.wake += 1;
        self.ready.push(Reverse((at, cpu, record.wake)));
    }

    /// The time of the CPU that would run next.
    fn earliest(&mut self) -> Option<u64> {
        while let Some(&Reverse((clock, cpu, wake))) = self.ready.peek() {
            if self.cpus[cpu].wake == wake && !self.cpus[cpu].done {
                return Some(clock);
            }
            self.ready.pop();
        }
        None
    }

    /// Begins an access to a line. Returns false if the CPU has to wait until the line comes free.
    /// With `goes_on`, the CPU does not wait while the line moves.
    fn access(&mut self, costs: &Costs, cpu: usize, (line, access): (LineId, Access), goes_on: bool) -> bool {
        let record = &mut self.cpus[cpu];
        if let Some(tick) = costs.tick
            && record.clock >= record.next_tick
        {
            record.clock += tick.costs_ns;
            record.next_tick += tick.every_ns;
        }
        match self.lines.access(costs, line, access, (cpu, record.clock)) {
            Outcome::Hit => {}
            Outcome::Brought(served) if goes_on => {
                record.count_move(served);
                record.lines_arrive = record.lines_arrive.max(served.end);
            }
            Outcome::Brought(served) => record.got_line(served),
            Outcome::Waits { wakes_at } => {
                record.has_line = false;
                if let Some(at) = wakes_at {
                    self.wake_at(cpu, at);
                }
                return false;
            }
        }
        record.pass_ps(costs.hit_ps);
        true
    }

    /// Grants a line that came free at `now`, and wakes the CPUs that get it.
    fn grant(&mut self, costs: &Costs, line: LineId, now: u64) {
        let granted = self.lines.grant(costs, line, now);
        for served in granted.served {
            let record = &mut self.cpus[served.cpu];
            record.has_line = true;
            record.got_line(served);
            record.pass_ps(costs.hit_ps);
            let clock = record.clock;
            self.wake_at(served.cpu, clock);
        }
        if let Some((cpu, at)) = granted.next {
            self.wake_at(cpu, at);
        }
    }

    /// Notes that a lock was taken. Charges the holder for the lock's [`Section`](super::Section):
    /// for moving plain data, and for computation.
    fn begin_section(&mut self, costs: &Costs, cpu: usize, lock: LockId) {
        let figures = self.lines.figures_of(lock.line.name);
        figures.taken += 1;
        let record = self.locks.entry(lock.number).or_default();
        record.taken_at = self.cpus[cpu].clock;
        let last = record.last.replace(cpu);
        let Some(section) = costs.sections.iter().find(|section| section.name == lock.line.name) else {
            return;
        };
        let line_ns = match last {
            Some(last) if last == cpu => 0,
            Some(last) => costs.distance(last, cpu),
            None => costs.miss_ns,
        };
        let ns = section.work_ns + section.lines * line_ns;
        figures.section_ns += ns;
        self.cpus[cpu].clock += ns;
    }

    /// Notes that a lock was released.
    fn end_section(&mut self, cpu: usize, lock: LockId, access: Access) {
        let Some(record) = self.locks.get_mut(&lock.number) else { return };
        match access {
            Access::Read => record.readers -= 1,
            Access::Write => {
                record.writer = false;
                self.lines.figures_of(lock.line.name).held_ns += self.cpus[cpu].clock - record.taken_at;
            }
        }
    }
}

/// One simulation.
#[derive(Debug)]
pub(super) struct Scheduler {
    costs: Costs,
    state: RefCell<State>,
    running: Cell<Option<usize>>,
    over: Cell<bool>,
}

impl Scheduler {
    pub(super) fn new(costs: Costs, cpus: usize) -> Self {
        assert!(cpus <= CPUS_MAX, "at most {CPUS_MAX} logical CPUs");
        let mut state = State::default();
        for cpu in 0..cpus {
            state.cpus.push(Cpu {
                clock: 0,
                beyond_ps: 0,
                wake: 0,
                waiting: false,
                notified: false,
                done: false,
                held: HeldSet::new(),
                figures: CpuFigures::default(),
                // The CPUs' first interrupts are spread over the period, so that they do not come
                // at the same time.
                next_tick: costs.tick.map_or(0, |tick| tick.every_ns * u64_of(cpu) / u64_of(cpus).max(1)),
                has_line: true,
                lines_arrive: 0,
            });
            state.make_ready(cpu, 0);
        }
        Self { costs, state: RefCell::new(state), running: Cell::new(None), over: Cell::new(false) }
    }

    /// The CPU to run now; `None` when all have finished.
    pub(super) fn next(&self) -> Option<usize> {
        self.running.set(None);
        let mut state = self.state.borrow_mut();
        if state.earliest().is_none() {
            let stuck: Vec<usize> = (0..state.cpus.len()).filter(|&cpu| !state.cpus[cpu].done).collect();
            assert!(stuck.is_empty(), "CPUs {stuck:?} wait for each other or for a notification");
            return None;
        }
        let Reverse((clock, cpu, _)) = state.ready.pop()?;
        let record = &mut state.cpus[cpu];
        record.clock = record.clock.max(clock);
        // All other entries of this CPU in `ready` are stale from now on.
        record.wake += 1;
        record.waiting = false;
        self.running.set(Some(cpu));
        Some(cpu)
    }

    pub(super) fn finish(&self, cpu: usize) {
        let mut state = self.state.borrow_mut();
        let record = &mut state.cpus[cpu];
        record.wait_for_lines();
        record.done = true;
        record.figures.finished_ns = record.clock;
    }

    pub(super) fn report(&self) -> Report {
        let state = self.state.borrow();
        Report { cpus: state.cpus.iter().map(|cpu| cpu.figures).collect(), lines: self.line_figures() }
    }

    pub(super) fn line_figures(&self) -> Vec<LineFigures> {
        self.state.borrow().lines.all_figures()
    }

    /// Runs `f` as if it were outside of the simulation.
    pub(super) fn aside<R>(&self, f: impl FnOnce() -> R) -> R {
        /// Restores the running CPU, after a panic too.
        struct Resumes<'a>(&'a Scheduler, Option<usize>);
        impl Drop for Resumes<'_> {
            fn drop(&mut self) {
                self.0.running.set(self.1);
            }
        }
        let running = self.running.take();
        debug_assert!(running.is_some(), "no CPU runs, so nothing can be aside");
        let _resumes = Resumes(self, running);
        f()
    }

    pub(super) fn cpu(&self) -> usize {
        self.running.get().unwrap_or(0)
    }

    pub(super) fn now(&self) -> u64 {
        self.state.borrow().cpus[self.cpu()].clock
    }

    pub(super) fn work(&self, ns: u64) {
        self.state.borrow_mut().cpus[self.cpu()].clock += ns;
    }

    pub(super) fn with_held<R>(&self, f: impl FnOnce(&mut HeldSet) -> R) -> R {
        f(&mut self.state.borrow_mut().cpus[self.cpu()].held)
    }

    /// Waits until no CPU is behind by more than the slack.
    fn take_turn(&self) {
        let cpu = self.cpu();
        let mut state = self.state.borrow_mut();
        let clock = state.cpus[cpu].clock;
        if state.earliest().is_some_and(|other| other + self.costs.slack_ns < clock) {
            state.make_ready(cpu, clock);
            drop(state);
            switch();
        }
    }

    /// Waits for the lines that are on their way to the calling CPU.
    fn wait_for_lines(&self) {
        self.state.borrow_mut().cpus[self.cpu()].wait_for_lines();
    }

    /// Moves the calling CPU's clock past that of the CPU that would run next.
    pub(super) fn let_others_run(&self) {
        let cpu = self.cpu();
        let mut state = self.state.borrow_mut();
        let clock = state.cpus[cpu].clock + (self.costs.hit_ps / 1000).max(1);
        let clock = state.earliest().map_or(clock, |other| clock.max(other + 1));
        state.make_ready(cpu, clock);
        drop(state);
        switch();
    }

    /// An access to a lock, or a read-modify-write. First the CPU waits for the lines that are on
    /// their way to it. Accesses happen in virtual-time order, up to the slack.
    pub(super) fn access(&self, line: LineId, access: Access) {
        self.begin_access(line, access, false);
    }

    /// A load or store.
    pub(super) fn plain_access(&self, line: LineId, access: Access) {
        self.begin_access(line, access, self.costs.moves_overlap);
    }

    fn begin_access(&self, line: LineId, access: Access, goes_on: bool) {
        if std::thread::panicking() {
            return;
        }
        if !goes_on {
            self.wait_for_lines();
        }
        self.take_turn();
        let cpu = self.cpu();
        let mut state = self.state.borrow_mut();
        let mut has_line = state.access(&self.costs, cpu, (line, access), goes_on);
        while !has_line {
            drop(state);
            switch();
            state = self.state.borrow_mut();
            has_line = state.cpus[cpu].has_line;
            if !has_line {
                // The CPU woke because the line came free.
                let now = state.cpus[cpu].clock;
                state.grant(&self.costs, line, now);
            }
        }
    }

    /// Takes a lock. Waits if the lock is taken.
    pub(super) fn acquire(&self, id: LockId, access: Access) {
        self.access(id.line, Access::Write);
        let cpu = self.cpu();
        if !self.enter_if_free(id, access) {
            let before = self.now();
            match &self.costs.barging {
                Some(costs) => self.barge(costs, id, access),
                None => {
                    let mut state = self.state.borrow_mut();
                    state.locks.entry(id.number).or_default().queue.push_back((cpu, access));
                    self.wait(state);
                }
            }
            let mut state = self.state.borrow_mut();
            let record = &mut state.cpus[cpu];
            let waited = record.clock - before;
            record.figures.lock_waits += 1;
            record.figures.lock_wait_ns += waited;
            let figures = state.lines.figures_of(id.line.name);
            figures.waits += 1;
            figures.wait_ns += waited;
        }
        self.state.borrow_mut().begin_section(&self.costs, cpu, id);
    }

    /// Takes a lock at no cost if it is free. Returns whether it did.
    fn enter_if_free(&self, id: LockId, access: Access) -> bool {
        let barges = self.costs.barging.is_some();
        let mut state = self.state.borrow_mut();
        let lock = state.locks.entry(id.number).or_default();
        let enters = if barges { lock.is_open(access) } else { lock.admits(access) };
        if enters {
            lock.enter(access);
        }
        enters
    }

    /// Takes a lock if that needs no waiting. A try reads the line before it writes. So if it finds
    /// the lock held, the line stays in the holder's cache, too.
    pub(super) fn try_acquire(&self, id: LockId, access: Access) -> bool {
        self.access(id.line, Access::Read);
        if !self.state.borrow_mut().locks.entry(id.number).or_default().admits(access) {
            return false;
        }
        self.access(id.line, Access::Write);
        let admitted = self.enter_if_free(id, access);
        if admitted {
            self.state.borrow_mut().begin_section(&self.costs, self.cpu(), id);
        }
        admitted
    }

    /// Whether anybody holds a lock.
    pub(super) fn is_held(&self, id: LockId) -> bool {
        self.access(id.line, Access::Read);
        let state = self.state.borrow();
        state.locks.get(&id.number).is_some_and(|lock| lock.writer || lock.readers > 0)
    }

    /// Releases a lock. Without barging, hands it to the CPUs at the front of its queue that can
    /// hold it now: one writer, or several readers.
    pub(super) fn release(&self, id: LockId, access: Access) {
        if let Some(costs) = &self.costs.barging {
            return self.release_and_wake(costs, id, access);
        }
        self.store_release(id, access);
        let from = self.cpu();
        let mut state = self.state.borrow_mut();
        let after = state.cpus[from].clock + self.costs.hand_over_ns;
        state.end_section(from, id, access);
        let Some(lock) = state.locks.get_mut(&id.number) else { return };
        let mut admitted = Vec::new();
        while let Some(&(cpu, wanted)) = lock.queue.front() {
            if !lock.is_free(wanted) {
                break;
            }
            lock.queue.pop_front();
            lock.enter(wanted);
            admitted.push(cpu);
        }
        for cpu in admitted {
            state.lines.hand_over(id.line, cpu);
            state.cpus[cpu].figures.lines_moved += 1;
            state.make_ready(cpu, after + self.costs.distance(from, cpu));
        }
    }

    /// The store that releases a lock. It first waits for the lines that are on their way to the
    /// CPU, because other CPUs must see this store after all earlier ones.
    fn store_release(&self, id: LockId, access: Access) {
        if self.costs.moves_overlap && !std::thread::panicking() {
            self.wait_for_lines();
            self.take_turn();
            let mut state = self.state.borrow_mut();
            let admits =
                |lock: &Lock| !lock.queue.is_empty() && (access == Access::Write || lock.readers == 1);
            if state.locks.get(&id.number).is_some_and(admits) {
                // The next holder polls the line: this store and the load that sees it are one
                // move, which the hand-over counts.
                return state.cpus[self.cpu()].pass_ps(self.costs.hit_ps);
            }
        }
        self.access(id.line, Access::Write);
    }

    /// Calls `release`, which releases the mutex, and waits for a condition variable. Returns true
    /// if `limit_ns` ran out.
    pub(super) fn wait_for_condition(
        &self,
        id: LockId,
        limit_ns: Option<u64>,
        release: impl FnOnce(),
    ) -> bool {
        let cpu = self.cpu();
        {
            let mut state = self.state.borrow_mut();
            state.cpus[cpu].notified = false;
            state.conditions.entry(id.number).or_default().push_back(cpu);
        }
        release();
        let mut state = self.state.borrow_mut();
        if !state.cpus[cpu].notified {
            if let Some(limit) = limit_ns {
                let record = &mut state.cpus[cpu];
                record.wake += 1;
                let entry = Reverse((record.clock + limit, cpu, record.wake));
                state.ready.push(entry);
            }
            self.wait(state);
            state = self.state.borrow_mut();
        }
        let timed_out = !state.cpus[cpu].notified;
        if timed_out && let Some(queue) = state.conditions.get_mut(&id.number) {
            queue.retain(|&other| other != cpu);
        }
        timed_out
    }

    /// Wakes up to `count` waiters of a condition variable.
    pub(super) fn notify(&self, id: LockId, count: usize) {
        self.access(id.line, Access::Write);
        let mut state = self.state.borrow_mut();
        let after = state.cpus[self.cpu()].clock + self.costs.hand_over_ns;
        for _ in 0..count {
            let Some(cpu) = state.conditions.get_mut(&id.number).and_then(VecDeque::pop_front) else {
                return;
            };
            state.cpus[cpu].notified = true;
            if state.cpus[cpu].waiting {
                state.make_ready(cpu, after);
            }
        }
    }

    /// Lets other CPUs run until the calling CPU is made ready.
    fn wait(&self, mut state: std::cell::RefMut<'_, State>) {
        state.cpus[self.cpu()].waiting = true;
        drop(state);
        switch();
    }
}

fn u64_of(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// Suspends this CPU's coroutine until the loop in `simulate` resumes it.
///
/// `yield_with` is deprecated, but its replacement needs a token that the coroutine receives at its
/// start. A lock deep in the code under test has no such token.
#[allow(deprecated)]
fn switch() {
    generator::yield_with(());
}
