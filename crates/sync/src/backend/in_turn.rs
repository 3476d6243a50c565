//! A backend for the real machine. Its mutexes are served in turn, as Linux's spin locks are. So
//! measurements with it can be compared with virtual time, where by default locks are served in
//! turn, too.
//!
//! A thread takes the next ticket, and spins until that ticket is called. So a thread that releases
//! a mutex cannot take it again before those that already wait for it. A thread that waits for a
//! mutex never sleeps, so there must be no more threads than CPUs. All else, except the condition
//! variable, is as in [`Native`].

use core::ops::{Deref, DerefMut};
use core::time::Duration;
use std::sync::atomic::{self, Ordering};

use super::{Backend, Native, RawCondvar, RawMutex};
use crate::held_set::HeldSet;

/// Threads of the operating system, with mutexes that are served in turn.
#[derive(Clone, Copy, Debug, Default)]
pub struct InTurn;

impl Backend for InTurn {
    type RawMutex<T: Send> = TicketMutex<T>;
    type RawRwLock<T: Send + Sync> = parking_lot::RwLock<T>;
    type RawCondvar = TicketCondvar;
    type AtomicBool = atomic::AtomicBool;
    type AtomicU32 = atomic::AtomicU32;
    type AtomicU64 = atomic::AtomicU64;
    type AtomicUsize = atomic::AtomicUsize;

    fn thread_id() -> u64 {
        Native::thread_id()
    }

    fn yield_now() {
        Native::yield_now();
    }

    fn fence(order: Ordering) {
        Native::fence(order);
    }

    fn with_held<R>(f: impl FnOnce(&mut HeldSet) -> R) -> R {
        Native::with_held(f)
    }
}

/// A mutex that is served in turn.
#[derive(Debug)]
pub struct TicketMutex<T> {
    /// The ticket that the next thread takes.
    next: atomic::AtomicU32,
    /// The ticket whose thread has the lock or may take it.
    called: atomic::AtomicU32,
    /// Locked only by the thread whose ticket is called, so nobody waits for it.
    value: parking_lot::Mutex<T>,
}

/// Access to what a [`TicketMutex`] holds.
#[derive(Debug)]
pub struct TicketGuard<'a, T> {
    mutex: &'a TicketMutex<T>,
    /// `None` only while the guard is dropped.
    value: Option<parking_lot::MutexGuard<'a, T>>,
}

impl<T> TicketMutex<T> {
    fn guard(&self) -> TicketGuard<'_, T> {
        TicketGuard { mutex: self, value: Some(self.value.lock()) }
    }
}

impl<T: Send> RawMutex<T> for TicketMutex<T> {
    type Guard<'a>
        = TicketGuard<'a, T>
    where
        T: 'a;

    fn new(value: T) -> Self {
        let zero = || atomic::AtomicU32::new(0);
        Self { next: zero(), called: zero(), value: parking_lot::Mutex::new(value) }
    }

    fn lock(&self) -> Self::Guard<'_> {
        // Relaxed: the ticket only has to be unique.
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        // Pairs with the release store in the guard's drop.
        while self.called.load(Ordering::Acquire) != ticket {
            core::hint::spin_loop();
        }
        self.guard()
    }

    fn try_lock(&self) -> Option<Self::Guard<'_>> {
        let called = self.called.load(Ordering::Acquire);
        let next = called.wrapping_add(1);
        // Relaxed: the load of `called` synchronises, and only one thread can take this ticket.
        let taken = self.next.compare_exchange(called, next, Ordering::Relaxed, Ordering::Relaxed);
        taken.is_ok().then(|| self.guard())
    }

    fn is_locked(&self) -> bool {
        // Relaxed: the result is only a hint.
        self.next.load(Ordering::Relaxed) != self.called.load(Ordering::Relaxed)
    }

    fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T> Deref for TicketGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("there until it is dropped")
    }
}

impl<T> DerefMut for TicketGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("there until it is dropped")
    }
}

