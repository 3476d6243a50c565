//! Regular files: reading, writing, and the operations that change which blocks a file has.
//!
//! Data goes first, metadata second: a delayed block gets a claim, its data is written to the claimed place, and only
//! then a handle marks the clusters, maps them and raises the size on disk. Nobody can ever read what was there
//! before, and a handle is never open during data I/O.

mod allocate;
mod by_folio;
mod convert;
mod direct;
mod fallocate;
mod gone;
mod logged;
mod map;
mod part;
#[cfg(test)]
mod promise_tests;
mod promises;
mod read;
mod steps;
mod store;
mod truncate;
mod write;
mod write_back;

pub(crate) use allocate::How;
pub use fallocate::Fallocate;
pub(crate) use truncate::FREE_CREDITS;
pub(crate) use write_back::RUN_CREDITS;
