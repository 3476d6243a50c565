//! The round-robin policies: where files begin, which group a file keeps, which runs are accepted,
//! and which requests ignore the cursors.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use blockyard_alloc::memory::MemoryBitmaps;
use blockyard_alloc::{
    AllocConfig, AllocError, Allocator, BlockRequest, InitMode, InodeAlloc, Neighbour, Policy, RequestFlags,
};
use blockyard_disk::{BlockNr, GroupNr, InodeNr, LogicalBlock};
use blockyard_sync::CpuSlot;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const GROUPS: u32 = 16;
const OVERHEAD: u32 = 100;

struct Bench {
    allocator: Allocator,
    disk: Arc<MemoryBitmaps>,
}

impl Bench {
    fn new(policy: &str) -> Self {
        Self::sized(policy, GROUPS, 2)
    }

    fn sized(policy: &str, groups: u32, cpus: u32) -> Self {
        let mut config = AllocConfig::new(MemoryBitmaps::plain_geometry(groups, 4));
        config.init = InitMode::AtOpen;
        config.policy = Policy::parse(policy).unwrap();
        config.reserved = Some(0);
        config.cpus = cpus;
        let disk = MemoryBitmaps::new(config.geometry, OVERHEAD);
        let allocator = Allocator::open(&config, disk.clone(), &disk.facts()).unwrap();
        Self { allocator, disk }
    }

    fn ask(&self, request: &BlockRequest, inode: &InodeAlloc) -> (u32, u32, u32) {
        let extent = self.disk.commit(self.allocator.allocate(request, inode).unwrap());
        (extent.group.raw(), extent.start, extent.count)
    }

    /// Asks for `clusters` clusters of file data on a CPU slot, without normalisation. The goal is
    /// the start of group 5.
    fn exact(&self, cpu: u16, clusters: u32, inode: &InodeAlloc) -> (u32, u32, u32) {
        self.ask(&exact(cpu, clusters), inode)
    }
}

fn exact(cpu: u16, clusters: u32) -> BlockRequest {
    BlockRequest {
        goal: BlockNr::new(5 * 32768),
        file_size: 1 << 30,
        cpu: CpuSlot::new(cpu.into()),
        flags: RequestFlags::DATA | RequestFlags::NO_NORMALIZE,
        ..BlockRequest::data(InodeNr::new(12), GroupNr::new(5), LogicalBlock::new(1000), clusters)
    }
}

#[test]
fn v2_starts_in_the_zone_of_the_cpu_and_the_inode_sticks_to_it() {
    let bench = Bench::new("rralloc-v2");
    let (near, far) = (InodeAlloc::new(), InodeAlloc::new());
    assert_eq!(bench.exact(0, 32, &near), (0, OVERHEAD, 32));
    assert_eq!(bench.exact(1, 32, &far), (8, OVERHEAD, 32));
    // On CPU 0, too, the inode `far` keeps group 8. The cursor of CPU 0 follows it to group 8.
    assert_eq!(bench.exact(0, 32, &far), (8, OVERHEAD + 32, 32));
    assert_eq!(bench.exact(0, 32, &InodeAlloc::new()), (8, OVERHEAD + 64, 32));
    // Group 0 means "no group". So the inode `near`, which began in group 0, follows the cursor of
    // CPU 0 to group 8.
    assert_eq!(bench.exact(0, 32, &near), (8, OVERHEAD + 96, 32));
}

#[test]
fn the_flaws_of_v2_can_be_switched_off() {
    let bench = Bench::new("rralloc-v2:zero_is_unset=off:inode_moves_cpu=off");
    let (near, far) = (InodeAlloc::new(), InodeAlloc::new());
    bench.exact(0, 32, &near);
    bench.exact(1, 32, &far);
    bench.exact(0, 32, &far);
    assert_eq!(bench.exact(0, 32, &InodeAlloc::new()).0, 0, "the CPU's cursor stayed");
    // CPU 1's cursor is in group 8. So a file begins in group 0 only if it remembers that group.
    assert_eq!(bench.exact(1, 32, &near).0, 0, "group 0 is remembered");
    let forgets = Bench::new("rralloc-v2:inode_moves_cpu=off");
    let near = InodeAlloc::new();
    forgets.exact(0, 32, &near);
    assert_eq!(forgets.exact(1, 32, &near).0, 8, "group 0 means that no group is set");
}

