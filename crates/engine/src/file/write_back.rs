//! Write-back: from dirty blocks to mapped blocks on the device.
//!
//! Runs are written in ascending order of logical block, at most 2048 blocks at a time
//! (docs/behaviour/block-allocation.md). Write-back happens on request (fsync, sync, close, tick),
//! when much data is dirty, when space is short, and before operations that need the data on the
//! device (such as direct I/O). Without delayed allocation, write-back is part of each write.

use super::limits::{LOGGED_MAX, RUN_CREDITS};
use super::write::lower;
use super::writing::{Busy, Search};
use crate::extents::{Lookup, Tree};
use crate::file::Files;
use crate::file::LockedFile;
use crate::inode::Inode;
use crate::mapping::ExtentStore;
use crate::mapping::{How, Plan};
use crate::{Error, InodeRef, OpContext, Result};
use blockyard_disk::TxnId;
use blockyard_disk::inode::{FileType, InodeMap};
use blockyard_disk::num::{low32, u64_from_usize};
use blockyard_sync::{AtomicU64, Ordering};
use std::ops::Range;
use std::sync::Arc;

/// When a piece of an unwritten extent is written, a short remainder of the extent is zeroed rather
/// than kept as an extent of its own (Linux's `extent_max_zeroout_kb`). This is the most bytes that
/// the piece and the remainder may have together ([`Tree::initialised_with`]).
const ZEROED_BYTES_MAX: u32 = 32 << 10;

/// Where the beginning of a run is written to.
struct Target<'a> {
    /// The blocks of the run that are written and mapped in one go.
    piece: Range<u32>,
    /// The piece's first block on the device.
    physical: u64,
    /// How the piece will be mapped, if it is not mapped yet.
    plan: Option<Plan<'a>>,
    /// Whether the piece is mapped, but reads as zeroes.
    unwritten: bool,
}

impl Files {
    /// See [`crate::FileSystem::fsync`].
    pub(crate) fn fsync(&self, ctx: &OpContext, inode: InodeRef) -> Result<()> {
        let inode = self.volume.inodes.inode(inode)?;
        self.make_durable(ctx, &inode, &inode.changed_in)
    }

    /// See [`crate::FileSystem::fdatasync`].
    pub(crate) fn fdatasync(&self, ctx: &OpContext, inode: InodeRef) -> Result<()> {
        let inode = self.volume.inodes.inode(inode)?;
        self.make_durable(ctx, &inode, &inode.remapped_in)
    }

    /// Writes back, commits the transaction that `changed` names (see [`Inode::changed_in`]) unless
    /// it is durable, and flushes data of the inode that no commit has flushed.
    fn make_durable(&self, ctx: &OpContext, inode: &Arc<Inode>, changed: &AtomicU64) -> Result<()> {
        if self.volume.is_opened_read_only() {
            // A read-only instance has nothing dirty. Linux succeeds here, too.
            return Ok(());
        }
        if self.volume.has_failed() {
            self.volume.note_failure(ctx);
            return Err(Error::ReadOnly);
        }
        {
            let mut data = inode.write();
            self.locked(ctx, inode, &mut data).write_back()?;
            self.locked(ctx, inode, &mut data).end_io_beside()?;
            self.locked(ctx, inode, &mut data).convert_all()?;
        }
        if inode.lost_data.swap(false, Ordering::Relaxed) {
            return Err(Error::LostData(inode.number()));
        }
        if self.volume.rules.imitates_memory() && inode.kind() == FileType::Directory {
            // As in Linux (observed on 6.18), the running transaction is committed, whatever it has
            // changed.
            self.volume.commit_through(ctx, self.volume.txns.running())?;
        } else if let Some(tid) = changed.load(Ordering::Relaxed).checked_sub(1) {
            self.volume.commit_through(ctx, TxnId::new(low32(tid)))?;
        }
        self.volume.flushes.cover(inode.written.load(Ordering::Relaxed))
    }

    /// See [`crate::FileSystem::write_back_file`].
    pub(crate) fn write_back_file(&self, ctx: &OpContext, inode: InodeRef) -> Result<()> {
        let inode = self.volume.inodes.inode(inode)?;
        let mut data = inode.write();
        self.locked(ctx, &inode, &mut data).write_back()
    }

