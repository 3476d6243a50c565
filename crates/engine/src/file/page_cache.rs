//! Imitates Linux's page cache: writes go folio by folio, and write-back is cut at folios. If an
//! observer of a kernel reports the ends of I/O ([`IoEnds`]), pieces are converted then.

mod by_folio;
mod io_ends;

use super::part::Part;
use super::writing::{Busy, Search, Writing};
use super::{Files, LockedFile};
use crate::data::Waiting;
use crate::inode::{Inode, InodeCore};
use crate::instruments::IoEnds;
use crate::requests::Pages;
use crate::{OpContext, Result};
use blockyard_disk::num::u32_from_u64;
use std::ops::Range;

/// The imitation of Linux's page cache.
pub(super) struct PageCache {
    /// Reports the ends of I/O. It is asked for reports only with delayed allocation.
    io_ends: Option<IoEnds>,
    delays: bool,
}

impl PageCache {
    /// The page cache of an instance. `delays` says whether the instance delays allocation.
    pub(super) fn new(io_ends: Option<IoEnds>, delays: bool) -> Self {
        Self { io_ends, delays }
    }

    /// The observer that reports the ends of I/O, if there is one and allocation is delayed.
    fn told(&self) -> Option<&IoEnds> {
        self.io_ends.as_ref().filter(|_| self.delays)
    }
}

impl Writing for PageCache {
    fn write(&self, file: &mut LockedFile<'_>, all: Part<'_>) -> Result<usize> {
        self.write_by_folio(file, all)
    }

    fn writes_short(&self) -> bool {
        true
    }

    fn next_run(&self, file: &LockedFile<'_>, search: &Search) -> Option<Range<u32>> {
        let Search { range, rest, busy } = search;
        let most = file.files.run_max();
        let is_in_range = |run: &Range<u32>| run.start < range.end;
        let mut run = file.inode.waiting().dirty.first_run(range.start, most).filter(is_in_range)?;
        if rest.contains(&run.start) {
            run.end = run.end.min(rest.end);
        } else if *busy == Busy::PassOver && self.is_told_of_io() {
            let bits = file.files.volume.geometry().block_bits();
            let (pages, waiting) = (&file.data.pages, file.inode.waiting());
            run = first_run_not_busy((pages, &waiting), range.start, most, bits).filter(is_in_range)?;
        }
        run.end = run.end.min(range.end);
        Some(file.data.pages.alike(run))
    }

    /// The rest of the folio that holds the last allocated block.
    fn rest_of_request(&self, file: &LockedFile<'_>, end: u32) -> Range<u32> {
        debug_assert!(end > 0, "a request without blocks");
        end..file.data.pages.around(end - 1, file.files.volume.geometry().block_bits()).end
    }

    /// If the last block of a file of `size` bytes is already mapped as written, Linux raises the
    /// size on disk with the write (observed on 6.18). Then write-back has nothing to commit.
    fn raises_disk_size(&self, files: &Files, inode: &Inode, core: &InodeCore, size: u64) -> Result<bool> {
        if !self.delays || size == core.slot.raw().size() {
            return Ok(false);
        }
        let last = u32_from_u64((size - 1) >> files.volume.geometry().block_bits());
        let found = files.mapping.lookup_block(inode, core, last)?.found;
        Ok(found.is_some_and(|extent| !extent.unwritten))
    }

    /// When content leaves its inode, Linux always allocates the block for it later, but reserves
    /// space only with delayed allocation. Here the block is allocated later only if space is
    /// reserved.
    fn delays_inline(&self) -> bool {
        self.delays
    }

    fn is_told_of_io(&self) -> bool {
        self.told().is_some()
    }

    fn end_io(&self, files: &Files, ctx: &OpContext) -> Result<()> {
        self.convert_ended(files, ctx)
    }

    fn end_io_beside(&self, file: &mut LockedFile<'_>) -> Result<()> {
        self.convert_ended_beside(file)
    }

    fn note_piece_mapped(&self) {
        if let Some(ends) = &self.io_ends {
            ends.0.mapped();
        }
    }

    fn note_walks_again(&self) {
        if let Some(ends) = &self.io_ends {
            ends.0.walks_again();
        }
    }
}

impl Files {
    /// See [`crate::fs::Instrumented::drop_caches`].
    pub(crate) fn drop_caches(&self) {
        for inode in self.volume.inodes.table.all() {
            if let Some(mut data) = inode.try_write() {
                let is_unused = !inode.opens.is_open();
                let bits = self.volume.geometry().block_bits();
                data.forget_clean_pages(bits, is_unused, &inode.waiting().dirty);
            }
        }
    }
}

