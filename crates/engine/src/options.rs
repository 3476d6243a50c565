//! How to open an image.

use crate::instruments::Instruments;
use blockyard_alloc::policy::slots::When;
use blockyard_alloc::{EventSink, Policy};
use blockyard_disk::superblock::ErrorPolicy;
use std::fmt;
use std::sync::Arc;

/// What to do with a journal that needs recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Recovery {
    /// Replay it: onto the device, or into memory when the instance is read-only.
    #[default]
    Replay,
    /// Refuse to open.
    Refuse,
}

/// Whether changes go through the image's journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum JournalUse {
    /// Yes, if the image has a journal.
    #[default]
    Journaled,
    /// No: changes are written straight home, and the journal stays empty. After a crash, the image
    /// must be checked, or made again.
    Ignored,
}

/// How the journal treats file data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DataMode {
    /// Data of new blocks is on the device before the transaction that maps them commits, so nobody
    /// reads a block's old content.
    #[default]
    Ordered,
    /// As ordered, but freed data blocks may be reused at once. After a crash, a file whose removal
    /// was not committed can contain another file's data.
    Writeback,
    /// Data goes through the log, like metadata. In the other modes, this applies only to files
    /// with the flag `j` (chattr(1)).
    Journal,
}

/// What happens when an operation finds that the image violates the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnDamage {
    /// Only the caller learns of it, by the error that it gets.
    #[default]
    Tell,
    /// What the superblock says (`s_errors`, set by tune2fs). Linux does this when it has mounted
    /// the image.
    AsSuperblock,
    /// This policy, whatever the superblock says. `Panic` stops no machine: it makes the instance
    /// read-only.
    Do(ErrorPolicy),
}

/// How to open an image.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Refuse changes, and write nothing to the device.
    pub read_only: bool,
    /// With `read_only`: open even if somebody writes to the device meanwhile. What is read can
    /// then be inconsistent.
    pub shared: bool,
    /// What to do with a journal that needs recovery.
    pub recovery: Recovery,
    /// Whether changes go through the journal.
    pub journal: JournalUse,
    /// How the journal treats file data.
    pub data: DataMode,
    /// Number of CPU slots, at least 1. It decides into how many shards counters and other per-CPU
    /// state are divided.
    pub cpus: u32,
    /// The allocation policy.
    pub policy: Policy,
    /// Whether the device is a rotating disk, with seek times. If so, searches look at some groups
    /// in order before they use the group indexes (`mb_max_linear_groups`).
    pub rotational: bool,
    /// Bytes of metadata to keep in memory, dirty blocks included. While a commit writes, copies of
    /// blocks that change again need more memory, at most three quarters of this.
    pub cache_bytes: usize,
    /// Bytes for the dentry cache: the names in directories larger than a block, with their inode
    /// numbers. A lookup that the cache answers reads no block. 0 keeps no names.
    pub name_cache_bytes: usize,
    /// Bytes of file data that may be dirty. From half of this on, a write to a file with much
    /// dirty data also writes that file back; at the limit, every write waits for write-back.
    pub dirty_data_bytes: usize,
    /// Called by each write that leaves more than half of `dirty_data_bytes` dirty. If another
    /// thread then calls [`FileSystem::write_back_excess`](crate::FileSystem::write_back_excess),
    /// writes need not do the write-back themselves.
    pub on_much_dirty_data: Option<DataNotice>,
    /// Bytes of clean file data to keep in memory. Saves reads, and allows read-ahead for files
    /// that are read sequentially. 0 keeps none, which is best for images in memory, and for image
    /// files, which the operating system caches.
    pub clean_data_bytes: usize,
    /// Age in seconds at which [`FileSystem::tick`](crate::FileSystem::tick) writes dirty data
    /// back.
    pub data_expires_seconds: u32,
    /// How many inodes to keep in memory. Inodes that are in use or not written yet may exceed
    /// this.
    pub inodes_max: usize,
    /// How many handles may begin on one CPU slot between two commit points. Clusters freed between
    /// them cannot be allocated before the next commit point.
    pub commit_point_handles: u64,
    /// Age of a transaction in seconds, by the callers' clock, at which the next operation or
    /// [`FileSystem::tick`](crate::FileSystem::tick) commits it. Without a journal, age causes no
    /// commit.
    pub commit_interval_seconds: i64,
    /// Whether the caller regularly calls
    /// [`FileSystem::commit_aged`](crate::FileSystem::commit_aged). If so, operations leave it to
    /// that call to commit a transaction that is old enough. Otherwise the first operation after
    /// [`Self::commit_interval_seconds`] commits, and waits for the device.
    pub has_timer: bool,
    /// Delay the choice of blocks until write-back.
    pub delayed_allocation: bool,
    /// What happens when damage is found.
    pub on_damage: OnDamage,
    /// Mount point, for the superblock (`s_last_mounted`, cut to 63 bytes); `None` keeps the old
    /// one.
    pub last_mounted: Option<Vec<u8>>,
    /// Seed of the allocation policy's random choices and of inode generations.
    pub seed: u64,
    /// Receives each decision of the block allocator; `None` records none.
    pub events: Option<Events>,
    /// What to do differently for an instrument that compares or tests.
    #[doc(hidden)]
    pub instruments: Instruments,
}

/// Receives one event per decision of the block allocator, in the thread that requested the blocks.
#[derive(Clone)]
pub struct Events(pub Arc<dyn EventSink>);

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Events")
    }
}

/// A function that is called during writes, so it should do no more than wake a thread.
#[derive(Clone)]
pub struct DataNotice(pub Arc<dyn Fn() + Send + Sync>);

impl DataNotice {
    pub(crate) fn tell(&self) {
        (self.0)();
    }
}

impl fmt::Debug for DataNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DataNotice")
    }
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            shared: false,
            recovery: Recovery::Replay,
            journal: JournalUse::Journaled,
            data: DataMode::Ordered,
            cpus: 4,
            policy: Policy::default(),
            rotational: false,
            cache_bytes: 64 << 20,
            name_cache_bytes: 64 << 20,
            dirty_data_bytes: 64 << 20,
            on_much_dirty_data: None,
            clean_data_bytes: 0,
            data_expires_seconds: 30,
            inodes_max: 16_384,
            commit_point_handles: 131_072,
            commit_interval_seconds: 5,
            has_timer: false,
            delayed_allocation: true,
            on_damage: OnDamage::Tell,
            last_mounted: None,
            seed: 0,
            events: None,
            instruments: Instruments::default(),
        }
    }
}

impl OpenOptions {
    /// Whether blocks are chosen at write-back.
    pub(crate) fn delays_allocation(&self) -> bool {
        self.delayed_allocation && self.policy.when == When::WriteBack
    }
}
