//! The operations on names. Each takes the locks, checks the rules, and combines the parts of the
//! engine.
//!
//! Locks: the content lock of a directory, exclusive for changes, is taken before the locks of the
//! inodes in it. Two directories are locked in ascending order of number.

use super::links::drop_dir_link;
use super::rules::{check_name, check_new_name};
use crate::directories::DirEntry;
use crate::inode::Inode;
use crate::namespace::Namespace;
use crate::volume::NewInode;
use crate::xattr::Inherited;
use crate::{Error, Found, InodeId, InodeRef, OpContext, Result};
use blockyard_disk::inode::FileType;
use blockyard_disk::{Corruption, CorruptionKind, InodeNr};
use blockyard_sync::Ordering;
use std::sync::Arc;

/// What to create.
#[derive(Clone, Copy)]
pub(super) struct New<'a> {
    pub(super) inode: &'a NewInode,
    /// The target of a symbolic link; `None` for other types.
    pub(super) target: Option<&'a [u8]>,
    /// The open reference that the new inode begins with, if any.
    pub(super) open: Option<Open>,
}

/// An open reference.
#[derive(Clone, Copy)]
pub(super) struct Open {
    pub(super) write: bool,
}

/// How many metadata blocks creating or removing a name may change.
const CREDITS: usize = 40;

impl Namespace {
    /// See [`crate::FileSystem::lookup`].
    pub(crate) fn lookup(&self, parent: InodeRef, name: &[u8]) -> Result<InodeNr> {
        check_name(name)?;
        let parent = self.directory(parent)?;
        let _shared = parent.read();
        self.number_of(&parent, name)
    }

    /// The inode number of a name. The caller holds the directory's content lock.
    fn number_of(&self, parent: &Arc<Inode>, name: &[u8]) -> Result<InodeNr> {
        match name {
            b"." => return Ok(parent.number()),
            b".." => {
                return self.directories.in_directory(parent, &parent.core(), |directory| directory.parent());
            }
            _ => {}
        }
        // A cached answer saves taking the directory's core lock.
        if let Some(known) = parent.dentry(name).answer() {
            debug_assert!(
                self.directories.is_in_blocks(parent, &parent.core(), name, known),
                "the dentry cache and the blocks disagree"
            );
            return known.ok_or(Error::NotFound);
        }
        self.directories.find_name(parent, &parent.core(), name)?.ok_or(Error::NotFound)
    }

    /// See [`crate::FileSystem::find`].
    pub(crate) fn find(&self, parent: InodeRef, name: &[u8]) -> Result<Found> {
        check_name(name)?;
        let parent = self.directory(parent)?;
        let _shared = parent.read();
        let number = self.number_of(&parent, name)?;
        let inode = match name {
            b"." | b".." => self.volume.inodes.inode(number)?,
            _ => self.named(&parent, number)?,
        };
        Ok(Found { inode: inode.id(), kind: inode.kind() })
    }

    /// The inode of a name other than `.` and `..`. The caller holds the directory's content lock,
    /// so neither the name nor the inode can go away.
    ///
    /// # Errors
    /// Errors of reading the inode, and corruption in three cases:
    /// * The inode is not in use. Linux returns EUCLEAN as well.
    /// * The inode is the directory itself. Locking it would deadlock, because the caller holds its
    ///   lock.
    /// * The file system keeps the inode for itself, as it does the journal. Operations on the name
    ///   could destroy its content.
    pub(super) fn named(&self, parent: &Inode, number: InodeNr) -> Result<Arc<Inode>> {
        if self.volume.is_own_inode(number) || number == parent.number() {
            return Err(Corruption::new(CorruptionKind::NameInode).in_inode(number).into());
        }
        self.volume.inodes.inode(number).map_err(|error| match error {
            Error::StaleInode(_) => {
                Error::Corrupt(Corruption::new(CorruptionKind::InodeUnused).in_inode(number))
            }
            other => other,
        })
    }

    /// See [`crate::FileSystem::read_dir`].
    pub(crate) fn read_dir(
        &self,
        dir: InodeRef,
        from: u64,
        mut visit: impl FnMut(DirEntry) -> bool,
    ) -> Result<()> {
        let dir = self.directory(dir)?;
        let _shared = dir.read();
        let core = dir.core();
        self.directories.each_entry(&dir, &core, from, &mut visit)
    }

    /// See [`crate::FileSystem::create`].
    pub(crate) fn create(
        &self,
        ctx: &OpContext,
        parent: InodeRef,
        name: &[u8],
        new: &NewInode,
    ) -> Result<InodeNr> {
        if new.kind == FileType::Symlink {
            return Err(Error::Invalid("a symbolic link needs a target"));
        }
        Ok(self.create_with(ctx, parent, name, New { inode: new, target: None, open: None })?.number)
    }

