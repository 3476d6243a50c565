//! Writes folio by folio, as Linux's page cache does. The blocks of a folio are allocated later, or
//! at once when space gets short. Without delayed allocation, each folio is written back at once.
//!
//! Where Linux's page cache is not imitated, the engine reserves all that a write and its mapping
//! can need before the write changes anything. Under Linux's rules it is not possible to reserve
//! that much. docs/behaviour/page-cache.md, "When space gets short", has the observations.

use super::PageCache;
use crate::file::LockedFile;
use crate::file::limits::RUN_CREDITS;
use crate::file::part::Part;
use crate::file::truncate::Why;
use crate::mapping::How;
use crate::pool::Pool;
use crate::requests::CachedAs;
use crate::{Error, Result};
use blockyard_disk::inode::InodeMap;
use blockyard_disk::num::{u32_from_u64, u64_from_usize, usize_from_u64};
use std::ops::Range;

impl PageCache {
    /// Writes folio after folio until one does not fit. Returns the number of bytes written.
    ///
    /// # Errors
    /// [`Error::NoSpace`] of the first folio; other errors of any folio.
    pub(super) fn write_by_folio(&self, file: &mut LockedFile<'_>, all: Part<'_>) -> Result<usize> {
        let mut at = all.offset;
        while at < all.end() {
            let folio = all.within(at..file.data.pages.next_end(at..all.end()));
            debug_assert!(folio.end() > at, "nothing of a folio is written");
            match self.write_folio(file, folio) {
                Err(Error::NoSpace) if at > all.offset => return Ok(usize_from_u64(at - all.offset)),
                Err(error) => return Err(error),
                Ok(()) => at = folio.end(),
            }
        }
        Ok(all.bytes.len())
    }

    /// Writes the part in one folio. If it does not fit and reaches over the end of the file, frees
    /// what is allocated behind the end. Then tries again, three times at most: after a commit if
    /// one would free clusters, or at once if a cluster could be claimed.
    fn write_folio(&self, file: &mut LockedFile<'_>, folio: Part<'_>) -> Result<()> {
        let bits = file.files.volume.geometry().block_bits();
        // As in Linux, it is decided once whether allocation is delayed, however often the write is
        // tried.
        let delays = self.delays && !self.leaves_delayed_allocation(file)?;
        let mut tries = 0;
        loop {
            let old_size = file.inode.core().size;
            file.data.pages.note_write(folio.range());
            let written = self.try_folio(file, delays, folio);
            let Err(Error::NoSpace) = written else { return written };
            self.dirty_before_hole(file, folio.blocks(bits), old_size)?;
            if folio.end() > old_size {
                let keep = u32_from_u64(old_size.div_ceil(1 << bits));
                file.forget_pages(old_size..u64::MAX);
                file.free_range(keep..u32::MAX, Why::NewSize(old_size))?;
            }
            file.end_io_beside()?;
            file.files.volume.retry_after_commit(file.ctx, &mut tries)?;
        }
    }

    /// Linux zeroes some blocks of a folio that does not fit: unwritten blocks inside the file,
    /// before the first unallocated block. With delayed allocation, this function makes the same
    /// blocks dirty, filled with zeroes.
    fn dirty_before_hole(&self, file: &mut LockedFile<'_>, blocks: Range<u32>, size: u64) -> Result<()> {
        let end = blocks.end.min(u32_from_u64(size.div_ceil(1 << file.files.volume.geometry().block_bits())));
        for logical in blocks.start..end.max(blocks.start) {
            if !self.delays
                || file.inode.waiting().dirty.block(logical).is_some()
                || file.inode.waiting().unconverted.covers(logical)
            {
                continue;
            }
            let Some(extent) =
                file.files.mapping.lookup_block(file.inode, &file.inode.core(), logical)?.found
            else {
                break;
            };
            if extent.unwritten {
                file.data.pages.note_kind(logical, CachedAs::Unwritten);
                file.add_dirty(logical, &[]);
            }
        }
        Ok(())
    }

