//! The table of inodes in memory: a bounded, sharded map that drops unused inodes by the CLOCK
//! algorithm. In each shard, a *hand* moves over the inodes and drops those that nobody uses and
//! that were not accessed since the hand last passed.

use super::Inode;
use super::dirty_files::DirtyFiles;
use crate::Result;
use crate::numbers::{NumberHasher, SHARDS, shard_of};
use crate::requests::Rules;
use blockyard_disk::InodeNr;
use blockyard_disk::num::usize_from_u64;
use blockyard_sync::{CachePadded, CpuSlot, Mutex, Ordering, rank};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// The most inodes that one call looks at, to bound the time under a lock.
const STEPS: usize = 8;
/// How many created inodes a shard lists apart from the others. If one more is created, the oldest
/// is dropped, or joins the others if it was accessed or must stay. So the creation of millions of
/// inodes reuses memory that is still in the CPU's cache, and seldom displaces other inodes.
const MADE_MAX: usize = 16;
/// How many removed inodes a shard remembers.
const REMOVED_KEPT: usize = 16;
/// How many inodes of one CPU slot may wait to be encoded. If more wait, the creation of an inode
/// encodes some of those that changed longest ago. The number is small, so that these inodes are
/// probably still in the CPU's cache.
const WAITING_MAX: usize = 128;

/// Inodes in memory and the list of those that changed.
pub(crate) struct InodeTable {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    dirty: Box<[DirtyList]>,
    dirty_files: DirtyFiles,
    per_shard: usize,
    made_max: usize,
}

/// One CPU slot's list of inodes to encode, in the order in which they changed; but inodes that
/// [`InodeTable::take_waiting`] passes over move to the end.
type DirtyList = CachePadded<Mutex<VecDeque<Arc<Inode>>>>;

#[derive(Default)]
struct Shard {
    map: HashMap<u32, Arc<Inode>, NumberHasher>,
    /// Numbers of created inodes, the oldest first. Some may have been accessed or removed since.
    made: VecDeque<u32>,
    /// The numbers of all other inodes, in the order in which the hand reaches them. May include
    /// numbers of removed inodes.
    ring: VecDeque<u32>,
    /// How many inodes were removed so far. If an inode was removed while a thread read it from its
    /// table block, the thread must read it again.
    removals: u64,
    /// The inode numbers removed last. Removals are counted from 0; the number that removal `n`
    /// removed is at index `n % REMOVED_KEPT`.
    removed: [u32; REMOVED_KEPT],
}

