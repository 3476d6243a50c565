//! The gate counts the open handles of the running transaction per CPU slot. When it is closed, no
//! handle can enter, and the closing thread waits until all have left.
//!
//! An entering thread adds to the count of its slot, on a cache line of its own, and then reads
//! `closed`. A closing thread sets `closed` and then sums the counts. Both sides are sequentially
//! consistent, so at least one of the two threads sees the other: either the closing thread sees
//! the count and waits, or the entering thread sees `closed` and takes its entry back.

use blockyard_sync::{
    Atomic, AtomicInt, Backend, CachePadded, Condvar, CpuSlot, Mutex, Native, Ordering, rank,
};

/// A count of handles that can be closed and drained.
pub(crate) struct Gate<B: Backend = Native> {
    inside: Box<[CachePadded<Slot<B>>]>,
    closed: B::AtomicBool,
    state: Mutex<(), B>,
    /// The closing thread waits here; the last one to leave wakes it.
    emptied: Condvar<B>,
    /// Entering threads wait here.
    opened: Condvar<B>,
}

struct Slot<B: Backend> {
    inside: B::AtomicU64,
    /// Number of handles begun on this slot. Accessed relaxed: it only decides when a commit point
    /// is due.
    begun: B::AtomicU64,
}

/// The gate is closed and empty while this lives.
#[must_use = "dropping it opens the gate"]
pub(crate) struct Closed<'a, B: Backend = Native>(&'a Gate<B>);

impl<B: Backend> Gate<B> {
    /// An open gate.
    pub(crate) fn new(slots: usize) -> Self {
        let slot =
            || CachePadded::new(Slot::<B> { inside: B::AtomicU64::new(0), begun: B::AtomicU64::new(0) });
        Self {
            inside: (0..slots.max(1)).map(|_| slot()).collect(),
            closed: B::AtomicBool::new(false),
            state: Mutex::new(rank::JOURNAL_HANDLE, ()),
            emptied: Condvar::new(),
            opened: Condvar::new(),
        }
    }

    /// Enters; waits while the gate is closed. Returns the number of entries on this slot so far.
    pub(crate) fn enter(&self, slot: CpuSlot) -> u64 {
        let mine = &self.inside[slot.index(self.inside.len())];
        loop {
            mine.inside.fetch_add(1, Ordering::SeqCst);
            if !self.closed.load(Ordering::SeqCst) {
                return mine.begun.fetch_add(1, Ordering::Relaxed) + 1;
            }
            self.leave(slot);
            let state = self.state.lock();
            drop(self.opened.wait_while(state, |()| self.closed.load(Ordering::SeqCst)));
        }
    }

    /// Leaves. Must pair with an [`enter`](Self::enter) of the same slot.
    pub(crate) fn leave(&self, slot: CpuSlot) {
        let before = self.inside[slot.index(self.inside.len())].inside.fetch_sub(1, Ordering::SeqCst);
        debug_assert!(before > 0, "slot {slot:?} is left more often than entered");
        if self.closed.load(Ordering::SeqCst) {
            // Taking the lock makes sure that the closing thread is not between its look at the
            // counts and its wait, where it would miss the notification. If several threads leave
            // at once, or enter and turn back, the last to count sees 0.
            let state = self.state.lock();
            let is_last = self.count() == 0;
            drop(state);
            if is_last {
                self.emptied.notify_one();
            }
        }
    }

    /// Closes the gate and waits until nobody is inside. Only one thread may close at a time.
    pub(crate) fn close(&self) -> Closed<'_, B> {
        debug_assert!(!self.closed.load(Ordering::SeqCst), "one thread closes at a time");
        self.closed.store(true, Ordering::SeqCst);
        let state = self.state.lock();
        drop(self.emptied.wait_while(state, |()| self.count() != 0));
        Closed(self)
    }

    fn count(&self) -> u64 {
        self.inside.iter().fold(0, |sum, slot| sum.wrapping_add(slot.inside.load(Ordering::SeqCst)))
    }
}

impl<B: Backend> Drop for Closed<'_, B> {
    fn drop(&mut self) {
        let state = self.0.state.lock();
        debug_assert!(self.0.closed.load(Ordering::SeqCst), "the gate is opened twice");
        self.0.closed.store(false, Ordering::SeqCst);
        drop(state);
        self.0.opened.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::Gate;
    use blockyard_sync::CpuSlot;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn nobody_is_inside_while_the_gate_is_closed() {
        let gate: Gate = Gate::new(2);
        let inside = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for number in 0..3 {
                let (gate, inside) = (&gate, &inside);
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        gate.enter(CpuSlot::new(number));
                        inside.fetch_add(1, Ordering::Relaxed);
                        inside.fetch_sub(1, Ordering::Relaxed);
                        gate.leave(CpuSlot::new(number));
                    }
                });
            }
            for _ in 0..2_000 {
                let closed = gate.close();
                assert_eq!(inside.load(Ordering::Relaxed), 0);
                drop(closed);
            }
        });
    }
}
