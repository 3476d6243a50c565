//! Ten examples (c1 to c10) of how Linux 6.18 was seen to choose criteria and candidates.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use blockyard_alloc::memory::MemoryBitmaps;
use blockyard_alloc::{
    AllocConfig, AllocEvent, Allocator, BlockRequest, EventRings, InitMode, InodeAlloc, Policy, RequestFlags,
    Tunable,
};
use blockyard_disk::{BlockNr, GroupNr, InodeNr, LogicalBlock};

struct Bench {
    allocator: Allocator,
    disk: Arc<MemoryBitmaps>,
    rings: Arc<EventRings>,
}

impl Bench {
    fn new(disk: Arc<MemoryBitmaps>, groups: u32, change: impl FnOnce(&mut AllocConfig)) -> Self {
        let mut config = AllocConfig::new(MemoryBitmaps::plain_geometry(groups, 4));
        config.init = InitMode::AtOpen;
        config.policy = Policy::parse("linux-6.18:scan=optimized").unwrap();
        config.reserved = Some(0);
        change(&mut config);
        let rings = Arc::new(EventRings::new(4, 1 << 12));
        let facts = disk.facts();
        let allocator =
            Allocator::open(&config, disk.clone(), &facts).unwrap().with_events(Arc::clone(&rings));
        Self { allocator, disk, rings }
    }

    /// Serves a request. Returns the position and the event.
    fn ask(&self, request: &BlockRequest, inode: &InodeAlloc) -> ((u32, u32, u32), AllocEvent) {
        let claim = self.allocator.allocate(request, inode).unwrap();
        let extent = self.disk.commit(claim);
        let event = self.rings.drain().0.pop().unwrap();
        ((extent.group.raw(), extent.start, extent.count), event)
    }
}

fn data(logical: u32, clusters: u32, size_blocks: u64) -> BlockRequest {
    BlockRequest {
        goal: BlockNr::new(32768),
        file_size: size_blocks * 4096,
        ..BlockRequest::data(InodeNr::new(12), GroupNr::ZERO, LogicalBlock::new(logical), clusters)
    }
}

fn fresh(groups: u32, overhead: u32) -> Arc<MemoryBitmaps> {
    MemoryBitmaps::new(MemoryBitmaps::plain_geometry(groups, 4), overhead)
}

#[test]
fn c1_the_first_small_file_takes_the_lowest_order_9_chunk_of_group_1() {
    let bench = Bench::new(fresh(16, 129), 16, |_| ());
    let (place, event) = bench.ask(&data(0, 1, 1), &InodeAlloc::new());
    assert_eq!(place, (1, 512, 1));
    assert_eq!(
        (event.result.start, event.result.len, event.criterion, event.found, event.scanned),
        (512, 512, 0, 1, 1)
    );
    assert_eq!(event.flags & 0x80, 0x80, "locality");
}

#[test]
fn c2_an_odd_stream_length_takes_the_shortest_sufficient_candidate() {
    let disk = fresh(16, 129);
    disk.write(GroupNr::ZERO, 0, 8487, true);
    let bench = Bench::new(disk, 16, |_| ());
    let request = BlockRequest { flags: RequestFlags::DATA | RequestFlags::NO_NORMALIZE, ..data(0, 17, 17) };
    let (place, event) = bench.ask(&request, &InodeAlloc::new());
    assert_eq!(place, (0, 8487, 17));
    assert_eq!((event.criterion, event.found, event.scanned), (1, 9, 1));
}

#[test]
fn c3_power_of_two_leaves_the_first_group_of_a_flex_group_alone() {
    let bench = Bench::new(fresh(16, 257), 16, |_| ());
    let (place, event) = bench.ask(&data(0, 17, 17), &InodeAlloc::new());
    assert_eq!(place, (1, 288, 17));
    assert_eq!((event.goal.len, event.result.len, event.criterion), (32, 32, 0));
}

/// Groups whose only free clusters are 20 holes of 300 clusters each.
fn holes_of_300(groups: u32) -> Arc<MemoryBitmaps> {
    let disk = fresh(groups, 0);
    for group in 0..groups {
        disk.write(GroupNr::new(group), 0, 32768, true);
        for hole in 0..20 {
            disk.write(GroupNr::new(group), 1000 + hole * 1500, 300, false);
        }
    }
    disk
}

