//! Random operations on one file, compared with plain bytes in memory, in the manner of fsx: reads
//! return what was written, through write-back, commits and reopening. At the end e2fsck finds
//! nothing.
//!
//! Ranges are drawn by `blockyard_ranges`, because uniformly drawn offsets would hardly ever hit
//! the edges of blocks, clusters, folios and maps.

#![allow(clippy::as_conversions, clippy::unwrap_used)]

#[path = "fsx/kinds.rs"]
mod kinds;

use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_disk::inode::FileType;
use blockyard_disk::{InodeNr, Timestamp};
use blockyard_engine::instruments::Instruments;
use blockyard_engine::{Error, Fallocate, FileSystem, NewInode, OpContext, OpenOptions, Watched, mkfs};
use blockyard_ranges::Ranges;
use blockyard_testkit::fill::pattern;
use blockyard_testkit::{SparseBytes, coverage, e2fsck_clean, full_matrix, require, seed};
use kinds::Kind;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeSet, VecDeque};
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

const EINVAL: i32 = 22;
const EFBIG: i32 = 27;
const EOPNOTSUPP: i32 = 95;

/// How many bytes at the start of the device are filled with 0xEE before mkfs. No read of the file
/// may return this old content.
const POISON: u64 = 32 << 20;

/// How many of the last operations a failure prints.
const SHOWN: usize = 12;

const MODES: [Fallocate; 9] = [
    Fallocate::Allocate,
    Fallocate::AllocateKeepSize,
    Fallocate::PunchHole,
    Fallocate::PunchHole,
    Fallocate::ZeroRange,
    Fallocate::ZeroRange,
    Fallocate::ZeroRangeKeepSize,
    Fallocate::CollapseRange,
    Fallocate::InsertRange,
];

fn context() -> OpContext {
    OpContext::root_at(Timestamp::from_seconds(1_700_000_000))
}

struct World {
    kind: Kind,
    device: Arc<MemoryDevice>,
    fs: Option<Watched>,
    /// The operations that succeeded on the instances closed so far, by their names in
    /// docs/testing.md.
    worked: BTreeSet<&'static str>,
    inode: InodeNr,
    bytes: SparseBytes,
    /// No block is mapped behind this byte, rounded up to a cluster.
    mapped_end: u64,
    rng: ChaCha8Rng,
    ranges: Ranges,
    done: VecDeque<String>,
    step: u32,
}

impl World {
    fn new(kind: Kind, rng: ChaCha8Rng) -> Self {
        let device = Arc::new(MemoryDevice::new(kind.image));
        let poison = vec![0xEE; 1 << 20];
        (0..kind.image.min(POISON) >> 20).for_each(|n| device.write_at(n << 20, &poison).unwrap());
        mkfs::format(&*device, &kind.options).unwrap();
        let fs = open(&kind, &device);
        let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
        let inode = fs.create(&context(), InodeNr::ROOT, b"file", &new).unwrap();
        let ranges = Ranges::new(kind.edges.clone());
        let (bytes, done) = (SparseBytes::new(), VecDeque::new());
        let (fs, worked) = (Some(fs), BTreeSet::new());
        Self { kind, device, fs, worked, inode, bytes, mapped_end: 0, rng, ranges, done, step: 0 }
    }

    fn fs(&self) -> &Watched {
        self.fs.as_ref().unwrap()
    }

    /// Closes the image, and keeps the list of the operations that succeeded on it.
    fn close(&mut self) {
        let fs = self.fs.take().unwrap();
        self.worked.extend(fs.done());
        fs.into_inner().close(&context()).unwrap();
    }

    fn note(&mut self, what: &dyn Debug, range: &Range<u64>) {
        self.done.push_back(format!(
            "{what:?} {} + {}, size {}",
            range.start,
            range.end - range.start,
            self.bytes.len()
        ));
        let old = self.done.len().saturating_sub(SHOWN);
        self.done.drain(..old);
    }

