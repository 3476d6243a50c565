//! A reference to an open inode. While it lives, the inode is not deleted, even if it loses its
//! last name.

use std::sync::Arc;

use blockyard_engine::InodeId;

use crate::context::Context;
use crate::error::Bare;
use crate::instance::Instance;

/// Whether the reference allows writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// A reference to an open inode.
pub(crate) struct Reference {
    instance: Arc<Instance>,
    context: Context,
    id: InodeId,
    access: Access,
}

impl Reference {
    /// Opens an inode; fails with `StaleInode` if it was deleted.
    pub(crate) fn open(
        instance: &Arc<Instance>,
        context: &Context,
        id: InodeId,
        access: Access,
    ) -> Bare<Self> {
        let ctx = context.now();
        instance.run(&ctx, |engine| engine.open_inode(id, access == Access::Write))?;
        Ok(Self::to_opened(instance, context, id, access))
    }

    /// Wraps an open reference that the engine has counted already.
    pub(crate) fn to_opened(
        instance: &Arc<Instance>,
        context: &Context,
        id: InodeId,
        access: Access,
    ) -> Self {
        Self { instance: Arc::clone(instance), context: context.clone(), id, access }
    }

    pub(crate) const fn instance(&self) -> &Arc<Instance> {
        &self.instance
    }

    pub(crate) const fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) const fn id(&self) -> InodeId {
        self.id
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        let ctx = self.context.now();
        let write = self.access == Access::Write;
        let released = self.instance.run(&ctx, |engine| engine.release_inode(&ctx, self.id, write));
        // `Reason::Closed` is no error: when the instance was closed, all references were released.
        if let Err(error @ crate::Reason::FileSystem(_)) = released {
            tracing::warn!(inode = %self.id.number, %error, "an open file could not be released");
        }
    }
}
