//! What a backend must provide: raw locks, a raw condition variable, atomics, and a few functions
//! about threads.
//!
//! Only backends implement the raw traits. All other code uses [`crate::Mutex`], [`crate::RwLock`]
//! and [`crate::Condvar`], which add ranks and statistics to the raw primitives.

use core::fmt::Debug;
use core::ops::{Deref, DerefMut};
use core::time::Duration;

use crate::atomic::{Atomic, AtomicInt, Ordering};
use crate::held_set::HeldSet;
#[cfg(feature = "virtual")]
use native::Native;

#[cfg(feature = "virtual")]
pub mod in_turn;
pub mod native;
#[cfg(feature = "shuttle")]
pub mod shuttle;
#[cfg(feature = "virtual")]
pub mod virtual_time;

/// A family of synchronisation primitives that work together.
pub trait Backend: Copy + Debug + Default + Send + Sync + 'static {
    /// Mutual exclusion.
    type RawMutex<T: Send>: RawMutex<T>;
    /// Many readers or one writer.
    type RawRwLock<T: Send + Sync>: RawRwLock<T>;
    /// Waiting for a condition guarded by a [`Backend::RawMutex`].
    type RawCondvar: RawCondvar<Self>;
    /// A shared `bool`.
    type AtomicBool: Atomic<bool>;
    /// A shared `u32`.
    type AtomicU32: AtomicInt<u32>;
    /// A shared `u64`.
    type AtomicU64: AtomicInt<u64>;
    /// A shared `usize`.
    type AtomicUsize: AtomicInt<usize>;

    /// A number that differs between threads alive at the same time.
    fn thread_id() -> u64;

    /// Lets another thread run; for loops that wait for another thread's progress.
    fn yield_now();

    /// A memory fence.
    fn fence(order: Ordering);

    /// Says that all locks and atomics created in `make` are on one cache line with this name. This
    /// matters only to a backend that counts what it costs to move cache lines.
    #[inline]
    fn on_line<R>(name: &'static str, make: impl FnOnce() -> R) -> R {
        let _ = name;
        make()
    }

    /// Runs `f` on the calling thread's set of held locks.
    #[doc(hidden)]
    fn with_held<R>(f: impl FnOnce(&mut HeldSet) -> R) -> R;
}

/// A mutex without rank.
pub trait RawMutex<T>: Send + Sync {
    /// Access while locked; dropping it unlocks.
    type Guard<'a>: Deref<Target = T> + DerefMut
    where
        Self: 'a,
        T: 'a;

    /// An unlocked mutex.
    fn new(value: T) -> Self;
    /// Waits for the lock.
    fn lock(&self) -> Self::Guard<'_>;
    /// Takes the lock if it is free; otherwise `None`.
    fn try_lock(&self) -> Option<Self::Guard<'_>>;
    /// Whether anybody holds the lock; a hint that may be stale when the call returns.
    fn is_locked(&self) -> bool;
    /// The value, without locking.
    fn get_mut(&mut self) -> &mut T;
    /// The value.
    fn into_inner(self) -> T;
}

/// A reader-writer lock without rank.
pub trait RawRwLock<T>: Send + Sync {
    /// Shared access; dropping it unlocks.
    type ReadGuard<'a>: Deref<Target = T>
    where
        Self: 'a,
        T: 'a;
    /// Exclusive access; dropping it unlocks.
    type WriteGuard<'a>: Deref<Target = T> + DerefMut
    where
        Self: 'a,
        T: 'a;

    /// An unlocked lock.
    fn new(value: T) -> Self;
    /// Waits for shared access.
    fn read(&self) -> Self::ReadGuard<'_>;
    /// Waits for exclusive access.
    fn write(&self) -> Self::WriteGuard<'_>;
    /// Shared access if it needs no waiting; otherwise `None`. May also return `None` while a
    /// writer waits for the lock.
    fn try_read(&self) -> Option<Self::ReadGuard<'_>>;
    /// Exclusive access if nobody else has access; otherwise `None`.
    fn try_write(&self) -> Option<Self::WriteGuard<'_>>;
    /// The value, without locking.
    fn get_mut(&mut self) -> &mut T;
    /// The value.
    fn into_inner(self) -> T;
}

/// The guard of a backend's raw mutex.
pub type RawMutexGuard<'a, T, B> = <<B as Backend>::RawMutex<T> as RawMutex<T>>::Guard<'a>;

/// A condition variable.
pub trait RawCondvar<B: Backend>: Send + Sync {
    /// A condition variable without waiters.
    fn new() -> Self;
    /// Unlocks, sleeps until notified, locks again. May wake spuriously.
    fn wait<'a, T: Send>(&self, guard: RawMutexGuard<'a, T, B>) -> RawMutexGuard<'a, T, B>
    where
        B::RawMutex<T>: 'a;
    /// As [`RawCondvar::wait`], for at most `limit`. The second value is true if the time ran out.
    fn wait_for<'a, T: Send>(
        &self,
        guard: RawMutexGuard<'a, T, B>,
        limit: Duration,
    ) -> (RawMutexGuard<'a, T, B>, bool)
    where
        B::RawMutex<T>: 'a;
    /// Wakes one waiter.
    fn notify_one(&self);
    /// Wakes all waiters.
    fn notify_all(&self);
}
