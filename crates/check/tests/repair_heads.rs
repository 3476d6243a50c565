//! Damages of superblocks, descriptors and their backups that repairs handled badly in runs of
//! `oracle_repair.rs`, one for each test.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;

use blockyard_check::{Code, RepairOptions, claimed_bytes, plan};
use blockyard_device::{BlockDevice, FileDevice};
use blockyard_disk::Checksums;
use blockyard_disk::num::u64_from_usize;
use blockyard_disk::superblock::RawSuperblock;
use blockyard_testkit::{mke2fs, require, run};
use support::small::{self, debugfs, lost_found, made_32m as made, repair};
use zerocopy::FromBytes;

/// Zeroes the superblock of the first group.
fn lose_superblock(image: &Path) {
    FileDevice::open(image).unwrap().write_at(1024, &[0; 1024]).unwrap();
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

/// The first descriptor names an impossible block, so a repair tries a backup. The backup has
/// another UUID: with its checksum seed every checksum would be wrong, and every inode lost.
#[test]
fn a_backup_with_another_seed_takes_no_file_along() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024", "-O", "metadata_csum"]);
    let before = debugfs(&image, "stat one/two");
    debugfs(&image, "set_bg 0 block_bitmap 4294967295");
    debugfs(&image, "set_bg 0 checksum calc");
    let device = FileDevice::open(&image).unwrap();
    let mut bytes = [0; RawSuperblock::SIZE];
    device.read_at(8193 * 1024, &mut bytes).unwrap();
    let copy = RawSuperblock::mut_from_bytes(&mut bytes).unwrap();
    copy.s_uuid = [0; 16];
    Checksums::of(copy).seal_superblock(copy);
    device.write_at(8193 * 1024, &bytes).unwrap();
    drop(device);
    repair(&image);
    assert_eq!(debugfs(&image, "stat one/two"), before);
    assert!(lost_found(&image).is_empty());
}

#[test]
fn a_superblock_is_inferred_where_no_copy_is_left() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for options in [
        &["-t", "ext2", "-b", "4096"][..],
        &["-t", "ext4", "-b", "4096"],
        &["-t", "ext4", "-b", "2048"],
        &["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "8192"],
        &["-t", "ext4", "-b", "4096", "-O", "bigalloc", "-C", "65536"],
    ] {
        let image = made(folder.path(), options);
        lose_superblock(&image);
        repair(&image);
        assert!(debugfs(&image, "ls -p one").contains("/two/"), "{options:?}");
    }
}

/// The superblock is lost, and the inode bitmap is zeroed or torn, so that its padding does not
/// show the number of inodes. The blocks that the inodes map show this number, because the table
/// ends before these blocks.
#[test]
fn a_superblock_is_inferred_beside_a_damaged_inode_bitmap() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    const BLOCK: usize = 65_536;
    let half_of_the_padding: Vec<u8> = [[0xFF; BLOCK / 2], [0x5A; BLOCK / 2]].concat();
    for damaged in [&[0; BLOCK][..], &half_of_the_padding] {
        let image = small::made(folder.path(), &["-t", "ext2", "-b", "65536"], "128M");
        let device = FileDevice::open(&image).unwrap();
        let mut bitmap = [0; 4];
        device.read_at(u64_from_usize(BLOCK) + 4, &mut bitmap).unwrap();
        let at = u64::from(u32::from_le_bytes(bitmap)) * u64_from_usize(BLOCK);
        device.write_at(at, damaged).unwrap();
        drop(device);
        lose_superblock(&image);
        repair(&image);
        assert!(debugfs(&image, "ls -p one").contains("/two/"));
    }
}

/// Superblock, descriptors and the bitmaps of group 0 are lost. With blocks of 8 KiB and more,
/// mke2fs leaves much room between the bitmaps, and puts the root and the first part of the journal
/// into it. Once, the repair looked for the end of the table behind the rest of the journal.
#[test]
fn a_superblock_is_inferred_for_large_blocks_without_bitmaps() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (size, inodes) in [(8192u64, 32_768), (16_384, 16_384), (32_768, 8192), (65_536, 4096)] {
        let image = small::made(folder.path(), &["-t", "ext4", "-b", &size.to_string()], "256M");
        let device = FileDevice::open(&image).unwrap();
        let mut places = [0; 8];
        device.read_at(size, &mut places).unwrap();
        let bitmaps = places.chunks_exact(4).map(|place| u32::from_le_bytes(place.try_into().unwrap()));
        let zeroes = vec![0; usize::try_from(size).unwrap()];
        for block in bitmaps.map(u64::from).chain([0, 1]) {
            device.write_at(block * size, &zeroes).unwrap();
        }
        drop(device);
        repair(&image);
        assert!(debugfs(&image, "ls -p one").contains("/two/"), "blocks of {size}");
        let count = debugfs(&image, "show_super_stats -h");
        let count = count.lines().find_map(|line| line.strip_prefix("Inode count:")).unwrap();
        assert_eq!(count.trim(), inodes.to_string(), "blocks of {size}");
    }
}

