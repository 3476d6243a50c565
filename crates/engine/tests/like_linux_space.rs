//! What decides which clusters count as free when space gets short. Each test shows one mechanism
//! that was found by comparing with Linux 6.18 on aged images that were almost full
//! (docs/behaviour/page-cache.md, "When space gets short"). The tests need no kernel.

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
/// Blocks per cluster.
const RATIO: u64 = 16;

/// For each request to the allocator: inode, whether it is for data, flags, and first logical block
/// and number of blocks.
#[derive(Default)]
struct Decisions(Mutex<Vec<Decision>>);

type Decision = (u32, bool, u32, (u32, u32));

impl EventSink for Decisions {
    fn emit(&self, _: CpuSlot, event: &AllocEvent) {
        let flags = u32::from(event.flags);
        let asked = (event.original.logical, event.original.len);
        self.0.lock().unwrap().push((event.inode, flags & RequestFlags::DATA.bits() != 0, flags, asked));
    }
}

fn world(size: u64, image: mkfs::Options, options: OpenOptions) -> (FileSystem, Arc<Decisions>) {
    let device = Arc::new(MemoryDevice::new(size));
    mkfs::format(&*device, &image.block_size(4096).identity(1, 1)).unwrap();
    let decisions = Arc::new(Decisions::default());
    let events = Some(Events(Arc::<Decisions>::clone(&decisions)));
    let fs = open_with(
        &device,
        OpenOptions { events, instruments: Instruments::page_cache(), dirty_data_bytes: 1 << 30, ..options },
    );
    fs.allocator().set_reserved(0).unwrap();
    (fs, decisions)
}

fn allocate(fs: &FileSystem, inode: InodeNr, block: u64, blocks: u64) {
    fs.fallocate(&context(), inode, Fallocate::Allocate, block * BLOCK, blocks * BLOCK).unwrap();
}

/// How many more clusters are free than the approximate counter shows.
fn lag(fs: &FileSystem) -> i64 {
    let exact = fs.allocator().free_clusters().free.cast_signed();
    exact - fs.allocator().free_clusters_approximate().cast_signed()
}

/// An image with bigalloc, on which the approximate counter of free clusters lags by 31. The
/// counter takes up changes in batches of 32, so the next freed cluster makes it exact.
fn clusters_about_to_count(prepare: impl FnOnce(&FileSystem)) -> FileSystem {
    let image = mkfs::Options::ext4().features("bigalloc").cluster_size(65_536);
    let (fs, _) = world(1 << 30, image, OpenOptions::default());
    let small: Vec<String> = (0..80).map(|number| format!("small{number}")).collect();
    for name in &small {
        let inode = file(&fs, ROOT, name);
        allocate(&fs, inode, 0, RATIO);
    }
    prepare(&fs);
    for name in &small {
        if lag(&fs) == 31 {
            break;
        }
        fs.unlink(&context(), ROOT, name.as_bytes()).unwrap();
    }
    assert_eq!(lag(&fs), 31);
    fs
}

#[test]
fn a_last_cluster_that_is_not_full_is_freed_before_the_others() {
    let fs = clusters_about_to_count(|fs| allocate(fs, file(fs, ROOT, "f"), 0, 13 * RATIO + 6));
    fs.unlink(&context(), ROOT, b"f").unwrap();
    assert_eq!(lag(&fs), 13, "one, which is counted with the 31, and 13");
}

#[test]
fn a_first_cluster_that_begins_in_the_middle_is_freed_behind_the_others() {
    let fs = clusters_about_to_count(|fs| allocate(fs, file(fs, ROOT, "f"), 5, 13 * RATIO - 5));
    fs.unlink(&context(), ROOT, b"f").unwrap();
    assert_eq!(lag(&fs), 1, "12, which are counted with the 31, and one");
}

#[test]
fn a_cluster_that_two_extents_share_is_freed_once_whatever_part_they_have() {
    for (first, second) in [(0..3, 5..9), (2..3, 8..40), (0..20, 22..23), (4..6, 7..8)] {
        let fs = clusters_about_to_count(|fs| {
            let inode = file(fs, ROOT, "f");
            allocate(fs, inode, first.start, first.end - first.start);
            allocate(fs, inode, second.start, second.end - second.start);
        });
        let before = fs.allocator().free_clusters().free;
        fs.unlink(&context(), ROOT, b"f").unwrap();
        let freed = fs.allocator().free_clusters().free - before;
        assert_eq!(freed, second.end.div_ceil(RATIO) - first.start / RATIO, "{first:?} {second:?}");
    }
}

