//! How the engine behaves when it imitates Linux's page cache: which blocks it requests from the
//! allocator, when, and in which pieces, and what its fsync commits. Each test shows one mechanism
//! that was found by comparing operations with Linux 6.18 (docs/behaviour/page-cache.md). The tests
//! need no kernel.

#![allow(clippy::unwrap_used)]

#[path = "support/image.rs"]
mod support;

use blockyard_alloc::{AllocEvent, EventKind, EventSink, RequestFlags};
use blockyard_device::MemoryDevice;
use blockyard_disk::{InodeNr, Timestamp};
use blockyard_engine::instruments::Instruments;
use blockyard_engine::{Events, Fallocate, FileSystem, OpContext, OpenOptions, mkfs};
use blockyard_sync::CpuSlot;
use std::sync::{Arc, Mutex};
use support::{ROOT, context, directory, file, open_with};

const BLOCK: u64 = 4096;

/// A request: inode, first logical block, number of blocks. The last two are 0 in requests for tree
/// blocks.
type Request = (u32, u32, u32);

#[derive(Default)]
struct Requests(Mutex<Vec<Request>>);

impl EventSink for Requests {
    fn emit(&self, _: CpuSlot, event: &AllocEvent) {
        if event.kind == EventKind::NoSpace {
            return;
        }
        let is_data = u32::from(event.flags) & RequestFlags::DATA.bits() != 0;
        let (first, len) = if is_data { (event.original.logical, event.original.len) } else { (0, 0) };
        self.0.lock().unwrap().push((event.inode, first, len));
    }
}

struct World {
    fs: FileSystem,
    requests: Arc<Requests>,
}

impl World {
    fn new() -> Self {
        Self::of(256 << 20, OpenOptions { instruments: Instruments::page_cache(), ..OpenOptions::default() })
    }

    fn of(size: u64, options: OpenOptions) -> Self {
        let device = Arc::new(MemoryDevice::new(size));
        mkfs::format(&*device, &mkfs::Options::ext4().block_size(4096).identity(1, 1)).unwrap();
        let requests = Arc::new(Requests::default());
        let events = Some(Events(Arc::<Requests>::clone(&requests)));
        let options = OpenOptions { events, dirty_data_bytes: 1 << 30, ..options };
        Self { fs: open_with(&device, options), requests }
    }

    /// Creates a file and opens it for writing. Forgets the requests made so far.
    fn open(&self, name: &str) -> InodeNr {
        let inode = file(&self.fs, ROOT, name);
        self.fs.open_inode(inode, true).unwrap();
        self.taken();
        inode
    }

    fn write(&self, inode: InodeNr, block: u64, blocks: u64) {
        let bytes = vec![7; usize::try_from(blocks * BLOCK).unwrap()];
        self.fs.write(&context(), inode, block * BLOCK, &bytes).unwrap();
    }

    fn allocate(&self, inode: InodeNr, what: Fallocate, from: u64, to: u64) {
        self.fs.fallocate(&context(), inode, what, from, to - from).unwrap();
    }

    /// The requests since the last call.
    fn taken(&self) -> Vec<Request> {
        std::mem::take(&mut self.requests.0.lock().unwrap())
    }

    /// Syncs. Returns the inodes for which the sync made requests, in order. Several requests in a
    /// row for one inode count once.
    fn synced(&self) -> Vec<u32> {
        self.taken();
        self.fs.sync(&context()).unwrap();
        let mut order: Vec<u32> = self.taken().into_iter().map(|(inode, _, _)| inode).collect();
        order.dedup();
        order
    }
}

#[test]
fn files_are_written_back_in_the_order_in_which_they_became_dirty() {
    let world = World::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| world.open(name));
    world.write(c, 0, 1);
    world.write(a, 0, 1);
    world.write(b, 0, 1);
    world.write(c, 4, 1);
    assert_eq!(world.synced(), [c, a, b].map(InodeNr::raw));
}

