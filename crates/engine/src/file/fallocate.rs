//! `fallocate`: allocating ahead, punching, zeroing, collapsing and inserting ranges of a file.

use super::limits::{FREE_CREDITS, RUN_CREDITS};
use super::times::Touched;
use super::truncate::Why;
use crate::extents::UNWRITTEN_MAX;
use crate::file::Files;
use crate::file::LockedFile;
use crate::mapping::How;
use crate::pool::Pool;
use crate::{Error, InodeRef, OpContext, Result};
use blockyard_disk::inode::{InodeFlags, InodeMap};
use blockyard_disk::num::{u32_from_u64, u64_from_u32, u64_from_usize};
use std::ops::Range;

/// What `fallocate` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallocate {
    /// Allocate the holes of the range as unwritten; the size grows over the range.
    Allocate,
    /// Allocate the holes of the range as unwritten; the size stays.
    AllocateKeepSize,
    /// Free the range; it reads as zeroes, the size stays.
    PunchHole,
    /// Allocate the range and make it read as zeroes; the size grows over it.
    ZeroRange,
    /// As [`Fallocate::ZeroRange`]; the size stays.
    ZeroRangeKeepSize,
    /// Remove the range, which must be whole clusters: what follows moves down.
    CollapseRange,
    /// Insert the range, which must be whole clusters, as a hole: what follows moves up.
    InsertRange,
}

/// How a range is preallocated.
#[derive(Clone, Copy)]
struct Ahead {
    /// Whether the size stays.
    keep: bool,
    /// Whether written blocks become unwritten.
    zero: bool,
}

/// Bytes of a page. Linux rounds the end of some holes to pages.
const PAGE: u64 = 4096;

/// Where the piece that starts at `at` ends: at the end of the delayed run that contains `at`, or
/// else before the next delayed run, at most at `end`.
fn piece_end(delayed: &[Range<u32>], at: u32, end: u32) -> u32 {
    let next = delayed.iter().find(|run| run.end > at);
    next.map_or(end, |run| if run.start <= at { run.end } else { run.start.min(end) })
}

impl Files {
    /// See [`crate::FileSystem::fallocate`].
    pub(crate) fn fallocate(
        &self,
        ctx: &OpContext,
        inode: InodeRef,
        what: Fallocate,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let inode = self.writable_file(inode)?;
        if len == 0 {
            return Err(Error::Invalid("empty range"));
        }
        let end = offset.checked_add(len).ok_or(Error::FileTooLarge)?;
        let mut data = inode.write();
        let (map, flags) = {
            let core = inode.core();
            core.check_alive(inode.number())?;
            (core.map, core.flags())
        };
        if end > self.size_limit(map) {
            return Err(Error::FileTooLarge);
        }
        let only_allocates = matches!(what, Fallocate::Allocate | Fallocate::AllocateKeepSize);
        if flags.contains(InodeFlags::APPEND) && !only_allocates {
            return Err(Error::NotPermitted);
        }
        self.locked(ctx, &inode, &mut data).leave_inline_now()?;
        if inode.core().map != InodeMap::Extents && what != Fallocate::PunchHole {
            return Err(Error::NotSupported("fallocate of a file without extents"));
        }
        if inode.core().times_change(ctx) {
            self.note_dirtied(ctx, &inode);
        }
        let data = &mut *data;
        let done = match what {
            Fallocate::Allocate => self.locked(ctx, &inode, data).allocate_ahead(offset..end, false),
            Fallocate::AllocateKeepSize => self.locked(ctx, &inode, data).allocate_ahead(offset..end, true),
            Fallocate::PunchHole => self.locked(ctx, &inode, data).punch(offset..end),
            Fallocate::ZeroRange => self.locked(ctx, &inode, data).zero_range(offset..end, false),
            Fallocate::ZeroRangeKeepSize => self.locked(ctx, &inode, data).zero_range(offset..end, true),
            Fallocate::CollapseRange => self.locked(ctx, &inode, data).collapse(offset..end),
            Fallocate::InsertRange => self.locked(ctx, &inode, data).insert_range(offset..end),
        };
        if let Err(Error::Invalid(_) | Error::FileTooLarge) = done {
            // As in Linux (observed on 6.18) the times change even if the range is refused for its
            // position or alignment, or because an insertion would make the file too large.
            self.locked(ctx, &inode, data).touch_times(Touched::Times)?;
        }
        done
    }

    /// The blocks that a range of bytes touches.
    fn touched_blocks(&self, bytes: &Range<u64>) -> (u32, u32) {
        let bits = self.volume.geometry().block_bits();
        (u32_from_u64(bytes.start >> bits), u32_from_u64(bytes.end.div_ceil(1 << bits)))
    }

