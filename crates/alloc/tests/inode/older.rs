//! The inode placements of ext3 and of ext4's first releases, in cases that show their rules and
//! faults.

use std::collections::BTreeSet;

use blockyard_alloc::inode::{InodeConfig, InodeError, InodeGroup, InodeGroupFacts, Switches};
use blockyard_disk::dirhash::HashSeed;
use blockyard_disk::geometry::GeometryFields;
use blockyard_disk::{BlockCount, BlockNr, Geometry};

use crate::replica::Replica;

const GROUPS: u32 = 16;
const PER_GROUP: u32 = 128;
const BLOCKS: u32 = 8192;

/// Initial state of a group.
#[derive(Clone, Copy)]
struct Group {
    free_inodes: u32,
    free_blocks: u32,
}

const EMPTY: Group = Group { free_inodes: PER_GROUP, free_blocks: 8000 };

/// 16 groups of 128 inodes in flex groups of 4.
fn replica(group: impl Fn(u32) -> Group, config: InodeConfig) -> Replica {
    let geometry = Geometry::new(GeometryFields {
        block_bits: 10,
        cluster_ratio_bits: 0,
        blocks_count: BlockCount::new(u64::from(GROUPS * BLOCKS)),
        first_data_block: BlockNr::new(1),
        clusters_per_group: BLOCKS,
        inodes_per_group: PER_GROUP,
        inode_size: 256,
        flex_bits: 2,
    })
    .unwrap();
    let facts: Vec<InodeGroupFacts> = (0..GROUPS)
        .map(|nr| {
            let free = if nr == 0 { group(0).free_inodes.min(PER_GROUP - 11) } else { group(nr).free_inodes };
            let uninit = free == PER_GROUP;
            InodeGroupFacts {
                free_inodes: free,
                used_dirs: if nr == 0 { 2 } else { 0 },
                itable_unused: free,
                inode_uninit: uninit,
            }
        })
        .collect();
    let free: Vec<u32> = (0..GROUPS).map(|nr| group(nr).free_blocks).collect();
    Replica::new(geometry, &facts, &free, HashSeed::new([0; 4]), config)
}

fn by(placement: InodeGroup) -> InodeConfig {
    InodeConfig { placement, ..InodeConfig::default() }
}

fn group_of(inode: u32) -> u32 {
    (inode - 1) / PER_GROUP
}

/// A bug of the first ext4. The only free inodes are in the parent's flex group, of whose blocks
/// only a tenth is free. So the search passes over this flex group, and never comes back to it.
#[test]
fn the_first_ext4_says_no_inodes_while_there_are() {
    // Group 8, in flex group 2, has the only free inodes: one for the parent and 100 more.
    let scene = |nr: u32| match nr {
        8 => Group { free_inodes: 101, free_blocks: 8192 * 4 / 10 },
        9..12 => Group { free_inodes: 0, free_blocks: 0 },
        _ => Group { free_inodes: 0, free_blocks: 5000 },
    };
    let asked = |placement| {
        let mut replica = replica(scene, by(placement));
        replica.allocator.set_goal(Some(blockyard_disk::InodeNr::new(8 * PER_GROUP + 1)));
        let parent = replica.create(Replica::ROOT, "parent", true).unwrap();
        replica.allocator.set_goal(None);
        assert_eq!(group_of(parent), 8);
        assert_eq!(replica.allocator.free_total(), 100);
        [true, false].map(|directory| replica.create(parent, "child", directory).map(group_of))
    };
    for made in asked(InodeGroup::Flex2008) {
        assert!(matches!(made, Err(InodeError::NoInodes)), "{made:?}");
    }
    for placement in [
        InodeGroup::Flex2008Fallback,
        InodeGroup::Orlov2009,
        InodeGroup::OrlovFlex,
        InodeGroup::OrlovExt3,
        InodeGroup::OldAlloc,
    ] {
        let made = asked(placement).map(Result::unwrap);
        assert_eq!(made, [8, 8], "{placement:?}");
    }
}