impl<T> Drop for TicketGuard<'_, T> {
    fn drop(&mut self) {
        drop(self.value.take());
        // Only the thread with the lock changes `called`. The release store pairs with the acquire
        // loads in `lock` and `try_lock`.
        let called = self.mutex.called.load(Ordering::Relaxed);
        self.mutex.called.store(called.wrapping_add(1), Ordering::Release);
    }
}

/// A condition variable for a [`TicketMutex`].
#[derive(Debug, Default)]
pub struct TicketCondvar {
    /// The number of notifications so far.
    epoch: parking_lot::Mutex<u64>,
    notified: parking_lot::Condvar,
}

impl TicketCondvar {
    /// Waits for a notification after the first `epoch` ones. Returns true if the time ran out.
    fn sleep(&self, epoch: u64, limit: Option<Duration>) -> bool {
        let mut now = self.epoch.lock();
        if *now != epoch {
            return false;
        }
        match limit {
            None => self.notified.wait(&mut now),
            Some(limit) => return self.notified.wait_for(&mut now, limit).timed_out(),
        }
        false
    }
}

impl RawCondvar<InTurn> for TicketCondvar {
    fn new() -> Self {
        Self::default()
    }

    fn wait<'a, T: Send>(&self, guard: TicketGuard<'a, T>) -> TicketGuard<'a, T>
    where
        TicketMutex<T>: 'a,
    {
        let (mutex, epoch) = (guard.mutex, *self.epoch.lock());
        drop(guard);
        self.sleep(epoch, None);
        mutex.lock()
    }

    fn wait_for<'a, T: Send>(&self, guard: TicketGuard<'a, T>, limit: Duration) -> (TicketGuard<'a, T>, bool)
    where
        TicketMutex<T>: 'a,
    {
        let (mutex, epoch) = (guard.mutex, *self.epoch.lock());
        drop(guard);
        let timed_out = self.sleep(epoch, Some(limit));
        (mutex.lock(), timed_out)
    }

    fn notify_one(&self) {
        *self.epoch.lock() += 1;
        self.notified.notify_one();
    }

    fn notify_all(&self) {
        *self.epoch.lock() += 1;
        self.notified.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// Spins until `wanted` threads hold the mutex or wait for it.
    fn await_tickets(mutex: &TicketMutex<u32>, wanted: u32) {
        let taken = || mutex.next.load(Ordering::Relaxed) - mutex.called.load(Ordering::Relaxed);
        while taken() < wanted {
            Native::yield_now();
        }
    }

    #[test]
    fn whoever_frees_the_lock_waits_behind_those_that_wait() {
        let mutex = Arc::new(TicketMutex::new(0));
        let held = mutex.lock();
        let waiting = std::thread::spawn({
            let mutex = Arc::clone(&mutex);
            move || {
                let mut value = mutex.lock();
                await_tickets(&mutex, 2);
                assert!(mutex.is_locked() && mutex.try_lock().is_none());
                *value += 1;
            }
        });
        await_tickets(&mutex, 2);
        drop(held);
        // The other thread got the lock first, and has changed the value.
        assert_eq!(*mutex.lock(), 1);
        waiting.join().unwrap();
        assert_eq!(mutex.try_lock().map(|value| *value), Some(1));
    }

    #[test]
    fn a_notified_thread_has_the_lock_again() {
        let pair = Arc::new((TicketMutex::new(0), TicketCondvar::new()));
        let waiting = std::thread::spawn({
            let pair = Arc::clone(&pair);
            move || {
                let mut value = pair.0.lock();
                while *value == 0 {
                    value = pair.1.wait(value);
                }
                *value += 1;
            }
        });
        *pair.0.lock() = 1;
        pair.1.notify_all();
        waiting.join().unwrap();
        let (value, timed_out) = pair.1.wait_for(pair.0.lock(), Duration::from_millis(1));
        assert!(timed_out && *value == 2);
    }
}
