//! `lab crash`: no workload loses anything at any cut, and each broken rule of durability is noticed by the same sample.

#![allow(clippy::unwrap_used)]

use blockyard_lab::crash::{self, Plan};
use blockyard_testkit::{coverage, full_matrix, require, seed};

/// States of the sample that runs every time.
const SAMPLE: usize = 800;

fn plan(states: usize, mutant: Option<String>) -> Plan {
    Plan {
        workloads: crash::names().map(|(name, _)| name.to_owned()).collect(),
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

#[test]
fn every_state_is_recovered_by_all_to_the_same() {
    if !require(&["root", "e2fsck", "losetup"]) {
        return;
    }
    let states = if full_matrix() { 10_000 } else { SAMPLE };
    let (rows, judges) = crash::run(&plan(states, None), |_, _| (), |row| println!("{row:?}")).unwrap();
    assert!(judges.are_complete(), "{:?}", judges.missing);
    assert!(rows.len() >= 8);
    for row in &rows {
        let failures: Vec<_> = row.failures.iter().take(3).collect();
        assert!(failures.is_empty(), "{} of {}: {failures:#?}", row.failures.len(), row.workload);
        assert!(row.in_recovery > 0 && row.facts > 0, "{row:?}");
    }
    let (distinct, in_windows) =
        rows.iter().fold((0, 0), |(all, inside), row| (all + row.distinct, inside + row.in_windows));
    assert_eq!(distinct, states);
    assert!(in_windows * 2 >= distinct, "{in_windows} of {distinct} inside a commit or checkpoint");
}

#[test]
fn each_broken_rule_is_noticed() {
    let mut unnoticed = Vec::new();
    for mutant in crash::mutants() {
        let (rows, _) = crash::run(&plan(SAMPLE, Some(mutant.clone())), |_, _| (), |_| ()).unwrap();
        let states: usize = rows.iter().map(|row| row.distinct).sum();
        match rows.iter().flat_map(|row| &row.failures).next() {
            Some(failure) => {
                println!("{mutant}: {states} states: {}: {}", failure.workload, failure.judge);
                assert!(rows.iter().all(|row| row.in_windows <= row.distinct), "{rows:?}");
            }
            None => unnoticed.push(mutant),
        }
    }
    assert!(unnoticed.is_empty(), "not noticed within {SAMPLE} states: {unnoticed:?}");
}

/// docs/testing.md says which workloads there are.
#[test]
fn the_workloads_are_told() {
    coverage::assert_images("oracle_lab_crash", crash::names().map(|(name, _)| (name, 1024)));
}

/// A state is asked for by its number; one that there is not is no success.
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
