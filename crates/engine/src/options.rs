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
    /// They do, when the image has a journal.
    #[default]
    Journaled,
    /// They go straight home and the journal stays empty: a crash leaves an image that must be
    /// checked. For images that are thrown away after a crash.
    Ignored,
}

/// What the journal does about file data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DataMode {
    /// Data of new blocks is on the device before the transaction that maps them commits: nobody
    /// reads what a block held before.
    #[default]
    Ordered,
    /// As ordered, but freed data blocks may be used again at once: after a crash a file whose
    /// removal was not committed can show another file's data.
    Writeback,
    /// Data goes through the log, like metadata. Inodes with the flag `j` have it so in every mode.
    Journal,
}

/// What happens when an operation finds that the image contradicts the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnDamage {
    /// The caller is told, and nothing else.
    #[default]
    Tell,
    /// What the superblock says (`s_errors`, as tune2fs sets it), as a mount does.
    AsSuperblock,
    /// This, whatever the superblock says. Nothing here stops a machine: `Panic` is as turning
    /// read-only.
    Do(ErrorPolicy),
}

/// How to open an image.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Refuse changes and write nothing.
    pub read_only: bool,
    /// With `read_only`: also when somebody writes to the device meanwhile; what is read then can
    /// contradict itself.
    pub shared: bool,
    /// A journal that needs recovery.
    pub recovery: Recovery,
    /// Whether changes go through the journal.
    pub journal: JournalUse,
    /// What the journal does about file data.
    pub data: DataMode,
    /// CPU slots: shards and per-CPU state are sized by it. At least 1.
    pub cpus: u32,
    /// The allocation policy.
    pub policy: Policy,
    /// Whether the device has seek times: the search then begins linearly.
    pub rotational: bool,
    /// Bytes of metadata to keep in memory; dirty blocks count. While a transaction that changes
    /// directories of 256 blocks or more runs, and while the next one does, the size of these
    /// directories comes to it, up to three times as much.
    pub cache_bytes: usize,
    /// Bytes for names of large directories and their inodes, which spare look-ups the blocks; 0
    /// keeps none.
    pub name_cache_bytes: usize,
    /// Bytes of file data that may wait for write-back. From half of it on, who writes much to one
    /// file is held up by writing that back; at the limit whoever writes.
    pub dirty_data_bytes: usize,
    /// Called by each write that finds more than half of `dirty_data_bytes` waiting. A thread that
    /// then calls [`FileSystem::write_back_excess`](crate::FileSystem::write_back_excess) keeps
    /// others from being held up.
    pub on_much_dirty_data: Option<DataNotice>,
    /// Bytes of file data to keep in memory when it is on the device, too. It spares reads and lets
    /// files that are read in order be read ahead. 0 keeps none, which is best for images in memory
    /// and in files, which the operating system caches.
    pub clean_data_bytes: usize,
    /// Age in seconds at which [`FileSystem::tick`] writes dirty data back.
    pub data_expires_seconds: u32,
    /// Inodes to keep in memory when nobody uses them.
    pub inodes_max: usize,
    /// Handles on one CPU slot between two commit points; the clusters freed meanwhile wait.
    pub commit_point_handles: u64,
    /// Age of a transaction, by the callers' clock, at which the next operation or
    /// [`FileSystem::tick`] commits it. Without a journal nothing is committed by age.
    pub commit_interval_seconds: i64,
    /// Somebody calls [`FileSystem::commit_aged`] in time: operations leave aged transactions to
    /// that, and none of them waits for the device because it came first.
    pub has_timer: bool,
    /// Delay the choice of blocks until write-back.
    pub delayed_allocation: bool,
    /// What happens when damage is found.
    pub on_damage: OnDamage,
    /// Where the file system is mounted, for the superblock (`s_last_mounted`: at most 63 bytes
    /// stay); `None` leaves what is there.
    pub last_mounted: Option<Vec<u8>>,
    /// Seed of the allocation policy's random choices.
    pub seed: u64,
    /// Who is told of each decision of the block allocator.
    pub events: Option<Events>,
    /// What is to be done differently for an instrument that compares or tests.
    #[doc(hidden)]
    pub instruments: Instruments,
}

/// Receives one event for each decision of the block allocator, in the thread that asked for the
/// blocks.
#[derive(Clone)]
pub struct Events(pub Arc<dyn EventSink>);

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Events")
    }
}

/// Is called beside writes, so it should do no more than wake somebody.
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
