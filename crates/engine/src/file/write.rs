//! Writing: reserves space, then copies the bytes into dirty blocks in memory.

use super::part::Part;
use crate::data::DirtyBlocks;
use crate::file::Files;
use crate::file::LockedFile;
use crate::inode::{Inode, InodeCore};
use crate::instruments::BrokenRule;
use crate::{Error, InodeRef, OpContext, Result};
use blockyard_disk::inode::{FileType, InodeFlags, InodeMap};
use blockyard_disk::num::{u32_from_u64, u64_from_usize, usize_from_u64};
use blockyard_disk::{Incompat, indirect};
use blockyard_sync::{AtomicU64, Ordering};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// If space for the worst case of a write's mapping cannot be reserved, the write is made in parts
/// of this many blocks.
const PART_BLOCKS: u64 = 64;

/// Metadata blocks that a change of size and times touches.
const CREDITS: usize = 2;

/// Flags of files whose content users cannot write.
const FIXED: InodeFlags = InodeFlags::VERITY.union(InodeFlags::ENCRYPT).union(InodeFlags::EA_INODE);

/// Blocks that a write covers in part: their numbers, and their content before the write.
type Edges = SmallVec<[(u32, Box<[u8]>); 2]>;

impl Files {
    /// See [`crate::FileSystem::write`].
    pub(crate) fn write(&self, ctx: &OpContext, inode: InodeRef, offset: u64, bytes: &[u8]) -> Result<()> {
        let inode = self.written_file(ctx, inode)?;
        let mut data = inode.write();
        check_place(&inode.core(), offset)?;
        self.locked(ctx, &inode, &mut data)
            .write_locked(offset, bytes)
            .and_then(|done| all_or_none(done, bytes))
    }

