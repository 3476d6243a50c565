//! Four of the switches for differences between kernel versions, each in a case where it matters;
//! the placement `inode=parent`; and corrupt groups.

use std::collections::BTreeSet;

use blockyard_alloc::inode::{
    InodeConfig, InodeDirAlloc, InodeError, InodeGroup, InodeGroupFacts, InodeRequest, Switches,
};
use blockyard_disk::dirhash::HashSeed;
use blockyard_disk::geometry::GeometryFields;
use blockyard_disk::{BlockCount, BlockNr, CorruptionKind, Geometry, InodeNr};

use crate::replica::Replica;

const GROUPS: u32 = 64;
const PER_GROUP: u32 = 64;
const CLUSTERS: u32 = 8192;

/// 64 groups in flex groups of 8. Of the 8192 clusters of group `g`, `free(g)` are free.
fn replica(ratio_bits: u32, free: impl Fn(u32) -> u32, config: InodeConfig) -> Replica {
    let geometry = Geometry::new(GeometryFields {
        block_bits: if ratio_bits == 0 { 10 } else { 12 },
        cluster_ratio_bits: ratio_bits,
        blocks_count: BlockCount::new(u64::from(GROUPS * CLUSTERS) << ratio_bits),
        first_data_block: BlockNr::new(u64::from(ratio_bits == 0)),
        clusters_per_group: CLUSTERS,
        inodes_per_group: PER_GROUP,
        inode_size: 256,
        flex_bits: 3,
    })
    .unwrap();
    let facts: Vec<InodeGroupFacts> = (0..GROUPS)
        .map(|group| match group {
            0 => InodeGroupFacts { free_inodes: 53, used_dirs: 2, itable_unused: 53, inode_uninit: false },
            _ => InodeGroupFacts {
                free_inodes: PER_GROUP,
                used_dirs: 0,
                itable_unused: PER_GROUP,
                inode_uninit: true,
            },
        })
        .collect();
    let free: Vec<u32> = (0..GROUPS).map(free).collect();
    Replica::new(geometry, &facts, &free, HashSeed::new([0; 4]), config)
}

fn with(switches: Switches) -> InodeConfig {
    InodeConfig { switches, ..InodeConfig::default() }
}

fn group_of(inode: u32) -> u32 {
    (inode - 1) / PER_GROUP
}

/// Directories created below one parent until the search leaves the parent's flex group.
fn directories_before_moving(config: InodeConfig) -> usize {
    let mut replica = replica(0, |_| 8000, config);
    let parent = replica.create(Replica::ROOT, "parent", true).unwrap();
    let home = group_of(parent) / 8;
    (0..500)
        .take_while(|i| group_of(replica.create(parent, &format!("{i}"), true).unwrap()) / 8 == home)
        .count()
}

#[test]
fn directories_may_be_a_sixteenth_of_the_flex_group_or_of_the_group() {
    let now = directories_before_moving(InodeConfig::default());
    let before = directories_before_moving(with(Switches { max_dirs_by_group: true, ..Switches::default() }));
    // The bound is 64 * 8 / 16 = 32 or 64 / 16 = 4, plus the average, which grows meanwhile.
    assert!((31..45).contains(&now), "{now}");
    assert!((3..8).contains(&before), "{before}");
}

#[test]
fn a_negative_bound_of_clusters_refused_every_unit() {
    // In each group, at most 21 % of the clusters are free. So the average of free clusters is
    // below a quarter of a flex group, which makes the bound negative.
    let place = |config| {
        let mut replica = replica(0, |group| if group < 8 { 1000 } else { 1700 }, config);
        let parent = replica.create(Replica::ROOT, "parent", true).unwrap();
        let children: BTreeSet<u32> =
            (0..100).map(|i| group_of(replica.create(parent, &format!("{i}"), true).unwrap())).collect();
        (group_of(parent), children)
    };
    let (parent, now) = place(InodeConfig::default());
    // Children go to the parent's flex group until that has its share of directories, then to other
    // flex groups.
    assert!(now.contains(&(parent / 8 * 8)) && now.iter().any(|group| group / 8 != parent / 8), "{now:?}");
    let (parent, before) = place(with(Switches { min_clusters_wrap: true, ..Switches::default() }));
    // The fallback goes group by group, from the parent's group on. It leaves a group once that
    // group has fewer free inodes than the average.
    assert_eq!(before, (parent..parent + 34).collect());
}

