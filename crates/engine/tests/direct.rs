//! Direct writes: the allocation requests that they make, what happens to dirty data in their
//! range, and the content and image that result.

#![allow(clippy::unwrap_used)]

#[path = "support/image.rs"]
mod support;

use blockyard_alloc::{AllocEvent, EventSink, RequestFlags};
use blockyard_device::MemoryDevice;
use blockyard_disk::InodeNr;
use blockyard_engine::instruments::Instruments;
use blockyard_engine::{Events, Fallocate, FileSystem, OpenOptions, mkfs};
use blockyard_sync::CpuSlot;
use std::sync::{Arc, Mutex};
use support::{ROOT, context, file, open_with};

const BLOCK: u64 = 4096;

/// A record of allocation requests: the first logical block and the length in blocks of each
/// request for data, and the number of requests for blocks of the extent tree or block map.
#[derive(Default)]
struct Requests(Mutex<Vec<(u32, u32)>>, Mutex<u32>);

impl EventSink for Requests {
    fn emit(&self, _: CpuSlot, event: &AllocEvent) {
        if u32::from(event.flags) & RequestFlags::DATA.bits() != 0 {
            self.0.lock().unwrap().push((event.original.logical, event.original.len));
        } else {
            *self.1.lock().unwrap() += 1;
        }
    }
}

struct World {
    device: Arc<MemoryDevice>,
    fs: FileSystem,
    requests: Arc<Requests>,
    inode: InodeNr,
}

impl World {
    fn new() -> Self {
        Self::on(mkfs::Options::ext4())
    }

    fn on(image: mkfs::Options) -> Self {
        let device = Arc::new(MemoryDevice::new(256 << 20));
        mkfs::format(&*device, &image.block_size(4096).identity(1, 1)).unwrap();
        let requests = Arc::new(Requests::default());
        let events = Some(Events(Arc::<Requests>::clone(&requests)));
        let fs = open_with(
            &device,
            OpenOptions { events, instruments: Instruments::page_cache(), ..OpenOptions::default() },
        );
        let inode = file(&fs, ROOT, "f");
        fs.open_inode(inode, true).unwrap();
        Self { device, fs, requests, inode }
    }

    /// Writes blocks directly, filled with `byte`. Returns the requests for data, by first logical
    /// block and length in blocks.
    fn direct(&self, block: u64, blocks: u64, byte: u8) -> Vec<(u32, u32)> {
        self.requests.0.lock().unwrap().clear();
        let bytes = vec![byte; usize::try_from(blocks * BLOCK).unwrap()];
        assert_eq!(self.fs.write_direct(&context(), self.inode, block * BLOCK, &bytes).unwrap(), bytes.len());
        std::mem::take(&mut self.requests.0.lock().unwrap())
    }

    fn byte(&self, block: u64) -> u8 {
        let mut bytes = [0xee; 4096];
        assert_eq!(self.fs.read(&context(), self.inode, block * BLOCK, &mut bytes).unwrap(), 4096);
        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
        bytes[0]
    }
}

/// The requests are those that Linux 6.18 makes for the same writes, as its tracepoints show them.
/// Requests that a preallocation serves are included. Each block that the test reads has the
/// content of the last write to the block, or zeroes if it was never written. The file ends after
/// the highest block written.
#[test]
fn what_lies_in_a_hole_is_asked_for_at_once_and_what_has_a_place_not() {
    let world = World::new();
    assert_eq!(world.direct(0, 4, 1), [(0, 4)]);
    assert_eq!(world.direct(4, 100, 2), [(4, 100)]);
    assert_eq!(world.direct(110, 2, 3), [(110, 2)], "preallocated");
    assert_eq!(world.direct(2, 8, 4), [], "mapped");
    world
        .fs
        .fallocate(&context(), world.inode, Fallocate::AllocateKeepSize, 200 * BLOCK, 50 * BLOCK)
        .unwrap();
    assert_eq!(world.direct(210, 4, 5), [], "unwritten");
    assert_eq!(world.direct(198, 4, 6), [(198, 2)], "a hole, and a part of what is unwritten");
    let bytes =
        [(0, 1), (1, 1), (2, 4), (9, 4), (10, 2), (105, 0), (110, 3), (199, 6), (201, 6), (202, 0), (213, 5)];
    for (block, byte) in bytes {
        assert_eq!(world.byte(block), byte, "block {block}");
    }
    assert_eq!(world.fs.attributes(world.inode).unwrap().size, 214 * BLOCK);
}

