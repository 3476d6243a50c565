//! Atomics that tell the scheduler about each access, so that it can order and charge the access.

use std::sync::atomic;

use super::lines::Access;
use super::place::LineId;
use super::scheduler;
use crate::atomic::{Atomic, AtomicInt, Ordering};

/// Charges a load or store.
#[inline]
fn charge_plain(line: LineId, access: Access) {
    if let Some(scheduler) = scheduler::current() {
        scheduler.plain_access(line, access);
    }
}

/// Charges a read-modify-write.
#[inline]
fn charge_exchange(line: LineId) {
    if let Some(scheduler) = scheduler::current() {
        scheduler.access(line, Access::Write);
    }
}

macro_rules! virtual_atomic {
    ($(#[$doc:meta])* $name:ident($plain:ty, $value:ty)) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name($plain, LineId);

        impl Atomic<$value> for $name {
            fn new(value: $value) -> Self {
                Self(<$plain>::new(value), LineId::of_new())
            }
            fn load(&self, order: Ordering) -> $value {
                charge_plain(self.1, Access::Read);
                self.0.load(order)
            }
            fn store(&self, value: $value, order: Ordering) {
                charge_plain(self.1, Access::Write);
                self.0.store(value, order);
            }
            fn swap(&self, value: $value, order: Ordering) -> $value {
                charge_exchange(self.1);
                self.0.swap(value, order)
            }
            fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                charge_exchange(self.1);
                self.0.compare_exchange(current, new, success, failure)
            }
        }
    };
}

macro_rules! virtual_int {
    ($name:ident, $value:ty, [$($operation:ident),*]) => {
        impl AtomicInt<$value> for $name {
            $(fn $operation(&self, value: $value, order: Ordering) -> $value {
                charge_exchange(self.1);
                self.0.$operation(value, order)
            })*
        }
    };
    ($name:ident, $value:ty) => {
        virtual_int!($name, $value, [fetch_add, fetch_sub, fetch_and, fetch_or, fetch_max, fetch_min]);
    };
}

virtual_atomic! {
    /// A shared `bool`.
    VirtualBool(atomic::AtomicBool, bool)
}
virtual_atomic! {
    /// A shared `u32`.
    VirtualU32(atomic::AtomicU32, u32)
}
virtual_atomic! {
    /// A shared `u64`.
    VirtualU64(atomic::AtomicU64, u64)
}
virtual_atomic! {
    /// A shared `usize`.
    VirtualUsize(atomic::AtomicUsize, usize)
}
virtual_int!(VirtualU32, u32);
virtual_int!(VirtualU64, u64);
virtual_int!(VirtualUsize, usize);
