//! `blockyard check -f -p` and `e2fsck -f -p` on randomly damaged images: in all but a few cases
//! the exit codes are the same, and e2fsck's verdicts on the two results are the same.
//!
//! There are 16 cases by default, and 1,000 with `BLOCKYARD_FULL=1`. `REPAIRS=n` sets another
//! number. `PROFILE=name,name` chooses the kinds of image.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::Command;

use blockyard_testkit::images::{Profile, make_filled, profile_named};
use blockyard_testkit::mutate::Inventory;
use blockyard_testkit::{e2fsck_bounded, full_matrix, require, run, seed};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn wanted() -> usize {
    let asked = std::env::var("REPAIRS").ok().and_then(|text| text.parse().ok());
    asked.unwrap_or(if full_matrix() { 1000 } else { 16 })
}

fn profiles() -> Vec<&'static Profile> {
    let names = std::env::var("PROFILE").unwrap_or_else(|_| "ext4-1k,ext3-1k".to_owned());
    names.split(',').map(profile_named).collect()
}

/// Changes a random field of the image, or damages it at random in another way (but does not cut
/// it short). Returns what was done.
fn damage(inventory: &Inventory, random: &mut ChaCha8Rng, image: &Path) -> String {
    if random.random_bool(0.6) {
        let mutation = inventory.mutate(random);
        mutation.apply(image);
        return mutation.description;
    }
    loop {
        let damage = inventory.damage(random);
        if !damage.is_cut() {
            damage.apply(image);
            return damage.description;
        }
    }
}

#[test]
fn preening_ends_as_that_of_e2fsck() {
    if !require(&["root", "mke2fs", "e2fsck", "timeout", "prlimit"]) {
        return;
    }
    let mut random = ChaCha8Rng::seed_from_u64(seed(9));
    let folder = tempfile::tempdir().unwrap();
    let (wanted, profiles) = (wanted(), profiles());
    let mut differing = 0;
    for (n, profile) in profiles.iter().enumerate() {
        let image = make_filled(profile, folder.path());
        let inventory = Inventory::read(&image);
        let (ours, theirs) = (folder.path().join("ours.img"), folder.path().join("theirs.img"));
        for _ in 0..(wanted * (n + 1)) / profiles.len() - (wanted * n) / profiles.len() {
            let copy = |from: &Path, to: &Path| {
                let words = ["--sparse=always", from.to_str().unwrap(), to.to_str().unwrap()];
                assert!(run("cp", &words).status.success());
            };
            copy(&image, &ours);
            let what = damage(&inventory, &mut random, &ours);
            copy(&ours, &theirs);
            let our = run(env!("CARGO_BIN_EXE_blockyard"), &["check", "-fp", ours.to_str().unwrap()]);
            let words = ["--as=4294967296", "timeout", "60", "e2fsck", "-fp", theirs.to_str().unwrap()];
            let their = run("prlimit", &words);
            let verdicts = (e2fsck_bounded(&ours).code, e2fsck_bounded(&theirs).code);
            // If e2fsck found errors before it gave up, it adds their exit code (4) to that of
            // giving up (8).
            let their_code = their.status.code().map(|code| if code > 8 { 8 } else { code });
            if our.status.code() == their_code && verdicts.0 == verdicts.1 {
                continue;
            }
            differing += 1;
            println!("--- {}: {what}", profile.name);
            println!("    exit {:?} here, {their_code:?} there; then {verdicts:?}", our.status.code());
            for text in [&our.stdout, &their.stdout, &our.stderr] {
                let text = String::from_utf8_lossy(text);
                text.lines()
                    .take(4)
                    .for_each(|line| println!("    {}", line.chars().take(160).collect::<String>()));
            }
        }
    }
    println!("{wanted} damages, {differing} differ");
    // The results are known to differ for two kinds of damage. One is a broken directory index:
    // what e2fsck -p does then depends on more than the finding. The other is a journal superblock
    // of another version.
    assert!(differing <= 1 + wanted / 20, "{differing} of {wanted} differ");
}

