//! A file system of 16 TiB: it opens in bounded time, and one allocation in every group takes
//! bounded memory.

#![allow(clippy::unwrap_used, clippy::as_conversions)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use blockyard_alloc::memory::MemoryBitmaps;
use blockyard_alloc::{
    AllocConfig, Allocator, BlockRequest, GroupFacts, GroupSource, InodeAlloc, RequestFlags, SourceError,
};
use blockyard_disk::{BlockNr, GroupNr, InodeNr, LogicalBlock};

const GROUPS: u32 = 131_072;

/// Bitmaps that remember one used cluster per group.
struct OneEach(Vec<AtomicU32>);

impl GroupSource for OneEach {
    fn load(&self, group: GroupNr, bitmap: &mut [u8]) -> Result<(), SourceError> {
        let used = self.0[group.raw() as usize].load(Ordering::Relaxed);
        if used != u32::MAX {
            bitmap[used as usize / 8] |= 1 << (used % 8);
        }
        Ok(())
    }
}

fn resident_mib() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    (statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096) >> 20
}

#[test]
fn sixteen_tebibytes() {
    let geometry = MemoryBitmaps::plain_geometry(GROUPS, 4);
    let source = Arc::new(OneEach((0..GROUPS).map(|_| AtomicU32::new(u32::MAX)).collect()));
    let facts = vec![GroupFacts { free: 32768, block_uninit: false }; GROUPS as usize];
    let before = resident_mib();
    let started = Instant::now();
    let allocator: Allocator = Allocator::open(&AllocConfig::new(geometry), source.clone(), &facts).unwrap();
    let open = started.elapsed();
    let inode = InodeAlloc::new();
    for group in 0..GROUPS {
        let request = BlockRequest {
            goal: BlockNr::new(u64::from(group) * 32768 + 77),
            flags: RequestFlags::METADATA | RequestFlags::GOAL_ONLY,
            ..BlockRequest::data(InodeNr::new(12), GroupNr::ZERO, LogicalBlock::ZERO, 1)
        };
        let claim = allocator.allocate(&request, &inode).unwrap();
        assert_eq!((claim.group().raw(), claim.offset().raw()), (group, 77));
        source.0[group as usize].store(77, Ordering::Relaxed);
        claim.commit();
    }
    let grown = resident_mib() - before;
    println!("open {open:?}; {grown} MiB after one allocation in each of {GROUPS} groups");
    // The limit is much longer than an open takes, because the machine may be busy.
    assert!(open.as_secs() < 5, "{open:?}");
    assert!(grown < 256, "{grown} MiB");
    // An evicted group comes back as it was left.
    assert_eq!(allocator.group_free(GroupNr::new(5)), 32767);
    let request = BlockRequest {
        goal: BlockNr::new(5 * 32768 + 78),
        flags: RequestFlags::METADATA | RequestFlags::GOAL_ONLY,
        ..BlockRequest::data(InodeNr::new(12), GroupNr::ZERO, LogicalBlock::ZERO, 1)
    };
    allocator.allocate(&request, &inode).unwrap().release();
}
