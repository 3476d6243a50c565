//! Where blocks of directories go on a device that does not rotate. On such a device, no linear
//! prefix precedes the walk over an index.

#![allow(clippy::unwrap_used)]

use blockyard_alloc::memory::MemoryBitmaps;
use blockyard_alloc::{AllocConfig, Allocator, BlockRequest, InodeAlloc, Policy, RequestFlags};
use blockyard_disk::{BlockNr, GroupNr, InodeNr, LogicalBlock};
use blockyard_sync::CpuSlot;

/// Groups, in flex groups of 16.
const GROUPS: u32 = 64;
/// Groups with fragmented free space: in most of the group, every fourth cluster is used.
const IN_PIECES: [u32; 3] = [21, 37, 53];

/// Requests one block for each of 300 directories in flex group 1, on four CPU slots in turns.
/// Returns the groups of the blocks, and how many runs the blocks form.
fn places(policy: &str) -> (Vec<u32>, usize) {
    let mut config = AllocConfig::new(MemoryBitmaps::plain_geometry(GROUPS, 4));
    config.policy = Policy::parse(policy).unwrap();
    let disk = MemoryBitmaps::new(config.geometry, 10);
    for group in IN_PIECES.map(GroupNr::new) {
        (100..30_000).step_by(4).for_each(|at| disk.write(group, at, 1, true));
    }
    let allocator: Allocator = Allocator::open(&config, disk.clone(), &disk.facts()).unwrap();
    // Loads all groups, as if files had been allocated there before. So the indexes contain them.
    allocator.initialise(0, GROUPS).unwrap();
    let mut blocks = Vec::new();
    for number in 0..300 {
        let inode = InodeNr::new(12 + number);
        let request = BlockRequest {
            goal: BlockNr::new(16 * 32_768),
            flags: RequestFlags::DIRECTORY,
            cpu: CpuSlot::new(number % 4),
            ..BlockRequest::data(inode, GroupNr::new(16), LogicalBlock::ZERO, 1)
        };
        let got = disk.commit(allocator.allocate(&request, &InodeAlloc::new()).unwrap());
        blocks.push((got.group.raw(), got.start));
    }
    blocks.sort_unstable();
    let mut groups: Vec<u32> = blocks.iter().map(|(group, _)| *group).collect();
    groups.dedup();
    let apart = |pair: &&[(u32, u32)]| pair[0].0 != pair[1].0 || pair[0].1 + 1 != pair[1].1;
    (groups, 1 + blocks.windows(2).filter(apart).count())
}

#[test]
fn yard_packs_them_where_linux_fills_leftovers() {
    assert_eq!(places("yard"), (vec![16], 1), "the first group of the flex group, in one run");
    let (groups, runs) = places("linux-6.18");
    assert!(!groups.contains(&16) && runs >= 100, "{runs} runs in {groups:?}");
    let (_, runs) = places("yard:goal_group=first");
    assert!(runs >= 100, "data alone is not enough: {runs} runs");
}