impl InodeTable {
    /// An empty table for about `inodes_max` inodes and `slots` CPU slots. If the rules imitate
    /// Linux's memory, created inodes stay as long as there is room.
    pub(crate) fn new(inodes_max: usize, slots: usize, rules: &Rules) -> Self {
        let shard = || CachePadded::new(Mutex::new(rank::INODE_TABLE, Shard::default()));
        let list = || CachePadded::new(Mutex::new(rank::JOURNAL_STATE, VecDeque::new()));
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            dirty: (0..slots.max(1)).map(|_| list()).collect(),
            dirty_files: DirtyFiles::new(),
            per_shard: (inodes_max / SHARDS).max(1),
            made_max: if rules.imitates_memory() { usize::MAX } else { MADE_MAX },
        }
    }

    fn shard(&self, inode: InodeNr) -> &Mutex<Shard> {
        &self.shards[shard_of(u64::from(inode.raw()))]
    }

    /// The inode, read by `load` if it is not in memory. `load` runs without a lock and may run
    /// more than once.
    pub(crate) fn get(&self, number: InodeNr, load: impl Fn() -> Result<Inode>) -> Result<Arc<Inode>> {
        loop {
            let removals = {
                let shard = self.shard(number).lock();
                if let Some(inode) = shard.map.get(&number.raw()) {
                    inode.touch();
                    return Ok(Arc::clone(inode));
                }
                shard.removals
            };
            let loaded = Arc::new(load()?);
            debug_assert_eq!(loaded.number(), number, "another inode was read");
            let mut shard = self.shard(number).lock();
            if let Some(inode) = shard.map.get(&number.raw()) {
                return Ok(Arc::clone(inode));
            }
            if !shard.was_removed_since(removals, number.raw()) {
                shard.make_room(self.per_shard, &self.dirty_files);
                shard.map.insert(number.raw(), Arc::clone(&loaded));
                shard.ring.push_back(number.raw());
                return Ok(loaded);
            }
        }
    }

    /// Enters an inode that was just created.
    pub(crate) fn insert(&self, inode: &Arc<Inode>) {
        let mut shard = self.shard(inode.number()).lock();
        debug_assert!(
            !shard.map.contains_key(&inode.number().raw()),
            "inode {} is in memory twice",
            inode.number()
        );
        if shard.made.len() >= self.made_max.min(self.per_shard) {
            shard.leave_made(&self.dirty_files);
        }
        shard.make_room(self.per_shard, &self.dirty_files);
        shard.map.insert(inode.number().raw(), Arc::clone(inode));
        shard.made.push_back(inode.number().raw());
    }

    /// Drops an inode that was deleted.
    pub(crate) fn remove(&self, number: InodeNr) {
        let mut shard = self.shard(number).lock();
        if let Some(inode) = shard.remove(number.raw()) {
            self.dirty_files.remove(&inode);
        }
    }

    /// Notes that the file's data became dirty at `seconds` by the writer's clock. The file gets a
    /// position in the order of write-back, after all files that have one. A file that already has
    /// a position keeps it, and the time that goes with it.
    pub(crate) fn note_dirty_data(&self, inode: &Inode, seconds: i64) {
        if inode.dirty_since.get().is_none() {
            self.dirty_files.add(inode, seconds);
        }
    }

    /// Removes the file's position in the order of write-back, after the file was written back in
    /// its turn. The caller holds the file's content lock.
    pub(crate) fn note_clean_data(&self, inode: &Inode) {
        self.dirty_files.remove(inode);
    }

    /// How many files have a position in the order of write-back.
    pub(crate) fn dirty_files_len(&self) -> u64 {
        self.dirty_files.len()
    }

    /// The files that now have a position in the order of write-back, in this order.
    pub(crate) fn dirty_files(&self) -> impl Iterator<Item = Arc<Inode>> {
        let mut places = 1..=self.dirty_files.last();
        std::iter::from_fn(move || {
            loop {
                let (order, number) = self.dirty_files.first_in(places.clone())?;
                places = order + 1..=*places.end();
                let inode = self.shard(number).lock().map.get(&number.raw()).cloned();
                // Passes over a file that was written back or dropped meanwhile.
                let is_there =
                    |inode: &Arc<Inode>| inode.dirty_since.get().is_some_and(|(at, _)| at == order);
                if let Some(inode) = inode.filter(is_there) {
                    return Some(inode);
                }
            }
        })
    }

    /// Notes that the inode must be encoded at the next commit. Call it once per epoch.
    pub(super) fn note_dirty(&self, inode: &Arc<Inode>, slot: CpuSlot) {
        self.dirty[slot.index(self.dirty.len())].lock().push_back(Arc::clone(inode));
    }

    /// If too many inodes wait to be encoded, takes from the list the first inode to which no
    /// thread has a reference. Looks at no more than [`STEPS`] inodes. The caller must be inside a
    /// handle, and encodes the inode.
    pub(super) fn take_waiting(&self, slot: CpuSlot) -> Option<Arc<Inode>> {
        let mut list = self.dirty[slot.index(self.dirty.len())].lock();
        for _ in 0..STEPS {
            if list.len() <= WAITING_MAX {
                break;
            }
            let inode = list.pop_front()?;
            // The list and the table have a reference each.
            if Arc::strong_count(&inode) <= 2 {
                return Some(inode);
            }
            list.push_back(inode);
        }
        None
    }

    /// Takes all inodes to encode. The gate must be closed.
    pub(crate) fn take_dirty(&self) -> Vec<Arc<Inode>> {
        let mut all = Vec::new();
        for list in &self.dirty {
            all.extend(list.lock().drain(..));
        }
        all
    }

    /// Every inode in memory, in ascending order of number.
    pub(crate) fn all(&self) -> Vec<Arc<Inode>> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.lock().map.values().cloned());
        }
        all.sort_unstable_by_key(|inode: &Arc<Inode>| inode.number());
        all
    }
}