#[test]
fn fsync_leaves_a_file_its_place_in_the_order() {
    let world = World::new();
    let [a, b] = ["a", "b"].map(|name| world.open(name));
    world.write(b, 0, 1);
    world.write(a, 0, 1);
    world.fs.fsync(&context(), b).unwrap();
    world.write(b, 4, 1);
    assert_eq!(world.synced(), [b, a].map(InodeNr::raw));
    // The sync, unlike fsync, has taken both files off the list of dirty files.
    world.write(a, 8, 1);
    world.write(b, 8, 1);
    assert_eq!(world.synced(), [a, b].map(InodeNr::raw));
}

#[test]
fn allocating_and_cutting_make_a_file_dirty_too() {
    for cut in [false, true] {
        let world = World::new();
        let [a, b] = ["a", "b"].map(|name| world.open(name));
        world.write(a, 0, 8);
        world.fs.sync(&context()).unwrap();
        if cut {
            world.fs.truncate(&context(), a, 2 * BLOCK).unwrap();
        } else {
            world.allocate(a, Fallocate::AllocateKeepSize, 100 * BLOCK, 102 * BLOCK);
        }
        world.write(b, 0, 1);
        world.write(a, 8, 1);
        assert_eq!(world.synced(), [a, b].map(InodeNr::raw), "cut: {cut}");
    }
}

#[test]
fn an_attribute_block_makes_a_file_dirty_but_an_attribute_in_the_inode_does_not() {
    for (len, order) in [(2000, [0, 1]), (8, [1, 0])] {
        let world = World::new();
        let files = ["a", "b"].map(|name| world.open(name));
        let value = vec![7; len];
        let set = blockyard_engine::XattrMode::Set;
        world.fs.set_xattr(&context(), files[0], b"user.x", &value, set).unwrap();
        world.write(files[1], 0, 1);
        world.write(files[0], 0, 1);
        assert_eq!(world.synced(), order.map(|file| files[file].raw()), "{len} bytes");
    }
}

#[test]
fn a_file_that_was_cut_to_nothing_is_written_back_when_it_is_closed() {
    let world = World::new();
    let inode = world.open("f");
    let close = || {
        world.fs.release_inode(&context(), inode, true).unwrap();
        world.taken().len()
    };
    world.write(inode, 0, 3);
    assert_eq!(close(), 0, "an ordinary close writes nothing");
    world.fs.open_inode(inode, true).unwrap();
    world.fs.truncate(&context(), inode, 0).unwrap();
    world.write(inode, 0, 3);
    assert_eq!(close(), 1);
    // Only once: the next close is an ordinary one again.
    world.fs.open_inode(inode, true).unwrap();
    world.write(inode, 8, 3);
    assert_eq!(close(), 0);
    world.fs.open_inode(inode, true).unwrap();
    world.fs.truncate(&context(), inode, BLOCK).unwrap();
    world.write(inode, 8, 3);
    assert_eq!(close(), 0, "it was not cut to nothing");
}

/// One request has at most 2048 blocks. The rest of the folio in which it ends is requested
/// separately.
#[test]
fn a_run_that_ends_inside_a_folio_goes_on_with_the_rest_of_it() {
    let world = World::new();
    let inode = world.open("f");
    world.write(inode, 100, 3000);
    world.fs.fsync(&context(), inode).unwrap();
    let data: Vec<Request> = world.taken().into_iter().filter(|request| request.2 > 0).collect();
    let number = inode.raw();
    assert_eq!(data, [(number, 100, 2048), (number, 2148, 412), (number, 2560, 540)]);
}

/// Zero range loads the page of a block that it zeroes in part, even behind the end of the file,
/// and even if it zeroes no whole block. A later write that begins in that page makes new folios
/// only from the next page on, and one request covers all of them.
#[test]
fn zeroing_a_part_of_a_block_brings_its_page_in() {
    let world = World::new();
    let inode = world.open("f");
    world.allocate(inode, Fallocate::ZeroRangeKeepSize, 4 * BLOCK, 5 * BLOCK - 1);
    world.write(inode, 4, 5);
    world.taken();
    world.fs.fsync(&context(), inode).unwrap();
    assert_eq!(world.taken(), [(inode.raw(), 5, 4)]);
}