    /// Asserts that an operation was refused with the errno `refused`, or succeeded if that is
    /// `None`. Returns the value of a success.
    fn answers<T>(&self, got: Result<T, Error>, refused: Option<i32>) -> Option<T> {
        let errno = got.as_ref().err().map(Error::errno);
        let text = got.as_ref().err().map_or_else(|| "Ok".to_owned(), ToString::to_string);
        assert_eq!(errno, refused, "{text}");
        got.ok()
    }

    fn too_large(&self, end: u64) -> Option<i32> {
        (end > self.kind.edges.largest()).then_some(EFBIG)
    }

    /// Empties the file when less than half of the space is left, so that no operation runs out of
    /// space.
    fn make_room(&mut self) {
        let seen = self.fs().statistics();
        if seen.blocks_available < seen.blocks / 2 {
            self.fs().truncate(&context(), self.inode, 0).unwrap();
            self.fs().commit(&context()).unwrap();
            self.bytes.resize(0);
            self.mapped_end = 0;
            self.note(&"truncate for room", &(0..0));
        }
    }

    fn step(&mut self) {
        self.make_room();
        match self.rng.random_range(0..32) {
            0..8 => self.write(),
            8 => self.append(),
            9..13 => self.write_direct(),
            13..16 => self.truncate(),
            16..25 => self.fallocate(),
            25..30 => self.settle(),
            30 if self.rng.random_range(0..8) == 0 => self.reopen(),
            31 => self.read_direct(),
            _ => {
                let range = self.ranges.range(&mut self.rng, self.bytes.len(), 256 << 10);
                self.compare(range);
            }
        }
    }

    fn read_direct(&mut self) {
        let block = self.kind.edges.block();
        let range = self.ranges.aligned(&mut self.rng, self.bytes.len(), 256 << 10, block);
        let expected = self.bytes.read(range.clone());
        let mut read = vec![0xA5; (range.end - range.start) as usize];
        self.note(&"read_direct", &range);
        let got = self.fs().read_direct(&context(), self.inode, range.start, &mut read);
        assert_eq!(self.answers(got, None), Some(expected.len()));
        assert_eq!(read[..expected.len()], expected);
        let odd = self.fs().read_direct(&context(), self.inode, range.start + 1, &mut read);
        let _ = self.answers(odd, Some(EINVAL));
    }

    /// The most bytes of a write. Only one write in 24 may be longer than the largest folio.
    fn longest(&mut self) -> u64 {
        let block = self.kind.edges.block();
        if self.rng.random_range(0..24) == 0 { (2 << 20) + 2 * block } else { (8 * block).max(32 << 10) }
    }

    fn content(&mut self, range: &Range<u64>) -> Vec<u8> {
        pattern(self.rng.random(), (range.end - range.start) as usize)
    }

    fn wrote(&mut self, range: Range<u64>, content: &[u8]) {
        self.bytes.write(range.start, content);
        self.mapped_end = self.mapped_end.max(range.end);
        self.compare_around(range);
    }

    fn write(&mut self) {
        let longest = self.longest();
        let range = self.ranges.range(&mut self.rng, self.bytes.len(), longest);
        let content = self.content(&range);
        self.note(&"write", &range);
        let got = self.fs().write(&context(), self.inode, range.start, &content);
        if self.answers(got, self.too_large(range.end)).is_some() {
            self.wrote(range, &content);
        }
    }

    fn append(&mut self) {
        let (size, longest) = (self.bytes.len(), self.longest());
        let drawn = self.ranges.range(&mut self.rng, size, longest);
        let range = size..size + (drawn.end - drawn.start);
        if range.end > self.kind.edges.reach() && self.too_large(range.end).is_none() {
            return;
        }
        let content = self.content(&range);
        self.note(&"append", &range);
        let got = self.fs().append(&context(), self.inode, &content);
        if let Some(at) = self.answers(got, self.too_large(range.end)) {
            assert_eq!(at, size);
            self.wrote(range, &content);
        }
    }

