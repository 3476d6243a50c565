//! Waiting for a condition that a mutex guards.

use core::fmt;
use core::time::Duration;

use crate::backend::native::Native;
use crate::backend::{Backend, RawCondvar};
use crate::mutex::MutexGuard;

/// A condition variable of backend `B`.
///
/// The mutex stays in the thread's set of held locks during the wait. That is harmless: a thread
/// that waits takes no other lock.
pub struct Condvar<B: Backend = Native> {
    raw: B::RawCondvar,
}

impl<B: Backend> Condvar<B> {
    /// A condition variable without waiters.
    #[must_use]
    pub fn new() -> Self {
        Self { raw: B::RawCondvar::new() }
    }

    /// Unlocks, sleeps until notified, locks again. May wake spuriously: test the condition in a
    /// loop, or use [`Condvar::wait_while`].
    pub fn wait<'a, T: Send>(&self, guard: MutexGuard<'a, T, B>) -> MutexGuard<'a, T, B> {
        let (raw, held) = guard.into_parts();
        MutexGuard::from_parts(self.raw.wait(raw), held)
    }

    /// Waits until `blocked` returns false for the value.
    pub fn wait_while<'a, T: Send>(
        &self,
        mut guard: MutexGuard<'a, T, B>,
        mut blocked: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T, B> {
        while blocked(&mut guard) {
            guard = self.wait(guard);
        }
        guard
    }

    /// As [`Condvar::wait`], for at most `limit`. The second value is true if the time ran out.
    pub fn wait_for<'a, T: Send>(
        &self,
        guard: MutexGuard<'a, T, B>,
        limit: Duration,
    ) -> (MutexGuard<'a, T, B>, bool) {
        let (raw, held) = guard.into_parts();
        let (raw, timed_out) = self.raw.wait_for(raw, limit);
        (MutexGuard::from_parts(raw, held), timed_out)
    }

    /// Wakes one waiter.
    pub fn notify_one(&self) {
        self.raw.notify_one();
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        self.raw.notify_all();
    }
}

impl<B: Backend> Default for Condvar<B> {
    fn default() -> Self {
        Self::new()
    }
}

impl<B: Backend> fmt::Debug for Condvar<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Condvar").finish_non_exhaustive()
    }
}
