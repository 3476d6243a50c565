//! Unwritten extents are converted when the I/O of their data has ended. In these tests an
//! [`IoEndSource`] can report that end. The tests show how the time of the report changes the
//! extent tree, and that no content is lost or hidden before the report.

#![allow(clippy::unwrap_used)]

#[path = "support/image.rs"]
mod support;

use blockyard_alloc::{AllocEvent, EventSink, RequestFlags, Tunable};
use blockyard_device::MemoryDevice;
use blockyard_disk::InodeNr;
use blockyard_engine::instruments::{Instruments, IoEnd, IoEndSource, IoEnds};
use blockyard_engine::{Events, Fallocate, FileSystem, JournalUse, OpenOptions, mkfs};
use blockyard_sync::CpuSlot;
use blockyard_testkit::{e2fsck_clean, require};
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use support::{ROOT, context, file, open_with};

/// The most blocks of one request. Write-back of a file of n such pieces makes n requests, and
/// leaves one extent at the end.
const PIECE: u32 = 2048;
const BLOCK: u64 = 4096;

/// Counts requests, and reports ends of I/O after some of them.
#[derive(Default)]
struct Watch(Mutex<Watched>, OnceLock<Weak<FileSystem>>);

#[derive(Default)]
struct Watched {
    data: usize,
    mapping: usize,
    /// For each request: whether it is for data, whether its clusters were reserved, and whether it
    /// may use the file system's own reserve.
    asked: Vec<(bool, bool, bool)>,
    /// For each piece that write-back mapped: how many clusters of preallocations had been given
    /// back by then.
    given_back: Vec<u64>,
    /// Ends of I/O to report: after how many requests for data, for which inode, and for which
    /// logical blocks.
    ends: Vec<(usize, InodeNr, Range<u32>)>,
}

impl EventSink for Watch {
    fn emit(&self, _: CpuSlot, event: &AllocEvent) {
        let mut watched = self.0.lock().unwrap();
        let has = |flag: RequestFlags| u32::from(event.flags) & flag.bits() != 0;
        let is_data = has(RequestFlags::DATA);
        if is_data {
            watched.data += 1;
        } else {
            watched.mapping += 1;
        }
        let whose = (has(RequestFlags::DELALLOC_RESERVED), has(RequestFlags::USE_RESERVED));
        watched.asked.push((is_data, whose.0, whose.1));
    }
}

impl IoEndSource for Watch {
    fn next(&self) -> Option<IoEnd> {
        let mut watched = self.0.lock().unwrap();
        let data = watched.data;
        watched.ends.first().filter(|(after, ..)| *after <= data)?;
        let (_, inode, blocks) = watched.ends.remove(0);
        Some(IoEnd { inode, blocks, cpu: CpuSlot::ZERO })
    }

    fn mapped(&self) {
        if let Some(fs) = self.1.get().and_then(Weak::upgrade) {
            self.0.lock().unwrap().given_back.push(given_back(&fs));
        }
    }
}

fn world(is_told: bool) -> (Arc<MemoryDevice>, FileSystem, Arc<Watch>) {
    let device = Arc::new(MemoryDevice::new(256 << 20));
    mkfs::format(&*device, &mkfs::Options::ext4().block_size(4096).identity(1, 1)).unwrap();
    let watch = Arc::new(Watch::default());
    let options = OpenOptions {
        events: Some(Events(Arc::<Watch>::clone(&watch))),
        instruments: Instruments {
            io_ends: is_told.then(|| IoEnds(Arc::<Watch>::clone(&watch))),
            ..Instruments::page_cache()
        },
        dirty_data_bytes: 1 << 30,
        ..OpenOptions::default()
    };
    (Arc::clone(&device), open_with(&device, options), watch)
}

fn given_back(fs: &FileSystem) -> u64 {
    let stats = fs.allocator().mb_stats();
    let line = stats.lines().find_map(|line| line.trim().strip_prefix("discarded:")).unwrap();
    line.trim().parse().unwrap()
}

fn content(pieces: u32) -> Vec<u8> {
    (0..pieces * PIECE).flat_map(|block| [block.to_le_bytes()[0] | 1; 4096]).collect()
}

/// Each piece that write-back maps is an extent entry of its own until it is converted. With five
/// pieces the tree grows, unless two of them are converted and merged before the fifth is mapped.
#[test]
fn a_tree_grows_or_not_with_the_time_at_which_io_ends() {
    for (after, grows) in [(2, false), (4, false), (5, true), (99, true)] {
        let (_, fs, watch) = world(true);
        let inode = file(&fs, ROOT, "f");
        fs.write(&context(), inode, 0, &content(5)).unwrap();
        let ends = [0..PIECE, PIECE..2 * PIECE].map(|blocks| (after, inode, blocks));
        *watch.0.lock().unwrap() = Watched { ends: ends.to_vec(), ..Watched::default() };
        fs.fsync(&context(), inode).unwrap();
        let watched = watch.0.lock().unwrap();
        assert_eq!((watched.data, watched.mapping > 0), (5, grows), "converted after {after} requests");
    }
}

