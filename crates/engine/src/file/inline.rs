//! Files whose content lies in the inode (`inline_data`). As in Linux (docs/format-notes.md,
//! "Inline data"), the first write to a new file decides: if the end of the write fits into the
//! inode, the content goes there. The content moves to a block, and never comes back into the
//! inode, when
//! - a write does not fit into the inode,
//! - a truncation sets a size above the room that the content has already,
//! - or the file gets a `fallocate` or a direct write.

use crate::cache::BlockKind;
use crate::file::Files;
use crate::file::LockedFile;
use crate::file::RUN_CREDITS;
use crate::file::part::Part;
use crate::inode::{Inode, InodeCore};
use crate::mapping::How;
use crate::pool::Pool;
use crate::requests::CachedAs;
use crate::txn::Handle;
use crate::{Error, OpContext, Result};
use blockyard_disk::inline_data::{self, HEAD_LEN, InlineData, XATTR_INDEX, XATTR_NAME};
use blockyard_disk::inode::{InodeFlags, InodeMap};
use blockyard_disk::num::{u64_from_usize, usize_from_u64};
use blockyard_disk::xattr::{AttributeList, Home};
use blockyard_disk::{BlockNr, Corruption, Incompat};
use blockyard_sync::Ordering;
use std::sync::Arc;

/// Metadata blocks that change when content leaves its inode, not counting those of its new
/// mapping.
const CREDITS: usize = 8;

/// Metadata blocks that change when content inside the inode changes.
const INODE_CREDITS: usize = 2;

impl Files {
    /// The content of an inline inode. As in Linux (observed on 6.18), a file may be longer than
    /// its content; the rest reads as zeroes.
    pub(crate) fn inline_content(&self, inode: &Inode, core: &InodeCore) -> Result<Vec<u8>> {
        let tail = self.inline_tail(inode, core)?;
        Ok(InlineData { head: core.root(), tail }.content(usize_from_u64(core.size)))
    }

    /// The part of inline content that is the value of the attribute `system.data`.
    fn inline_tail<'c>(&self, inode: &Inode, core: &'c InodeCore) -> Result<&'c [u8]> {
        inline_data::tail_of(core.slot.attribute_area())
            .map_err(|kind| Corruption::new(kind).in_inode(inode.number()).into())
    }

    /// Fills `buf` from byte `offset`. The range must lie inside the file.
    pub(crate) fn read_inline(
        &self,
        inode: &Inode,
        core: &InodeCore,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        debug_assert!(offset + u64_from_usize(buf.len()) <= core.size, "bytes behind the end");
        let content = self.inline_content(inode, core)?;
        let there = content.get(usize_from_u64(offset)..).unwrap_or(&[]);
        let (data, zeroes) = buf.split_at_mut(there.len().min(buf.len()));
        data.copy_from_slice(&there[..data.len()]);
        zeroes.fill(0);
        Ok(())
    }

    /// Writes the content to a block and maps the block, in the transaction that takes the content
    /// out of the inode. So no commit loses it.
    fn allocate_inline(&self, ctx: &OpContext, inode: &Arc<Inode>, content: &[u8]) -> Result<()> {
        let handle = self.volume.begin(ctx, CREDITS + RUN_CREDITS)?;
        let mut core = inode.core_mut();
        self.volume.inodes.join_inode(&handle, inode, &mut core)?;
        let before = (core.slot.clone(), core.map);
        self.clear_inline(&mut core);
        let allocated = self.allocate_content(ctx, &handle, inode, &mut core, content);
        if allocated.is_err() {
            (core.slot, core.map) = before;
        }
        allocated
    }

    /// Maps the first block of a file whose map is empty, and writes `content` there.
    fn allocate_content(
        &self,
        ctx: &OpContext,
        handle: &Handle<'_>,
        inode: &Arc<Inode>,
        core: &mut InodeCore,
        content: &[u8],
    ) -> Result<()> {
        debug_assert!(content.len() <= self.volume.block_size(), "{} bytes in an inode", content.len());
        let mut block = vec![0; self.volume.block_size()];
        block[..content.len()].copy_from_slice(content);
        let how = How { unwritten: false, pool: Pool::Ordinary, exact: false };
        let here = self.mapping.lookup_block(inode, core, 0)?;
        let plan = self.mapping.plan_blocks(ctx, inode, core, &here, (0, 1), how)?;
        let physical = plan.extent.physical;
        let logged = self.mapping.logs_data(inode, core);
        if !logged {
            self.store.write(physical << self.volume.geometry().block_bits(), &[&block])?;
            inode.note_written(&self.volume.flushes);
        }
        self.mapping.apply_plan(ctx, handle, inode, core, plan)?;
        if logged {
            let buffer = handle.create(BlockNr::new(physical), BlockKind::Plain);
            buffer.write(|bytes| bytes.copy_from_slice(&block));
        }
        inode.note_remapped(handle);
        Ok(())
    }

    /// Clears the inline flag, removes `system.data`, and makes the mapping empty.
    pub(crate) fn clear_inline(&self, core: &mut InodeCore) {
        let area_at = core.slot.bytes().len() - core.slot.attribute_area().len();
        let area = &mut core.slot.bytes_mut()[area_at..];
        if let Ok(mut list) = AttributeList::parse(area, Home::Inode) {
            list.remove(XATTR_INDEX, XATTR_NAME);
            if list.is_empty() {
                area.fill(0);
            } else {
                let written = list.write_inode_area(area);
                debug_assert!(written, "a list without one of its attributes fits where it was");
            }
        }
        let extents = self.volume.sb.features().incompat.contains(Incompat::EXTENTS);
        let mut flags = core.flags().difference(InodeFlags::INLINE_DATA);
        flags.set(InodeFlags::EXTENTS, extents);
        core.slot.raw_mut().set_flags(flags);
        *core.root_mut() = if extents { crate::extents::empty_root() } else { [0; 60] };
        core.map = if extents { InodeMap::Extents } else { InodeMap::Indirect };
    }
}

