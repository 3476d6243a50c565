//! Room for dirty data, whose amount is limited. A heavy writer writes its own data back, step by
//! step, before the limit is reached. At the limit, a quarter of the limit is freed at once.

use super::limits::RUN_MAX;
use super::writing::Busy;
use crate::file::{Files, LockedFile};
use crate::{Error, OpContext, Result};
use blockyard_disk::num::{u32_from_u64, u64_from_u32, u64_from_usize};
use blockyard_sync::Ordering;
use std::ops::Range;

/// Up to 1 / `FREE_SHARE` of the limit, a half, may be dirty before a writer must write back.
const FREE_SHARE: u64 = 2;

/// A file need not write back early as long as its dirty data, including the data that is about to
/// be written, is at most 1 / `FILE_SHARE` of the limit.
const FILE_SHARE: u64 = 8;

/// When dirty data reaches its limit, 1 / `ROOM_SHARE` of the limit is freed. Freeing just enough
/// for the next file would write back one file for each new one, and file data and new directories
/// would alternate on the disk.
const ROOM_SHARE: u64 = 4;

impl LockedFile<'_> {
    /// Call before `more` bytes become dirty. Makes room in two steps:
    /// * If more than half of the limit would become dirty, calls `on_much_dirty_data` of the
    ///   options, and writes some of this file back if it has more than its share.
    /// * If the limit would still be exceeded, writes back all of this file. Then writes back other
    ///   files that nobody uses now, until a part of the limit would stay free ([`ROOM_SHARE`]).
    pub(super) fn make_data_room(&mut self, more: usize) -> Result<()> {
        let limit = u64_from_usize(self.files.volume.options().dirty_data_bytes);
        let is_over = |limit| self.files.dirty_bytes.load(Ordering::Relaxed) + u64_from_usize(more) > limit;
        if !is_over(limit / FREE_SHARE) {
            return Ok(());
        }
        if let Some(notice) = &self.files.volume.options().on_much_dirty_data {
            notice.tell();
        }
        self.write_back_excess(more, limit)?;
        if !is_over(limit) {
            return Ok(());
        }
        self.write_back()?;
        let roomy = limit - limit / ROOM_SHARE;
        if !is_over(roomy) {
            return Ok(());
        }
        match self.files.write_back_others(self.ctx, || !is_over(roomy)) {
            // Another file could not be written, but this write has its room.
            Err(Error::Device(_)) if !is_over(limit) => Ok(()),
            other => other,
        }
    }

    /// If the file would have more dirty data than its share, writes some of it back: twice as much
    /// as is about to be written, or a whole request if that is more. A request is [`RUN_MAX`]
    /// blocks, but at most the share.
    fn write_back_excess(&mut self, more: usize, limit: u64) -> Result<()> {
        let bits = self.files.volume.geometry().block_bits();
        let files = self.files.volume.inodes.table.dirty_files_len().max(1);
        let share = (limit / FREE_SHARE / files).max(limit / FILE_SHARE);
        let own = u64_from_usize(self.inode.waiting().dirty.len()) << bits;
        if own + u64_from_usize(more) <= share {
            return Ok(());
        }
        let request = (u64_from_u32(RUN_MAX) << bits).min(share);
        let blocks = (2 * u64_from_usize(more)).max(request) >> bits;
        match self.first_dirty(u32_from_u64(blocks.clamp(1, u64::from(u32::MAX)))) {
            Some(range) => self.write_back_range(range),
            None => Ok(()),
        }
    }

    /// The shortest range that begins with the first dirty block and holds `blocks` dirty blocks,
    /// or all dirty blocks if there are fewer.
    fn first_dirty(&self, blocks: u32) -> Option<Range<u32>> {
        let waiting = self.inode.waiting();
        let mut range = waiting.dirty.first_run(0, blocks)?;
        let mut left = blocks - (range.end - range.start);
        while left > 0 {
            let Some(run) = waiting.dirty.first_run(range.end, left) else { break };
            left -= run.end - run.start;
            range.end = run.end;
        }
        Some(range)
    }
}

