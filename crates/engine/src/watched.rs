//! An open file system that records which operations were done on it.
//!
//! Tests and tools use it to report which operations they did: a list written by hand could miss
//! some. Only successful operations are recorded, under the names that docs/testing.md uses.

use crate::{
    Fallocate, FileSystem, InodeRef, NewInode, OpContext, RenameMode, Result, SetAttributes, XattrMode,
};
use blockyard_disk::inode::FileType;
use blockyard_disk::{Incompat, InodeNr};
use blockyard_sync::{Mutex, rank};
use std::collections::BTreeSet;
use std::ops::Deref;

/// Bytes of an attribute block that are never available for a value: the block's header, an entry
/// with an empty name, and the end of the list.
const BESIDE_A_VALUE: usize = 32 + 16 + 4;

/// A file system with a record of the operations done on it.
pub struct Watched {
    fs: FileSystem,
    /// The names of the operations that succeeded.
    done: Mutex<BTreeSet<&'static str>>,
}

impl Deref for Watched {
    type Target = FileSystem;

    fn deref(&self) -> &FileSystem {
        &self.fs
    }
}

/// Operations whose recorded names do not depend on their arguments.
macro_rules! noted {
    ($($name:literal: $method:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        impl Watched {
            $(
                #[doc = concat!("[`FileSystem::", stringify!($method), "`].")]
                ///
                /// # Errors
                /// Those of the method it calls.
                pub fn $method(&self, ctx: &OpContext, $($argument: $type),*) -> Result<$result> {
                    self.note($name, self.fs.$method(ctx, $($argument),*))
                }
            )*
        }
    };
}

noted! {
    "symlink": symlink(parent: InodeNr, name: &[u8], target: &[u8]) -> InodeNr;
    "link": link(inode: InodeNr, parent: InodeNr, name: &[u8]) -> ();
    "unlink": unlink(parent: InodeNr, name: &[u8]) -> ();
    "tmpfile": create_unnamed(parent: InodeNr, permissions: u16) -> InodeNr;
    "rmdir": rmdir(parent: InodeNr, name: &[u8]) -> ();
    "write": write(inode: InodeNr, offset: u64, bytes: &[u8]) -> ();
    "write some": write_some(inode: InodeNr, offset: u64, bytes: &[u8]) -> usize;
    "append": append(inode: InodeNr, bytes: &[u8]) -> u64;
    "direct write": write_direct(inode: InodeNr, offset: u64, bytes: &[u8]) -> usize;
    "read": read(inode: InodeNr, offset: u64, buf: &mut [u8]) -> usize;
    "direct read": read_direct(inode: InodeNr, offset: u64, buf: &mut [u8]) -> usize;
    "truncate": truncate(inode: InodeNr, size: u64) -> ();
    "remove xattr": remove_xattr(inode: InodeNr, name: &[u8]) -> ();
    "set attributes": set_attributes(inode: InodeNr, changes: &SetAttributes) -> ();
    "set flags": set_flags(inode: InodeNr, flags: u32) -> ();
    "fsync": fsync(inode: InodeNr) -> ();
    "fdatasync": fdatasync(inode: InodeNr) -> ();
    "sync": sync() -> ();
    "write back": write_back_file(inode: InodeNr) -> ();
    "write back": write_back_all() -> ();
}

impl Watched {
    /// Wraps a file system. No operation is recorded yet.
    #[must_use]
    pub fn new(fs: FileSystem) -> Self {
        Self { fs, done: Mutex::new(rank::LEAF, BTreeSet::new()) }
    }

    /// Unwraps the file system, for example to close it.
    #[must_use]
    pub fn into_inner(self) -> FileSystem {
        self.fs
    }

    /// The names of the operations that succeeded.
    pub fn done(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.done.lock().clone().into_iter()
    }

    fn note<T>(&self, name: &'static str, result: Result<T>) -> Result<T> {
        if result.is_ok() {
            self.done.lock().insert(name);
        }
        result
    }

    /// [`FileSystem::create`].
    ///
    /// # Errors
    /// Those of [`FileSystem::create`].
    pub fn create(&self, ctx: &OpContext, parent: InodeNr, name: &[u8], new: &NewInode) -> Result<InodeNr> {
        let operation = match new.kind {
            FileType::Regular => "create",
            FileType::Directory => "mkdir",
            _ => "mknod",
        };
        self.note(operation, self.fs.create(ctx, parent, name, new))
    }

    /// [`FileSystem::rename`].
    ///
    /// # Errors
    /// Those of [`FileSystem::rename`].
    pub fn rename(
        &self,
        ctx: &OpContext,
        from: (InodeNr, &[u8]),
        to: (InodeNr, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        let operation = match mode {
            RenameMode::Replace => "rename",
            RenameMode::NoReplace => "rename no-replace",
            RenameMode::Exchange => "rename exchange",
        };
        self.note(operation, self.fs.rename(ctx, from, to, mode))
    }

    /// [`FileSystem::fallocate`].
    ///
    /// # Errors
    /// Those of [`FileSystem::fallocate`].
    pub fn fallocate(
        &self,
        ctx: &OpContext,
        inode: InodeNr,
        what: Fallocate,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let operation = match what {
            Fallocate::Allocate => "allocate",
            Fallocate::AllocateKeepSize => "allocate keep",
            Fallocate::PunchHole => "punch",
            Fallocate::ZeroRange => "zero",
            Fallocate::ZeroRangeKeepSize => "zero keep",
            Fallocate::CollapseRange => "collapse",
            Fallocate::InsertRange => "insert",
        };
        self.note(operation, self.fs.fallocate(ctx, inode, what, offset, len))
    }

    /// [`FileSystem::set_xattr`]. With `ea_inode`, the recorded name tells whether the value is too
    /// large for any attribute block.
    ///
    /// # Errors
    /// Those of [`FileSystem::set_xattr`].
    pub fn set_xattr(
        &self,
        ctx: &OpContext,
        inode: impl Into<InodeRef>,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let in_inodes = self.fs.superblock().features().incompat.contains(Incompat::EA_INODE);
        let is_large = in_inodes && value.len() + BESIDE_A_VALUE > self.fs.geometry().block_size();
        let operation = if is_large { "set large xattr" } else { "set xattr" };
        self.note(operation, self.fs.set_xattr(ctx, inode, name, value, mode))
    }

    /// [`FileSystem::release_inode`]. Recorded as `unlink open` if the inode has no name, and not
    /// recorded otherwise.
    ///
    /// # Errors
    /// Those of [`FileSystem::release_inode`].
    pub fn release_inode(&self, ctx: &OpContext, inode: InodeNr, write: bool) -> Result<()> {
        let has_names = self.fs.attributes(inode).is_ok_and(|found| found.links > 0);
        let released = self.fs.release_inode(ctx, inode, write);
        if has_names { released } else { self.note("unlink open", released) }
    }
}