/// When no flex group with free inodes had free blocks, the first ext4 could not even create an
/// empty file.
#[test]
fn the_first_ext4_wants_blocks_for_empty_files() {
    let full = |nr: u32| Group { free_blocks: 0, free_inodes: if nr == 4 { 5 } else { 0 } };
    let made = |placement| replica(full, by(placement)).create(Replica::ROOT, "empty", false);
    assert!(matches!(made(InodeGroup::Flex2008), Err(InodeError::NoInodes)));
    assert_eq!(made(InodeGroup::Flex2008Fallback).map(group_of).unwrap(), 4);
}

#[test]
fn the_first_ext4_packs_everything_into_flex_groups_from_the_front() {
    let mut replica = replica(|_| EMPTY, by(InodeGroup::Flex2008));
    let mut made = Vec::new();
    for number in 0..4 * PER_GROUP - 11 {
        made.push(replica.create(Replica::ROOT, &format!("{number}"), number % 3 == 0).unwrap());
    }
    assert_eq!(made, (12..=4 * PER_GROUP).collect::<Vec<u32>>(), "directories and files in order");
    assert_eq!(replica.create(Replica::ROOT, "next", true).unwrap(), 4 * PER_GROUP + 1);
}

#[test]
fn the_first_ext4_leaves_a_flex_group_that_is_nine_tenths_full_for_the_one_before_or_the_lowest() {
    // Free blocks of a group: `first` in flex group 0, `second` in flex group 1, a tenth in flex
    // group 2, and nearly all in flex group 3.
    let place = |first: u32, second: u32| {
        let scene = move |nr: u32| Group {
            free_inodes: PER_GROUP,
            free_blocks: match nr {
                0..4 => first,
                4..8 => second,
                8..12 => BLOCKS / 10,
                _ => 8000,
            },
        };
        let mut replica = replica(scene, by(InodeGroup::Flex2008));
        replica.allocator.set_goal(Some(blockyard_disk::InodeNr::new(8 * PER_GROUP + 1)));
        let parent = replica.create(Replica::ROOT, "parent", true).unwrap();
        replica.allocator.set_goal(None);
        group_of(replica.create(parent, "child", false).unwrap()) / 4
    };
    assert_eq!(place(8000, 8000), 1, "the one before");
    assert_eq!(place(8000, 100), 0, "the lowest that has room");
    assert_eq!(place(100, 100), 3, "the only one");
    // 11 per cent is enough.
    assert_eq!(place(100, BLOCKS * 11 / 100 + 1), 1);
}

#[test]
fn ext3_spreads_directories_of_the_root_and_keeps_the_others_with_their_parent() {
    let config = |seed| InodeConfig { seed, ..by(InodeGroup::OrlovExt3) };
    let tops = |seed| {
        let mut replica = replica(|_| EMPTY, config(seed));
        (0..10).map(|n| group_of(replica.create(Replica::ROOT, &format!("{n}"), true).unwrap())).collect()
    };
    let first: Vec<u32> = tops(1);
    let groups: BTreeSet<u32> = first.iter().copied().collect();
    assert_eq!(groups.len(), 10, "each its own group, flex groups or not: {first:?}");
    assert!(!groups.contains(&0), "group 0 has two directories and fewer inodes than the average");
    assert_eq!(first, tops(1));
    assert_ne!(first, tops(2), "where the first goes is chance");

    let mut replica = replica(|_| EMPTY, config(1));
    let parent = replica.create(Replica::ROOT, "parent", true).unwrap();
    let home = group_of(parent);
    let children: Vec<u32> =
        (0..12).map(|n| group_of(replica.create(parent, &format!("{n}"), true).unwrap())).collect();
    // A group takes another directory while it has fewer directories than the average (below one,
    // so 0) plus 128 / 16 = 8. So the home group takes the parent and seven children. The next
    // group takes the other five.
    assert_eq!(children, [vec![home; 7], vec![(home + 1) % GROUPS; 5]].concat());
    let files: Vec<u32> =
        (0..5).map(|n| group_of(replica.create(parent, &format!("f{n}"), false).unwrap())).collect();
    assert_eq!(files, [home; 5]);
}

