//! `blockyard check -v`, whose counts equal those of `e2fsck -v` line for line, and `-tt`, which
//! prints what each pass read.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use blockyard_testkit::images::{
    MORE_PROFILES, PROFILES, Profile, RARE_PROFILES, make_filled, profile_named,
};
use blockyard_testkit::{full_matrix, require, run};
use serde_json::Value;

fn check(arguments: &[&str]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_blockyard")).arg("check").args(arguments).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

/// The lines from the count of inodes onwards.
fn counts(text: &str) -> Vec<String> {
    let lines = text.lines().skip_while(|line| !(line.contains(" inode") && line.contains(" used (")));
    lines.map(str::to_owned).collect()
}

fn assert_same_counts(image: &Path, name: &str) {
    let image = image.to_str().unwrap();
    let theirs = counts(&String::from_utf8(run("e2fsck", &["-fnv", image]).stdout).unwrap());
    assert!(theirs.len() >= 18, "{name}: e2fsck -fnv printed {theirs:?}");
    assert_eq!(counts(&check(&["-v", image]).1), theirs, "{name}");
}

fn profiles() -> Vec<&'static Profile> {
    if full_matrix() {
        return PROFILES.iter().chain(MORE_PROFILES).chain(RARE_PROFILES).collect();
    }
    ["ext4-1k", "ext3-1k", "inline", "bigalloc", "ea_inode", "orphan_file"].map(profile_named).to_vec()
}

#[test]
fn counts_are_those_of_e2fsck() {
    if !require(&["root", "mke2fs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for profile in profiles() {
        let image = make_filled(profile, folder.path());
        assert_same_counts(&image, profile.name);
        std::fs::remove_file(image).unwrap();
    }
}

/// After a repair the counts are those of the repaired image.
#[test]
fn a_repair_counts_what_it_leaves() {
    if !require(&["root", "mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = make_filled(profile_named("ext4-1k"), folder.path());
    let text = image.to_str().unwrap();
    run("debugfs", &["-w", "-R", "clri <13>", text]);
    let (code, printed) = check(&["-y", "-v", "--no-undo", text]);
    assert_eq!(code, 1, "{printed}");
    let theirs = String::from_utf8(run("e2fsck", &["-fnv", text]).stdout).unwrap();
    assert_eq!(counts(&printed), counts(&theirs));
}

#[test]
fn passes_say_what_they_read() {
    if !require(&["root", "mke2fs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = make_filled(profile_named("ext4-1k"), folder.path());
    let text = image.to_str().unwrap();
    let (code, printed) = check(&["-tt", text]);
    assert_eq!(code, 0);
    assert!(!check(&["-t", text]).1.contains("\nPass 1: "), "only the total");
    for pass in 1..=5 {
        assert!(printed.contains(&format!("\nPass {pass}: I/O read: ")), "{printed}");
    }
    let (code, printed) = check(&["--stats", "--json", text]);
    assert_eq!(code, 0);
    let rows: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let costs: Vec<&Value> = rows.iter().filter(|row| row["cost"] == true).collect();
    assert_eq!(costs.len(), 7, "{printed}");
    let sum = |key: &str| costs[..6].iter().map(|row| row[key].as_u64().unwrap()).sum::<u64>();
    for key in ["reads", "bytes", "seeks"] {
        assert_eq!(costs[6][key].as_u64(), Some(sum(key)), "{key}");
        assert!(costs[1][key].as_u64() > Some(0), "pass 1: {key}");
    }
    // No process needs less than 100,000 bytes of memory.
    assert!(costs.iter().all(|cost| cost["memory_bytes"].as_u64() > Some(100_000)), "{printed}");
    // A repair prints the figures of the check that came before it.
    let (code, printed) = check(&["-y", "-tt", "--no-undo", text]);
    assert!(code == 0 && printed.contains("\nPass 5: I/O read: "), "{code}: {printed}");
}
