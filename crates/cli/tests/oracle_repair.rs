//! `blockyard check -y`, `-p`, `--plan` and `blockyard undo`: exit codes of e2fsck, what is written
//! and what is not.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use blockyard_testkit::{e2fsck_clean, mke2fs, require, run};

fn blockyard(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_blockyard")).args(arguments).output().unwrap()
}

fn code(arguments: &[&str]) -> i32 {
    blockyard(arguments).status.code().unwrap()
}

fn debugfs(image: &Path, command: &str) {
    assert!(run("debugfs", &["-w", "-R", command, image.to_str().unwrap()]).status.success());
}

/// An image with a directory whose link count is wrong, which is safe to repair.
fn wrong_links(folder: &Path) -> PathBuf {
    let image = folder.join("image");
    mke2fs(&image, &["-t", "ext4", "-b", "1024"], "16M");
    debugfs(&image, "mkdir /a");
    debugfs(&image, "set_inode_field /a links_count 7");
    image
}

#[test]
fn a_plan_writes_nothing_and_a_repair_can_be_taken_back() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = wrong_links(folder.path());
    let before = std::fs::read(&image).unwrap();
    let name = image.to_str().unwrap();
    let plan = blockyard(&["check", "--plan", name]);
    assert_eq!(plan.status.code(), Some(4));
    assert!(String::from_utf8(plan.stdout).unwrap().contains("i_links_count set to 2 [/a]"));
    assert!(std::fs::read(&image).unwrap() == before, "a plan wrote to the image");
    assert_eq!(code(&["check", "-y", name]), 1);
    e2fsck_clean(&image);
    assert_eq!(code(&["check", "-n", name]), 0);
    let undo = folder.path().join("image.undo");
    assert!(undo.exists());
    // An existing undo file is not overwritten, and refused before the work.
    let refused = blockyard(&["check", "-y", name]);
    assert_eq!((refused.status.code(), refused.stdout.len()), (Some(8), 0));
    assert!(String::from_utf8(refused.stderr).unwrap().contains("image.undo: is there from an earlier"));
    let undone = blockyard(&["undo", name, undo.to_str().unwrap()]);
    assert_eq!(undone.status.code(), Some(0));
    assert!(String::from_utf8(undone.stdout).unwrap().contains("image.undo is no longer needed"));
    assert!(std::fs::read(&image).unwrap() == before, "the image is not what it was");
    // An undo file that was cut short is invalid, and nothing is written.
    let half = std::fs::read(&undo).unwrap();
    std::fs::write(&undo, &half[..half.len() - 1]).unwrap();
    assert_eq!(code(&["undo", name, undo.to_str().unwrap()]), 8);
    assert!(std::fs::read(&image).unwrap() == before, "half of an undo file was written");
}

#[test]
fn preening_mends_what_is_safe_and_stops_at_the_rest() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = wrong_links(folder.path());
    let name = image.to_str().unwrap();
    // The image is marked clean, so nothing is checked without -f.
    assert_eq!(code(&["check", "-p", name]), 0);
    assert_eq!(code(&["check", "-n", name]), 4);
    assert_eq!(code(&["check", "-p", "-f", name]), 1);
    assert!(!folder.path().join("image.undo").exists());
    e2fsck_clean(&image);
    assert_eq!(code(&["check", "-p", "-f", name]), 0);
    // What to do with an unreachable directory is not for -p to decide.
    debugfs(&image, "unlink /a");
    let stopped = blockyard(&["check", "-p", "-f", name]);
    assert_eq!(stopped.status.code(), Some(4));
    assert!(String::from_utf8(stopped.stdout).unwrap().contains("RUN fsck MANUALLY"));
    // The error mark makes the next run check without -f.
    assert_eq!(code(&["check", "-p", name]), 4);
    let lost = folder.path().join("lost");
    assert_eq!(code(&["check", "-y", "--no-undo", "--lost", lost.to_str().unwrap(), name]), 1);
    assert!(std::fs::read_to_string(&lost).unwrap().contains("lost+found/#12"));
    e2fsck_clean(&image);
    assert_eq!(code(&["check", "-p", name]), 0);
}

#[test]
fn modes_exclude_each_other() {
    for modes in [["-n", "-y"], ["-p", "-y"], ["-n", "-p"], ["--plan", "-y"]] {
        assert_ne!(code(&["check", modes[0], modes[1], "image"]), 0);
    }
}

/// `-E discard` discards the free space of an image that needs no repair, and nothing else.
#[test]
fn free_space_is_discarded_of_a_clean_image_too() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let content = folder.path().join("content");
    std::fs::write(&content, vec![7; 4 << 20]).unwrap();
    for mode in ["-y", "-p"] {
        let image = folder.path().join(mode);
        mke2fs(&image, &["-t", "ext4", "-b", "4096"], "32M");
        for name in ["kept", "removed"] {
            debugfs(&image, &format!("write {} {name}", content.display()));
        }
        debugfs(&image, "rm removed");
        let taken = || std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&image).unwrap());
        let before = taken();
        assert_eq!(code(&["check", mode, "-f", "-E", "discard", image.to_str().unwrap()]), 0);
        assert!(taken() + 8000 < before, "{mode}: {} of {before} sectors are left", taken());
        e2fsck_clean(&image);
        let copy = folder.path().join("copy");
        debugfs(&image, &format!("dump kept {}", copy.display()));
        assert!(
            std::fs::read(copy).unwrap() == std::fs::read(&content).unwrap(),
            "{mode}: the file is whole"
        );
    }
}

#[test]
fn a_replay_alone_is_no_check_unless_it_is_forced() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = wrong_links(folder.path());
    let theirs = folder.path().join("theirs");
    for (options, changed) in [("-y", false), ("-fy", true)] {
        std::fs::copy(&image, &theirs).unwrap();
        let before = std::fs::read(&image).unwrap();
        let wanted = run("e2fsck", &[options, "-E", "journal_only", theirs.to_str().unwrap()]).status.code();
        let arguments = ["check", options, "--no-undo", "-E", "journal_only", image.to_str().unwrap()];
        assert_eq!(Some(code(&arguments)), wanted, "{options}");
        assert_eq!(std::fs::read(&image).unwrap() != before, changed, "{options}");
    }
    e2fsck_clean(&image);
}