/// Without `-f`, a file system that is marked clean is not checked, unless its group descriptors
/// are broken. The exit codes are those of e2fsck.
#[test]
fn the_mark_of_being_clean_does_not_hide_broken_descriptors() {
    if !require(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let requests = ["stats", "set_block_group 1 inode_table 999999", "set_block_group 1 free_inodes_count 7"];
    for options in [&["-t", "ext4"][..], &["-t", "ext4", "-O", "^metadata_csum,uninit_bg"], &["-t", "ext2"]] {
        for request in requests {
            let (ours, theirs) = (folder.path().join("ours"), folder.path().join("theirs"));
            blockyard_testkit::mke2fs(&ours, &[options, &["-b", "1024"]].concat(), "32M");
            run("debugfs", &["-w", "-R", request, ours.to_str().unwrap()]);
            fs::copy(&ours, &theirs).unwrap();
            let wanted = run("e2fsck", &["-p", theirs.to_str().unwrap()]).status.code();
            let arguments = ["check", "-p", ours.to_str().unwrap()];
            let output = Command::new(env!("CARGO_BIN_EXE_blockyard")).args(arguments).output().unwrap();
            assert_eq!(output.status.code(), wanted, "{options:?}: {request}");
        }
    }
}

/// `check -p` used to call a file system without its primary superblock clean, although the exit
/// code was 8.
#[test]
fn without_its_superblock_a_file_system_is_not_called_clean() {
    if !require(&["mke2fs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    blockyard_testkit::mke2fs(&image, &["-t", "ext4", "-b", "1024"], "16M");
    let file = std::fs::File::options().write(true).open(&image).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; 1024], 1024).unwrap();
    let done = run(env!("CARGO_BIN_EXE_blockyard"), &["check", "-p", image.to_str().unwrap()]);
    assert_eq!(done.status.code(), Some(8));
    let said = String::from_utf8(done.stdout).unwrap();
    assert!(said.contains("run check -y") && !said.contains("clean"), "{said}");
}

/// If `-b` names a superblock other than the primary one, the file system is checked even if its
/// primary superblock is marked clean. The exit codes are those of e2fsck.
#[test]
fn the_mark_of_being_clean_is_that_of_the_primary_superblock() {
    if !require(&["mke2fs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (image, copy) = (folder.path().join("image"), folder.path().join("copy"));
    for block in ["0", "1", "8193", "9999"] {
        blockyard_testkit::mke2fs(&image, &["-t", "ext4", "-b", "1024"], "32M");
        fs::copy(&image, &copy).unwrap();
        let ours =
            run(env!("CARGO_BIN_EXE_blockyard"), &["check", "-p", "-b", block, image.to_str().unwrap()]);
        let theirs = run("e2fsck", &["-p", "-b", block, copy.to_str().unwrap()]);
        assert_eq!((block, ours.status.code()), (block, theirs.status.code()));
    }
}

/// A check that is allowed to write resets the mount count. Otherwise, once a check was due, the
/// image would be checked at every boot.
#[test]
fn a_check_that_was_due_is_not_due_again() {
    if !require(&["mke2fs", "tune2fs", "dumpe2fs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let path = image.to_str().unwrap();
    for options in [&["-p"][..], &["-y", "--no-undo"], &["-n"]] {
        blockyard_testkit::mke2fs(&image, &["-t", "ext4", "-b", "1024"], "16M");
        assert!(run("tune2fs", &["-c", "5", "-C", "7", path]).status.success());
        let done = run(env!("CARGO_BIN_EXE_blockyard"), &[&["check"], options, &[path]].concat());
        assert_eq!(done.status.code(), Some(0));
        let shown = String::from_utf8(run("dumpe2fs", &["-h", path]).stdout).unwrap();
        let count = shown.lines().find_map(|line| line.strip_prefix("Mount count:")).unwrap().trim();
        assert_eq!(count, if options[0] == "-n" { "7" } else { "0" }, "{options:?}");
    }
}

/// `check -p --json` used to print plain text.
#[test]
fn preening_prints_json() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let path = image.to_str().unwrap();
    // In this order: a clean image, whose check is skipped; the same with a forced check; a link
    // count that -p repairs; a lost root inode, at which -p stops; a lost superblock; a replay of
    // the journal only; and a plan.
    let cases: [(&str, &[&str], i32, &str); 7] = [
        ("stats", &["-p"], 0, r#"{"clean":true,"skipped":true,"summary":true}"#),
        ("stats", &["-f", "-p"], 0, r#"{"clean":true,"errors":0,"examined":true,"findings":0"#),
        ("set_inode_field lost+found links_count 9", &["-f", "-p", "-v"], 1, r#""repair":true"#),
        ("clri <2>", &["-f", "-p"], 4, r#""stopped_by":"0x010001","undo":null,"written":true"#),
        ("zap_block -p 0 1", &["-f", "-p"], 8, r#""code":"0xf0000b""#),
        ("stats", &["-p", "-E", "journal_only"], 0, r#"{"clean":true,"skipped":true"#),
        ("set_inode_field lost+found links_count 9", &["--plan", "-v"], 4, r#""changed":"#),
    ];
    for (request, options, wanted, expected) in cases {
        blockyard_testkit::mke2fs(&image, &["-t", "ext4", "-b", "1024"], "16M");
        run("debugfs", &["-w", "-R", request, path]);
        let done = run(env!("CARGO_BIN_EXE_blockyard"), &[&["check", "--json"], options, &[path]].concat());
        let printed = String::from_utf8(done.stdout).unwrap();
        assert_eq!(done.status.code(), Some(wanted), "{request}: {printed}");
        assert!(printed.contains(expected), "{request}: {printed}");
        for line in printed.lines() {
            assert!(serde_json::from_str::<serde_json::Value>(line).is_ok(), "{request}: {line}");
        }
        assert_eq!(printed.contains(r#""vitals""#), options.contains(&"-v"), "{printed}");
    }
}
