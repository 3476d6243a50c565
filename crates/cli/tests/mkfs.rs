//! `blockyard mkfs` from the user's view: what it overwrites and what it does not, sizes, exit
//! codes, output.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

fn mkfs(arguments: &[&str], image: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_blockyard"));
    command.env_remove("E2FSPROGS_FAKE_TIME").env_remove("SOURCE_DATE_EPOCH");
    command.arg("mkfs").arg(image).args(arguments).output().unwrap()
}

/// The single line of an error.
fn error_line(output: &Output) -> String {
    assert!(matches!(output.status.code(), Some(2 | 8)), "{output:?}");
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    text.trim_end().to_owned()
}

#[test]
fn a_missing_file_is_made_and_a_known_one_kept() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("new.img");
    let made = mkfs(&["8M", "-L", "first"], &image);
    assert!(made.status.success(), "{made:?}");
    assert_eq!(image.metadata().unwrap().len(), 8 << 20);
    let before = std::fs::read(&image).unwrap();

    let refused = error_line(&mkfs(&["-t", "ext2"], &image));
    let holds = "the target holds an ext4 file system labelled \"first\"";
    assert!(
        refused.ends_with(&format!("{holds}; nothing was written; overwrite it with --force (-F)")),
        "{refused}"
    );
    assert_eq!(std::fs::read(&image).unwrap(), before);

    assert!(mkfs(&["-t", "ext2", "-F"], &image).status.success());
    assert_ne!(std::fs::read(&image).unwrap(), before);
}

/// mkfs refuses such a target without --force, because a repair can restore the superblock from a
/// backup.
#[test]
fn an_image_with_a_damaged_superblock_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("damaged.img");
    assert!(mkfs(&["16M", "-L", "first"], &image).status.success());
    let mut damaged = std::fs::read(&image).unwrap();
    damaged[1024..2048].fill(0);
    std::fs::write(&image, &damaged).unwrap();
    let refused = error_line(&mkfs(&[], &image));
    for part in ["labelled \"first\"", "`blockyard check -y`", "--force (-F)"] {
        assert!(refused.contains(part), "{refused}");
    }
    assert!(std::fs::read(&image).unwrap() == damaged, "the target was written");
    assert!(mkfs(&["-F"], &image).status.success());
}

/// Sets of arguments, each as one text, that are refused with exit code 8: no size is known, or the
/// other arguments do not suit the size. The exit code of wrong usage is 2.
const TOO_LARGE: [&str; 4] = ["", "0", "17T-b1024-O^64bit", "64M-N4294967295"];

#[test]
fn a_refusal_makes_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("none.img");
    for arguments in [
        &["64M", "-O", "quota"][..],
        &["64M", "-b", "3000"],
        &["64M", "-E", "offset=1024"],
        &["64M", "-E", "encoding=utf8"],
        &["64M", "-J", "device=/dev/sdb1"],
        &["64M", "-t", "xfs"],
        &["64M", "-T", "nonsense"],
        &["64M", "-U", "123"],
        &["12x"],
        &[],
        &["0"],
        &["99999999999T"],
        &["17T", "-b", "1024", "-O", "^64bit"],
        &["64M", "-b", "x"],
        &["64M", "-C", "4096"],
        &["64M", "-C", "3000", "-O", "bigalloc"],
        &["64M", "-O", "nosuch"],
        &["64M", "-O", "^extent,64bit"],
        &["64M", "-O", "meta_bg,resize_inode"],
        &["64M", "-O", "inline_data", "-I", "128"],
        &["64M", "-O", "journal_dev"],
        &["64M", "-I", "100"],
        &["64M", "-i", "0"],
        &["64M", "-N", "4294967295"],
        &["64M", "-m", "60"],
        &["64M", "-g", "255"],
        &["64M", "-G", "3"],
        &["64M", "-J", "size=99999"],
        &["64M", "-J", "nosuch=1"],
        &["64M", "-J", "location=99999999"],
        &["64M", "-E", "nosuch"],
        &["64M", "-E", "resize=1"],
        &["64M", "-E", "stride=x"],
        &["64M", "-E", "root_owner=x"],
        &["64M", "-E", "packed_meta_blocks=7"],
        &["64M", "-E", "num_backup_sb=9", "-O", "sparse_super2"],
        &["64M", "-L", "a label of more than 16 bytes"],
        &["64M", "-e", "nosuch"],
    ] {
        let refused = mkfs(arguments, &image);
        let code = if TOO_LARGE.contains(&arguments.concat().as_str()) { 8 } else { 2 };
        assert_eq!(refused.status.code(), Some(code), "{arguments:?}");
        error_line(&refused);
        assert!(!image.exists(), "{arguments:?} left a file");
    }
    let planned = mkfs(&["64M", "-n"], &image);
    assert!(planned.status.success() && !image.exists());
    assert!(
        String::from_utf8(planned.stdout)
            .unwrap()
            .contains("would make ext4 of 64.0 MiB: 65536 blocks of 1024 bytes")
    );
}

#[test]
fn zero_asks_for_the_default_as_with_mke2fs() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("default.img");
    let made = |more: &[&str]| {
        let _ = std::fs::remove_file(&image);
        let all = [&["64M", "--seed", "1", "--time", "1700000000"], more].concat();
        assert!(mkfs(&all, &image).status.success(), "{more:?}");
        std::fs::read(&image).unwrap()
    };
    let plain = made(&[]);
    assert!(made(&["-N", "0"]) == plain && made(&["-J", "size=0"]) == plain);
}

#[test]
fn sizes_follow_mke2fs() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("size.img");
    for (arguments, bytes) in [
        (&["16384"][..], 16u64 << 20),
        (&["4096", "-b", "4096"], 16 << 20),
        (&["32768s"], 16 << 20),
        (&["20m"], 20 << 20),
    ] {
        let _ = std::fs::remove_file(&image);
        assert!(mkfs(arguments, &image).status.success());
        assert_eq!(image.metadata().unwrap().len(), bytes, "{arguments:?}");
    }
    // A size smaller than the file leaves the file at its length.
    assert!(mkfs(&["16m", "-F"], &image).status.success());
    assert_eq!(image.metadata().unwrap().len(), 20 << 20);
}

#[test]
fn the_same_seed_and_time_make_the_same_image() {
    let directory = tempfile::tempdir().unwrap();
    let make = |name: &str, seed: &str| {
        let image = directory.path().join(name);
        assert!(mkfs(&["16M", "--seed", seed, "--time", "1700000000"], &image).status.success());
        std::fs::read(image).unwrap()
    };
    let first = make("a", "11");
    assert!(first == make("b", "11") && first != make("c", "12"));
}

#[test]
fn json_names_what_was_made() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("json.img");
    let uuid = "c1b9d5a2-f162-11cf-9ece-0020afc76f16";
    let output = mkfs(&["64M", "--json", "-U", uuid, "--time", "5"], &image);
    let line: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((line["blocks"].as_u64(), line["block_size"].as_u64()), (Some(65536), Some(1024)));
    assert_eq!((line["uuid"].as_str(), line["time"].as_u64()), (Some(uuid), Some(5)));
    assert_eq!(line["backup_superblocks"].as_array().unwrap().len(), 4);
    assert!(line["seed"].is_u64() && line["features"].as_str().unwrap().contains("metadata_csum"));
}
