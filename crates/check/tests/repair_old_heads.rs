//! Superblocks and descriptors that are wrong, stale or lost while all inodes are there: a repair
//! keeps every directory. Images that somebody damaged by hand showed these cases, one for each
//! test.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::{Path, PathBuf};

use blockyard_check::claimed_bytes;
use blockyard_device::{BlockDevice, FileDevice};
use blockyard_disk::Checksums;
use blockyard_disk::superblock::RawSuperblock;
use blockyard_testkit::{LoopMount, require, run};
use support::small::{self, debugfs, repair};
use zerocopy::{FromBytes, IntoBytes};

const TOOLS: [&str; 3] = ["mke2fs", "debugfs", "e2fsck"];
/// How many directories `many` has. Their inodes fill more than one block.
const MANY: usize = 90;

fn with_many(folder: &Path, options: &[&str], size: &str) -> PathBuf {
    small::with_many(folder, MANY, options, size)
}

fn assert_kept(image: &Path, what: &str) {
    let names = debugfs(image, "ls -p many");
    assert!((0..MANY).all(|n| names.contains(&format!("/{n}/"))), "{what}: {names}");
}

fn write(image: &Path, at: u64, bytes: &[u8]) {
    FileDevice::open(image).unwrap().write_at(at, bytes).unwrap();
}

