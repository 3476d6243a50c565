//! A cell (one policy with one workload on one image) is repeatable. With the same seed, all runs
//! in lockstep leave the same image to the byte, on one core and on two. All runs in overlap also
//! leave the same image, but not the one that lockstep leaves.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

const RUNS: usize = 20;

fn blockyard(prefix: &[&str], arguments: &[&str]) {
    let program = env!("CARGO_BIN_EXE_blockyard");
    let mut all = prefix.to_vec();
    all.push(program);
    all.extend(arguments);
    let output = Command::new(all[0]).args(&all[1..]).output().unwrap();
    assert!(output.status.success(), "{all:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Runs one cell in place on a copy of `base`, and returns the bytes of the image afterwards.
fn cell(base: &Path, cores: &str, workload: &str, interleave: &str, seed: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    std::fs::copy(base, &image).unwrap();
    blockyard(
        &["taskset", "-c", cores],
        &[
            "lab",
            "run",
            workload,
            "--image",
            image.to_str().unwrap(),
            "--in-place",
            "--quiet",
            "--policy",
            "linux-6.18",
            "--workers",
            "8",
            "--scale",
            "0.001",
            "--ops",
            "150",
            "--seed",
            seed,
            "--interleave",
            interleave,
        ],
    );
    std::fs::read(image).unwrap()
}

#[test]
fn the_same_seed_leaves_the_same_bytes_on_one_core_and_on_two() {
    if !blockyard_testkit::require(&["taskset", "e2fsck"]) {
        return;
    }
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        println!("SKIPPED-ORACLE: a second core");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().join("base");
    blockyard(
        &[],
        &["mkfs", base.to_str().unwrap(), "32M", "--seed", "9", "--time", "1700000000", "--quiet"],
    );
    for interleave in ["lockstep", "overlap"] {
        for workload in ["append64", "fallocate2", "smallfiles:fallocate=none"] {
            let first = cell(&base, "0", workload, interleave, "3");
            assert_ne!(
                first,
                std::fs::read(&base).unwrap(),
                "{workload}, {interleave}: something was written"
            );
            for run in 1..RUNS {
                let cores = if run % 2 == 0 { "0" } else { "0,1" };
                let again = cell(&base, cores, workload, interleave, "3");
                assert!(again == first, "{workload}, {interleave}: run {run} on cores {cores} differs");
            }
            let left = folder.path().join("left");
            std::fs::write(&left, &first).unwrap();
            blockyard_testkit::e2fsck_clean(&left);
        }
    }
    let of = |interleave| cell(&base, "0", "append64", interleave, "3");
    assert!(of("lockstep") != of("overlap"), "the two ways to take turns leave different images");
}
