//! A model of a file system: a tree in memory whose operations return what Linux returns.
//! Conditions for errors are checked in Linux's order. Errors are errno numbers. The model knows
//! nothing about how data is stored, except for the image's limits ([`Limits`]) and an upper bound
//! for the end of each file's blocks.

use blockyard_engine::{Fallocate, RenameMode, XattrMode};
use blockyard_testkit::SparseBytes;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

pub(crate) type Id = u32;
pub(crate) type Answer<T = ()> = Result<T, i32>;

pub(crate) const ROOT: Id = 0;
pub(crate) const IMMUTABLE: u32 = 0x10;
pub(crate) const APPEND: u32 = 0x20;
/// Of the flags used here, the only one that new inodes inherit from their directory.
const NO_DUMP: u32 = 0x40;

pub(crate) const EPERM: i32 = 1;
pub(crate) const ENOENT: i32 = 2;
pub(crate) const EEXIST: i32 = 17;
pub(crate) const ENOTDIR: i32 = 20;
pub(crate) const EISDIR: i32 = 21;
pub(crate) const EINVAL: i32 = 22;
pub(crate) const EFBIG: i32 = 27;
pub(crate) const ENOSPC: i32 = 28;
pub(crate) const ENAMETOOLONG: i32 = 36;
pub(crate) const ENOTEMPTY: i32 = 39;
pub(crate) const ENODATA: i32 = 61;
pub(crate) const EOPNOTSUPP: i32 = 95;

/// The content of an inode.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    File(SparseBytes),
    Directory { entries: BTreeMap<Vec<u8>, Id>, parent: Id },
    Symlink(Vec<u8>),
    Pipe,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) body: Body,
    pub(crate) permissions: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) links: u32,
    pub(crate) opens: u32,
    pub(crate) flags: u32,
    /// Times of the last changes of content and inode, in seconds.
    pub(crate) modified: i64,
    pub(crate) changed: i64,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// No block of a file is allocated at this offset (in bytes) or behind it.
    pub(crate) placed_end: u64,
}

/// Who calls, and when, in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Who {
    pub(crate) now: i64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// What the image supports. Sizes are in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) extents: bool,
    pub(crate) block: u64,
    pub(crate) cluster: u64,
    /// Size of the largest file.
    pub(crate) largest: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) nodes: BTreeMap<Id, Node>,
    next: Id,
    pub(crate) limits: Limits,
}

fn check_name(name: &[u8]) -> Answer {
    match name {
        _ if name.len() > 255 => Err(ENAMETOOLONG),
        b"" | b"." | b".." => Err(EINVAL),
        _ if name.contains(&b'/') => Err(EINVAL),
        _ => Ok(()),
    }
}

fn check(allowed: bool, errno: i32) -> Answer {
    if allowed { Ok(()) } else { Err(errno) }
}

impl Node {
    pub(crate) fn is_dir(&self) -> bool {
        matches!(self.body, Body::Directory { .. })
    }

    pub(crate) fn is_file(&self) -> bool {
        matches!(self.body, Body::File(_))
    }

    fn has(&self, flags: u32) -> bool {
        self.flags & flags != 0
    }

    fn touch(&mut self, who: Who) {
        (self.modified, self.changed) = (who.now, who.now);
    }
}

impl Model {
    pub(crate) fn new(limits: Limits) -> Self {
        let body = Body::Directory { entries: BTreeMap::new(), parent: ROOT };
        let root = Node {
            body,
            permissions: 0o755,
            uid: 0,
            gid: 0,
            links: 2,
            opens: 0,
            flags: 0,
            modified: 0,
            changed: 0,
            xattrs: BTreeMap::new(),
            placed_end: 0,
        };
        Self { nodes: BTreeMap::from([(ROOT, root)]), next: 1, limits }
    }

    pub(crate) fn node(&self, id: Id) -> &Node {
        &self.nodes[&id]
    }

    fn node_mut(&mut self, id: Id) -> &mut Node {
        self.nodes.get_mut(&id).unwrap()
    }

    fn entries(&self, dir: Id) -> Answer<&BTreeMap<Vec<u8>, Id>> {
        match &self.node(dir).body {
            Body::Directory { entries, .. } => Ok(entries),
            _ => Err(ENOTDIR),
        }
    }

    fn entries_mut(&mut self, dir: Id) -> &mut BTreeMap<Vec<u8>, Id> {
        match &mut self.node_mut(dir).body {
            Body::Directory { entries, .. } => entries,
            _ => unreachable!("checked before"),
        }
    }

    pub(crate) fn lookup(&self, dir: Id, name: &[u8]) -> Answer<Id> {
        self.entries(dir)?.get(name).copied().ok_or(ENOENT)
    }

