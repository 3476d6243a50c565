//! A repair rewrites a lost backup of the superblock. Afterwards e2fsck can use the backup.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use blockyard_check::{Options, RepairOptions, plan};
use blockyard_device::{BlockDevice, FileDevice};
use blockyard_testkit::{mke2fs, require, run};

fn repair(image: &Path) -> usize {
    let device = FileDevice::open(image).unwrap();
    let how = RepairOptions { check: Options::default(), now: 1_700_000_000, ..RepairOptions::default() };
    let plan = plan(&device, &how).unwrap();
    assert!(plan.is_complete());
    plan.apply(&device).unwrap();
    plan.actions.len()
}

/// The exit code of e2fsck with the backup in group 1: 8 if e2fsck cannot use the backup.
fn by_backup(image: &Path) -> Option<i32> {
    run("e2fsck", &["-fn", "-b", "8193", "-B", "1024", image.to_str().unwrap()]).status.code()
}

#[test]
fn a_lost_backup_is_as_good_as_new() {
    if !require(&["mke2fs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let meta = ["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode"];
    for options in [&["-t", "ext4", "-b", "1024"][..], &["-t", "ext3", "-b", "1024"], &meta] {
        mke2fs(&image, options, "64M");
        assert_eq!(repair(&image), 0, "nothing to do on a fresh image");
        let before = by_backup(&image);
        assert_ne!(before, Some(8));
        let device = FileDevice::open(&image).unwrap();
        device.write_at(8193 * 1024, &[0x5A; 1024]).unwrap();
        drop(device);
        assert_eq!(by_backup(&image), Some(8), "the backup is lost");
        assert!(repair(&image) > 0);
        assert_eq!(by_backup(&image), before, "{options:?}");
        assert_eq!(repair(&image), 0, "and then there is nothing to do");
    }
}
