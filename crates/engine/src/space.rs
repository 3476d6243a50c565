//! Blocks from the allocator into the journaled bitmaps and back: the one place where the engine meets `alloc`.
//!
//! A claim is taken in core by the allocator, then marked in the on-disk bitmap inside a handle ([`FileSystem::take`]),
//! or handed back ([`FileSystem::hand_back`]). Freed clusters leave the on-disk bitmap at once and the in-core one
//! when the freeing transaction has committed.

mod interim;

pub(crate) use interim::Interim;

use crate::cache::BlockKind;
use crate::txn::Handle;
use crate::{Error, FileSystem, OpContext, Result};
use blockyard_disk::num::u64_from_u32;
use blockyard_disk::{BlockNr, GroupNr, InodeNr};

/// Commits that one request may force to get freed clusters back.
const RETRIES_MAX: u32 = 3;

/// The allocator's state of one inode.
#[derive(Default)]
pub(crate) struct InodeSpace;

/// A request for clusters, as mapping code fills it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) inode: InodeNr,
    pub(crate) group: GroupNr,
    pub(crate) logical: u32,
    pub(crate) clusters: u32,
    pub(crate) goal: BlockNr,
    pub(crate) left: Option<(u32, BlockNr)>,
    pub(crate) right: Option<(u32, BlockNr)>,
    pub(crate) file_size: u64,
    pub(crate) writer_open: bool,
    pub(crate) kind: WantedFor,
    /// The clusters were reserved at write time.
    pub(crate) reserved: bool,
    /// Exactly this length, no preallocation.
    pub(crate) exact: bool,
    /// The goal block itself is worth a try.
    pub(crate) try_goal: bool,
    /// Blocks below 2^32 only.
    pub(crate) indirect: bool,
}

/// What the clusters are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WantedFor {
    /// Data of a regular file.
    Data,
    /// Directory blocks and symbolic links.
    Directory,
    /// Blocks of the mapping, attribute blocks.
    Metadata,
}

/// Clusters taken in core, to be taken or handed back.
#[must_use = "a claim must be taken or handed back"]
#[derive(Debug)]
pub(crate) struct Claim {
    /// First block, at the start of a cluster.
    pub(crate) first: BlockNr,
    /// Clusters.
    pub(crate) clusters: u32,
}

impl FileSystem {
    /// Takes clusters in core. Not inside a handle when the caller wants retries after commits.
    pub(crate) fn claim(&self, _ctx: &OpContext, wanted: &Wanted, _space: &InodeSpace) -> Result<Claim> {
        match self.space.claim(wanted.goal, wanted.clusters, wanted.reserved)? {
            Some((first, clusters)) => Ok(Claim { first, clusters }),
            None => Err(Error::NoSpace),
        }
    }

    /// The last writer has closed a file: what was preallocated for it is given back.
    pub(crate) fn last_writer_closed(&self, _ctx: &OpContext, _inode: &crate::inode::Inode) {}

    /// Marks a claim as used on disk.
    pub(crate) fn take(&self, handle: &Handle<'_>, claim: &Claim) -> Result<()> {
        self.groups.mark_used(handle, claim.first, self.groups.blocks_in(claim.clusters))
    }

    /// Gives a claim back that was not taken.
    pub(crate) fn hand_back(&self, claim: Claim) {
        self.space.free(claim.first, self.groups.blocks_in(claim.clusters), None);
    }

    /// Frees whole clusters: on disk now, for the allocator after the commit.
    pub(crate) fn free_clusters(&self, handle: &Handle<'_>, first: BlockNr, clusters: u32) -> Result<()> {
        let blocks = self.groups.blocks_in(clusters);
        self.groups.mark_free(handle, first, blocks)?;
        self.space.free(first, blocks, Some(handle.tid()));
        Ok(())
    }

    /// One metadata block (the first of a cluster), zeroed and in the transaction.
    pub(crate) fn new_metadata_block(
        &self,
        ctx: &OpContext,
        handle: &Handle<'_>,
        wanted: &Wanted,
        space: &InodeSpace,
        kind: BlockKind,
    ) -> Result<(BlockNr, std::sync::Arc<crate::cache::Buffer>)> {
        let claim = self.claim(ctx, wanted, space)?;
        if let Err(error) = self.take(handle, &claim) {
            self.hand_back(claim);
            return Err(error);
        }
        Ok((claim.first, handle.create(claim.first, kind)))
    }

    /// Frees a metadata block with its cluster: forgotten and revoked.
    pub(crate) fn free_metadata_block(&self, handle: &Handle<'_>, block: BlockNr) -> Result<()> {
        handle.forget(block);
        let ratio = u64_from_u32(self.geometry().cluster_ratio());
        let offset = (block.raw() - self.geometry().first_data_block().raw()) % ratio;
        self.free_clusters(handle, BlockNr::new(block.raw() - offset), 1)
    }

    /// Reserves clusters for data that will be allocated at write-back.
    pub(crate) fn reserve(&self, _ctx: &OpContext, clusters: u64) -> Result<()> {
        if self.space.reserve(clusters) { Ok(()) } else { Err(Error::NoSpace) }
    }

    /// Reserves without asking: for clusters that were just freed under dirty data.
    pub(crate) fn reserve_always(&self, clusters: u64) {
        self.space.reserve_always(clusters);
    }

    /// After [`Error::NoSpace`]: commits when freed clusters wait for that, at most three times. Outside a handle.
    ///
    /// # Errors
    /// [`Error::NoSpace`] when nothing is left to wait for.
    pub(crate) fn retry_after_commit(&self, ctx: &OpContext, tries: &mut u32) -> Result<()> {
        if *tries >= RETRIES_MAX || !self.space.pending() {
            return Err(Error::NoSpace);
        }
        *tries += 1;
        self.commit_point(ctx).map(drop)
    }

    /// Ends reservations: their clusters were allocated, or are not needed.
    pub(crate) fn unreserve(&self, clusters: u64) {
        self.space.unreserve(clusters);
    }
}