#[test]
fn the_folios_of_the_range_are_written_before_and_others_go_on_waiting() {
    let world = World::new();
    // These blocks are in two folios, of 16 and of 4 blocks.
    world.fs.write(&context(), world.inode, 0, &[7; 20 * 4096]).unwrap();
    assert_eq!(world.direct(4, 4, 8), [(0, 16)]);
    assert_eq!(world.fs.allocator().free_clusters().delayed, 4);
    assert_eq!((world.byte(3), world.byte(4), world.byte(8)), (7, 8, 7));
    world.fs.sync(&context()).unwrap();
    assert_eq!((world.byte(3), world.byte(7), world.byte(8)), (7, 8, 7));
    let World { device, fs, .. } = world;
    fs.close(&context()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    device.save(&image).unwrap();
    if blockyard_testkit::require(&["e2fsck"]) {
        blockyard_testkit::e2fsck_clean(&image);
    }
}

/// Observed on Linux 6.18: a direct write maps each hole in its range as an unwritten extent, and
/// later converts each unwritten extent separately. So a write over two holes and the unwritten
/// blocks between them may need a tree block. When the converted extents merge, the tree block is
/// freed again.
#[test]
fn pieces_are_entries_of_their_own_until_they_are_converted() {
    let world = World::new();
    assert_eq!(world.direct(200, 1, 1), [(200, 1)]);
    assert_eq!(world.direct(0, 1, 1), [(0, 1)]);
    let ahead = world.fs.fallocate(&context(), world.inode, Fallocate::Allocate, 100 * BLOCK, 2 * BLOCK);
    ahead.unwrap();
    *world.requests.1.lock().unwrap() = 0;
    world.direct(98, 6, 7);
    assert_eq!(*world.requests.1.lock().unwrap(), 1, "five entries");
    assert_eq!([98, 100, 103].map(|block| world.byte(block)), [7; 3]);
    let sectors = world.fs.attributes(world.inode).unwrap().sectors;
    assert_eq!(world.fs.allocator().pending_clusters(), 1, "the tree block");
    assert_eq!(sectors * 512 / BLOCK, 8);
}

#[test]
fn parts_of_blocks_are_refused_and_change_nothing() {
    let world = World::new();
    for (offset, len) in [(1, 4096), (0, 100), (4096, 4097)] {
        let refused = world.fs.write_direct(&context(), world.inode, offset, &vec![1; len]).unwrap_err();
        assert_eq!(refused.errno(), 22);
    }
    assert_eq!(world.fs.attributes(world.inode).unwrap().size, 0);
}

/// Observed on Linux 6.18 with block maps:
/// - Behind the end of the file, each block whose pointer goes into the inode or an existing
///   indirect block is a request of its own. All blocks that a new indirect block maps are one
///   request.
/// - If a direct write meets a hole before the end of the file, the write becomes dirty data from
///   that hole on. This data is written back before the call returns.
///
/// The engine once made the whole write dirty data, and did not write it back.
#[test]
fn block_maps_are_written_directly_too() {
    let world = World::on(mkfs::Options::ext4().features("^extent,^64bit"));
    assert_eq!(world.direct(8, 30, 1), [(8, 1), (9, 1), (10, 1), (11, 1), (12, 26)]);
    assert_eq!(world.direct(36, 4, 2), [(38, 1), (39, 1)], "the rest is mapped");
    assert_eq!(world.direct(2, 10, 3), [(2, 6)], "a hole before the end");
    assert_eq!(world.fs.allocator().free_clusters().delayed, 0, "all is written back");
    assert_eq!([2, 7, 11, 12, 35, 36, 39].map(|block| world.byte(block)), [3, 3, 3, 1, 1, 2, 2]);
    let World { device, fs, .. } = world;
    fs.close(&context()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    device.save(&image).unwrap();
    if blockyard_testkit::require(&["e2fsck"]) {
        blockyard_testkit::e2fsck_clean(&image);
    }
}
