//! Unmaking inodes: when the last link and the last open reference are gone.

use crate::file::FREE_CREDITS;
use crate::fs::BrokenRule;
use crate::inode::{Inode, InodeCore};
use crate::txn::Handle;
use crate::{FileSystem, OpContext, Result};
use blockyard_disk::inode::FileType;
use blockyard_disk::num::low32;
use blockyard_sync::Ordering;
use std::sync::Arc;

/// Metadata blocks that freeing an inode number touches.
const CREDITS: usize = 12;

impl FileSystem {
    /// Deletes an inode that has no links and no open references: blocks, attributes, number.
    pub(crate) fn delete_if_unused(&self, ctx: &OpContext, inode: &Arc<Inode>) -> Result<()> {
        // Values have no attributes, so this ends.
        let values = self.delete_unused(ctx, inode)?;
        values.iter().try_for_each(|value| self.delete_if_unused(ctx, value))
    }

    /// As [`Self::delete_if_unused`], but for the attribute values in inodes that it leaves without a reference.
    fn delete_unused(&self, ctx: &OpContext, inode: &Arc<Inode>) -> Result<Vec<Arc<Inode>>> {
        let mut data = inode.write();
        {
            let core = inode.core();
            if core.deleted || core.links() > 0 || inode.opens.load(Ordering::Acquire) > 0 {
                return Ok(Vec::new());
            }
        }
        let held = self.value_inodes(inode, &inode.core())?;
        if self.breaks(BrokenRule::EarlyOrphanRemoval) {
            let handle = self.begin(ctx, CREDITS)?;
            let mut core = inode.core_mut();
            self.join_inode(&handle, inode, &mut core)?;
            self.remove_orphan(&handle, &mut core);
        }
        self.drop_content(ctx, inode, &mut data);
        let mut end = u32::MAX;
        // The last blocks go with the inode, so that no crash leaves one that owns nothing: a long symbolic link would
        // be taken for a short one.
        let credits = CREDITS + held.credits();
        let (handle, mut core, _attributes) = loop {
            let handle = self.begin(ctx, credits + FREE_CREDITS)?;
            let mut core = inode.core_mut();
            self.join_inode(&handle, inode, &mut core)?;
            self.groups.pin_inode_bitmap(&handle, inode.group_on_disk(self))?;
            let attributes = self.reserve_attribute_block(&handle, &core)?;
            end = self.free_mapped(ctx, &handle, inode, &mut core, 0..end, credits)?;
            if end == 0 {
                break (handle, core, attributes);
            }
        };
        let unused = self.release_attributes(&handle, inode, &mut core, &held)?;
        self.remove_orphan(&handle, &mut core);
        core.deleted = true;
        core.set_size(0);
        self.set_deletion_time(ctx, &mut core);
        drop(core);
        self.retire(&handle, inode);
        let freed = self.free_inode_number(&handle, inode);
        self.apply(freed)?;
        Ok(unused)
    }

    /// The deletion time, of which the format keeps 32 bits. It doubles as the orphan list's link: one that could be an
    /// inode number is taken for a link that was left behind, so it is raised above them.
    pub(crate) fn set_deletion_time(&self, ctx: &OpContext, core: &mut InodeCore) {
        let seconds = low32(ctx.now.seconds.cast_unsigned());
        core.slot.raw_mut().i_dtime.set(seconds.max(self.geometry().inodes_count().saturating_add(1)));
    }

    /// Takes a deleted inode out of memory, before its number is given to somebody else: what is left to write is
    /// encoded now, so that it can not overwrite the next user of the number.
    pub(crate) fn retire(&self, handle: &Handle<'_>, inode: &Inode) {
        inode.encode(handle.epoch(), &self.encoding());
        self.inodes.remove(inode.number());
        if inode.kind() == FileType::Directory {
            self.names.remove(inode.number());
            inode.large().inspect(|large| large.forget());
        }
    }
}

impl Inode {
    /// The group of the inode's number.
    fn group_on_disk(&self, fs: &FileSystem) -> blockyard_disk::GroupNr {
        fs.geometry().locate_inode(self.number()).0
    }
}
