//! Deleting inodes once the last link and the last open reference are gone.

use crate::file::FREE_CREDITS;
use crate::inode::Inode;
use crate::instruments::BrokenRule;
use crate::xattr::Xattrs;
use crate::{OpContext, Result};
use std::sync::Arc;

/// Metadata blocks that freeing an inode number touches.
const CREDITS: usize = 12;

impl Xattrs {
    /// Deletes an inode if it has no links and no open references. That frees its blocks,
    /// attributes and number.
    pub(crate) fn delete_if_unused(&self, ctx: &OpContext, inode: &Arc<Inode>) -> Result<()> {
        // Value inodes have no attributes, so the recursion ends.
        let values = self.delete_unused(ctx, inode)?;
        values.iter().try_for_each(|value| self.delete_if_unused(ctx, value))
    }

    /// As [`Self::delete_if_unused`], but value inodes that lose their last reference are not
    /// deleted: they are returned, and the caller must delete them.
    fn delete_unused(&self, ctx: &OpContext, inode: &Arc<Inode>) -> Result<Vec<Arc<Inode>>> {
        // Locked as a child: the caller may hold the content lock of this inode's directory. If
        // this is a value inode, the caller may hold the content lock of its owner.
        let mut data = inode.write_child();
        let _shape = inode.change_shape();
        {
            let core = inode.core();
            if core.deleted || core.links() > 0 || inode.opens.is_open() {
                return Ok(Vec::new());
            }
        }
        let held = self.value_inodes(inode, &inode.core())?;
        if self.volume.breaks(BrokenRule::EarlyOrphanRemoval) {
            let handle = self.volume.begin(ctx, CREDITS)?;
            let mut core = inode.core_mut();
            self.volume.inodes.join_inode(&handle, inode, &mut core)?;
            self.volume.orphans.remove_orphan(&handle, &mut core);
        }
        self.files.locked(ctx, inode, &mut data).drop_content();
        let mut end = u32::MAX;
        // The last blocks are freed in the same handle as the inode, so no crash leaves an inode
        // without blocks: recovery would take a long symbolic link without blocks for a fast one.
        let credits = CREDITS + held.credits();
        let (handle, mut core, _attributes) = loop {
            let handle = self.volume.begin(ctx, credits + FREE_CREDITS)?;
            let mut core = inode.core_mut();
            self.volume.inodes.join_inode(&handle, inode, &mut core)?;
            self.volume
                .groups
                .pin_inode_bitmap(&handle, self.volume.geometry().locate_inode(inode.number()).0)?;
            let attributes = self.reserve_attribute_block(&handle, &core)?;
            end = self.files.free_mapped(ctx, &handle, inode, &mut core, 0..end, credits)?;
            if end == 0 {
                break (handle, core, attributes);
            }
        };
        let unused = self.release_attributes(&handle, inode, &mut core, &held)?;
        self.volume.orphans.remove_orphan(&handle, &mut core);
        debug_assert!(core.orphan.is_none() && core.links() == 0, "inode {} may come back", inode.number());
        core.deleted = true;
        core.set_size(0);
        self.volume.set_deletion_time(ctx, &mut core);
        drop(core);
        self.volume.retire(&handle, inode);
        let freed = self.volume.free_inode_number(&handle, inode);
        self.volume.apply(freed)?;
        Ok(unused)
    }
}