    /// Checks that a new name may be created in a directory.
    fn may_create(&self, dir: Id) -> Answer {
        check(self.node(dir).links > 0, ENOENT)?;
        check(!self.node(dir).has(IMMUTABLE), EPERM)
    }

    /// Checks that a name of `child` may be removed from a directory.
    fn may_delete(&self, dir: Id, child: Id) -> Answer {
        check(!self.node(dir).has(IMMUTABLE | APPEND), EPERM)?;
        check(!self.node(child).has(IMMUTABLE | APPEND), EPERM)
    }

    pub(crate) fn create(
        &mut self,
        who: Who,
        dir: Id,
        name: &[u8],
        body: Body,
        permissions: u16,
    ) -> Answer<Id> {
        if let Body::Symlink(target) = &body {
            check(!target.is_empty(), ENOENT)?;
            check(target.len() < 4096.min(self.limits.block as usize), ENAMETOOLONG)?;
        }
        check_name(name)?;
        if self.lookup(dir, name).is_ok() {
            return Err(EEXIST);
        }
        self.entries(dir)?;
        self.may_create(dir)?;
        let is_dir = matches!(body, Body::Directory { .. });
        let parent = self.node(dir);
        let set_gid = parent.permissions & 0o2000 != 0;
        let extra = if set_gid && is_dir { 0o2000 } else { 0 };
        let node = Node {
            body,
            permissions: permissions | extra,
            uid: who.uid,
            gid: if set_gid { parent.gid } else { who.gid },
            links: if is_dir { 2 } else { 1 },
            opens: 0,
            flags: parent.flags & NO_DUMP,
            modified: who.now,
            changed: who.now,
            xattrs: BTreeMap::new(),
            placed_end: 0,
        };
        let id = self.next;
        self.next += 1;
        self.nodes.insert(id, node);
        self.entries_mut(dir).insert(name.to_vec(), id);
        self.node_mut(dir).touch(who);
        if is_dir {
            self.node_mut(dir).links += 1;
        }
        Ok(id)
    }

    pub(crate) fn link(&mut self, who: Who, id: Id, dir: Id, name: &[u8]) -> Answer {
        check_name(name)?;
        if self.lookup(dir, name).is_ok() {
            return Err(EEXIST);
        }
        self.entries(dir)?;
        self.may_create(dir)?;
        check(!self.node(id).has(IMMUTABLE | APPEND), EPERM)?;
        check(!self.node(id).is_dir(), EPERM)?;
        check(self.node(id).links > 0, ENOENT)?;
        self.entries_mut(dir).insert(name.to_vec(), id);
        self.node_mut(dir).touch(who);
        let node = self.node_mut(id);
        node.links += 1;
        node.changed = who.now;
        Ok(())
    }

    pub(crate) fn remove(&mut self, who: Who, dir: Id, name: &[u8], directory: bool) -> Answer {
        check_name(name)?;
        let id = self.lookup(dir, name)?;
        self.may_delete(dir, id)?;
        match (directory, self.node(id).is_dir()) {
            (true, false) => return Err(ENOTDIR),
            (false, true) => return Err(EISDIR),
            (true, true) => check(self.entries(id)?.is_empty(), ENOTEMPTY)?,
            (false, false) => {}
        }
        self.entries_mut(dir).remove(name);
        self.node_mut(dir).touch(who);
        if directory {
            self.node_mut(dir).links -= 1;
        }
        self.drop_name(who, id);
        Ok(())
    }

    fn drop_name(&mut self, who: Who, id: Id) {
        let node = self.node_mut(id);
        node.links = if node.is_dir() { 0 } else { node.links - 1 };
        node.changed = who.now;
        self.forget_unused(id);
    }

    fn forget_unused(&mut self, id: Id) {
        if self.node(id).links == 0 && self.node(id).opens == 0 {
            self.nodes.remove(&id);
        }
    }

    /// A directory and all directories above it, up to the root.
    fn above(&self, mut dir: Id) -> BTreeSet<Id> {
        let mut all = BTreeSet::from([dir]);
        while let Body::Directory { parent, .. } = self.node(dir).body
            && dir != ROOT
        {
            dir = parent;
            all.insert(dir);
        }
        all
    }