#[test]
fn c4_best_avail_trims_to_a_length_the_average_run_holds() {
    let bench = Bench::new(holes_of_300(16), 16, |_| ());
    let request = BlockRequest { writer_open: true, ..data(300, 100, 400) };
    let (place, event) = bench.ask(&request, &InodeAlloc::new());
    assert_eq!((event.criterion, event.goal.len, event.result.len), (2, 256, 256));
    assert_eq!(place.2, 100, "served whole: the preallocation starts at logical 256");
}

#[test]
fn c5_when_trimming_may_not_go_low_enough_the_best_of_200_candidates_is_used() {
    let bench = Bench::new(holes_of_300(64), 64, |config| config.cpus = 1);
    let request = data(0, 385, 385);
    let (place, event) = bench.ask(&request, &InodeAlloc::new());
    assert_eq!(event.goal.len, 512);
    assert_eq!((event.criterion, event.found), (3, 201));
    assert!(place.2 < 385, "{place:?}");
}

#[test]
fn c6_only_tiny_holes_all_criteria_are_exhausted_and_the_first_hole_is_taken() {
    let disk = fresh(16, 0);
    for group in 0..16 {
        disk.write(GroupNr::new(group), 0, 32768, true);
        for hole in 0..5 {
            disk.write(GroupNr::new(group), 1001 + hole * 1500, 3, false);
        }
    }
    let bench = Bench::new(disk, 16, |_| ());
    let request = BlockRequest { flags: RequestFlags::DATA | RequestFlags::NO_NORMALIZE, ..data(0, 21, 21) };
    let (place, event) = bench.ask(&request, &InodeAlloc::new());
    assert_eq!(place, (0, 1001, 3), "the first hole met");
    assert_eq!(event.criterion, 5);
}

#[test]
fn c7_right_after_mount_the_cheap_criteria_see_nothing() {
    let bench = Bench::new(fresh(32, 129), 32, |config| config.init = InitMode::Lazy);
    let (place, event) = bench.ask(&data(0, 17, 17), &InodeAlloc::new());
    assert_eq!(
        (place.0, event.criterion),
        (0, 3),
        "no index holds a group: the slow walk starts at the stream goal's group"
    );
    let (place, event) = bench.ask(&data(0, 17, 17), &InodeAlloc::new());
    assert_eq!((place.0, event.criterion), (1, 0), "the search loaded the rest of the flex group");
}

#[test]
fn c8_a_locality_preallocation_of_256_when_only_best_avail_serves() {
    let bench = Bench::new(holes_of_300(16), 16, |_| ());
    let (_, event) = bench.ask(&data(0, 1, 1), &InodeAlloc::new());
    assert_eq!((event.criterion, event.result.len), (2, 256));
}

#[test]
fn c9_a_stripe_can_make_the_result_much_shorter() {
    let bench = Bench::new(fresh(16, 257), 16, |config| config.stripe = 48);
    assert_eq!(bench.allocator.tunable(Tunable::GroupPrealloc), 528);
    let (place, event) = bench.ask(&data(0, 1, 1), &InodeAlloc::new());
    // Group 1 starts at block 32768. From its cluster 257 on, cluster 304 is the first whose block
    // number is a multiple of 48.
    assert_eq!(place, (1, 304, 1));
    assert_eq!((event.criterion, event.result.len), (1, 80));
}

#[test]
fn c10_leftovers_of_small_files_are_parked_and_trimmed() {
    let bench = Bench::new(fresh(16, 129), 16, |_| ());
    let mut preallocations = 0;
    for file in 0..34 * 9 {
        let request = BlockRequest { inode: InodeNr::new(12 + file), ..data(0, 15, 15) };
        let (_, event) = bench.ask(&request, &InodeAlloc::new());
        preallocations += u32::from(event.result.len == 512);
    }
    assert_eq!(preallocations, 9, "34 files of 15 blocks fit into each");
    assert_eq!(bench.allocator.stats().discarded[0], 8, "four leftovers of 2 came back");
}
