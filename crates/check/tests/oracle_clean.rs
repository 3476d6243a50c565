//! Images that e2fsck calls clean are clean here too, and the answer does not depend on the number of threads.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use blockyard_check::{Options, Report, check};
use blockyard_device::FileDevice;
use blockyard_testkit::images::{PROFILES, make, make_filled};
use blockyard_testkit::{e2fsck_clean, require};

fn check_with(image: &Path, threads: usize) -> Report {
    let device = FileDevice::open_read_only(image).unwrap();
    check(&device, &Options { threads: Some(threads) }).unwrap()
}

fn assert_clean(name: &str, image: &Path) {
    let one = check_with(image, 1);
    assert!(one.is_clean(), "{name}: {:#?}", one.findings);
    assert_eq!(one, check_with(image, 2), "{name}: one thread and two");
}

#[test]
fn images_of_mke2fs_are_clean() {
    if !require(&["mke2fs", "e2fsck"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for profile in PROFILES {
        let image = make(profile, directory.path());
        e2fsck_clean(&image);
        assert_clean(profile.name, &image);
        std::fs::remove_file(image).unwrap();
    }
}

#[test]
fn images_that_the_kernel_filled_are_clean() {
    if !require(&["root", "mke2fs", "e2fsck"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for profile in PROFILES {
        let image = make_filled(profile, directory.path());
        e2fsck_clean(&image);
        assert_clean(profile.name, &image);
        std::fs::remove_file(image).unwrap();
    }
}
