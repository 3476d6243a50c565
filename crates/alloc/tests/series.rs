//! Nine worked examples (E1 to E9) of what the scalability series changed. Each stage of the series
//! is a preset with overrides.
//!
//! The stages:
//!
//! - `OLD` is the allocator before the series.
//! - `S15` is `OLD` with patches 10 and 15: full groups leave their index, and indexes are ordered
//!   by group number.
//! - `S16` is the series without patch 17. A search visits groups while it walks an index, and
//!   wraps around within the set of each order.
//! - `S17` is the whole series.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use blockyard_alloc::memory::MemoryBitmaps;
use blockyard_alloc::{
    AllocConfig, AllocEvent, Allocator, BlockRequest, EventRings, FreeContext, InitMode, InodeAlloc,
    LockModel, Neighbour, Policy, RequestFlags, Tunable,
};
use blockyard_disk::{BlockNr, GroupNr, InodeNr, LogicalBlock, TxnId};
use blockyard_sync::CpuSlot;

const OLD: &str = "linux-6.16:scan=optimized";
const S15: &str = "linux-6.16:scan=optimized:full_groups=drop:order_index=by-group";
const S16: &str = "linux-6.18:scan=optimized:sweep=per-set";
const S17: &str = "linux-6.18:scan=optimized";

/// A file system made from a layout. An entry of the layout is the number of a group, the count of
/// its free clusters, and the number of equal runs that these form. All other groups are full.
struct Stage {
    allocator: Allocator,
    rings: Arc<EventRings>,
}

impl Stage {
    fn new(policy: &str, groups: u32, layout: &[(u32, u32, u32)]) -> Self {
        let geometry = MemoryBitmaps::plain_geometry(groups, 0);
        let disk = MemoryBitmaps::new(geometry, 0);
        for group in 0..groups {
            disk.write(GroupNr::new(group), 0, 32768, true);
        }
        for &(group, free, runs) in layout {
            let pitch = (32768 / runs).max(free / runs + 1).min(32768);
            for run in 0..runs {
                disk.write(GroupNr::new(group), run * pitch, free / runs, false);
            }
        }
        let config = AllocConfig {
            policy: Policy::parse(policy).unwrap(),
            init: InitMode::AtOpen,
            reserved: Some(0),
            cpus: 1,
            ..AllocConfig::new(geometry)
        };
        let rings = Arc::new(EventRings::new(1, 64));
        let facts = disk.facts();
        let allocator = Allocator::open(&config, disk, &facts).unwrap().with_events(Arc::clone(&rings));
        allocator.set_tunable(Tunable::Stats, 1).unwrap();
        Self { allocator, rings }
    }

    /// Serves a metadata request with the start of group `goal` as its goal. Returns the event, and
    /// how many groups were considered under the criterion that served the request.
    fn ask(&self, goal: u32, clusters: u32) -> (AllocEvent, u64) {
        self.ask_with(goal, clusters, RequestFlags::METADATA)
    }

    fn ask_with(&self, goal: u32, clusters: u32, flags: RequestFlags) -> (AllocEvent, u64) {
        let request = BlockRequest {
            goal: BlockNr::new(u64::from(goal) * 32768),
            flags,
            ..BlockRequest::data(InodeNr::new(12), GroupNr::ZERO, LogicalBlock::ZERO, clusters)
        };
        let before = self.allocator.stats();
        let claim = self.allocator.allocate(&request, &InodeAlloc::new()).unwrap();
        claim.commit();
        let event = self.rings.drain().0.pop().unwrap();
        let criterion = usize::from(event.criterion);
        let after = self.allocator.stats();
        (event, after.groups_considered[criterion] - before.groups_considered[criterion])
    }
}

fn chosen(policy: &str, groups: u32, layout: &[(u32, u32, u32)], goal: u32, clusters: u32) -> (u32, u64) {
    let (event, considered) = Stage::new(policy, groups, layout).ask(goal, clusters);
    (event.result.group, considered)
}

#[test]
fn e1_head_of_list_against_next_to_the_right() {
    let layout: Vec<_> = [0, 1, 2, 3, 4, 6, 7].map(|group| (group, 32768, 1)).into();
    let on = |policy| chosen(policy, 8, &layout, 5, 512);
    assert_eq!(on(OLD), (0, 3));
    assert_eq!(on(S15), (6, 3));
    assert_eq!(on(S16), (6, 2));
    assert_eq!(on(S17), (6, 2));
}

#[test]
fn e2_smallest_order_anywhere_against_first_range() {
    let layout = [(0, 4096, 1), (2, 8192, 1), (3, 8192, 1)];
    let on = |policy, goal| chosen(policy, 8, &layout, goal, 4096).0;
    assert_eq!([OLD, S15, S16, S17].map(|policy| on(policy, 2)), [2, 2, 0, 2]);
    assert_eq!([OLD, S15, S16, S17].map(|policy| on(policy, 1)), [0, 0, 0, 2]);
}

