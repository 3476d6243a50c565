//! Renaming: moves a name, replaces another, or exchanges two.
//!
//! Lock order: first comes the lock of renames ([`blockyard_sync::rank::RENAME`]), which serialises
//! renames between two directories. So no directory gets another parent during the walk to the root
//! that checks whether a directory would move into itself. Then come the content locks of both
//! parents in ascending order of number, then the handle, then the core locks, parents before
//! children.

use super::links::{drop_dir_link, drop_name};
use super::rules::check_new_name;
use crate::directories::DirBlocks;
use crate::directory::Directory;
use crate::inode::{Inode, InodeCore};
use crate::namespace::Namespace;
use crate::txn::Handle;
use crate::{Error, InodeRef, OpContext, Result};
use blockyard_disk::InodeNr;
use blockyard_disk::inode::FileType;
use std::collections::HashSet;
use std::sync::Arc;

/// What happens if the new name exists already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RenameMode {
    /// The existing name is replaced.
    #[default]
    Replace,
    /// The rename is refused.
    NoReplace,
    /// Both names are exchanged; both must exist.
    Exchange,
}

/// How many metadata blocks a rename may change.
const CREDITS: usize = 80;

/// One side of a rename.
struct Side {
    parent: Arc<Inode>,
    child: Arc<Inode>,
}