#[test]
fn files_that_have_no_room_beside_their_directory_go_to_one_other_group() {
    let scene = |nr: u32| if nr == 5 { Group { free_inodes: 1, ..EMPTY } } else { EMPTY };
    let mut replica = replica(scene, by(InodeGroup::OrlovExt3));
    replica.allocator.set_goal(Some(blockyard_disk::InodeNr::new(5 * PER_GROUP + 1)));
    let parent = replica.create(Replica::ROOT, "parent", true).unwrap();
    replica.allocator.set_goal(None);
    let files: BTreeSet<u32> =
        (0..9).map(|n| group_of(replica.create(parent, &format!("{n}"), false).unwrap())).collect();
    // The probe starts at the parent's group plus the parent's inode number, and its first step is
    // one group.
    assert_eq!(files, BTreeSet::from([(5 + parent + 1) % GROUPS]));
}

#[test]
fn oldalloc_takes_the_group_with_most_free_blocks() {
    let scene = |nr: u32| Group {
        free_blocks: match nr {
            3 => 8100,
            9 | 12 => 8150,
            10 => 8190,
            _ => 7000,
        },
        // Group 10 has fewer free inodes than the average.
        free_inodes: if nr == 10 { 20 } else { PER_GROUP },
    };
    let mut replica = replica(scene, by(InodeGroup::OldAlloc));
    let made: Vec<u32> =
        (0..3).map(|n| group_of(replica.create(Replica::ROOT, &format!("{n}"), true).unwrap())).collect();
    assert_eq!(made, [9, 9, 9], "the lowest of equals; what a directory takes is not charged here");
    let file = replica.create(9 * PER_GROUP + 1, "file", false);
    assert_eq!(file.map(group_of).unwrap(), 9, "files stay with their directory");
}

/// ext2 passed over groups that got many directories and few files. ext3 also computed this debt,
/// but did not use it.
#[test]
fn a_debt_of_directories_is_paid_by_files() {
    let place = |debt, files: u32| {
        let switches = Switches { debt, ..Switches::default() };
        let mut replica = replica(|_| EMPTY, InodeConfig { switches, ..by(InodeGroup::OrlovExt3) });
        let parent = replica.create(Replica::ROOT, "parent", true).unwrap();
        let home = group_of(parent);
        for number in 0..files {
            replica.create(parent, &format!("f{number}"), false).unwrap();
        }
        let child = replica.create(parent, "child", true).unwrap();
        let grandchild = replica.create(parent, "second", true).unwrap();
        [child, grandchild].map(|inode| (group_of(inode) + GROUPS - home) % GROUPS)
    };
    // The bound is 128 / 64 = 2: a group that got two more directories than files is passed over.
    assert_eq!(place(true, 0), [0, 1], "parent and child");
    assert_eq!(place(true, 1), [0, 0], "a file has paid for one");
    assert_eq!(place(false, 0), [0, 0]);
}

/// The first Orlov allocator for flex groups counted directories in the wrong counter. So a flex
/// group never seemed to have too many directories.
#[test]
fn with_the_fault_of_2009_directories_are_not_counted() {
    let spread = |used_dirs_fault| {
        let switches = Switches { used_dirs_fault, ..Switches::default() };
        let mut replica = replica(|_| EMPTY, InodeConfig { switches, ..InodeConfig::default() });
        let parent = replica.create(Replica::ROOT, "parent", true).unwrap();
        let home = group_of(parent) / 4;
        (0..200)
            .take_while(|n| group_of(replica.create(parent, &format!("{n}"), true).unwrap()) / 4 == home)
            .count()
    };
    let now = spread(false);
    assert!((31..60).contains(&now), "128 * 4 / 16 and the average: {now}");
    assert_eq!(spread(true), 200, "never too many");
}