#[test]
fn an_average_in_blocks_refused_every_unit_with_clusters() {
    let place = |config| {
        let mut replica = replica(4, |_| 8000, config);
        let groups = (0..6).map(|i| group_of(replica.create(Replica::ROOT, &format!("{i}"), true).unwrap()));
        groups.collect::<BTreeSet<u32>>()
    };
    assert!(place(InodeConfig::default()).len() > 4, "spread over flex groups");
    let before = place(with(Switches { average_in_blocks: true, ..Switches::default() }));
    // The fallback starts at the root's group, which has fewer free inodes than the average. Any
    // other group falls below the average with its second new inode.
    assert_eq!(before, BTreeSet::from([1, 2, 3]));
}

#[test]
fn a_random_start_depends_on_the_seed_and_not_on_the_name() {
    let place = |seed, name: &str| {
        let random = InodeConfig { seed, ..with(Switches { random_start: true, ..Switches::default() }) };
        let mut replica = replica(0, |_| 8000, random);
        let mut groups = Vec::new();
        for i in 0..6 {
            groups.push(group_of(replica.create(Replica::ROOT, &format!("{name}{i}"), true).unwrap()));
        }
        groups
    };
    assert_eq!(place(1, "a"), place(1, "b"));
    let seeds: BTreeSet<_> = (0..10).map(|seed| place(seed, "a")).collect();
    assert!(seeds.len() > 5, "{seeds:?}");
}

#[test]
fn with_the_parent_means_its_group_and_those_after_it() {
    let config = InodeConfig { placement: InodeGroup::Parent, ..InodeConfig::default() };
    let mut replica = replica(0, |_| 8000, config);
    let numbers: Vec<u32> =
        (0..70).map(|i| replica.create(Replica::ROOT, &format!("{i}"), i % 3 == 0).unwrap()).collect();
    assert_eq!(numbers, (12..82).collect::<Vec<u32>>());
    let child = replica.create(78, "child", false).unwrap();
    assert_eq!(child, 82, "the parent's group is the second");
    replica.allocator.set_goal(Some(InodeNr::new(GROUPS * PER_GROUP)));
    assert_eq!(replica.create(78, "last", false).unwrap(), GROUPS * PER_GROUP);
    assert_eq!(
        replica.create(78, "around", false).unwrap(),
        83,
        "past the end, group 0 is full, group 1 follows"
    );
    replica.allocator.set_goal(None);
    let mut count = 73;
    while replica.create(78, &format!("more{count}"), false).is_ok() {
        count += 1;
    }
    assert_eq!(count, GROUPS * PER_GROUP - 11);
    assert!(matches!(replica.create(2, "none", true), Err(InodeError::NoInodes)));
}

#[test]
fn a_corrupt_group_is_passed_over_and_left_alone() {
    let config = InodeConfig { placement: InodeGroup::Parent, ..InodeConfig::default() };
    let mut replica = replica(0, |_| 8000, config);
    let slot = blockyard_sync::CpuSlot::ZERO;
    replica.allocator.mark_corrupt(blockyard_disk::GroupNr::new(0), slot);
    assert_eq!(replica.create(Replica::ROOT, "a", false).unwrap(), PER_GROUP + 1);
    assert_eq!(replica.allocator.free_total(), u64::from((GROUPS - 1) * PER_GROUP - 1));
    let freed = replica.allocator.free(InodeNr::new(11), true, slot, |_| ());
    let kind = |freed: Result<(), InodeError>| match freed {
        Err(InodeError::Corrupt(corruption)) => Some(corruption.kind),
        _ => None,
    };
    assert_eq!(kind(freed), Some(CorruptionKind::InodeBitmapContradiction));
    let reserved = replica.allocator.free(InodeNr::new(2), true, slot, |_| ());
    assert_eq!(kind(reserved), Some(CorruptionKind::InodeNumber));
}

/// The group becomes corrupt between a claim and its release. After the release, the total of free
/// inodes counts neither the number that was claimed nor any other inode of the group.
#[test]
fn a_number_released_in_a_corrupt_group_is_not_free() {
    let config = InodeConfig { placement: InodeGroup::Parent, ..InodeConfig::default() };
    let replica = replica(0, |_| 8000, config);
    let slot = blockyard_sync::CpuSlot::ZERO;
    let request = InodeRequest {
        parent: InodeNr::ROOT,
        parent_is_top: false,
        directory: true,
        name_hash: None,
        goal: None,
        slot,
        now: 0,
    };
    let claim = replica.allocator.allocate(&request, &mut InodeDirAlloc::default()).unwrap();
    assert_eq!(claim.group().raw(), 0);
    replica.allocator.mark_corrupt(claim.group(), slot);
    claim.release();
    assert_eq!(replica.allocator.free_total(), u64::from((GROUPS - 1) * PER_GROUP));
}
