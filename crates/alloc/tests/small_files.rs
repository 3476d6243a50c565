//! Where small files go beside holes of their size: into a long run while there is one, as in
//! Linux, and then into the holes (`yard`), or into the holes at once (`small_start=fit`).

#![allow(clippy::unwrap_used)]

use blockyard_alloc::memory::MemoryBitmaps;
use blockyard_alloc::{AllocConfig, Allocator, BlockRequest, InodeAlloc, Policy};
use blockyard_disk::{BlockNr, GroupNr, InodeNr, LogicalBlock};

/// Length of a file and of a hole, in blocks.
const BLOCKS: u32 = 3;
/// Holes in group 1, the group of the goal. Between two holes lie [`BLOCKS`] used blocks.
const HOLES: u32 = 100;
/// The shortest run in which each of 50 small files begins: 2048 blocks are left for the last.
const LONG: u32 = 2048 + 49 * BLOCKS;

/// How many of 50 small files, written one after the other, lie in a hole. Beside the holes one run
/// of `run` blocks is free in the same group, and a run that is not long in each other one.
fn in_holes(policy: &str, run: u32) -> usize {
    let mut config = AllocConfig::new(MemoryBitmaps::plain_geometry(16, 0));
    config.policy = Policy::parse(policy).unwrap();
    let disk = MemoryBitmaps::new(config.geometry, 10);
    let used = |hole: u32| 100 + hole * 2 * BLOCKS;
    (0..=HOLES).for_each(|hole| disk.write(GroupNr::new(1), used(hole), BLOCKS, true));
    disk.write(GroupNr::new(1), 0, used(0), true);
    let rest = used(HOLES) + BLOCKS + run;
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
    let holes = used(0)..used(HOLES);
    found.filter(|found| found.group == GroupNr::new(1) && holes.contains(&found.start)).count()
}

#[test]
fn small_files_begin_in_a_long_run_and_fill_holes_once_there_is_none() {
    assert_eq!(in_holes("linux-6.18", LONG), 0, "they share a preallocation");
    assert_eq!(in_holes("yard", LONG), 0, "they lie together in the long run");
    assert_eq!(in_holes("yard", LONG - 1), 1, "the run is too short for the last one");
    assert_eq!(in_holes("yard", 2047), 50, "no run is long");
    assert_eq!(in_holes("yard:small_start=fit", LONG), 50);
}
