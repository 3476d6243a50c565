//! Reads inodes from their table and joins them to transactions.

use super::{Encoding, Inode, InodeCore, Inodes, SlotBytes};
use crate::cache::{BlockKind, Buffer};
use crate::txn::Handle;
use crate::{Error, InodeRef, Result};
use blockyard_disk::inline_data::tail_of;
use blockyard_disk::inode::{Inode as VerifiedInode, InodeSlot};
use blockyard_disk::num::{u32_from_usize, u64_from_usize, usize_from_u32};
use blockyard_disk::{BlockNr, Corruption, InodeNr};
use blockyard_sync::{CpuSlot, Ordering};
use std::sync::Arc;

impl Inodes {
    /// The inode that `wanted` names, from memory or read from its table block.
    ///
    /// # Errors
    /// [`Error::StaleInode`] in three cases:
    /// * The number is out of range.
    /// * The inode is free, or is reserved and has no content.
    /// * `wanted` names a generation and the inode has another.
    ///
    /// Also corruption of the inode, and errors of the device.
    pub(crate) fn inode(&self, wanted: impl Into<InodeRef>) -> Result<Arc<Inode>> {
        let InodeRef { number, generation } = wanted.into();
        if number.raw() == 0 || number.raw() > self.sb.geometry().inodes_count() {
            return Err(Error::StaleInode(number));
        }
        let inode = self.table.get(number, || self.load_inode(number))?;
        if generation.is_some_and(|generation| generation != inode.id().generation) {
            return Err(Error::StaleInode(number));
        }
        Ok(inode)
    }

    fn load_inode(&self, number: InodeNr) -> Result<Inode> {
        self.load(number, false)
    }

    /// As [`Self::load_inode`], for inodes that are recorded as orphans, which may have no links.
    pub(crate) fn load_orphan(&self, number: InodeNr) -> Result<Inode> {
        self.load(number, true)
    }

    fn load(&self, number: InodeNr, orphan: bool) -> Result<Inode> {
        let (group, index) = self.sb.geometry().locate_inode(number);
        if index >= self.groups.never_used_from(group) {
            return Err(Error::StaleInode(number));
        }
        let (block, offset) = self.table_place(number);
        let buffer = self.cache.read(block, BlockKind::Plain, |_| Ok(()))?;
        let size = usize::from(self.sb.geometry().inode_size());
        let slot: Box<[u8]> = buffer.read(|bytes| Box::from(&bytes[offset..offset + size]));
        // A deleted inode keeps its mode, but its link count is 0. As in Linux, an inode without
        // links counts as deleted, unless its number is reserved.
        let gone = InodeSlot::new(&*slot).raw().i_links_count.get() == 0;
        if gone && !orphan && number >= self.sb.first_inode() {
            return Err(Error::StaleInode(number));
        }
        let found = VerifiedInode::parse(&self.sb, number, &slot).map_err(|found| {
            let unused = found.kind == blockyard_disk::CorruptionKind::InodeUnused;
            if unused { Error::StaleInode(number) } else { found.into() }
        })?;
        if found.map() == blockyard_disk::inode::InodeMap::Extents {
            crate::extents::check_node(found.block_field(), None, self.groups.system_zones())
                .map_err(|corruption| corruption.in_inode(number))?;
        }
        if found.map() == blockyard_disk::inode::InodeMap::Inline {
            // As in Linux (observed on 6.18), an inode whose inline data is damaged cannot even be
            // looked up.
            tail_of(found.slot().attribute_area()).map_err(|kind| Corruption::new(kind).in_inode(number))?;
        }
        let core = InodeCore::new(
            InodeSlot::new(SlotBytes::from_slice(found.slot().bytes())),
            found.map(),
            found.size(),
            found.sectors(),
            found.checksum_seed(),
        );
        let inode = Inode::new(number, found.file_type(), group, core, &self.names, self.rules.pages());
        self.presume_changed(&inode, &buffer);
        Ok(inode)
    }

    /// Counts the data of a loaded inode as not flushed. Counts its last change as not committed,
    /// unless the transaction that made it is durable. The inode may have left memory before its
    /// data was flushed or its change committed, and a request for durability must wait for both.
    /// `buffer` holds the inode's table block.
    fn presume_changed(&self, inode: &Inode, buffer: &Buffer) {
        inode.written.store(self.flushes.ticket(), Ordering::Relaxed);
        // Read the block's epoch before any transaction id. If this shows that a commit has taken
        // the block, the commit's transaction has already ended. So `last_to_change`, which is
        // called afterwards, returns that transaction or a later one.
        let changed_in = buffer.changed_in();
        let last = if self.rules.imitates_memory() && self.txns.has_changes() {
            // As in Linux (observed on 6.18), an inode that is loaded while a transaction runs
            // counts as changed in it.
            self.txns.running()
        } else {
            self.txns.last_to_change(changed_in)
        };
        if !self.txns.is_durable(last) {
            let mark = u64::from(last.raw()) + 1;
            inode.changed_in.store(mark, Ordering::Relaxed);
            inode.remapped_in.store(mark, Ordering::Relaxed);
        }
    }