/// Five pieces of a write-back are five extent entries until all are converted. So the tree
/// outgrows its root, which has room for four, although one entry is left at the end.
#[test]
fn pieces_of_a_write_back_are_entries_of_their_own_until_all_are_mapped() {
    for (blocks, grows) in [(4 * 2048, false), (5 * 2048, true)] {
        let world = World::new();
        let inode = world.open("f");
        world.write(inode, 0, blocks);
        world.fs.fsync(&context(), inode).unwrap();
        let grew = world.taken().iter().any(|request| request.2 == 0);
        assert_eq!(grew, grows, "{blocks} blocks");
    }
}

#[test]
fn fallocate_asks_for_delayed_blocks_alone() {
    let world = World::new();
    let inode = world.open("f");
    world.write(inode, 4, 2);
    world.allocate(inode, Fallocate::Allocate, 0, 10 * BLOCK);
    let number = inode.raw();
    assert_eq!(world.taken(), [(number, 0, 4), (number, 4, 2), (number, 6, 4)]);
}

/// Observed on Linux 6.18: the times change before the range is checked.
#[test]
fn a_refused_range_changes_the_times() {
    let world = World::new();
    let inode = world.open("f");
    world.write(inode, 0, 4);
    world.fs.fsync(&context(), inode).unwrap();
    let later = OpContext::root_at(Timestamp::from_seconds(context().now.seconds + 1));
    for what in [Fallocate::CollapseRange, Fallocate::InsertRange] {
        assert_eq!(world.fs.fallocate(&later, inode, what, 100, BLOCK).unwrap_err().errno(), 22);
        assert_eq!(world.fs.attributes(inode).unwrap().modified, later.now);
    }
}

/// Applies `change` to a file at a later time. Returns whether fdatasync commits then, and whether
/// fsync does. A commit is recognised by the pending clusters of another file, which it frees.
fn commits(change: impl Fn(&World, &OpContext, InodeNr)) -> [bool; 2] {
    [true, false].map(|data_only| {
        let world = World::new();
        let [f, other] = ["f", "other"].map(|name| world.open(name));
        world.write(f, 0, 4);
        world.write(other, 0, 8);
        world.fs.sync(&context()).unwrap();
        world.fs.truncate(&context(), other, BLOCK).unwrap();
        assert!(world.fs.allocator().pending_clusters() > 0);
        let later = OpContext::root_at(Timestamp::from_seconds(context().now.seconds + 1));
        change(&world, &later, f);
        if data_only { world.fs.fdatasync(&later, f) } else { world.fs.fsync(&later, f) }.unwrap();
        world.fs.allocator().pending_clusters() == 0
    })
}

/// As observed on Linux 6.18 with the tracepoints of the journal (jbd2).
#[test]
fn fdatasync_commits_changes_of_content_and_fsync_those_of_times_too() {
    let allocates = |what, from, len| {
        commits(move |world, ctx, f| world.fs.fallocate(ctx, f, what, from, len).unwrap_or_default())
    };
    assert_eq!(allocates(Fallocate::Allocate, 0, 2 * BLOCK), [true, true], "all is there");
    assert_eq!(allocates(Fallocate::ZeroRangeKeepSize, 100, 100), [true, true], "inside a block");
    assert_eq!(allocates(Fallocate::PunchHole, 100, 100), [true, true], "inside a block");
    assert_eq!(allocates(Fallocate::PunchHole, 1 << 20, BLOCK), [false, true], "behind the end");
    assert_eq!(allocates(Fallocate::InsertRange, 100, BLOCK), [false, true], "refused");
    let truncates = |size| commits(move |world, ctx, f| world.fs.truncate(ctx, f, size).unwrap());
    assert_eq!(truncates(4 * BLOCK), [false, true], "the same size");
    let behind = |world: &World, ctx: &OpContext, f| {
        world.allocate(f, Fallocate::AllocateKeepSize, 20 * BLOCK, 30 * BLOCK);
        world.fs.fsync(ctx, f).unwrap();
        let other = world.fs.lookup(ROOT, b"other").unwrap();
        world.fs.truncate(ctx, other, 0).unwrap();
        world.fs.truncate(ctx, f, 4 * BLOCK).unwrap();
    };
    assert_eq!(commits(behind), [false, true], "the same size, with blocks behind it");
    assert_eq!(truncates(4 * BLOCK + 1), [true, true]);
    assert_eq!(truncates(4 * BLOCK - 1), [true, true]);
    let set = |world: &World, ctx: &OpContext, f| {
        world.fs.set_xattr(ctx, f, b"user.x", b"value", blockyard_engine::XattrMode::Set).unwrap();
    };
    assert_eq!(commits(set), [false, true]);
    let set_again = |world: &World, ctx: &OpContext, f| {
        set(world, ctx, f);
        world.fs.sync(ctx).unwrap();
        let other = world.fs.lookup(ROOT, b"other").unwrap();
        world.fs.truncate(ctx, other, 0).unwrap();
        set(world, ctx, f);
    };
    assert_eq!(commits(set_again), [false, false], "the same value");
    let overwrite = |world: &World, ctx: &OpContext, f| world.fs.write(ctx, f, 0, &[1; 4096]).unwrap();
    assert_eq!(commits(overwrite), [false, true]);
    assert_eq!(commits(|world, _, f| overwrite(world, &context(), f)), [false, false], "at the same time");
}

