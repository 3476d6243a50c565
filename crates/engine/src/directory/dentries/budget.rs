//! The directories whose names are known, and the memory that this may take in all.
//!
//! Names outlive the inode in memory: whether that leaves and comes back must not depend on what is
//! remembered here, because the placement of new inodes depends on it. They go with the directory
//! itself, or when memory is short: a hand goes round the directories, and one that was not asked
//! since it last passed forgets everything. Nobody waits: names that somebody changes are passed
//! by.

use super::Dentries;
use crate::numbers::NumberHasher;
use blockyard_disk::InodeNr;
use blockyard_disk::num::u64_from_usize;
use blockyard_sync::{Atomic, AtomicU64, Mutex, Ordering, rank};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Directories that the hand looks at for one request.
const STEPS: usize = 8;

/// See the module's text.
pub(crate) struct DentryCache {
    bytes_max: u64,
    /// Bytes that are taken. Relaxed: only the sum matters.
    bytes: Arc<AtomicU64>,
    ring: Mutex<Ring>,
}

/// Directories that know names: the same in both.
#[derive(Default)]
struct Ring {
    directories: HashMap<u32, Arc<Dentries>, NumberHasher>,
    order: VecDeque<u32>,
}

/// Bytes that were taken; dropping this gives them back.
pub(super) struct Reserved {
    bytes: Arc<AtomicU64>,
    count: u64,
}

impl DentryCache {
    /// No names yet, and never more than these bytes of them.
    pub(crate) fn new(bytes_max: usize) -> Self {
        let ring = Mutex::new(rank::NAMES_RING, Ring::default());
        Self { bytes_max: u64_from_usize(bytes_max), bytes: Arc::new(AtomicU64::new(0)), ring }
    }

    /// What is known of a directory that comes into memory.
    pub(crate) fn of(&self, directory: InodeNr) -> Arc<Dentries> {
        let known = self.ring.lock().directories.get(&directory.raw()).map(Arc::clone);
        known.unwrap_or_else(|| Arc::new(Dentries::new(directory)))
    }

    /// A directory was deleted; its number may be another one's next.
    pub(crate) fn remove(&self, directory: InodeNr) {
        let mut ring = self.ring.lock();
        if ring.directories.remove(&directory.raw()).is_some() {
            ring.order.retain(|&number| number != directory.raw());
        }
    }

    /// Enters a directory that begins to know names.
    pub(super) fn register(&self, names: &Arc<Dentries>) {
        let mut ring = self.ring.lock();
        if ring.directories.insert(names.directory.raw(), Arc::clone(names)).is_none() {
            ring.order.push_back(names.directory.raw());
        }
    }

    /// Takes bytes, from directories that were not asked of late if there are not enough; `None`
    /// when there is nothing to be had. The caller may hold the lock of one directory's names.
    pub(super) fn reserve(&self, bytes: usize) -> Option<Reserved> {
        let count = u64_from_usize(bytes);
        let fits = count <= self.bytes_max && (self.take(count) || self.make_room(count));
        fits.then(|| Reserved { bytes: Arc::clone(&self.bytes), count })
    }

    fn take(&self, count: u64) -> bool {
        let more = |taken: u64| taken.checked_add(count).filter(|&sum| sum <= self.bytes_max);
        Atomic::update(&*self.bytes, Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Moves the hand until `count` bytes could be taken.
    fn make_room(&self, count: u64) -> bool {
        let mut ring = self.ring.lock();
        for _ in 0..STEPS.min(ring.order.len()) {
            let Some(number) = ring.order.pop_front() else { break };
            if ring.directories.get(&number).is_some_and(|names| !names.give_up()) {
                ring.order.push_back(number);
            } else {
                ring.directories.remove(&number);
            }
            if self.take(count) {
                return true;
            }
        }
        false
    }

    /// Bytes that are taken.
    #[cfg(test)]
    pub(super) fn taken(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.bytes.fetch_sub(self.count, Ordering::Relaxed);
    }
}
