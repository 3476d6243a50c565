//! Where small files go when there are holes of their size. Under `yard` they go into a long run if
//! there is one, otherwise into the holes. With `small_start=fit` they always go into the holes.

#![allow(clippy::unwrap_used)]

use blockyard_alloc::memory::MemoryBitmaps;
use blockyard_alloc::{AllocConfig, Allocator, BlockRequest, InodeAlloc, Policy};
use blockyard_disk::{BlockNr, GroupNr, InodeNr, LogicalBlock};

/// Length of a file and of a hole, in blocks.
const BLOCKS: u32 = 3;
/// Holes in group 1, the group of the goal. Between two holes lie [`BLOCKS`] used blocks.
const HOLES: u32 = 100;
/// The block in group 1 where the run after the holes begins.
const RUN: u32 = 100 + HOLES * 2 * BLOCKS + BLOCKS;
/// The length of the shortest run at [`RUN`] in which small files begin under `yard`. The run must
/// contain an aligned chunk of 2048 blocks, here blocks 2048 to 4095.
const LONG: u32 = 4096 - RUN;

/// Allocates 50 small files one after the other. Returns how many lie in a hole, and how many lie
/// in the run, each right after the file before. Group 1 has the holes and a free run of `run`
/// blocks. Each other group has one free run of 1490 blocks.
fn placed(policy: &str, run: u32) -> (usize, usize) {
    let mut config = AllocConfig::new(MemoryBitmaps::plain_geometry(16, 0));
    config.policy = Policy::parse(policy).unwrap();
    let disk = MemoryBitmaps::new(config.geometry, 10);
    let used = |hole: u32| 100 + hole * 2 * BLOCKS;
    (0..=HOLES).for_each(|hole| disk.write(GroupNr::new(1), used(hole), BLOCKS, true));
    disk.write(GroupNr::new(1), 0, used(0), true);
    let rest = RUN + run;
    disk.write(GroupNr::new(1), rest, 32_768 - rest, true);
    let others = (0..16).filter(|&group| group != 1).map(GroupNr::new);
    others.for_each(|group| disk.write(group, 1500, 32_768 - 1500, true));
    let allocator: Allocator = Allocator::open(&config, disk.clone(), &disk.facts()).unwrap();
    allocator.initialise(0, 16).unwrap();
    let found = (0..50).map(|number| {
        let request = BlockRequest {
            goal: BlockNr::new(32_768),
            file_size: u64::from(BLOCKS) * 4096,
            ..BlockRequest::data(InodeNr::new(12 + number), GroupNr::new(1), LogicalBlock::ZERO, BLOCKS)
        };
        disk.commit(allocator.allocate(&request, &InodeAlloc::new()).unwrap())
    });
    let found: Vec<_> = found.filter(|found| found.group == GroupNr::new(1)).collect();
    let holes = used(0)..used(HOLES);
    let in_holes = found.iter().filter(|found| holes.contains(&found.start)).count();
    let in_run = found.iter().zip(0..).filter(|(found, nr)| found.start == RUN + nr * BLOCKS).count();
    (in_holes, in_run)
}

#[test]
fn small_files_begin_in_a_long_run_and_fill_holes_once_there_is_none() {
    assert_eq!(placed("linux-6.18", LONG).0, 0, "they share a preallocation");
    assert_eq!(placed("yard", LONG), (0, 50), "they lie together in the long run");
    assert_eq!(placed("yard", LONG - 1), (50, 0), "no run is long");
    assert_eq!(placed("yard:small_start=fit", LONG), (50, 0));
}