/// Extends long-lived files, then returns in how many of eight zones the next files of eight CPUs
/// begin. One operation in ten runs on a CPU drawn at random, the others on the file's own CPU. One
/// operation in twenty extends a new file, which takes the place of an old one.
fn zones_in_use(policy: &str, operations: u32) -> usize {
    const CPUS: u16 = 8;
    let bench = Bench::sized(policy, 64, CPUS.into());
    let mut files: Vec<InodeAlloc> = (0..64).map(|_| InodeAlloc::new()).collect();
    let mut random = ChaCha8Rng::seed_from_u64(1);
    for _ in 0..operations {
        let file = random.random_range(0..files.len());
        let own = u16::try_from(file).unwrap() % CPUS;
        let cpu = if random.random_ratio(1, 10) { random.random_range(0..CPUS) } else { own };
        if random.random_ratio(1, 20) {
            files[file] = InodeAlloc::new();
        }
        bench.exact(cpu, 4, &files[file]);
    }
    let zones = (0..CPUS).map(|cpu| bench.exact(cpu, 4, &InodeAlloc::new()).0 / 8);
    zones.collect::<std::collections::BTreeSet<_>>().len()
}

/// What reviewers of the published version predicted: an inode that is used on another CPU drags
/// that CPU's cursor into the inode's zone. New files of that CPU then begin in this zone, and stay
/// in it. So in time the files of eight CPUs begin in one or two zones.
#[test]
fn zones_collapse_where_inodes_move_the_cursors_of_cpus() {
    let collapsed = [1000, 10_000, 100_000].map(|operations| zones_in_use("rralloc-v2", operations));
    println!("zones in use: {collapsed:?}");
    assert!(collapsed[2] <= 2, "{collapsed:?}");
    assert_eq!(zones_in_use("rralloc-v2:inode_moves_cpu=off", 100_000), 8);
}

#[test]
fn v2_takes_the_first_run_of_any_length() {
    let bench = Bench::new("rralloc-v2");
    let inode = InodeAlloc::new();
    // Leave a hole of 3 clusters at the start of group 0.
    let claims: Vec<_> = [3, 29].map(|n| bench.allocator.allocate(&exact(0, n), &inode).unwrap()).into();
    let mut claims = claims.into_iter();
    let hole = claims.next().unwrap();
    let kept = bench.disk.commit(claims.next().unwrap());
    hole.release();
    assert_eq!((kept.group.raw(), kept.start), (0, OVERHEAD + 3));
    assert_eq!(bench.exact(0, 10, &inode), (0, OVERHEAD, 3));
}

#[test]
fn without_rotation_a_file_begins_at_its_own_goal() {
    let bench = Bench::new("inode-cursor");
    let inode = InodeAlloc::new();
    assert_eq!(bench.exact(1, 32, &inode), (5, OVERHEAD, 32));
    let elsewhere = BlockRequest { goal: BlockNr::new(9 * 32768), ..exact(1, 32) };
    assert_eq!(bench.ask(&elsewhere, &inode), (5, OVERHEAD + 32, 32), "the inode sticks to its group");
}

#[test]
fn v1_moves_one_cursor_under_a_lock() {
    let bench = Bench::new("rotalloc-v1");
    let before = bench.allocator.lock_census().shared_acquisitions();
    assert_eq!(bench.exact(0, 33, &InodeAlloc::new()).0, 0, "the cursor's group, not the goal's");
    let taken = bench.allocator.lock_census().shared_acquisitions() - before;
    assert_eq!(taken, 2, "read and written");
    // Fill group 0: the cursor goes on to the next group and stays there for everybody.
    while bench.exact(0, 4096, &InodeAlloc::new()).0 == 0 {}
    assert_eq!(bench.exact(1, 33, &InodeAlloc::new()).0, 1);
}

#[test]
fn v3_regular_starts_every_new_stream_at_group_0() {
    let bench = Bench::new("rralloc-v3-regular");
    let (a, b) = (InodeAlloc::new(), InodeAlloc::new());
    assert_eq!(bench.exact(0, 33, &a).0, 0);
    assert_eq!(bench.exact(1, 33, &b).0, 0);
}

