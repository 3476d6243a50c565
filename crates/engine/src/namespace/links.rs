//! Link counts: their maximum, hard links, and the link count of directories.
//!
//! A directory counts its own `.`, its name, and the `..` of each subdirectory. With `dir_nlink`,
//! if the count would exceed 65,000, it becomes 1, which means "unknown", and stays 1.

use super::rules::check_new_name;
use crate::inode::{Inode, InodeCore};
use crate::namespace::Namespace;
use crate::{Error, InodeRef, OpContext, Result};
use blockyard_disk::RoCompat;
use blockyard_disk::inode::{FileType, InodeFlags};
use std::sync::Arc;

/// The most links that an inode may have.
const LINKS_MAX: u16 = 65_000;
/// A directory's link count that means "unknown": the directory has had too many subdirectories.
const LINKS_UNKNOWN: u16 = 1;
/// How many metadata blocks adding a name may change.
const CREDITS: usize = 40;

impl InodeCore {
    /// Fails if the inode's last name was removed, perhaps while the caller waited for the lock.
    pub(crate) fn check_linked(&self) -> Result<()> {
        if self.links() == 0 { Err(Error::NotFound) } else { Ok(()) }
    }

    /// Fails if no name may be added to the directory.
    pub(super) fn check_may_enter(&self) -> Result<()> {
        self.check_linked()?;
        if self.flags().contains(InodeFlags::IMMUTABLE) {
            return Err(Error::NotPermitted);
        }
        self.check_may_hold()
    }

    /// Fails if names cannot be put into the directory: an encrypted directory needs encrypted
    /// names.
    pub(super) fn check_may_hold(&self) -> Result<()> {
        if self.flags().contains(InodeFlags::ENCRYPT) { Err(Error::NotPermitted) } else { Ok(()) }
    }

    /// Fails if the directory passes its project on (chattr(1), `P`) and `child` is in another
    /// project.
    pub(super) fn check_project(&self, child: &Self) -> Result<()> {
        let is_bound = self.flags().contains(InodeFlags::PROJINHERIT);
        if is_bound && self.slot.project() != child.slot.project() { Err(Error::CrossDevice) } else { Ok(()) }
    }

    /// Fails if flags forbid removing the name of `child` from the directory. As in Linux, callers
    /// check flags first, then types, then whether a child that is a directory is empty.
    pub(super) fn check_may_remove(&self, child: &Self) -> Result<()> {
        let fixed = self.flags().union(child.flags());
        if fixed.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
            return Err(Error::NotPermitted);
        }
        Ok(())
    }
}

impl Namespace {
    fn counts_past_the_limit(&self) -> bool {
        self.volume.sb.features().ro_compat.contains(RoCompat::DIR_NLINK)
    }

    /// Checks that a directory may get one more subdirectory.
    pub(super) fn check_dir_links(&self, core: &InodeCore) -> Result<()> {
        if core.links() >= LINKS_MAX && !self.counts_past_the_limit() {
            Err(Error::TooManyLinks)
        } else {
            Ok(())
        }
    }

    /// Counts a new subdirectory.
    pub(super) fn add_dir_link(&self, core: &mut InodeCore) {
        let links = core.links();
        let next = match links {
            LINKS_UNKNOWN => LINKS_UNKNOWN,
            LINKS_MAX.. => LINKS_UNKNOWN,
            _ => links + 1,
        };
        core.slot.raw_mut().i_links_count.set(next);
    }

    /// Fails if `name` may not be added to a directory, or is in it already.
    pub(super) fn check_may_name(&self, parent: &Arc<Inode>, dir: &InodeCore, name: &[u8]) -> Result<()> {
        dir.check_alive(parent.number())?;
        if self.directories.find_name(parent, dir, name)?.is_some() {
            return Err(Error::Exists);
        }
        dir.check_may_enter()
    }

    /// See [`crate::FileSystem::link`].
    pub(crate) fn link(&self, ctx: &OpContext, inode: InodeRef, parent: InodeRef, name: &[u8]) -> Result<()> {
        check_new_name(name)?;
        let inode = self.volume.inodes.inode(inode)?;
        let parent = self.directory(parent)?;
        let _alone = parent.write();
        // Locks out truncation and deletion. A new name removes the orphan record of a file without
        // a name, but a truncation or deletion in progress still needs this record.
        let _content = (inode.kind() != FileType::Directory).then(|| inode.write_child());
        let handle = self.volume.begin(ctx, CREDITS)?;
        let mut dir = parent.core_mut();
        self.check_may_name(&parent, &dir, name)?;
        if inode.kind() == FileType::Directory {
            return Err(Error::NotPermitted);
        }
        let mut core = inode.core_mut_child();
        core.check_alive(inode.number())?;
        if core.flags().intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
            return Err(Error::NotPermitted);
        }
        if !core.nameable {
            core.check_linked()?;
        }
        if core.links() >= LINKS_MAX {
            return Err(Error::TooManyLinks);
        }
        dir.check_project(&core)?;
        self.volume.inodes.join_inode(&handle, &parent, &mut dir)?;
        self.volume.inodes.join_inode(&handle, &inode, &mut core)?;
        self.directories.change_directory(ctx, &handle, &parent, &mut dir, |directory| {
            directory.insert(name, inode.number(), inode.kind())
        })?;
        let links = core.links() + 1;
        core.slot.raw_mut().i_links_count.set(links);
        core.slot.set_changed(ctx.now);
        if core.nameable {
            core.nameable = false;
            self.volume.orphans.remove_orphan(&handle, &mut core);
        }
        dir.slot.set_modified(ctx.now);
        dir.slot.set_changed(ctx.now);
        Ok(())
    }
}

/// Counts a removed subdirectory, unless the count is unknown.
pub(super) fn drop_dir_link(core: &mut InodeCore) {
    let links = core.links();
    if links > 2 {
        core.slot.raw_mut().i_links_count.set(links - 1);
    }
}

/// Counts a removed name. Returns whether it was the last.
pub(super) fn drop_name(core: &mut InodeCore, is_directory: bool) -> bool {
    let links = if is_directory { 0 } else { core.links().saturating_sub(1) };
    core.slot.raw_mut().i_links_count.set(links);
    links == 0
}
