//! Files without a name (`O_TMPFILE`). They are orphans from the start, until
//! [`crate::FileSystem::link`] gives them a name.

use crate::inode::Inode;
use crate::namespace::Namespace;
use crate::volume::NewInode;
use crate::xattr::Inherited;
use crate::{InodeRef, OpContext, Result};
use blockyard_disk::InodeNr;
use blockyard_disk::inode::FileType;
use std::sync::Arc;

/// How many metadata blocks creating an inode without a name may change.
const CREDITS: usize = 16;

impl Namespace {
    /// See [`crate::FileSystem::create_unnamed`].
    pub(crate) fn create_unnamed(
        &self,
        ctx: &OpContext,
        parent: InodeRef,
        permissions: u16,
    ) -> Result<InodeNr> {
        let parent = self.directory(parent)?;
        let _alone = parent.write();
        let new = NewInode { kind: FileType::Regular, permissions, device: None };
        let inherited = self.xattrs.inherit(ctx, &parent, &new)?;
        let made = self.create_unnamed_in(ctx, &parent, &inherited);
        if made.is_err() {
            self.xattrs.abandon_inherited(ctx, &inherited)?;
        }
        made
    }

    /// The part of [`Self::create_unnamed`] in one handle. The caller holds the parent's content
    /// lock.
    fn create_unnamed_in(
        &self,
        ctx: &OpContext,
        parent: &Arc<Inode>,
        inherited: &Inherited,
    ) -> Result<InodeNr> {
        let handle = self.volume.begin(ctx, CREDITS + inherited.credits())?;
        let mut dir = parent.core_mut();
        dir.check_alive(parent.number())?;
        dir.check_may_enter()?;
        self.volume.inodes.join_inode(&handle, parent, &mut dir)?;
        let new = inherited.new_inode();
        let inode = self.volume.new_inode(ctx, &handle, (parent.number(), &mut dir), None, new)?;
        let given =
            self.xattrs.give_inherited(ctx, &handle, (&inode, &mut inode.core_mut_child()), inherited);
        if let Err(error) = given {
            let undone = self.undo_creation(ctx, &handle, &inode);
            self.volume.apply(undone)?;
            return Err(error);
        }
        let mut core = inode.core_mut_child();
        debug_assert_eq!(core.links(), 0, "inode {} is new and has names", inode.number());
        core.nameable = true;
        inode.opens.open(true);
        self.volume.orphans.add_orphan(&handle, &inode, &mut core);
        Ok(inode.number())
    }
}