    /// See [`crate::FileSystem::write_back_all`].
    pub(crate) fn write_back_all(&self, ctx: &OpContext) -> Result<()> {
        self.write_back_until(ctx, i64::MAX)
    }

    /// See [`crate::FileSystem::tick`].
    pub(crate) fn tick(&self, ctx: &OpContext) -> Result<()> {
        let written = self.write_back_aged(ctx);
        if !self.volume.has_failed() {
            self.commit_aged(ctx)?;
        }
        written
    }

    /// See [`crate::FileSystem::write_back_aged`].
    pub(crate) fn write_back_aged(&self, ctx: &OpContext) -> Result<()> {
        if self.volume.is_opened_read_only() {
            return Ok(());
        }
        self.volume.check_writable()?;
        let age = i64::from(self.volume.options().data_expires_seconds);
        self.write_back_until(ctx, ctx.now.seconds.saturating_sub(age))
    }

    /// See [`crate::FileSystem::commit_aged`].
    pub(crate) fn commit_aged(&self, ctx: &OpContext) -> Result<()> {
        if self.volume.is_opened_read_only() || !self.volume.is_commit_due(ctx) {
            return Ok(());
        }
        self.volume.check_writable()?;
        self.volume.commit_if(ctx, || self.volume.is_commit_due(ctx))
    }

    /// Writes back the files whose data became dirty at `seconds` or before.
    fn write_back_until(&self, ctx: &OpContext, seconds: i64) -> Result<()> {
        let mut all = Ok(());
        for inode in self.dirty_files(seconds) {
            let mut data = inode.write();
            all = all.and(self.locked(ctx, &inode, &mut data).write_back_listed(Busy::Await));
        }
        all.and(self.end_all_io(ctx))
    }

    /// Files whose data became dirty at `seconds` or before, in the order in which they became
    /// dirty. Files that become dirty meanwhile are not included.
    fn dirty_files(&self, seconds: i64) -> Vec<Arc<Inode>> {
        let is_due = |inode: &Arc<Inode>| inode.dirty_since.get().is_some_and(|(_, at)| at <= seconds);
        self.volume.inodes.table.dirty_files().filter(is_due).collect()
    }

    /// Sets the size on disk to the size that users see. Call when no data of the file is dirty.
    pub(super) fn settle_size(&self, ctx: &OpContext, inode: &Arc<Inode>) -> Result<()> {
        let behind = {
            let core = inode.core();
            !core.deleted && core.map != InodeMap::Inline && core.size != core.slot.raw().size()
        };
        if behind && inode.kind() == FileType::Regular {
            let handle = self.volume.begin(ctx, RUN_CREDITS)?;
            let mut core = inode.core_mut();
            self.volume.inodes.join_inode(&handle, inode, &mut core)?;
            let size = core.size;
            core.slot.raw_mut().set_size(size);
            inode.note_remapped(&handle);
        }
        Ok(())
    }