impl Files {
    /// See [`crate::FileSystem::write_back_excess`].
    pub(crate) fn write_back_excess(&self, ctx: &OpContext) -> Result<()> {
        self.volume.check_writable()?;
        let enough = u64_from_usize(self.volume.options().dirty_data_bytes) / FREE_SHARE / 2;
        let is_enough = || self.dirty_bytes.load(Ordering::Relaxed) <= enough;
        if is_enough() { Ok(()) } else { self.write_back_others(ctx, is_enough) }
    }

    /// Writes back files that nobody uses now, in the order in which they became dirty, until
    /// `enough` returns true. If a file could not be written, its next fsync reports that.
    ///
    /// # Errors
    /// The first error of the device, if `enough` never became true: a caller that continued
    /// writing would fill the memory. [`Error::ReadOnly`] once the instance is read-only.
    pub(super) fn write_back_others(&self, ctx: &OpContext, enough: impl Fn() -> bool) -> Result<()> {
        let mut refused = Ok(());
        for other in self.volume.inodes.table.dirty_files() {
            let Some(mut data) = other.try_write() else { continue };
            let written = self.locked(ctx, &other, &mut data).write_back_listed(Busy::Await);
            self.volume.check_writable()?;
            if enough() {
                return Ok(());
            }
            if let Err(Error::Device(_)) = &written {
                refused = refused.and(written);
            }
        }
        refused
    }
}

#[cfg(test)]
mod tests {
    use crate::{DataNotice, FileSystem, NewInode, OpContext, OpenOptions, mkfs};
    use blockyard_device::MemoryDevice;
    use blockyard_disk::inode::FileType;
    use blockyard_disk::{InodeNr, Timestamp};
    use blockyard_sync::{AtomicU64, Ordering};
    use std::sync::Arc;

    fn places(fs: &FileSystem) -> Vec<InodeNr> {
        fs.volume.inodes.table.dirty_files().map(|inode| inode.number()).collect()
    }

    /// A regression test: a file that was written back to make room stayed on the list of dirty
    /// files. So each write beyond the limit looked at every file written before, and at all inodes
    /// in memory to find these files.
    #[test]
    fn who_makes_room_finds_the_oldest_file_first_and_takes_it_out_of_the_order() {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        mkfs::format(&*device, &mkfs::Options::ext4().block_size(4096).identity(1, 1)).unwrap();
        let options = OpenOptions { dirty_data_bytes: 64 << 10, ..OpenOptions::default() };
        let ctx = OpContext::system();
        let fs = FileSystem::open(device, options, &ctx).unwrap();
        let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
        let files: Vec<InodeNr> = (0..40)
            .map(|number| {
                let ctx = OpContext { now: Timestamp { seconds: number, ..ctx.now }, ..ctx };
                let file = fs.create(&ctx, InodeNr::ROOT, format!("{number}").as_bytes(), &new).unwrap();
                fs.write(&ctx, file, 0, &[1; 8192]).unwrap();
                file
            })
            .collect();
        // Eight files of 8 KiB fit. The ninth writes three back: room for itself and two more.
        assert_eq!(places(&fs), files[33..]);
        fs.fsync(&ctx, files[35]).unwrap();
        fs.unlink(&ctx, InodeNr::ROOT, b"34").unwrap();
        let mut left = files[33..].to_vec();
        left.remove(1);
        assert_eq!(places(&fs), left, "a file that fsync wrote keeps its place");
        fs.write(&ctx, files[0], 0, &[2; 4096]).unwrap();
        left.push(files[0]);
        assert_eq!(places(&fs), left);
        fs.tick(&OpContext { now: Timestamp { seconds: 36 + 30, ..ctx.now }, ..ctx }).unwrap();
        assert_eq!(places(&fs), files[37..40].iter().chain([&files[0]]).copied().collect::<Vec<_>>());
        fs.sync(&ctx).unwrap();
        assert_eq!(places(&fs), []);
        fs.close(&ctx).unwrap();
    }

    /// A regression test: each new file beyond the limit wrote back one other file. A copied tree
    /// then had its directories' blocks in three times as many runs as under Linux.
    #[test]
    fn room_is_made_for_many_files_at_a_time() {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        mkfs::format(&*device, &mkfs::Options::ext4().block_size(4096).identity(1, 1)).unwrap();
        let options = OpenOptions { dirty_data_bytes: 256 << 12, ..OpenOptions::default() };
        let ctx = OpContext::system();
        let fs = FileSystem::open(device, options, &ctx).unwrap();
        let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
        let waiting: Vec<usize> = (0..322)
            .map(|number| {
                let file = fs.create(&ctx, InodeNr::ROOT, format!("{number}").as_bytes(), &new).unwrap();
                fs.write(&ctx, file, 0, &[1; 4096]).unwrap();
                places(&fs).len()
            })
            .collect();
        let expected = (1..=256).chain(192..=256).chain([192]);
        assert_eq!(waiting, expected.collect::<Vec<usize>>());
        fs.close(&ctx).unwrap();
    }

