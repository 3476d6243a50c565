//! What the allocators refuse, and the errno that callers of the engine see. Every variant of
//! `AllocError` and `InodeError` is produced by an allocator, not built by hand.
//!
//! A double free, and a group whose bitmap contradicts its descriptor, were once reported as
//! invalid arguments (EINVAL).

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use blockyard_alloc::inode::{
    BitmapLoad, ClusterCounts, InodeAllocator, InodeConfig, InodeDirAlloc, InodeError, InodeGroupFacts,
    InodeRequest, InodeSource,
};
use blockyard_alloc::memory::MemoryBitmaps;
use blockyard_alloc::{
    AllocConfig, AllocError, Allocator, BlockRequest, FreeContext, GroupFacts, GroupSource, InodeAlloc,
    SourceError, Tunable,
};
use blockyard_device::DeviceError;
use blockyard_disk::{BlockNr, CorruptionKind, Geometry, GroupNr, InodeNr, LogicalBlock};
use blockyard_engine::Error;
use blockyard_sync::CpuSlot;

const EIO: i32 = 5;
const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;
const EUCLEAN: i32 = 117;

fn errno(error: AllocError) -> i32 {
    Error::from(error).errno()
}

/// Two groups whose bitmaps have 32,768 free blocks each. Their descriptors say that each group has
/// `free` free blocks.
fn allocator(free: u32) -> Allocator {
    let geometry = MemoryBitmaps::plain_geometry(2, 0);
    let config = AllocConfig { reserved: Some(0), ..AllocConfig::new(geometry) };
    let facts = [GroupFacts { free, block_uninit: false }; 2];
    Allocator::open(&config, MemoryBitmaps::new(geometry, 0), &facts).unwrap()
}

fn request(clusters: u32) -> BlockRequest {
    BlockRequest::data(InodeNr::new(12), GroupNr::ZERO, LogicalBlock::ZERO, clusters)
}

fn kind_of(error: &AllocError) -> Option<CorruptionKind> {
    if let AllocError::Corrupt(found) = error { Some(found.kind) } else { None }
}

#[test]
fn frees_that_contradict_the_bitmaps_are_corruption() {
    let at_once = FreeContext::default();
    let twice = allocator(32_768).free(BlockNr::new(40_000), 1, at_once).unwrap_err();
    assert_eq!(kind_of(&twice), Some(CorruptionKind::BlockBitmapContradiction));
    assert!(twice.to_string().contains("group 1, block 40000"), "{twice}");
    assert_eq!(errno(twice), EUCLEAN);
    let corrupt = allocator(32_767).free(BlockNr::new(7), 1, at_once).unwrap_err();
    assert_eq!(kind_of(&corrupt), Some(CorruptionKind::BlockBitmapContradiction));
    assert!(corrupt.to_string().starts_with("group 0: "), "{corrupt}");
    assert_eq!(errno(corrupt), EUCLEAN);
    let outside = allocator(32_768).free(BlockNr::new(65_535), 2, at_once).unwrap_err();
    assert_eq!(kind_of(&outside), Some(CorruptionKind::FreedOutside));
    assert_eq!(errno(outside), EUCLEAN);
}

#[test]
fn what_callers_do_wrong_is_invalid() {
    let allocator = allocator(32_768);
    let nothing = allocator.allocate(&request(0), &InodeAlloc::new()).unwrap_err();
    assert!(matches!(nothing, AllocError::BadRequest(_)));
    assert_eq!(errno(nothing), EINVAL);
    let tunable = allocator.set_tunable(Tunable::GroupPrealloc, 1 << 20).unwrap_err();
    assert!(matches!(tunable, AllocError::BadTunable { name: "mb_group_prealloc", .. }));
    assert_eq!(errno(tunable), EINVAL);
    let geometry = MemoryBitmaps::plain_geometry(2, 0);
    let config = AllocConfig { cpus: 0, ..AllocConfig::new(geometry) };
    let disk = MemoryBitmaps::new(geometry, 0);
    let facts = disk.facts();
    let config = Allocator::<blockyard_sync::Native>::open(&config, disk, &facts).unwrap_err();
    assert!(matches!(config, AllocError::BadConfig(_)));
    assert_eq!(errno(config), EINVAL);
}

