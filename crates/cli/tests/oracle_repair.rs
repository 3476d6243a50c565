//! `blockyard check -y`, `-p`, `--plan` and `blockyard undo`: the exit codes are those of e2fsck,
//! and nothing is written that must not be.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use blockyard_testkit::crash::{CrashImage, Stop};
use blockyard_testkit::{LoopDevice, e2fsck_clean, mke2fs, require, run};

fn blockyard(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_blockyard")).args(arguments).output().unwrap()
}

fn code(arguments: &[&str]) -> i32 {
    blockyard(arguments).status.code().unwrap()
}

fn debugfs(image: &Path, command: &str) {
    let output = run("debugfs", &["-w", "-R", command, image.to_str().unwrap()]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !told.contains("not open"), "{command}: {told}");
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
    let repaired = std::fs::read(&image).unwrap();
    // An existing undo file is never overwritten. Only a check that has something to repair is
    // refused because of it. A clean check may still write the time of the check, after which the
    // undo file no longer fits the image.
    let again = blockyard(&["check", "-y", name]);
    assert_eq!(again.status.code(), Some(0));
    assert!(String::from_utf8(again.stdout).unwrap().contains("0 changes decided, 1 block written: clean"));
    debugfs(&image, "set_inode_field /a links_count 5");
    let refused = blockyard(&["check", "-y", name]);
    assert_eq!((refused.status.code(), refused.stdout.len()), (Some(8), 0));
    assert!(
        String::from_utf8(refused.stderr).unwrap().contains("image.undo: is the undo file of an earlier")
    );
    std::fs::write(&image, repaired).unwrap();
    let undone = blockyard(&["undo", name, undo.to_str().unwrap()]);
    assert_eq!(undone.status.code(), Some(0));
    assert!(String::from_utf8(undone.stdout).unwrap().contains("image.undo before the next repair"));
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
    // `-p` does not decide what to do with an unreachable directory.
    debugfs(&image, "unlink /a");
    let stopped = blockyard(&["check", "-p", "-f", name]);
    assert_eq!(stopped.status.code(), Some(4));
    assert!(String::from_utf8(stopped.stdout).unwrap().contains("RUN fsck MANUALLY"));
    // The superblock now says that there are errors, so the next run checks even without -f.
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
        assert_eq!(code(&["check", mode, "-f", "--no-undo", "-E", "discard", image.to_str().unwrap()]), 0);
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

#[test]
fn an_image_that_was_used_since_its_repair_is_taken_back_only_by_force() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = wrong_links(folder.path());
    let before = std::fs::read(&image).unwrap();
    let (name, undo) = (image.to_str().unwrap(), folder.path().join("image.undo"));
    assert_eq!(code(&["check", "-y", name]), 1);
    debugfs(&image, "mkdir /b");
    let used = std::fs::read(&image).unwrap();
    let refused = blockyard(&["undo", name, undo.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(8));
    assert!(String::from_utf8(refused.stderr).unwrap().contains("changed after the repair"));
    assert!(std::fs::read(&image).unwrap() == used, "a refused undo wrote");
    assert_eq!(code(&["undo", "--force", name, undo.to_str().unwrap()]), 0);
    assert!(std::fs::read(&image).unwrap()[..4096] == before[..4096], "the superblock is the old one");
}

#[test]
fn files_are_salvaged_from_an_image_that_was_cut_short() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let content = folder.path().join("content");
    std::fs::write(&content, vec![7; 100_000]).unwrap();
    mke2fs(&image, &["-t", "ext4", "-b", "1024"], "32M");
    debugfs(&image, &format!("write {} kept", content.display()));
    std::fs::File::options().write(true).open(&image).unwrap().set_len(20 << 20).unwrap();
    let before = std::fs::read(&image).unwrap();
    let there = folder.path().join("there");
    assert_eq!(code(&["salvage", image.to_str().unwrap(), there.to_str().unwrap()]), 0);
    assert!(std::fs::read(there.join("kept")).unwrap() == std::fs::read(&content).unwrap());
    assert!(std::fs::read(&image).unwrap() == before, "salvage wrote to the image");
    // A folder that is not empty is refused, so no file in it is replaced.
    std::fs::write(there.join("kept"), "mine").unwrap();
    let refused = blockyard(&["salvage", image.to_str().unwrap(), there.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(8));
    assert!(String::from_utf8(refused.stderr).unwrap().contains("is not empty"));
    assert_eq!(std::fs::read(there.join("kept")).unwrap(), b"mine");
}

/// The end of the input is not an answer. It used to count as yes.
#[test]
fn the_end_of_input_repairs_nothing() {
    if !require(&["mke2fs", "debugfs", "script"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = wrong_links(folder.path());
    let before = std::fs::read(&image).unwrap();
    let command = format!("{} check --no-undo {}", env!("CARGO_BIN_EXE_blockyard"), image.display());
    let ask = |input: std::process::Stdio| {
        let mut script = Command::new("script");
        script.args(["-qec", &command, "/dev/null"]).stdin(input).output().unwrap()
    };
    let ended = ask(std::process::Stdio::null());
    assert_eq!(ended.status.code(), Some(32), "{ended:?}");
    assert!(String::from_utf8_lossy(&ended.stdout).contains("nothing was written"));
    assert!(std::fs::read(&image).unwrap() == before, "the end of input repaired the image");
    let answers = folder.path().join("answers");
    std::fs::write(&answers, "y\n\n\n\n").unwrap();
    assert_eq!(ask(std::fs::File::open(&answers).unwrap().into()).status.code(), Some(1));
}

#[test]
fn a_list_of_losses_replaces_neither_what_the_repair_writes_nor_a_file_with_content() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = wrong_links(folder.path());
    let before = std::fs::read(&image).unwrap();
    let name = image.to_str().unwrap();
    let (link, undo) = (folder.path().join("link"), folder.path().join("image.undo"));
    std::os::unix::fs::symlink(&image, &link).unwrap();
    for lost in [&image, &link, &undo, &folder.path().join("missing/list")] {
        let refused = blockyard(&["check", "-y", "--lost", lost.to_str().unwrap(), name]);
        assert_eq!(refused.status.code(), Some(8), "{}", lost.display());
        assert!(std::fs::read(&image).unwrap() == before, "{}", lost.display());
        assert!(!undo.exists(), "{}", lost.display());
    }
    let list = folder.path().join("list");
    std::fs::write(&list, "old").unwrap();
    let refused = blockyard(&["check", "-y", "--lost", list.to_str().unwrap(), name]);
    assert_eq!(refused.status.code(), Some(8), "{refused:?}");
    assert_eq!(std::fs::read_to_string(&list).unwrap(), "old");
    assert!(std::fs::read(&image).unwrap() == before && !undo.exists());
    std::fs::write(&list, "").unwrap();
    assert_eq!(code(&["check", "-y", "--lost", list.to_str().unwrap(), name]), 1);
}

#[test]
fn nothing_is_discarded_if_an_undo_file_would_promise_it_back() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = wrong_links(folder.path());
    let before = std::fs::read(&image).unwrap();
    let refused = blockyard(&["check", "-y", "-E", "discard", image.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(16));
    assert!(String::from_utf8(refused.stderr).unwrap().contains("--no-undo"));
    assert!(std::fs::read(&image).unwrap() == before);
}

#[test]
fn a_plan_for_what_cannot_be_checked_ends_as_a_check() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    std::fs::write(&image, vec![0; 1 << 20]).unwrap();
    for mode in ["-n", "--plan"] {
        assert_eq!(code(&["check", mode, image.to_str().unwrap()]), 8, "{mode}");
    }
}

#[test]
fn a_repair_comes_before_the_copy_if_the_journal_is_on_another_device() {
    if !require(&["root", "mke2fs", "debugfs", "losetup", "perl", "prlimit"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (image, journal) = (folder.path().join("image"), folder.path().join("journal"));
    mke2fs(&journal, &["-O", "journal_dev", "-b", "1024"], "8M");
    let device = LoopDevice::new(&journal);
    // debugfs refuses to open the half-written image below if its bitmaps have checksums.
    let journal_device = format!("device={}", device.path());
    mke2fs(&image, &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum", "-J", &journal_device], "32M");
    drop(device);
    debugfs(&image, "mkdir /a");
    // Inodes 13 to 52 fill several blocks of the inode table, and the kernel changes only some of
    // them. The log has no copy of the block in the middle that holds inode 33. So the replay does
    // not undo the damage to inode 33 below.
    for nth in 0..40 {
        debugfs(&image, &format!("write /dev/null f{nth}"));
    }
    CrashImage {
        image: &image,
        journal: Some(&journal),
        options: "noinit_itable",
        seed: blockyard_testkit::seed(8),
        operations: 300,
        stop: Stop::CutAfterCommit,
        orphans: false,
    }
    .make_dirty();
    // Two damages. Directory `a` loses its name, until the replay or a repair names it again. Inode
    // 33 loses its extent header, which -p does not repair. debugfs gets the inode's number,
    // because it may not find the inode's name in a half-written root directory.
    debugfs(&image, "unlink /a");
    debugfs(&image, "set_inode_field <33> block[0] 0");
    let content = || (std::fs::read(&image).unwrap(), std::fs::read(&journal).unwrap());
    let before = content();
    let names = [&image, &journal].map(|path| path.to_str().unwrap());
    for (nth, options) in [&["salvage"][..], &["salvage", "-j", names[1]]].into_iter().enumerate() {
        let there = folder.path().join(format!("there{nth}"));
        let salvaged = blockyard(&[options, &[names[0], there.to_str().unwrap()]].concat());
        assert!(salvaged.status.code().unwrap() <= 1, "{salvaged:?}");
        let told = String::from_utf8_lossy(&salvaged.stderr).contains("journal is on another device");
        assert_eq!(told, nth == 0, "the journal was not given");
        // The replay brings the name `a` back. Without the replay, the directory may have no name;
        // salvage then puts it into `lost+found`.
        let is_there = |place| there.join(place).exists();
        assert!(is_there("a") || nth == 0 && is_there("lost+found"), "left out: {salvaged:?}");
        assert!(content() == before, "salvage wrote");
    }
    let undo = folder.path().join("undo");
    let stopped = blockyard(&["check", "-p", "-f", "-j", names[1], "-z", undo.to_str().unwrap(), names[0]]);
    assert_eq!(stopped.status.code(), Some(4), "{stopped:?}");
    assert!(content() != before, "the journal is replayed and emptied");
    for (name, undo) in names.into_iter().zip([undo.clone(), folder.path().join("undo.journal")]) {
        assert_eq!(code(&["undo", name, undo.to_str().unwrap()]), 0, "{name}");
    }
    assert!(content() == before, "not taken back to the byte");
}

/// Runs `blockyard` on a terminal and answers each question with `line`.
fn answered(arguments: &str, line: &str, folder: &Path) -> Output {
    let answers = folder.join("answers");
    std::fs::write(&answers, line.repeat(40)).unwrap();
    let command = format!("{} {arguments}", env!("CARGO_BIN_EXE_blockyard"));
    let mut script = Command::new("script");
    let input = std::fs::File::open(&answers).unwrap();
    script.args(["-qec", &command, "/dev/null"]).stdin(input).output().unwrap()
}

/// The image's bytes after the superblock. The superblock itself may change, because it records
/// that errors are left.
fn behind_superblock(image: &Path) -> Vec<u8> {
    std::fs::read(image).unwrap().split_off(2048)
}

#[test]
fn nothing_that_is_declined_is_written() {
    if !require(&["mke2fs", "debugfs", "e2fsck", "script"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let content = folder.path().join("content");
    std::fs::write(&content, vec![7; 60_000]).unwrap();
    let cases = [
        ("sif kept flags 0", ""),
        ("set_block_group 1 inode_table 99999", ""),
        ("set_block_group 0 block_bitmap 5", ""),
        ("ssv inodes_per_group 77", ""),
        ("ssv feature_compat 0", ""),
        ("stat kept", "-D"),
    ];
    for (damage, option) in cases {
        let image = folder.path().join("image");
        mke2fs(&image, &["-t", "ext4", "-b", "1024"], "24M");
        debugfs(&image, &format!("write {} kept", content.display()));
        debugfs(&image, damage);
        let before = behind_superblock(&image);
        let found = blockyard(&["check", "-n", image.to_str().unwrap()]).stdout;
        let told = answered(&format!("check --no-undo {option} {}", image.display()), "n\n", folder.path());
        let text = String::from_utf8_lossy(&told.stdout).into_owned();
        assert!(behind_superblock(&image) == before, "{damage}: {text}");
        let left = blockyard(&["check", "-n", image.to_str().unwrap()]).stdout;
        assert_eq!(String::from_utf8(left).unwrap(), String::from_utf8(found).unwrap(), "{damage}: {text}");
    }
}

#[test]
fn a_question_names_paths_and_takes_only_yes_or_no() {
    if !require(&["mke2fs", "debugfs", "script"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = wrong_links(folder.path());
    for name in ["b", "c", "d", "e"] {
        debugfs(&image, &format!("mkdir /{name}"));
        debugfs(&image, &format!("set_inode_field /{name} links_count 7"));
    }
    let before = std::fs::read(&image).unwrap();
    let command = format!("check --no-undo {}", image.display());
    let told = answered(&command, "q\n", folder.path());
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(std::fs::read(&image).unwrap() == before, "q repaired: {text}");
    assert!(text.contains("y or n? [Y/n]"), "{text}");
    assert!(text.contains("5 changes, cost: nothing [/a, /b, /c, and 2 more]. Repair?"), "{text}");
    let (found, asked) = (text.find("NOT clean").unwrap(), text.find("Repair?").unwrap());
    assert!(found < asked, "what was found comes first: {text}");
    assert_eq!(answered(&command, "y\n", folder.path()).status.code(), Some(1));
}

/// An image with ten files of 2.2 MB, cut so that some of their content is gone.
fn cut_short(folder: &Path) -> PathBuf {
    let (image, content) = (folder.join("image"), folder.join("content"));
    std::fs::write(&content, vec![7; 2_200_000]).unwrap();
    mke2fs(&image, &["-t", "ext4", "-b", "1024"], "32M");
    for nth in 0..10 {
        debugfs(&image, &format!("write {} f{nth}", content.display()));
    }
    std::fs::File::options().write(true).open(&image).unwrap().set_len((14 << 20) + 300).unwrap();
    image
}

/// The paths of the files whose content is no longer what was written.
fn zeroed(image: &Path, folder: &Path) -> Vec<String> {
    let out = folder.join("out");
    let name = |nth: usize| format!("/f{nth}");
    let is_whole = |nth: usize| {
        debugfs(image, &format!("dump {} {}", name(nth), out.display()));
        std::fs::read(&out).unwrap() == vec![7; 2_200_000]
    };
    (0..10).filter(|nth| !is_whole(*nth)).map(name).collect()
}

#[test]
fn what_a_cut_image_lost_is_listed_before_and_after_and_undo_cuts_it_again() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = cut_short(folder.path());
    let before = std::fs::read(&image).unwrap();
    let name = image.to_str().unwrap();
    let lost = folder.path().join("lost");
    let listed = || {
        let list = std::fs::read_to_string(&lost).unwrap();
        let lines = list.lines().filter(|line| line.contains("behind the end of the cut image"));
        let mut paths: Vec<String> = lines.map(|line| line.split('\t').nth(2).unwrap().to_owned()).collect();
        paths.sort();
        paths
    };
    assert_eq!(code(&["check", "--plan", "--lost", lost.to_str().unwrap(), name]), 4);
    let planned = listed();
    std::fs::remove_file(&lost).unwrap();
    assert!(std::fs::read(&image).unwrap() == before, "a plan wrote to the image");
    // If the undo file cannot be created, the image keeps its length.
    assert_eq!(code(&["check", "-y", "-z", "/nonexistent/undo", name]), 8);
    assert!(std::fs::read(&image).unwrap() == before, "the image was made longer without an undo file");
    assert_eq!(code(&["check", "-y", "--lost", lost.to_str().unwrap(), name]), 1);
    e2fsck_clean(&image);
    assert_eq!(listed(), planned);
    assert_eq!(zeroed(&image, folder.path()), planned);
    assert!(!planned.is_empty());
    let undone = blockyard(&["undo", name, folder.path().join("image.undo").to_str().unwrap()]);
    assert_eq!(undone.status.code(), Some(0), "{undone:?}");
    assert!(std::fs::read(&image).unwrap() == before, "the image is not what it was");
}

#[test]
fn a_salvage_names_the_files_that_a_cut_image_left_zeroes_of() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = cut_short(folder.path());
    let there = folder.path().join("there");
    let salvaged = blockyard(&["salvage", image.to_str().unwrap(), there.to_str().unwrap()]);
    assert_eq!(salvaged.status.code(), Some(1));
    let text = String::from_utf8(salvaged.stderr).unwrap();
    for nth in 0..10 {
        let is_whole = std::fs::read(there.join(format!("f{nth}"))).unwrap() == vec![7; 2_200_000];
        assert_eq!(text.contains(&format!("/f{nth}: ")), !is_whole, "f{nth}: {text}");
    }
}

/// `salvage` copies what a repair would leave. If that repair loses nothing, the exit code is 0. If
/// that repair cuts a file, the exit code is 1, even if every file that is left can be copied.
#[test]
fn a_salvage_says_whether_the_repair_lost_something() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = wrong_links(folder.path());
    let content = folder.path().join("content");
    std::fs::write(&content, vec![7; 100_000]).unwrap();
    debugfs(&image, &format!("write {} file", content.display()));
    let salvage = |to: &str| {
        let there = folder.path().join(to);
        let salvaged = code(&["salvage", image.to_str().unwrap(), there.to_str().unwrap()]);
        (salvaged, std::fs::read(there.join("file")).ok())
    };
    assert_eq!(salvage("whole"), (0, Some(vec![7; 100_000])));
    debugfs(&image, "set_inode_field /file block[0] 0");
    let (salvaged, file) = salvage("less");
    assert_eq!(salvaged, 1);
    assert!(file.is_none_or(|file| file.len() < 100_000 || file.contains(&0)));
}

#[test]
fn the_list_of_losses_has_every_block_that_is_dropped_on_request() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let content = folder.path().join("content");
    std::fs::write(&content, vec![7; 40_000]).unwrap();
    for (option, has_copy) in [("shared=clone", true), ("shared=drop", false)] {
        let image = folder.path().join("image");
        let _ = std::fs::remove_file(&image);
        mke2fs(&image, &["-t", "ext3", "-b", "1024"], "16M");
        debugfs(&image, &format!("write {} one", content.display()));
        debugfs(&image, &format!("write {} two", content.display()));
        let taken = run("debugfs", &["-R", "bmap one 3", image.to_str().unwrap()]);
        let block = String::from_utf8(taken.stdout).unwrap();
        debugfs(&image, &format!("sif two block[5] {}", block.trim()));
        let lost = folder.path().join(option);
        let (lost, name) = (lost.to_str().unwrap(), image.to_str().unwrap());
        assert_eq!(code(&["check", "-y", "--no-undo", "-E", option, "--lost", lost, name]), 1, "{option}");
        e2fsck_clean(&image);
        let list = std::fs::read_to_string(lost).unwrap();
        assert_eq!(list.contains("cut\t"), !has_copy, "{option}: {list}");
        if !has_copy {
            assert!(list.contains("1 shared blocks dropped") && list.contains("bytes "), "{list}");
            let hole = run("debugfs", &["-R", "bmap two 5", name]);
            let other = run("debugfs", &["-R", "bmap one 3", name]);
            let both = [hole, other].map(|found| String::from_utf8(found.stdout).unwrap());
            assert!(both.iter().any(|block| block.trim() == "0"), "one of them lost it: {both:?}");
        }
    }
    assert_eq!(code(&["check", "-y", "-E", "shared=drop,unshare_blocks", "image"]), 16);
}

#[test]
fn options_without_an_effect_are_refused() {
    for arguments in [
        &["-n", "-z", "file"][..],
        &["-n", "--lost", "file"],
        &["-n", "--threads", "1000000"],
        &["-y", "--threads", "0"],
        &["-y", "-D", "-E", "fixes_only"],
        &["-y", "-E", "fixes_only,bmap2extent"],
    ] {
        assert_eq!(code(&[&["check"], arguments, &["image"]].concat()), 16, "{arguments:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    std::fs::write(&image, vec![0; 1 << 20]).unwrap();
    let missing = blockyard(&["check", "-j", "/nonexistent", image.to_str().unwrap()]);
    let text = String::from_utf8(missing.stderr).unwrap();
    assert!(text.contains("the journal of -j") && !text.contains("mkfs"), "{text}");
}

/// As with e2fsck, an extent tree is left as it is only with `-p` or with an option that forbids
/// packing.
#[test]
fn extent_trees_are_packed_unless_it_is_forbidden() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let pieces = folder.path().join("pieces");
    let file = std::fs::File::create(&pieces).unwrap();
    for piece in 0..200 {
        std::os::unix::fs::FileExt::write_all_at(&file, &[7; 1024], piece * 2048).unwrap();
    }
    let loose = folder.path().join("loose");
    mke2fs(&loose, &["-t", "ext4", "-b", "1024"], "32M");
    debugfs(&loose, &format!("write {} pieces", pieces.display()));
    debugfs(&loose, "punch pieces 6");
    debugfs(&loose, "set_inode_field pieces size 6144");
    debugfs(&loose, "set_inode_field pieces links_count 1");
    run("e2fsck", &["-fy", "-E", "no_optimize_extents", loose.to_str().unwrap()]);
    let image = folder.path().join("image");
    let name = image.to_str().unwrap();
    let lines = || {
        let output = run("debugfs", &["-R", "dump_extents pieces", name]);
        String::from_utf8(output.stdout).unwrap().lines().count()
    };
    let mut of_options = Vec::new();
    for options in
        [&["-fy"][..], &["-fy", "-E", "fixes_only"], &["-fy", "-E", "no_optimize_extents"], &["-fp"]]
    {
        std::fs::copy(&loose, &image).unwrap();
        let expected = run("e2fsck", &[options, &[name]].concat()).status.code();
        let theirs = lines();
        std::fs::copy(&loose, &image).unwrap();
        let ended = code(&[&["check", "--no-undo"], options, &[name]].concat());
        assert_eq!((Some(ended), lines()), (expected, theirs), "{options:?}");
        e2fsck_clean(&image);
        of_options.push(theirs);
    }
    assert!(of_options[0] < of_options[1], "{of_options:?}");
    assert!(of_options[1..].iter().all(|lines| *lines == of_options[1]), "{of_options:?}");
}

#[test]
fn a_plan_says_which_blocks_change_and_a_replay_can_be_taken_back() {
    if !require(&["root", "mke2fs", "losetup", "perl"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let dirty = folder.path().join("dirty");
    mke2fs(&dirty, &["-t", "ext4", "-b", "1024"], "16M");
    CrashImage {
        image: &dirty,
        journal: None,
        options: "noinit_itable",
        seed: blockyard_testkit::seed(8),
        operations: 100,
        stop: Stop::CutAfterCommit,
        orphans: false,
    }
    .make_dirty();
    let (image, undo) = (folder.path().join("copy"), folder.path().join("undo"));
    let (name, file) = (image.to_str().unwrap(), undo.to_str().unwrap());
    let fresh = || {
        std::fs::copy(&dirty, &image).unwrap();
        let _ = std::fs::remove_file(&undo);
    };
    fresh();
    let before = std::fs::read(&image).unwrap();
    let plan = blockyard(&["--json", "check", "--plan", name]);
    let last = String::from_utf8(plan.stdout).unwrap().lines().last().unwrap().to_owned();
    let plan: serde_json::Value = serde_json::from_str(&last).unwrap();
    let runs = plan["changed"].as_array().unwrap();
    let blocks: u64 = runs.iter().map(|run| run[1].as_u64().unwrap() + 1 - run[0].as_u64().unwrap()).sum();
    assert_eq!(plan["blocks"], blocks);
    let repaired = blockyard(&["check", "-y", "--no-undo", name]);
    let told = format!(", {blocks} blocks written");
    assert!(String::from_utf8(repaired.stdout).unwrap().contains(&told), "{told}");
    for arguments in
        [&["check", "-y", "-E", "journal_only", "-z", file, name][..], &["check", "-p", "-z", file, name]]
    {
        fresh();
        assert_eq!(code(arguments), 0, "{arguments:?}");
        assert!(std::fs::read(&image).unwrap() != before);
        assert_eq!(code(&["undo", name, file]), 0, "{arguments:?}");
        assert!(std::fs::read(&image).unwrap() == before, "{arguments:?}");
    }
}

#[test]
fn a_preening_that_stops_can_be_taken_back_too() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = wrong_links(folder.path());
    debugfs(&image, "unlink /a");
    let (name, undo) = (image.to_str().unwrap(), folder.path().join("undo"));
    let before = std::fs::read(&image).unwrap();
    // The path of the undo file names no folder. So the current folder is synced after the file is
    // created.
    let mut stopping = Command::new(env!("CARGO_BIN_EXE_blockyard"));
    let stopped =
        stopping.current_dir(folder.path()).args(["check", "-fp", "-z", "undo", name]).status().unwrap();
    assert_eq!(stopped.code(), Some(4));
    assert!(std::fs::read(&image).unwrap() != before);
    assert_eq!(code(&["undo", name, undo.to_str().unwrap()]), 0);
    assert!(std::fs::read(&image).unwrap() == before);
}
