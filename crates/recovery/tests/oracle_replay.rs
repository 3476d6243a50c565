//! Journals that the kernel left dirty. Our replay must leave a clean image, which equals the
//! image after e2fsck's replay in all but at most three pieces of 1 KiB. (The superblocks of the
//! file system and of the journal differ.)

#![allow(clippy::unwrap_used, clippy::as_conversions)]

use std::fs;
use std::path::{Path, PathBuf};

use blockyard_device::{BlockDevice, FileDevice};
use blockyard_recovery::{JournalState, Options, inspect, replay_into_overlay, replay_to_device};
use blockyard_testkit::images::{Profile, fill, make, profile_named};
use blockyard_testkit::{LoopMount, e2fsck_clean, full_matrix, require, run};

/// An image as after a power cut: copied while it is mounted, with its last operations only in the
/// journal.
fn dirty(profile: &Profile, directory: &Path) -> PathBuf {
    let path = make(profile, directory);
    let copy = directory.join("dirty.img");
    let mount = LoopMount::new(&path, "").unwrap_or_else(|error| panic!("{}: {error}", profile.name));
    fill(mount.path(), false);
    // Metadata blocks that are freed after they were logged leave revoke records.
    for round in 0..3 {
        let many = mount.path().join(format!("round-{round}"));
        fs::create_dir(&many).unwrap();
        for n in 0..150 {
            fs::write(many.join(format!("{n}-{}", "n".repeat(60))), [round; 3000]).unwrap();
        }
        sync(mount.path());
        if round < 2 {
            fs::remove_dir_all(&many).unwrap();
        }
        sync(mount.path());
    }
    fs::copy(&path, &copy).unwrap();
    drop(mount);
    fs::remove_file(path).unwrap();
    copy
}

fn sync(path: &Path) {
    assert!(run("sync", &["-f", path.to_str().unwrap()]).status.success());
}

/// Blocks of 1 KiB in which two images differ.
fn differences(a: &Path, b: &Path) -> Vec<usize> {
    let (a, b) = (fs::read(a).unwrap(), fs::read(b).unwrap());
    assert_eq!(a.len(), b.len());
    a.chunks(1024).zip(b.chunks(1024)).enumerate().filter(|(_, (a, b))| a != b).map(|(n, _)| n).collect()
}

#[test]
fn a_replay_equals_that_of_e2fsck() {
    if !require(&["root", "mke2fs", "e2fsck", "sync"]) {
        return;
    }
    let names: &[&str] = if full_matrix() {
        &[
            "ext4",
            "ext4-1k",
            "ext3",
            "ext3-1k",
            "inline",
            "bigalloc",
            "uninit_bg",
            "indirect",
            "csum_seed",
            "inodes-1k",
        ]
    } else {
        &["ext4", "ext4-1k", "ext3-1k", "uninit_bg"]
    };
    for profile in names.iter().map(|name| profile_named(name)) {
        let directory = tempfile::tempdir().unwrap();
        let ours = dirty(profile, directory.path());
        let theirs = directory.path().join("theirs.img");
        fs::copy(&ours, &theirs).unwrap();
        let device = FileDevice::open(&ours).unwrap();
        assert_eq!(inspect(&device).unwrap().state, JournalState::NeedsReplay, "{}", profile.name);

        // Into memory first: the device must stay as it is.
        let (overlay, in_memory) = replay_into_overlay(&device, &Options::default()).unwrap();
        assert!(differences(&ours, &theirs).is_empty(), "{}: the device was written", profile.name);
        let mut seen = vec![0; overlay.size() as usize];
        overlay.read_at(0, &mut seen).unwrap();
        drop(overlay);

        let report = replay_to_device(&device, &Options::default()).unwrap();
        assert_eq!(report, in_memory);
        assert!(report.transactions > 0 && report.written > 0 && report.damage.is_empty(), "{report:?}");
        assert!(fs::read(&ours).unwrap() == seen, "{}: memory and device", profile.name);
        e2fsck_clean(&ours);

        let output = run("e2fsck", &["-y", "-E", "journal_only", theirs.to_str().unwrap()]);
        assert!(output.status.code().unwrap() <= 1, "{output:?}");
        // The superblock (times, state) and the journal's superblock differ between the two images.
        let differing = differences(&ours, &theirs);
        assert!(differing.len() <= 3, "{}: 1 KiB blocks {differing:?} differ", profile.name);
        println!(
            "{}: {} transactions, {} revokes, {} blocks",
            profile.name, report.transactions, report.revokes, report.written
        );
    }
}
