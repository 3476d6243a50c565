//! Images that e2fsck calls clean are clean here too, and the answer does not depend on the number
//! of threads.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use blockyard_check::{Code, Options, Report, check};
use blockyard_device::FileDevice;
use blockyard_testkit::images::{
    MORE_PROFILES, PROFILES, Profile, RARE_PROFILES, fill, make, make_filled, profile_named,
};
use blockyard_testkit::{LoopMount, e2fsck_clean, full_matrix, require, run};

fn check_with(image: &Path, threads: usize) -> Report {
    let device = FileDevice::open_read_only(image).unwrap();
    check(&device, &Options { threads: Some(threads), ..Options::default() }).unwrap()
}

fn assert_clean(name: &str, image: &Path) {
    let one = check_with(image, 1);
    assert!(one.is_clean(), "{name}: {:#?}", one.findings);
    assert_eq!(one, check_with(image, 2), "{name}: one thread and two");
}

fn profiles() -> impl Iterator<Item = &'static Profile> {
    PROFILES.iter().chain(if full_matrix() { MORE_PROFILES } else { &[] })
}

#[test]
fn images_of_mke2fs_are_clean() {
    if !require(&["mke2fs", "e2fsck"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for profile in profiles() {
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
    // The default run has one rare profile, which combines many features.
    let rare =
        if full_matrix() { RARE_PROFILES } else { std::slice::from_ref(profile_named("bigalloc-inline")) };
    for profile in profiles().chain(rare) {
        let image = make_filled(profile, directory.path());
        e2fsck_clean(&image);
        assert_clean(profile.name, &image);
        std::fs::remove_file(image).unwrap();
    }
}

#[test]
fn a_dirty_journal_is_replayed_in_memory() {
    if !require(&["root", "mke2fs", "e2fsck", "sync"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for name in ["ext4", "ext3-1k"] {
        let path = make(profile_named(name), directory.path());
        let copy = directory.path().join("dirty.img");
        let mount = LoopMount::new(&path, "").unwrap();
        fill(mount.path(), false);
        assert!(run("sync", &["-f", mount.path().to_str().unwrap()]).status.success());
        std::fs::copy(&path, &copy).unwrap();
        drop(mount);
        let before = std::fs::read(&copy).unwrap();
        let report = check_with(&copy, 2);
        assert!(report.findings.iter().any(|finding| finding.code == Code::JOURNAL_REPLAYED), "{name}");
        assert!(report.is_clean(), "{name}: {:#?}", report.findings);
        assert!(std::fs::read(&copy).unwrap() == before, "{name}: the image was written");
        let repaired = run("e2fsck", &["-fy", copy.to_str().unwrap()]);
        assert!(repaired.status.code().unwrap() <= 1, "{name}: {repaired:?}");
        e2fsck_clean(&copy);
    }
}