    /// See [`crate::FileSystem::create_open`].
    pub(crate) fn create_open(
        &self,
        ctx: &OpContext,
        parent: InodeRef,
        name: &[u8],
        new: &NewInode,
    ) -> Result<InodeId> {
        if new.kind == FileType::Symlink {
            return Err(Error::Invalid("a symbolic link needs a target"));
        }
        let write = new.kind == FileType::Regular;
        self.create_with(ctx, parent, name, New { inode: new, target: None, open: Some(Open { write }) })
    }

    /// As [`Self::create`], but also makes symbolic links, and opens the inode if asked.
    pub(super) fn create_with(
        &self,
        ctx: &OpContext,
        parent: InodeRef,
        name: &[u8],
        new: New<'_>,
    ) -> Result<InodeId> {
        check_new_name(name)?;
        let parent = self.directory(parent)?;
        let _alone = parent.write();
        let inherited = self.xattrs.inherit(ctx, &parent, new.inode)?;
        match self.create_in(ctx, &parent, name, &inherited, new.target) {
            Ok(inode) => {
                // Nobody can remove the name while this thread holds the directory's content lock.
                if let Some(Open { write }) = new.open {
                    inode.opens.open(write);
                }
                Ok(inode.id())
            }
            Err(error) => {
                self.xattrs.abandon_inherited(ctx, &inherited)?;
                Err(error)
            }
        }
    }

    /// The part of [`Self::create_with`] in one handle. The caller holds the parent's content lock.
    fn create_in(
        &self,
        ctx: &OpContext,
        parent: &Arc<Inode>,
        name: &[u8],
        inherited: &Inherited,
        target: Option<&[u8]>,
    ) -> Result<Arc<Inode>> {
        let new = inherited.new_inode();
        let handle = self.volume.begin(ctx, CREDITS + inherited.credits())?;
        self.volume.inodes.encode_waiting(&handle);
        let mut dir = parent.core_mut();
        self.check_may_name(parent, &dir, name)?;
        let directory = new.kind == FileType::Directory;
        if directory {
            self.check_dir_links(&dir)?;
        }
        self.volume.inodes.join_inode(&handle, parent, &mut dir)?;
        let inode = self.volume.new_inode(ctx, &handle, (parent.number(), &mut dir), Some(name), new)?;
        let made = self.fill_and_enter(ctx, &handle, (parent, &mut dir), (&inode, inherited), (name, target));
        if let Err(error) = made {
            let undone = self.undo_creation(ctx, &handle, &inode);
            self.volume.apply(undone)?;
            return Err(error);
        }
        if directory {
            self.add_dir_link(&mut dir);
        }
        dir.slot.set_modified(ctx.now);
        dir.slot.set_changed(ctx.now);
        Ok(inode)
    }

    fn fill_and_enter(
        &self,
        ctx: &OpContext,
        handle: &crate::txn::Handle<'_>,
        (parent, dir): (&Arc<Inode>, &mut crate::inode::InodeCore),
        (inode, inherited): (&Arc<Inode>, &Inherited),
        (name, target): (&[u8], Option<&[u8]>),
    ) -> Result<()> {
        let directory = inode.kind() == FileType::Directory;
        let mut core = inode.core_mut_child();
        self.xattrs.give_inherited(ctx, handle, (inode, &mut core), inherited)?;
        if directory {
            self.directories.format_directory(ctx, handle, inode, &mut core, parent.number())?;
        }
        if let Some(target) = target {
            self.store_target(ctx, handle, inode, &mut core, target)?;
        }
        self.directories.change_directory(ctx, handle, parent, dir, |directory| {
            directory.insert(name, inode.number(), inode.kind())
        })?;
        debug_assert_eq!(core.links(), 0, "inode {} is new and has names", inode.number());
        core.slot.raw_mut().i_links_count.set(if directory { 2 } else { 1 });
        Ok(())
    }

    pub(super) fn undo_creation(
        &self,
        ctx: &OpContext,
        handle: &crate::txn::Handle<'_>,
        inode: &Arc<Inode>,
    ) -> Result<()> {
        {
            let mut core = inode.core_mut_child();
            self.mapping.remove_and_free(ctx, handle, inode, &mut core, 0..u32::MAX)?;
            self.xattrs.take_back(handle, inode, &mut core)?;
        }
        self.volume.unmake_inode(ctx, handle, inode)
    }

    /// See [`crate::FileSystem::unlink`].
    pub(crate) fn unlink(&self, ctx: &OpContext, parent: InodeRef, name: &[u8]) -> Result<()> {
        self.remove_name(ctx, parent, name, false)
    }

    /// See [`crate::FileSystem::rmdir`].
    pub(crate) fn rmdir(&self, ctx: &OpContext, parent: InodeRef, name: &[u8]) -> Result<()> {
        self.remove_name(ctx, parent, name, true)
    }

