//! A repair puts swapped blocks of inode tables back. If a block of a table was copied over another
//! one, the copy adds no files. Tables stay where they are if only the primary descriptor says
//! otherwise.

#![allow(clippy::unwrap_used, clippy::as_conversions)]

mod support;

use std::path::Path;
use std::sync::Arc;

use blockyard_check::{Options, RepairOptions, check, plan};
use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_disk::superblock::RawSuperblock;
use blockyard_disk::{Checksums, RoCompat};
use blockyard_testkit::images::profile_named;
use blockyard_testkit::mutate::Kind;
use blockyard_testkit::require;
use zerocopy::FromBytes;

use support::base::Base;
use support::kept::{files_on, missing};

fn repaired(device: MemoryDevice) -> MemoryDevice {
    let how = RepairOptions { check: Options::default(), now: 1_700_000_000, ..RepairOptions::default() };
    plan(&device, &how).unwrap().apply(&device).unwrap();
    assert!(check(&device, &Options::default()).unwrap().is_clean());
    device
}

/// Writes one block over another; returns what was there.
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
    // The first block is swapped with the last of its table, where no inode was ever used.
    let device = base.device.duplicate();
    let field = |at: u64| {
        let mut bytes = [0; 4];
        device.read_at(1024 + at, &mut bytes).unwrap();
        u32::from_le_bytes(bytes)
    };
    let (inodes, inode_size) = (u64::from(field(40)), u64::from(field(88) & 0xFFFF));
    let unused = first + inodes * inode_size - 4096;
    assert!(!blocks.contains(&unused), "{unused:#x} holds inodes in use");
    let mut bytes = vec![0; 4096];
    device.read_at(first, &mut bytes).unwrap();
    let there = put(&device, unused, &bytes);
    put(&device, first, &there);
    let left = files_on(Arc::new(repaired(device)));
    assert_eq!(missing(&base.files, &left), Vec::<Vec<u8>>::new(), "{first:#x} and {unused:#x}");
    // A copy over another block: files outside the overwritten block stay, and the copied inodes
    // get no names in lost+found.
    let device = base.device.duplicate();
    let mut bytes = vec![0; 4096];
    device.read_at(blocks[4], &mut bytes).unwrap();
    put(&device, blocks[8], &bytes);
    let left = files_on(Arc::new(repaired(device)));
    assert!(missing(&base.files, &left).len() <= 16, "only the block that was written over is lost");
    assert!(!left.keys().any(|path| path.starts_with(b"/lost+found/#")), "{:?}", left.keys());
}

#[test]
fn a_table_that_its_descriptor_alone_puts_elsewhere_is_found() {
    if !require(&["root", "mke2fs"]) {
        return;
    }
    let folder = tempfile::tempdir_in(Path::new("/dev/shm")).unwrap();
    let base = Base::make(profile_named("ext3-1k"), folder.path());
    let group = 8192 * 1024;
    let descriptors = base.inventory.structures.iter().filter(|one| one.kind == Kind::GroupDesc);
    let mut all = 0;
    for at in descriptors.map(|one| one.at as u64).filter(|at| *at > 2048 && *at < group) {
        let device = base.device.duplicate();
        let mut table = [0; 4];
        device.read_at(at + 8, &mut table).unwrap();
        let shifted = u32::from_le_bytes(table) + 1;
        device.write_at(at + 8, &shifted.to_le_bytes()).unwrap();
        let left = files_on(Arc::new(repaired(device)));
        assert_eq!(missing(&base.files, &left), Vec::<Vec<u8>>::new(), "descriptor at {at:#x}");
        all += 1;
    }
    assert!(all > 1, "groups are tried");
}

/// The descriptor names a place for the table that is one block too far: ordinary files are where
/// reserved inodes should be. There is no checksum that shows this, and no backup, because there is
/// only one group.
#[test]
fn a_first_table_one_block_too_far_is_found() {
    if !require(&["root", "mke2fs"]) {
        return;
    }
    let folder = tempfile::tempdir_in(Path::new("/dev/shm")).unwrap();
    let base = Base::make(profile_named("64k-ext2"), folder.path());
    let device = base.device.duplicate();
    let table = 0x1_0000 + 8;
    let mut place = [0; 4];
    device.read_at(table, &mut place).unwrap();
    put(&device, table, &(u32::from_le_bytes(place) + 1).to_le_bytes());
    let left = files_on(Arc::new(repaired(device)));
    assert_eq!(missing(&base.files, &left), Vec::<Vec<u8>>::new());
}

/// The primary superblock has a wrong checksum, and the backup of group 1 lost a feature that says
/// where backups lie. The other backups and the primary superblock have it.
#[test]
fn a_backup_that_the_others_contradict_is_not_taken() {
    if !require(&["root", "mke2fs"]) {
        return;
    }
    let folder = tempfile::tempdir_in(Path::new("/dev/shm")).unwrap();
    let base = Base::make(profile_named("no-flex_bg"), folder.path());
    let device = base.device.duplicate();
    let at = 8193 * 1024;
    let mut bytes = [0; RawSuperblock::SIZE];
    device.read_at(at, &mut bytes).unwrap();
    let sb = RawSuperblock::mut_from_bytes(&mut bytes).unwrap();
    sb.set_ro_compat(sb.ro_compat().difference(RoCompat::SPARSE_SUPER));
    Checksums::of(sb).seal_superblock(sb);
    put(&device, at, &bytes);
    put(&device, 1024 + 0x268, &0x20u32.to_le_bytes());
    let left = files_on(Arc::new(repaired(device)));
    assert_eq!(missing(&base.files, &left), Vec::<Vec<u8>>::new());
}
