//! Regular files: reading, writing, and the operations that change which blocks a file has.
//!
//! Data goes first, metadata second: a delayed block gets a claim, its data is written to the claimed place, and only
//! then a handle marks the clusters, maps them and raises the size on disk. Nobody can ever read what was there
//! before, and a handle is never open during data I/O.

mod by_folio;
mod convert;
mod direct;
mod fallocate;
mod inline;
mod logged;
mod part;
#[cfg(test)]
mod promise_tests;
mod promises;
mod read;
mod seen_holes;
mod steps;
mod truncate;
mod write;
mod write_back;

pub use fallocate::Fallocate;
pub(crate) use truncate::FREE_CREDITS;
pub(crate) use write_back::RUN_CREDITS;

use crate::mapping::Mapping;
use crate::volume::Volume;
use blockyard_sync::AtomicU64;
use std::sync::Arc;

/// The content of files.
pub(crate) struct Files {
    volume: Arc<Volume>,
    mapping: Arc<Mapping>,
    /// Bytes of dirty file data. Relaxed: a threshold.
    dirty_bytes: AtomicU64,
}

impl Files {
    /// The files of a volume.
    pub(crate) fn new(volume: &Arc<Volume>, mapping: &Arc<Mapping>) -> Self {
        Self { volume: Arc::clone(volume), mapping: Arc::clone(mapping), dirty_bytes: AtomicU64::new(0) }
    }
}
