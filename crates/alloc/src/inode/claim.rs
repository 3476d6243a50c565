//! A claim on an inode: taken by the search, then committed into bitmap and descriptor, or released.

use core::fmt;

use blockyard_disk::{GroupNr, InodeNr};
use blockyard_sync::{Backend, CpuSlot, Native};

use super::InodeAllocator;
use super::config::InodeRequest;

/// An inode number that nobody else can get. Dropping it releases it, so an operation that fails cannot leak one.
#[must_use = "dropping a claim releases it"]
pub struct InodeClaim<'a, B: Backend = Native> {
    allocator: &'a InodeAllocator<B>,
    inode: InodeNr,
    directory: bool,
    slot: CpuSlot,
    open: bool,
}

/// What bitmap and descriptor of a group must say after a change; the counts leave out claims of others that are not
/// committed.
///
/// Where descriptors carry checksums, using an inode also clears `BLOCK_UNINIT` of the same group: the caller writes
/// that group's block bitmap and its count of free clusters, which the allocator of blocks knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeUpdate {
    /// The inode.
    pub inode: InodeNr,
    /// Its group.
    pub group: GroupNr,
    /// Its index in the group's table and its bit in the group's bitmap.
    pub index: u32,
    /// Whether the bit is to be set (a new inode) or cleared.
    pub used: bool,
    /// The group was `INODE_UNINIT`: clear the flag and write the whole bitmap block, nothing used but this bit (and
    /// the padding).
    pub initialise_bitmap: bool,
    /// No inode at this index was ever used: the table's bytes there mean nothing and need not be read.
    pub first_use: bool,
    /// `bg_free_inodes_count`.
    pub free_inodes: u32,
    /// `bg_used_dirs_count`.
    pub used_dirs: u32,
    /// `bg_itable_unused`; 0 without descriptor checksums. Never grows.
    pub itable_unused: u32,
}

impl<'a, B: Backend> InodeClaim<'a, B> {
    pub(super) fn new(allocator: &'a InodeAllocator<B>, inode: InodeNr, request: &InodeRequest) -> Self {
        let last = allocator.geometry.inodes_count();
        assert!(
            (allocator.config.first_inode..=last).contains(&inode.raw()),
            "the claim on inode {inode} leaves {}..={last}",
            allocator.config.first_inode
        );
        Self { allocator, inode, directory: request.directory, slot: request.slot, open: true }
    }

    /// The claimed number.
    #[must_use]
    pub const fn inode(&self) -> InodeNr {
        self.inode
    }

    /// The group it lies in.
    #[must_use]
    pub fn group(&self) -> GroupNr {
        self.allocator.geometry.locate_inode(self.inode).0
    }

    /// Makes the inode used. `write` puts the change into the journaled bitmap and descriptor; it runs under the
    /// group's lock, so changes of one group are written in the order they happen.
    pub fn commit<R>(mut self, write: impl FnOnce(&InodeUpdate) -> R) -> R {
        self.open = false;
        let allocator = self.allocator;
        let (group, index) = allocator.geometry.locate_inode(self.inode);
        let mut state = allocator.lock(group, self.slot);
        let (initialise_bitmap, first_use) =
            state.commit(index, self.directory, allocator.geometry.inodes_per_group());
        let checksums = allocator.config.descriptor_checksums;
        let update = InodeUpdate {
            initialise_bitmap,
            first_use: first_use && checksums,
            ..allocator.update(self.inode, true, &state)
        };
        write(&update)
    }

    /// Gives the number back.
    pub fn release(self) {
        drop(self);
    }
}

impl<B: Backend> Drop for InodeClaim<'_, B> {
    fn drop(&mut self) {
        if self.open {
            let (group, index) = self.allocator.geometry.locate_inode(self.inode);
            let mut state = self.allocator.lock(group, self.slot);
            state.release(index, self.directory);
            self.allocator.counts.freed(group, self.directory, self.slot);
        }
    }
}

impl<B: Backend> fmt::Debug for InodeClaim<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InodeClaim")
            .field("inode", &self.inode)
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}