/// As observed on Linux 6.18: an inode that is loaded while a transaction runs counts as changed in
/// it. fsync of a directory commits whatever transaction runs.
#[test]
fn fsync_commits_for_what_was_loaded_meanwhile_and_for_directories() {
    let commits = |opened: &str, opened_first: bool| {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        mkfs::format(&*device, &mkfs::Options::ext4().block_size(4096).identity(1, 1)).unwrap();
        let open = || {
            let instruments = Instruments::page_cache();
            open_with(&device, OpenOptions { instruments, ..OpenOptions::default() })
        };
        let fs = open();
        fs.symlink(&context(), ROOT, b"link", &[b's'; 200]).unwrap();
        // An inode table block holds sixteen inodes. So `file` and `directory` are in another table
        // block than the link.
        for n in 0..16 {
            file(&fs, ROOT, format!("beside-{n}"));
        }
        file(&fs, ROOT, "file");
        directory(&fs, ROOT, "directory");
        fs.close(&context()).unwrap();
        let fs = open();
        let number = fs.lookup(ROOT, opened.as_bytes()).unwrap();
        if opened_first {
            fs.attributes(number).unwrap();
        }
        fs.unlink(&context(), ROOT, b"link").unwrap();
        let pending = fs.allocator().pending_clusters();
        assert!(pending > 0);
        fs.fsync(&context(), number).unwrap();
        fs.allocator().pending_clusters() == 0
    };
    assert_eq!([commits("file", false), commits("file", true)], [true, false]);
    assert_eq!([commits("directory", false), commits("directory", true)], [true, true]);
}

/// As observed on Linux 6.18: a removed directory keeps its inode while a deleted file, whose last
/// name was in this directory, is still open.
#[test]
fn a_removed_directory_stays_while_a_file_that_was_deleted_in_it_is_open() {
    let world = World::new();
    let outer = directory(&world.fs, ROOT, "outer");
    let inner = directory(&world.fs, outer, "inner");
    let open = file(&world.fs, inner, "open");
    world.fs.open_inode(open, false).unwrap();
    world.fs.unlink(&context(), inner, b"open").unwrap();
    world.fs.rmdir(&context(), outer, b"inner").unwrap();
    world.fs.rmdir(&context(), ROOT, b"outer").unwrap();
    assert!(world.fs.attributes(inner).is_ok() && world.fs.attributes(outer).is_ok());
    world.fs.release_inode(&context(), open, false).unwrap();
    assert!([open, inner, outer].iter().all(|&gone| world.fs.attributes(gone).is_err()));
    world.fs.close(&context()).unwrap();
}

/// As observed on Linux 6.18: renaming between two names of one inode does nothing. Nor does a
/// refused rename write anything back.
#[test]
fn a_rename_that_changes_nothing_writes_nothing_back() {
    let world = World::new();
    let renames = |from: &str, to: &str| {
        let mode = blockyard_engine::RenameMode::Replace;
        world.fs.rename(&context(), (ROOT, from.as_bytes()), (ROOT, to.as_bytes()), mode)
    };
    let written = world.open("a");
    world.write(written, 0, 3);
    world.fs.link(&context(), written, ROOT, b"b").unwrap();
    renames("a", "b").unwrap();
    renames("a", "a").unwrap();
    directory(&world.fs, ROOT, "directory");
    world.taken();
    assert!(renames("a", "directory").is_err());
    assert_eq!(world.taken(), []);
    assert_eq!(world.synced(), [written.raw()], "nothing was written before");
}

