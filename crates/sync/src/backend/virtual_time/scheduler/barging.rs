//! Barging: the first CPU that finds a lock free takes it, as with the locks of `parking_lot`. If
//! the CPU that released a lock wants it again soon, it is often the first.

use super::{Access, LockId, Scheduler};
use crate::backend::virtual_time::Barging;

/// After its first look at a taken lock, a CPU looks again at most this many times before it
/// sleeps: first after 2, 4 and 8 pauses, then each time after a yield.
const LOOKS: u32 = 10;
const LOOKS_AFTER_PAUSES: u32 = 3;
/// A release at least this long after the last hand-over hands the lock over to sleepers again.
/// `parking_lot` instead draws a random time, at most twice as long, after each hand-over.
const FAIR_EVERY_NS: u64 = 500_000;

/// When a release hands a lock over to sleepers.
#[derive(Debug, Default)]
pub(super) struct Fairness {
    /// The first release from this time on hands the lock over.
    next: u64,
    /// The CPUs that the lock was handed over to, until they run.
    handed_to: Vec<usize>,
}

impl Scheduler {
    /// Waits for a taken lock, until the calling CPU has found it free and taken it, or a release
    /// has handed it over to this CPU.
    pub(super) fn barge(&self, costs: &Barging, id: LockId, access: Access) {
        let mut looks = 0;
        loop {
            self.access(id.line, Access::Read);
            if self.is_open(id, access) {
                self.access(id.line, Access::Write);
                if self.enter_if_free(id, access) {
                    return;
                }
            }
            // If other CPUs already sleep for the lock, this one does not spin.
            if looks == LOOKS || self.has_sleepers(id) {
                if self.sleep(id, access) {
                    return;
                }
                looks = 0;
                continue;
            }
            looks += 1;
            self.pause(if looks <= LOOKS_AFTER_PAUSES { costs.pause_ns << looks } else { costs.yield_ns });
        }
    }

    fn is_open(&self, id: LockId, access: Access) -> bool {
        self.state.borrow().locks.get(&id.number).is_none_or(|lock| lock.is_open(access))
    }

    fn has_sleepers(&self, id: LockId) -> bool {
        self.state.borrow().locks.get(&id.number).is_some_and(|lock| !lock.queue.is_empty())
    }

    /// Pauses for about `about_ns`. If all pauses were equally long, two CPUs could run in step, so
    /// that one always finds a lock free, or always taken.
    fn pause(&self, about_ns: u64) {
        let ns = self.state.borrow_mut().draws.around(about_ns);
        self.work(ns);
    }

    /// Sleeps until a release of the lock wakes the calling CPU, unless the lock is free. Returns
    /// true if the release handed the lock over to this CPU.
    fn sleep(&self, id: LockId, access: Access) -> bool {
        // This write marks the lock, so that a release looks for sleepers.
        self.access(id.line, Access::Write);
        let cpu = self.cpu();
        let mut state = self.state.borrow_mut();
        let lock = state.locks.entry(id.number).or_default();
        if lock.is_open(access) {
            return false;
        }
        lock.queue.push_back((cpu, access));
        self.wait(state);
        let mut state = self.state.borrow_mut();
        let handed_to = &mut state.locks.entry(id.number).or_default().fairness.handed_to;
        let place = handed_to.iter().position(|to| *to == cpu);
        place.map(|place| handed_to.swap_remove(place)).is_some()
    }

    /// Releases a lock. If it is free now, wakes the CPU that has slept longest for it. If that CPU
    /// wants to read, also wakes the readers right behind it, up to the next writer.
    pub(super) fn release_and_wake(&self, costs: &Barging, id: LockId, access: Access) {
        self.access(id.line, Access::Write);
        let cpu = self.cpu();
        let mut state = self.state.borrow_mut();
        let now = state.cpus[cpu].clock;
        state.end_section(cpu, id, access);
        let Some(lock) = state.locks.get_mut(&id.number) else { return };
        if lock.writer || lock.readers > 0 {
            return;
        }
        let mut woken = Vec::new();
        while let Some(&(sleeper, wanted)) = lock.queue.front() {
            if !woken.is_empty() && wanted == Access::Write {
                break;
            }
            lock.queue.pop_front();
            woken.push((sleeper, wanted));
            if wanted == Access::Write {
                break;
            }
        }
        if !woken.is_empty() && now >= lock.fairness.next {
            lock.fairness.next = now + FAIR_EVERY_NS;
            for &(sleeper, wanted) in &woken {
                lock.enter(wanted);
                lock.fairness.handed_to.push(sleeper);
            }
        }
        for (sleeper, _) in woken {
            state.make_ready(sleeper, now + costs.wake_ns);
            state.cpus[cpu].clock += costs.wake_call_ns;
        }
    }
}
