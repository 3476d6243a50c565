//! Corrections that the user declines are not made, and a file system that keeps errors is not
//! marked clean. A damaged undo file changes nothing, and neither does a plan for a device without
//! a file system.

#![allow(clippy::unwrap_used)]

mod support;

use blockyard_check::{Code, RepairOptions, UndoError, is_marked_clean, plan, undo};
use blockyard_device::{FileDevice, MemoryDevice};
use blockyard_testkit::{require, run};
use support::small::{debugfs, made_32m as made};

#[test]
fn a_wrong_total_stays_where_its_repair_is_declined() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024"]);
    debugfs(&image, "ssv free_blocks_count 5");
    let device = FileDevice::open(&image).unwrap();
    let mends = |options: &RepairOptions| {
        let plan = plan(&device, options).unwrap();
        plan.actions.iter().any(|action| action.code == Code::FREE_BLOCKS_TOTAL)
    };
    assert!(mends(&RepairOptions::default()));
    let declined = RepairOptions { declined: [Code::FREE_BLOCKS_TOTAL].into(), ..RepairOptions::default() };
    assert!(!mends(&declined));
}

/// Bitmaps and counts are written together. Once, a declined correction was made along with the
/// accepted ones.
#[test]
fn declining_one_correction_of_bitmaps_and_counts_declines_all() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024"]);
    let used = debugfs(&image, "blocks one");
    for request in [&format!("freeb {}", used.trim()), "setb 5000 3", "sif one links_count 9"] {
        debugfs(&image, request);
    }
    let device = FileDevice::open(&image).unwrap();
    let codes_after = |declined: &[Code]| -> Vec<Code> {
        let declined = declined.iter().copied().collect();
        let plan = plan(&device, &RepairOptions { declined, ..RepairOptions::default() }).unwrap();
        plan.after.unwrap().findings.iter().filter(|left| left.is_error()).map(|left| left.code).collect()
    };
    assert_eq!(codes_after(&[]), []);
    let both = [Code::BLOCKS_MARKED_FREE_RANGE, Code::BLOCKS_MARKED_USED_RANGE];
    for declined in both {
        let left = codes_after(&[declined]);
        assert!(both.iter().all(|code| left.contains(code)), "{declined}: {left:?}");
        assert!(!left.contains(&Code::LINK_COUNT), "{left:?}");
    }
}

/// Once, a file system was marked clean although repairs were declined, so the next check at boot
/// passed it over.
#[test]
fn what_keeps_errors_is_not_marked_clean() {
    if !require(&["mke2fs", "debugfs", "dumpe2fs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let state_after = |damage: &[&str], declined: &[Code]| {
        let image = made(folder.path(), &["-t", "ext4", "-b", "1024"]);
        for request in damage {
            debugfs(&image, request);
        }
        let device = FileDevice::open(&image).unwrap();
        let declined = declined.iter().copied().collect();
        let plan = plan(&device, &RepairOptions { declined, ..RepairOptions::default() }).unwrap();
        plan.apply(&device).unwrap();
        assert_eq!(is_marked_clean(&device), plan.is_complete());
        let shown = run("dumpe2fs", &["-h", image.to_str().unwrap()]).stdout;
        let state = String::from_utf8_lossy(&shown)
            .lines()
            .find_map(|line| line.strip_prefix("Filesystem state:").map(|state| state.trim().to_owned()));
        state.unwrap()
    };
    let links = "sif <2> links_count 9";
    let error = "ssv state 3";
    assert_eq!(state_after(&[links], &[]), "clean");
    assert_eq!(state_after(&[error, links], &[]), "clean");
    assert_eq!(state_after(&[links], &[Code::LINK_COUNT]), "not clean");
    assert_eq!(state_after(&[error, links], &[Code::LINK_COUNT]), "not clean with errors");
    assert_eq!(state_after(&["sif <2> blocks 8", links], &[Code::LINK_COUNT]), "not clean");
}

/// Once, the checksum of a record did not cover the record's offset. If the offset was damaged, old
/// bytes were written to a wrong place.
#[test]
fn a_damaged_undo_file_changes_nothing() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024"]);
    debugfs(&image, "sif <2> links_count 9");
    let device = FileDevice::open(&image).unwrap();
    let plan = plan(&device, &RepairOptions::default()).unwrap();
    let path = folder.path().join("undo");
    plan.save_undo(&device, &path).unwrap();
    plan.apply(&device).unwrap();
    let repaired = std::fs::read(&image).unwrap();
    let whole = std::fs::read(&path).unwrap();
    let place_of_a_record = 4096;
    let mut moved = whole.clone();
    moved[place_of_a_record + 1] ^= 0x10;
    for damaged in [&moved, &whole[..whole.len() - 1], &whole[..100]] {
        std::fs::write(&path, damaged).unwrap();
        let error = undo(&device, &path).unwrap_err();
        assert!(matches!(error, UndoError::Format(_)), "{error}");
        assert!(std::fs::read(&image).unwrap() == repaired);
    }
}

/// A plan for garbage changes no block. Once, a superblock that was tried and rejected was in the
/// plan.
#[test]
fn a_plan_for_what_is_no_file_system_changes_nothing() {
    let device = MemoryDevice::from_bytes(&b"no file system\n".repeat(20_000));
    let plan = plan(&device, &RepairOptions::default()).unwrap();
    assert!(plan.is_empty() && !plan.before.examined && !plan.is_complete());
    assert!(plan.changed_blocks(&device).unwrap().is_empty());
}
