//! Locks, condition variables and shared atomics, with lock ranks and backends. The crates alloc,
//! device, engine, blockyard and fuse have no other source of them.
//!
//! A data structure that is tested under shuttle or measured in virtual time takes its primitives
//! from a [`Backend`] type parameter: `Mutex<T, B>`, `B::AtomicU64`. Other code writes `Mutex<T>`
//! and gets [`Native`].
//!
//! Every lock has a [`Rank`] from one table ([`rank`], explained in docs/locking.md). Debug builds
//! record which locks each thread holds. A thread that would wait for a lock out of order panics,
//! and the message names both locks. Release builds store no ranks and check nothing.

#![forbid(unsafe_code)]

pub mod atomic;
pub mod backend;
mod condvar;
mod counter;
mod held;
mod held_set;
mod lock_class;
mod mutex;
pub mod rank;
mod rwlock;
mod slot;

pub use atomic::{Atomic, AtomicInt, Ordering};
pub use backend::Backend;
#[cfg(feature = "virtual")]
pub use backend::in_turn::InTurn;
pub use backend::native::Native;
#[cfg(feature = "shuttle")]
pub use backend::shuttle::Shuttle;
#[cfg(feature = "virtual")]
pub use backend::virtual_time::{self, Virtual};
pub use condvar::Condvar;
pub use counter::{Errs, LaggedCounter, ShardedCounter};
pub use crossbeam_utils::CachePadded;
pub use held::{assert_none_held, locks_taken};
pub use lock_class::{LockClass, LockClassFigures};
pub use mutex::{Mutex, MutexGuard};
pub use rank::Rank;
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use slot::CpuSlot;

/// A shared `bool` of the native backend.
pub type AtomicBool = <Native as Backend>::AtomicBool;
/// A shared `u32` of the native backend.
pub type AtomicU32 = <Native as Backend>::AtomicU32;
/// A shared `u64` of the native backend.
pub type AtomicU64 = <Native as Backend>::AtomicU64;
/// A shared `usize` of the native backend.
pub type AtomicUsize = <Native as Backend>::AtomicUsize;