    fn write_direct(&mut self) {
        let (block, longest) = (self.kind.edges.block(), self.longest());
        let size = self.bytes.len();
        let range = match self.rng.random_range(0..12) {
            0 => self.ranges.range(&mut self.rng, size, longest),
            _ => self.ranges.aligned(&mut self.rng, size, longest, block),
        };
        let whole = range.start.is_multiple_of(block) && range.end.is_multiple_of(block);
        let content = self.content(&range);
        self.note(&"write_direct", &range);
        let got = self.fs().write_direct(&context(), self.inode, range.start, &content);
        let refused = if whole { self.too_large(range.end) } else { Some(EINVAL) };
        if let Some(count) = self.answers(got, refused) {
            assert_eq!(count, content.len());
            self.wrote(range, &content);
        }
    }

    fn truncate(&mut self) {
        let size = self.ranges.offset(&mut self.rng, self.bytes.len());
        self.note(&"truncate", &(size..size));
        let got = self.fs().truncate(&context(), self.inode, size);
        if self.answers(got, self.too_large(size)).is_some() {
            let edge = self.bytes.len().min(size);
            self.bytes.resize(size);
            // A truncation that makes the file larger frees no blocks that are allocated behind its
            // end.
            if size == edge {
                self.mapped_end = self.mapped_end.min(size.next_multiple_of(self.kind.edges.cluster()));
            }
            self.compare_around(edge..size.max(edge));
        }
    }

    fn fallocate(&mut self) {
        let what = *MODES.choose(&mut self.rng).unwrap();
        let (size, unit) = (self.bytes.len(), self.kind.edges.cluster());
        let shifts = matches!(what, Fallocate::CollapseRange | Fallocate::InsertRange);
        let longest = match what {
            Fallocate::PunchHole | Fallocate::CollapseRange => u64::MAX,
            Fallocate::InsertRange => self.kind.edges.reach(),
            _ => self.kind.ahead,
        };
        let range = if shifts && self.rng.random_range(0..8) != 0 {
            self.ranges.aligned(&mut self.rng, size, longest, unit)
        } else {
            self.ranges.range(&mut self.rng, size, longest)
        };
        // An insertion that grows the file beyond the usual range is tried only if it must be
        // refused because the file would get too large.
        let len = range.end - range.start;
        if what == Fallocate::InsertRange
            && size + len > self.kind.edges.reach()
            && self.too_large(size + len).is_none()
        {
            return;
        }
        self.note(&what, &range);
        let got = self.fs().fallocate(&context(), self.inode, what, range.start, len);
        let refused = self.refused(what, &range);
        if refused.is_none() && what == Fallocate::InsertRange && matches!(got, Err(Error::FileTooLarge)) {
            let limit = self.kind.edges.largest();
            assert!(self.mapped_end.next_multiple_of(unit) + len >= limit);
            return;
        }
        if self.answers(got, refused).is_some() {
            self.apply(what, range);
        }
    }

    /// The errno with which fallocate must refuse a range, in Linux's order of checks. `None`: the
    /// range is allowed, but an insertion may still be refused as too large because of blocks
    /// mapped behind the end.
    fn refused(&self, what: Fallocate, range: &Range<u64>) -> Option<i32> {
        let (size, unit) = (self.bytes.len(), self.kind.edges.cluster());
        let whole = range.start.is_multiple_of(unit) && range.end.is_multiple_of(unit);
        if range.end > self.kind.edges.largest() {
            return Some(EFBIG);
        }
        if !self.kind.extents && what != Fallocate::PunchHole {
            return Some(EOPNOTSUPP);
        }
        match what {
            Fallocate::CollapseRange if !whole || range.end >= size => Some(EINVAL),
            Fallocate::InsertRange if !whole || range.start >= size => Some(EINVAL),
            Fallocate::InsertRange => self.too_large(size + range.end - range.start),
            _ => None,
        }
    }

