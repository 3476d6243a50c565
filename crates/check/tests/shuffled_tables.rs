//! Blocks of inodes at each other's places go home, and copies over other blocks do not become files.

#![allow(clippy::unwrap_used, clippy::as_conversions)]

mod support;

use std::path::Path;
use std::sync::Arc;

use blockyard_check::{Options, RepairOptions, check, plan};
use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_testkit::images::profile_named;
use blockyard_testkit::mutate::Kind;
use blockyard_testkit::require;

use support::base::Base;
use support::kept::{files_on, missing};

fn repaired(device: MemoryDevice) -> MemoryDevice {
    let how = RepairOptions { check: Options::default(), now: 1_700_000_000, ..RepairOptions::default() };
    plan(&device, &how).unwrap().apply(&device).unwrap();
    assert!(check(&device, &Options::default()).unwrap().is_clean());
    device
}

/// Writes one block over another; gives what was there.
fn put(device: &MemoryDevice, at: u64, bytes: &[u8]) -> Vec<u8> {
    let mut old = vec![0; bytes.len()];
    device.read_at(at, &mut old).unwrap();
    device.write_at(at, bytes).unwrap();
    old
}

#[test]
fn blocks_of_inodes_go_home() {
    if !require(&["root", "mke2fs"]) {
        return;
    }
    let folder = tempfile::tempdir_in(Path::new("/dev/shm")).unwrap();
    let base = Base::make(profile_named("ext4"), folder.path());
    let inodes = base.inventory.structures.iter().filter(|one| one.kind == Kind::Inode);
    let mut blocks: Vec<u64> = inodes.map(|one| one.at as u64 / 4096 * 4096).collect();
    blocks.dedup();
    let (first, last) = (blocks[0], blocks[blocks.len() - 2]);
    for (one, other) in [(first, last), (blocks[3], blocks[9])] {
        let device = base.device.duplicate();
        let mut bytes = vec![0; 4096];
        device.read_at(one, &mut bytes).unwrap();
        let there = put(&device, other, &bytes);
        put(&device, one, &there);
        let left = files_on(Arc::new(repaired(device)));
        assert_eq!(missing(&base.files, &left), Vec::<Vec<u8>>::new(), "{one:#x} and {other:#x}");
    }
    // A copy over another block: its inodes keep what they have, and nothing is there twice.
    let device = base.device.duplicate();
    let mut bytes = vec![0; 4096];
    device.read_at(blocks[4], &mut bytes).unwrap();
    put(&device, blocks[8], &bytes);
    let left = files_on(Arc::new(repaired(device)));
    assert!(missing(&base.files, &left).len() <= 16, "only the block that was written over is lost");
    assert!(!left.keys().any(|path| path.starts_with(b"/lost+found/#")), "{:?}", left.keys());
}
