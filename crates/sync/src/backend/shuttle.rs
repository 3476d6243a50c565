//! The backend for tests under shuttle, a scheduler that tries many interleavings of threads. At
//! every access to a lock or atomic, shuttle may let another thread run.
//!
//! Locks and atomics of this backend must be made and used inside `shuttle::check_*`. Timed waits
//! never time out.

use core::cell::RefCell;
use core::time::Duration;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::TryLockError;

use shuttle::sync::atomic::{self, Ordering};
use shuttle::sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::{Backend, RawCondvar, RawMutex, RawMutexGuard, RawRwLock};
use crate::atomic::{forward_atomic, forward_atomic_int};
use crate::held_set::HeldSet;

/// Threads of the scheduler.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shuttle;

forward_atomic!(bool, atomic::AtomicBool);
forward_atomic_int!(u32, atomic::AtomicU32);
forward_atomic_int!(u64, atomic::AtomicU64);
forward_atomic_int!(usize, atomic::AtomicUsize);

shuttle::thread_local! {
    static HELD: RefCell<HeldSet> = RefCell::new(HeldSet::new());
}

impl Backend for Shuttle {
    type RawMutex<T: Send> = Mutex<T>;
    type RawRwLock<T: Send + Sync> = RwLock<T>;
    type RawCondvar = Condvar;
    type AtomicBool = atomic::AtomicBool;
    type AtomicU32 = atomic::AtomicU32;
    type AtomicU64 = atomic::AtomicU64;
    type AtomicUsize = atomic::AtomicUsize;

    fn thread_id() -> u64 {
        let mut hasher = DefaultHasher::new();
        shuttle::thread::current().id().hash(&mut hasher);
        hasher.finish()
    }

    fn yield_now() {
        shuttle::thread::yield_now();
    }

    fn fence(order: Ordering) {
        atomic::fence(order);
    }

    fn with_held<R>(f: impl FnOnce(&mut HeldSet) -> R) -> R {
        HELD.with(|held| f(&mut held.borrow_mut()))
    }
}

/// The guard, if the lock was free. Poisoning is ignored, because the other backends' locks have
/// none.
fn recovered<G>(tried: Result<G, TryLockError<G>>) -> Option<G> {
    match tried {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl<T: Send> RawMutex<T> for Mutex<T> {
    type Guard<'a>
        = MutexGuard<'a, T>
    where
        T: 'a;

    fn new(value: T) -> Self {
        Self::new(value)
    }
    fn lock(&self) -> Self::Guard<'_> {
        self.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
    fn try_lock(&self) -> Option<Self::Guard<'_>> {
        recovered(self.try_lock())
    }
    fn is_locked(&self) -> bool {
        RawMutex::try_lock(self).is_none()
    }
    fn get_mut(&mut self) -> &mut T {
        self.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
    fn into_inner(self) -> T {
        self.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl<T: Send + Sync> RawRwLock<T> for RwLock<T> {
    type ReadGuard<'a>
        = RwLockReadGuard<'a, T>
    where
        T: 'a;
    type WriteGuard<'a>
        = RwLockWriteGuard<'a, T>
    where
        T: 'a;

    fn new(value: T) -> Self {
        Self::new(value)
    }
    fn read(&self) -> Self::ReadGuard<'_> {
        self.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
    fn write(&self) -> Self::WriteGuard<'_> {
        self.write().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
    fn try_read(&self) -> Option<Self::ReadGuard<'_>> {
        recovered(self.try_read())
    }
    fn try_write(&self) -> Option<Self::WriteGuard<'_>> {
        recovered(self.try_write())
    }
    fn get_mut(&mut self) -> &mut T {
        self.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
    fn into_inner(self) -> T {
        self.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl RawCondvar<Shuttle> for Condvar {
    fn new() -> Self {
        Self::new()
    }
    fn wait<'a, T: Send>(&self, guard: RawMutexGuard<'a, T, Shuttle>) -> RawMutexGuard<'a, T, Shuttle>
    where
        Mutex<T>: 'a,
    {
        self.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner())
    }
    fn wait_for<'a, T: Send>(
        &self,
        guard: RawMutexGuard<'a, T, Shuttle>,
        _limit: Duration,
    ) -> (RawMutexGuard<'a, T, Shuttle>, bool)
    where
        Mutex<T>: 'a,
    {
        (RawCondvar::<Shuttle>::wait(self, guard), false)
    }
    fn notify_one(&self) {
        self.notify_one();
    }
    fn notify_all(&self) {
        self.notify_all();
    }
}
