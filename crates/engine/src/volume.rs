//! The parts of an image that change in transactions, and how transactions begin and end.
//!
//! Each part owns its state: the table of inodes, the groups, the allocators' space, the orphan
//! records, the journal. The volume begins handles, and a commit collects what the parts have to
//! write. Nothing here interprets file data or names.

mod commit;
mod failure;
mod new_inode;
mod open;
mod patience;
mod recover;
mod super_block;
mod trim;

pub use new_inode::NewInode;

use crate::cache::MetaCache;
use crate::directory::DentryCache;
use crate::groups::Groups;
use crate::inode::Inodes;
use crate::instruments::BrokenRule;
use crate::options::OpenOptions;
use crate::orphans::Orphans;
use crate::requests::Rules;
use crate::space::Space;
use crate::txn::{Flushes, Handle, Journal, Transactions};
use crate::{Error, OpContext, Result};
use blockyard_device::{BlockDevice, Claim};
use blockyard_disk::num::usize_from_u64;
use blockyard_disk::superblock::Superblock;
use blockyard_disk::{Corruption, Geometry, InodeNr, Timestamp};
use blockyard_sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use std::sync::Arc;
use super_block::SuperBlock;

/// The parts of an image that a commit brings together.
pub(crate) struct Volume {
    pub(crate) device: Arc<dyn BlockDevice>,
    /// The superblock as it was at open; its fields that change are kept in `super_block`.
    pub(crate) sb: Arc<Superblock>,
    super_block: Mutex<SuperBlock>,
    pub(crate) cache: Arc<MetaCache>,
    pub(crate) groups: Arc<Groups>,
    pub(crate) inodes: Inodes,
    /// The dentry cache: names of large directories, beside their blocks.
    pub(crate) names: Arc<DentryCache>,
    pub(crate) txns: Arc<Transactions>,
    pub(crate) journal: Box<dyn Journal>,
    pub(crate) space: Space,
    options: OpenOptions,
    pub(crate) rules: Rules,
    read_only: bool,
    pub(crate) orphans: Orphans,
    /// When the running transaction began, in Unix seconds (the bits of an `i64`). Accessed
    /// relaxed: it guards no other data.
    started: AtomicU64,
    pub(crate) flushes: Arc<Flushes>,
    /// A thread has recorded the failure on the device, or is about to. Accessed relaxed: the swap
    /// alone lets only one thread do it.
    failure_noted: AtomicBool,
    /// An operation failed or panicked midway, or found damage that must make the instance
    /// read-only. Changes and commits that begin afterwards are refused; only a record of this
    /// failure is written to the device. Accessed relaxed: if an operation sees the flag late, the
    /// commit still checks it with the gate closed.
    failed: AtomicBool,
    /// The damage that was already logged, so that it is not logged again.
    damage_logged: Mutex<Vec<Corruption>>,
    /// Claims that keep others from writing to the devices. They are released last.
    _claims: Vec<Claim>,
    /// Counts the inodes created by this instance; input to their generations. The count starts
    /// with the image's mount count in its high half, so that instances differ. Accessed relaxed:
    /// the values need only be unique.
    inodes_created: AtomicU64,
}

/// Watches over an operation in progress: a panic while this lives makes the instance read-only.
#[must_use = "it watches while it lives"]
pub(crate) struct Operation<'a> {
    volume: &'a Volume,
    began_in_panic: bool,
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.began_in_panic {
            self.volume.fail();
        }
    }
}

impl Volume {
    /// See [`crate::FileSystem::geometry`].
    pub(crate) fn geometry(&self) -> &Geometry {
        self.sb.geometry()
    }

    /// See [`crate::FileSystem::superblock`].
    pub(crate) fn superblock(&self) -> &Superblock {
        &self.sb
    }

    /// See [`crate::FileSystem::is_own_inode`].
    pub(crate) fn is_own_inode(&self, number: InodeNr) -> bool {
        let of_features = [self.sb.journal_inode(), self.sb.orphan_file_inode()];
        number < self.sb.first_inode() && number != InodeNr::ROOT || of_features.contains(&Some(number))
    }