    /// See [`crate::FileSystem::write_some`].
    pub(crate) fn write_some(
        &self,
        ctx: &OpContext,
        inode: InodeRef,
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize> {
        let inode = self.written_file(ctx, inode)?;
        let mut data = inode.write();
        let limit = {
            let core = inode.core();
            check_place(&core, offset)?;
            self.size_limit(core.map)
        };
        let bytes = up_to_limit(offset, bytes, limit)?;
        self.locked(ctx, &inode, &mut data).write_what_fits(offset, bytes)
    }

    /// Writes the whole content of a value inode, and writes it back.
    pub(crate) fn write_value(&self, ctx: &OpContext, inode: &Arc<Inode>, bytes: &[u8]) -> Result<()> {
        let mut data = inode.write_child();
        let mut value = self.locked(ctx, inode, &mut data);
        value.write_locked(0, bytes).and_then(|done| all_or_none(done, bytes))?;
        value.write_back()
    }

    /// See [`crate::FileSystem::append`].
    pub(crate) fn append(&self, ctx: &OpContext, inode: InodeRef, bytes: &[u8]) -> Result<u64> {
        let inode = self.writable_file(inode)?;
        let mut data = inode.write();
        let offset = inode.core().size;
        let done = self.locked(ctx, &inode, &mut data).write_locked(offset, bytes)?;
        all_or_none(done, bytes).map(|()| offset)
    }

    /// See [`crate::FileSystem::append_some`].
    pub(crate) fn append_some(&self, ctx: &OpContext, inode: InodeRef, bytes: &[u8]) -> Result<Range<u64>> {
        let inode = self.writable_file(inode)?;
        let mut data = inode.write();
        let (offset, limit) = {
            let core = inode.core();
            (core.size, self.size_limit(core.map))
        };
        let bytes = up_to_limit(offset, bytes, limit)?;
        let done = self.locked(ctx, &inode, &mut data).write_what_fits(offset, bytes)?;
        Ok(offset..offset + u64_from_usize(done))
    }

    /// A regular file that may be changed.
    pub(crate) fn writable_file(&self, inode: InodeRef) -> Result<Arc<Inode>> {
        self.file_without(FIXED | InodeFlags::IMMUTABLE, inode)
    }

    /// A regular file that may be written to. If the caller caches writes, an immutable file may be
    /// written to as well: programs wrote the bytes before the file became immutable.
    fn written_file(&self, ctx: &OpContext, inode: InodeRef) -> Result<Arc<Inode>> {
        if ctx.caches_writes { self.file_without(FIXED, inode) } else { self.writable_file(inode) }
    }

    fn file_without(&self, refused: InodeFlags, inode: InodeRef) -> Result<Arc<Inode>> {
        self.volume.check_writable()?;
        let inode = self.volume.inodes.inode(inode)?;
        match inode.kind() {
            FileType::Regular => {}
            FileType::Directory => return Err(Error::IsDirectory),
            _ => return Err(Error::Invalid("not a regular file")),
        }
        let core = inode.core();
        core.check_alive(inode.number())?;
        if core.flags().intersects(refused) {
            return Err(Error::NotPermitted);
        }
        drop(core);
        Ok(inode)
    }

    /// The clean blocks that a write of these bytes covers only in part, at its two ends, with
    /// their content.
    fn read_edges(&self, inode: &Inode, bytes: Range<u64>) -> Result<Edges> {
        let bits = self.volume.geometry().block_bits();
        let mut edges = Edges::new();
        for edge in [bytes.start, bytes.end - 1] {
            let logical = u32_from_u64(edge >> bits);
            let start = u64::from(logical) << bits;
            let covered =
                bytes.start <= start && start + u64_from_usize(self.volume.block_size()) <= bytes.end;
            let is_known = edges.iter().any(|(known, _)| *known == logical);
            if !covered && !is_known && inode.waiting().dirty.block(logical).is_none() {
                edges.push((logical, self.read_block(inode, &inode.core(), logical)?));
            }
        }
        Ok(edges)
    }

    /// The content of one block as it reads now, with zeroes behind the end of the file.
    fn read_block(&self, inode: &Inode, core: &InodeCore, logical: u32) -> Result<Box<[u8]>> {
        let bits = self.volume.geometry().block_bits();
        let mut block = vec![0; self.volume.block_size()].into_boxed_slice();
        let start = u64::from(logical) << bits;
        if start < core.size {
            let valid = usize_from_u64((core.size - start).min(u64_from_usize(block.len())));
            self.read_content(inode, core, start, &mut block[..valid])?;
        }
        Ok(block)
    }

    /// Puts the inode at the end of the list of files to write back, unless it is on the list. As
    /// in Linux (observed on 6.18), fsync does not take a file off the list: the file keeps its
    /// position.
    pub(crate) fn note_dirtied(&self, ctx: &OpContext, inode: &Inode) {
        self.volume.inodes.table.note_dirty_data(inode, ctx.now.seconds);
    }

    /// Changes the content with `put`, then raises the size that users see and sets the times.
    /// Every step that can fail comes before `put`. As in Linux, an inode whose size and times stay
    /// the same joins no transaction.
    pub(super) fn note_written(
        &self,
        ctx: &OpContext,
        inode: &Arc<Inode>,
        end: u64,
        put: impl FnOnce(),
    ) -> Result<()> {
        let stays = {
            let core = inode.core();
            end <= core.size && !core.times_change(ctx)
        };
        if stays {
            put();
            return Ok(());
        }
        let handle = self.volume.begin(ctx, CREDITS)?;
        let mut core = inode.core_mut();
        self.volume.inodes.join_inode(&handle, inode, &mut core)?;
        let size = core.size.max(end);
        let follows = self.writing.raises_disk_size(self, inode, &core, size)?;
        put();
        core.size = size;
        if self.volume.breaks(BrokenRule::SizeBeforeData) {
            core.set_size(size);
        } else if follows {
            core.set_size(size);
            inode.note_remapped(&handle);
        }
        core.touch(ctx);
        Ok(())
    }

    /// Largest size of a file with this mapping. Without `huge_file` the count of a file's 512-byte
    /// sectors, pointer arrays included, has 32 bits.
    pub(crate) fn size_limit(&self, map: InodeMap) -> u64 {
        let bits = self.volume.geometry().block_bits();
        let counted =
            if self.volume.sb.has_huge_file() { u64::MAX } else { u64::from(u32::MAX) >> (bits - 9) };
        // Without extents, content that leaves its inode gets a block map.
        let extents = self.volume.sb.features().incompat.contains(Incompat::EXTENTS);
        let blocks = match map {
            map if map == InodeMap::Indirect || (map == InodeMap::Inline && !extents) => {
                let arrays = indirect::arrays_of(bits, counted.min(indirect::blocks_max(bits)));
                indirect::blocks_max(bits).min(counted.saturating_sub(arrays))
            }
            _ => counted,
        };
        blocks.min(u64::from(u32::MAX)) << bits
    }
}

impl LockedFile<'_> {
    /// Writes the beginning of `bytes` if there is no space for all. Returns the number of bytes
    /// written.
    pub(super) fn write_what_fits(&mut self, offset: u64, bytes: &[u8]) -> Result<usize> {
        match self.write_locked(offset, bytes) {
            Err(Error::NoSpace) if !self.files.writing.writes_short() => {}
            other => return other,
        }
        let block_size = self.files.volume.block_size();
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + u64_from_usize(done);
            let part = (block_size - usize_from_u64(at) % block_size).min(bytes.len() - done);
            match self.write_locked(at, &bytes[done..done + part]) {
                Ok(part) => done += part,
                Err(Error::NoSpace) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Writes bytes with the content lock held. Returns the number of bytes written.
    fn write_locked(&mut self, offset: u64, bytes: &[u8]) -> Result<usize> {
        let (map, in_inode) = {
            let core = self.inode.core();
            core.check_alive(self.inode.number())?;
            (core.map, core.map == InodeMap::Inline || core.may_be_inline)
        };
        if bytes.is_empty() {
            return Ok(0);
        }
        let end = offset.checked_add(u64_from_usize(bytes.len())).ok_or(Error::FileTooLarge)?;
        if end > self.files.size_limit(map) {
            return Err(Error::FileTooLarge);
        }
        let all = Part { offset, bytes };
        if in_inode {
            if self.write_inline(all)? {
                return Ok(bytes.len());
            }
            // Linux allocates the first page before it finds that the bytes do not fit into the
            // inode. So the file's first folio has a single page (observed on 6.18).
            self.data.pages.note_page(0);
            self.leave_inline()?;
        }
        self.files.writing.write(self, all)
    }

    /// Writes one piece at once. If the data of the piece fits but the worst case of its mapping
    /// does not, writes the piece part by part. When a part finds no room, the parts before it are
    /// written back, after which their mapping takes only what it really needs.
    pub(super) fn write_piece_or_parts(&mut self, piece: Part<'_>) -> Result<()> {
        match self.write_piece(piece) {
            Err(Error::NoSpace) => {}
            other => return other,
        }
        let bits = self.files.volume.geometry().block_bits();
        let (most, end) = (PART_BLOCKS << bits, piece.end());
        if end - piece.offset <= most || !self.data_fits(&piece.blocks(bits))? {
            return Err(Error::NoSpace);
        }
        let mut at = piece.offset;
        while at < end {
            let part = piece.within(at..(at + 1).next_multiple_of(most).min(end));
            self.write_piece(part)?;
            at = part.end();
        }
        Ok(())
    }

    /// Writes one piece: reserves space, reads the rest of partial blocks, joins a transaction,
    /// then copies the bytes and raises the size. The steps that can fail come first, and
    /// concurrent readers never see the new size before the bytes.
    pub(super) fn write_piece(&mut self, piece: Part<'_>) -> Result<()> {
        debug_assert!(!piece.bytes.is_empty(), "a piece without bytes");
        let bits = self.files.volume.geometry().block_bits();
        let blocks = piece.blocks(bits);
        let old_size = self.inode.core().size;
        if piece.offset > old_size {
            self.data.pages.note_edge(old_size, bits);
        }
        self.prepare_growth(piece.range())?;
        self.reserve(&blocks)?;
        let written = self.files.read_edges(self.inode, piece.range()).and_then(|edges| {
            self.files.note_written(self.ctx, self.inode, piece.end(), || self.put(piece, &edges))
        });
        if written.is_err() {
            self.settle_reservations(&blocks);
        }
        written
    }

    /// Copies a piece into dirty blocks. `edges` has the old content of clean blocks that the piece
    /// covers in part.
    fn put(&self, piece: Part<'_>, edges: &Edges) {
        let blocks = piece.blocks(self.files.volume.geometry().block_bits());
        let inside = usize_from_u64(piece.offset) % self.files.volume.block_size();
        if self.inode.waiting_mut().dirty.overwrite(blocks.start, inside, piece.bytes) {
            debug_assert!(edges.is_empty(), "a dirty block of {blocks:?} was read");
            return;
        }
        self.change_dirty(blocks.clone(), |dirty| {
            for (logical, old) in edges {
                dirty.fill(*logical, 0, old);
            }
            dirty.fill(blocks.start, inside, piece.bytes);
        });
    }

    /// Makes blocks dirty; `fill` fills them before anybody sees them. If some were clean, puts the
    /// file on the list of files to write back ([`Files::note_dirtied`]).
    fn change_dirty(&self, blocks: Range<u32>, fill: impl FnOnce(&mut DirtyBlocks)) {
        let added = {
            let mut waiting = self.inode.waiting_mut();
            let added = waiting.dirty.add(blocks, &self.files.buffers);
            fill(&mut waiting.dirty);
            added
        };
        if added > 0 {
            self.files.note_dirtied(self.ctx, self.inode);
            let bytes = u64_from_usize(added * self.files.volume.block_size());
            self.files.dirty_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Adds a dirty block that begins with `bytes`, followed by zeroes.
    pub(crate) fn add_dirty(&mut self, logical: u32, bytes: &[u8]) {
        debug_assert!(self.inode.waiting().dirty.block(logical).is_none(), "block {logical} is dirty");
        self.change_dirty(logical..logical + 1, |dirty| {
            if let Some(block) = dirty.block_mut(logical) {
                let (content, rest) = block.split_at_mut(bytes.len());
                content.copy_from_slice(bytes);
                rest.fill(0);
            }
        });
    }
}

/// The part of a write that lies below `limit`, the largest size of its file.
///
/// # Errors
/// [`Error::FileTooLarge`] when no byte is below that size.
pub(super) fn up_to_limit(offset: u64, bytes: &[u8], limit: u64) -> Result<&[u8]> {
    match limit.checked_sub(offset) {
        None | Some(0) if !bytes.is_empty() => Err(Error::FileTooLarge),
        room => {
            let room = room.unwrap_or(0).min(u64_from_usize(bytes.len()));
            Ok(&bytes[..usize_from_u64(room)])
        }
    }
}

/// Refuses a write to an append-only file unless `offset` is the file's end.
fn check_place(core: &InodeCore, offset: u64) -> Result<()> {
    let only_grows = core.flags().contains(InodeFlags::APPEND);
    if only_grows && offset != core.size { Err(Error::NotPermitted) } else { Ok(()) }
}

/// Fails with [`Error::NoSpace`] if a write that must not be short is short.
fn all_or_none(done: usize, bytes: &[u8]) -> Result<()> {
    if done == bytes.len() { Ok(()) } else { Err(Error::NoSpace) }
}

/// Subtracts `by` from a counter, with relaxed ordering. The counter must be at least `by`.
pub(crate) fn lower(counter: &AtomicU64, by: u64) {
    let before = counter.fetch_sub(by, Ordering::Relaxed);
    debug_assert!(before >= by, "{by} taken off {before}");
}
