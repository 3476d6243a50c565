//! Open files, by the numbers that the kernel uses for them.
//!
//! Writers are counted by inode: while a file is open for writing, the kernel may cache written
//! bytes that it has not sent yet.
//!
//! the count of an inode = the number of its handles that were opened for writing

use std::collections::HashMap;
use std::sync::Arc;

use blockyard::disk::num::{usize_from_u32, usize_from_u64};
use blockyard::{File, InodeNr};
use blockyard_sync::{AtomicU64, Mutex, Ordering, RwLock, rank};

use crate::errno::{Answer, Errno};

/// The kernel's number for an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HandleNr(pub u64);

/// Shards of the table: enough that threads rarely wait for each other.
const SHARDS: usize = 16;

/// What a file was opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Reading,
    Writing,
    /// Writing that the kernel does not cache.
    WritingUncached,
}

impl Use {
    fn writes(self) -> bool {
        self != Self::Reading
    }
}

/// An open file and its use.
struct Opened {
    file: Arc<File>,
    what_for: Use,
}

/// One shard of the table.
type Shard = RwLock<HashMap<u64, Opened>>;

/// The handles of one inode that were opened for writing.
#[derive(Default)]
struct Writing {
    count: u32,
    /// A cached write found no room, and no writer has got the error yet.
    found_no_room: bool,
}

/// One shard of the counts of writing handles, by inode number.
type Writers = Mutex<HashMap<u32, Writing>>;

/// The table of open files.
pub(crate) struct Handles {
    /// The next handle's number. Accessed relaxed: it only matters that the numbers differ.
    next: AtomicU64,
    shards: Box<[Shard]>,
    writers: Box<[Writers]>,
}

impl Handles {
    pub(crate) fn new() -> Self {
        let shard = |_| RwLock::new(rank::LEAF, HashMap::new());
        let writers = |_| Mutex::new(rank::LEAF, HashMap::new());
        Self {
            next: blockyard_sync::Atomic::new(1),
            shards: (0..SHARDS).map(shard).collect(),
            writers: (0..SHARDS).map(writers).collect(),
        }
    }

    fn shard(&self, handle: HandleNr) -> &Shard {
        &self.shards[usize_from_u64(handle.0) % SHARDS]
    }

    fn writers_of(&self, inode: InodeNr) -> &Writers {
        &self.writers[usize_from_u32(inode.raw()) % SHARDS]
    }

    /// Keeps an open file until [`Handles::remove`] or [`Handles::clear`].
    pub(crate) fn insert(&self, file: File, what_for: Use) -> HandleNr {
        if what_for.writes() {
            let inode = file.id().number;
            self.writers_of(inode).lock().entry(inode.raw()).or_default().count += 1;
        }
        let handle = HandleNr(self.next.fetch_add(1, Ordering::Relaxed));
        self.shard(handle).write().insert(handle.0, Opened { file: Arc::new(file), what_for });
        handle
    }

    /// An open file.
    pub(crate) fn get(&self, handle: HandleNr) -> Answer<Arc<File>> {
        self.shard(handle).read().get(&handle.0).map(|opened| Arc::clone(&opened.file)).ok_or(Errno::BADF)
    }

    /// Removes a handle. Its file is closed once nobody uses it.
    pub(crate) fn remove(&self, handle: HandleNr) {
        let Some(opened) = self.shard(handle).write().remove(&handle.0) else { return };
        if opened.what_for.writes() {
            let inode = opened.file.id().number;
            let mut writers = self.writers_of(inode).lock();
            let count = writers.get_mut(&inode.raw()).map(|writing| {
                debug_assert!(writing.count > 0, "a count of no handles");
                writing.count -= 1;
                writing.count
            });
            debug_assert!(count.is_some(), "a handle that was not counted");
            if count == Some(0) {
                writers.remove(&inode.raw());
            }
        }
    }

    /// Whether an inode is open for writing.
    pub(crate) fn is_written(&self, inode: InodeNr) -> bool {
        self.writers_of(inode).lock().contains_key(&inode.raw())
    }

    /// The inodes that are open for writing.
    pub(crate) fn written(&self) -> Vec<InodeNr> {
        let all = self.writers.iter().flat_map(|writers| writers.lock().keys().copied().collect::<Vec<_>>());
        all.map(InodeNr::new).collect()
    }

    /// Records, for the next writer of an inode, that a cached write found no room.
    pub(crate) fn note_no_room(&self, inode: InodeNr) {
        if let Some(writing) = self.writers_of(inode).lock().get_mut(&inode.raw()) {
            writing.found_no_room = true;
        }
    }

    /// The inode of a handle whose writes the kernel caches; `None` for every other handle.
    pub(crate) fn cached_by(&self, handle: HandleNr) -> Option<InodeNr> {
        let shard = self.shard(handle).read();
        let opened = shard.get(&handle.0).filter(|opened| opened.what_for == Use::Writing)?;
        Some(opened.file.id().number)
    }

    /// Whether a cached write to an inode found no room since the last call.
    pub(crate) fn take_no_room(&self, inode: InodeNr) -> bool {
        let mut writers = self.writers_of(inode).lock();
        writers.get_mut(&inode.raw()).is_some_and(|writing| std::mem::take(&mut writing.found_no_room))
    }

    /// The number of open files.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().len()).sum()
    }

    /// Removes all handles. Each file is closed once nobody uses it.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let all = std::mem::take(&mut *shard.write());
            drop(all);
        }
        self.writers.iter().for_each(|writers| writers.lock().clear());
    }
}