/// Without an [`IoEndSource`], I/O has ended when the write to the device returns. The pieces are
/// still converted together, once the last one is mapped, so with five pieces the tree grows.
#[test]
fn without_being_told_the_pieces_are_converted_together() {
    let (_, fs, watch) = world(false);
    let inode = file(&fs, ROOT, "f");
    fs.write(&context(), inode, 0, &content(5)).unwrap();
    *watch.0.lock().unwrap() = Watched::default();
    fs.fsync(&context(), inode).unwrap();
    let watched = watch.0.lock().unwrap();
    assert_eq!((watched.data, watched.mapping), (5, 1));
}

/// Data whose I/O has not ended can be read, changed in part, punched, zeroed, cut off and moved
/// like any other data. It is there after fsync and closing.
#[test]
fn what_waits_for_the_end_of_its_io_is_content_all_the_same() {
    let (device, fs, _watch) = world(true);
    let inode = file(&fs, ROOT, "f");
    let mut expected = content(2);
    fs.write(&context(), inode, 0, &expected).unwrap();
    fs.write_back_file(&context(), inode).unwrap();
    let read = |fs: &FileSystem, len: usize| {
        let mut bytes = vec![0; len + 1];
        let done = fs.read(&context(), inode, 0, &mut bytes).unwrap();
        bytes.truncate(done);
        bytes
    };
    assert!(read(&fs, expected.len()) == expected, "read while it waits");
    fs.write(&context(), inode, 5 * BLOCK + 100, &[9; 50]).unwrap();
    expected[20_580..20_630].fill(9);
    fs.fallocate(&context(), inode, Fallocate::PunchHole, 7 * BLOCK + 10, 2 * BLOCK).unwrap();
    expected[28_682..36_874].fill(0);
    fs.fallocate(&context(), inode, Fallocate::ZeroRange, 20 * BLOCK, BLOCK).unwrap();
    expected[81_920..86_016].fill(0);
    let (len, cut) = (expected.len() - 10_000, 30 * 4096..31 * 4096);
    fs.truncate(&context(), inode, u64::try_from(len).unwrap()).unwrap();
    expected.truncate(len);
    assert!(read(&fs, len) == expected, "changed while it waits");
    fs.fallocate(&context(), inode, Fallocate::CollapseRange, 30 * BLOCK, BLOCK).unwrap();
    expected.drain(cut);
    assert!(read(&fs, expected.len()) == expected, "moved");
    fs.fsync(&context(), inode).unwrap();
    fs.close(&context()).unwrap();
    let again = open_with(&device, OpenOptions { journal: JournalUse::Ignored, ..OpenOptions::default() });
    assert!(read(&again, expected.len()) == expected, "after closing");
    if require(&["e2fsck"]) {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        device.save(&image).unwrap();
        e2fsck_clean(&image);
    }
}

/// If nobody has a file open for writing, its preallocations are released as soon as none of its
/// data waits for allocation. A tree block for a later piece can then use that space.
#[test]
fn preallocations_go_back_in_the_middle_of_a_write_back() {
    let (_, fs, watch) = world(true);
    let fs = Arc::new(fs);
    fs.allocator().set_tunable(Tunable::Stats, 1).unwrap();
    let inode = file(&fs, ROOT, "f");
    fs.open_inode(inode, true).unwrap();
    fs.truncate(&context(), inode, 40 * BLOCK).unwrap();
    fs.fallocate(&context(), inode, Fallocate::AllocateKeepSize, 20 * BLOCK, 10 * BLOCK).unwrap();
    for block in [0, 25] {
        fs.write(&context(), inode, block * BLOCK, &[7; 4096]).unwrap();
    }
    fs.release_inode(&context(), inode, true).unwrap();
    let before = given_back(&fs);
    watch.1.set(Arc::downgrade(&fs)).unwrap();
    fs.write_back_all(&context()).unwrap();
    let after = &watch.0.lock().unwrap().given_back;
    assert_eq!(after.len(), 2, "a block without a place, and one amid an unwritten extent");
    assert!(before < after[0] && after[0] == after[1], "{before} {after:?}");
}

/// As in Linux, fallocate over delayed blocks requests reserved clusters only for these blocks. No
/// reservation covers the tree block for a split at conversion, so it may come from the file
/// system's own reserve.
#[test]
fn whose_clusters_are_asked_for_follows_from_what_waits() {
    let (_, fs, watch) = world(true);
    let inode = file(&fs, ROOT, "f");
    fs.write(&context(), inode, 4 * BLOCK, &[7; 8192]).unwrap();
    fs.fallocate(&context(), inode, Fallocate::Allocate, 0, 40 * BLOCK).unwrap();
    let data = |is_reserved| (true, is_reserved, false);
    assert_eq!(std::mem::take(&mut watch.0.lock().unwrap().asked), [false, true, false].map(data));
    // Three pieces are dirty: blocks 4 and 5, block 20, block 30. Each conversion splits an extent,
    // which adds two more. After the second split, the extents do not fit into the root.
    for block in [20, 30] {
        fs.write(&context(), inode, block * BLOCK, &[7; 4096]).unwrap();
    }
    fs.fsync(&context(), inode).unwrap();
    assert_eq!(watch.0.lock().unwrap().asked, [(false, false, true)]);
}