    fn apply(&mut self, what: Fallocate, range: Range<u64>) {
        let len = range.end - range.start;
        match what {
            Fallocate::Allocate => self.bytes.grow(range.end),
            Fallocate::AllocateKeepSize => {}
            Fallocate::PunchHole | Fallocate::ZeroRangeKeepSize => self.bytes.zero(range.clone()),
            Fallocate::ZeroRange => {
                self.bytes.grow(range.end);
                self.bytes.zero(range.clone());
            }
            Fallocate::CollapseRange => self.bytes.collapse(range.clone()),
            Fallocate::InsertRange => self.bytes.insert(range.start, len),
        }
        match what {
            Fallocate::CollapseRange => {
                self.mapped_end = self.mapped_end.saturating_sub(len).max(range.start)
            }
            Fallocate::InsertRange => self.mapped_end += len,
            Fallocate::PunchHole => {}
            _ => self.mapped_end = self.mapped_end.max(range.end),
        }
        self.compare_around(range);
    }

    /// Writes back, syncs or commits, in one of several ways, or drops the caches.
    fn settle(&mut self) {
        let ctx = context();
        let (fs, inode) = (self.fs(), self.inode);
        let (what, got) = match self.rng.clone().random_range(0..8) {
            0..3 => ("write_back_file", fs.write_back_file(&ctx, inode)),
            3 => ("fsync", fs.fsync(&ctx, inode)),
            4 => ("fdatasync", fs.fdatasync(&ctx, inode)),
            5 => ("sync", fs.sync(&ctx)),
            6 => ("commit", fs.commit(&ctx)),
            _ => {
                fs.instrumented().drop_caches();
                ("drop_caches", Ok(()))
            }
        };
        // The draw above was from a copy of the generator, because `fs` borrows `self`. This draw
        // advances the generator itself.
        let _: u32 = self.rng.random();
        self.note(&what, &(0..0));
        let _ = self.answers(got, None);
    }

    fn reopen(&mut self) {
        self.note(&"reopen", &(0..0));
        self.close();
        self.fs = Some(open(&self.kind, &self.device));
        self.compare_all();
    }

    /// Compares a range and the bytes on both sides of it. Of a large range, only the bytes around
    /// its two ends are compared.
    fn compare_around(&self, range: Range<u64>) {
        let beside = 2 * self.kind.edges.block().max(4096);
        let (first, last) = (range.start.saturating_sub(beside), range.end + beside);
        if last - first <= 512 << 10 {
            return self.compare(first..last);
        }
        self.compare(first..range.start + beside);
        self.compare(range.end.saturating_sub(beside)..last);
    }

    /// Compares the whole of a small file. Of a large file, compares everything that was written,
    /// with a block on each side, and the end.
    fn compare_all(&self) {
        let (size, block) = (self.bytes.len(), self.kind.edges.block());
        if size <= 8 << 20 {
            return self.compare(0..size + block);
        }
        for range in self.bytes.written() {
            self.compare(range.start.saturating_sub(block)..range.end + block);
        }
        self.compare(size - block..size + block);
    }

    fn compare(&self, range: Range<u64>) {
        let size = self.fs().attributes(self.inode).unwrap().size;
        assert_eq!(size, self.bytes.len(), "size");
        let expected = self.bytes.read(range.clone());
        let mut read = vec![0xA5; (range.end - range.start) as usize];
        let n = self.fs().read(&context(), self.inode, range.start, &mut read).unwrap();
        assert_eq!(n, expected.len(), "read of {range:?}");
        if let Some(wrong) = read[..n].iter().zip(&expected).position(|(a, b)| a != b) {
            let at = range.start + wrong as u64;
            panic!("byte {at} reads {:#x}, {:#x} is due", read[wrong], expected[wrong]);
        }
    }
}

