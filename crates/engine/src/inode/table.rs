//! The table of inodes in memory: a sharded map, bounded, from which unused inodes fall out.

use super::Inode;
use super::dirty_files::DirtyFiles;
use crate::Result;
use crate::numbers::NumberHasher;
use blockyard_disk::InodeNr;
use blockyard_disk::num::usize_from_u32;
use blockyard_sync::{CachePadded, CpuSlot, Mutex, Ordering, rank};
use std::collections::HashMap;
use std::sync::Arc;

/// Shards of the table.
const SHARDS: usize = 64;

/// Inodes in memory and the list of those that changed.
pub(crate) struct InodeTable {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    dirty: Box<[DirtyList]>,
    dirty_files: DirtyFiles,
    per_shard: usize,
}

/// One CPU slot's list of inodes to encode.
type DirtyList = CachePadded<Mutex<Vec<Arc<Inode>>>>;

#[derive(Default)]
struct Shard {
    map: HashMap<u32, Arc<Inode>, NumberHasher>,
    /// Inodes removed so far: who read an inode from its table block before a removal must read again.
    removals: u64,
    /// Number of inodes at which unused ones are looked for again: above the bound while most are in use, so that
    /// looking costs a constant per inode entered.
    sweep_at: usize,
}

impl InodeTable {
    /// An empty table of about `inodes_max` inodes for `slots` CPU slots.
    pub(crate) fn new(inodes_max: usize, slots: usize) -> Self {
        let shard = || CachePadded::new(Mutex::new(rank::INODE_TABLE, Shard::default()));
        let list = || CachePadded::new(Mutex::new(rank::JOURNAL_STATE, Vec::new()));
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            dirty: (0..slots.max(1)).map(|_| list()).collect(),
            dirty_files: DirtyFiles::new(),
            per_shard: (inodes_max / SHARDS).max(1),
        }
    }

    fn shard(&self, inode: InodeNr) -> &Mutex<Shard> {
        &self.shards[usize_from_u32(inode.raw()) % SHARDS]
    }

    /// The inode, made by `load` when it is not in memory. `load` runs without a lock and may run twice.
    pub(crate) fn get(&self, number: InodeNr, load: impl Fn() -> Result<Inode>) -> Result<Arc<Inode>> {
        loop {
            let removals = {
                let shard = self.shard(number).lock();
                if let Some(inode) = shard.map.get(&number.raw()) {
                    return Ok(Arc::clone(inode));
                }
                shard.removals
            };
            let loaded = Arc::new(load()?);
            let mut shard = self.shard(number).lock();
            if let Some(inode) = shard.map.get(&number.raw()) {
                return Ok(Arc::clone(inode));
            }
            if shard.removals == removals {
                shard.insert(&loaded, self.per_shard, &self.dirty_files);
                return Ok(loaded);
            }
        }
    }

    /// Enters an inode that was just created.
    pub(crate) fn insert(&self, inode: &Arc<Inode>) {
        self.shard(inode.number()).lock().insert(inode, self.per_shard, &self.dirty_files);
    }

    /// Drops an inode that was deleted.
    pub(crate) fn remove(&self, number: InodeNr) {
        let mut shard = self.shard(number).lock();
        shard.removals += 1;
        if let Some(inode) = shard.map.remove(&number.raw()) {
            self.dirty_files.remove(&inode);
        }
    }

    /// The file's data became dirty, by the writer's clock: it is written back after all that were dirty before. A file
    /// that has its place keeps it.
    pub(crate) fn note_dirty_data(&self, inode: &Inode, seconds: i64) {
        if inode.dirty_since.get().is_none() {
            self.dirty_files.add(inode, seconds);
        }
    }

    /// The file was written back among all others and loses its place; the caller holds its content lock.
    pub(crate) fn note_clean_data(&self, inode: &Inode) {
        self.dirty_files.remove(inode);
    }

    /// The files that now have a place in the order of write-back, in this order.
    pub(crate) fn dirty_files(&self) -> impl Iterator<Item = Arc<Inode>> {
        let mut places = 1..=self.dirty_files.last();
        std::iter::from_fn(move || {
            loop {
                let (order, number) = self.dirty_files.first_in(places.clone())?;
                places = order + 1..=*places.end();
                let inode = self.shard(number).lock().map.get(&number.raw()).cloned();
                // One that was written or dropped meanwhile is passed over.
                let is_there =
                    |inode: &Arc<Inode>| inode.dirty_since.get().is_some_and(|(at, _)| at == order);
                if let Some(inode) = inode.filter(is_there) {
                    return Some(inode);
                }
            }
        })
    }

    /// Notes that the inode must be encoded at the next commit; to be called once an epoch.
    pub(super) fn note_dirty(&self, inode: &Arc<Inode>, slot: CpuSlot) {
        self.dirty[slot.index(self.dirty.len())].lock().push(Arc::clone(inode));
    }

    /// Takes the inodes to encode. The gate is closed.
    pub(crate) fn take_dirty(&self) -> Vec<Arc<Inode>> {
        let mut all = Vec::new();
        for list in &self.dirty {
            all.append(&mut list.lock());
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
    fn insert(&mut self, inode: &Arc<Inode>, per_shard: usize, dirty_files: &DirtyFiles) {
        if self.map.len() >= per_shard.max(self.sweep_at) {
            let before = self.map.len();
            // Unused means: nobody holds it, nothing to encode, no data to write, no reference.
            self.map.retain(|_, inode| {
                let is_kept = Arc::strong_count(inode) > 1 || !inode.is_idle();
                if !is_kept {
                    dirty_files.remove(inode);
                }
                is_kept
            });
            self.removals += u64::from(self.map.len() < before);
            self.sweep_at = self.map.len() + self.map.len() / 2;
        }
        self.map.insert(inode.number().raw(), Arc::clone(inode));
    }
}

impl Inode {
    /// Whether the table may forget the inode.
    fn is_idle(&self) -> bool {
        !self.is_dirty()
            && self.opens.load(Ordering::Relaxed) == 0
            && self.try_write().is_some_and(|data| data.is_empty() && data.unconverted.is_empty())
    }
}