#[test]
fn a_tree_block_is_freed_behind_the_extents_that_it_held() {
    let fs = clusters_about_to_count(|fs| {
        let inode = file(fs, ROOT, "f");
        (0..6).for_each(|piece| allocate(fs, inode, piece * 100 * RATIO, 8 * RATIO));
    });
    fs.unlink(&context(), ROOT, b"f").unwrap();
    // The first 8 freed clusters are counted together with the 31, and the next four times 8 as one
    // batch of 32. The last 8 and the tree block are not counted yet.
    assert_eq!(lag(&fs), 9);
}

#[test]
fn tree_blocks_at_write_time_have_no_claim_to_what_is_reserved() {
    for delayed_allocation in [false, true] {
        let options = OpenOptions { delayed_allocation, ..OpenOptions::default() };
        let (fs, decisions) = world(64 << 20, mkfs::Options::ext4(), options);
        let inode = file(&fs, ROOT, "f");
        fs.open_inode(inode, true).unwrap();
        decisions.0.lock().unwrap().clear();
        for block in 0..6 {
            fs.write(&context(), inode, block * 100 * BLOCK, &[7; 4096]).unwrap();
        }
        fs.sync(&context()).unwrap();
        let made = decisions.0.lock().unwrap();
        let flags: Vec<u32> =
            made.iter().filter(|one| one.0 == inode.raw() && !one.1).map(|one| one.2).collect();
        let reserved = RequestFlags::DELALLOC_RESERVED | RequestFlags::USE_RESERVED;
        let expected = if delayed_allocation { reserved.bits() } else { 0 };
        assert_eq!(flags.iter().map(|flags| flags & reserved.bits()).collect::<Vec<_>>(), [expected]);
    }
}

#[test]
fn a_tree_block_for_splitting_what_is_unwritten_comes_from_the_reserve_also_at_write_time() {
    let options = OpenOptions { delayed_allocation: false, ..OpenOptions::default() };
    let (fs, decisions) = world(64 << 20, mkfs::Options::ext4(), options);
    let inode = file(&fs, ROOT, "f");
    fs.open_inode(inode, true).unwrap();
    allocate(&fs, inode, 0, 400);
    decisions.0.lock().unwrap().clear();
    for block in [50, 150, 250] {
        fs.write(&context(), inode, block * BLOCK, &[7; 4096]).unwrap();
    }
    let made = decisions.0.lock().unwrap();
    let reserved = RequestFlags::DELALLOC_RESERVED | RequestFlags::USE_RESERVED;
    let flags: Vec<u32> = made.iter().map(|one| one.2 & reserved.bits()).collect();
    assert_eq!(flags, [RequestFlags::USE_RESERVED.bits()]);
}

/// The approximate counter of free clusters decides whether delayed data must be written back
/// before a folio is placed. Clusters are taken one by one, so the counter lags by up to 31. If a
/// folio does not fit, its clusters are freed together, and then the counter shows less than before
/// the attempt. Still, the delayed data is written back before the first attempt or not at all.
#[test]
fn whether_a_folio_is_delayed_is_asked_once_however_often_it_is_tried() {
    let mut refused = 0;
    for taken in 0..40 {
        let (fs, decisions) =
            world(64 << 20, mkfs::Options::ext4(), OpenOptions { cpus: 2, ..OpenOptions::default() });
        let [filler, delayed, written] = ["filler", "delayed", "written"].map(|name| {
            let inode = file(&fs, ROOT, name);
            fs.open_inode(inode, true).unwrap();
            inode
        });
        let free = fs.allocator().free_clusters().free;
        allocate(&fs, filler, 0, free - 290);
        (0..taken).for_each(|block| allocate(&fs, filler, free - 290 + block, 1));
        fs.write(&context(), delayed, 0, &vec![7; 128 * 4096]).unwrap();
        decisions.0.lock().unwrap().clear();
        let outcome = fs.write_some(&context(), written, 0, &vec![7; 512 * 4096]);
        let made = decisions.0.lock().unwrap();
        let mut order: Vec<u32> = made.iter().map(|one| one.0).collect();
        order.dedup();
        let (delayed, written) = (delayed.raw(), written.raw());
        assert!(order == [written] || order == [delayed, written], "{taken}: {order:?} {delayed} {written}");
        refused += u32::from(outcome.is_err());
    }
    assert!(refused > 20, "{refused} folios did not fit");
}

