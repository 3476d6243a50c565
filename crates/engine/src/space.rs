//! Passes requests for blocks and inode numbers to the allocators, marks claimed blocks in the
//! journaled bitmaps, and frees blocks. [`Space`] owns both allocators.
//!
//! The allocator makes a claim in core. Then the claim is marked in the on-disk bitmap inside a
//! handle ([`Space::take`]), or released by dropping it. Freed clusters become free in the on-disk
//! bitmap at once, and in core when the freeing transaction has committed. If `frees_data_at_once`
//! is set, data becomes free in core at once too.

mod sources;

use crate::cache::{BlockKind, Buffer};
use crate::groups::Groups;
use crate::inode::Inode;
use crate::instruments::BrokenRule;
use crate::pool::Pool;
use crate::txn::Handle;
use crate::{Error, OpContext, Refusal, Result};
use blockyard_alloc::inode::{InodeAllocator, InodeClaim, InodeDirAlloc, InodeRequest};
use blockyard_alloc::{
    AllocError, Allocator, BlockRequest, Claim, FreeContext, FreedExtent, InodeAlloc, Mapping, Neighbour,
    RequestFlags,
};
use blockyard_disk::num::u64_from_u32;
use blockyard_disk::{BlockNr, GroupNr, InodeNr, LogicalBlock, TxnId};
use blockyard_sync::{AtomicU64, CpuSlot, Ordering};
use std::sync::Arc;

/// The allocators of an open file system.
pub(crate) struct Space {
    blocks: Arc<Allocator>,
    pub(crate) inodes: InodeAllocator,
    groups: Arc<Groups>,
    /// Whether freed data clusters can be allocated again at once. Freed metadata clusters wait for
    /// the commit, because a commit in progress may still write them.
    frees_data_at_once: bool,
    broken_rule: Option<BrokenRule>,
    /// The committed transaction whose freed clusters are still held back; [`NONE_HELD`] for none.
    /// Accessed relaxed, because only the thread that has the turn to commit uses it.
    held: AtomicU64,
}

/// Stands for "no transaction" in `Space::held`.
const NONE_HELD: u64 = u64::MAX;

/// A request for clusters, in the terms of the engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) inode: InodeNr,
    pub(crate) group: GroupNr,
    /// First logical block, at the start of a cluster.
    pub(crate) logical: u32,
    pub(crate) clusters: u32,
    pub(crate) goal: BlockNr,
    /// The last block of the nearest extent to the left, logical and physical.
    pub(crate) left: Option<(u32, BlockNr)>,
    /// The first block of the nearest extent to the right.
    pub(crate) right: Option<(u32, BlockNr)>,
    pub(crate) file_size: u64,
    pub(crate) writer_open: bool,
    pub(crate) kind: WantedFor,
    pub(crate) pool: Pool,
    /// Whether to take no more than `clusters`, without preallocation.
    pub(crate) exact: bool,
    /// Whether to try the goal block itself.
    pub(crate) try_goal: bool,
    /// Whether the blocks are for a file with a block map, so must lie below 2^32.
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

impl Wanted {
    /// A request for one cluster without neighbours.
    pub(crate) fn new(inode: &Inode, kind: WantedFor) -> Self {
        Self {
            inode: inode.number(),
            group: inode.group(),
            logical: 0,
            clusters: 1,
            goal: BlockNr::ZERO,
            left: None,
            right: None,
            file_size: 0,
            writer_open: inode.opens.has_writer(),
            kind,
            pool: Pool::Ordinary,
            exact: false,
            try_goal: false,
            indirect: false,
        }
    }