impl Drop for World {
    /// After a failure, prints the operations that led to it.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let done: Vec<&str> = self.done.iter().map(String::as_str).collect();
            eprintln!("{}: step {}, after\n  {}", self.kind.name, self.step, done.join("\n  "));
        }
    }
}

fn open(kind: &Kind, device: &Arc<MemoryDevice>) -> Watched {
    let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(device);
    let options = OpenOptions {
        instruments: Instruments::page_cache_if(kind.follow_page_cache),
        dirty_data_bytes: kind.dirty,
        clean_data_bytes: kind.clean,
        ..OpenOptions::default()
    };
    Watched::new(FileSystem::open(shared, options, &context()).unwrap())
}

/// Runs random operations on one image. Returns the names of the operations that succeeded.
fn run(kind: &Kind, steps: u32) -> BTreeSet<&'static str> {
    let first = seed(20_261_121);
    let rng = ChaCha8Rng::seed_from_u64(first ^ kind.edges.block());
    println!("{}", kind.name);
    let mut world = World::new(kind.clone(), rng);
    while world.step < steps {
        world.step();
        world.step += 1;
        if world.step.is_multiple_of(64) {
            world.compare_all();
        }
    }
    world.reopen();
    world.close();
    if require(&["e2fsck"]) {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("image");
        world.device.save(&path).unwrap();
        e2fsck_clean(&path);
    }
    std::mem::take(&mut world.worked)
}

fn run_all(kind: fn(u64) -> Kind, sample: u32) {
    let steps = std::env::var("STEPS").ok().and_then(|text| text.parse().ok());
    let steps = steps.unwrap_or(if full_matrix() { 50 * sample } else { sample });
    let mut worked = BTreeSet::new();
    for kind in kinds::BLOCKS.map(kind) {
        let here = run(&kind, steps);
        coverage::assert_done_within("fsx", &[kind.label()], here.iter().copied());
        worked.extend(here);
    }
    // A shorter run covers only some of the operations.
    if steps >= sample {
        coverage::assert_done("fsx", &[kind(kinds::BLOCKS[0]).label()], worked);
    }
}

#[test]
fn extents() {
    run_all(kinds::extents, 1_000);
}

/// With blocks larger than pages, a direct write once covered only a part of a dirty folio, and the
/// folio's older data overwrote the direct write.
#[test]
fn the_page_cache_followed() {
    run_all(kinds::page_cache, 1_000);
}

/// With a cache of clean data between the file and the device. The limits are so small that dirty
/// data is often written back and clean data is often evicted.
#[test]
fn clean_data_is_kept() {
    run_all(kinds::clean_data, 1_000);
}

#[test]
fn clusters() {
    run_all(kinds::clusters, 800);
}

#[test]
fn clusters_of_two_blocks() {
    run_all(kinds::small_clusters, 300);
}

#[test]
fn inline_data() {
    run_all(kinds::inline_data, 400);
}

#[test]
fn indirect_blocks() {
    run_all(kinds::indirect, 800);
}

/// Sparse files up to the largest size that extents can map. A punch that reached the end of such a
/// file once panicked.
#[test]
fn largest_files() {
    run_all(kinds::largest, 1_000);
}

#[test]
fn largest_files_of_indirect_blocks() {
    run_all(kinds::largest_indirect, 800);
}

/// docs/testing.md must list the images.
#[test]
fn the_images_are_told() {
    let kinds: [fn(u64) -> Kind; 9] = [
        kinds::extents,
        kinds::page_cache,
        kinds::clean_data,
        kinds::clusters,
        kinds::small_clusters,
        kinds::inline_data,
        kinds::indirect,
        kinds::largest,
        kinds::largest_indirect,
    ];
    let each = kinds.iter().flat_map(|kind| kinds::BLOCKS.map(|block| (kind(block), block)));
    let each: Vec<(Kind, u64)> = each.collect();
    coverage::assert_images("fsx", each.iter().map(|(kind, block)| (kind.label(), *block)));
}
