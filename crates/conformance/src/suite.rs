//! The checks that need only one thread.

use blockyard_alloc::{AllocConfig, AllocError, Allocator, BlockRequest, InodeAlloc, Policy, RequestFlags};
use blockyard_disk::{GroupNr, InodeNr, LogicalBlock};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::bench::{Ask, Bench, FILES, Kind, with_bench};
use crate::shapes::{CPUS, SHAPES};

#[derive(Clone, Debug)]
enum Operation {
    Ask(Ask),
    End { choice: usize, keep: bool },
    Free { file: usize, choice: usize, half: bool, journal: bool },
    Commit,
    Discard(usize),
    Evict,
    ToggleScan,
}

fn ask() -> impl Strategy<Value = Ask> {
    let kind = prop_oneof![
        8 => Just(Kind::Append),
        1 => Just(Kind::AppendClosed),
        2 => Just(Kind::Exact),
        1 => Just(Kind::Directory),
        1 => Just(Kind::Metadata),
        1 => Just(Kind::Indirect),
    ];
    let clusters = prop_oneof![3 => 1..9u32, 2 => 9..70u32, 1 => 70..400u32];
    (0..FILES, clusters, kind, 0..CPUS, any::<u32>(), prop::bool::weighted(0.1)).prop_map(
        |(file, clusters, kind, cpu, goal, gap)| Ask {
            file,
            clusters,
            kind,
            cpu,
            goal: u64::from(goal),
            gap,
        },
    )
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let operation = prop_oneof![
        12 => ask().prop_map(Operation::Ask),
        12 => (any::<usize>(), prop::bool::weighted(0.9))
            .prop_map(|(choice, keep)| Operation::End { choice, keep }),
        6 => (0..FILES, any::<usize>(), any::<bool>(), prop::bool::weighted(0.8))
            .prop_map(|(file, choice, half, journal)| Operation::Free { file, choice, half, journal }),
        2 => Just(Operation::Commit),
        1 => (0..FILES).prop_map(Operation::Discard),
        1 => Just(Operation::Evict),
        1 => Just(Operation::ToggleScan),
    ];
    prop::collection::vec(operation, 1..250)
}

fn apply(bench: &mut Bench<'_>, operations: &[Operation]) {
    for operation in operations {
        match operation {
            Operation::Ask(ask) => {
                bench.ask(ask);
            }
            Operation::End { choice, keep } => bench.end_claim(*choice, *keep),
            Operation::Free { file, choice, half, journal } => bench.free(*file, *choice, *half, *journal),
            Operation::Commit => bench.commit_step(),
            Operation::Discard(file) => bench.discard(*file),
            Operation::Evict => bench.evict(),
            Operation::ToggleScan => bench.toggle_scan(),
        }
    }
    bench.check_counts();
}

fn runner(cases: u32) -> TestRunner {
    let cases = if blockyard_testkit::full_matrix() { cases * 10 } else { cases };
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 2000, ..Config::default() };
    let seed = blockyard_testkit::seed(0x0b10_c4a8).to_le_bytes();
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed);
    let random = proptest::test_runner::TestRng::from_seed(config.rng_algorithm, &bytes);
    TestRunner::new_with_rng(config, random)
}

/// Makes random requests, claims, frees and commits, and compares the answers with a model that
/// knows the owner of every cluster. Then allocates every cluster and frees everything.
///
/// # Panics
/// When the property does not hold.
pub fn clusters_have_one_owner_and_no_space_is_true(policy: Policy) {
    let result = runner(96).run(&(0..SHAPES.len(), operations()), |(shape, operations)| {
        with_bench(&SHAPES[shape], policy, |bench| {
            apply(bench, &operations);
            bench.settle();
        });
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{policy}: {failure}"));
}

/// Two runs of the same operations allocate the same clusters.
///
/// # Panics
/// When the property does not hold.
pub fn the_same_requests_get_the_same_answers(policy: Policy) {
    let result = runner(24).run(&(0..SHAPES.len(), operations()), |(shape, operations)| {
        let [one, two] = [(); 2].map(|()| {
            with_bench(&SHAPES[shape], policy, |bench| {
                apply(bench, &operations);
                bench.answers.clone()
            })
        });
        prop_assert_eq!(one, two);
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{policy}: {failure}"));
}

/// Ordinary requests leave two reserves free: root's and the file system's. Root's requests leave
/// only the file system's reserve free. Requests with `USE_RESERVED` can take every cluster.
///
/// # Panics
/// When the property does not hold.
pub fn reserves_are_kept(policy: Policy) {
    for shape in &SHAPES {
        let disk = shape.disk();
        let config = AllocConfig { reserved: Some(50), root_reserved: 70, ..shape.config(policy) };
        let allocator: Allocator = Allocator::open(&config, disk.clone(), &disk.facts()).unwrap();
        let inode = InodeAlloc::new();
        let mut logical = 0;
        let fills =
            [(RequestFlags::empty(), 120), (RequestFlags::USE_ROOT, 50), (RequestFlags::USE_RESERVED, 0)];
        for (more, left) in fills {
            loop {
                let request = BlockRequest {
                    flags: RequestFlags::DATA | RequestFlags::NO_NORMALIZE | more,
                    ..BlockRequest::data(InodeNr::new(12), GroupNr::ZERO, LogicalBlock::new(logical), 33)
                };
                match allocator.allocate(&request, &inode) {
                    Ok(claim) => logical += disk.commit(claim).count << config.geometry.cluster_ratio_bits(),
                    Err(AllocError::NoSpace(_)) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            assert_eq!(allocator.free_clusters().free, left, "{policy}: {more:?} on {shape:?}");
        }
    }
}

/// When only one cluster is free, a request for data, metadata or directory blocks finds it, in the
/// first, the last or another group. A second request gets "no space". Each request is for eight
/// clusters of an inode in group 0, without a goal.
///
/// # Panics
/// When the property does not hold.
pub fn the_last_cluster_is_found(policy: Policy) {
    for shape in &SHAPES {
        let geometry = shape.geometry();
        let groups = geometry.groups();
        for (group, at) in [(0, 9), (1, 90), (groups - 1, 29), (groups / 2, 63)] {
            let disk = shape.disk();
            for nr in geometry.all_groups() {
                disk.write(nr, 0, geometry.clusters_in_group(nr), true);
            }
            disk.write(GroupNr::new(group), at, 1, false);
            for flags in [RequestFlags::DATA, RequestFlags::METADATA, RequestFlags::DIRECTORY] {
                let allocator: Allocator =
                    Allocator::open(&shape.config(policy), disk.clone(), &disk.facts()).unwrap();
                let inode = InodeAlloc::new();
                let request = BlockRequest {
                    flags,
                    ..BlockRequest::data(InodeNr::new(12), GroupNr::ZERO, LogicalBlock::ZERO, 8)
                };
                let claim = allocator.allocate(&request, &inode).unwrap();
                assert_eq!((claim.group().raw(), claim.offset().raw(), claim.clusters()), (group, at, 1));
                assert!(matches!(allocator.allocate(&request, &inode), Err(AllocError::NoSpace(_))));
                claim.release();
                assert_eq!(allocator.free_clusters().free, 1);
            }
        }
    }
}
