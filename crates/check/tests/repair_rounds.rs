//! Faults that a repair must mend in few rounds, however many there are: directories without a
//! name, loops, whole tables of garbage, and descriptors whose first backup is wrong too.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;

use blockyard_check::{Action, RepairOptions, plan};
use blockyard_device::{BlockDevice, FileDevice};
use blockyard_testkit::{e2fsck_clean, mke2fs, require, run};
use rand::{RngCore, SeedableRng};
use support::small::{self, debugfs, lost_found, slot_at};

const TOOLS: [&str; 3] = ["mke2fs", "debugfs", "e2fsck"];

/// Repairs the image, which must be clean afterwards. Returns what was done.
fn repair(image: &Path) -> Vec<Action> {
    let device = FileDevice::open(image).unwrap();
    let plan = plan(&device, &RepairOptions { now: 1_700_000_000, ..RepairOptions::default() }).unwrap();
    assert!(plan.is_complete(), "{:?}", plan.actions.iter().take(20).collect::<Vec<_>>());
    plan.apply(&device).unwrap();
    e2fsck_clean(image);
    plan.actions
}

/// Lets debugfs carry out many requests.
fn debugfs_all(image: &Path, requests: &[String]) {
    let script = image.with_extension("requests");
    std::fs::write(&script, requests.join("\n")).unwrap();
    run("debugfs", &["-w", "-f", script.to_str().unwrap(), image.to_str().unwrap()]);
}

fn overwrite(image: &Path, at: u64, bytes: &[u8]) {
    FileDevice::open(image).unwrap().write_at(at, bytes).unwrap();
}

/// The root has no name in a directory. So its parent is not looked up among the names when its
/// `..` is corrected.
#[test]
fn the_root_is_its_own_parent() {
    if !require(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = small::made(folder.path(), &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"], "16M");
    let block: u64 = debugfs(&image, "blocks /").trim().parse().unwrap();
    overwrite(&image, block * 1024 + 12, &12u32.to_le_bytes());
    let actions = repair(&image);
    assert!(actions.len() < 4, "{actions:?}");
    assert!(debugfs(&image, "ls -p one").contains("/two/"));
}

/// 13,000 directories have no name: more than three times as many as the findings that a unit of
/// work keeps. All of them get a name in lost+found.
#[test]
fn directories_without_a_name_are_attached_at_once() {
    if !require(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = ["-t", "ext4", "-b", "1024", "-N", "24000"];
    // In 13 directories, because mke2fs is slow with long ones.
    let tree = folder.path().join("tree");
    for (parent, child) in (0..13).flat_map(|parent| (0..1000).map(move |child| (parent, child))) {
        std::fs::create_dir_all(tree.join(format!("{parent}/{child}"))).unwrap();
    }
    let image = folder.path().join("image");
    mke2fs(&image, &[&options[..], &["-d", tree.to_str().unwrap()]].concat(), "128M");
    debugfs_all(&image, &(0..13).map(|parent| format!("clri /{parent}")).collect::<Vec<_>>());
    repair(&image);
    assert_eq!(lost_found(&image).len(), 13_000);
}

/// The garbage causes many more findings than are kept for a group.
#[test]
fn a_large_table_of_garbage_is_cleared() {
    if !require(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for features in ["^has_journal,^metadata_csum,^uninit_bg", "^has_journal"] {
        let options = ["-t", "ext4", "-b", "4096", "-I", "128", "-N", "32768", "-O", features];
        let image = small::made(folder.path(), &options, "64M");
        let garbled = 16;
        let mut garbage = vec![0; (32_768 - garbled) * 128];
        rand_chacha::ChaCha8Rng::seed_from_u64(5).fill_bytes(&mut garbage);
        overwrite(&image, slot_at(&image, "<17>", 4096), &garbage);
        debugfs(&image, "set_bg 0 itable_unused 0");
        debugfs(&image, "set_bg 0 checksum calc");
        repair(&image);
        assert!(debugfs(&image, "ls -p /").contains("/one/"), "{features}");
    }
}

/// `low/again`, a second name of `middle`, closes a loop. In the order of directories it comes
/// before `place/middle`. The repair still removes `low/again`, because `..` of `middle` names
/// `place`.
#[test]
fn a_loop_through_a_second_name_keeps_the_first() {
    if !require(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = small::made(folder.path(), &["-t", "ext4", "-b", "1024"], "16M");
    for request in [
        "mkdir low",
        "mkdir place",
        "mkdir place/middle",
        "link low place/middle/low",
        "unlink low",
        "link place/middle place/middle/low/again",
    ] {
        debugfs(&image, request);
    }
    repair(&image);
    assert!(debugfs(&image, "ls -p place/middle").contains("/low/"));
    assert!(!debugfs(&image, "ls -p place/middle/low").contains("/again/"));
    assert_eq!(lost_found(&image), []);
}

/// No inode is left for lost+found: the root gets the names.
#[test]
fn without_lost_found_the_root_holds_what_was_lost() {
    if !require(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    mke2fs(&image, &["-t", "ext4", "-N", "64", "-O", "^has_journal,^resize_inode", "-b", "1024"], "4M");
    let content = folder.path().join("content");
    std::fs::write(&content, b"content").unwrap();
    let mut requests = vec!["rmdir lost+found".to_owned()];
    requests.extend((0..64).map(|nth| format!("write {} f{nth}", content.display())));
    debugfs_all(&image, &requests);
    let lost = debugfs(&image, "stat f3");
    let number = lost.split("Inode:").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    debugfs(&image, "unlink f3");
    repair(&image);
    let names = debugfs(&image, "ls -p /");
    assert!(names.contains(&format!("/#{number}")), "{names}");
    assert!(!names.contains("lost+found"), "{names}");
}

/// The descriptors are garbage, and so are those of the backup that e2fsck would take. Another
/// backup is sound.
#[test]
fn a_sound_backup_comes_before_the_first() {
    if !require(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for checksums in ["metadata_csum", "^metadata_csum,^uninit_bg"] {
        let image = small::made(folder.path(), &["-t", "ext4", "-b", "1024", "-O", checksums], "32M");
        // The primary descriptors, and those behind the superblock of group 1.
        let mut garbage = vec![0; 256];
        rand_chacha::ChaCha8Rng::seed_from_u64(7).fill_bytes(&mut garbage);
        for block in [2, 8194] {
            overwrite(&image, block * 1024, &garbage);
        }
        let actions = repair(&image);
        let taken = "taken from the backup in block 24577";
        assert!(actions.iter().any(|action| action.what == taken), "{actions:?}");
        assert!(debugfs(&image, "ls -p one").contains("/two/"), "{checksums}");
        assert_eq!(lost_found(&image), [], "{checksums}");
    }
}

/// Every copy of the descriptors is garbage, and a table that lies outside of the file system must
/// not be read. The plan still ends with a check of its result.
#[test]
fn a_table_outside_is_not_read() {
    if !require(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = ["-t", "ext4", "-b", "1024", "-I", "512", "-i", "4096", "-O", "^flex_bg"];
    let image = small::made(folder.path(), &options, "64M");
    let mut garbage = vec![0; 1024];
    rand_chacha::ChaCha8Rng::seed_from_u64(7).fill_bytes(&mut garbage);
    for block in [2, 8194, 24_578, 40_962, 57_346] {
        overwrite(&image, block * 1024, &garbage);
    }
    let device = FileDevice::open(&image).unwrap();
    let plan = plan(&device, &RepairOptions::default()).unwrap();
    assert!(plan.after.is_some(), "{:?}", plan.actions);
}