impl Shard {
    /// Drops unused inodes until there is room for one more, but looks at no more than [`STEPS`].
    fn make_room(&mut self, per_shard: usize, dirty_files: &DirtyFiles) {
        for _ in 0..STEPS {
            if self.map.len() < per_shard {
                break;
            }
            if let Some(number) = self.ring.pop_front() {
                self.pass_hand(number, dirty_files);
            } else {
                self.leave_made(dirty_files);
            }
        }
    }

    /// Drops the first inode of `made`, or moves it to the ring if it was accessed or must stay.
    fn leave_made(&mut self, dirty_files: &DirtyFiles) {
        if let Some(number) = self.made.pop_front() {
            self.pass_hand(number, dirty_files);
        }
    }

    /// Moves the hand over one inode. The inode is dropped if nobody has a reference to it, nobody
    /// accessed it since the hand last passed, and it is idle ([`Inode::is_idle`]). Otherwise it
    /// goes to the end of the ring.
    fn pass_hand(&mut self, number: u32, dirty_files: &DirtyFiles) {
        let Some(inode) = self.map.get(&number) else { return };
        if Arc::strong_count(inode) > 1 || inode.was_touched() || !inode.is_idle() {
            self.ring.push_back(number);
            return;
        }
        dirty_files.remove(inode);
        debug_assert_eq!(inode.number().raw(), number, "an inode under another number");
        self.map.remove(&number);
        self.note_removed(number);
    }

    fn note_removed(&mut self, number: u32) {
        self.removed[usize_from_u64(self.removals) % REMOVED_KEPT] = number;
        self.removals += 1;
    }

    /// Whether an inode may have been removed since the count of removals was `removals`.
    fn was_removed_since(&self, removals: u64, number: u32) -> bool {
        debug_assert!(removals <= self.removals, "removals are counted up");
        let since = usize_from_u64(self.removals - removals);
        since > REMOVED_KEPT
            || (removals..self.removals)
                .any(|removal| self.removed[usize_from_u64(removal) % REMOVED_KEPT] == number)
    }

    fn remove(&mut self, number: u32) -> Option<Arc<Inode>> {
        self.note_removed(number);
        let removed = self.map.remove(&number);
        // The ring keeps the number until the hand reaches it, unless the ring has many numbers of
        // removed inodes.
        if self.ring.len() > 2 * self.map.len() + STEPS {
            self.ring.retain(|number| self.map.contains_key(number));
        }
        removed
    }
}

impl Inode {
    /// Notes an access to the inode.
    fn touch(&self) {
        // Loads first, so that the cache line stays shared between CPUs if nothing changes.
        if !self.touched.load(Ordering::Relaxed) {
            self.touched.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the inode was accessed since the last call.
    fn was_touched(&self) -> bool {
        self.touched.swap(false, Ordering::Relaxed)
    }

    /// Whether the table may drop the inode: it is not open, nobody holds its locks, and it has no
    /// change to encode, no data to write, no error to report and no other work left.
    fn is_idle(&self) -> bool {
        !self.is_dirty()
            && !self.lost_data.load(Ordering::Relaxed)
            && !self.opens.is_open()
            && self.try_write().is_some_and(|data| !data.has_reservations())
            && self.waiting.try_read().is_some_and(|waiting| waiting.is_empty())
            && self.core.try_write().is_some_and(|core| core.owes_nothing())
    }
}