    /// The buffer of an inode's table block and the byte offset in it.
    pub(crate) fn table_of(&self, number: InodeNr) -> Result<(Arc<Buffer>, usize)> {
        let (block, offset) = self.table_place(number);
        Ok((self.cache.read(block, BlockKind::Plain, |_| Ok(()))?, offset))
    }

    /// The table block of an inode and the byte offset in it.
    fn table_place(&self, number: InodeNr) -> (BlockNr, usize) {
        debug_assert!(
            (1..=self.sb.geometry().inodes_count()).contains(&number.raw()),
            "inode {number} is in no table"
        );
        let geometry = self.sb.geometry();
        let (group, index) = geometry.locate_inode(number);
        let per_block = geometry.block_size() / usize::from(geometry.inode_size());
        let index = usize_from_u32(index);
        let block = self.groups.inode_table(group).raw() + u64_from_usize(index / per_block);
        (BlockNr::new(block), index % per_block * usize::from(geometry.inode_size()))
    }

    /// Joins an inode to the transaction, so that changes that the caller makes before it unlocks
    /// the core reach the disk. Joining reads the table block and may fail, so it belongs before
    /// the first change of an operation.
    ///
    /// The creator of an inode may unlock the core before it makes its changes.
    /// [`Self::encode_waiting`] does not encode the inode meanwhile, because the creator has a
    /// reference to it.
    pub(crate) fn join_inode(
        &self,
        handle: &Handle<'_>,
        inode: &Arc<Inode>,
        core: &mut InodeCore,
    ) -> Result<()> {
        core.check_alive(inode.number())?;
        if inode.epoch() == handle.epoch() {
            return Ok(());
        }
        inode.changed_in.store(u64::from(handle.tid().raw()) + 1, Ordering::Relaxed);
        let (block, offset) = self.table_place(inode.number());
        debug_assert!(
            offset + core.slot.bytes().len() <= self.cache.block_size(),
            "inode {} ends in its block",
            inode.number()
        );
        let buffer = match &core.table {
            Some((buffer, _)) => Arc::clone(buffer),
            None => self.cache.read(block, BlockKind::Plain, |_| Ok(()))?,
        };
        if inode.is_dirty() {
            // The commit in progress has not encoded this inode yet.
            inode.encode_core(core, &self.encoding());
        }
        debug_assert_eq!(buffer.block(), block, "the inode's table block");
        handle.join(&buffer);
        core.table = Some((buffer, offset));
        inode.epoch.store(handle.epoch().raw(), Ordering::Relaxed);
        self.table.note_dirty(inode, handle.slot());
        Ok(())
    }

    /// If many inodes wait to be encoded on the handle's CPU slot, encodes up to two of those that
    /// changed longest ago, so that the table can drop them without waiting for the commit. Passes
    /// over an inode to which another thread has a reference: that thread may have joined the inode
    /// and not changed it yet. The caller holds no core lock.
    pub(crate) fn encode_waiting(&self, handle: &Handle<'_>) {
        for inode in std::iter::from_fn(|| self.table.take_waiting(handle.slot())).take(2) {
            inode.encode(handle.epoch(), &self.encoding());
        }
    }

    /// Notes that an inode's link in the orphan list was changed while the gate was closed, so
    /// outside any handle. The inode's table block is already in the running transaction. The
    /// caller holds the core lock.
    pub(crate) fn note_relinked(&self, inode: &Arc<Inode>) {
        let epoch = self.txns.epoch();
        if inode.epoch() != epoch {
            inode.epoch.store(epoch.raw(), Ordering::Relaxed);
            self.table.note_dirty(inode, CpuSlot::ZERO);
        }
    }

    /// What encoding an inode needs.
    pub(crate) fn encoding(&self) -> Encoding<'_> {
        Encoding {
            checksums: self.sb.checksums(),
            huge_file: self.sb.has_huge_file(),
            block_bits: self.sb.geometry().block_bits(),
            features: &self.features,
        }
    }

    /// Reads the table block of an inode to be created and joins it to the transaction. The group's
    /// inodes from index `unused_from` on were never used. If the block holds only such inodes,
    /// does nothing: the block then starts as zeroes.
    pub(crate) fn reserve_table_block(
        &self,
        handle: &Handle<'_>,
        number: InodeNr,
        unused_from: u32,
    ) -> Result<()> {
        let (_, index) = self.sb.geometry().locate_inode(number);
        let (block, offset) = self.table_place(number);
        let first_index = index - u32_from_usize(offset / usize::from(self.sb.geometry().inode_size()));
        if first_index < unused_from {
            handle.read_for_write(block, BlockKind::Plain, |_| Ok(()))?;
        }
        Ok(())
    }
}