/// Group 0 drops from order 9 to order 8 of the average-fragment index after groups 1 and 3 have
/// entered the list of order 8. A list in order of entry offers group 3 before group 0; an index by
/// group number offers group 0 first.
#[test]
fn e3_lists_remember_history() {
    let layout = [(0, 2402, 2), (1, 1040, 2), (2, 2400, 2), (3, 1400, 2)];
    let on = |policy: &str| {
        let stage = Stage::new(policy, 8, &layout);
        // Takes 602 clusters of group 0's second run: 1800 clusters in two runs are left.
        let request = BlockRequest {
            goal: BlockNr::new(16384),
            flags: RequestFlags::METADATA | RequestFlags::GOAL_ONLY,
            ..BlockRequest::data(InodeNr::new(12), GroupNr::ZERO, LogicalBlock::ZERO, 602)
        };
        stage.allocator.allocate(&request, &InodeAlloc::new()).unwrap().commit();
        let (event, considered) = stage.ask(7, 600);
        (event.result.group, considered)
    };
    assert_eq!(on(OLD), (3, 4));
    assert_eq!(on(S15), (0, 3));
    assert_eq!(on(S16), (0, 2));
    assert_eq!(on(S17), (0, 2));
}

/// Groups 0, 1 and 2 were in the set of order 8 of the average-fragment index and then became full.
fn zombies(policy: &str) -> Stage {
    let layout = [(0, 700, 1), (1, 700, 1), (2, 700, 1), (3, 1400, 2)];
    let stage = Stage::new(policy, 8, &layout);
    for group in 0..3 {
        let (event, _) = stage.ask(group, 700);
        assert_eq!(event.result.group, group);
    }
    stage
}

#[test]
fn e4_full_groups_stay_in_their_list() {
    let on = |policy: &str| {
        let (event, considered) = zombies(policy).ask(6, 600);
        (event.result.group, considered)
    };
    assert_eq!(on(OLD), (3, 6));
    assert_eq!(on("linux-6.16:scan=optimized:full_groups=drop"), (3, 3));
    assert_eq!(on(S16), (3, 2));
    assert_eq!(on(S17), (3, 2));
}

#[test]
fn e4_a_group_that_regains_space_keeps_its_old_place_or_goes_to_the_tail() {
    let on = |policy: &str| {
        let stage = zombies(policy);
        stage.allocator.free(BlockNr::new(32768), 600, FreeContext::default()).unwrap();
        stage.ask(6, 600).0.result.group
    };
    assert_eq!(on(OLD), 1);
    assert_eq!(on("linux-6.16:scan=optimized:full_groups=drop"), 3);
}

#[test]
fn e5_the_linear_prefix() {
    let layout: Vec<_> = (0..16)
        .map(|group| if [0, 1, 8].contains(&group) { (group, 32768, 1) } else { (group, 300, 3) })
        .collect();
    let on = |policy: &str| {
        let stage = Stage::new(policy, 16, &layout);
        stage.allocator.set_tunable(Tunable::MaxLinearGroups, 4).unwrap();
        let (event, considered) = stage.ask(3, 600);
        (event.result.group, considered)
    };
    assert_eq!(on(OLD), (0, 7));
    assert_eq!(on(S15), (8, 7));
    assert_eq!(on(S16), (8, 6));
    assert_eq!(on(S17), (8, 6));
}

#[test]
fn e6_the_sweep() {
    let small = |group| (group, 1100, 2);
    let layout = [(1, 1400, 2), (2, 1400, 2), small(5), small(6), (0, 2600, 2), (3, 2600, 2), (7, 2600, 2)];
    let on = |policy: &str| chosen(policy, 8, &layout, 4, 600);
    assert_eq!(on(OLD), (1, 3));
    assert_eq!(on(S15), (1, 5));
    assert_eq!(on(S16), (1, 6));
    assert_eq!(on(S17), (7, 6));
}