/// Fills a separate file until `left` clusters are free.
fn fill(fs: &FileSystem, left: u64) {
    let filler = file(fs, ROOT, "filler");
    let mut at = 0;
    loop {
        let free = fs.allocator().free_clusters().free;
        if free <= left {
            break;
        }
        allocate(fs, filler, at, free - left);
        at += free - left;
    }
    assert_eq!(fs.allocator().free_clusters().free, left);
}

#[test]
fn what_found_a_place_but_no_room_in_the_mapping_comes_back_with_the_commit() {
    let (fs, _) = world(64 << 20, mkfs::Options::ext4(), OpenOptions::default());
    let inode = file(&fs, ROOT, "f");
    (0..4).for_each(|piece| allocate(&fs, inode, piece * 100, 1));
    fs.commit(&context()).unwrap();
    fill(&fs, 1);
    fs.commit(&context()).unwrap();
    let refused = fs.fallocate(&context(), inode, Fallocate::Allocate, 500 * BLOCK, BLOCK);
    assert_eq!(refused.unwrap_err().errno(), 28, "no block for the tree");
    assert_eq!((fs.allocator().free_clusters().free, fs.allocator().pending_clusters()), (1, 1));
    fs.commit(&context()).unwrap();
    assert_eq!((fs.allocator().free_clusters().free, fs.allocator().pending_clusters()), (1, 0));
}

/// Both folios of a file are dirty. Space for the end of the first folio becomes free only with a
/// commit. After the commit, one request asks for all remaining blocks.
#[test]
fn what_is_tried_again_after_a_commit_is_all_that_follows_not_the_rest_of_a_folio() {
    let (fs, decisions) =
        world(64 << 20, mkfs::Options::ext4(), OpenOptions { cpus: 2, ..OpenOptions::default() });
    let [victim, inode] = ["victim", "f"].map(|name| file(&fs, ROOT, name));
    fs.open_inode(inode, true).unwrap();
    allocate(&fs, victim, 0, 1000);
    fill(&fs, 10);
    fs.commit(&context()).unwrap();
    fs.unlink(&context(), ROOT, b"victim").unwrap();
    fs.write(&context(), inode, 0, &[7; 20 * 4096]).unwrap();
    decisions.0.lock().unwrap().clear();
    fs.fsync(&context(), inode).unwrap();
    let made: Vec<_> = decisions.0.lock().unwrap().iter().filter(|one| one.1).map(|one| one.3).collect();
    assert_eq!(made, [(0, 20), (10, 6), (10, 10)]);
}

/// The first commit frees ten blocks in a row and one block elsewhere. The mapping has no room for
/// an extent with that one block, so the request for it is tried four times.
#[test]
fn whoever_got_something_tries_again_as_often_as_before() {
    let (fs, decisions) = world(64 << 20, mkfs::Options::ext4(), OpenOptions::default());
    let [inode, ten, between, one] = ["f", "ten", "between", "one"].map(|name| file(&fs, ROOT, name));
    (0..3).for_each(|piece| allocate(&fs, inode, piece * 100, 1));
    allocate(&fs, ten, 0, 10);
    allocate(&fs, between, 0, 1);
    allocate(&fs, one, 0, 1);
    fill(&fs, 0);
    fs.commit(&context()).unwrap();
    fs.unlink(&context(), ROOT, b"ten").unwrap();
    fs.unlink(&context(), ROOT, b"one").unwrap();
    decisions.0.lock().unwrap().clear();
    let refused = fs.fallocate(&context(), inode, Fallocate::Allocate, 1000 * BLOCK, 20 * BLOCK);
    assert_eq!(refused.unwrap_err().errno(), 28);
    let made: Vec<_> = decisions.0.lock().unwrap().iter().map(|one| one.3).collect();
    assert_eq!(made, [(1000, 10), (1000, 10), (1010, 1), (1010, 1), (1010, 1), (1010, 1)]);
}
