//! A claim: clusters that are used in core and belong to the caller, until it commits or releases
//! them.
//!
//! A claim pins its group, so that the group is not reloaded from a bitmap that does not show the
//! clusters yet. The caller must commit the claim once the clusters are in the on-disk bitmap and
//! the descriptor, or release it. A claim that is dropped is released, so no error path can leak
//! clusters.

use core::fmt;

use blockyard_disk::{BlockCount, BlockNr, ClusterCount, ClusterOffset, GroupNr};
use blockyard_sync::{Backend, CpuSlot, Native};

use crate::allocator::Allocator;

/// Clusters claimed by [`Allocator::allocate`].
#[must_use = "a claim that is dropped is released: commit it when its clusters are in the bitmap"]
pub struct Claim<'a, B: Backend = Native> {
    allocator: &'a Allocator<B>,
    group: GroupNr,
    start: u32,
    count: u32,
    cpu: CpuSlot,
    first_use: bool,
    open: bool,
}

impl<'a, B: Backend> Claim<'a, B> {
    /// A claim on clusters that are used in core, in a group that is pinned once for it.
    pub(crate) fn new(
        allocator: &'a Allocator<B>,
        group: GroupNr,
        start: u32,
        count: u32,
        cpu: CpuSlot,
        first_use: bool,
    ) -> Self {
        let clusters = allocator.table.geometry.clusters_in_group(group);
        assert!(
            count > 0 && count <= clusters && start <= clusters - count,
            "the claim {group}:{start}+{count} leaves its group of {clusters} clusters"
        );
        Self { allocator, group, start, count, cpu, first_use, open: true }
    }

    /// The group.
    #[must_use]
    pub fn group(&self) -> GroupNr {
        self.group
    }

    /// Bit number of the first cluster in the group's bitmap.
    #[must_use]
    pub fn offset(&self) -> ClusterOffset {
        ClusterOffset::new(self.start)
    }

    /// Number of clusters.
    #[must_use]
    pub fn clusters(&self) -> u32 {
        self.count
    }

    /// Number of clusters, as a typed count.
    #[must_use]
    pub fn cluster_count(&self) -> ClusterCount {
        ClusterCount::new(u64::from(self.count))
    }

    /// The first block.
    #[must_use]
    pub fn first_block(&self) -> BlockNr {
        self.allocator.table.geometry.block_at(self.group, self.offset())
    }

    /// Number of blocks.
    #[must_use]
    pub fn blocks(&self) -> BlockCount {
        self.allocator.table.geometry.blocks_in(self.cluster_count())
    }

    /// Whether the group's bitmap had never been written when the claim was made. If so, the caller
    /// must write the synthesised bitmap with this claim in it, and clear `BLOCK_UNINIT`.
    #[must_use]
    pub fn group_is_block_uninit(&self) -> bool {
        self.first_use
    }

    /// Commits the claim. The clusters must be in the on-disk bitmap and the descriptor.
    pub fn commit(mut self) {
        self.open = false;
        let group = self.allocator.table.group(self.group);
        debug_assert!(group.is_loaded(), "{self:?}: the group of a claim was evicted");
        if self.first_use {
            group.clear_block_uninit();
        }
        group.unpin();
    }

    /// Releases the claim. Its clusters are free again at once.
    pub fn release(self) {
        drop(self);
    }
}

impl<B: Backend> Drop for Claim<'_, B> {
    fn drop(&mut self) {
        if self.open {
            self.allocator.take_back(self.group, self.start, self.count, self.cpu);
        }
    }
}

impl<B: Backend> fmt::Debug for Claim<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Claim({}:{}+{})", self.group, self.start, self.count)
    }
}