/// As observed on Linux 6.18: a truncation drops cached pages behind the new end, even if the file
/// grows. Here a zero range behind the end has loaded such pages.
#[test]
fn a_growing_truncation_drops_the_pages_behind_the_new_end() {
    let grown_to = |size| {
        let world = World::new();
        let a = world.open("a");
        world.allocate(a, Fallocate::ZeroRangeKeepSize, 159_085, 159_085 + 32_768);
        world.fs.truncate(&context(), a, size).unwrap();
        world.fs.write(&context(), a, 32_768, &[7; 512_118]).unwrap();
        world.taken();
        world.fs.sync(&context()).unwrap();
        world.taken()
    };
    assert_ne!(grown_to(131_072), grown_to(300_000));
}

/// Observed on Linux 6.18: a write inside the last block raises the size on disk at once, so
/// write-back has nothing to commit.
#[test]
fn a_write_inside_the_last_block_raises_the_size_on_disk_at_once() {
    let appends = |len: usize| {
        commits(move |world, ctx, f| {
            world.fs.truncate(ctx, f, 4 * BLOCK - 1000).unwrap();
            world.fs.sync(ctx).unwrap();
            world.fs.write(ctx, f, 4 * BLOCK - 1000, &vec![1; len]).unwrap();
            world.fs.commit(ctx).unwrap();
            let other = world.fs.lookup(ROOT, b"other").unwrap();
            world.fs.truncate(ctx, other, 0).unwrap();
        })
    };
    assert_eq!(appends(100), [false, false]);
    assert_eq!(appends(2000), [true, true], "another block");
}

/// Linux remembers holes (extent status tree) and ends a request where a remembered hole ends. A
/// truncation to the same size forgets the hole behind the end. So a hole punched up to the end is
/// remembered on its own, and a request for it ends at the end of the file.
#[test]
fn fallocate_asks_up_to_where_a_punched_hole_ends() {
    for (punches, pieces) in [(true, vec![(6, 10), (16, 6)]), (false, vec![(16, 6)])] {
        let world = World::new();
        let inode = world.open("f");
        world.write(inode, 0, 16);
        world.fs.fsync(&context(), inode).unwrap();
        world.fs.truncate(&context(), inode, 16 * BLOCK).unwrap();
        if punches {
            world.allocate(inode, Fallocate::PunchHole, 6 * BLOCK, 16 * BLOCK);
        }
        world.taken();
        world.allocate(inode, Fallocate::Allocate, 5 * BLOCK, 22 * BLOCK);
        let asked: Vec<(u32, u32)> = world.taken().into_iter().map(|(_, first, len)| (first, len)).collect();
        assert_eq!(asked, pieces, "punched: {punches}");
    }
}

/// Allocating a block elsewhere reads the mapping, and thereby also remembers the hole at block 1,
/// which ends before block 2. The truncation then cuts off what was behind that hole. The space
/// that this leaves is not remembered as a hole, so it is a separate request.
#[test]
fn fallocate_asks_up_to_where_a_hole_ended_that_was_read_with_its_extents() {
    for (reads, pieces) in [(true, vec![(1, 1), (2, 4)]), (false, vec![(1, 5)])] {
        let world = World::new();
        let inode = world.open("f");
        world.write(inode, 0, 4);
        world.fs.fsync(&context(), inode).unwrap();
        world.allocate(inode, Fallocate::InsertRange, BLOCK, 2 * BLOCK);
        // Zero range does not remember the holes that it reads.
        let what = if reads { Fallocate::Allocate } else { Fallocate::ZeroRange };
        world.allocate(inode, what, 10 * BLOCK, 11 * BLOCK);
        world.fs.truncate(&context(), inode, 2 * BLOCK).unwrap();
        world.taken();
        world.allocate(inode, Fallocate::Allocate, BLOCK, 6 * BLOCK);
        let asked: Vec<(u32, u32)> = world.taken().into_iter().map(|(_, first, len)| (first, len)).collect();
        assert_eq!(asked, pieces, "reads: {reads}");
    }
}