impl Namespace {
    /// See [`crate::FileSystem::rename`].
    pub(crate) fn rename(
        &self,
        ctx: &OpContext,
        from: (InodeRef, &[u8]),
        to: (InodeRef, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        check_new_name(from.1)?;
        check_new_name(to.1)?;
        let old_parent = self.directory(from.0)?;
        let new_parent = self.directory(to.0)?;
        if mode == RenameMode::Replace {
            self.write_back_source(ctx, &old_parent, from.1, &new_parent, to.1)?;
        }
        let _serial = (old_parent.number() != new_parent.number()).then(|| self.renames.lock());
        let victim = {
            let order = old_parent.number().cmp(&new_parent.number());
            let _first = if order.is_le() { old_parent.write() } else { new_parent.write() };
            let _second = match order {
                std::cmp::Ordering::Less => Some(new_parent.write()),
                std::cmp::Ordering::Equal => None,
                std::cmp::Ordering::Greater => Some(old_parent.write()),
            };
            let source = self
                .directories
                .find_name(&old_parent, &old_parent.core(), from.1)?
                .ok_or(Error::NotFound)?;
            let target = self.directories.find_name(&new_parent, &new_parent.core(), to.1)?;
            match (mode, target) {
                (RenameMode::NoReplace, Some(_)) => return Err(Error::Exists),
                (RenameMode::Exchange, None) => return Err(Error::NotFound),
                (_, Some(target)) if target == source => return Ok(()),
                _ => {}
            }
            let moved = Side { parent: Arc::clone(&old_parent), child: self.named(&old_parent, source)? };
            let other = target.map(|target| self.named(&new_parent, target)).transpose()?;
            self.check_move(&moved, &new_parent)?;
            let target = other.clone().map(|child| Side { parent: Arc::clone(&new_parent), child });
            let above = target.as_ref().map_or(Ok(()), |target| self.check_move(target, &old_parent));
            match (mode, target) {
                (RenameMode::Exchange, Some(other)) => {
                    above?;
                    self.exchange(ctx, (&moved, from.1), (&other, to.1))?;
                    None
                }
                _ => {
                    // Unless the tree has a loop, `Invalid` means that the target contains the
                    // source. So the target is not empty, whatever type the source has.
                    above.map_err(|error| {
                        if matches!(error, Error::Invalid(_)) { Error::NotEmpty } else { error }
                    })?;
                    self.move_name(ctx, (&moved, from.1), (&new_parent, to.1), other.as_ref())?;
                    other.iter().for_each(|victim| self.keep_directory(&new_parent, victim));
                    other
                }
            }
        };
        victim.map_or(Ok(()), |victim| self.xattrs.delete_if_unused(ctx, &victim))
    }

    /// Writes back the data of a regular file that is about to replace another inode. As in Linux
    /// (observed on 6.18), a rename that does nothing or is refused because of the target's type
    /// writes nothing.
    fn write_back_source(
        &self,
        ctx: &OpContext,
        old: &Arc<Inode>,
        old_name: &[u8],
        new: &Arc<Inode>,
        new_name: &[u8],
    ) -> Result<()> {
        let find = |parent: &Arc<Inode>, name: &[u8]| {
            let _shared = parent.read();
            let core = parent.core();
            self.directories.find_name(parent, &core, name)
        };
        let (Some(source), Some(target)) = (find(old, old_name)?, find(new, new_name)?) else {
            return Ok(());
        };
        if source == target {
            return Ok(());
        }
        let kind = |number| self.volume.inodes.inode(number).map(|inode| inode.kind());
        let written = match (kind(source), kind(target)) {
            (Ok(FileType::Regular), Ok(target)) if target != FileType::Directory => {
                self.files.write_back_file(ctx, source.into())
            }
            (Ok(_), Ok(_)) => Ok(()),
            (Err(error), _) | (_, Err(error)) => Err(error),
        };
        match written {
            // One of the names was removed meanwhile. The caller looks again under the locks.
            Err(Error::StaleInode(_)) => Ok(()),
            other => other,
        }
    }

    /// Fails if a directory would move into itself or into a directory below it. The caller holds
    /// the content locks of both parents and, if they differ, the lock of renames, so no directory
    /// gets another parent meanwhile.
    fn check_move(&self, side: &Side, into: &Arc<Inode>) -> Result<()> {
        if side.child.kind() != FileType::Directory || side.parent.number() == into.number() {
            return Ok(());
        }
        let mut at = into.number();
        // In a damaged tree, the walk may run into a loop. It ends at the first directory that it
        // visits again.
        let mut seen = HashSet::new();
        while seen.insert(at) {
            if at == side.child.number() {
                return Err(Error::Invalid("a directory cannot move into itself"));
            }
            if at == InodeNr::ROOT {
                return Ok(());
            }
            let directory = self.directory(at).map_err(|error| match error {
                // A directory on the way to the root was removed, so `into` was removed too.
                Error::StaleInode(_) => Error::NotFound,
                other => other,
            })?;
            let core = directory.core();
            at = self.directories.in_directory(&directory, &core, |directory| directory.parent())?;
        }
        Err(Error::Invalid("the directory tree has a loop; run the checker"))
    }

    /// Moves a name, replacing `victim` if there is one.
    fn move_name(
        &self,
        ctx: &OpContext,
        (moved, name): (&Side, &[u8]),
        (new_parent, new_name): (&Arc<Inode>, &[u8]),
        victim: Option<&Arc<Inode>>,
    ) -> Result<()> {
        let is_directory = moved.child.kind() == FileType::Directory;
        let crosses = moved.parent.number() != new_parent.number();
        let handle = self.volume.begin(ctx, CREDITS)?;
        let mut parents = Parents::lock(&moved.parent, new_parent);
        let mut children = Children::lock(&moved.child, victim);
        check_may_rename(&mut parents, &children)?;
        parents.target().check_may_hold()?;
        if crosses {
            parents.target().check_project(&children.moved)?;
        }
        if let (Some(victim), Some(core)) = (victim, &children.other) {
            self.check_may_replace(moved.child.kind(), victim, core)?;
        }
        if is_directory && crosses && victim.is_none() {
            self.check_dir_links(parents.target())?;
        }
        self.join_all(&handle, &moved.parent, new_parent, &mut parents)?;
        self.volume.inodes.join_inode(&handle, &moved.child, &mut children.moved)?;
        if let (Some(victim), Some(core)) = (victim, &mut children.other) {
            self.volume.inodes.join_inode(&handle, victim, core)?;
        }
        let (number, kind) = (moved.child.number(), moved.child.kind());
        self.directories.change_directory(ctx, &handle, new_parent, parents.target(), |directory| {
            enter(directory, new_name, number, kind)
        })?;
        let removed =
            self.directories.change_directory(ctx, &handle, &moved.parent, &mut parents.old, |directory| {
                directory.remove(name)
            });
        self.volume.apply(removed)?;
        if is_directory && crosses {
            self.turn(ctx, &handle, (&moved.child, &mut children.moved), new_parent)?;
            drop_dir_link(&mut parents.old);
            if victim.is_none() {
                self.add_dir_link(parents.target());
            }
        } else if is_directory && victim.is_some() {
            drop_dir_link(&mut parents.old);
        }
        if let Some(core) = &mut children.other {
            if drop_name(core, is_directory)
                && let Some(victim) = victim
            {
                self.volume.orphans.add_orphan(&handle, victim, core);
            }
            core.slot.set_changed(ctx.now);
        }
        children.moved.slot.set_changed(ctx.now);
        parents.touch(ctx);
        Ok(())
    }

    /// Fails if an inode of this kind may not take the name of `victim`.
    fn check_may_replace(&self, kind: FileType, victim: &Arc<Inode>, core: &InodeCore) -> Result<()> {
        match (kind == FileType::Directory, victim.kind() == FileType::Directory) {
            (true, false) => Err(Error::NotDirectory),
            (false, true) => Err(Error::IsDirectory),
            (true, true) if !self.directories.is_empty_directory(victim, core)? => Err(Error::NotEmpty),
            _ => Ok(()),
        }
    }

    /// Points the `..` of a moved directory to its new parent.
    fn turn(
        &self,
        ctx: &OpContext,
        handle: &Handle<'_>,
        (moved, core): (&Arc<Inode>, &mut InodeCore),
        parent: &Arc<Inode>,
    ) -> Result<()> {
        let turned = self
            .directories
            .change_directory(ctx, handle, moved, core, |directory| directory.set_parent(parent.number()));
        self.volume.apply(turned)
    }

    /// Exchanges two names.
    fn exchange(
        &self,
        ctx: &OpContext,
        (a, a_name): (&Side, &[u8]),
        (b, b_name): (&Side, &[u8]),
    ) -> Result<()> {
        let directories = [&a.child, &b.child].map(|child| child.kind() == FileType::Directory);
        let crosses = a.parent.number() != b.parent.number();
        if a.child.number() == b.parent.number() || b.child.number() == a.parent.number() {
            return Err(Error::Invalid("a directory cannot change places with what it holds"));
        }
        let handle = self.volume.begin(ctx, CREDITS)?;
        let mut parents = Parents::lock(&a.parent, &b.parent);
        let mut children = Children::lock(&a.child, Some(&b.child));
        check_may_rename(&mut parents, &children)?;
        parents.old.check_may_hold()?;
        parents.target().check_may_hold()?;
        if let (true, Some(other)) = (crosses, &children.other) {
            parents.target().check_project(&children.moved)?;
            parents.old.check_project(other)?;
        }
        if crosses && directories == [true, false] {
            self.check_dir_links(parents.target())?;
        }
        if crosses && directories == [false, true] {
            self.check_dir_links(&parents.old)?;
        }
        self.join_all(&handle, &a.parent, &b.parent, &mut parents)?;
        self.volume.inodes.join_inode(&handle, &a.child, &mut children.moved)?;
        if let Some(core) = &mut children.other {
            self.volume.inodes.join_inode(&handle, &b.child, core)?;
        }
        let swap = |directory: &mut Directory<'_, DirBlocks<'_>>, name: &[u8], to: &Arc<Inode>| {
            let replaced = directory.replace(name, to.number(), to.kind())?;
            if replaced { Ok(()) } else { Err(Error::NotFound) }
        };
        self.directories.change_directory(ctx, &handle, &a.parent, &mut parents.old, |directory| {
            swap(directory, a_name, &b.child)
        })?;
        let second =
            self.directories.change_directory(ctx, &handle, &b.parent, parents.target(), |directory| {
                swap(directory, b_name, &a.child)
            });
        self.volume.apply(second)?;
        if crosses && directories[0] {
            self.turn(ctx, &handle, (&a.child, &mut children.moved), &b.parent)?;
            drop_dir_link(&mut parents.old);
            self.add_dir_link(parents.target());
        }
        if let (true, Some(core)) = (crosses && directories[1], &mut children.other) {
            self.turn(ctx, &handle, (&b.child, core), &a.parent)?;
            drop_dir_link(parents.target());
            self.add_dir_link(&mut parents.old);
        }
        children.moved.slot.set_changed(ctx.now);
        if let Some(core) = &mut children.other {
            core.slot.set_changed(ctx.now);
        }
        parents.touch(ctx);
        Ok(())
    }

    fn join_all(
        &self,
        handle: &Handle<'_>,
        old: &Arc<Inode>,
        new: &Arc<Inode>,
        parents: &mut Parents<'_>,
    ) -> Result<()> {
        self.volume.inodes.join_inode(handle, old, &mut parents.old)?;
        match &mut parents.new {
            Some(core) => self.volume.inodes.join_inode(handle, new, core),
            None => Ok(()),
        }
    }
}

/// Checks the flags of all inodes involved, in Linux's order: first for removing the old name, then
/// for replacing or adding the new name.
fn check_may_rename(parents: &mut Parents<'_>, children: &Children<'_>) -> Result<()> {
    parents.old.check_may_remove(&children.moved)?;
    match &children.other {
        Some(other) => parents.target().check_may_remove(other),
        None => parents.target().check_may_enter(),
    }
}

/// Adds an entry, or changes the inode of an existing entry.
fn enter(
    directory: &mut Directory<'_, DirBlocks<'_>>,
    name: &[u8],
    inode: InodeNr,
    kind: FileType,
) -> Result<()> {
    if directory.replace(name, inode, kind)? { Ok(()) } else { directory.insert(name, inode, kind) }
}

type CoreGuard<'a> = blockyard_sync::RwLockWriteGuard<'a, InodeCore>;

/// The locked cores of the two parents, or of the one parent if they are the same.
struct Parents<'a> {
    old: CoreGuard<'a>,
    new: Option<CoreGuard<'a>>,
}

