//! Inode bitmaps and the counts that go with them.

use super::{GroupState, Groups};
use crate::Result;
use crate::cache::{BlockKind, Buffer};
use crate::txn::Handle;
use blockyard_alloc::inode::RecentDeletion;
use blockyard_disk::group_desc::GroupFlags;
use blockyard_disk::inode::RawInode;
use blockyard_disk::num::{u32_from_usize, u64_from_usize, usize_from_u32};
use blockyard_disk::{BlockNr, Corruption, CorruptionKind, GroupNr, InodeNr, bitmap};
use std::ops::Range;
use zerocopy::FromBytes;

/// What the group's descriptor says about inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InodeFacts {
    /// Free inodes.
    pub(crate) free: u32,
    /// Directories.
    pub(crate) directories: u32,
    /// Whether the bitmap was never written.
    pub(crate) uninit: bool,
    /// Never-used inodes at the end of the table.
    pub(crate) unused: u32,
}

impl Groups {
    /// Current counts of a group.
    pub(crate) fn inode_facts(&self, group: GroupNr) -> InodeFacts {
        let state = self.lock(group);
        InodeFacts {
            free: state.raw.free_inodes(),
            directories: state.raw.used_dirs(),
            uninit: state.flags.contains(GroupFlags::INODE_UNINIT),
            unused: self.unused(&state),
        }
    }

    /// Copies the current state of the group's inode bitmap, as much of it as `into` can hold.
    pub(crate) fn copy_inode_bitmap(&self, group: GroupNr, into: &mut [u8]) -> Result<()> {
        let raw = {
            let state = self.lock(group);
            if state.flags.contains(GroupFlags::INODE_UNINIT) {
                into.fill(0);
                return Ok(());
            }
            state.raw
        };
        let buffer = self.read_bitmap(group, &raw, BlockKind::InodeBitmap(group))?;
        buffer.read(|bytes| {
            let len = into.len().min(bytes.len());
            into[..len].copy_from_slice(&bytes[..len]);
        });
        Ok(())
    }

    /// Marks as used an inode that the allocator chose. Zeroes the table blocks that come into use.
    ///
    /// # Errors
    /// Corruption when the inode was marked already, or the group counts no free inode.
    pub(crate) fn mark_inode_used(&self, handle: &Handle<'_>, inode: InodeNr, directory: bool) -> Result<()> {
        let (group, index) = self.geometry().locate_inode(inode);
        self.pin_inode_bitmap(handle, group)?;
        let mut state = self.lock(group);
        let was_free = pinned(&state).write(|bits| {
            let free = !bitmap::test(bits, index);
            bitmap::set(bits, index);
            free
        });
        if !was_free {
            return Err(contradiction(group));
        }
        self.count_taken(handle, group, &mut state, (index, directory))
    }

    /// Marks an inode as free.
    ///
    /// # Errors
    /// Corruption when it was free already.
    pub(crate) fn mark_inode_free(&self, handle: &Handle<'_>, inode: InodeNr, directory: bool) -> Result<()> {
        let (group, index) = self.geometry().locate_inode(inode);
        self.pin_inode_bitmap(handle, group)?;
        let mut state = self.lock(group);
        let was_used = pinned(&state).write(|bits| {
            let used = bitmap::test(bits, index);
            bitmap::clear(bits, index);
            used
        });
        if !was_used {
            return Err(contradiction(group));
        }
        self.touch(handle, group, &mut state);
        let free = state.raw.free_inodes() + 1;
        state.raw.set_free_inodes(free);
        if directory {
            let directories = state.raw.used_dirs().saturating_sub(1);
            state.raw.set_used_dirs(directories);
        }
        Ok(())
    }

    /// When the inode at an index of the group's table was deleted, if its table block is in
    /// memory.
    pub(crate) fn deletion(&self, group: GroupNr, index: u32) -> Option<RecentDeletion> {
        let per_block = self.geometry().block_size() / usize::from(self.geometry().inode_size());
        let index = usize_from_u32(index);
        let block = BlockNr::new(self.places(group).inode_table.raw() + u64_from_usize(index / per_block));
        let buffer = self.cache.cached(block)?;
        let at = index % per_block * usize::from(self.geometry().inode_size());
        let deleted_at = buffer
            .read(|bytes| RawInode::ref_from_prefix(&bytes[at..]).ok().map(|(raw, _)| raw.i_dtime.get()))?;
        Some(RecentDeletion { deleted_at, dirty: buffer.is_dirty() })
    }

