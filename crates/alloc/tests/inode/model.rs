//! Random operations against a model: the inode numbers in use and, for each group, the highest
//! number ever used.
//!
//! - No number that is in use or claimed is handed out.
//! - "No inodes" is reported only when there is none (except under `flex-2008`).
//! - Bitmaps and descriptors say what was committed, whatever claims are open.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use blockyard_alloc::inode::{
    ClusterCounts, InodeAllocator, InodeClaim, InodeConfig, InodeDirAlloc, InodeError, InodeGroup,
    InodeGroupFacts, InodeRequest, InodeUpdate, Switches,
};
use blockyard_disk::geometry::GeometryFields;
use blockyard_disk::{BlockCount, BlockNr, Geometry, GroupNr, InodeNr};
use blockyard_sync::CpuSlot;
use proptest::prelude::*;

use crate::replica::MemoryInodes;

const GROUPS: u32 = 11;
const PER_GROUP: u32 = 24;

#[derive(Clone, Debug)]
enum Operation {
    /// Claim an inode for a child of an existing directory. `parent` selects the directory.
    Claim { parent: usize, directory: bool, top: bool, goal: Option<u32>, slot: u32 },
    /// Commit an open claim.
    Commit(usize),
    /// Release an open claim.
    Release(usize),
    /// Free an inode in use.
    Free(usize),
    /// Evict a group's bitmap.
    Evict(u32),
}

fn operation() -> impl Strategy<Value = Operation> {
    let claim =
        (any::<usize>(), any::<bool>(), any::<bool>(), proptest::option::weighted(0.1, 1..300u32), 0..3u32);
    prop_oneof![
        6 => claim.prop_map(|(parent, directory, top, goal, slot)| {
            Operation::Claim { parent, directory, top, goal, slot }
        }),
        5 => any::<usize>().prop_map(Operation::Commit),
        1 => any::<usize>().prop_map(Operation::Release),
        1 => any::<usize>().prop_map(Operation::Free),
        1 => (0..GROUPS).prop_map(Operation::Evict),
    ]
}

/// The switches, each on or off. `used_dirs_fault` stays off: with it, counts are wrong on purpose.
fn switches() -> impl Strategy<Value = Switches> {
    any::<[bool; 5]>().prop_map(
        |[random_start, max_dirs_by_group, min_clusters_wrap, average_in_blocks, debt]| Switches {
            random_start,
            max_dirs_by_group,
            min_clusters_wrap,
            average_in_blocks,
            debt,
            ..Switches::default()
        },
    )
}

/// The inodes in use, by number, and whether each is a directory. `prefix` is, for each group, one
/// more than the highest index ever used.
struct Model {
    used: BTreeMap<u32, bool>,
    prefix: Vec<u32>,
}

impl Model {
    fn check(&self, update: &InodeUpdate) {
        let group = update.group.raw();
        let first = group * PER_GROUP + 1;
        let inside = self.used.range(first..first + PER_GROUP);
        let (count, directories) =
            inside.fold((0, 0), |(count, dirs), (_, &is_dir)| (count + 1, dirs + u32::from(is_dir)));
        assert_eq!(update.free_inodes, PER_GROUP - count, "{update:?}");
        assert_eq!(update.used_dirs, directories, "{update:?}");
        assert_eq!(update.itable_unused, PER_GROUP - self.prefix[group as usize], "{update:?}");
    }

    fn directory(&self, choice: usize) -> u32 {
        let directories: Vec<u32> =
            self.used.iter().filter(|(_, is_dir)| **is_dir).map(|(&i, _)| i).collect();
        directories[choice % directories.len()]
    }
}

fn geometry(flex_bits: u32) -> Geometry {
    Geometry::new(GeometryFields {
        block_bits: 10,
        cluster_ratio_bits: 0,
        blocks_count: BlockCount::new(u64::from(GROUPS) * 64 - 20),
        first_data_block: BlockNr::new(1),
        clusters_per_group: 64,
        inodes_per_group: PER_GROUP,
        inode_size: 256,
        flex_bits,
    })
    .unwrap()
}

fn facts() -> Vec<InodeGroupFacts> {
    (0..GROUPS)
        .map(|group| match group {
            0 => InodeGroupFacts { free_inodes: 13, used_dirs: 2, itable_unused: 13, inode_uninit: false },
            _ => InodeGroupFacts {
                free_inodes: PER_GROUP,
                itable_unused: PER_GROUP,
                inode_uninit: true,
                used_dirs: 0,
            },
        })
        .collect()
}

/// The allocator, the open claims, and the model with which the allocator must agree.
struct World<'a> {
    allocator: &'a InodeAllocator,
    disk: &'a MemoryInodes,
    model: Model,
    memory: BTreeMap<u32, InodeDirAlloc>,
    open: Vec<(InodeClaim<'a>, bool)>,
    /// Whether the placement may miss free inodes, as ext4 did in 2008.
    may_overlook: bool,
}

