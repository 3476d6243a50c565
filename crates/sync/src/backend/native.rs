//! The backend for the real machine: parking_lot locks and the processor's atomics. Operations on
//! locks and atomics inline to those of the bare primitive.

use core::cell::RefCell;
use core::time::Duration;
use std::sync::atomic::{self, Ordering};

use super::{Backend, RawCondvar, RawMutex, RawMutexGuard, RawRwLock};
use crate::atomic::{forward_atomic, forward_atomic_int};
use crate::held_set::HeldSet;

/// Threads of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Native;

forward_atomic!(bool, atomic::AtomicBool);
forward_atomic_int!(u32, atomic::AtomicU32);
forward_atomic_int!(u64, atomic::AtomicU64);
forward_atomic_int!(usize, atomic::AtomicUsize);

/// How many threads have a number, and so the [`Backend::thread_id`] of the next thread.
static THREADS_SEEN: atomic::AtomicU64 = atomic::AtomicU64::new(0);

thread_local! {
    // Relaxed: the numbers only have to differ.
    static THREAD_ID: u64 = THREADS_SEEN.fetch_add(1, Ordering::Relaxed);
    static HELD: RefCell<HeldSet> = const { RefCell::new(HeldSet::new()) };
}

impl Backend for Native {
    type RawMutex<T: Send> = parking_lot::Mutex<T>;
    type RawRwLock<T: Send + Sync> = parking_lot::RwLock<T>;
    type RawCondvar = parking_lot::Condvar;
    type AtomicBool = atomic::AtomicBool;
    type AtomicU32 = atomic::AtomicU32;
    type AtomicU64 = atomic::AtomicU64;
    type AtomicUsize = atomic::AtomicUsize;

    fn thread_id() -> u64 {
        THREAD_ID.with(|id| *id)
    }

    fn yield_now() {
        std::thread::yield_now();
    }

    fn fence(order: Ordering) {
        atomic::fence(order);
    }

    fn with_held<R>(f: impl FnOnce(&mut HeldSet) -> R) -> R {
        HELD.with_borrow_mut(f)
    }
}

impl<T: Send> RawMutex<T> for parking_lot::Mutex<T> {
    type Guard<'a>
        = parking_lot::MutexGuard<'a, T>
    where
        T: 'a;

    #[inline]
    fn new(value: T) -> Self {
        Self::new(value)
    }
    #[inline]
    fn lock(&self) -> Self::Guard<'_> {
        self.lock()
    }
    #[inline]
    fn try_lock(&self) -> Option<Self::Guard<'_>> {
        self.try_lock()
    }
    #[inline]
    fn is_locked(&self) -> bool {
        self.is_locked()
    }
    #[inline]
    fn get_mut(&mut self) -> &mut T {
        self.get_mut()
    }
    #[inline]
    fn into_inner(self) -> T {
        self.into_inner()
    }
}

impl<T: Send + Sync> RawRwLock<T> for parking_lot::RwLock<T> {
    type ReadGuard<'a>
        = parking_lot::RwLockReadGuard<'a, T>
    where
        T: 'a;
    type WriteGuard<'a>
        = parking_lot::RwLockWriteGuard<'a, T>
    where
        T: 'a;

    #[inline]
    fn new(value: T) -> Self {
        Self::new(value)
    }
    #[inline]
    fn read(&self) -> Self::ReadGuard<'_> {
        self.read()
    }
    #[inline]
    fn write(&self) -> Self::WriteGuard<'_> {
        self.write()
    }
    #[inline]
    fn try_read(&self) -> Option<Self::ReadGuard<'_>> {
        self.try_read()
    }
    #[inline]
    fn try_write(&self) -> Option<Self::WriteGuard<'_>> {
        self.try_write()
    }
    #[inline]
    fn get_mut(&mut self) -> &mut T {
        self.get_mut()
    }
    #[inline]
    fn into_inner(self) -> T {
        self.into_inner()
    }
}

impl RawCondvar<Native> for parking_lot::Condvar {
    fn new() -> Self {
        Self::new()
    }
    fn wait<'a, T: Send>(&self, mut guard: RawMutexGuard<'a, T, Native>) -> RawMutexGuard<'a, T, Native>
    where
        parking_lot::Mutex<T>: 'a,
    {
        self.wait(&mut guard);
        guard
    }
    fn wait_for<'a, T: Send>(
        &self,
        mut guard: RawMutexGuard<'a, T, Native>,
        limit: Duration,
    ) -> (RawMutexGuard<'a, T, Native>, bool)
    where
        parking_lot::Mutex<T>: 'a,
    {
        let timed_out = self.wait_for(&mut guard, limit).timed_out();
        (guard, timed_out)
    }
    fn notify_one(&self) {
        self.notify_one();
    }
    fn notify_all(&self) {
        self.notify_all();
    }
}