impl LockedFile<'_> {
    /// Writes into the inode of an inline file, or of a new one without content. Returns whether
    /// the bytes fit there; if not, nothing changes.
    pub(super) fn write_inline(&mut self, all: Part<'_>) -> Result<bool> {
        debug_assert!(!all.bytes.is_empty(), "an empty write leaves a file out of its inode");
        if !self.fits_inline(all.end())? {
            return Ok(false);
        }
        debug_assert!(self.inode.waiting().is_empty(), "data of inode {} waits", self.inode.number());
        let size = self.inode.core().size.max(all.end());
        self.change_inline(size, |content| {
            let [start, end] = [all.offset, all.end()].map(usize_from_u64);
            content.resize(content.len().max(end), 0);
            content[start..end].copy_from_slice(all.bytes);
        })?;
        Ok(true)
    }

    /// Whether content of `size` bytes fits into the inode of a file that is inline, or may become
    /// so.
    fn fits_inline(&self, size: u64) -> Result<bool> {
        let room = self.inode.core().inline_room(self.inode.number())?;
        Ok(room.is_some_and(|room| size <= u64_from_usize(room)))
    }

    /// Changes the content with `change`, stores it in the inode, where it must fit, and sets the
    /// file's size.
    fn change_inline(&mut self, size: u64, change: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        let handle = self.files.volume.begin(self.ctx, INODE_CREDITS)?;
        let mut core = self.inode.core_mut();
        self.files.volume.inodes.join_inode(&handle, self.inode, &mut core)?;
        let mut content = match core.map {
            InodeMap::Inline => self.files.inline_content(self.inode, &core)?,
            _ => {
                core.inline_since = Some(handle.tid());
                Vec::new()
            }
        };
        change(&mut content);
        debug_assert!(u64_from_usize(content.len()) <= size, "{} bytes of {size}", content.len());
        let (first, tail) = content.split_at(content.len().min(HEAD_LEN));
        let mut head = [0; HEAD_LEN];
        head[..first.len()].copy_from_slice(first);
        core.store_inline(self.inode.number(), &head, tail)?;
        core.set_size(size);
        core.touch(self.ctx);
        // The inode holds the content, so fdatasync commits it.
        self.inode.note_remapped(&handle);
        Ok(())
    }

    /// Moves the content of an inline file to a block. From now on the content of this file lies in
    /// blocks, even if it has none yet.
    pub(crate) fn leave_inline(&mut self) -> Result<()> {
        let Some(content) = self.content_to_move()? else { return Ok(()) };
        if self.delay_inline(&content)? { Ok(()) } else { self.move_inline(&content) }
    }

    /// As [`Self::leave_inline`], but allocates the block now, even if there is no content. As in
    /// Linux (observed on 6.18), fallocate does this with every mode.
    pub(crate) fn leave_inline_now(&mut self) -> Result<()> {
        let content = self.content_to_move()?;
        content.map_or(Ok(()), |content| self.move_inline(&content))
    }

    /// The content of an inline file, which must be moved to a block. `None` if the file is not
    /// inline; from now on it cannot become inline either.
    fn content_to_move(&self) -> Result<Option<Vec<u8>>> {
        let core = self.inode.core();
        if core.map == InodeMap::Inline {
            return self.files.inline_content(self.inode, &core).map(Some);
        }
        let may_be_inline = core.may_be_inline;
        drop(core);
        if may_be_inline {
            self.inode.core_mut().may_be_inline = false;
        }
        Ok(None)
    }

    fn move_inline(&self, content: &[u8]) -> Result<()> {
        self.files.volume.patiently(self.ctx, || self.files.allocate_inline(self.ctx, self.inode, content))
    }

    /// Moves the content to a dirty block and gives the file an empty map. Returns whether it has
    /// done so.
    ///
    /// Linux always does this. But if the empty map is committed before write-back, a crash in
    /// between loses the content. So the engine does it only in three cases:
    /// - there is no content;
    /// - allocation is delayed, and no commit has the content yet;
    /// - the engine imitates Linux's page cache with delayed allocation.
    fn delay_inline(&mut self, content: &[u8]) -> Result<bool> {
        let always = content.is_empty() || self.files.writing.delays_inline();
        let may_be_new = self.inode.core().inline_since.is_some() && self.files.volume.delays_allocation();
        if !always && !may_be_new {
            return Ok(false);
        }
        if !content.is_empty() {
            match self.reserve(&(0..1)) {
                Err(Error::NoSpace) if !always => return Ok(false),
                reserved => reserved?,
            }
        }
        let handle = self.files.volume.begin(self.ctx, CREDITS)?;
        let mut core = self.inode.core_mut();
        if !always && core.inline_since != Some(handle.tid()) {
            drop(core);
            drop(handle);
            self.settle_reservations(&(0..1));
            return Ok(false);
        }
        self.files.volume.inodes.join_inode(&handle, self.inode, &mut core)?;
        self.files.clear_inline(&mut core);
        if !content.is_empty() {
            self.add_dirty(0, content);
            self.data.pages.note_kind(0, CachedAs::Delayed);
            // On disk the file is empty until the block is written.
            core.slot.raw_mut().set_size(0);
        }
        Ok(true)
    }

    /// Truncates an inline file. As in Linux (observed on 6.18), its content moves to a block if
    /// `i_block` and the present value of `system.data` are together smaller than the new size,
    /// even if the inode has more room.
    pub(crate) fn truncate_inline(&mut self, size: u64) -> Result<()> {
        let held = {
            let core = self.inode.core();
            HEAD_LEN + self.files.inline_tail(self.inode, &core)?.len()
        };
        if size > u64_from_usize(held) || !self.fits_inline(size)? {
            self.leave_inline()?;
            return self.truncate_locked(size);
        }
        if size == 0 {
            self.inode.written_at_close.store(true, Ordering::Relaxed);
        }
        self.change_inline(size, |content| content.resize(usize_from_u64(size), 0))
    }
}