    /// The index in the group where the never-used inodes begin. Table blocks that hold only such
    /// inodes have arbitrary content and must not be read.
    pub(crate) fn never_used_from(&self, group: GroupNr) -> u32 {
        let state = self.lock(group);
        self.geometry().inodes_per_group() - self.unused(&state)
    }

    /// Loads the inode bitmap and joins it to the transaction, so that marking inodes reads
    /// nothing.
    pub(crate) fn pin_inode_bitmap(&self, handle: &Handle<'_>, group: GroupNr) -> Result<()> {
        let raw = {
            let mut state = self.lock(group);
            if let Some(bitmap) = &state.inode_bitmap {
                handle.join(bitmap);
                return Ok(());
            }
            if state.flags.contains(GroupFlags::INODE_UNINIT) {
                debug_assert!(
                    state.inode_bitmap.is_none(),
                    "group {group} has a bitmap and is said to have none"
                );
                let buffer = handle.create(self.places(group).inode_bitmap, BlockKind::InodeBitmap(group));
                buffer.write(|bits| bitmap::pad_from(bits, self.geometry().inodes_per_group()));
                self.clear_inode_uninit(handle, group, &mut state);
                state.inode_bitmap = Some(buffer);
                return Ok(());
            }
            state.raw
        };
        let buffer = self.read_bitmap(group, &raw, BlockKind::InodeBitmap(group))?;
        let mut state = self.lock(group);
        handle.join(state.inode_bitmap.get_or_insert(buffer));
        Ok(())
    }

    fn clear_inode_uninit(&self, handle: &Handle<'_>, group: GroupNr, state: &mut GroupState) {
        self.touch(handle, group, state);
        state.flags.remove(GroupFlags::INODE_UNINIT);
        let flags = state.raw.flags().difference(GroupFlags::INODE_UNINIT);
        state.raw.set_flags(flags);
    }

    fn count_taken(
        &self,
        handle: &Handle<'_>,
        group: GroupNr,
        state: &mut GroupState,
        (index, directory): (u32, bool),
    ) -> Result<()> {
        let Some(free) = state.raw.free_inodes().checked_sub(1) else { return Err(contradiction(group)) };
        self.touch(handle, group, state);
        state.raw.set_free_inodes(free);
        if directory {
            let directories = state.raw.used_dirs() + 1;
            state.raw.set_used_dirs(directories);
        }
        let behind = self.geometry().inodes_per_group() - index - 1;
        let unused = self.unused(state);
        if unused > behind {
            self.zero_table(handle, group, self.geometry().inodes_per_group() - unused..index + 1);
            state.raw.set_itable_unused(behind);
        }
        Ok(())
    }

    /// Zeroes table blocks, whose content is arbitrary until then. `indexes` are the inodes that
    /// come into use. A block is zeroed if its first inode is among them. The caller holds the
    /// group's lock, so nobody puts an inode into such a block before the block is zeroed.
    fn zero_table(&self, handle: &Handle<'_>, group: GroupNr, indexes: Range<u32>) {
        let inode_size = usize::from(self.geometry().inode_size());
        debug_assert!(!indexes.is_empty(), "no inode of group {group} begins to be used");
        let per_block = u32_from_usize(self.geometry().block_size() / inode_size);
        let table = self.places(group).inode_table.raw();
        for block in indexes.start.div_ceil(per_block)..indexes.end.div_ceil(per_block) {
            handle.create(BlockNr::new(table + u64::from(block)), BlockKind::Plain);
        }
    }

    fn unused(&self, state: &GroupState) -> u32 {
        let unused = if self.sb.features().has_group_checksum() { state.raw.itable_unused() } else { 0 };
        debug_assert!(unused <= self.geometry().inodes_per_group(), "{unused} inodes were never used");
        unused
    }
}

fn pinned(state: &GroupState) -> &Buffer {
    state.inode_bitmap.as_ref().expect("pinned while it is in a transaction, and the handle joined it")
}

fn contradiction(group: GroupNr) -> crate::Error {
    Corruption::new(CorruptionKind::InodeBitmapContradiction).in_group(group).into()
}