    /// Where the beginning of a run is written to: the blocks to which it is mapped (`here` is its
    /// lookup), or blocks chosen now.
    fn target(&self, ctx: &OpContext, inode: &Inode, here: &Lookup, run: Range<u32>) -> Result<Target<'_>> {
        if let Some(extent) = here.found {
            let piece = run.start..extent.end().min(run.end);
            debug_assert!(extent.logical <= run.start && run.start < extent.end(), "{extent:?} at {run:?}");
            let physical = extent.physical + u64::from(run.start - extent.logical);
            return Ok(Target { piece, physical, plan: None, unwritten: extent.unwritten });
        }
        let how = How { unwritten: false, pool: self.volume.rules.place, exact: false };
        let wanted = (run.start, run.end - run.start);
        let plan = self.mapping.plan_blocks(ctx, inode, &inode.core(), here, wanted, how)?;
        debug_assert!(
            plan.extent.logical == run.start && plan.extent.end() <= run.end,
            "{plan:?} for {run:?}"
        );
        let (piece, physical) = (run.start..run.start + plan.extent.len, plan.extent.physical);
        Ok(Target { piece, physical, plan: Some(plan), unwritten: false })
    }

    /// Maps a piece as `plan` says. If there is no plan, the piece is mapped as unwritten already,
    /// and this makes it written. The piece's data must be on the device. `written` is the whole
    /// range that becomes written with the piece ([`Self::zero_around`]). `is_last` says that no
    /// other block is dirty, no piece is unconverted, and no observer reports the ends of I/O.
    ///
    /// In a file with extents, under delayed allocation, the piece is left unwritten for now unless
    /// `is_last`. Returns true if that was done.
    fn map_written(
        &self,
        ctx: &OpContext,
        inode: &Arc<Inode>,
        (piece, written): (&Range<u32>, Range<u32>),
        plan: Option<Plan<'_>>,
        is_last: bool,
    ) -> Result<bool> {
        debug_assert!(
            written.start <= piece.start && piece.end <= written.end,
            "{written:?} without {piece:?}"
        );
        let handle = self.volume.begin(ctx, RUN_CREDITS)?;
        let rules = &self.volume.rules;
        handle.set_pool(if plan.is_some() { rules.place } else { rules.convert });
        let mut core = inode.core_mut();
        self.volume.inodes.join_inode(&handle, inode, &mut core)?;
        let later = self.volume.delays_allocation() && core.map == InodeMap::Extents && !is_last;
        if let Some(mut plan) = plan {
            plan.extent.unwritten = later;
            self.mapping.apply_plan(ctx, &handle, inode, &mut core, plan)?;
        } else {
            self.mapping.edit_tree(ctx, &handle, inode, &mut core, |tree| {
                // Without delayed allocation, a written extent beside the piece may take over the
                // piece's blocks, if nothing was zeroed around the piece.
                let may_move = !self.volume.delays_allocation() && written == *piece;
                match (later, may_move) {
                    (true, _) => tree.separate(piece),
                    (false, true) => tree.initialise(written),
                    (false, false) => tree.set_state(written, false),
                }
            })?;
        }
        // Unconverted blocks read as zeroes after a crash: the size on disk must not cover them.
        if !later {
            self.raise_disk_size(&mut core, piece.end);
        }
        inode.note_remapped(&handle);
        Ok(later)
    }

    /// Zeroes the blocks around `piece` of an unwritten extent that become written together with it
    /// ([`Tree::initialised_with`]). Returns the whole range that becomes written.
    fn zero_around(&self, inode: &Inode, piece: Range<u32>, physical: u64) -> Result<Range<u32>> {
        let bits = self.volume.geometry().block_bits();
        let mut core = inode.core_mut();
        let size = core.slot.raw().size().div_ceil(1 << bits);
        let end_of_file = u32::try_from(size).unwrap_or(u32::MAX).max(piece.end);
        let store = ExtentStore::reader(&self.mapping, inode, core.seed);
        let tree = Tree::new(core.root_mut(), &store);
        let written = tree.initialised_with(piece.clone(), end_of_file, ZEROED_BYTES_MAX >> bits)?;
        for blocks in [written.start..piece.start, piece.end..written.end] {
            let place = physical + u64::from(blocks.start) - u64::from(piece.start);
            if !blocks.is_empty() {
                self.store.write_zeroes(place << bits, u64::from(blocks.end - blocks.start) << bits)?;
            }
        }
        Ok(written)
    }

    /// Raises the size on disk so that it covers the blocks before `end`, but at most to the size
    /// that users see.
    pub(super) fn raise_disk_size(&self, core: &mut crate::inode::InodeCore, end: u32) {
        let written = u64::from(end) << self.volume.geometry().block_bits();
        let on_disk = core.slot.raw().size();
        let size = core.size.min(on_disk.max(written));
        debug_assert!(
            size >= on_disk || core.size < on_disk,
            "the size on disk falls from {on_disk} to {size}"
        );
        core.slot.raw_mut().set_size(size);
    }
}

