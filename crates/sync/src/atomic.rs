//! Shared atomics as traits, so that a backend can observe and schedule every access.

pub use core::sync::atomic::Ordering;

/// A shared value that is read and written as a whole.
pub trait Atomic<V: Copy>: Send + Sync + core::fmt::Debug {
    /// A shared value that holds `value`.
    fn new(value: V) -> Self;
    /// Reads.
    fn load(&self, order: Ordering) -> V;
    /// Writes.
    fn store(&self, value: V, order: Ordering);
    /// Writes, and returns the old value.
    fn swap(&self, value: V, order: Ordering) -> V;
    /// Writes `new` if the value is `current`. Returns the old value.
    ///
    /// # Errors
    /// The actual value, if it is not `current`.
    fn compare_exchange(&self, current: V, new: V, success: Ordering, failure: Ordering) -> Result<V, V>;

    /// Replaces the value by what `f` returns for it. Tries again if another thread changed the
    /// value meanwhile. Returns the old value.
    ///
    /// # Errors
    /// The value for which `f` returned `None`; nothing was written then.
    fn update(
        &self,
        success: Ordering,
        failure: Ordering,
        mut f: impl FnMut(V) -> Option<V>,
    ) -> Result<V, V> {
        let mut seen = self.load(failure);
        loop {
            let Some(new) = f(seen) else { return Err(seen) };
            match self.compare_exchange(seen, new, success, failure) {
                Ok(previous) => return Ok(previous),
                Err(actual) => seen = actual,
            }
        }
    }
}

/// A shared number. Sums and differences wrap. All operations return the old value.
pub trait AtomicInt<V: Copy>: Atomic<V> {
    /// Adds.
    fn fetch_add(&self, value: V, order: Ordering) -> V;
    /// Subtracts.
    fn fetch_sub(&self, value: V, order: Ordering) -> V;
    /// Keeps the bits that are also in `value`.
    fn fetch_and(&self, value: V, order: Ordering) -> V;
    /// Sets the bits of `value`.
    fn fetch_or(&self, value: V, order: Ordering) -> V;
    /// Raises the number to `value` if `value` is greater.
    fn fetch_max(&self, value: V, order: Ordering) -> V;
    /// Lowers the number to `value` if `value` is less.
    fn fetch_min(&self, value: V, order: Ordering) -> V;
}

/// Implements [`Atomic`] for a type with the interface of `core::sync::atomic`.
macro_rules! forward_atomic {
    ($value:ty, $atomic:ty) => {
        impl $crate::atomic::Atomic<$value> for $atomic {
            #[inline]
            fn new(value: $value) -> Self {
                <$atomic>::new(value)
            }
            #[inline]
            fn load(&self, order: $crate::atomic::Ordering) -> $value {
                <$atomic>::load(self, order)
            }
            #[inline]
            fn store(&self, value: $value, order: $crate::atomic::Ordering) {
                <$atomic>::store(self, value, order);
            }
            #[inline]
            fn swap(&self, value: $value, order: $crate::atomic::Ordering) -> $value {
                <$atomic>::swap(self, value, order)
            }
            #[inline]
            fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: $crate::atomic::Ordering,
                failure: $crate::atomic::Ordering,
            ) -> Result<$value, $value> {
                <$atomic>::compare_exchange(self, current, new, success, failure)
            }
        }
    };
}

/// Implements [`Atomic`] and [`AtomicInt`] for a type with the interface of `core::sync::atomic`.
macro_rules! forward_atomic_int {
    ($value:ty, $atomic:ty) => {
        $crate::atomic::forward_atomic!($value, $atomic);
        impl $crate::atomic::AtomicInt<$value> for $atomic {
            #[inline]
            fn fetch_add(&self, value: $value, order: $crate::atomic::Ordering) -> $value {
                <$atomic>::fetch_add(self, value, order)
            }
            #[inline]
            fn fetch_sub(&self, value: $value, order: $crate::atomic::Ordering) -> $value {
                <$atomic>::fetch_sub(self, value, order)
            }
            #[inline]
            fn fetch_and(&self, value: $value, order: $crate::atomic::Ordering) -> $value {
                <$atomic>::fetch_and(self, value, order)
            }
            #[inline]
            fn fetch_or(&self, value: $value, order: $crate::atomic::Ordering) -> $value {
                <$atomic>::fetch_or(self, value, order)
            }
            #[inline]
            fn fetch_max(&self, value: $value, order: $crate::atomic::Ordering) -> $value {
                <$atomic>::fetch_max(self, value, order)
            }
            #[inline]
            fn fetch_min(&self, value: $value, order: $crate::atomic::Ordering) -> $value {
                <$atomic>::fetch_min(self, value, order)
            }
        }
    };
}

pub(crate) use {forward_atomic, forward_atomic_int};