    fn remove_name(&self, ctx: &OpContext, parent: InodeRef, name: &[u8], directory: bool) -> Result<()> {
        check_new_name(name)?;
        let parent = self.directory(parent)?;
        let child = {
            let _alone = parent.write();
            let found = self.directories.find_name(&parent, &parent.core(), name)?.ok_or(Error::NotFound)?;
            let child = self.named(&parent, found)?;
            self.remove_entry(ctx, &parent, &child, (name, directory))?;
            self.keep_directory(&parent, &child);
            child
        };
        self.xattrs.delete_if_unused(ctx, &child)
    }

    /// The part of a removal under the parent's lock, in one handle.
    fn remove_entry(
        &self,
        ctx: &OpContext,
        parent: &Arc<Inode>,
        child: &Arc<Inode>,
        (name, directory): (&[u8], bool),
    ) -> Result<()> {
        let handle = self.volume.begin(ctx, CREDITS)?;
        let mut dir = parent.core_mut();
        dir.check_alive(parent.number())?;
        let mut core = child.core_mut_child();
        dir.check_may_remove(&core)?;
        let is_directory = child.kind() == FileType::Directory;
        match (directory, is_directory) {
            (true, false) => return Err(Error::NotDirectory),
            (false, true) => return Err(Error::IsDirectory),
            _ => {}
        }
        if is_directory && !self.directories.is_empty_directory(child, &core)? {
            return Err(Error::NotEmpty);
        }
        self.volume.inodes.join_inode(&handle, parent, &mut dir)?;
        self.volume.inodes.join_inode(&handle, child, &mut core)?;
        self.directories
            .change_directory(ctx, &handle, parent, &mut dir, |directory| directory.remove(name))?;
        let links = if is_directory { 0 } else { core.links().saturating_sub(1) };
        core.slot.raw_mut().i_links_count.set(links);
        core.slot.set_changed(ctx.now);
        if links == 0 {
            self.volume.orphans.add_orphan(&handle, child, &mut core);
        }
        if is_directory {
            drop_dir_link(&mut dir);
        }
        dir.slot.set_modified(ctx.now);
        dir.slot.set_changed(ctx.now);
        Ok(())
    }

    /// See [`crate::FileSystem::open_inode`].
    pub(crate) fn open_inode(&self, inode: InodeRef, write: bool) -> Result<()> {
        let inode = self.volume.inodes.inode(inode)?;
        let _shared = inode.read();
        inode.core().check_alive(inode.number())?;
        inode.opens.open(write);
        Ok(())
    }

    /// See [`crate::FileSystem::release_inode`].
    pub(crate) fn release_inode(&self, ctx: &OpContext, inode: InodeRef, write: bool) -> Result<()> {
        let inode = self.volume.inodes.inode(inode)?;
        if !inode.opens.has(write) {
            return Err(Error::Invalid("the inode has no open reference of this kind"));
        }
        if inode.written_at_close.swap(false, Ordering::Relaxed) && !self.volume.is_read_only() {
            let mut data = inode.write();
            if data.reserved_len() > 0 {
                let written = self.files.locked(ctx, &inode, &mut data).write_back();
                inode.note_lost(&written);
            }
        }
        if write && inode.opens.end_writer() {
            self.volume.space.last_writer_closed(ctx, &inode);
        }
        self.end_reference(ctx, inode)
    }

    /// Ends a reference. If it was the last one and the inode has no name, deletes the inode. Then
    /// also ends the reference to the directory that [`Self::keep_directory`] kept for this inode,
    /// if any.
    fn end_reference(&self, ctx: &OpContext, mut inode: Arc<Inode>) -> Result<()> {
        while inode.opens.end() && inode.core().links() == 0 {
            let imitates = self.volume.rules.imitates_memory();
            let kept = imitates.then(|| inode.write().pages.take_kept_directory()).flatten();
            self.xattrs.delete_if_unused(ctx, &inode)?;
            let Some(directory) = kept else { break };
            inode = self.volume.inodes.inode(directory)?;
        }
        Ok(())
    }

    /// Called after a name of `child` was removed from `parent`. Does nothing unless Linux's memory
    /// is imitated. If the removed name was the last and `child` is open, keeps `parent` open until
    /// `child` is closed. In Linux, the dentry of an open file holds a reference to its directory,
    /// even if both were removed (observed on 6.18). The caller holds the content lock of `parent`.
    pub(super) fn keep_directory(&self, parent: &Inode, child: &Inode) {
        if self.volume.rules.imitates_memory()
            && child.opens.is_open()
            && child.core().links() == 0
            && child.write_child().pages.keep_directory(parent.number())
        {
            parent.opens.open(false);
        }
    }

    pub(super) fn directory(&self, inode: impl Into<InodeRef>) -> Result<Arc<Inode>> {
        let inode = self.volume.inodes.inode(inode)?;
        if inode.kind() == FileType::Directory { Ok(inode) } else { Err(Error::NotDirectory) }
    }
}