    pub(crate) fn rename(
        &mut self,
        who: Who,
        from: (Id, &[u8]),
        to: (Id, &[u8]),
        mode: RenameMode,
    ) -> Answer {
        check_name(from.1)?;
        check_name(to.1)?;
        self.entries(from.0)?;
        self.entries(to.0)?;
        let source = self.lookup(from.0, from.1)?;
        let target = self.lookup(to.0, to.1).ok();
        check(mode != RenameMode::NoReplace || target.is_none(), EEXIST)?;
        check(mode != RenameMode::Exchange || target.is_some(), ENOENT)?;
        if from.0 != to.0 {
            check(!self.above(to.0).contains(&source), EINVAL)?;
            let errno = if mode == RenameMode::Exchange { EINVAL } else { ENOTEMPTY };
            check(target.is_none_or(|target| !self.above(from.0).contains(&target)), errno)?;
        }
        if target == Some(source) {
            return Ok(());
        }
        self.may_delete(from.0, source)?;
        let is_dir = self.node(source).is_dir();
        let Some(target) = target else {
            self.may_create(to.0)?;
            self.move_name(who, from, to, source);
            return Ok(());
        };
        self.may_delete(to.0, target)?;
        if mode == RenameMode::Exchange {
            self.exchange(who, from, to, (source, target));
            return Ok(());
        }
        match (is_dir, self.node(target).is_dir()) {
            (true, false) => return Err(ENOTDIR),
            (false, true) => return Err(EISDIR),
            (true, true) => check(self.entries(target)?.is_empty(), ENOTEMPTY)?,
            (false, false) => {}
        }
        if is_dir {
            self.node_mut(to.0).links -= 1;
        }
        self.entries_mut(to.0).remove(to.1);
        self.drop_name(who, target);
        self.move_name(who, from, to, source);
        Ok(())
    }

    fn move_name(&mut self, who: Who, from: (Id, &[u8]), to: (Id, &[u8]), id: Id) {
        self.entries_mut(from.0).remove(from.1);
        self.entries_mut(to.0).insert(to.1.to_vec(), id);
        self.reparent(who, id, from.0, to.0);
        self.node_mut(from.0).touch(who);
        self.node_mut(to.0).touch(who);
    }

    fn reparent(&mut self, who: Who, id: Id, from: Id, to: Id) {
        let node = self.node_mut(id);
        node.changed = who.now;
        if let Body::Directory { parent, .. } = &mut node.body {
            *parent = to;
            self.node_mut(from).links -= 1;
            self.node_mut(to).links += 1;
        }
    }

    fn exchange(&mut self, who: Who, from: (Id, &[u8]), to: (Id, &[u8]), (a, b): (Id, Id)) {
        self.entries_mut(from.0).insert(from.1.to_vec(), b);
        self.entries_mut(to.0).insert(to.1.to_vec(), a);
        self.reparent(who, a, from.0, to.0);
        self.reparent(who, b, to.0, from.0);
        self.node_mut(from.0).touch(who);
        self.node_mut(to.0).touch(who);
    }

    /// Checks that an inode is a regular file that may be changed.
    fn writable(&self, id: Id) -> Answer {
        match self.node(id).body {
            Body::File(_) => check(!self.node(id).has(IMMUTABLE), EPERM),
            Body::Directory { .. } => Err(EISDIR),
            _ => Err(EINVAL),
        }
    }

    pub(crate) fn content_mut(&mut self, id: Id) -> &mut SparseBytes {
        match &mut self.node_mut(id).body {
            Body::File(content) => content,
            _ => unreachable!("checked before"),
        }
    }

    /// Size of a file in bytes; 0 for anything else.
    pub(crate) fn size(&self, id: Id) -> u64 {
        match &self.node(id).body {
            Body::File(content) => content.len(),
            _ => 0,
        }
    }

    fn check_size(&self, size: u64) -> Answer {
        check(size <= self.limits.largest, EFBIG)
    }

    pub(crate) fn write(&mut self, who: Who, id: Id, at: u64, bytes: &[u8]) -> Answer {
        self.writable(id)?;
        check(!self.node(id).has(APPEND) || at == self.size(id), EPERM)?;
        let end = at + bytes.len() as u64;
        self.check_size(end)?;
        self.content_mut(id).write(at, bytes);
        self.note_placed(id, end);
        self.node_mut(id).touch(who);
        Ok(())
    }

    /// A direct write. A range that is not whole blocks is refused.
    pub(crate) fn write_direct(&mut self, who: Who, id: Id, at: u64, bytes: &[u8]) -> Answer {
        let block = self.limits.block;
        check(at.is_multiple_of(block) && (bytes.len() as u64).is_multiple_of(block), EINVAL)?;
        self.write(who, id, at, bytes)
    }

    pub(crate) fn append(&mut self, who: Who, id: Id, bytes: &[u8]) -> Answer {
        self.writable(id)?;
        self.write(who, id, self.size(id), bytes)
    }