#[test]
fn collapsing_writes_back_the_folio_of_its_start_and_what_lies_behind_it() {
    let world = World::new();
    let inode = world.open("f");
    // Written page by page, so that each page is a folio of its own.
    (0..16).for_each(|block| world.write(inode, block, 1));
    world.allocate(inode, Fallocate::CollapseRange, 4 * BLOCK, 6 * BLOCK);
    let number = inode.raw();
    assert_eq!(world.taken(), [(number, 4, 1), (number, 6, 10)]);
    world.fs.fsync(&context(), inode).unwrap();
    assert_eq!(world.taken(), [(number, 0, 4)]);
}

/// A file of four written blocks with holes between them: the root of its extent tree is full. The
/// file is too large (1 MiB) for a locality group, so its new blocks are placed by its layout.
fn four_pieces(world: &World) -> InodeNr {
    let inode = world.open("f");
    world.fs.truncate(&context(), inode, 1 << 20).unwrap();
    for block in [0, 2, 4, 6] {
        world.write(inode, block, 1);
        world.fs.fsync(&context(), inode).unwrap();
    }
    world.taken();
    inode
}

/// A range of whole blocks is zeroed extent by extent: written extents become unwritten, and each
/// newly allocated block merges with the one before it. If the range touches blocks in part, all
/// its holes are allocated first. At that time the extents between the holes are still written, so
/// nothing merges.
#[test]
fn zero_range_allocates_everything_first_when_it_touches_blocks_in_part() {
    for (from, grows) in [(0, false), (100, true)] {
        let world = World::new();
        let inode = four_pieces(&world);
        world.allocate(inode, Fallocate::ZeroRange, from, 7 * BLOCK);
        let grew = world.taken().iter().any(|request| request.2 == 0);
        assert_eq!(grew, grows, "from {from}");
    }
}

/// A zero range converts several extents. After its first conversion, the converted extent merges
/// with its neighbours, so the tree is pulled into the inode. The split for the next conversion
/// makes the tree grow once more.
#[test]
fn a_tree_may_be_pulled_in_and_grow_again_while_a_range_is_converted() {
    let world = World::new();
    let inode = world.open("f");
    world.fs.truncate(&context(), inode, 1 << 20).unwrap();
    for (block, blocks) in [(0, 1), (4, 1), (8, 4), (16, 1)] {
        world.write(inode, block, blocks);
        world.fs.fsync(&context(), inode).unwrap();
    }
    world.taken();
    world.allocate(inode, Fallocate::ZeroRange, 2 * BLOCK + 100, 10 * BLOCK + 100);
    let grew = world.taken().iter().filter(|request| request.2 == 0).count();
    assert_eq!(grew, 2);
}

/// Removing extents leaves a tree block, although the extents that are left would fit into the
/// inode. Zeroing a range that is unwritten already leaves the tree block in use, too. A conversion
/// pulls the extents into the inode and frees the block.
#[test]
fn a_tree_stays_when_what_is_to_be_converted_is_so_already() {
    let world = World::new();
    let inode = four_pieces(&world);
    world.allocate(inode, Fallocate::Allocate, 12 * BLOCK, 16 * BLOCK);
    world.allocate(inode, Fallocate::PunchHole, 2 * BLOCK, 7 * BLOCK);
    let blocks = || world.fs.attributes(inode).unwrap().sectors * 512 / BLOCK;
    assert_eq!(blocks(), 1 + 4 + 1, "data and a tree block");
    world.allocate(inode, Fallocate::ZeroRange, 13 * BLOCK - 1, 14 * BLOCK);
    assert_eq!(blocks(), 1 + 4 + 1);
    world.allocate(inode, Fallocate::ZeroRange, 0, BLOCK);
    assert_eq!(blocks(), 1 + 4);
}

