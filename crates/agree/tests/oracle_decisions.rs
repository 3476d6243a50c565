//! Level 1 on the running kernel: everything that a replay compares is equal, on a sample of loads
//! and image kinds. With `BLOCKYARD_FULL=1`, every load runs on every image kind that it fits.

#![allow(clippy::unwrap_used)]

use blockyard_agree::matrix::{Plan, run, table, total};
use blockyard_agree::recording::Recording;
use blockyard_agree::replay::Agreement;

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
        aged: None,
        seed: blockyard_testkit::seed(1),
        operations: if full { 300 } else { 40 },
        scratch: scratch.path().to_owned(),
        keep: None,
        every: if full { 1 } else { 19 },
    };
    let results = run(&plan, |_, _| (), |_| ()).unwrap();
    println!("{}", table(&results).markdown());
    assert_all_equal(&results);
}

/// The kernel and our allocator begin with the fragmented free space of an aged image.
#[test]
fn decisions_on_aged_images_are_ours_too() {
    if !blockyard_testkit::require(&["root", "mke2fs", "dumpe2fs", "losetup"]) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    let plan = Plan {
        loads: names(&["untar", "fill", "fallocate2"]),
        images: names(&["small-groups", "1k-linear"]),
        aged: Some("mail:1500:80%".parse().unwrap()),
        seed: blockyard_testkit::seed(1),
        operations: 40,
        scratch: scratch.path().to_owned(),
        keep: Some(scratch.path().to_owned()),
        every: 1,
    };
    let results = run(&plan, |_, _| (), |_| ()).unwrap();
    let states: Vec<&str> = results.iter().map(|one| one.state.as_str()).collect();
    assert_eq!(states, ["fresh", "mail:1500:80%"].repeat(6));
    let table = table(&results);
    assert!(table.heads.iter().any(|head| head.ends_with("; mail:1500:80%")), "{:?}", table.heads);
    assert_all_equal(&results);
    // The aged image began with its free space in many more pieces than the fresh one.
    let pieces = |name: &str| -> usize {
        let file = std::fs::File::open(scratch.path().join(name)).unwrap();
        let recording = Recording::read(std::io::BufReader::new(file)).unwrap();
        recording.image.free.iter().map(Vec::len).sum()
    };
    let (fresh, aged) = (pieces("1k-linear.untar.jsonl"), pieces("1k-linear.untar.aged.jsonl"));
    assert!(aged > fresh + 50, "{fresh} {aged}");
}

fn assert_all_equal(results: &[Agreement]) {
    let all = total(results);
    assert!(all.requests > 100, "only {} requests were recorded", all.requests);
    let is_equal = all.first.is_none();
    let first = all.first.unwrap_or_default();
    assert_eq!(all.placements, all.requests, "{first}");
    let searches = [all.criteria, all.candidates, all.groups, all.decisions];
    assert_eq!(searches, [all.searches; 4], "{first}");
    assert!(is_equal && all.mb_groups && all.summary && all.stats, "{first}");
}