    /// The blocks that lie wholly inside a range of bytes.
    fn whole_blocks(&self, bytes: &Range<u64>) -> Range<u32> {
        let bits = self.volume.geometry().block_bits();
        let first = u32_from_u64(bytes.start.div_ceil(1 << bits));
        first..u32_from_u64(bytes.end >> bits).max(first)
    }

    fn check_cluster_aligned(&self, bytes: &Range<u64>) -> Result<()> {
        let cluster = u64_from_usize(self.volume.block_size()) << self.volume.geometry().cluster_ratio_bits();
        let aligned = bytes.start.is_multiple_of(cluster) && bytes.end.is_multiple_of(cluster);
        if aligned { Ok(()) } else { Err(Error::Invalid("the range is not aligned to clusters")) }
    }
}

impl LockedFile<'_> {
    fn allocate_ahead(&mut self, bytes: Range<u64>, keep: bool) -> Result<()> {
        let (first, end) = self.files.touched_blocks(&bytes);
        let delayed = self.inode.waiting().dirty.runs_in(first..end);
        self.allocate_range(&delayed, bytes, Ahead { keep, zero: false })
    }

    /// Allocates every hole of the range as unwritten, one handle per piece. With `zero`, makes
    /// written blocks unwritten. As in Linux, a piece of a hole ends where `delayed` blocks begin
    /// or end. The delayed blocks are allocated too.
    fn allocate_range(&mut self, delayed: &[Range<u32>], bytes: Range<u64>, ahead: Ahead) -> Result<()> {
        let (first, end) = self.files.touched_blocks(&bytes);
        let old_size = self.inode.core().size;
        if !ahead.keep && bytes.end > old_size {
            let bits = self.files.volume.geometry().block_bits();
            [old_size, bytes.end].into_iter().for_each(|edge| self.data.pages.note_edge(edge, bits));
            self.clear_behind_end()?;
        }
        let exact = end - first <= UNWRITTEN_MAX;
        let how = How { unwritten: true, pool: Pool::Ordinary, exact };
        let mut at = first;
        let mut tries = 0;
        while at < end {
            self.end_io_beside()?;
            match self.allocate_piece((at..end, delayed), bytes.end, (ahead, how)) {
                Ok(Some(done)) => (at, tries) = (done, 0),
                Ok(None) => {
                    self.write_back()?;
                    // The write-back may have filled blocks that must read as zeroes: begin anew.
                    at = if ahead.zero { first } else { at };
                }
                Err(Error::NoSpace) => {
                    self.end_io_beside()?;
                    self.files.volume.retry_after_commit(self.ctx, &mut tries)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Handles the first piece of a range. If the piece is a hole, maps it. Returns where the piece
    /// ends, or `None`, with the mapping unchanged, if the file's delayed data must be written back
    /// first.
    fn allocate_piece(
        &mut self,
        (range, delayed): (Range<u32>, &[Range<u32>]),
        size: u64,
        (Ahead { keep, zero }, how): (Ahead, How),
    ) -> Result<Option<u32>> {
        let at = range.start;
        debug_assert!(!range.is_empty(), "a piece of nothing");
        let handle = self.files.volume.begin(self.ctx, RUN_CREDITS)?;
        let mut core = self.inode.core_mut();
        let here = self.files.mapping.lookup_block(self.inode, &core, at)?;
        let some_wait = !delayed.is_empty();
        let waits = some_wait && here.found.is_none() && self.inode.waiting().dirty.block(at).is_some();
        let pool = if waits { self.files.volume.rules.ahead_of_data } else { Pool::Ordinary };
        let how = How { pool, ..how };
        // If the blocks are mapped, only their state changes, and only tree nodes are allocated.
        handle.set_pool(if here.found.is_some() { self.files.volume.rules.zero } else { pool });
        if !zero {
            self.data.pages.note_gaps(core.extent_root());
        }
        let most = match here.found {
            Some(extent) => extent.end().min(range.end).min(at.saturating_add(UNWRITTEN_MAX)),
            None => {
                self.data.pages.note_hole(&here, at);
                piece_end(delayed, at, range.end).min(self.data.pages.hole_end(at).unwrap_or(u32::MAX))
            }
        };
        // One entry for the piece, two for the remainders beside it, and two for the remainders
        // beside each run of dirty blocks in it.
        let runs = if some_wait { self.inode.waiting().dirty.runs_in(at..most).len() } else { 0 };
        let entries = 3 + 2 * runs;
        if !self.reserve_entries(&core, entries) {
            return Ok(None);
        }
        self.files.volume.inodes.join_inode(&handle, self.inode, &mut core)?;
        // As in Linux, fdatasync will commit this transaction, even if all was already allocated.
        self.inode.note_remapped(&handle);
        let done = if let Some(extent) = here.found {
            if zero && !extent.unwritten {
                self.files.mapping.edit_tree(self.ctx, &handle, self.inode, &mut core, |tree| {
                    tree.set_state(at..most, true)
                })?;
            }
            most
        } else {
            let plan =
                self.files.mapping.plan_blocks(self.ctx, self.inode, &core, &here, (at, most - at), how)?;
            let done = plan.extent.end();
            self.files.mapping.apply_plan(self.ctx, &handle, self.inode, &mut core, plan)?;
            self.files.end_reservations(self.ctx, self.inode, self.data, &(at..done));
            self.data.pages.forget_holes(at..done);
            self.files.note_dirtied(self.ctx, self.inode);
            done
        };
        debug_assert!(at < done && done <= range.end, "{done} in {range:?}");
        let reached = (u64::from(done) << self.files.volume.geometry().block_bits()).min(size);
        if !keep && reached > core.size {
            core.set_size(reached);
        }
        core.touch(self.ctx);
        Ok(Some(done))
    }

    /// Zeroes the parts of a range that are inside the file but not whole blocks.
    fn zero_edges(&mut self, bytes: &Range<u64>) -> Result<()> {
        let block = u64_from_usize(self.files.volume.block_size());
        let end = bytes.end.min(self.inode.core().size);
        let head_end = bytes.start.next_multiple_of(block);
        let tail_start = head_end.max(bytes.end - bytes.end % block);
        for edge in [bytes.start..head_end.min(end), tail_start..end] {
            if !edge.is_empty() {
                self.zero_bytes(edge)?;
            }
        }
        Ok(())
    }

    /// Makes a hole, as Linux does (observed on 6.18). A hole that goes beyond the end of the file
    /// ends with the page that holds the last byte of the file, so the last block is freed as a
    /// whole. A hole that starts at or behind the end of the file frees nothing: blocks
    /// preallocated there stay.
    fn punch(&mut self, bytes: Range<u64>) -> Result<()> {
        let size = self.inode.core().size;
        let page = PAGE.max(u64_from_usize(self.files.volume.block_size()));
        let limit = self.files.size_limit(self.inode.core().map);
        let end = if bytes.end > size { size.next_multiple_of(page).min(limit) } else { bytes.end };
        let bytes = bytes.start..end;
        if bytes.start >= size {
            return self.touch_times(Touched::Times);
        }
        self.zero_edges(&bytes)?;
        let whole = self.files.whole_blocks(&bytes);
        self.forget_pages(bytes);
        if !whole.is_empty() {
            self.free_range(whole.clone(), Why::Hole)?;
            self.data.pages.remember_hole(whole);
        }
        self.touch_times(Touched::Content)
    }

    fn zero_range(&mut self, bytes: Range<u64>, keep: bool) -> Result<()> {
        let (whole, all) = (self.files.whole_blocks(&bytes), bytes.clone());
        let (first, end) = self.files.touched_blocks(&bytes);
        let delayed = self.inode.waiting().dirty.runs_in(first..end);
        let aligned = u64_from_u32(whole.end - whole.start) << self.files.volume.geometry().block_bits()
            == bytes.end - bytes.start;
        // As in Linux: if the range touches blocks in part, everything is allocated before anything
        // becomes unwritten. Otherwise both happen extent by extent.
        let ahead = Ahead { keep, zero: aligned };
        let edges = [bytes.start, bytes.end];
        let bits = self.files.volume.geometry().block_bits();
        let allocated = self.allocate_range(&delayed, bytes, ahead);
        if allocated.is_ok() {
            edges.into_iter().for_each(|edge| self.data.pages.note_edge(edge, bits));
        }
        if whole.is_empty() {
            allocated?;
        } else {
            let zeroed = allocated.and_then(|()| self.zero_blocks(&whole, aligned));
            self.settle_reservations(&whole);
            zeroed?;
        }
        self.forget_pages(all.clone());
        // As in Linux, the edges come last. Zeroing them looks up blocks and remembers the holes
        // that it finds, and a remembered hole would change the requests above.
        self.zero_edges(&all)?;
        self.touch_times(Touched::Content)
    }

    /// Makes allocated blocks unwritten, unless they already are, and forgets their dirty content.
    fn zero_blocks(&mut self, blocks: &Range<u32>, are_unwritten: bool) -> Result<()> {
        if !are_unwritten {
            let entries = 2 + 2 * self.inode.waiting().dirty.runs_in(blocks.clone()).len();
            self.reserve_for_change(entries)?;
            self.files.mark_unwritten(self.ctx, self.inode, blocks.clone())?;
        }
        // The order matters. Nobody reads a dirty block from the device. But readers would get the
        // old data of a block that is no longer dirty and still counts as unconverted.
        self.inode.waiting_mut().unconverted.take(blocks);
        self.forget_dirty(blocks.clone());
        Ok(())
    }

    fn collapse(&mut self, bytes: Range<u64>) -> Result<()> {
        self.files.check_cluster_aligned(&bytes)?;
        if bytes.end >= self.inode.core().size {
            return Err(Error::Invalid("the range reaches the end of the file"));
        }
        // Dirty data must be allocated before it moves. As in Linux the folios at the ends of the
        // range are written whole.
        let blocks = self.files.whole_blocks(&bytes);
        debug_assert!(!blocks.is_empty(), "whole clusters have blocks");
        let bits = self.files.volume.geometry().block_bits();
        self.reserve_for_change(2)?;
        let (first, behind) =
            (self.data.pages.around(blocks.start, bits), self.data.pages.around(blocks.end, bits));
        self.write_back_range(first)?;
        self.write_back_from(behind.start)?;
        self.convert_all()?;
        self.forget_pages(bytes.start..u64::MAX);
        let shift = self.files.prepare_shift(self.inode, blocks.start)?;
        self.prepare_hole(&blocks)?;
        let _shape = self.inode.change_shape();
        let mut end = blocks.end;
        // The handle that frees the last part of the range also moves the tail. So if one handle
        // can free the whole range, a crash leaves the range removed entirely or not at all.
        let (handle, mut core) = loop {
            let handle = self.files.volume.begin(self.ctx, shift.credits + FREE_CREDITS)?;
            handle.set_pool(Pool::Reserve);
            let mut core = self.inode.core_mut();
            self.files.volume.inodes.join_inode(&handle, self.inode, &mut core)?;
            end = self.files.free_mapped(
                self.ctx,
                &handle,
                self.inode,
                &mut core,
                blocks.start..end,
                shift.credits,
            )?;
            if end == blocks.start {
                break (handle, core);
            }
        };
        self.forget_dirty(blocks.clone());
        self.data.pages.forget_holes(blocks.start..u32::MAX);
        let size = core.size - (bytes.end - bytes.start);
        let shifted = self.files.mapping.edit_tree(self.ctx, &handle, self.inode, &mut core, |tree| {
            tree.collapse(blocks.clone(), |_| {})
        });
        self.files.volume.apply(shifted)?;
        core.set_size(size);
        core.touch(self.ctx);
        drop(core);
        drop(handle);
        self.settle_reservations(&blocks);
        Ok(())
    }

    fn insert_range(&mut self, bytes: Range<u64>) -> Result<()> {
        self.files.check_cluster_aligned(&bytes)?;
        let len = bytes.end - bytes.start;
        let size = self.inode.core().size;
        if bytes.start >= size {
            return Err(Error::Invalid("the range starts at or behind the end of the file"));
        }
        if size.checked_add(len).is_none_or(|size| size > self.files.size_limit(InodeMap::Extents)) {
            return Err(Error::FileTooLarge);
        }
        let blocks = self.files.whole_blocks(&bytes);
        debug_assert!(!blocks.is_empty(), "whole clusters have blocks");
        let first = self.data.pages.around(blocks.start, self.files.volume.geometry().block_bits());
        self.reserve_for_change(2)?;
        self.write_back_from(first.start)?;
        self.convert_all()?;
        self.forget_pages(bytes.start..u64::MAX);
        self.files.volume.space.discard_preallocations(self.ctx, self.inode);
        let shift = self.files.prepare_shift(self.inode, blocks.start)?;
        let _shape = self.inode.change_shape();
        let handle = self.files.volume.begin(self.ctx, shift.credits)?;
        // If a split needs a tree node, its block may come from the file system's reserve.
        handle.set_pool(Pool::Reserve);
        let mut core = self.inode.core_mut();
        let last = self.files.mapping.lookup_block(self.inode, &core, u32::MAX - 1)?;
        if last.found.or(last.left).is_some_and(|e| {
            u64_from_u32(e.end()) + u64_from_u32(blocks.end - blocks.start) > u64_from_u32(u32::MAX)
        }) {
            return Err(Error::FileTooLarge);
        }
        self.files.volume.inodes.join_inode(&handle, self.inode, &mut core)?;
        self.data.pages.note_gaps(core.extent_root());
        self.data.pages.forget_holes(blocks.start..u32::MAX);
        self.files.mapping.edit_tree(self.ctx, &handle, self.inode, &mut core, |tree| {
            tree.open_hole(blocks.start, blocks.end - blocks.start)
        })?;
        core.set_size(size + len);
        core.touch(self.ctx);
        Ok(())
    }
}
