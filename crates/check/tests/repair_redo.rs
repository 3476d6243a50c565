//! A repair that swaps content between two places: no power cut loses the content that moves. If
//! e2fsck changes the image after a cut, the redo log does not make the next repair lose a file.

#![allow(clippy::unwrap_used, clippy::as_conversions)]

mod support;

use std::path::Path;
use std::sync::Arc;

use blockyard_check::{Options, RepairOptions, check, plan};
use blockyard_device::{BlockDevice, CrashPlan, Event, MemoryDevice, RecorderDevice};
use blockyard_testkit::images::profile_named;
use blockyard_testkit::mutate::Kind;
use blockyard_testkit::{require, run};

use support::base::Base;
use support::kept::{files_on, missing};

fn repair(device: &dyn BlockDevice) {
    let how = RepairOptions { check: Options::default(), now: 1_700_000_000, ..RepairOptions::default() };
    plan(device, &how).unwrap().apply(device).unwrap();
    assert!(check(device, &Options::default()).unwrap().is_clean());
}

/// An image, and a copy of it in which two blocks of inodes are swapped.
fn swapped(folder: &Path) -> (Base, MemoryDevice) {
    let base = Base::make(profile_named("ext4"), folder);
    let inodes = base.inventory.structures.iter().filter(|one| one.kind == Kind::Inode);
    let mut blocks: Vec<u64> = inodes.map(|one| one.at as u64 / 4096 * 4096).collect();
    blocks.dedup();
    let (one, other) = (blocks[3], blocks[9]);
    let device = base.device.duplicate();
    let (mut a, mut b) = (vec![0; 4096], vec![0; 4096]);
    device.read_at(one, &mut a).unwrap();
    device.read_at(other, &mut b).unwrap();
    device.write_at(one, &b).unwrap();
    device.write_at(other, &a).unwrap();
    (base, device)
}

#[test]
fn swapped_blocks_survive_a_cut_between_their_writes() {
    if !require(&["root", "mke2fs"]) {
        return;
    }
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let (base, damaged) = swapped(folder.path());
    let recorder = RecorderDevice::new(damaged.duplicate());
    repair(&recorder);
    let log = recorder.log();
    let (mut all, mut faults) = (0, Vec::new());
    for state in log.crash_states(&CrashPlan::default()) {
        let device = damaged.duplicate();
        state.build(&log, &device).unwrap();
        repair(&device);
        let lost = missing(&base.files, &files_on(Arc::new(device)));
        all += 1;
        if !lost.is_empty() {
            faults.push(format!("{} files lost: {state}", lost.len()));
        }
    }
    println!("{all} states");
    assert!(all > 10, "states are tried");
    assert!(faults.is_empty(), "{} of {all}: {faults:#?}", faults.len());
}

#[test]
fn a_log_counts_only_while_nobody_else_changed_the_file_system() {
    if !require(&["root", "mke2fs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let (_, damaged) = swapped(folder.path());
    let recorder = RecorderDevice::new(damaged.duplicate());
    repair(&recorder);
    let log = recorder.log();
    let flushes: Vec<usize> =
        (0..log.events().len()).filter(|at| matches!(log.events()[*at], Event::Flush)).collect();
    // After the flush `named`, the superblock names the redo log, and no home block is written yet.
    let [.., named, _, _] = flushes[..] else { panic!("{flushes:?}") };
    let device = damaged.duplicate();
    log.apply_prefix(named + 1, &device).unwrap();
    let how = RepairOptions { check: Options::default(), now: 1_700_000_000, ..RepairOptions::default() };
    assert!(!plan(&device, &how).unwrap().is_empty(), "the log is there");
    let image = folder.path().join("cut.img");
    device.save(&image).unwrap();
    let output = run("e2fsck", &["-fy", image.to_str().unwrap()]);
    assert!(output.status.code().unwrap() < 4, "{output:?}");
    let device = MemoryDevice::load(&image).unwrap();
    let left = files_on(Arc::new(device.duplicate()));
    repair(&device);
    assert_eq!(missing(&left, &files_on(Arc::new(device))), Vec::<Vec<u8>>::new());
}