    fn request(&self, ctx: &OpContext) -> BlockRequest {
        debug_assert!(self.clusters > 0, "a request for nothing at {}", self.logical);
        let mut flags = match self.kind {
            WantedFor::Data => RequestFlags::DATA,
            WantedFor::Directory => RequestFlags::DIRECTORY,
            WantedFor::Metadata => RequestFlags::METADATA,
        };
        flags.set(RequestFlags::DELALLOC_RESERVED, matches!(self.pool, Pool::Reserved | Pool::Delayed));
        flags.set(RequestFlags::USE_RESERVED, self.pool.has_reserve());
        flags.set(RequestFlags::NO_NORMALIZE, self.exact && self.kind == WantedFor::Data);
        flags.set(RequestFlags::TRY_GOAL, self.try_goal);
        flags.set(RequestFlags::USE_ROOT, ctx.privileged);
        let neighbour = |(logical, physical)| Neighbour { logical: LogicalBlock::new(logical), physical };
        BlockRequest {
            inode: self.inode,
            inode_group: self.group,
            mapping: if self.indirect { Mapping::Indirect } else { Mapping::Extents },
            logical: LogicalBlock::new(self.logical),
            clusters: self.clusters,
            goal: self.goal,
            left: self.left.map(neighbour),
            right: self.right.map(neighbour),
            file_size: self.file_size,
            writer_open: self.writer_open,
            cpu: ctx.cpu,
            colour: ctx.colour,
            flags,
        }
    }
}

impl Space {
    /// How many clusters are reserved by delayed allocation.
    pub(crate) fn delayed_clusters(&self) -> u64 {
        self.blocks.free_clusters().delayed
    }

    /// Releases the clusters that the committed transaction `txn` freed, and those that were held
    /// back after an earlier one, so that they can be allocated.
    pub(crate) fn committed(&self, txn: TxnId, slot: CpuSlot) {
        self.release_held(slot);
        self.blocks.commit(txn, slot);
    }

    /// Notes that transaction `txn` is committed, but holds back the clusters that it freed until
    /// [`Self::release_held`] or the next commit. Releases those that were held back before.
    pub(crate) fn hold(&self, txn: TxnId, slot: CpuSlot) {
        self.release_held(slot);
        self.held.store(u64_from_u32(txn.raw()), Ordering::Relaxed);
    }

    /// Releases the freed clusters that are held back.
    pub(crate) fn release_held(&self, slot: CpuSlot) {
        if let Ok(txn) = u32::try_from(self.held.swap(NONE_HELD, Ordering::Relaxed)) {
            self.blocks.commit(TxnId::new(txn), slot);
        }
    }

    /// The block allocator, for statistics and tunables.
    pub(crate) fn allocator(&self) -> &Allocator {
        &self.blocks
    }