/// With a wrong size of inodes no root is found. Once, that cost all files.
#[test]
fn the_size_of_inodes_is_the_one_that_leads_to_the_root() {
    if !require(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (kind, size, wrong) in
        [("ext4", "256", 512), ("ext4", "256", 128), ("ext3", "256", 128), ("ext3", "128", 256)]
    {
        let image = with_many(folder.path(), &["-t", kind, "-b", "1024", "-I", size], "32M");
        let mut bytes = [0; RawSuperblock::SIZE];
        FileDevice::open(&image).unwrap().read_at(1024, &mut bytes).unwrap();
        let sb = RawSuperblock::mut_from_bytes(&mut bytes).unwrap();
        sb.s_inode_size.set(wrong);
        Checksums::of(sb).seal_superblock(sb);
        write(&image, 1024, sb.as_bytes());
        repair(&image);
        assert_kept(&image, &format!("{kind}, {size} taken for {wrong}"));
    }
}

/// A file system was made over an older one. The backups of the older one are in the usual places,
/// those of the new one are not. Then the superblock is lost.
#[test]
fn backups_of_an_older_file_system_are_not_taken() {
    if !require(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (old, new) in [
        (&["-b", "1024"][..], &["-b", "4096", "-g", "4096"][..]),
        (&["-b", "4096", "-g", "2048"], &["-b", "4096", "-g", "4096"]),
    ] {
        let image = with_many(folder.path(), &[&["-t", "ext4"], new].concat(), "96M");
        let tree = folder.path().join("tree");
        let (path, tree) = (image.to_str().unwrap(), tree.to_str().unwrap());
        std::fs::remove_file(&image).unwrap();
        // If the root of the older one is still there, too, the age decides.
        for (time, options) in [("1600000000", old), ("1700000000", &[new, &["-d", tree]].concat())] {
            let time = format!("E2FSPROGS_FAKE_TIME={time}");
            let make = [&time, "mke2fs", "-q", "-F", "-t", "ext4", "-E", "nodiscard"];
            let made = run("env", &[&make, options, &[path, "96M"]].concat());
            assert!(made.status.success(), "{options:?}: {made:?}");
        }
        write(&image, 0, &[0; 4096]);
        repair(&image);
        assert_kept(&image, &format!("{new:?} over {old:?}"));
    }
}

/// Without flex_bg a table must lie in its own group. Once, a table of which nothing was left was
/// made again outside of its group.
#[test]
fn tables_are_found_when_all_descriptors_are_lost() {
    if !require(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let alone: &[&str] = &["-E", "num_backup_sb=0"];
    for (options, more, size) in [
        ("sparse_super2,^resize_inode,^flex_bg", alone, "64M"),
        ("sparse_super2,^resize_inode,^flex_bg,^metadata_csum,^64bit", alone, "64M"),
        ("sparse_super2,^resize_inode", alone, "300M"),
        ("sparse_super2,^resize_inode,^metadata_csum", alone, "300M"),
    ] {
        let all = [&["-t", "ext4", "-b", "1024", "-O", options], more].concat();
        let image = with_many(folder.path(), &all, size);
        // Only the blocks of the descriptors: the bitmaps come next.
        let blocks: u64 = if options.contains("^64bit") || size == "64M" { 1 } else { 3 };
        write(&image, 2048, &vec![0; usize::try_from(blocks << 10).unwrap()]);
        repair(&image);
        assert_kept(&image, options);
    }
}

/// The journal holds copies of the first block of the first table, followed by copies of many other
/// inodes.
#[test]
fn a_copy_of_the_table_in_the_journal_is_not_the_table() {
    if !require(&[&TOOLS[..], &["root", "mount"]].concat()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = with_many(folder.path(), &["-t", "ext3", "-b", "1024"], "64M");
    let mount = LoopMount::new(&image, "").unwrap();
    for number in 0..1500 {
        std::fs::write(mount.path().join(format!("many/{}/f{number}", number % MANY)), "few").unwrap();
        if number % 100 == 0 {
            assert!(run("sync", &["-f", mount.path().to_str().unwrap()]).status.success());
        }
    }
    drop(mount);
    // The descriptors in group 0 and in the groups with a backup.
    for group in [0, 1, 3, 5, 7] {
        write(&image, (group * 8192 + 2) << 10, &[0; 1024]);
    }
    repair(&image);
    assert_kept(&image, "ext3");
    let files = debugfs(&image, "ls -p many/7");
    assert!(files.contains("/f7/") && files.contains("/f1447/"), "{files}");
}

/// The superblock is lost and the image truncated. A backup says how long the image must be.
#[test]
fn a_cut_file_without_a_superblock_is_as_long_as_a_backup_says() {
    if !require(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = with_many(folder.path(), &["-t", "ext4", "-b", "1024"], "32M");
    write(&image, 1024, &[0; 1024]);
    std::fs::File::options().write(true).open(&image).unwrap().set_len(30 << 20).unwrap();
    assert_eq!(claimed_bytes(&FileDevice::open_read_only(&image).unwrap()), Some(32 << 20));
}

/// A file system was made over an older one, and both have lost their root. The damaged superblock
/// still has the UUID of the newer one.
#[test]
fn without_a_root_the_backups_of_the_same_file_system_come_first() {
    if !require(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = with_many(folder.path(), &["-t", "ext4", "-b", "1024", "-g", "8192"], "96M");
    let path = image.to_str().unwrap();
    let (older, own) = ("11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222");
    std::fs::remove_file(&image).unwrap();
    let made = |options: &[&str]| {
        let made = run("mke2fs", &[&["-q", "-F", "-t", "ext4", "-E", "nodiscard"], options].concat());
        assert!(made.status.success(), "{options:?}: {made:?}");
    };
    made(&["-b", "1024", "-U", older, path, "300M"]);
    let older_root = small::slot_at(&image, "<1>", 1024);
    made(&["-b", "4096", "-U", own, path, "300M"]);
    // The first block of the first inode table.
    write(&image, small::slot_at(&image, "<1>", 4096), &[0; 4096]);
    write(&image, older_root, &[0; 1024]);
    // A wrong number of inodes, so that the primary superblock cannot be used.
    write(&image, 1024, &[0xff; 4]);
    repair(&image);
    let head = run("dumpe2fs", &["-h", path]);
    let head = String::from_utf8_lossy(&head.stdout).into_owned();
    assert!(head.contains(own) && !head.contains(older), "{head}");
}

/// After a power cut only the first sector of the superblock is right. The seed of all checksums is
/// in the second one. A redo log or a journal may have a whole copy of the superblock; here the
/// copy is in a free block.
#[test]
fn the_rest_of_a_torn_superblock_is_not_believed() {
    if !require(&["mke2fs", "tune2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = with_many(folder.path(), &["-t", "ext4", "-b", "1024", "-O", "metadata_csum_seed"], "7M");
    // Now the seed no longer follows from the UUID.
    let uuid = "33333333-3333-4333-8333-333333333333";
    assert!(run("tune2fs", &["-U", uuid, image.to_str().unwrap()]).status.success());
    let mut whole = [0; RawSuperblock::SIZE];
    FileDevice::open(&image).unwrap().read_at(1024, &mut whole).unwrap();
    // A free block that no backup belongs in.
    write(&image, 6 << 20, &whole);
    write(&image, 1024 + 512, &[0xA7; 512]);
    write(&image, 2048, &[0xA7; 1024]);
    repair(&image);
    assert_kept(&image, "a torn superblock");
}

/// Fields for quota files name a directory although the feature is off, and the checksum of the
/// superblock is wrong. If the fields stayed, the directory would lose its name. No backup corrects
/// them: the first image has none, and in the second the size of inodes is wrong, too, and is
/// corrected first.
#[test]
fn a_superblock_with_a_new_checksum_names_no_quota_files() {
    if !require(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = ["-t", "ext4", "-O", "^quota,metadata_csum", "-I", "256", "-b"];
    for (block_size, has_backups) in [("4096", false), ("1024", true)] {
        let image = with_many(folder.path(), &[&options[..], &[block_size]].concat(), "32M");
        assert!(debugfs(&image, "ncheck 12").contains("/many"), "{block_size}");
        for field in [0x240, 0x244, 0x26C] {
            write(&image, 1024 + field, &12u32.to_le_bytes());
        }
        if has_backups {
            write(&image, 1024 + 0x58, &128u16.to_le_bytes());
        }
        repair(&image);
        assert_kept(&image, block_size);
    }
}
