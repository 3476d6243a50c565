//! Tests the example of a policy written outside `alloc` (`examples/own_policy.rs`): it meets the
//! requirements that every policy must meet, and the lab runs it.

#![allow(clippy::unwrap_used, dead_code, reason = "a test binary; the example's main is not called")]

#[path = "../examples/own_policy.rs"]
mod own_policy;

use blockyard_lab::run::{Plan, run};
use blockyard_lab::workload::Workload;

#[test]
fn it_keeps_to_what_every_policy_must() {
    blockyard_conformance::keeps_to_all(own_policy::policy());
}

#[test]
fn the_lab_runs_it_as_an_arm_with_overrides() {
    let workload = Workload::by_name("fallocate2", 1.0).unwrap();
    let arms = ["linux-6.18", "two-choices", "two-choices:search=ladder"];
    let plan = Plan {
        others: vec![own_policy::policy()],
        workers: vec![8],
        image: blockyard_lab::run::ImageSource::memory(8 << 30, 1),
        ..Plan::new(workload, &arms)
    };
    let outcome = run(&plan, |_, _| ()).unwrap();
    assert!(outcome.verdict.is_clean());
    let groups: Vec<u64> = outcome.rows.iter().map(|row| row.groups_touched).collect();
    assert!(groups[1] > groups[0], "it spreads files: {groups:?}");
    assert_eq!(groups[2], groups[0], "without the code it is what it began with");
    let unknown = Plan { others: Vec::new(), ..plan };
    assert!(unknown.check_words().unwrap_err().to_string().contains("two-choices"));
}