    pub(crate) fn truncate(&mut self, who: Who, id: Id, size: u64) -> Answer {
        self.writable(id)?;
        check(!self.node(id).has(APPEND), EPERM)?;
        self.check_size(size)?;
        // A truncation that makes the file larger frees no blocks that are allocated behind its
        // end.
        let end = if size > self.size(id) { u64::MAX } else { size.next_multiple_of(self.limits.cluster) };
        self.content_mut(id).resize(size);
        let node = self.node_mut(id);
        node.placed_end = node.placed_end.min(end);
        node.touch(who);
        Ok(())
    }

    pub(crate) fn note_placed(&mut self, id: Id, end: u64) {
        let end = end.next_multiple_of(self.limits.cluster);
        let node = self.node_mut(id);
        node.placed_end = node.placed_end.max(end);
    }

    pub(crate) fn fallocate(&mut self, who: Who, id: Id, what: Fallocate, range: Range<u64>) -> Answer {
        self.writable(id)?;
        check(!range.is_empty(), EINVAL)?;
        self.check_size(range.end)?;
        let allocates = matches!(what, Fallocate::Allocate | Fallocate::AllocateKeepSize);
        check(allocates || !self.node(id).has(APPEND), EPERM)?;
        check(self.limits.extents || what == Fallocate::PunchHole, EOPNOTSUPP)?;
        // As in Linux, the times change even if the range's position is then refused.
        self.node_mut(id).touch(who);
        self.check_place(id, what, &range)?;
        let content = self.content_mut(id);
        match what {
            Fallocate::AllocateKeepSize => {}
            Fallocate::Allocate => content.grow(range.end),
            Fallocate::ZeroRange => {
                content.grow(range.end);
                content.zero(range.clone());
            }
            Fallocate::PunchHole | Fallocate::ZeroRangeKeepSize => content.zero(range.clone()),
            Fallocate::CollapseRange => content.collapse(range.clone()),
            Fallocate::InsertRange => content.insert(range.start, range.end - range.start),
        }
        match what {
            Fallocate::PunchHole | Fallocate::CollapseRange => {}
            Fallocate::InsertRange => self.node_mut(id).placed_end += range.end - range.start,
            _ => self.note_placed(id, range.end),
        }
        Ok(())
    }

    /// Checks the range of a collapse or an insertion; other ranges pass. The range must consist of
    /// whole clusters. A collapsed range must end before the file ends. An inserted range must
    /// begin before the file ends, and must not make the file too large.
    fn check_place(&self, id: Id, what: Fallocate, range: &Range<u64>) -> Answer {
        let (cluster, size) = (self.limits.cluster, self.size(id));
        let aligned = range.start.is_multiple_of(cluster) && range.end.is_multiple_of(cluster);
        match what {
            Fallocate::CollapseRange => check(aligned && range.end < size, EINVAL),
            Fallocate::InsertRange => {
                check(aligned && range.start < size, EINVAL)?;
                self.check_size(size + range.end - range.start)
            }
            _ => Ok(()),
        }
    }

    /// Checks that attributes may be changed.
    fn changeable(&self, id: Id) -> Answer {
        check(!self.node(id).has(IMMUTABLE | APPEND), EPERM)
    }

    pub(crate) fn set_xattr(
        &mut self,
        who: Who,
        id: Id,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Answer {
        self.changeable(id)?;
        let exists = self.node(id).xattrs.contains_key(name);
        check(mode != XattrMode::Create || !exists, EEXIST)?;
        check(mode != XattrMode::Replace || exists, ENODATA)?;
        let node = self.node_mut(id);
        if node.xattrs.insert(name.to_vec(), value.to_vec()).as_deref() != Some(value) {
            node.changed = who.now;
        }
        Ok(())
    }

    pub(crate) fn remove_xattr(&mut self, who: Who, id: Id, name: &[u8]) -> Answer {
        self.changeable(id)?;
        let node = self.node_mut(id);
        node.xattrs.remove(name).map(drop).ok_or(ENODATA)?;
        node.changed = who.now;
        Ok(())
    }

    pub(crate) fn chmod(&mut self, who: Who, id: Id, permissions: u16, gid: u32) -> Answer {
        self.changeable(id)?;
        let node = self.node_mut(id);
        (node.permissions, node.gid, node.changed) = (permissions, gid, who.now);
        Ok(())
    }

    pub(crate) fn set_flags(&mut self, who: Who, id: Id, flags: u32) -> Answer {
        check(self.node(id).is_dir() || self.node(id).is_file(), EOPNOTSUPP)?;
        let node = self.node_mut(id);
        (node.flags, node.changed) = (flags, who.now);
        Ok(())
    }

    pub(crate) fn open(&mut self, id: Id) {
        self.node_mut(id).opens += 1;
    }

    pub(crate) fn release(&mut self, id: Id) {
        self.node_mut(id).opens -= 1;
        self.forget_unused(id);
    }
}
