//! Rules found by comparing verdicts with `e2fsck -fn` 1.47, one table each: a change made by debugfs, and both verdicts.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::FileExt;
use std::path::Path;

use blockyard_check::{Options, check};
use blockyard_device::FileDevice;
use blockyard_testkit::{LoopMount, mke2fs, require, run};

fn is_clean(image: &Path) -> bool {
    let device = FileDevice::open_read_only(image).unwrap();
    check(&device, &Options { threads: Some(1) }).unwrap().is_clean()
}

/// Makes one change to a copy of the image and compares the verdicts; gives that of both.
fn judge(image: &Path, request: &str) -> bool {
    let copy = image.with_extension("copy");
    std::fs::copy(image, &copy).unwrap();
    run("debugfs", &["-w", "-R", request, copy.to_str().unwrap()]);
    let theirs = run("e2fsck", &["-fn", copy.to_str().unwrap()]);
    let is_theirs_clean = theirs.status.code() == Some(0);
    assert_eq!(
        is_clean(&copy),
        is_theirs_clean,
        "{request}: e2fsck says\n{}",
        String::from_utf8_lossy(&theirs.stdout)
    );
    is_theirs_clean
}

/// One written block beyond the end is tolerated where the extents lie in the inode, and only there.
#[test]
fn sizes_before_the_last_extent() {
    if !require(&["root", "mount", "mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    mke2fs(&image, &["-t", "ext4", "-b", "1024"], "64M");
    let mounted = LoopMount::new(&image, "").unwrap();
    let files = [("inode", 3u64), ("block", 10), ("blocks", 700)];
    for (name, extents) in files {
        let file = std::fs::File::create(mounted.path().join(name)).unwrap();
        (0..extents).for_each(|n| file.write_all_at(&[1; 1024], n * 2048).unwrap());
    }
    drop(mounted);
    for (name, extents) in files {
        let size = (extents - 1) * 2048 + 1024;
        for cut in [0, 1, 1023, 1024, 1025, 2048, 4096] {
            let clean = judge(&image, &format!("set_inode_field /{name} size {}", size - cut));
            let tolerated = if name == "inode" { 1024 } else { 1023 };
            assert_eq!(clean, cut <= tolerated, "{name} cut by {cut}");
        }
    }
}

/// Reserved inodes other than the root may have a deletion time.
#[test]
fn deletion_times_of_reserved_inodes() {
    if !require(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    for options in ["-t ext4", "-t ext3 -b 1024"] {
        mke2fs(&image, &options.split(' ').collect::<Vec<_>>(), "64M");
        for inode in 1..=11 {
            let clean = judge(&image, &format!("set_inode_field <{inode}> dtime 0x65fb1ad8"));
            assert_eq!(clean, ![2, 11].contains(&inode), "{options}: inode {inode}");
        }
    }
}

/// The blocks that the resize inode maps are in use because the superblock reserves them, not because it maps them.
#[test]
fn descriptor_blocks_that_are_no_longer_reserved() {
    if !require(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    for options in ["-t ext4", "-t ext4 -b 1024 -O orphan_file", "-t ext3 -b 2048"] {
        for size in ["8M", "64M"] {
            mke2fs(&image, &options.split(' ').collect::<Vec<_>>(), size);
            assert!(
                judge(&image, "set_super_value reserved_gdt_blocks 99999"),
                "{options}: no change is clean"
            );
            assert!(!judge(&image, "set_super_value reserved_gdt_blocks 0"), "{options}");
        }
    }
}
