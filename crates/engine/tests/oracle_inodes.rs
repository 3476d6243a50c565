//! Which inodes are allocated, compared with the kernel: what their allocation does to groups with
//! uninitialised bitmaps, and how long the number of a deleted inode is not reused.

#![allow(clippy::as_conversions, clippy::unwrap_used)]

#[path = "support/image.rs"]
mod support;

use blockyard_device::MemoryDevice;
use blockyard_disk::Timestamp;
use blockyard_engine::{FileSystem, OpContext};
use blockyard_testkit::{LoopMount, e2fsck_clean, require, run, stay_on_one_cpu};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use support::{ROOT, context, directory, file, like_the_kernel, make, open, open_with};

/// Two lines for every group, from dumpe2fs: the first has its flags; the second has the numbers of
/// its free blocks, free inodes, directories and never-used inodes.
fn groups(image: &Path) -> Vec<String> {
    let output = run("dumpe2fs", &[image.to_str().unwrap()]);
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| match line.split_once(" csum ") {
            Some((group, flags)) => {
                Some(format!("{group} {}", flags.split_once(' ').map_or("", |(_, flags)| flags)))
            }
            None => line.contains(" free inodes, ").then(|| line.trim().to_owned()),
        })
        .collect()
}

#[test]
fn inodes_initialise_the_same_groups_as_the_kernels() {
    if !require(&["mke2fs", "e2fsck", "dumpe2fs", "root"]) {
        return;
    }
    stay_on_one_cpu();
    let sets: [&[&str]; 4] = [
        &["-G", "2", "-g", "4096"],
        &["-G", "4", "-b", "1024"],
        &["-O", "^metadata_csum,uninit_bg,^flex_bg", "-g", "4096"],
        &["-O", "bigalloc", "-b", "1024", "-C", "4096", "-g", "8192", "-G", "2"],
    ];
    for options in sets {
        println!("mke2fs {options:?}");
        let scratch = tempfile::tempdir().unwrap();
        let image = scratch.path().join("image");
        let kernels = scratch.path().join("kernel");
        // Without a journal, nothing but the creation of these inodes changes a group.
        make(&[options, &["-O", "^has_journal"]].concat(), "256M", &image);
        std::fs::copy(&image, &kernels).unwrap();

        let mount = LoopMount::new(&kernels, "noinit_itable").unwrap();
        for n in 0..12 {
            let dir = mount.path().join(format!("directory-{n}"));
            std::fs::create_dir(&dir).unwrap();
            for m in 0..3 {
                std::fs::write(dir.join(format!("empty-{m}")), b"").unwrap();
            }
        }
        let numbers: Vec<u32> = (0..12)
            .map(|n| mount.path().join(format!("directory-{n}/empty-2")).metadata().unwrap().ino() as u32)
            .collect();
        let options = like_the_kernel(mount.path());
        drop(mount);

        let device = Arc::new(MemoryDevice::load(&image).unwrap());
        let fs = open_with(&device, options);
        for (n, number) in (0..12).zip(numbers) {
            let dir = directory(&fs, ROOT, format!("directory-{n}"));
            let files = [0, 1, 2].map(|m| file(&fs, dir, format!("empty-{m}")));
            assert_eq!(files[2].raw(), number, "directory {n}");
        }
        fs.close(&context()).unwrap();
        device.save(&image).unwrap();
        e2fsck_clean(&image);
        let (ours, theirs) = (groups(&image), groups(&kernels));
        assert!(ours.iter().any(|line| line.contains("INODE_UNINIT")) && ours.len() == theirs.len());
        let differences: Vec<_> = ours.iter().zip(&theirs).filter(|(ours, theirs)| ours != theirs).collect();
        assert!(differences.is_empty(), "ours, the kernel's: {differences:#?}");
    }
}

/// Creates three files, deletes one of them, and creates another `wait` seconds later, by the clock
/// of the calls. Returns the numbers of the three and of the new one.
fn replace_one(fs: &FileSystem, wait: i64) -> (Vec<u32>, u32) {
    let at = |seconds| OpContext::root_at(Timestamp::from_seconds(1_700_000_000 + seconds));
    let old: Vec<u32> = ["a", "b", "c"].iter().map(|name| file(fs, ROOT, name).raw()).collect();
    fs.sync(&at(0)).unwrap();
    fs.unlink(&at(0), ROOT, b"b").unwrap();
    let new = blockyard_engine::NewInode {
        kind: blockyard_disk::inode::FileType::Regular,
        permissions: 0o644,
        device: None,
    };
    let new = fs.create(&at(wait), ROOT, b"d", &new).unwrap();
    (old, new.raw())
}

/// What [`replace_one`] does, on a mount of a copy of the image.
fn replace_one_on_the_kernel(image: &Path, scratch: &Path) -> (Vec<u32>, u32) {
    let copy = scratch.join("kernel");
    std::fs::copy(image, &copy).unwrap();
    let mount = LoopMount::new(&copy, "").unwrap();
    let number = |name: &str| mount.path().join(name).metadata().unwrap().ino() as u32;
    let old = ["a", "b", "c"].map(|name| {
        std::fs::write(mount.path().join(name), b"").unwrap();
        number(name)
    });
    std::fs::remove_file(mount.path().join("b")).unwrap();
    // Only a deletion in an earlier second counts as recent.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    std::fs::write(mount.path().join("d"), b"").unwrap();
    (old.to_vec(), number("d"))
}

#[test]
fn a_number_just_deleted_is_passed_over_without_a_journal() {
    if !require(&["mke2fs", "e2fsck", "root"]) {
        return;
    }
    stay_on_one_cpu();
    for (options, passed_over) in [(&["-O", "^has_journal"][..], true), (&["-O", "has_journal"], false)] {
        let scratch = tempfile::tempdir().unwrap();
        let image = scratch.path().join("image");
        make(options, "64M", &image);
        // The kernel looks at the deleted inode only while its table block is in memory. If the
        // block was evicted meanwhile, the number is reused at once, so try again.
        let mut by_kernel = replace_one_on_the_kernel(&image, scratch.path());
        for _ in 0..4 {
            if (by_kernel.1 != by_kernel.0[1]) == passed_over {
                break;
            }
            by_kernel = replace_one_on_the_kernel(&image, scratch.path());
        }
        assert_eq!(by_kernel.1 != by_kernel.0[1], passed_over);

        for (wait, expected) in [(2, by_kernel.1), (359, by_kernel.1), (361, by_kernel.0[1])] {
            let (device, fs) = open(&image);
            let ours = replace_one(&fs, wait);
            assert_eq!(ours.0, by_kernel.0);
            assert_eq!(ours.1, expected, "{wait} seconds after the deletion");
            fs.close(&context()).unwrap();
            device.save(&scratch.path().join("ours")).unwrap();
            e2fsck_clean(&scratch.path().join("ours"));
        }
    }
}
