//! Files that programs have open, by the numbers that the kernel calls them by.

use std::collections::HashMap;
use std::sync::Arc;

use blockyard::File;
use blockyard::disk::num::usize_from_u64;
use blockyard_sync::{AtomicU64, Ordering, RwLock, rank};

use crate::errno::{Answer, Errno};

/// What the kernel calls an open file by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HandleNr(pub u64);

/// Parts of the table: enough that threads rarely meet.
const SHARDS: usize = 16;

/// One part of the table.
type Shard = RwLock<HashMap<u64, Arc<File>>>;

/// The table of open files.
pub(crate) struct Handles {
    /// Relaxed: only that numbers differ matters.
    next: AtomicU64,
    shards: Box<[Shard]>,
}

impl Handles {
    pub(crate) fn new() -> Self {
        let shard = |_| RwLock::new(rank::LEAF, HashMap::new());
        Self { next: blockyard_sync::Atomic::new(1), shards: (0..SHARDS).map(shard).collect() }
    }

    fn shard(&self, handle: HandleNr) -> &Shard {
        &self.shards[usize_from_u64(handle.0) % SHARDS]
    }

    /// Keeps a file until it is taken out.
    pub(crate) fn insert(&self, file: File) -> HandleNr {
        let handle = HandleNr(self.next.fetch_add(1, Ordering::Relaxed));
        self.shard(handle).write().insert(handle.0, Arc::new(file));
        handle
    }

    /// An open file.
    pub(crate) fn get(&self, handle: HandleNr) -> Answer<Arc<File>> {
        self.shard(handle).read().get(&handle.0).cloned().ok_or(Errno::BADF)
    }

    /// Takes a file out; it is closed once nobody uses it.
    pub(crate) fn remove(&self, handle: HandleNr) -> Option<Arc<File>> {
        self.shard(handle).write().remove(&handle.0)
    }

    /// Files that are open.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().len()).sum()
    }

    /// Closes everything.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let all = std::mem::take(&mut *shard.write());
            drop(all);
        }
    }
}
