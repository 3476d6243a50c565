//! Where small files go beside holes of their size: `yard` fills the holes, preallocations for
//! small files pass them by.

#![allow(clippy::unwrap_used)]

use blockyard_alloc::memory::MemoryBitmaps;
use blockyard_alloc::{AllocConfig, Allocator, BlockRequest, InodeAlloc, Policy};
use blockyard_disk::{BlockNr, GroupNr, InodeNr, LogicalBlock};

/// Length of a file and of a hole, in blocks.
const BLOCKS: u32 = 3;
/// Holes in group 1, the group of the goal. Between two holes lie [`BLOCKS`] used blocks.
const HOLES: u32 = 100;

/// How many of 50 small files, written one after the other, lie in a hole.
fn in_holes(policy: &str) -> usize {
    let mut config = AllocConfig::new(MemoryBitmaps::plain_geometry(8, 0));
    config.policy = Policy::parse(policy).unwrap();
    let disk = MemoryBitmaps::new(config.geometry, 10);
    let used = |hole: u32| 100 + hole * 2 * BLOCKS;
    (0..=HOLES).for_each(|hole| disk.write(GroupNr::new(1), used(hole), BLOCKS, true));
    let allocator: Allocator = Allocator::open(&config, disk.clone(), &disk.facts()).unwrap();
    allocator.initialise(0, 8).unwrap();
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
fn yard_fills_holes_where_linux_cuts_a_run_for_small_files() {
    assert_eq!(in_holes("yard"), 50);
    assert_eq!(in_holes("yard:normalise=linux"), 0, "they share a preallocation");
    assert_eq!(in_holes("linux-6.18"), 0);
}
