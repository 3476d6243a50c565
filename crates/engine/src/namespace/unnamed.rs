//! Files without a name (`O_TMPFILE`): orphans from the start, until [`FileSystem::link`] gives them a name.

use crate::namespace::Namespace;
use crate::volume::NewInode;
use crate::{OpContext, Result};
use blockyard_disk::InodeNr;
use blockyard_disk::inode::FileType;
use blockyard_sync::Ordering;

/// Metadata blocks that making an inode may change.
const CREDITS: usize = 16;

impl Namespace {
    /// See [`crate::FileSystem::create_unnamed`].
    pub(crate) fn create_unnamed(
        &self,
        ctx: &OpContext,
        parent: InodeNr,
        permissions: u16,
    ) -> Result<InodeNr> {
        let parent = self.directory(parent)?;
        let _alone = parent.write();
        let handle = self.volume.begin(ctx, CREDITS)?;
        let mut dir = parent.core_mut();
        dir.check_alive(parent.number())?;
        dir.check_may_enter()?;
        let new = NewInode { kind: FileType::Regular, permissions, device: None };
        self.volume.inodes.join_inode(&handle, &parent, &mut dir)?;
        let inode = self.volume.new_inode(ctx, &handle, (parent.number(), &mut dir), None, &new)?;
        let mut core = inode.core_mut_child();
        debug_assert_eq!(core.links(), 0, "inode {} is new and has names", inode.number());
        core.nameable = true;
        inode.opens.store(1, Ordering::Release);
        inode.writers.store(1, Ordering::Release);
        self.volume.orphans.add_orphan(&handle, &inode, &mut core);
        Ok(inode.number())
    }
}