#[test]
fn no_space_and_a_device_that_fails_stay_what_they_are() {
    let full = allocator(0).allocate(&request(1), &InodeAlloc::new()).unwrap_err();
    assert!(matches!(full, AllocError::NoSpace(_)));
    assert_eq!(errno(full), ENOSPC);
    let geometry = MemoryBitmaps::plain_geometry(1, 0);
    let facts = [GroupFacts { free: 32_768, block_uninit: false }];
    let allocator =
        Allocator::<blockyard_sync::Native>::open(&AllocConfig::new(geometry), Arc::new(Broken), &facts)
            .unwrap();
    let failed = allocator.allocate(&request(1), &InodeAlloc::new()).unwrap_err();
    assert!(matches!(failed, AllocError::Load { .. }));
    assert_eq!(errno(failed), EIO);
}

/// A source of bitmaps whose device fails for every block bitmap and for the first group's inode
/// bitmap. The other inode bitmaps are damaged.
#[derive(Debug)]
struct Broken;

fn device_error() -> Error {
    DeviceError::OutOfRange { operation: "read", offset: 0, length: 4096, size: 0 }.into()
}

impl GroupSource for Broken {
    fn load(&self, _: GroupNr, _: &mut [u8]) -> Result<(), SourceError> {
        Err(Box::new(device_error()))
    }
}

impl InodeSource for Broken {
    fn load(&self, group: GroupNr, _: &mut [u8]) -> Result<BitmapLoad, SourceError> {
        if group == GroupNr::ZERO { Err(Box::new(device_error())) } else { Ok(BitmapLoad::Corrupt) }
    }
}

/// Three groups. The inode bitmap of the first group cannot be read, the second bitmap is damaged,
/// and the third bitmap was never written.
fn inodes(free: u32) -> InodeAllocator {
    let geometry: Geometry = MemoryBitmaps::plain_geometry(3, 0);
    let used = InodeGroupFacts { free_inodes: free, ..InodeGroupFacts::default() };
    let fresh = InodeGroupFacts { free_inodes: free, itable_unused: 8192, inode_uninit: true, ..used };
    let clusters = ClusterCounts::<blockyard_sync::Native>::new(&geometry, &[1000; 3], 1);
    let (config, facts) = (InodeConfig::default(), [used, used, fresh]);
    InodeAllocator::new(geometry, config, &facts, Arc::new(clusters), Arc::new(Broken)).unwrap()
}

#[test]
fn inodes_that_cannot_be_freed_are_corruption() {
    let allocator = inodes(8192);
    let free = |inode: u32| allocator.free(InodeNr::new(inode), false, CpuSlot::ZERO, |_| ()).unwrap_err();
    for (inode, kind) in [
        (2, CorruptionKind::InodeNumber),
        (3 * 8192 + 1, CorruptionKind::InodeNumber),
        (8192 + 1, CorruptionKind::InodeBitmapContradiction),
        (2 * 8192 + 1, CorruptionKind::InodeBitmapContradiction),
    ] {
        let error = free(inode);
        assert!(matches!(&error, InodeError::Corrupt(found) if found.kind == kind), "{inode}: {error}");
        assert_eq!(Error::from(error).errno(), EUCLEAN, "{inode}");
    }
    let failed = free(100);
    assert!(matches!(failed, InodeError::Load { .. }), "{failed}");
    assert_eq!(Error::from(failed).errno(), EIO);
}

#[test]
fn no_inode_left_is_no_space_and_a_bad_configuration_is_invalid() {
    let request = InodeRequest {
        parent: InodeNr::ROOT,
        parent_is_top: true,
        directory: false,
        name_hash: None,
        goal: None,
        slot: CpuSlot::ZERO,
        now: 0,
    };
    let allocator = inodes(0);
    let none = allocator.allocate(&request, &mut InodeDirAlloc::default()).unwrap_err();
    assert!(matches!(none, InodeError::NoInodes));
    assert_eq!(Error::from(none).errno(), ENOSPC);
    let geometry = MemoryBitmaps::plain_geometry(3, 0);
    let clusters = Arc::new(ClusterCounts::<blockyard_sync::Native>::new(&geometry, &[1000; 3], 1));
    let bad = InodeAllocator::<blockyard_sync::Native>::new(
        geometry,
        InodeConfig::default(),
        &[],
        clusters,
        Arc::new(Broken),
    );
    let bad = bad.unwrap_err();
    assert!(matches!(bad, InodeError::BadConfig(_)));
    assert_eq!(Error::from(bad).errno(), EINVAL);
}
