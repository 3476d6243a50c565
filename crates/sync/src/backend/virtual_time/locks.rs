//! Locks and condition variables whose waiting happens in virtual time.
//!
//! The scheduler's side table says which CPU holds a lock. The value is in a real lock. Inside a
//! simulation, a CPU takes the real lock only after it has got the lock in the side table, so no
//! other CPU has the real lock then. Outside of a simulation, only the real lock is used.

use core::ops::{Deref, DerefMut};
use core::time::Duration;

use super::Virtual;
use super::lines::Access;
use super::place::LockId;
use super::scheduler;
use crate::backend::{RawCondvar, RawMutex, RawMutexGuard, RawRwLock};

/// A held lock in the side table; dropping it releases the lock there.
struct Hold {
    lock: LockId,
    access: Access,
    /// Whether the lock was taken inside a simulation.
    counted: bool,
}

impl Hold {
    fn acquire(lock: LockId, access: Access) -> Self {
        let scheduler = scheduler::current();
        if let Some(scheduler) = &scheduler {
            scheduler.acquire(lock, access);
        }
        Self { lock, access, counted: scheduler.is_some() }
    }

    fn try_acquire(lock: LockId, access: Access) -> Option<Self> {
        let scheduler = scheduler::current();
        if let Some(scheduler) = &scheduler
            && !scheduler.try_acquire(lock, access)
        {
            return None;
        }
        Some(Self { lock, access, counted: scheduler.is_some() })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.counted
            && let Some(scheduler) = scheduler::current()
        {
            scheduler.release(self.lock, self.access);
        }
    }
}

/// A mutex in virtual time.
#[derive(Debug)]
pub struct VirtualMutex<T>(parking_lot::Mutex<T>, LockId);

/// Access to the value of a [`VirtualMutex`].
pub struct VirtualMutexGuard<'a, T> {
    // Declared, and so dropped, before `_hold`: the real lock is free before another CPU can take
    // it.
    real: parking_lot::MutexGuard<'a, T>,
    _hold: Hold,
    lock: &'a VirtualMutex<T>,
}

impl<T> VirtualMutex<T> {
    fn guard(&self, hold: Hold) -> VirtualMutexGuard<'_, T> {
        VirtualMutexGuard { real: self.0.lock(), _hold: hold, lock: self }
    }
}

impl<T: Send> RawMutex<T> for VirtualMutex<T> {
    type Guard<'a>
        = VirtualMutexGuard<'a, T>
    where
        T: 'a;

    fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value), LockId::of_new())
    }
    fn lock(&self) -> Self::Guard<'_> {
        self.guard(Hold::acquire(self.1, Access::Write))
    }
    fn try_lock(&self) -> Option<Self::Guard<'_>> {
        let hold = Hold::try_acquire(self.1, Access::Write)?;
        Some(VirtualMutexGuard { real: self.0.try_lock()?, _hold: hold, lock: self })
    }
    fn is_locked(&self) -> bool {
        match scheduler::current() {
            Some(scheduler) => scheduler.is_held(self.1),
            None => self.0.is_locked(),
        }
    }
    fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
    fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T> Deref for VirtualMutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.real
    }
}

impl<T> DerefMut for VirtualMutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.real
    }
}

/// A reader-writer lock in virtual time.
#[derive(Debug)]
pub struct VirtualRwLock<T>(parking_lot::RwLock<T>, LockId);

/// Shared access to the value of a [`VirtualRwLock`].
pub struct VirtualReadGuard<'a, T> {
    real: parking_lot::RwLockReadGuard<'a, T>,
    _hold: Hold,
}

/// Exclusive access to the value of a [`VirtualRwLock`].
pub struct VirtualWriteGuard<'a, T> {
    real: parking_lot::RwLockWriteGuard<'a, T>,
    _hold: Hold,
}

impl<T: Send + Sync> RawRwLock<T> for VirtualRwLock<T> {
    type ReadGuard<'a>
        = VirtualReadGuard<'a, T>
    where
        T: 'a;
    type WriteGuard<'a>
        = VirtualWriteGuard<'a, T>
    where
        T: 'a;

    fn new(value: T) -> Self {
        Self(parking_lot::RwLock::new(value), LockId::of_new())
    }
    fn read(&self) -> Self::ReadGuard<'_> {
        let hold = Hold::acquire(self.1, Access::Read);
        VirtualReadGuard { real: self.0.read(), _hold: hold }
    }
    fn write(&self) -> Self::WriteGuard<'_> {
        let hold = Hold::acquire(self.1, Access::Write);
        VirtualWriteGuard { real: self.0.write(), _hold: hold }
    }
    fn try_read(&self) -> Option<Self::ReadGuard<'_>> {
        let hold = Hold::try_acquire(self.1, Access::Read)?;
        Some(VirtualReadGuard { real: self.0.try_read()?, _hold: hold })
    }
    fn try_write(&self) -> Option<Self::WriteGuard<'_>> {
        let hold = Hold::try_acquire(self.1, Access::Write)?;
        Some(VirtualWriteGuard { real: self.0.try_write()?, _hold: hold })
    }
    fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
    fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T> Deref for VirtualReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.real
    }
}

impl<T> Deref for VirtualWriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.real
    }
}

impl<T> DerefMut for VirtualWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.real
    }
}

/// A condition variable in virtual time.
#[derive(Debug)]
pub struct VirtualCondvar {
    real: parking_lot::Condvar,
    id: LockId,
}

impl VirtualCondvar {
    fn wait_at_most<'a, T: Send>(
        &self,
        mut guard: VirtualMutexGuard<'a, T>,
        limit: Option<Duration>,
    ) -> (VirtualMutexGuard<'a, T>, bool) {
        let Some(scheduler) = scheduler::current() else {
            let timed_out = match limit {
                Some(limit) => self.real.wait_for(&mut guard.real, limit).timed_out(),
                None => {
                    self.real.wait(&mut guard.real);
                    false
                }
            };
            return (guard, timed_out);
        };
        let lock = guard.lock;
        let limit = limit.map(|limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX / 2));
        let timed_out = scheduler.wait_for_condition(self.id, limit, || drop(guard));
        (RawMutex::lock(lock), timed_out)
    }

    fn notify(&self, count: usize) {
        match scheduler::current() {
            Some(scheduler) => scheduler.notify(self.id, count),
            None if count == 1 => drop(self.real.notify_one()),
            None => drop(self.real.notify_all()),
        }
    }
}

impl RawCondvar<Virtual> for VirtualCondvar {
    fn new() -> Self {
        Self { real: parking_lot::Condvar::new(), id: LockId::of_new() }
    }
    fn wait<'a, T: Send>(&self, guard: RawMutexGuard<'a, T, Virtual>) -> RawMutexGuard<'a, T, Virtual>
    where
        VirtualMutex<T>: 'a,
    {
        self.wait_at_most(guard, None).0
    }
    fn wait_for<'a, T: Send>(
        &self,
        guard: RawMutexGuard<'a, T, Virtual>,
        limit: Duration,
    ) -> (RawMutexGuard<'a, T, Virtual>, bool)
    where
        VirtualMutex<T>: 'a,
    {
        self.wait_at_most(guard, Some(limit))
    }
    fn notify_one(&self) {
        self.notify(1);
    }
    fn notify_all(&self) {
        self.notify(usize::MAX);
    }
}