/// Observed on Linux 6.18: if a punched range goes beyond the end of the file, the last block of
/// the file is freed, although the range ends inside that block.
#[test]
fn a_hole_that_reaches_the_end_of_the_file_takes_its_last_block() {
    for (end, freed) in [(22_451, true), (22_388, false)] {
        let world = World::new();
        let inode = world.open("f");
        world.fs.write(&context(), inode, 0, &[7; 22_389]).unwrap();
        world.fs.fsync(&context(), inode).unwrap();
        world.allocate(inode, Fallocate::PunchHole, 9202, end);
        world.taken();
        world.allocate(inode, Fallocate::AllocateKeepSize, 5 * BLOCK, 6 * BLOCK);
        assert_eq!(!world.taken().is_empty(), freed, "up to {end}");
    }
}

/// Punching the head of an extent splits the extent before the head is removed. For a moment there
/// are five extents, too many for the root.
#[test]
fn punching_splits_the_extent_at_the_end_of_the_hole() {
    let world = World::new();
    let inode = world.open("f");
    for block in [0, 10, 20, 30] {
        world.write(inode, block, 8);
        world.fs.fsync(&context(), inode).unwrap();
    }
    world.taken();
    world.allocate(inode, Fallocate::PunchHole, 10 * BLOCK, 14 * BLOCK);
    assert_eq!(world.taken(), [(inode.raw(), 0, 0)], "a block for the tree");
}

#[test]
fn of_a_hole_before_the_first_extent_only_the_rest_is_remembered() {
    let world = World::new();
    let inode = world.open("f");
    world.fs.truncate(&context(), inode, 100 * BLOCK).unwrap();
    world.allocate(inode, Fallocate::Allocate, 50 * BLOCK, 60 * BLOCK);
    // The first punch looks up block 17 and remembers the hole from that block on. The second punch
    // extends the remembered hole to block 60.
    world.allocate(inode, Fallocate::PunchHole, 17 * BLOCK + 100, 19 * BLOCK);
    world.allocate(inode, Fallocate::PunchHole, 50 * BLOCK, 60 * BLOCK);
    world.taken();
    world.allocate(inode, Fallocate::AllocateKeepSize, 5 * BLOCK, 80 * BLOCK);
    assert_eq!(world.taken(), [(inode.raw(), 5, 75)], "nothing is known of block 5");
}

/// A punched or zeroed range that ends inside a clean folio splits the folio, even if the range is
/// only a part of one block. So block 48 is no longer in one folio with blocks 3 to 18. When those
/// become dirty, a collapse from block 48 on does not write them back.
#[test]
fn a_range_inside_a_block_splits_a_clean_folio() {
    for what in [Fallocate::PunchHole, Fallocate::ZeroRange] {
        let world = World::new();
        let inode = world.open("file");
        world.write(inode, 0, 128);
        world.fs.truncate(&context(), inode, 2 * BLOCK).unwrap();
        world.fs.fsync(&context(), inode).unwrap();
        world.write(inode, 872, 2);
        world.allocate(inode, what, 5 * BLOCK + 1, 5 * BLOCK + 375);
        world.write(inode, 3, 16);
        world.taken();
        world.allocate(inode, Fallocate::CollapseRange, 48 * BLOCK, 64 * BLOCK);
        let data: Vec<Request> = world.taken().into_iter().filter(|(_, _, len)| *len > 0).collect();
        assert_eq!(data, [(inode.raw(), 872, 2)], "{what:?}");
    }
}

/// A truncation forgets remembered holes behind the new end, but not the part in the block of the
/// new end. So a direct write from that block on makes two requests if the hole was remembered
/// before the truncation, and one otherwise.
#[test]
fn a_direct_write_asks_for_as_much_of_a_hole_as_is_remembered() {
    let world = World::new();
    let cut = world.open("cut");
    world.allocate(cut, Fallocate::Allocate, 1280 * BLOCK, 1281 * BLOCK);
    let new = world.open("new");
    for inode in [cut, new] {
        world.fs.truncate(&context(), inode, 1141 * BLOCK + 846).unwrap();
    }
    world.taken();
    for (inode, pieces) in [(cut, vec![(1141, 1), (1142, 12)]), (new, vec![(1141, 13)])] {
        let bytes = vec![7; usize::try_from(13 * BLOCK).unwrap()];
        assert_eq!(world.fs.write_direct(&context(), inode, 1141 * BLOCK, &bytes).unwrap(), bytes.len());
        let data: Vec<(u32, u32)> =
            world.taken().into_iter().filter(|(_, _, len)| *len > 0).map(|(_, at, len)| (at, len)).collect();
        assert_eq!(data, pieces);
    }
}