    fn try_folio(&self, file: &mut LockedFile<'_>, delays: bool, folio: Part<'_>) -> Result<()> {
        let blocks = folio.blocks(file.files.volume.geometry().block_bits());
        if self.delays && !delays {
            self.allocate_now(file, blocks.clone())?;
        }
        note_cached(file, blocks)?;
        file.write_piece(folio)?;
        if self.delays {
            return Ok(());
        }
        let written = file.write_back();
        if let Err(Error::NoSpace) = written {
            // The file was clean before: only this write's blocks are dirty.
            file.forget_dirty(0..u32::MAX);
        }
        written
    }

    /// Whether space is so short that a write must allocate its blocks at once. Also writes dirty
    /// data back if many clusters are reserved; the answer is from before that.
    fn leaves_delayed_allocation(&self, file: &mut LockedFile<'_>) -> Result<bool> {
        let room = file.files.volume.space.allocator().room();
        if room.wants_write_back() {
            file.write_back_beside()?;
        }
        Ok(room.is_short())
    }

    /// Allocates the blocks of a range that are neither dirty nor mapped, one by one. If the file
    /// has extents, the blocks are unwritten, because their data comes later.
    fn allocate_now(&self, file: &mut LockedFile<'_>, blocks: Range<u32>) -> Result<()> {
        let extents = file.inode.core().map == InodeMap::Extents;
        let how = How { unwritten: extents, pool: Pool::Ordinary, exact: false };
        for logical in blocks {
            if file.inode.waiting().dirty.block(logical).is_some() {
                continue;
            }
            file.end_io_beside()?;
            let allocated = allocate_block(file, logical, how);
            self.note_block_allocated();
            allocated?;
        }
        Ok(())
    }
}

/// Allocates one block, unless it is mapped.
fn allocate_block(file: &LockedFile<'_>, logical: u32, how: How) -> Result<()> {
    let LockedFile { files, ctx, inode, .. } = *file;
    let handle = files.volume.begin(ctx, RUN_CREDITS)?;
    let mut core = inode.core_mut();
    files.volume.inodes.join_inode(&handle, inode, &mut core)?;
    let here = files.mapping.lookup_block(inode, &core, logical)?;
    if here.found.is_none() {
        let plan = files.mapping.plan_blocks(ctx, inode, &core, &here, (logical, 1), how)?;
        debug_assert_eq!(plan.extent.len, 1, "one block was asked for");
        if !how.unwritten {
            // A block map has no unwritten blocks: until the data is written, readers would see
            // the old content of the block.
            let block_size = u64_from_usize(files.volume.block_size());
            files.store.write_zeroes(plan.extent.physical * block_size, block_size)?;
            inode.note_written(&files.volume.flushes);
        }
        files.mapping.apply_plan(ctx, &handle, inode, &mut core, plan)?;
        inode.note_remapped(&handle);
    }
    Ok(())
}