impl World<'_> {
    fn apply(&mut self, operation: &Operation) {
        match *operation {
            Operation::Claim { parent, directory, top, goal, slot } => {
                let parent = self.model.directory(parent);
                self.claim(&InodeRequest {
                    parent: InodeNr::new(parent),
                    parent_is_top: top,
                    directory,
                    name_hash: top.then_some(parent),
                    goal: goal.map(InodeNr::new),
                    slot: CpuSlot::new(slot),
                    now: 0,
                });
            }
            Operation::Commit(choice) if !self.open.is_empty() => self.commit(choice % self.open.len()),
            Operation::Release(choice) if !self.open.is_empty() => {
                self.open.swap_remove(choice % self.open.len()).0.release();
            }
            Operation::Free(choice) if self.model.used.len() > 11 => {
                let choice = 11 + choice % (self.model.used.len() - 11);
                let inode = *self.model.used.keys().nth(choice).unwrap();
                self.free(inode);
            }
            Operation::Evict(group) => {
                let pinned = self.open.iter().any(|(claim, _)| claim.group() == GroupNr::new(group));
                let evicted = self.allocator.evict(GroupNr::new(group), CpuSlot::ZERO);
                assert!(!(pinned && evicted), "a pinned group was evicted");
            }
            _ => {}
        }
    }

    fn claim(&mut self, request: &InodeRequest) {
        let memory = self.memory.entry(request.parent.raw()).or_default();
        match self.allocator.allocate(request, memory) {
            Ok(claim) => {
                let inode = claim.inode();
                assert!(!self.model.used.contains_key(&inode.raw()), "{inode} is in use");
                assert!(self.open.iter().all(|(other, _)| other.inode() != inode), "{inode} is claimed");
                self.open.push((claim, request.directory));
            }
            Err(error) => {
                assert!(matches!(error, InodeError::NoInodes), "{error}");
                assert!(
                    self.may_overlook || self.taken() == u64::from(GROUPS * PER_GROUP),
                    "no inodes, but {} taken",
                    self.taken()
                );
            }
        }
    }

    fn commit(&mut self, choice: usize) {
        let (claim, directory) = self.open.swap_remove(choice);
        claim.commit(|update| {
            self.model.used.insert(update.inode.raw(), directory);
            let prefix = &mut self.model.prefix[update.group.raw() as usize];
            assert_eq!(update.first_use, update.index >= *prefix);
            *prefix = (*prefix).max(update.index + 1);
            self.model.check(update);
            self.disk.write(update);
        });
    }

    fn free(&mut self, inode: u32) {
        let directory = self.model.used.remove(&inode).unwrap();
        let inode = InodeNr::new(inode);
        let written = self.allocator.free(inode, directory, CpuSlot::ZERO, |update| {
            self.model.check(update);
            self.disk.write(update);
        });
        written.unwrap();
        let again = self.allocator.free(inode, directory, CpuSlot::ZERO, |_| ());
        assert!(matches!(again, Err(InodeError::Corrupt(found)) if found.at.inode == Some(inode)));
    }

    fn taken(&self) -> u64 {
        (self.model.used.len() + self.open.len()) as u64
    }
}

fn run(flex_bits: u32, placement: InodeGroup, switches: Switches, operations: &[Operation]) {
    let config = InodeConfig { placement, switches, cpus: 3, ..InodeConfig::default() };
    let (allocator, disk) = fresh(flex_bits, config);
    let mut prefix = vec![0; GROUPS as usize];
    prefix[0] = 11;
    let used = (1..=11).map(|inode| (inode, inode == 2 || inode == 11)).collect();
    let mut world = World {
        allocator: &allocator,
        disk: &disk,
        model: Model { used, prefix },
        memory: BTreeMap::new(),
        open: Vec::new(),
        may_overlook: placement == InodeGroup::Flex2008,
    };
    for operation in operations {
        world.apply(operation);
        assert_eq!(allocator.free_total(), u64::from(GROUPS * PER_GROUP) - world.taken());
    }
}

fn fresh(flex_bits: u32, config: InodeConfig) -> (InodeAllocator, Arc<MemoryInodes>) {
    let facts = facts();
    let disk = Arc::new(MemoryInodes::fresh(PER_GROUP, &facts));
    let clusters: ClusterCounts =
        ClusterCounts::new(&geometry(flex_bits), &vec![30; GROUPS as usize], config.cpus);
    let source = Arc::clone(&disk) as _;
    let allocator =
        InodeAllocator::new(geometry(flex_bits), config, &facts, Arc::new(clusters), source).unwrap();
    (allocator, disk)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn numbers_are_given_once(
        flex_bits in 0..4u32,
        placement in proptest::sample::select(InodeGroup::ALL),
        switches in switches(),
        operations in proptest::collection::vec(operation(), 1..900),
    ) {
        run(flex_bits, placement, switches, &operations);
    }
}

#[test]
fn threads_share_the_last_inodes_without_a_collision() {
    let (allocator, disk) = fresh(2, InodeConfig { cpus: 4, ..InodeConfig::default() });
    let given = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for slot in 0..4 {
            let (allocator, disk, given) = (&allocator, &disk, &given);
            scope.spawn(move || {
                let request = InodeRequest {
                    parent: InodeNr::ROOT,
                    parent_is_top: false,
                    directory: slot % 2 == 0,
                    name_hash: None,
                    goal: None,
                    slot: CpuSlot::new(slot),
                    now: 0,
                };
                let mut memory = InodeDirAlloc::default();
                while let Ok(claim) = allocator.allocate(&request, &mut memory) {
                    let inode = claim.commit(|update| {
                        disk.write(update);
                        update.inode
                    });
                    assert!(given.lock().unwrap().insert(inode, slot).is_none());
                }
            });
        }
    });
    assert_eq!(given.into_inner().unwrap().len(), (GROUPS * PER_GROUP - 11) as usize);
    assert_eq!(allocator.free_total(), 0);
}
