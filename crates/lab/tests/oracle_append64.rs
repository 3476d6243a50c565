//! The published `append64` through real files: 64 writers on 200 GiB, each appending 4 KiB at a
//! time by fallocate.
//!
//! Extents are counted on the image, which e2fsck must find clean. The published figures are
//! 261,967 extents a file before the 17 allocator patches of Linux 6.17, and 570 to 588 after them;
//! the bounds here are 200,000 and 2,000. Files are scaled down, and the bounds with them.
//! `BLOCKYARD_FULL=1` gives files their full size of 1 GiB, except beside the kernel.

#![allow(clippy::unwrap_used)]

use blockyard_lab::run::{ImageSource, Plan, run};
use blockyard_lab::runner::Limit;
use blockyard_lab::workload::{GIB, Workload};
use blockyard_lab::{Interleave, Row};

fn append64(policy: &str, interleave: Interleave, scale: f64) -> Row {
    let plan = Plan {
        workload: Workload::by_name("append64", scale).unwrap(),
        policies: vec![policy.to_owned()],
        others: Vec::new(),
        workers: vec![64],
        cpus: None,
        interleave,
        image: ImageSource::memory(200 * GIB, 1),
        limit: Limit { time: None, ops_per_worker: None, fsync_end: false },
        repeat: 1,
        seed: 1,
        beside_kernel: false,
        dirty_limit: None,
        machine: None,
        aged: None,
        device: None,
        cache_bytes: None,
        requests: None,
        operations: None,
        journal: vec![false],
        rotational: false,
    };
    let mut outcome = run(&plan, |_, _| ()).unwrap();
    assert!(outcome.verdict.is_clean(), "{policy}: {}", outcome.verdict.text());
    assert_eq!(outcome.verdict.e2fsck_clean, Some(true), "{policy}: e2fsck looked at the image");
    let row = outcome.rows.remove(0);
    println!(
        "append64 x {scale}, {}, {policy}: {:.1} extents a file, {:.0} KiB each, score {:.0}",
        interleave.name(),
        row.extents_per_file,
        row.mean_extent_kb,
        row.score.unwrap()
    );
    row
}

/// Blocks of one file.
fn blocks(scale: f64) -> f64 {
    f64::from(u32::try_from(Workload::by_name("append64", scale).unwrap().file_size() / 4096).unwrap())
}

#[test]
fn writers_that_overlap_are_parted_by_the_series_and_by_ours() {
    if !blockyard_testkit::require(&["e2fsck"]) {
        return;
    }
    let scale = if blockyard_testkit::full_matrix() { 1.0 } else { 0.1 };
    let blocks = blocks(scale);
    for policy in ["linux-6.16", "linux-6.18"] {
        let row = append64(policy, Interleave::Lockstep, scale);
        assert!(row.extents_per_file >= 0.999 * blocks, "{policy}, lockstep: one extent a block: {row:?}");
    }
    // A file of full size has 262,144 blocks, and the bounds are 200,000 and 2,000 extents. They
    // are scaled with the number of blocks.
    let before = append64("linux-6.16", Interleave::Overlap, scale);
    assert!(before.extents_per_file > 200_000.0 / 262_144.0 * blocks, "{before:?}");
    assert!(before.score.unwrap() > 99.0, "{before:?}");
    let after = append64("linux-6.18", Interleave::Overlap, scale);
    assert!(after.extents_per_file <= 2000.0 / 262_144.0 * blocks, "{after:?}");
    assert!(after.score.unwrap() <= 2.0, "{after:?}");
    let ours = append64("yard", Interleave::Overlap, scale);
    assert!(ours.extents_per_file <= after.extents_per_file, "{ours:?}");
}

/// Which patches of the series make the writers use different groups: patch 5 (several stream
/// goals) and patch 1 (skip busy groups) together. Neither does so alone.
#[test]
fn two_patches_together_part_the_writers() {
    if !blockyard_testkit::require(&["e2fsck"]) {
        return;
    }
    let scale = if blockyard_testkit::full_matrix() { 1.0 } else { 0.02 };
    let blocks = blocks(scale);
    let extents = |policy: &str| append64(policy, Interleave::Overlap, scale).extents_per_file;
    let parted = 2000.0 / 262_144.0 * blocks;
    assert!(extents("linux-6.16:busy=skip:slots=hashed") <= parted, "both");
    assert!(extents("linux-6.16:slots=hashed") >= 0.999 * blocks, "5 alone");
    assert!(extents("linux-6.18:busy=wait") >= 0.999 * blocks, "all but 1");
    // In the model of pure allocation, leaving out patch 5 gives one extent a block. Through real
    // files, blocks of extent trees are allocated between the requests, and there are fewer
    // extents: 153,483 for 262,144 blocks at full size.
    assert!(extents("linux-6.18:slots=one") >= 0.5 * blocks, "all but 5");
    // Patch 1 alone lets writers pass over a busy group to the next group of an index. That helps,
    // but most files still have far more extents than with both patches.
    assert!(extents("linux-6.16:busy=skip") > 2.0 * parted, "1 alone");
}

/// In lockstep, without overlap, both presets interleave the files block by block. The running
/// kernel does the same.
#[test]
fn in_turn_the_kernel_gives_one_extent_a_block() {
    if !blockyard_testkit::require(&["root", "mke2fs", "e2fsck"]) {
        return;
    }
    let scale = 0.002;
    let plan = Plan {
        workload: Workload::by_name("append64", scale).unwrap(),
        policies: vec!["linux-6.16".to_owned(), "linux-6.18".to_owned()],
        others: Vec::new(),
        workers: vec![64],
        cpus: None,
        interleave: Interleave::Lockstep,
        image: ImageSource::memory(4 * GIB, 1),
        limit: Limit { time: None, ops_per_worker: None, fsync_end: false },
        repeat: 1,
        seed: 1,
        beside_kernel: true,
        dirty_limit: None,
        machine: None,
        aged: None,
        device: None,
        cache_bytes: None,
        requests: None,
        operations: None,
        journal: vec![false],
        rotational: false,
    };
    let outcome = run(&plan, |_, _| ()).unwrap();
    assert_eq!(outcome.rows.len(), 3);
    for row in &outcome.rows {
        println!("append64 x {scale}, lockstep, {}: {:.1} extents a file", row.policy, row.extents_per_file);
        assert!(row.extents_per_file >= 0.99 * blocks(scale), "{row:?}");
    }
}
