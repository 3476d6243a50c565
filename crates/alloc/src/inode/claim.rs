//! A claim on an inode number: it is committed to bitmap and descriptor, or released.

use core::fmt;

use blockyard_disk::{GroupNr, InodeNr};
use blockyard_sync::{Backend, CpuSlot, Native};

use super::allocator::InodeAllocator;
use super::config::InodeRequest;
use super::update::InodeUpdate;

/// An inode number that nobody else can get. Dropping the claim releases the number, so a failed
/// operation leaks none.
#[must_use = "dropping a claim releases it"]
pub struct InodeClaim<'a, B: Backend = Native> {
    allocator: &'a InodeAllocator<B>,
    inode: InodeNr,
    directory: bool,
    slot: CpuSlot,
    open: bool,
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

    /// The group of the claimed inode.
    #[must_use]
    pub fn group(&self) -> GroupNr {
        self.allocator.geometry.locate_inode(self.inode).0
    }

    /// Commits the inode as used. `write` puts the change into the journaled bitmap and descriptor.
    /// It runs under the group's lock, so changes of one group are written in the order in which
    /// they happen. Returns what `write` returned.
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
            if state.is_corrupt() {
                self.allocator.counts.lost(1, self.slot);
            }
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
