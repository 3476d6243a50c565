//! The directories with cached names, and the memory limit for all of them.
//!
//! Cached names do not keep the inode of their directory in memory: where new inodes are placed
//! depends on which inodes are evicted, and caching names must not change that. The names outlive
//! the in-memory inode. They are dropped when the directory is deleted or memory is short.
//!
//! When memory is short, the hand of a clock goes round the directories. A directory in which no
//! name was looked up since the last pass forgets all its names. The hand does not wait: it passes
//! over names whose lock somebody holds.

use super::Dentries;
use crate::numbers::NumberHasher;
use blockyard_disk::InodeNr;
use blockyard_disk::num::u64_from_usize;
use blockyard_sync::{Atomic, AtomicU64, Mutex, Ordering, rank};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// The most directories that the hand looks at for one request for memory.
const STEPS: usize = 8;

/// All directories with cached names. The [module](self) says how their memory is bounded.
pub(crate) struct DentryCache {
    bytes_max: u64,
    /// Bytes taken. Accessed relaxed: the number guards no other data.
    bytes: Arc<AtomicU64>,
    ring: Mutex<Ring>,
}

/// Directories with cached names, by inode number. Both fields hold the same directories.
#[derive(Default)]
struct Ring {
    directories: HashMap<u32, Arc<Dentries>, NumberHasher>,
    order: VecDeque<u32>,
}

/// Bytes taken; dropping this gives them back.
pub(super) struct Reserved {
    bytes: Arc<AtomicU64>,
    count: u64,
}

impl DentryCache {
    /// An empty cache of at most this many bytes.
    pub(crate) fn new(bytes_max: usize) -> Self {
        let ring = Mutex::new(rank::NAMES_RING, Ring::default());
        Self { bytes_max: u64_from_usize(bytes_max), bytes: Arc::new(AtomicU64::new(0)), ring }
    }

    /// The cached names of a directory that is loaded into memory.
    pub(crate) fn of(&self, directory: InodeNr) -> Arc<Dentries> {
        let known = self.ring.lock().directories.get(&directory.raw()).map(Arc::clone);
        known.unwrap_or_else(|| Arc::new(Dentries::new(directory)))
    }

    /// Removes a deleted directory, because a new one may get its number.
    pub(crate) fn remove(&self, directory: InodeNr) {
        let mut ring = self.ring.lock();
        if ring.directories.remove(&directory.raw()).is_some() {
            ring.order.retain(|&number| number != directory.raw());
        }
    }

    /// Registers a directory that begins to cache names.
    pub(super) fn register(&self, names: &Arc<Dentries>) {
        let mut ring = self.ring.lock();
        if ring.directories.insert(names.directory.raw(), Arc::clone(names)).is_none() {
            ring.order.push_back(names.directory.raw());
        }
    }

    /// Takes bytes. If too few are left, takes them from directories in which no name was looked up
    /// lately. `None` if that fails. The caller may hold the lock of one directory's names.
    pub(super) fn reserve(&self, bytes: usize) -> Option<Reserved> {
        let count = u64_from_usize(bytes);
        let fits = count <= self.bytes_max && (self.take(count) || self.make_room(count));
        fits.then(|| Reserved { bytes: Arc::clone(&self.bytes), count })
    }

    fn take(&self, count: u64) -> bool {
        let more = |taken: u64| taken.checked_add(count).filter(|&sum| sum <= self.bytes_max);
        Atomic::update(&*self.bytes, Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Moves the hand past at most [`STEPS`] directories, until `count` bytes can be taken, and
    /// takes them. False if there are still too few.
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

    /// Bytes taken.
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