impl<'a> Parents<'a> {
    fn lock(old: &'a Arc<Inode>, new: &'a Arc<Inode>) -> Self {
        match old.number().cmp(&new.number()) {
            std::cmp::Ordering::Equal => Self { old: old.core_mut(), new: None },
            std::cmp::Ordering::Less => {
                let old = old.core_mut();
                Self { old, new: Some(new.core_mut()) }
            }
            std::cmp::Ordering::Greater => {
                let new = new.core_mut();
                Self { old: old.core_mut(), new: Some(new) }
            }
        }
    }

    fn target(&mut self) -> &mut InodeCore {
        match &mut self.new {
            Some(new) => new,
            None => &mut self.old,
        }
    }

    fn touch(&mut self, ctx: &OpContext) {
        for core in [Some(&mut self.old), self.new.as_mut()].into_iter().flatten() {
            core.slot.set_modified(ctx.now);
            core.slot.set_changed(ctx.now);
        }
    }
}

/// The locked cores of the moved inode and of the inode that it replaces or is exchanged with, if
/// there is one.
struct Children<'a> {
    moved: CoreGuard<'a>,
    other: Option<CoreGuard<'a>>,
}

impl<'a> Children<'a> {
    fn lock(moved: &'a Arc<Inode>, other: Option<&'a Arc<Inode>>) -> Self {
        let Some(other) = other else { return Self { moved: moved.core_mut_child(), other: None } };
        if moved.number() < other.number() {
            let moved = moved.core_mut_child();
            Self { moved, other: Some(other.core_mut_child()) }
        } else {
            let other = other.core_mut_child();
            Self { moved: moved.core_mut_child(), other: Some(other) }
        }
    }
}