    const FILE: NewInode = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };

    fn open(dirty_data_bytes: usize, notice: Option<DataNotice>) -> (FileSystem, OpContext) {
        let device = Arc::new(MemoryDevice::new(128 << 20));
        mkfs::format(&*device, &mkfs::Options::ext4().block_size(4096).identity(1, 1)).unwrap();
        let options = OpenOptions { dirty_data_bytes, on_much_dirty_data: notice, ..OpenOptions::default() };
        let ctx = OpContext::system();
        (FileSystem::open(device, options, &ctx).unwrap(), ctx)
    }

    fn waiting(fs: &FileSystem) -> u64 {
        fs.files.dirty_bytes.load(Ordering::Relaxed)
    }

    /// A regression test: when a heavy writer reached the limit, it wrote back everything in one
    /// call, other files too.
    #[test]
    fn who_writes_much_pays_for_itself_a_little_each_time() {
        let (fs, ctx) = open(8 << 20, None);
        let small: Vec<InodeNr> = (0..200)
            .map(|number| {
                let file = fs.create(&ctx, InodeNr::ROOT, format!("{number}").as_bytes(), &FILE).unwrap();
                fs.write(&ctx, file, 0, &[1; 4096]).unwrap();
                file
            })
            .collect();
        let large = fs.create(&ctx, InodeNr::ROOT, b"large", &FILE).unwrap();
        let more = 64 << 10;
        for step in 0..1000 {
            let before = waiting(&fs);
            fs.write(&ctx, large, step * more, &[2; 64 << 10]).unwrap();
            let written = before + more - waiting(&fs);
            assert!(written <= 1 << 20, "step {step}: {written} bytes were written at once");
            assert!(waiting(&fs) <= 4 << 20, "step {step}: {} bytes wait", waiting(&fs));
        }
        let waits = |&&file: &&InodeNr| !fs.volume.inodes.inode(file).unwrap().waiting().dirty.is_empty();
        assert_eq!(small.iter().filter(waits).count(), 200, "others were written back for it");
        fs.close(&ctx).unwrap();
    }

    /// The dirty blocks of a sparse file lie in many short runs. Its writer, too, must write back
    /// what exceeds the share.
    #[test]
    fn who_writes_here_and_there_pays_too() {
        let (fs, ctx) = open(1 << 20, None);
        let file = fs.create(&ctx, InodeNr::ROOT, b"sparse", &FILE).unwrap();
        for step in 0..2000 {
            fs.write(&ctx, file, (step * 37 % 2000) << 14, &[3; 4096]).unwrap();
            assert!(waiting(&fs) <= 512 << 10, "step {step}: {} bytes wait", waiting(&fs));
        }
        fs.close(&ctx).unwrap();
    }

    #[test]
    fn who_is_told_of_much_dirty_data_can_write_it_back() {
        let told = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&told);
        let notice = DataNotice(Arc::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        }));
        let (fs, ctx) = open(1 << 20, Some(notice));
        for number in 0..128 {
            let file = fs.create(&ctx, InodeNr::ROOT, format!("{number}").as_bytes(), &FILE).unwrap();
            fs.write(&ctx, file, 0, &[1; 4096]).unwrap();
        }
        assert_eq!(told.load(Ordering::Relaxed), 0, "half of the limit waits");
        let file = fs.create(&ctx, InodeNr::ROOT, b"one more", &FILE).unwrap();
        fs.write(&ctx, file, 0, &[1; 4096]).unwrap();
        assert_eq!((told.load(Ordering::Relaxed), waiting(&fs)), (1, 129 << 12));
        fs.write_back_excess(&ctx).unwrap();
        assert_eq!(waiting(&fs), 64 << 12);
        assert_eq!(places(&fs).len(), 64, "the oldest went first");
        fs.close(&ctx).unwrap();
    }
}