/// Notes, for each block of a write that is not dirty yet, the state in which the page cache will
/// hold it.
fn note_cached(file: &mut LockedFile<'_>, blocks: Range<u32>) -> Result<()> {
    let core = file.inode.core();
    for logical in blocks {
        if file.inode.waiting().dirty.block(logical).is_none() {
            let here = file.files.mapping.lookup_block(file.inode, &core, logical)?;
            file.data.pages.note_lookup(core.extent_root(), &here, logical);
            file.data.pages.forget_holes(logical..logical + 1);
            let kind = match here.found {
                None => CachedAs::Delayed,
                Some(extent) if extent.unwritten => CachedAs::Unwritten,
                Some(_) => CachedAs::Mapped,
            };
            file.data.pages.note_kind(logical, kind);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::instruments::{Instruments, IoEnd, IoEndSource, IoEnds};
    use crate::{Error, Fallocate, FileSystem, NewInode, OpContext, OpenOptions, mkfs};
    use blockyard_device::MemoryDevice;
    use blockyard_disk::InodeNr;
    use blockyard_disk::inode::FileType;
    use blockyard_disk::num::u64_from_usize;
    use blockyard_sync::{AtomicU64, Ordering};
    use std::sync::Arc;

    /// A write to a folio of four blocks, of which only the first is allocated.
    #[test]
    fn what_has_a_place_in_a_folio_that_does_not_fit_is_zeroed_and_written() {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        mkfs::format(&*device, &mkfs::Options::ext4().block_size(4096).identity(1, 1)).unwrap();
        let ctx = OpContext::system();
        let options = OpenOptions { instruments: Instruments::page_cache(), ..OpenOptions::default() };
        let fs = FileSystem::open(device, options, &ctx).unwrap();
        let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
        let [inode, filler] = [b"f", b"g"].map(|name| fs.create(&ctx, InodeNr::ROOT, name, &new).unwrap());
        fs.fallocate(&ctx, inode, Fallocate::Allocate, 0, 5 << 12).unwrap();
        let full = fs.fallocate(&ctx, filler, Fallocate::Allocate, 0, 64 << 20);
        assert!(matches!(full, Err(Error::NoSpace)), "{full:?}");
        let refused = fs.write(&ctx, inode, 4 << 12, &[7; 4 << 12]);
        assert!(matches!(refused, Err(Error::NoSpace)), "{refused:?}");
        let file = fs.volume.inodes.inode(inode).unwrap();
        let waiting = file.waiting().dirty.runs_in(0..100);
        assert!(matches!(&waiting[..], [one] if *one == (4..5)), "{waiting:?}");
        fs.fsync(&ctx, inode).unwrap();
        let state = |logical| {
            fs.files.mapping.lookup_block(&file, &file.core(), logical).unwrap().found.map(|e| e.unwritten)
        };
        assert_eq!([3, 4, 5].map(state), [Some(true), Some(false), None]);
        let mut bytes = [1; 5 << 12];
        assert_eq!(fs.read(&ctx, inode, 0, &mut bytes).unwrap(), 5 << 12);
        assert_eq!(bytes, [0; 5 << 12]);
    }

    /// Counts the blocks that were allocated at once.
    #[derive(Default)]
    struct Allocated(AtomicU64);

    impl IoEndSource for Allocated {
        fn next(&self) -> Option<IoEnd> {
            None
        }

        fn mapped(&self) {}

        fn allocated(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn who_knows_of_io_is_told_of_each_block_that_is_placed_at_once() {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        mkfs::format(&*device, &mkfs::Options::ext4().block_size(4096).identity(1, 1)).unwrap();
        let ctx = OpContext::system();
        let allocated = Arc::new(Allocated::default());
        let io_ends = Some(IoEnds(Arc::<Allocated>::clone(&allocated)));
        let instruments = Instruments { io_ends, ..Instruments::page_cache() };
        let options = OpenOptions { instruments, ..OpenOptions::default() };
        let fs = FileSystem::open(device, options, &ctx).unwrap();
        let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
        let [inode, filler] = [b"f", b"g"].map(|name| fs.create(&ctx, InodeNr::ROOT, name, &new).unwrap());
        fs.write(&ctx, inode, 0, &[7; 4 << 12]).unwrap();
        assert_eq!(allocated.0.load(Ordering::Relaxed), 0, "there is room to delay them");
        let step = 16 << 12;
        let fits = |at: &u64| fs.fallocate(&ctx, filler, Fallocate::Allocate, at * step, step).is_ok();
        let steps = (0..1024).take_while(fits).count();
        assert!(steps < 1024);
        fs.truncate(&ctx, filler, (u64_from_usize(steps) - 2) * step).unwrap();
        fs.fsync(&ctx, filler).unwrap();
        fs.write(&ctx, inode, 4 << 12, &[7; 8 << 12]).unwrap();
        assert_eq!(allocated.0.load(Ordering::Relaxed), 8);
    }
}
