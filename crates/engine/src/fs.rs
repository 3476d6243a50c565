//! The entry point: an open file system, its public operations, and opening it.
//!
//! Most operations are delegated to a part: data to [`Files`], names to [`Namespace`], extended
//! attributes to [`Xattrs`], and transactions to the [`Volume`], which these parts share.

mod attributes;
mod cleanup;
mod data;
mod durability;
mod instrumented;
mod names;
mod open;
mod xattrs;

pub use attributes::{AccessTimes, Attributes, SetAttributes};
pub use instrumented::Instrumented;

use crate::OpContext;
use crate::file::Files;
use crate::namespace::Namespace;
use crate::options::OpenOptions;
use crate::volume::Volume;
use crate::xattr::Xattrs;
use blockyard_alloc::Allocator;
use blockyard_disk::Corruption;
use blockyard_disk::Geometry;
use blockyard_disk::InodeNr;
use blockyard_disk::superblock::Superblock;
use std::sync::Arc;

/// An open file system. Any thread may call its operations: all take `&self`, except those that end
/// the instance. The [crate] documentation has the order of locks.
///
/// Close it with [`FileSystem::close`]. Dropping it does the same, but can report an error only
/// through `tracing`. An operation that panics makes the file system read-only: nothing of the
/// unfinished transaction reaches the device.
pub struct FileSystem {
    pub(crate) volume: Arc<Volume>,
    pub(crate) files: Arc<Files>,
    pub(crate) xattrs: Arc<Xattrs>,
    pub(crate) namespace: Namespace,
    /// Whether the instance was closed or abandoned. Dropping it then does nothing.
    has_ended: bool,
}

/// Sizes and counts of a file system, in the units of `statvfs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks, without those that held the file system's own structures at mkfs time.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks that unprivileged users may take: all but those reserved for root and those that
    /// the file system keeps for itself.
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
    pub fn geometry(&self) -> &Geometry {
        self.volume.geometry()
    }

    /// The superblock as it was at open.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        self.volume.superblock()
    }

    /// Whether an inode number belongs to the file system itself: true for the reserved numbers
    /// except the root's, and for the journal and the orphan file.
    #[must_use]
    pub fn is_own_inode(&self, number: InodeNr) -> bool {
        self.volume.is_own_inode(number)
    }

    /// Whether changes are refused: on request, because the image requires it, or after a failure.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.volume.is_read_only()
    }

    /// Whether a failure made this instance read-only. Then memory may hold changes that the image
    /// will never get.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.volume.has_failed()
    }

    /// Acts on damage as [`OpenOptions::on_damage`] says. Call this after an operation that
    /// returned [`Error::Corrupt`](crate::Error::Corrupt).
    pub fn note_damage(&self, ctx: &OpContext, found: &Corruption) {
        self.volume.note_damage(ctx, found);
    }

    /// The options that this instance was opened with.
    #[must_use]
    pub fn options(&self) -> &OpenOptions {
        self.volume.options()
    }

    /// The block allocator: its counters, tunables and statistics.
    #[must_use]
    pub fn allocator(&self) -> &Allocator {
        self.volume.space.allocator()
    }

    /// Current sizes and counts. Delayed allocations count as used.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let geometry = self.volume.geometry();
        let totals = self.volume.groups.totals();
        let free = totals.free_clusters.saturating_sub(self.volume.space.delayed_clusters());
        let free = free << geometry.cluster_ratio_bits();
        let kept = self.allocator().free_clusters().reserved << geometry.cluster_ratio_bits();
        let kept = kept + self.superblock().reserved_blocks_count().raw();
        let overhead = self.volume.overhead_blocks();
        Statistics {
            block_size: blockyard_disk::num::u32_from_usize(geometry.block_size()),
            blocks: geometry.blocks_count().raw() - overhead,
            blocks_free: free,
            blocks_available: free.saturating_sub(kept),
            inodes: u64::from(geometry.inodes_count()),
            inodes_free: totals.free_inodes,
            name_max: 255,
        }
    }
}