    /// Claims clusters in core.
    pub(crate) fn claim(&self, ctx: &OpContext, wanted: &Wanted, space: &InodeAlloc) -> Result<Claim<'_>> {
        Ok(self.blocks.allocate(&wanted.request(ctx), space)?)
    }

    /// Gives back a file's preallocations after its last writer has closed it, unless the file has
    /// data that waits for its blocks.
    pub(crate) fn last_writer_closed(&self, ctx: &OpContext, inode: &Inode) {
        let data = inode.write();
        if data.reserved_len() == 0 {
            self.discard_preallocations(ctx, inode);
        }
    }

    /// Gives back a file's preallocations. The caller holds the content lock.
    pub(crate) fn discard_preallocations(&self, ctx: &OpContext, inode: &Inode) {
        self.blocks.discard_inode_preallocations(&inode.space, ctx.cpu);
    }

    /// Marks the clusters of a claim as used in the on-disk bitmap.
    pub(crate) fn take(&self, handle: &Handle<'_>, claim: Claim<'_>) -> Result<()> {
        self.groups.mark_used(handle, claim.first_block(), claim.blocks().raw())?;
        claim.commit();
        Ok(())
    }

    /// Frees whole clusters: on disk now, and in core after the commit. If `frees_data_at_once` is
    /// set, data clusters become free in core at once.
    pub(crate) fn free_clusters(
        &self,
        handle: &Handle<'_>,
        first: BlockNr,
        clusters: u32,
        is_data: bool,
    ) -> Result<()> {
        debug_assert!(clusters > 0, "nothing at {first} is freed");
        let blocks = self.groups.blocks_in(clusters);
        let context = FreeContext { cpu: handle.slot(), ..FreeContext::default() };
        let at_once = is_data && self.frees_data_at_once;
        if at_once || self.broken_rule == Some(BrokenRule::EarlyRelease) {
            let mut at = first;
            let clear = |extent: FreedExtent| {
                let part = self.groups.blocks_in(extent.count);
                let cleared = self.groups.mark_free(handle, at, part);
                at = BlockNr::new(at.raw() + part);
                cleared
            };
            return self.blocks.free_with(first, blocks, context, clear).map(drop);
        }
        // In core first: if the allocator has to load the group, it must see the clusters as used.
        let context = FreeContext { txn: Some(handle.tid()), ..context };
        self.blocks.free(first, blocks, context)?;
        self.groups.mark_free(handle, first, blocks)
    }

    /// Allocates a metadata block (the first of a cluster), zeroed and joined to the transaction.
    pub(crate) fn new_metadata_block(
        &self,
        ctx: &OpContext,
        handle: &Handle<'_>,
        wanted: &Wanted,
        space: &InodeAlloc,
        kind: BlockKind,
    ) -> Result<(BlockNr, Arc<Buffer>)> {
        let claim = self.claim(ctx, wanted, space)?;
        self.metadata_block_of(handle, claim, kind)
    }

    /// Turns a claim on one metadata block into that block, zeroed and joined to the transaction.
    pub(crate) fn metadata_block_of(
        &self,
        handle: &Handle<'_>,
        claim: Claim<'_>,
        kind: BlockKind,
    ) -> Result<(BlockNr, Arc<Buffer>)> {
        let first = claim.first_block();
        self.take(handle, claim)?;
        Ok((first, handle.create(first, kind)))
    }

    /// Forgets and revokes a metadata block, and frees its cluster.
    pub(crate) fn free_metadata_block(&self, handle: &Handle<'_>, block: BlockNr) -> Result<()> {
        handle.forget(block);
        let ratio = u64_from_u32(self.groups.geometry().cluster_ratio());
        let offset = (block.raw() - self.groups.geometry().first_data_block().raw()) % ratio;
        self.free_clusters(handle, BlockNr::new(block.raw() - offset), 1, false)
    }

    /// Reserves clusters for data that will be allocated at write-back.
    pub(crate) fn reserve(&self, ctx: &OpContext, clusters: u64, pool: Pool) -> Result<()> {
        if clusters == 0 {
            return Ok(());
        }
        let mut flags = privileges(ctx);
        flags.set(RequestFlags::USE_RESERVED, pool.has_reserve());
        Ok(self.blocks.reserve_delayed(clusters, flags, ctx.cpu)?)
    }

    /// Ends reservations: the clusters were allocated, or are not needed.
    pub(crate) fn unreserve(&self, ctx: &OpContext, clusters: u64) {
        if clusters == 0 {
            return;
        }
        self.blocks.release_delayed(clusters, ctx.cpu);
    }

    /// Claims an inode number for a child of a directory.
    pub(crate) fn claim_inode(
        &self,
        request: &InodeRequest,
        parent: &mut InodeDirAlloc,
    ) -> Result<InodeClaim<'_>> {
        Ok(self.inodes.allocate(request, parent)?)
    }
}

impl From<AllocError> for Error {
    fn from(error: AllocError) -> Self {
        match error {
            AllocError::NoSpace(_) => Self::NoSpace,
            AllocError::Load { group, source } => match source.downcast::<Self>() {
                Ok(cause) => *cause,
                Err(other) => Self::Refused(Refusal::Bitmap { group, why: other.to_string() }),
            },
            AllocError::Corrupt(found) => Self::Corrupt(found),
            AllocError::BadRequest(what) => Self::Invalid(what),
            AllocError::BadTunable { name, .. } => Self::Invalid(name),
            AllocError::BadConfig(what) => Self::Refused(Refusal::AllocatorConfiguration(what)),
        }
    }
}

/// The request flags for the reserves that the caller may use.
pub(crate) fn privileges(ctx: &OpContext) -> RequestFlags {
    if ctx.privileged { RequestFlags::USE_ROOT } else { RequestFlags::empty() }
}

impl From<blockyard_alloc::inode::InodeError> for Error {
    fn from(error: blockyard_alloc::inode::InodeError) -> Self {
        use blockyard_alloc::inode::InodeError;
        match error {
            InodeError::NoInodes => Self::NoInodes,
            InodeError::Load { group, source } => match source.downcast::<Self>() {
                Ok(cause) => *cause,
                Err(other) => Self::Refused(Refusal::Bitmap { group, why: other.to_string() }),
            },
            InodeError::Corrupt(found) => Self::Corrupt(found),
            InodeError::BadConfig(what) => Self::Refused(Refusal::AllocatorConfiguration(what)),
        }
    }
}