/// Device nodes have a device number in the place of a map. Here the numbers look like blocks in
/// the middle of the inode table.
#[test]
fn a_superblock_is_inferred_beside_device_nodes() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = small::made(folder.path(), &["-t", "ext2", "-b", "4096", "-N", "32768"], "64M");
    debugfs(&image, "mknod null c 1 3");
    debugfs(&image, "mknod zero c 1 5");
    lose_superblock(&image);
    repair(&image);
    assert!(debugfs(&image, "ls -p one").contains("/two/"));
    assert!(debugfs(&image, "show_super_stats -h").contains("Inode count:              32768"));
}

/// The repair says which parts of an inferred superblock are new, guessed or lost.
#[test]
fn an_inferred_superblock_is_told_with_what_is_new_or_guessed() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (kind, uuid) in [("ext2", "the UUID is new"), ("ext4", "the UUID is the journal's")] {
        let image = made(folder.path(), &["-t", kind, "-b", "4096"]);
        lose_superblock(&image);
        let device = FileDevice::open(&image).unwrap();
        let how = RepairOptions { now: 1_700_000_000, ..RepairOptions::default() };
        let planned = plan(&device, &how).unwrap();
        let action = planned.actions.iter().find(|action| action.code == Code::SUPERBLOCK_BAD).unwrap();
        for part in [uuid, "features are guessed", "label"] {
            assert!(action.what.contains(part), "{kind}: {}", action.what);
        }
    }
}

/// The superblock is lost. Garbage in the flags of some inodes says nothing about features.
#[test]
fn garbage_in_a_table_infers_no_feature() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = ["-t", "ext4", "-b", "4096", "-O", "^has_journal,^metadata_csum,^resize_inode"];
    let image = made(folder.path(), &options);
    for name in ["three", "one/two"] {
        debugfs(&image, &format!("set_inode_field {name} flags 0xFFFFFFFF"));
    }
    debugfs(&image, "set_inode_field three mode 0100644");
    lose_superblock(&image);
    repair(&image);
    assert!(!debugfs(&image, "features").contains("casefold"), "no names that differ in case only");
}

/// A constant of the superblock and a place in the only descriptor are wrong, although the
/// checksums are correct, and there is no backup. The directories stay.
#[test]
fn a_sealed_descriptor_speaks_for_the_superblock() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let features = "bigalloc,sparse_super2,^has_journal,^flex_bg";
    let image = folder.path().join("image");
    mke2fs(&image, &["-t", "ext4", "-b", "1024", "-O", features, "-C", "8192"], "64M");
    for request in ["mkdir one", "mkdir one/two"] {
        debugfs(&image, request);
    }
    let stats = debugfs(&image, "stats");
    let (_, place) = stats.split_once("inode bitmap at ").unwrap();
    let place: String = place.chars().take_while(char::is_ascii_digit).collect();
    let script = folder.path().join("script");
    // Both lines in one run, because debugfs would not open the image again after the first line.
    let lines = format!("set_block_group 0 block_bitmap {place}\nset_block_group 0 checksum calc\n");
    std::fs::write(&script, lines).unwrap();
    run("debugfs", &["-w", "-f", script.to_str().unwrap(), image.to_str().unwrap()]);
    let device = FileDevice::open(&image).unwrap();
    let mut sb = [0; 1024];
    device.read_at(1024, &mut sb).unwrap();
    let per_group = u32::from_le_bytes(sb[0x28..0x2C].try_into().unwrap());
    sb[0x28..0x2C].copy_from_slice(&(per_group - 1).to_le_bytes());
    let sum = blockyard_disk::checksum::crc32c_raw(!0, &sb[..0x3FC]);
    sb[0x3FC..].copy_from_slice(&sum.to_le_bytes());
    device.write_at(1024, &sb).unwrap();
    drop(device);
    repair(&image);
    assert!(debugfs(&image, "ls -p one").contains("/two/"), "its name is there");
}

/// Revision 0 in the superblock of a file system with inodes of 256 bytes: nothing can be read with
/// that revision, so it is corrected.
#[test]
fn a_lost_revision_comes_back() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for options in [&["-t", "ext4"][..], &["-t", "ext4", "-O", "^metadata_csum"]] {
        let image = made(folder.path(), options);
        debugfs(&image, "set_super_value rev_level 0");
        repair(&image);
        assert!(debugfs(&image, "ls -p one").contains("/two/"), "{options:?}");
    }
}

