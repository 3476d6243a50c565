//! Many readers or one writer, with a rank.

use core::fmt;
use core::ops::{Deref, DerefMut};

use crate::backend::native::Native;
use crate::backend::{Backend, RawRwLock};
use crate::held::{Held, Tag};
use crate::rank::Rank;

/// A reader-writer lock of backend `B`. In release builds it is the backend's bare lock.
///
/// A thread that has read access must not call [`RwLock::read`] again: if a writer began to wait
/// between the two calls, the thread and the writer would wait for each other. In debug builds, the
/// rank check refuses the second call.
pub struct RwLock<T: Send + Sync, B: Backend = Native> {
    tag: Tag,
    raw: B::RawRwLock<T>,
}

/// Shared access to the value of a [`RwLock`]; dropping it unlocks.
#[must_use = "dropping the guard unlocks"]
pub struct RwLockReadGuard<'a, T: Send + Sync + 'a, B: Backend = Native> {
    raw: <B::RawRwLock<T> as RawRwLock<T>>::ReadGuard<'a>,
    held: Held<B>,
}

/// Exclusive access to the value of a [`RwLock`]; dropping it unlocks.
#[must_use = "dropping the guard unlocks"]
pub struct RwLockWriteGuard<'a, T: Send + Sync + 'a, B: Backend = Native> {
    raw: <B::RawRwLock<T> as RawRwLock<T>>::WriteGuard<'a>,
    held: Held<B>,
}

impl<T: Send + Sync, B: Backend> RwLock<T, B> {
    /// An unlocked lock.
    #[inline]
    pub fn new(rank: Rank, value: T) -> Self {
        Self { tag: Tag::new(rank), raw: B::RawRwLock::new(value) }
    }

    /// Waits for shared access.
    ///
    /// # Panics
    /// In debug builds, when the thread holds a lock of this or a higher rank.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T, B> {
        self.read_ordered(0)
    }

    /// As [`RwLock::read`], for one of several locks of the same rank. `order` must exceed the
    /// order keys of those that the thread already holds.
    ///
    /// # Panics
    /// In debug builds, when the thread holds a lock of a higher rank, or one of this rank whose
    /// key is not below `order`.
    #[inline]
    pub fn read_ordered(&self, order: u64) -> RwLockReadGuard<'_, T, B> {
        Held::<B>::check(self.tag, order);
        let raw = self.raw.read();
        RwLockReadGuard { raw, held: Held::record(self.tag, order) }
    }

    /// Waits for exclusive access.
    ///
    /// # Panics
    /// In debug builds, when the thread holds a lock of this or a higher rank.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T, B> {
        self.write_ordered(0)
    }

    /// As [`RwLock::write`], for one of several locks of the same rank. `order` must exceed the
    /// order keys of those that the thread already holds.
    ///
    /// # Panics
    /// In debug builds, when the thread holds a lock of a higher rank, or one of this rank whose
    /// key is not below `order`.
    #[inline]
    pub fn write_ordered(&self, order: u64) -> RwLockWriteGuard<'_, T, B> {
        Held::<B>::check(self.tag, order);
        let raw = self.raw.write();
        RwLockWriteGuard { raw, held: Held::record(self.tag, order) }
    }

    /// Shared access if it needs no waiting; otherwise `None`. May also return `None` while a
    /// writer waits for the lock.
    #[inline]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T, B>> {
        let raw = self.raw.try_read()?;
        Some(RwLockReadGuard { raw, held: Held::record(self.tag, 0) })
    }

    /// Exclusive access if nobody else has access; otherwise `None`.
    #[inline]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T, B>> {
        let raw = self.raw.try_write()?;
        Some(RwLockWriteGuard { raw, held: Held::record(self.tag, 0) })
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

impl<T: Send + Sync, B: Backend> Deref for RwLockReadGuard<'_, T, B> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.raw
    }
}

impl<T: Send + Sync, B: Backend> Deref for RwLockWriteGuard<'_, T, B> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.raw
    }
}

impl<T: Send + Sync, B: Backend> DerefMut for RwLockWriteGuard<'_, T, B> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.raw
    }
}

impl<T: Send + Sync, B: Backend> fmt::Debug for RwLock<T, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RwLock").field("tag", &self.tag).finish_non_exhaustive()
    }
}

impl<T: Send + Sync + fmt::Debug, B: Backend> fmt::Debug for RwLockReadGuard<'_, T, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RwLockReadGuard").field("value", &**self).field("held", &self.held).finish()
    }
}

impl<T: Send + Sync + fmt::Debug, B: Backend> fmt::Debug for RwLockWriteGuard<'_, T, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RwLockWriteGuard").field("value", &**self).field("held", &self.held).finish()
    }
}