impl LockedFile<'_> {
    /// Writes back a file whose turn has come, and takes it off the list of dirty files. If folios
    /// were passed over, puts the file at the end of the list. If the file cannot be written, it
    /// stays on the list, and its next fsync reports the failure.
    pub(super) fn write_back_listed(&mut self, busy: Busy) -> Result<()> {
        let written = self.write_back_with(busy);
        if written.is_ok() {
            self.files.volume.inodes.table.note_clean_data(self.inode);
            if !self.inode.waiting().dirty.is_empty() {
                self.files.note_dirtied(self.ctx, self.inode);
            }
        }
        self.inode.note_lost(&written);
        written
    }

    /// Writes back the dirty files in the order in which they became dirty: this file, whose
    /// content lock the caller holds, and others that nobody uses now. If a file cannot be written,
    /// its next fsync reports that.
    pub(super) fn write_back_beside(&mut self) -> Result<()> {
        for other in self.files.dirty_files(i64::MAX) {
            if Arc::ptr_eq(&other, self.inode) {
                drop(self.write_back_listed(Busy::PassOver));
            } else if let Some(mut data) = other.try_write() {
                drop(self.files.locked(self.ctx, &other, &mut data).write_back_listed(Busy::PassOver));
            }
            self.files.volume.check_writable()?;
        }
        Ok(())
    }

    /// Writes the dirty blocks from a logical block on.
    pub(crate) fn write_back_from(&mut self, from: u32) -> Result<()> {
        self.write_back_range(from..u32::MAX)
    }

    /// Writes the dirty blocks of a range. If the file then has neither dirty nor unconverted
    /// blocks left, the size on disk becomes the size that users see: nothing later would raise it.
    pub(crate) fn write_back_range(&mut self, range: Range<u32>) -> Result<()> {
        let goes_in_part = {
            let dirty = &self.inode.waiting().dirty;
            dirty.first_in(range.clone()).is_some() && dirty.has_more_than(&range)
        };
        if goes_in_part {
            // The blocks that stay dirty may later be mapped between those that are mapped now.
            self.reserve_for_change(0)?;
        }
        self.write_range(range, Busy::Await)?;
        self.settle_mapping_reservation();
        self.settle_size_if_clean()
    }

    fn settle_size_if_clean(&self) -> Result<()> {
        let is_all = self.inode.waiting().is_empty();
        if is_all { self.files.settle_size(self.ctx, self.inode) } else { Ok(()) }
    }

    fn write_range(&mut self, range: Range<u32>, busy: Busy) -> Result<()> {
        let mut search = Search { range, rest: 0..0, busy };
        let mut result = Ok(());
        while let Some(run) = self.files.writing.next_run(self, &search) {
            debug_assert!(
                search.range.start <= run.start && run.start < run.end,
                "{run:?} of {:?}",
                search.range
            );
            search.range.start = run.start;
            self.end_io_beside()?;
            // As in Linux, a retry is not limited to the rest of a folio.
            let mut run = Some(run);
            let written = self.files.volume.patiently(self.ctx, || {
                let run = match run.take() {
                    Some(run) => run,
                    None => {
                        search.rest = 0..0;
                        let run = self.run_again(&search)?;
                        search.range.start = run.as_ref().map_or(search.range.end, |run| run.start);
                        let Some(run) = run else { return Ok(None) };
                        run
                    }
                };
                let written = self.write_run(run);
                if let Err(Error::NoSpace) = written {
                    // Pieces whose I/O has ended must be converted before `patiently` commits for
                    // the next try.
                    self.end_io_beside()?;
                }
                written
            });
            match written {
                // No mapping was changed, or the data is logged. `search.rest` stays as it is.
                Ok(None) => {}
                Ok(Some(end)) => {
                    search.rest = self.files.writing.rest_of_request(self, end);
                    self.files.writing.note_piece_mapped();
                }
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        // Even after an error, blocks whose data is on the device must not stay unwritten.
        let converted = if self.files.writing.is_told_of_io() { Ok(()) } else { self.convert_all() };
        result.and(converted)
    }

    /// Looks again for dirty blocks to request, after a request found no space. `next_run` stands
    /// for Linux's walk over the dirty folios, which leaves busy folios out. A folio that was busy
    /// at the walk stays left out even if its I/O ends before the request: Linux maps only the
    /// folios that its walk found.
    fn run_again(&mut self, search: &Search) -> Result<Option<Range<u32>>> {
        self.end_io_beside()?;
        self.files.writing.note_walks_again();
        let run = self.files.writing.next_run(self, search);
        self.end_io_beside()?;
        Ok(run)
    }

    /// Writes all dirty blocks of a file whose content lock the caller holds.
    pub(crate) fn write_back(&mut self) -> Result<()> {
        self.write_back_with(Busy::Await)
    }

    fn write_back_with(&mut self, busy: Busy) -> Result<()> {
        self.write_range(0..u32::MAX, busy)?;
        debug_assert!(
            busy == Busy::PassOver || self.inode.waiting().dirty.is_empty(),
            "dirty blocks are left after a write-back"
        );
        self.settle_mapping_reservation();
        debug_assert!(
            !self.inode.waiting().dirty.is_empty() || self.data.reserved_len() == 0,
            "space is reserved for no data"
        );
        self.discard_if_unneeded();
        self.settle_size_if_clean()
    }

    /// Writes the beginning of a run: as much as is mapped, or can be mapped, in one piece. Returns
    /// where the written piece ends if this changed the mapping and the data is not logged. If a
    /// write-back under delayed allocation maps several pieces of a file with extents, they stay
    /// unwritten until all are mapped, as in Linux.
    fn write_run(&mut self, run: Range<u32>) -> Result<Option<u32>> {
        let (here, logged) = {
            let core = self.inode.core();
            (
                self.files.mapping.lookup_block(self.inode, &core, run.start)?,
                self.files.mapping.logs_data(self.inode, &core),
            )
        };
        let run = if logged { run.start..run.end.min(run.start.saturating_add(LOGGED_MAX)) } else { run };
        let Target { piece, physical, plan, unwritten } =
            self.files.target(self.ctx, self.inode, &here, run)?;
        if logged {
            self.log_piece((piece.clone(), physical), (plan, unwritten))?;
            self.files.end_reservations(self.ctx, self.inode, self.data, &piece);
            self.forget_dirty(piece);
            return Ok(None);
        }
        let written = if unwritten && !self.files.volume.delays_allocation() {
            self.files.zero_around(self.inode, piece.clone(), physical)?
        } else {
            piece.clone()
        };
        self.write_blocks(piece.clone(), physical)?;
        self.inode.note_written(&self.files.volume.flushes);
        let changes = plan.is_some() || unwritten;
        if changes {
            let is_last = {
                let waiting = self.inode.waiting();
                waiting.unconverted.is_empty()
                    && !waiting.dirty.has_more_than(&piece)
                    && !self.files.writing.is_told_of_io()
            };
            if self.files.map_written(self.ctx, self.inode, (&piece, written), plan, is_last)? {
                self.inode.waiting_mut().unconverted.push(piece.clone());
            }
        }
        let waited = self.data.reserved_len() > 0;
        self.files.end_reservations(self.ctx, self.inode, self.data, &piece);
        if waited {
            self.discard_if_unneeded();
        }
        let end = piece.end;
        debug_assert!(piece.start < end, "a piece of a run has blocks");
        self.forget_dirty(piece);
        Ok(changes.then_some(end))
    }

    /// Discards preallocations if no data waits for allocation and nobody has the file open for
    /// writing. As in Linux this happens at once: the file's own next tree block may already take
    /// the discarded clusters.
    fn discard_if_unneeded(&self) {
        if self.data.reserved_len() == 0 && !self.inode.opens.has_writer() {
            self.files.volume.space.discard_preallocations(self.ctx, self.inode);
        }
    }

    /// Drops the dirty blocks of a range.
    pub(crate) fn forget_dirty(&mut self, blocks: Range<u32>) {
        self.data.pages.forget_kinds(&blocks);
        let dropped = self.inode.waiting_mut().dirty.drop_range(blocks);
        lower(&self.files.dirty_bytes, u64_from_usize(dropped * self.files.volume.block_size()));
    }

    /// Forgets the pages of a byte range, even if they have dirty data. A folio that is only partly
    /// in the range and has dirty data outside it stays.
    pub(crate) fn forget_pages(&mut self, bytes: Range<u64>) {
        let bits = self.files.volume.geometry().block_bits();
        self.data.forget_pages(bytes, bits, &self.inode.waiting().dirty);
    }

    /// Writes dirty blocks to the device, straight from their buffers. Readers may continue
    /// meanwhile.
    fn write_blocks(&self, blocks: Range<u32>, physical: u64) -> Result<()> {
        let place = physical << self.files.volume.geometry().block_bits();
        let waiting = self.inode.waiting();
        self.files.store.write(place, &waiting.dirty.slices(blocks))
    }
}