#[test]
fn the_edges_of_a_zeroed_range_are_looked_at_behind_all_requests() {
    let world = World::new();
    let inode = world.open("f");
    world.fs.truncate(&context(), inode, 100 * BLOCK).unwrap();
    world.allocate(inode, Fallocate::Allocate, 5 * BLOCK, 10 * BLOCK);
    world.allocate(inode, Fallocate::Allocate, 50 * BLOCK, 60 * BLOCK);
    // After this, the hole from block 10 to block 60 is remembered only up to block 30.
    world.allocate(inode, Fallocate::InsertRange, 30 * BLOCK, 40 * BLOCK);
    world.taken();
    world.allocate(inode, Fallocate::ZeroRange, 20 * BLOCK + 100, 40 * BLOCK + 100);
    // The two requests are for the two parts of the hole, before and behind block 30. If block 40
    // were looked up before them, the whole hole would be remembered, and one request would do.
    assert_eq!(world.taken(), [(inode.raw(), 20, 10), (inode.raw(), 30, 11)]);
}

#[test]
fn the_rest_of_a_folio_is_asked_for_alone_also_behind_a_block_that_has_its_place() {
    let world = World::new();
    let inode = world.open("f");
    world.fs.write_direct(&context(), inode, BLOCK, &[7; 4096]).unwrap();
    world.write(inode, 0, 20);
    world.taken();
    world.fs.fsync(&context(), inode).unwrap();
    assert_eq!(world.taken(), [(0, 1), (2, 14), (16, 4)].map(|(first, len)| (inode.raw(), first, len)));
}

/// An image of 64 MiB without a reserve of its own.
fn small_world() -> World {
    let world = World::of(
        64 << 20,
        OpenOptions { instruments: Instruments::page_cache(), cpus: 2, ..OpenOptions::default() },
    );
    world.fs.allocator().set_reserved(0).unwrap();
    world
}

#[test]
fn more_than_half_of_the_free_space_delayed_is_written_back() {
    let world = small_world();
    let [a, b] = ["a", "b"].map(|name| world.open(name));
    world.write(a, 0, 1);
    let free = world.fs.allocator().free_clusters().free;
    let mut at = 0;
    while world.taken().is_empty() {
        let delayed = world.fs.allocator().free_clusters().delayed;
        assert!(2 * delayed < free + 4 * 64, "{delayed} of {free} are delayed");
        world.write(b, at, 16);
        at += 16;
    }
    let left = world.fs.allocator().free_clusters();
    assert_eq!(left.delayed, 16, "only what was written after it");
    assert!(2 * (free - left.free) > free, "{left:?} of {free}");
}

#[test]
fn the_last_folios_are_placed_at_once_and_what_does_not_fit_is_refused_whole() {
    let world = small_world();
    let inode = world.open("f");
    let free = world.fs.allocator().free_clusters().free;
    world.allocate(inode, Fallocate::Allocate, 0, (free - 250) * BLOCK);
    let f = world.open("g");
    world.write(f, 0, 16);
    let asked = world.taken();
    assert_eq!(asked.len(), 16, "one by one: {asked:?}");
    let before = world.fs.allocator().free_clusters();
    let mut at = 16;
    let bytes = vec![7; usize::try_from(16 * BLOCK).unwrap()];
    let refused = loop {
        match world.fs.write_some(&context(), f, at * BLOCK, &bytes) {
            Ok(done) => at += u64::try_from(done).unwrap() / BLOCK,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.errno(), 28);
    assert_eq!(at % 16, 0, "no folio is written in part");
    assert_eq!(world.fs.attributes(f).unwrap().size, at * BLOCK);
    world.fs.commit(&context()).unwrap();
    let left = world.fs.allocator().free_clusters();
    assert!(left.free < 16 && left.delayed == 0, "{before:?} {left:?}");
    world.fs.close(&context()).unwrap();
}
