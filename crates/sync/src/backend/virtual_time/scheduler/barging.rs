//! Locks that whoever finds them free takes, as those of `parking_lot`: the CPU that released a
//! lock mostly takes it again before the others have seen that it is free.

use super::{Access, LockId, Scheduler};
use crate::backend::virtual_time::Barging;

/// Looks at a taken lock after pauses. There are two before the first look, and twice as many
/// before each of the next.
const LOOKS_AFTER_PAUSES: u32 = 3;
/// All looks before a CPU sleeps; those after the pauses come after a yield each.
const LOOKS: u32 = 10;
/// At least so long after a lock was handed over to a sleeper, it is handed over again.
/// `parking_lot` draws a time of up to twice as much.
const FAIR_EVERY_NS: u64 = 500_000;

/// When sleepers get a lock in turn.
#[derive(Debug, Default)]
pub(super) struct Fairness {
    /// A release from this time on hands the lock over to a sleeper.
    next: u64,
    /// The CPU that the lock was handed over to, until it runs.
    handed_to: Option<usize>,
}

impl Scheduler {
    /// Waits until the calling CPU has found a taken lock free and taken it.
    pub(super) fn barge(&self, costs: &Barging, id: LockId, access: Access) {
        let mut looks = 0;
        loop {
            match looks {
                ..LOOKS_AFTER_PAUSES => self.pause(costs.pause_ns << (looks + 1)),
                LOOKS_AFTER_PAUSES..LOOKS => self.pause(costs.yield_ns),
                LOOKS.. => {
                    if self.sleep(id, access) {
                        return;
                    }
                    looks = 0;
                }
            }
            looks += 1;
            self.access(id.line, Access::Read);
            let is_free = self.state.borrow().locks.get(&id.number).is_none_or(|lock| lock.admits(access));
            if is_free {
                self.access(id.line, Access::Write);
                if self.enter_if_free(id, access) {
                    return;
                }
            }
        }
    }

    /// Pauses for about that long. If pauses were all alike, two CPUs could fall into step and find
    /// a lock always free, or always taken.
    fn pause(&self, about_ns: u64) {
        let ns = self.state.borrow_mut().draws.around(about_ns);
        self.work(ns);
    }

    /// Sleeps until a release of the lock wakes the calling CPU, unless the lock is free. True if
    /// the lock was handed over.
    fn sleep(&self, id: LockId, access: Access) -> bool {
        // It marks the lock, so that a release looks for sleepers.
        self.access(id.line, Access::Write);
        let cpu = self.cpu();
        let mut state = self.state.borrow_mut();
        let lock = state.locks.entry(id.number).or_default();
        if lock.admits(access) {
            return false;
        }
        lock.queue.push_back((cpu, access));
        self.wait(state);
        let mut state = self.state.borrow_mut();
        let fairness = &mut state.locks.entry(id.number).or_default().fairness;
        fairness.handed_to.take_if(|to| *to == cpu).is_some()
    }

    /// Releases a lock, and wakes the CPU that has slept longest for it.
    pub(super) fn release_and_wake(&self, costs: &Barging, id: LockId, access: Access) {
        self.access(id.line, Access::Write);
        let mut state = self.state.borrow_mut();
        let now = state.cpus[self.cpu()].clock;
        state.end_section(self.cpu(), id, access);
        let Some(lock) = state.locks.get_mut(&id.number) else { return };
        if lock.writer || lock.readers > 0 {
            return;
        }
        let Some((sleeper, wanted)) = lock.queue.pop_front() else { return };
        if now >= lock.fairness.next {
            lock.fairness.next = now + FAIR_EVERY_NS;
            lock.fairness.handed_to = Some(sleeper);
            lock.enter(wanted);
        }
        state.make_ready(sleeper, now + costs.wake_ns);
        state.cpus[self.cpu()].clock += costs.wake_call_ns;
    }
}