/// The first run of dirty blocks from a block on that touches only folios without unconverted
/// pieces.
fn first_run_not_busy(
    (pages, waiting): (&Pages, &Waiting),
    from: u32,
    most: u32,
    block_bits: u32,
) -> Option<Range<u32>> {
    let folio = |block: u32| pages.around(block, block_bits);
    let is_busy = |folio: &Range<u32>| waiting.unconverted.touches(folio);
    let mut run = waiting.dirty.first_run(from, most)?;
    while is_busy(&folio(run.start)) {
        run = waiting.dirty.first_run(folio(run.start).end, most)?;
    }
    let mut end = folio(run.start).end;
    while end < run.end && !is_busy(&folio(end)) {
        end = folio(end).end;
    }
    Some(run.start..end.min(run.end))
}

#[cfg(test)]
mod tests {
    use super::first_run_not_busy;
    use crate::data::{BufferPool, Waiting};
    use crate::file::writing::Busy;
    use crate::instruments::{Instruments, IoEnd, IoEndSource, IoEnds};
    use crate::requests::{Pages, Rules};
    use crate::{FileSystem, NewInode, OpContext, OpenOptions, mkfs};
    use blockyard_device::MemoryDevice;
    use blockyard_disk::InodeNr;
    use blockyard_disk::inode::FileType;
    use std::sync::Arc;

    fn followed() -> Pages {
        Rules::of(&OpenOptions { instruments: Instruments::page_cache(), ..OpenOptions::default() }).pages()
    }

    fn places(fs: &FileSystem) -> Vec<InodeNr> {
        fs.volume.inodes.table.dirty_files().map(|inode| inode.number()).collect()
    }

    #[test]
    fn a_run_that_is_not_busy_begins_behind_busy_folios_and_ends_before_the_next() {
        let pool = BufferPool::new(12, 0);
        let mut pages = followed();
        let mut waiting = Waiting::new();
        pages.note_write(0..16 << 12);
        pages.note_write(16 << 12..20 << 12);
        pages.note_write(20 << 12..24 << 12);
        for number in (10..16).chain(16..24) {
            waiting.dirty.add(number..number + 1, &pool);
        }
        assert_eq!(first_run_not_busy((&pages, &waiting), 0, 100, 12), Some(10..24));
        waiting.unconverted.push(0..3);
        assert_eq!(
            first_run_not_busy((&pages, &waiting), 0, 100, 12),
            Some(16..24),
            "a folio is busy as a whole"
        );
        waiting.unconverted.push(23..24);
        assert_eq!(first_run_not_busy((&pages, &waiting), 0, 100, 12), Some(16..20));
        assert_eq!(first_run_not_busy((&pages, &waiting), 20, 100, 12), None);
    }

    /// An observer that never reports an end of I/O.
    struct Endless;

    impl IoEndSource for Endless {
        fn next(&self) -> Option<IoEnd> {
            None
        }

        fn mapped(&self) {}
    }

    #[test]
    fn who_makes_room_passes_over_folios_whose_io_has_not_ended() {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        mkfs::format(&*device, &mkfs::Options::ext4().block_size(4096).identity(1, 1)).unwrap();
        let io_ends = Some(IoEnds(Arc::new(Endless)));
        let instruments = Instruments { io_ends, ..Instruments::page_cache() };
        let options = OpenOptions { instruments, ..OpenOptions::default() };
        let ctx = OpContext::system();
        let fs = FileSystem::open(device, options, &ctx).unwrap();
        let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
        let file = fs.create(&ctx, InodeNr::ROOT, b"f", &new).unwrap();
        fs.write(&ctx, file, 0, &[1; 16384]).unwrap();
        fs.write_back_all(&ctx).unwrap();
        let inode = fs.volume.inodes.inode(file).unwrap();
        // The I/O of the first folio has not ended. A block of this folio is written again, and a
        // block of another folio.
        inode.waiting_mut().unconverted.push(0..4);
        for block in [1, 10] {
            fs.write(&ctx, file, block << 12, &[2; 4096]).unwrap();
        }
        let mut data = inode.write();
        fs.files.locked(&ctx, &inode, &mut data).write_back_listed(Busy::PassOver).unwrap();
        let left = inode.waiting().dirty.runs_in(0..100);
        assert_eq!((left.len(), left[0].clone()), (1, 1..2));
        assert_eq!(places(&fs), [file], "it waits for the next write-back");
        fs.files.locked(&ctx, &inode, &mut data).write_back_listed(Busy::Await).unwrap();
        assert!(inode.waiting().dirty.is_empty());
        assert_eq!(places(&fs), []);
    }
}
