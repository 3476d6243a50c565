//! Published experiments at a tenth of their size, compared with published outcomes.

#![allow(clippy::unwrap_used)]

use std::process::Command;

use serde_json::Value;

/// The rows that `blockyard lab run` prints as JSON.
fn rows(arguments: &str) -> Vec<Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_blockyard"))
        .args(["lab", "run"])
        .args(arguments.split(' '))
        .args(["--scale", "0.1", "--json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// A figure of an operation: without bigalloc, and for clusters of 64 KiB, 256 KiB and 1 MiB.
fn by_cluster(rows: &[Value], op: &str, key: &str) -> [f64; 4] {
    let figures: Vec<f64> =
        rows.iter().filter(|row| row["op"] == op).map(|row| row[key].as_f64().unwrap()).collect();
    figures.try_into().expect("a row for each size of clusters")
}

/// Asserts that from each cluster size to the next the figures fall by at least these factors. A
/// factor of 1 allows equal figures, and a factor below 1 allows a rise.
fn assert_falls(figures: [f64; 4], factors: [f64; 3]) {
    for (pair, factor) in figures.windows(2).zip(factors) {
        assert!(pair[0] >= factor * pair[1], "{figures:?} do not fall by {factors:?}");
    }
}

#[test]
fn clusters_spare_metadata_reads_and_time() {
    let rows = rows("e3");
    assert_falls(by_cluster(&rows, "fallocate", "meta_reads_mean"), [20.0, 3.0, 3.0]);
    assert_falls(by_cluster(&rows, "truncate", "meta_reads_mean"), [2.0, 1.5, 1.0]);
    assert_falls(by_cluster(&rows, "truncate", "meta_reads_max"), [1.0, 1.0, 1.0]);
    // The last step is a rise, from 35 calls to 38.
    assert_falls(by_cluster(&rows, "write", "share_over_100ms"), [2.0, 1.0, 0.9]);
    let fallocate = by_cluster(&rows, "fallocate", "mean_us");
    let truncate = by_cluster(&rows, "truncate", "mean_us");
    assert!(fallocate[0] >= 10.0 * fallocate[1] && fallocate[0] >= 50.0 * fallocate[3], "{fallocate:?}");
    assert!(truncate[0] >= 1.5 * truncate[1], "{truncate:?}");
}

#[test]
fn round_robin_moves_on_where_the_regular_policy_returns() {
    let rows = rows("copy");
    let figure = |policy: &str, copy: u64, key: &str| {
        let row = rows.iter().find(|row| row["policy"] == policy && row["copy"] == copy).unwrap();
        row[key].as_f64().unwrap()
    };
    let both = |copy, key| ["linux-6.18", "rralloc-v2"].map(|policy| figure(policy, copy, key));
    for copy in [2, 3] {
        let [regular, round_robin] = both(copy, "overlap_previous");
        assert!(regular > 2.0 * round_robin, "copy {copy}: overlaps {regular} and {round_robin}");
        let [regular, round_robin] = both(copy, "boundaries");
        assert!(round_robin > 1.5 * regular, "copy {copy}: boundaries {regular} and {round_robin}");
        let [regular, round_robin] = both(copy, "empty_groups");
        assert!(regular > round_robin, "copy {copy}: empty groups {regular} and {round_robin}");
    }
}

/// Preallocated files are written at the same rate under both policies. Files that are not
/// preallocated have far fewer extents under round robin.
#[test]
fn preallocation_hides_what_round_robin_changes() {
    let rows = rows("e2 --device ssd --policy linux-6.18:scan=optimized,rralloc-v2");
    let both = |job: &str, key: &str| {
        ["linux-6.18:scan=optimized", "rralloc-v2"].map(|policy| {
            let row = rows.iter().find(|row| row["workload"] == job && row["policy"] == policy).unwrap();
            row[key].as_f64().unwrap()
        })
    };
    for job in ["seqwrite", "smallfiles", "allocstress"] {
        let [regular, round_robin] = both(job, "ops_per_s");
        let ratio = round_robin / regular;
        assert!((0.99..=1.01).contains(&ratio), "{job}: {regular} and {round_robin} operations a second");
    }
    for job in ["seqwrite:fallocate=none", "smallfiles:fallocate=none", "directappend"] {
        let [regular, round_robin] = both(job, "extents_per_file");
        assert!(regular > 5.0 * round_robin, "{job}: {regular} and {round_robin} extents a file");
    }
}
