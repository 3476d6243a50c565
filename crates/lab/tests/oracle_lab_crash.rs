//! `lab crash` on a seeded sample of crash states: no workload loses anything that was promised to
//! it, and the judges notice each rule of durability that is broken on purpose.

#![allow(clippy::unwrap_used)]

use blockyard_lab::crash::{self, Plan};
use blockyard_testkit::{coverage, full_matrix, require, seed};

/// States in the sample of a run without the full matrix, over all workloads. Each state takes four
/// runs of e2fsck and a mount. On blocks of 64 KiB, it takes three runs and no mount.
const SAMPLE: usize = 320;

/// States in the sample of one workload on blocks of 64 KiB, whose images are large.
const SAMPLE_OF_LARGE: usize = 4;

/// Number of states within which each broken rule has to be noticed.
const SAMPLE_OF_RULES: usize = 800;

/// Block sizes that workloads run on.
const BLOCKS: [u32; 3] = [1024, 4096, 65_536];

fn workloads() -> Vec<String> {
    crash::names().map(|(name, _)| name.to_owned()).collect()
}

fn plan(states: usize, mutant: Option<String>) -> Plan {
    Plan {
        workloads: workloads(),
        block_sizes: vec![1024],
        states,
        seed: seed(1),
        stop_at_first: mutant.is_some(),
        mutant,
        jobs: 2,
        recovery_cuts: 8,
        only: None,
        keep: None,
        ours_only: false,
        scratch: None,
    }
}

/// With the full matrix, all workloads on all block sizes; otherwise each workload on one size,
/// which depends on the seed.
fn plans() -> Vec<Plan> {
    if full_matrix() {
        return vec![Plan { block_sizes: BLOCKS.to_vec(), ..plan(30_000, None) }];
    }
    let turn = |place: u64| {
        let first = usize::try_from((seed(1) % 3 + place) % 3).unwrap();
        workloads().into_iter().skip(first).step_by(BLOCKS.len()).collect::<Vec<_>>()
    };
    let [one, four, large] = [0, 1, 2].map(turn);
    let of_large = SAMPLE_OF_LARGE * large.len();
    let each = [(one, SAMPLE / 2), (four, SAMPLE / 2 - of_large), (large, of_large)];
    let plan = |(size, (workloads, states))| {
        // One in this many states also has a power cut during its recovery. The share is larger
        // where there are few states.
        let recovery_cuts = if size == BLOCKS[2] { 3 } else { 8 };
        Plan { workloads, block_sizes: vec![size], recovery_cuts, ..plan(states, None) }
    };
    BLOCKS.into_iter().zip(each).map(plan).collect()
}

#[test]
fn every_state_is_recovered_by_all_to_the_same() {
    if !require(&["root", "e2fsck", "losetup"]) {
        return;
    }
    let (mut wanted, mut distinct, mut in_windows, mut tried) = (0, 0, 0, 0);
    for plan in plans() {
        let (rows, judges) = crash::run(&plan, |_, _| (), |row| println!("{row:?}")).unwrap();
        assert!(judges.are_complete(), "{:?}", judges.missing);
        for row in &rows {
            let failures: Vec<_> = row.failures.iter().take(3).collect();
            assert!(failures.is_empty(), "{} of {}: {failures:#?}", row.failures.len(), row.workload);
            assert!(row.in_recovery > 0 && row.facts > 0, "{row:?}");
            coverage::assert_done("oracle_lab_crash", &[&row.workload], row.operations.iter().copied());
        }
        wanted += plan.states;
        tried += rows.len();
        distinct += rows.iter().map(|row| row.distinct).sum::<usize>();
        in_windows += rows.iter().map(|row| row.in_windows).sum::<usize>();
    }
    assert!(tried >= workloads().len(), "{tried} of {}", workloads().len());
    assert_eq!(distinct, wanted);
    assert!(in_windows * 2 >= distinct, "{in_windows} of {distinct} inside a commit or checkpoint");
}

#[test]
fn each_broken_rule_is_noticed() {
    let mut unnoticed = Vec::new();
    for mutant in crash::mutants() {
        // Our own judges are enough to notice each broken rule, and start no process. With the full
        // matrix the other judges run too.
        let plan = Plan { ours_only: !full_matrix(), ..plan(SAMPLE_OF_RULES, Some(mutant.clone())) };
        let (rows, _) = crash::run(&plan, |_, _| (), |_| ()).unwrap();
        let states: usize = rows.iter().map(|row| row.distinct).sum();
        match rows.iter().flat_map(|row| &row.failures).next() {
            Some(failure) => {
                println!("{mutant}: {states} states: {}: {}", failure.workload, failure.judge);
                assert!(rows.iter().all(|row| row.in_windows <= row.distinct), "{rows:?}");
            }
            None => unnoticed.push(mutant),
        }
    }
    assert!(unnoticed.is_empty(), "not noticed within {SAMPLE_OF_RULES} states: {unnoticed:?}");
}

/// The table in docs/testing.md names these workloads and block sizes.
#[test]
fn the_workloads_are_told() {
    let each = crash::names().flat_map(|(name, _)| BLOCKS.map(|block| (name, u64::from(block))));
    coverage::assert_images("oracle_lab_crash", each);
}

/// `only` chooses a state by its number; an unknown number is an error.
#[test]
fn a_state_has_a_number() {
    let of = |only| {
        let plan =
            Plan { workloads: vec!["append".to_owned()], only: Some(only), ours_only: true, ..plan(1, None) };
        crash::run(&plan, |_, _| (), |_| ())
    };
    assert_eq!(of(3).unwrap().0[0].distinct, 1);
    let error = format!("{:#}", of(usize::MAX).unwrap_err());
    assert!(error.contains("the states are 0 to "), "{error}");
}