#[test]
fn e7_best_available_length() {
    let layout = [(0, 600, 2), (7, 280, 1), (1, 1040, 2), (3, 700, 1), (4, 2400, 4)];
    let on = |policy: &str| {
        // With `slots=none` there is no stream goal, so the search starts at the goal in group 6.
        let stage = Stage::new(&format!("{policy}:slots=none"), 8, &layout);
        // A file of 2250 blocks with block 2000 mapped: the window is 2000 blocks.
        let right = Neighbour { logical: LogicalBlock::new(2000), physical: BlockNr::new(5) };
        let request = BlockRequest {
            goal: BlockNr::new(6 * 32768),
            file_size: 2250 * 4096,
            right: Some(right),
            ..BlockRequest::data(InodeNr::new(12), GroupNr::ZERO, LogicalBlock::ZERO, 16)
        };
        let inode = InodeAlloc::new();
        stage.allocator.allocate(&request, &inode).unwrap().commit();
        let event = stage.rings.drain().0.pop().unwrap();
        assert_eq!(event.criterion, 2);
        let stats = stage.allocator.stats();
        (event.result.group, event.goal.len, stats.groups_considered[2], stats.useless_loops[1])
    };
    assert_eq!(on(OLD), (1, 512, 3, 0));
    let (group, len, _, useless) = on(S16);
    assert_eq!((group, len, useless), (1, 512, 1));
    let (group, len, ..) = on(S17);
    assert_eq!((group, len), (7, 256));
}

/// E9: how often the `md` lock is taken for three frees of one transaction, with and without its
/// commit. The third free fills the gap between the other two.
#[test]
fn e9_holds_of_the_md_lock_when_freeing() {
    let holds = |policy: &str, with_commit: bool| {
        let stage = Stage::new(policy, 8, &[(1, 100, 1)]);
        let held = || stage.allocator.lock_census().shared[0].1.acquisitions;
        let before = held();
        for (start, count) in [(0, 10), (20, 10), (10, 10)] {
            let context = FreeContext { txn: Some(TxnId::new(4)), ..FreeContext::default() };
            stage.allocator.free(BlockNr::new(start), count, context).unwrap();
        }
        if with_commit {
            stage.allocator.commit(TxnId::new(4), CpuSlot::ZERO);
        }
        held() - before
    };
    assert_eq!((holds(OLD, false), holds(OLD, true)), (5, 6));
    assert_eq!(
        (holds("linux-6.16:free_pending=atomic", false), holds("linux-6.16:free_pending=atomic", true)),
        (5, 5)
    );
    assert_eq!((holds(S17, false), holds(S17, true)), (3, 3));
    assert_eq!((holds("yard", false), holds("yard", true)), (0, 0));
}

/// How often one stream allocation that searches takes shared locks. The overrides show which
/// change of the series removes which lock.
#[test]
fn the_lock_census_of_one_allocation() {
    let layout: Vec<_> = (0..8).map(|group| (group, 32768, 1)).collect();
    let holds = |policy: &str| {
        let stage = Stage::new(policy, 8, &layout);
        let before: Vec<u64> =
            stage.allocator.lock_census().shared.iter().map(|lock| lock.1.acquisitions).collect();
        stage.ask_with(0, 100, RequestFlags::DATA | RequestFlags::NO_NORMALIZE);
        let after = stage.allocator.lock_census();
        assert_eq!(after.groups.waits, 0);
        let md = after.shared[0].1.acquisitions - before[0];
        let lists: u64 =
            after.shared[1..].iter().zip(&before[1..]).map(|(lock, old)| lock.1.acquisitions - old).sum();
        (md, lists)
    };
    // The md lock is taken twice: to read the stream goal, and to write it.
    assert_eq!(holds(OLD).0, 2);
    assert_eq!(holds("linux-6.16:scan=optimized:slot_lock=none").0, 0);
    assert_eq!(holds("linux-6.16:scan=optimized:full_groups=drop:order_index=by-group"), (2, 0));
    assert_eq!(holds(S17), (0, 0));
    assert_eq!(holds("yard"), (0, 0));
}

/// Groups whose locks look held.
struct Held(Vec<u32>);

impl LockModel for Held {
    fn is_held(&self, lock: GroupNr) -> bool {
        self.0.contains(&lock.raw())
    }
}

/// E8: what a request does while another operation holds a group's lock.
#[test]
fn e8_held_groups() {
    let layout: Vec<_> = (0..8).map(|group| (group, 32768, 1)).collect();
    let on = |policy: &str, held: &[u32]| {
        let stage = Stage::new(policy, 8, &layout);
        let held = Held(held.to_vec());
        stage.allocator.set_lock_model(Some(Arc::new(held)));
        let (event, _) = stage.ask_with(0, 512, RequestFlags::DATA | RequestFlags::NO_NORMALIZE);
        event.result.group
    };
    assert_eq!(on(OLD, &[0]), 0, "waits");
    assert_eq!(on("linux-6.16:scan=optimized:busy=skip", &[0]), 1);
    assert_eq!(on("linux-6.16:scan=optimized:busy=skip", &[0, 1]), 2);
    assert_eq!(on(S17, &[0]), 1);
    assert_eq!(on(S17, &[0, 1]), 2);
    assert_eq!(on(S17, &[0, 1, 2, 3, 4, 5, 6, 7]), 0, "the last criterion waits");
}