#[test]
fn ours_tries_the_true_neighbour_first_and_passes_short_runs_over() {
    let bench = Bench::new("rralloc:floor=64:patience=8");
    let file = InodeAlloc::new();
    let (group, start, count) = bench.exact(1, 100, &file);
    assert_eq!((group, start, count), (8, OVERHEAD, 100));
    let end = BlockNr::new(u64::from(group) * 32768 + u64::from(start + count));
    let append = BlockRequest {
        goal: end,
        left: Some(Neighbour { logical: LogicalBlock::new(999), physical: BlockNr::new(end.raw() - 1) }),
        ..exact(0, 100)
    };
    assert_eq!(bench.ask(&append, &file), (8, OVERHEAD + 100, 100));
    // The hit beside the neighbour did not drag the cursor of CPU 0 along.
    let other = InodeAlloc::new();
    assert_eq!(bench.exact(0, 16, &other).0, 0);
    // A hole of 16 in group 0 is below the floor for a request of 100.
    let hole = bench.allocator.allocate(&exact(0, 16), &other).unwrap();
    let hole_start = OVERHEAD + 16;
    bench.exact(0, 16, &other);
    hole.release();
    assert_eq!(bench.exact(0, 100, &InodeAlloc::new()), (0, OVERHEAD + 48, 100));
    assert_eq!(bench.exact(0, 10, &InodeAlloc::new()), (0, hole_start, 10), "a short request may use it");
}

#[test]
fn metadata_is_exempt_in_ours_and_not_in_v2() {
    for (policy, group) in [("rralloc", 3), ("rralloc-v2", 8)] {
        let bench = Bench::new(policy);
        let request = BlockRequest {
            cpu: CpuSlot::new(1),
            ..BlockRequest::metadata(InodeNr::new(12), GroupNr::new(3), BlockNr::new(3 * 32768))
        };
        assert_eq!(bench.ask(&request, &InodeAlloc::new()).0, group, "{policy}");
    }
}

#[test]
fn space_ends_only_when_every_cluster_is_used() {
    for policy in [
        "rotalloc-v1",
        "rralloc-v2",
        "rralloc-v3-regular",
        "inode-cursor",
        "rralloc",
        "rralloc:advance=per-inode",
        "rralloc:advance=per-bytes:advance_bytes=65536",
    ] {
        let bench = Bench::new(policy);
        let mut taken = 0;
        let error = loop {
            let inode = InodeAlloc::new();
            match bench.allocator.allocate(&exact(u16::from(taken % 2 == 1), 5000), &inode) {
                Ok(claim) => taken += u64::from(bench.disk.commit(claim).count),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, AllocError::NoSpace(_)), "{policy}: {error}");
        assert_eq!(taken, u64::from(GROUPS * (32768 - OVERHEAD)), "{policy}");
    }
}

/// `advance=per-bytes`: each time `advance_bytes` were allocated on a CPU, that CPU's cursor moves
/// on by one group, even if the group is not full.
#[test]
fn a_cursor_moves_on_after_so_many_bytes() {
    let bench = Bench::new("rralloc-v2:sticky_inode=off:advance=per-bytes:advance_bytes=262144");
    let groups: Vec<u32> = (0..6).map(|_| bench.exact(0, 32, &InodeAlloc::new()).0).collect();
    assert_eq!(groups, [0, 0, 1, 1, 2, 2], "256 KiB are two requests of 32 blocks");
    assert_eq!(bench.exact(1, 32, &InodeAlloc::new()).0, 8, "each CPU counts its own");
    assert!(Policy::parse("rralloc-v2:advance=per-bytes").is_err(), "how many bytes?");
}

/// `cursor_start=remembered`: at open, cursors stand where they stood before, if those groups
/// exist.
#[test]
fn remembered_cursors_go_on_where_they_stood() {
    let open = |policy: &str, cursors: Vec<GroupNr>| {
        let mut config = AllocConfig::new(MemoryBitmaps::plain_geometry(GROUPS, 4));
        config.policy = Policy::parse(policy).unwrap();
        config.cpus = 2;
        config.cursors = cursors;
        let disk = MemoryBitmaps::new(config.geometry, OVERHEAD);
        Allocator::<blockyard_sync::Native>::open(&config, disk.clone(), &disk.facts()).unwrap().cursors()
    };
    let groups = |numbers: &[u32]| numbers.iter().copied().map(GroupNr::new).collect::<Vec<_>>();
    let kept = groups(&[5, 12]);
    assert_eq!(open("rralloc-v2:cursor_start=remembered", kept.clone()), kept);
    assert_eq!(open("rralloc-v2:cursor_start=remembered", Vec::new()), groups(&[0, 8]), "nothing was kept");
    assert_eq!(open("rralloc-v2:cursor_start=remembered", groups(&[99])), groups(&[0, 8]), "a smaller image");
    assert_eq!(open("rralloc-v2", kept), groups(&[0, 8]), "fixed, as published");
    assert_eq!(open("rotalloc-v1:cursor_start=remembered", groups(&[3])), groups(&[3]));
}
