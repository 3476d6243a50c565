//! Mutual exclusion with a rank.

use core::fmt;
use core::ops::{Deref, DerefMut};

use crate::backend::native::Native;
use crate::backend::{Backend, RawMutex, RawMutexGuard};
use crate::held::{Held, Tag};
use crate::lock_class::LockClass;
use crate::rank::Rank;
use crate::slot::CpuSlot;

/// A mutex of backend `B`. In release builds it is the backend's bare mutex.
pub struct Mutex<T: Send, B: Backend = Native> {
    tag: Tag,
    raw: B::RawMutex<T>,
}

/// Access to the value of a locked [`Mutex`]; dropping it unlocks.
#[must_use = "dropping the guard unlocks"]
pub struct MutexGuard<'a, T: Send + 'a, B: Backend = Native> {
    // Declared before `held`, so that the lock is released before its record is removed.
    raw: RawMutexGuard<'a, T, B>,
    held: Held<B>,
}

impl<T: Send, B: Backend> Mutex<T, B> {
    /// An unlocked mutex.
    #[inline]
    pub fn new(rank: Rank, value: T) -> Self {
        Self { tag: Tag::new(rank), raw: B::RawMutex::new(value) }
    }

    /// Waits for the lock.
    ///
    /// # Panics
    /// In debug builds, when the thread holds a lock of this or a higher rank.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T, B> {
        self.lock_ordered(0)
    }

    /// As [`Mutex::lock`], for one of several locks of the same rank. `order` must exceed the order
    /// keys of those that the thread already holds.
    ///
    /// # Panics
    /// In debug builds, when the thread holds a lock of a higher rank, or one of this rank whose
    /// key is not below `order`.
    #[inline]
    pub fn lock_ordered(&self, order: u64) -> MutexGuard<'_, T, B> {
        Held::<B>::check(self.tag, order);
        let raw = self.raw.lock();
        MutexGuard { raw, held: Held::record(self.tag, order) }
    }

    /// Takes the lock if it is free; otherwise `None`.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T, B>> {
        self.try_lock_ordered(0)
    }

    /// As [`Mutex::try_lock`]. The held lock is recorded with the order key `order`.
    #[inline]
    pub fn try_lock_ordered(&self, order: u64) -> Option<MutexGuard<'_, T, B>> {
        let raw = self.raw.try_lock()?;
        Some(MutexGuard { raw, held: Held::record(self.tag, order) })
    }

    /// As [`Mutex::lock`], counted in `class`: one acquisition, and one wait if the lock was not
    /// free.
    ///
    /// # Panics
    /// As [`Mutex::lock`].
    #[inline]
    pub fn lock_counted(&self, class: &LockClass, slot: CpuSlot) -> MutexGuard<'_, T, B> {
        self.lock_ordered_counted(0, class, slot)
    }

    /// As [`Mutex::lock_ordered`], counted in `class`.
    ///
    /// # Panics
    /// As [`Mutex::lock_ordered`].
    #[inline]
    pub fn lock_ordered_counted(&self, order: u64, class: &LockClass, slot: CpuSlot) -> MutexGuard<'_, T, B> {
        Held::<B>::check(self.tag, order);
        class.count_acquisition(slot);
        let raw = self.raw.try_lock().unwrap_or_else(|| {
            class.count_wait(slot);
            self.raw.lock()
        });
        MutexGuard { raw, held: Held::record(self.tag, order) }
    }

    /// As [`Mutex::try_lock`], counted in `class`: one acquisition if the try succeeds, otherwise
    /// one busy try.
    #[inline]
    pub fn try_lock_counted(&self, class: &LockClass, slot: CpuSlot) -> Option<MutexGuard<'_, T, B>> {
        let guard = self.try_lock();
        if guard.is_some() {
            class.count_acquisition(slot);
        } else {
            class.count_busy(slot);
        }
        guard
    }

    /// Whether anybody holds the lock; a hint that may be stale when the call returns.
    #[inline]
    pub fn is_locked(&self) -> bool {
        self.raw.is_locked()
    }

    /// The value, without locking: nobody else can have the lock.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        self.raw.get_mut()
    }

    /// The value.
    #[inline]
    pub fn into_inner(self) -> T {
        self.raw.into_inner()
    }
}

impl<'a, T: Send, B: Backend> MutexGuard<'a, T, B> {
    /// Splits the guard into its parts, for a wait on a condition variable.
    pub(crate) fn into_parts(self) -> (RawMutexGuard<'a, T, B>, Held<B>) {
        (self.raw, self.held)
    }

    pub(crate) fn from_parts(raw: RawMutexGuard<'a, T, B>, held: Held<B>) -> Self {
        Self { raw, held }
    }
}

impl<T: Send, B: Backend> Deref for MutexGuard<'_, T, B> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.raw
    }
}

impl<T: Send, B: Backend> DerefMut for MutexGuard<'_, T, B> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.raw
    }
}

impl<T: Send, B: Backend> fmt::Debug for Mutex<T, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex").field("tag", &self.tag).finish_non_exhaustive()
    }
}

impl<T: Send + fmt::Debug, B: Backend> fmt::Debug for MutexGuard<'_, T, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MutexGuard").field("value", &**self).field("held", &self.held).finish()
    }
}
