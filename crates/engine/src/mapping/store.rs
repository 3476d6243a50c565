//! The blocks of an inode's extent tree: read through the cache, changed in the transaction,
//! allocated and freed.

use super::removal::Gone;
use crate::cache::{BlockKind, Buffer};
use crate::extents::{TreeStore, check_node};
use crate::inode::Inode;
use crate::mapping::Mapping;
use crate::space::{Wanted, WantedFor};
use crate::txn::Handle;
use crate::{OpContext, Result};
use blockyard_disk::BlockNr;
use blockyard_disk::checksum::verify_extent_block;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// The store of an inode's extent tree. Counts the blocks that the tree gained and lost.
pub(crate) struct ExtentStore<'a> {
    mapping: &'a Mapping,
    inode: &'a Inode,
    seed: Option<u32>,
    /// The context and handle of a change; `None` for lookups.
    change: Option<(&'a OpContext, &'a Handle<'a>)>,
    clusters: Cell<i64>,
    /// Where freed blocks are recorded, for the caller to free; `None` frees them at once.
    gone: Option<&'a RefCell<Vec<Gone>>>,
}

impl<'a> ExtentStore<'a> {
    /// A store for lookups.
    pub(crate) fn reader(mapping: &'a Mapping, inode: &'a Inode, seed: Option<u32>) -> Self {
        Self { mapping, inode, seed, change: None, clusters: Cell::new(0), gone: None }
    }

    /// A store for changes.
    pub(crate) fn writer(
        mapping: &'a Mapping,
        inode: &'a Inode,
        seed: Option<u32>,
        ctx: &'a OpContext,
        handle: &'a Handle<'a>,
    ) -> Self {
        Self { change: Some((ctx, handle)), ..Self::reader(mapping, inode, seed) }
    }

    /// The same store, but blocks that the tree frees are only recorded in `gone`; the caller frees
    /// them.
    pub(crate) fn noting(self, gone: &'a RefCell<Vec<Gone>>) -> Self {
        Self { gone: Some(gone), ..self }
    }

    /// How many blocks, in whole clusters, the tree gained, less those that it lost.
    pub(crate) fn blocks_gained(&self) -> i64 {
        self.clusters.get() << self.mapping.volume.geometry().cluster_ratio_bits()
    }

    fn change(&self) -> (&'a OpContext, &'a Handle<'a>) {
        self.change.expect("trees are changed through `writer` only")
    }
}

impl TreeStore for ExtentStore<'_> {
    type Node = Arc<Buffer>;

    fn load(&self, block: BlockNr, depth: u16) -> Result<Arc<Buffer>> {
        self.mapping.volume.cache.read(block, BlockKind::Extents(self.seed), |bytes| {
            let checked = check_node(bytes, Some(depth), self.mapping.volume.groups.system_zones())
                .and_then(|()| verify_extent_block(self.seed, bytes));
            checked.map_err(|found| found.in_inode(self.inode.number()).in_block(block))?;
            Ok(())
        })
    }

    fn prepare(&self, node: &Arc<Buffer>) -> Result<()> {
        self.change().1.join(node);
        Ok(())
    }

    fn allocate(&self, goal: Option<BlockNr>, exact: bool) -> Result<(BlockNr, Arc<Buffer>)> {
        let (ctx, handle) = self.change();
        let wanted = Wanted {
            goal: goal.unwrap_or_else(|| self.mapping.inode_goal(ctx, self.inode, 0)),
            try_goal: exact,
            pool: handle.pool(),
            clusters: 1,
            ..Wanted::new(self.inode, WantedFor::Metadata)
        };
        let kind = BlockKind::Extents(self.seed);
        let made =
            self.mapping.volume.space.new_metadata_block(ctx, handle, &wanted, &self.inode.space, kind)?;
        self.clusters.set(self.clusters.get() + 1);
        Ok(made)
    }

    fn prepare_free(&self, block: BlockNr) -> Result<()> {
        self.mapping.volume.groups.reserve_bitmaps(self.change().1, block, 1)
    }

    fn free(&self, block: BlockNr) -> Result<()> {
        self.clusters.set(self.clusters.get() - 1);
        if let Some(gone) = self.gone {
            gone.borrow_mut().push(Gone::Node(block));
            return Ok(());
        }
        self.mapping.volume.space.free_metadata_block(self.change().1, block)
    }
}
