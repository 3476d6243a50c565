//! Chooses blocks for a hole and maps them. With bigalloc, the file may already own the cluster.
//! Otherwise the allocator gets a request with a goal.

use crate::extents::{Extent, Lookup, UNWRITTEN_MAX, WRITTEN_MAX};
use crate::inode::{Inode, InodeCore};
use crate::mapping::Mapping;
use crate::mapping::indirect::{Run, left_in_array};
use crate::pool::Pool;
use crate::requests::FailedClaim;
use crate::space::{Wanted, WantedFor};
use crate::txn::Handle;
use crate::{Error, OpContext, Result};
use blockyard_alloc::Claim;
use blockyard_alloc::goals::{FirstBlock, first_goal};
use blockyard_disk::inode::{FileType, InodeMap};
use blockyard_disk::num::u32_from_u64;
use blockyard_disk::{BlockNr, LogicalBlock};

/// How blocks are requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct How {
    /// Whether the extent reads as zeroes until it is converted.
    pub(crate) unwritten: bool,
    /// Which clusters may be taken when space is short.
    pub(crate) pool: Pool,
    /// Whether to ask for exactly the requested length, without preallocation.
    pub(crate) exact: bool,
}

/// Blocks chosen for a hole; nothing is changed on disk yet. Dropping the plan releases its claims.
#[must_use = "a plan that is dropped is given up"]
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    /// The extent that will be mapped.
    pub(crate) extent: Extent,
    /// The claim for the extent; `None` if the file already owns the cluster.
    claim: Option<Claim<'a>>,
    /// Claims for the missing indirect blocks above the extent, from the top.
    branch: Vec<Claim<'a>>,
    /// Whether the extent stays separate from its neighbours in the tree, because it will be
    /// converted later.
    pub(crate) apart: bool,
}