    /// See [`crate::FileSystem::is_read_only`].
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only || self.has_failed()
    }

    /// See [`crate::FileSystem::has_failed`].
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed) || self.txns.is_abandoned()
    }

    /// See [`crate::FileSystem::options`].
    pub(crate) const fn options(&self) -> &OpenOptions {
        &self.options
    }

    /// Whether the instance was opened read-only.
    pub(crate) const fn is_opened_read_only(&self) -> bool {
        self.read_only
    }

    /// How many blocks `statfs` subtracts as the file system's own.
    pub(crate) fn overhead_blocks(&self) -> u64 {
        self.super_block.lock().overhead_blocks()
    }

    /// Makes the instance read-only, after a failure that left changes in memory incomplete.
    pub(crate) fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Whether a test wants this rule broken.
    pub(crate) fn breaks(&self, rule: BrokenRule) -> bool {
        self.options.instruments.broken_rule == Some(rule)
    }

    /// Watches an operation: if it panics, the instance becomes read-only.
    pub(crate) fn watch(&self) -> Operation<'_> {
        Operation { volume: self, began_in_panic: std::thread::panicking() }
    }

    /// When the running transaction began: a time for work without a caller's clock.
    pub(crate) fn last_known_time(&self) -> Timestamp {
        Timestamp::from_seconds(self.started.load(Ordering::Relaxed).cast_signed())
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.is_read_only() { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// Passes on the result of the part of an operation that makes changes. An error makes the
    /// instance read-only.
    pub(crate) fn apply<T>(&self, result: Result<T>) -> Result<T> {
        if result.is_err() {
            self.fail();
        }
        result
    }

    /// Begins a handle for an operation that changes at most about `credits` blocks. May commit
    /// first. If another thread commits, this waits for the end of that commit only if the running
    /// transaction has no room; otherwise it waits only until that commit has opened the gate. The
    /// caller must neither have a handle nor hold the lock of a mapping, group or buffer.
    pub(crate) fn begin(&self, ctx: &OpContext, credits: usize) -> Result<Handle<'_>> {
        if self.has_failed() {
            self.note_failure(ctx);
        }
        self.check_writable()?;
        if !self.options.has_timer && self.is_commit_due(ctx) {
            self.commit_in_passing(ctx, || self.is_commit_due(ctx))?;
        }
        let (handle, entries) = self.enter(ctx, credits)?;
        if !entries.is_multiple_of(self.options.commit_point_handles.max(1)) {
            return Ok(handle);
        }
        drop(handle);
        self.commit_in_passing(ctx, || true)?;
        Ok(self.enter(ctx, credits)?.0)
    }

    /// Enters the running transaction, or the next one if it is full.
    fn enter(&self, ctx: &OpContext, credits: usize) -> Result<(Handle<'_>, u64)> {
        loop {
            let full = self.txns.running();
            if let Some(entered) = Handle::enter(&self.txns, &self.cache, ctx.cpu, credits) {
                return Ok(entered);
            }
            self.commit_if(ctx, || self.txns.running() == full)?;
            self.check_writable()?;
        }
    }

    /// Whether the running transaction is too old, by the callers' clock; false without a journal.
    pub(crate) fn is_commit_due(&self, ctx: &OpContext) -> bool {
        let started = self.started.load(Ordering::Relaxed).cast_signed();
        ctx.now.seconds.saturating_sub(started) >= self.options.commit_interval_seconds
            && self.journal.is_durable()
    }

    /// The first block of the cluster that a block belongs to.
    pub(crate) fn cluster_start(&self, block: u64) -> u64 {
        let geometry = self.geometry();
        let first = geometry.first_data_block().raw();
        first + (((block - first) >> geometry.cluster_ratio_bits()) << geometry.cluster_ratio_bits())
    }

    /// The size of a block in bytes.
    pub(crate) fn block_size(&self) -> usize {
        usize_from_u64(1 << self.geometry().block_bits())
    }

    /// Whether blocks are chosen at write-back.
    pub(crate) fn delays_allocation(&self) -> bool {
        self.options.delays_allocation()
    }
}
