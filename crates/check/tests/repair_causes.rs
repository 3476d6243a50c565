//! Causes that runs of `oracle_repair.rs` found, each by itself.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use blockyard_check::{Options, RepairOptions, plan};
use blockyard_device::{BlockDevice, FileDevice};
use blockyard_testkit::{e2fsck_clean, mke2fs, require, run};

fn repair(image: &Path) {
    let device = FileDevice::open(image).unwrap();
    let how = RepairOptions { check: Options::default(), now: 1_700_000_000, ..RepairOptions::default() };
    let plan = plan(&device, &how).unwrap();
    assert!(plan.is_complete(), "{:?}", plan.after);
    plan.apply(&device).unwrap();
    e2fsck_clean(image);
}

fn debugfs(image: &Path, request: &str) -> String {
    let output = run("debugfs", &["-w", "-R", request, image.to_str().unwrap()]);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn made(folder: &Path, options: &[&str]) -> PathBuf {
    let image = folder.join("image");
    mke2fs(&image, options, "32M");
    for request in ["mkdir one", "mkdir one/two", "mkdir three"] {
        debugfs(&image, request);
    }
    image
}

#[test]
fn a_directory_with_too_long_an_extent_stays() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]);
    // The length of its extent, with the bit that says unwritten.
    debugfs(&image, "set_inode_field one block[4] 0x00008100");
    let before = debugfs(&image, "stat one");
    assert!(before.contains("Size: 1024"), "{before}");
    repair(&image);
    assert!(debugfs(&image, "ls -p one").contains("/two/"), "its name is there");
}

#[test]
fn fields_without_a_meaning_do_not_keep_an_image_shut() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]);
    let device = FileDevice::open(&image).unwrap();
    device.write_at(1024 + 0x200, &[0xA7; 0x80]).unwrap();
    drop(device);
    repair(&image);
    let device = std::sync::Arc::new(FileDevice::open_read_only(&image).unwrap());
    let reader = blockyard_inspect::reader::Reader::open(device).unwrap();
    assert_eq!(reader.superblock().raw().s_mount_opts, [0; 64]);
}

#[test]
fn a_superblock_is_inferred_where_no_copy_is_left() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for options in
        [&["-t", "ext2", "-b", "4096"][..], &["-t", "ext4", "-b", "4096"], &["-t", "ext4", "-b", "2048"]]
    {
        let image = made(folder.path(), options);
        let device = FileDevice::open(&image).unwrap();
        device.write_at(1024, &[0; 1024]).unwrap();
        drop(device);
        repair(&image);
        assert!(debugfs(&image, "ls -p one").contains("/two/"), "{options:?}");
    }
}