impl Mapping {
    /// Chooses blocks for the hole at `logical`, at most `len` blocks. `here` is the result of
    /// looking up `logical`.
    pub(crate) fn plan_blocks(
        &self,
        ctx: &OpContext,
        inode: &Inode,
        core: &InodeCore,
        here: &Lookup,
        (logical, len): (u32, u32),
        how: How,
    ) -> Result<Plan<'_>> {
        debug_assert!(here.found.is_none() && len > 0, "blocks for {len} at {logical}: {here:?}");
        let most = if how.unwritten { UNWRITTEN_MAX } else { WRITTEN_MAX };
        let hole = here.right.map_or(u32::MAX - logical, |right| right.logical - logical);
        let mut len = len.min(most).min(hole);
        if core.map == InodeMap::Indirect {
            len = len.min(left_in_array(self.volume.geometry().block_bits(), logical));
        }
        if let Some(extent) = self.implied_cluster(here, logical, len, how.unwritten) {
            return Ok(Plan { extent, claim: None, branch: Vec::new(), apart: false });
        }
        let ratio = self.volume.geometry().cluster_ratio();
        let offset = logical & (ratio - 1);
        // The request must not reach into the cluster in which the next extent begins.
        let len = here.right.map_or(len, |right| len.min((right.logical & !(ratio - 1)) - logical));
        let kind = if inode.kind() == FileType::Regular { WantedFor::Data } else { WantedFor::Directory };
        debug_assert!(len > 0, "no block of the hole at {logical} may be asked for");
        let near = self.goal(ctx, inode, here, logical);
        let branch = match core.map {
            InodeMap::Indirect => self.plan_branch(ctx, inode, core, (logical, near), how.pool)?,
            _ => Vec::new(),
        };
        let goal = branch.last().map_or(near, Claim::first_block);
        let wanted = Wanted {
            logical: logical - offset,
            clusters: u32_from_u64((u64::from(offset) + u64::from(len)).div_ceil(u64::from(ratio))),
            goal: BlockNr::new(goal.raw().wrapping_sub(u64::from(offset))),
            left: here.left.map(|e| (e.end() - 1, BlockNr::new(e.physical + u64::from(e.len) - 1))),
            right: here
                .right
                .filter(|_| core.map == InodeMap::Extents)
                .map(|e| (e.logical, BlockNr::new(e.physical))),
            // Without delayed allocation, blocks are chosen before the write raises the size. So
            // the allocator is told the old size.
            file_size: if self.volume.delays_allocation() { core.size } else { core.slot.raw().size() },
            pool: how.pool,
            exact: how.exact,
            indirect: core.map == InodeMap::Indirect,
            ..Wanted::new(inode, kind)
        };
        let claim = self.volume.space.claim(ctx, &wanted, &inode.space)?;
        debug_assert!(claim.blocks().raw() > u64::from(offset), "a claim that does not reach the block");
        let got = claim.blocks().raw() - u64::from(offset);
        let extent = Extent {
            logical,
            len: u32_from_u64(got.min(u64::from(len))),
            physical: claim.first_block().raw() + u64::from(offset),
            unwritten: how.unwritten,
        };
        Ok(Plan { extent, claim: Some(claim), branch, apart: false })
    }

    /// Claims the missing indirect blocks above a block. They are claimed before the data block, so
    /// that in a file written sequentially each indirect block precedes the data that it maps. Each
    /// claimed block is the goal of the next.
    fn plan_branch(
        &self,
        ctx: &OpContext,
        inode: &Inode,
        core: &InodeCore,
        (logical, mut goal): (u32, BlockNr),
        pool: Pool,
    ) -> Result<Vec<Claim<'_>>> {
        let mut branch = Vec::new();
        let levels = self.missing_indirect(core, logical)?;
        let (pool, logical) = self.volume.rules.of_branch((pool, logical));
        for _ in 0..levels {
            let wanted =
                Wanted { logical, goal, indirect: true, pool, ..Wanted::new(inode, WantedFor::Metadata) };
            let claim = self.volume.space.claim(ctx, &wanted, &inode.space)?;
            goal = claim.first_block();
            branch.push(claim);
        }
        Ok(branch)
    }

    /// The blocks at `logical`, at most `len`, if the file already owns their cluster, because a
    /// neighbouring extent has blocks in the same logical cluster (docs/behaviour/bigalloc.md).
    fn implied_cluster(&self, here: &Lookup, logical: u32, len: u32, unwritten: bool) -> Option<Extent> {
        let ratio = self.volume.geometry().cluster_ratio();
        if ratio == 1 {
            return None;
        }
        let cluster = logical & !(ratio - 1);
        let left = here.left.filter(|e| (e.end() - 1) & !(ratio - 1) == cluster);
        let right = here.right.filter(|e| e.logical & !(ratio - 1) == cluster);
        let beside = match (left, right) {
            (Some(e), _) => e.physical + u64::from(e.len) - 1,
            (None, Some(e)) => e.physical,
            (None, None) => return None,
        };
        // A block has the same offset in its cluster as its logical block has in the logical
        // cluster. A damaged neighbour may break this rule, but the new block must stay in the
        // cluster.
        let physical = self.volume.cluster_start(beside) + u64::from(logical - cluster);
        let len = len.min(ratio - (logical - cluster));
        Some(Extent { logical, len, physical, unwritten })
    }

    /// The goal of a request for `logical` (docs/behaviour/block-allocation.md, "Requests").
    fn goal(&self, ctx: &OpContext, inode: &Inode, here: &Lookup, logical: u32) -> BlockNr {
        match (here.left.or(here.first_in_leaf), here.leaf) {
            (Some(e), _) if logical >= e.logical => BlockNr::new(e.physical + u64::from(logical - e.logical)),
            (Some(e), _) => BlockNr::new(e.physical.wrapping_sub(u64::from(e.logical - logical))),
            (None, Some(leaf)) => leaf,
            (None, None) => self.inode_goal(ctx, inode, logical),
        }
    }

    /// The goal of a block if the inode has no blocks near it.
    pub(crate) fn inode_goal(&self, ctx: &OpContext, inode: &Inode, logical: u32) -> BlockNr {
        let block = FirstBlock {
            group: inode.group(),
            regular: inode.kind() == FileType::Regular,
            colour: ctx.colour,
            delayed: self.volume.delays_allocation(),
            logical: LogicalBlock::new(logical),
        };
        first_goal(&self.volume.options().policy, self.volume.geometry(), &block)
    }

    /// Takes the planned blocks and maps them. If they cannot be mapped, the claim is released. But
    /// if there was no space for the mapping's own blocks, and the rule is [`FailedClaim::Freed`],
    /// the claimed blocks are taken and freed.
    pub(crate) fn apply_plan(
        &self,
        ctx: &OpContext,
        handle: &Handle<'_>,
        inode: &Inode,
        core: &mut InodeCore,
        plan: Plan<'_>,
    ) -> Result<()> {
        if let Some(claim) = &plan.claim {
            self.volume.groups.reserve_bitmaps(handle, claim.first_block(), 1)?;
        }
        let inserted = if plan.apart && core.map == InodeMap::Extents {
            inode.note_remapped(handle);
            self.edit_tree(ctx, handle, inode, core, |tree| tree.insert_separately(plan.extent))
        } else if core.map == InodeMap::Indirect {
            inode.note_remapped(handle);
            self.insert_indirect(ctx, handle, inode, core, Run { extent: plan.extent, branch: plan.branch })
        } else {
            self.insert_mapping(ctx, handle, inode, core, plan.extent)
        };
        if let (Err(Error::NoSpace), FailedClaim::Freed) = (&inserted, self.volume.rules.failed_claim) {
            self.free_claim(ctx, handle, inode, plan.claim)?;
            return inserted;
        }
        inserted?;
        if let Some(claim) = plan.claim {
            let blocks = claim.blocks().raw();
            debug_assert!(blocks >= u64::from(plan.extent.len), "more is mapped than was taken");
            self.volume.apply(self.volume.space.take(handle, claim))?;
            core.add_blocks(blocks.cast_signed(), self.volume.geometry().block_bits());
        }
        Ok(())
    }

    /// Takes and frees, in the transaction, the blocks of a claim that could not be mapped.
    /// Discards the inode's preallocations first.
    fn free_claim(
        &self,
        ctx: &OpContext,
        handle: &Handle<'_>,
        inode: &Inode,
        claim: Option<Claim<'_>>,
    ) -> Result<()> {
        let Some(claim) = claim else { return Ok(()) };
        self.volume.space.discard_preallocations(ctx, inode);
        let (first, clusters) = (claim.first_block(), claim.clusters());
        self.volume.apply(self.volume.space.take(handle, claim))?;
        self.volume.apply(self.volume.space.free_clusters(
            handle,
            first,
            clusters,
            inode.kind() == FileType::Regular,
        ))
    }

    /// Whether any block of a logical cluster is mapped.
    pub(crate) fn cluster_is_mapped(&self, inode: &Inode, core: &InodeCore, cluster: u32) -> Result<bool> {
        let bits = self.volume.geometry().cluster_ratio_bits();
        let first = cluster << bits;
        let here = self.lookup_block(inode, core, first)?;
        let next = here.right.is_some_and(|right| right.logical >> bits == cluster);
        Ok(here.found.is_some() || next)
    }
}
