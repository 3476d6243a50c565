//! An open file system: its parts, and opening, committing and closing it.

mod broken_rule;
mod commit;
mod failure;
mod open;
mod recover;
mod super_block;

pub use broken_rule::BrokenRule;
pub use open::{DataMode, Events, IoEnd, IoEndSource, IoEnds, JournalUse, OpenOptions, Recovery};

use crate::cache::MetaCache;
use crate::directory::NameCache;
use crate::groups::Groups;
use crate::inode::{InodeTable, Places};
use crate::orphans::Orphans;
use crate::txn::{Flushes, Handle, Journal, Transactions};
use crate::{Error, OpContext, Result};
use blockyard_device::BlockDevice;
use blockyard_disk::Geometry;
use blockyard_disk::superblock::Superblock;
use blockyard_sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use std::sync::Arc;
use super_block::SuperBlock;

/// A mounted image. All operations take `&self`, from any thread; see the crate's text for the order of locks.
///
/// Close it with [`FileSystem::close`]; dropping it without leaves the image as after a crash.
pub struct FileSystem {
    pub(crate) device: Arc<dyn BlockDevice>,
    /// What the superblock said at open; what changes is in `super_block`.
    pub(crate) sb: Superblock,
    super_block: Mutex<SuperBlock>,
    pub(crate) cache: Arc<MetaCache>,
    pub(crate) groups: Arc<Groups>,
    pub(crate) inodes: InodeTable,
    /// Names of large directories that are known without their blocks.
    pub(crate) names: NameCache,
    /// For notes of where large directories' blocks are in the cache.
    pub(crate) near: Places,
    pub(crate) txns: Transactions,
    /// Held by renames between directories, so that no tree changes under the walk to the root.
    pub(crate) renames: Mutex<()>,
    pub(crate) journal: Box<dyn Journal>,
    pub(crate) space: crate::space::Space,
    options: OpenOptions,
    read_only: bool,
    pub(crate) orphans: Orphans,
    /// When the running transaction began, in Unix seconds (an i64's bits). Relaxed: a threshold.
    started: AtomicU64,
    pub(crate) flushes: Arc<Flushes>,
    /// The failure is noted on the device. Relaxed: only who notes it looks.
    failure_noted: AtomicBool,
    /// An apply failed: nothing is written any more. Relaxed: a late reader writes into memory only.
    failed: AtomicBool,
    /// Inodes created by this instance. Relaxed: only the number matters.
    pub(crate) inodes_created: AtomicU64,
    /// Bytes of dirty file data. Relaxed: a threshold.
    pub(crate) dirty_bytes: AtomicU64,
}

/// Sizes and counts of a file system, in the units of `statvfs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks without those that hold the file system's own structures at mkfs time.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks for unprivileged users.
    pub blocks_available: u64,
    /// Inodes.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
    /// Longest name in bytes.
    pub name_max: u32,
}

impl FileSystem {
    /// The geometry of the image.
    #[must_use]
    pub const fn geometry(&self) -> &Geometry {
        self.sb.geometry()
    }

    /// The superblock as it was at open.
    #[must_use]
    pub const fn superblock(&self) -> &Superblock {
        &self.sb
    }

    /// Whether changes are refused: asked for, required by the image, or after a failure.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only || self.has_failed()
    }

    /// Whether a failure turned this instance read-only: what is in memory may be ahead of the image.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// The options it was opened with.
    #[must_use]
    pub const fn options(&self) -> &OpenOptions {
        &self.options
    }

    /// Turns the instance read-only after something that can not be undone in memory.
    pub(crate) fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Whether a rule is to be broken.
    pub(crate) fn breaks(&self, rule: BrokenRule) -> bool {
        self.options.broken_rule == Some(rule)
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.is_read_only() { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// Runs the apply part of an operation: an error there turns the instance read-only, visibly.
    pub(crate) fn apply<T>(&self, result: Result<T>) -> Result<T> {
        if result.is_err() {
            self.fail();
        }
        result
    }

    /// Begins an operation that changes at most about `credits` blocks. May wait for a commit: to be called without a
    /// handle and without locks of mappings, groups or buffers.
    pub(crate) fn begin(&self, ctx: &OpContext, credits: usize) -> Result<Handle<'_>> {
        if self.has_failed() {
            self.note_failure(ctx);
        }
        self.check_writable()?;
        if self.is_commit_due(ctx) {
            self.commit_if(ctx, || self.is_commit_due(ctx))?;
        }
        let (handle, entries) = self.enter(ctx, credits)?;
        if !entries.is_multiple_of(self.options.commit_point_handles.max(1)) {
            return Ok(handle);
        }
        drop(handle);
        self.commit_point(ctx)?;
        Ok(self.enter(ctx, credits)?.0)
    }

    /// Enters the running transaction; when it is full, the next one.
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

    /// Whether the running transaction is older than it should get, by the callers' clock.
    pub(crate) fn is_commit_due(&self, ctx: &OpContext) -> bool {
        let started = self.started.load(Ordering::Relaxed).cast_signed();
        ctx.now.seconds.saturating_sub(started) >= self.options.commit_interval_seconds
            && self.journal.keeps_promises()
    }

    /// Sizes and counts as they stand now; delayed allocations count as used.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let geometry = self.geometry();
        let totals = self.groups.totals();
        let free = totals.free_clusters.saturating_sub(self.space.delayed_clusters());
        let free = free << geometry.cluster_ratio_bits();
        let overhead = self.super_block.lock().overhead_blocks();
        Statistics {
            block_size: blockyard_disk::num::u32_from_usize(geometry.block_size()),
            blocks: geometry.blocks_count().raw() - overhead,
            blocks_free: free,
            blocks_available: free.saturating_sub(self.sb.reserved_blocks_count().raw()),
            inodes: u64::from(geometry.inodes_count()),
            inodes_free: totals.free_inodes,
            name_max: 255,
        }
    }
}