/// Fields of the superblock that make sound files look reserved: the number of a quota or orphan
/// file without the feature, and a number of the first ordinary inode that no backup has. The files
/// stay.
#[test]
fn files_that_the_superblock_takes_for_its_own_stay() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for field in ["grp_quota_inum 12", "orphan_file_inum 12", "prj_quota_inum 12", "first_ino 100"] {
        let image = made(folder.path(), &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]);
        debugfs(&image, &format!("set_super_value {field}"));
        repair(&image);
        assert!(debugfs(&image, "ls -p one").contains("/two/"), "{field}");
    }
}

/// A descriptor is wrong, and so is the backup that would correct it: the descriptor is repaired
/// without the backup.
#[test]
fn a_damaged_backup_takes_no_place() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]);
    debugfs(&image, "set_block_group 1 inode_table 4294967000");
    let device = FileDevice::open(&image).unwrap();
    // s_inodes_per_group of the first backup.
    device.write_at((8193 << 10) + 0x28, &2050u32.to_le_bytes()).unwrap();
    drop(device);
    repair(&image);
    assert!(debugfs(&image, "ls -p one").contains("/two/"), "its name is there");
}

#[test]
fn a_size_that_only_the_superblock_says_is_wrong() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024"]);
    debugfs(&image, "set_super_value blocks_count 32769");
    repair(&image);
    assert!(debugfs(&image, "ls -p one").contains("/two/"), "its files are there");
    assert_eq!(claimed_bytes(&FileDevice::open(&image).unwrap()), Some(32 << 20));
}

#[test]
fn a_backup_with_an_impossible_first_inode_is_taken_all_the_same() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024", "-O", "sparse_super2,^resize_inode"]);
    // Both backups get this superblock, with its correct checksum. Then the primary one gets an
    // impossible block size.
    debugfs(&image, "set_super_value first_ino 262155");
    let device = FileDevice::open(&image).unwrap();
    let mut head = vec![0; 1024];
    device.read_at(1024, &mut head).unwrap();
    for group in [1u64, 3] {
        device.write_at((1 + group * 8192) << 10, &head).unwrap();
    }
    device.write_at(1024 + 0x18, &[0xFF]).unwrap();
    drop(device);
    repair(&image);
    assert!(debugfs(&image, "ls -p one").contains("/two/"), "its files are there");
}

/// An orphan list whose head is not an inode is emptied; otherwise every mount would complain.
#[test]
fn a_head_of_the_orphan_list_that_is_no_inode_goes() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for options in [["-t", "ext2"], ["-t", "ext4"]] {
        let image = made(folder.path(), &options);
        debugfs(&image, "set_super_value last_orphan 4294967295");
        repair(&image);
        let header = run("dumpe2fs", &["-h", image.to_str().unwrap()]);
        let header = String::from_utf8_lossy(&header.stdout).into_owned();
        assert!(header.contains("Filesystem state:") && !header.contains("First orphan"), "{header}");
    }
}

/// The superblock is lost, and so are the descriptors after its backup. The primary descriptors are
/// sound and stay.
#[test]
fn a_backup_without_descriptors_leaves_those_that_are_used() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for options in [["-t", "ext3", "-b", "1024"], ["-t", "ext4", "-b", "1024"]] {
        let image = made(folder.path(), &options);
        let device = FileDevice::open(&image).unwrap();
        device.write_at(1024, &[0xA5; 1024]).unwrap();
        device.write_at((8193 + 1) << 10, &[0; 1024]).unwrap();
        let how = RepairOptions { now: 1_700_000_000, ..RepairOptions::default() };
        let plan = plan(&device, &how).unwrap();
        let of_tables = plan.actions.iter().filter(|action| action.code.raw() == 0x00_0003);
        assert_eq!(of_tables.count(), 0, "no table was looked for: {:?}", plan.actions);
        drop(plan);
        drop(device);
        repair(&image);
        assert!(debugfs(&image, "ls -p one").contains("/two/"), "{options:?}: its name is there");
    }
}

/// A backup says revision 0, but has the features and the inode size of revision 1: files stay.
#[test]
fn a_backup_of_revision_0_is_one_of_revision_1() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]);
    let device = FileDevice::open(&image).unwrap();
    device.write_at((8193 << 10) + 76, &0u32.to_le_bytes()).unwrap();
    // The table of the second group is at an impossible place: descriptors come from the backup.
    device.write_at(2048 + 32 * 2 + 8, &[0xFF; 4]).unwrap();
    drop(device);
    repair(&image);
    assert!(debugfs(&image, "ls -p one").contains("/two/"), "its name is there");
}
