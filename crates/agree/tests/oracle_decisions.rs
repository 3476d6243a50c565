//! Level 1 on the running kernel: every placement and every count is equal, on a sample of loads
//! and image kinds (all of them with `BLOCKYARD_FULL=1`).

#![allow(clippy::unwrap_used)]

use blockyard_agree::matrix::{Plan, run, table, total};

#[test]
fn every_recorded_decision_is_ours_too() {
    if !blockyard_testkit::require(&["root", "mke2fs", "dumpe2fs", "losetup"]) {
        return;
    }
    let full = blockyard_testkit::full_matrix();
    let scratch = tempfile::tempdir().unwrap();
    let plan = Plan {
        loads: Vec::new(),
        images: Vec::new(),
        seed: blockyard_testkit::seed(1),
        operations: if full { 300 } else { 40 },
        scratch: scratch.path().to_owned(),
        keep: None,
        every: if full { 1 } else { 19 },
    };
    let results = run(&plan, |_, _| (), |_| ()).unwrap();
    println!("{}", table(&results).markdown());
    let all = total(&results);
    assert!(all.requests > 100, "only {} requests were recorded", all.requests);
    let is_equal = all.first.is_none();
    let first = all.first.unwrap_or_default();
    assert_eq!(all.placements, all.requests, "{first}");
    let searches = [all.criteria, all.candidates, all.groups, all.decisions];
    assert_eq!(searches, [all.searches; 4], "{first}");
    assert!(is_equal && all.mb_groups && all.summary && all.stats, "{first}");
}
