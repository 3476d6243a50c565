//! Causes that runs of `oracle_repair.rs` found in superblocks, descriptors, tables, journals and
//! other files of the file system's own, one for each test.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::{Path, PathBuf};

use blockyard_check::{
    Code, Cost, Ending, Options, Preening, RepairOptions, UndoError, check, claimed_bytes, is_marked_clean,
    plan, undo,
};
use blockyard_device::{BlockDevice, FileDevice, MemoryDevice};
use blockyard_disk::Checksums;
use blockyard_disk::jbd2::{JournalFeatures, JournalIncompat, RawJournalSuperblock};
use blockyard_disk::num::u64_from_usize;
use blockyard_disk::superblock::RawSuperblock;
use blockyard_testkit::{e2fsck_clean, mke2fs, require, run};
use support::small::{self, debugfs, lost_found, repair, slot_at};
use zerocopy::{FromBytes, IntoBytes};

fn made(folder: &Path, options: &[&str]) -> PathBuf {
    small::made(folder, options, "32M")
}

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

/// A new journal is as long as mke2fs would make it, as with e2fsck.
#[test]
fn a_new_journal_is_as_long_as_by_mke2fs() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (size, blocks) in [("32M", 4096), ("4G", 16_384)] {
        let image = folder.path().join("image");
        mke2fs(&image, &["-t", "ext4", "-b", if size == "32M" { "1024" } else { "4096" }], size);
        debugfs(&image, "clri <8>");
        repair(&image);
        let device = std::sync::Arc::new(FileDevice::open_read_only(&image).unwrap());
        let reader = blockyard_inspect::reader::Reader::open(device).unwrap();
        let journal = reader.inode(blockyard_disk::InodeNr::JOURNAL).unwrap();
        assert_eq!(journal.size() >> reader.superblock().geometry().block_bits(), blocks, "{size}");
    }
}

/// The first descriptor names an impossible block, so a backup is looked at. The backup has another
/// UUID: with its seed every checksum would be wrong, and every inode lost.
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
    assert!(lost_found(&image).iter().all(|(inode, _)| *inode == 0));
}

#[test]
fn a_wrong_total_stays_where_its_repair_is_declined() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024"]);
    debugfs(&image, "ssv free_blocks_count 5");
    let device = FileDevice::open(&image).unwrap();
    let mends = |options: &RepairOptions| {
        let plan = plan(&device, options).unwrap();
        plan.actions.iter().any(|action| action.code == Code::FREE_BLOCKS_TOTAL)
    };
    assert!(mends(&RepairOptions::default()));
    let declined = RepairOptions { declined: [Code::FREE_BLOCKS_TOTAL].into(), ..RepairOptions::default() };
    assert!(!mends(&declined));
}

/// Bitmaps and counts are written together. Once, a declined correction was made along with the
/// accepted ones.
#[test]
fn declining_one_correction_of_bitmaps_and_counts_declines_all() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024"]);
    let used = debugfs(&image, "blocks one");
    for request in [&format!("freeb {}", used.trim()), "setb 5000 3", "sif one links_count 9"] {
        debugfs(&image, request);
    }
    let device = FileDevice::open(&image).unwrap();
    let codes_after = |declined: &[Code]| -> Vec<Code> {
        let declined = declined.iter().copied().collect();
        let plan = plan(&device, &RepairOptions { declined, ..RepairOptions::default() }).unwrap();
        plan.after.unwrap().findings.iter().filter(|left| left.is_error()).map(|left| left.code).collect()
    };
    assert_eq!(codes_after(&[]), []);
    let both = [Code::BLOCKS_MARKED_FREE_RANGE, Code::BLOCKS_MARKED_USED_RANGE];
    for declined in both {
        let left = codes_after(&[declined]);
        assert!(both.iter().all(|code| left.contains(code)), "{declined}: {left:?}");
        assert!(!left.contains(&Code::LINK_COUNT), "{left:?}");
    }
}

/// Once, a file system was marked clean although repairs were declined, so the next check at boot
/// passed it over.
#[test]
fn what_keeps_errors_is_not_marked_clean() {
    if !require(&["mke2fs", "debugfs", "dumpe2fs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let state_after = |damage: &[&str], declined: &[Code]| {
        let image = made(folder.path(), &["-t", "ext4", "-b", "1024"]);
        for request in damage {
            debugfs(&image, request);
        }
        let device = FileDevice::open(&image).unwrap();
        let declined = declined.iter().copied().collect();
        let plan = plan(&device, &RepairOptions { declined, ..RepairOptions::default() }).unwrap();
        plan.apply(&device).unwrap();
        assert_eq!(is_marked_clean(&device), plan.is_complete());
        let shown = run("dumpe2fs", &["-h", image.to_str().unwrap()]).stdout;
        let state = String::from_utf8_lossy(&shown)
            .lines()
            .find_map(|line| line.strip_prefix("Filesystem state:").map(|state| state.trim().to_owned()));
        state.unwrap()
    };
    let links = "sif <2> links_count 9";
    let error = "ssv state 3";
    assert_eq!(state_after(&[links], &[]), "clean");
    assert_eq!(state_after(&[error, links], &[]), "clean");
    assert_eq!(state_after(&[links], &[Code::LINK_COUNT]), "not clean");
    assert_eq!(state_after(&[error, links], &[Code::LINK_COUNT]), "not clean with errors");
    assert_eq!(state_after(&["sif <2> blocks 8", links], &[Code::LINK_COUNT]), "not clean");
}

/// Once, the checksum of a record did not cover the place of the record. If that was damaged, old
/// bytes were written to a wrong place.
#[test]
fn a_damaged_undo_file_changes_nothing() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024"]);
    debugfs(&image, "sif <2> links_count 9");
    let device = FileDevice::open(&image).unwrap();
    let plan = plan(&device, &RepairOptions::default()).unwrap();
    let path = folder.path().join("undo");
    plan.save_undo(&device, &path).unwrap();
    plan.apply(&device).unwrap();
    let repaired = std::fs::read(&image).unwrap();
    let whole = std::fs::read(&path).unwrap();
    let place_of_a_record = 4096;
    let mut moved = whole.clone();
    moved[place_of_a_record + 1] ^= 0x10;
    for damaged in [&moved, &whole[..whole.len() - 1], &whole[..100]] {
        std::fs::write(&path, damaged).unwrap();
        let error = undo(&device, &path).unwrap_err();
        assert!(matches!(error, UndoError::Format(_)), "{error}");
        assert!(std::fs::read(&image).unwrap() == repaired);
    }
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

/// The inode bitmap is zeroed or torn, too: it has no padding that tells the number of inodes. The
/// blocks that the inodes map tell it, because the table ends before them.
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

/// As above, with large blocks and without descriptors. mke2fs leaves much room between the bitmaps
/// there, and puts the root and the first part of the journal into it. Once, the end of the table
/// was sought behind the rest of the journal. A block of zeroes may look like the inode bitmap.
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

/// In the place of a map, device nodes have numbers of devices. Here these look like blocks in the
/// middle of the inode table.
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

/// The superblock is lost. Flags in the inode table that only garbage has say nothing about
/// features.
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

/// A bitmap at the first block of its group's inode table: the bitmap moves, because it can be
/// computed anew.
#[test]
fn a_bitmap_on_a_table_moves() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext2", "-b", "4096"]);
    let table =
        debugfs(&image, "imap <1>").split("at block ").nth(1).unwrap().split(',').next().unwrap().to_owned();
    debugfs(&image, &format!("set_block_group 0 inode_bitmap {table}"));
    repair(&image);
    assert!(debugfs(&image, "ls -p one").contains("/two/"), "its name is there");
}

/// Garbage over the first block of the inode table, and a sound copy of that block in the log,
/// followed by other blocks: the rest of the table stays where it is.
#[test]
fn a_copy_in_the_log_is_no_table() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext3", "-b", "1024"]);
    let log: u64 = debugfs(&image, "blocks <8>").split_whitespace().next().unwrap().parse().unwrap();
    let table =
        debugfs(&image, "imap <1>").split("at block ").nth(1).unwrap().split(',').next().unwrap().to_owned();
    let table: u64 = table.parse().unwrap();
    let device = FileDevice::open(&image).unwrap();
    let mut block = vec![0; 1024];
    device.read_at(table << 10, &mut block).unwrap();
    device.write_at((log + 4) << 10, &block).unwrap();
    device.write_at(table << 10, &[8; 1024]).unwrap();
    drop(device);
    repair(&image);
    // The directories of the root have their numbers as names, because the root was lost. `one`,
    // which holds the name `two`, was not lost.
    let found = debugfs(&image, "ls -p lost+found");
    let names = found.split('/').filter(|name| name.starts_with('#')).count();
    assert!(names >= 2, "the directories one and three: {found}");
}

/// The only descriptor is lost, and the root's block with it, so that no directory names itself as
/// the root. There is no checksum. The table is found by its reserved inodes. If these are lost as
/// well, an empty table is made, and the journal's copy in the superblock may lie under it.
#[test]
fn a_table_without_a_root_is_found_by_its_reserved_inodes() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = ["-t", "ext4", "-b", "4096", "-O", "^metadata_csum", "-N", "512"];
    for has_reserved in [true, false] {
        let image = small::with_many(folder.path(), 40, &options, "32M");
        let root: u64 = debugfs(&image, "bmap / 0").trim().parse().unwrap();
        let table = slot_at(&image, "<1>", 4096);
        let device = FileDevice::open(&image).unwrap();
        device.write_at(4096, &[0; 4096]).unwrap();
        device.write_at(root * 4096, &[0xA5; 4096]).unwrap();
        if !has_reserved {
            device.write_at(table, &[0xA5; 4096]).unwrap();
        }
        drop(device);
        repair(&image);
        let kept = lost_found(&image).into_iter().find(|(inode, _)| {
            let names = debugfs(&image, &format!("ls -p <{inode}>"));
            (0..40).all(|n| names.contains(&format!("/{n}/")))
        });
        assert_eq!(kept.is_some(), has_reserved, "the directory `many` and its names");
    }
}

/// A descriptor of a single group, without a copy or a checksum, says that the table begins a block
/// later. What lies there looks like inodes, but not like the reserved ones.
#[test]
fn a_table_is_found_a_block_before() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = small::with_many(folder.path(), 900, &["-t", "ext2", "-b", "4096", "-N", "4096"], "32M");
    let table =
        debugfs(&image, "imap <1>").split("at block ").nth(1).unwrap().split(',').next().unwrap().to_owned();
    let next = table.parse::<u64>().unwrap() + 1;
    debugfs(&image, &format!("set_block_group 0 inode_table {next}"));
    repair(&image);
    assert!(debugfs(&image, "ls -p many").contains("/899/"), "its names are there");
}

/// A descriptor without a copy names another place for its table, behind a correct checksum.
/// Nothing is there, and the bitmap says that inodes are in use.
#[test]
fn a_table_is_found_where_mke2fs_puts_it() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let features = "sparse_super2,^has_journal,^resize_inode,^uninit_bg,metadata_csum";
    let options = ["-t", "ext4", "-b", "1024", "-N", "128", "-O", features, "-E", "num_backup_sb=0"];
    let image = small::with_many(folder.path(), 40, &options, "64M");
    assert!(debugfs(&image, "imap <33>").contains("group 2"), "the inodes fill two groups");
    let script = folder.path().join("script");
    let lines = "set_block_group 1 inode_table 30000\nset_block_group 1 checksum calc\n";
    std::fs::write(&script, lines).unwrap();
    run("debugfs", &["-w", "-f", script.to_str().unwrap(), image.to_str().unwrap()]);
    assert!(debugfs(&image, "imap <17>").contains("30000"), "the place is changed");
    repair(&image);
    let names = debugfs(&image, "ls -p many");
    assert!((0..40).all(|n| names.contains(&format!("/{n}/"))), "all are there: {names}");
}

/// A constant of the superblock and a place in the only descriptor are wrong, both behind correct
/// checksums, and there is no backup. What the checksums confirm stays.
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
    // In one run: debugfs does not open what the first line makes.
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

/// No descriptor and no copy of them is left: the place of the first table gives the places of the
/// others in its flex group.
#[test]
fn tables_of_a_flex_group_are_found_behind_the_first() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024"]);
    let device = FileDevice::open(&image).unwrap();
    for block in [2, 8194, 24578] {
        device.write_at(block << 10, &[0xA7; 1024]).unwrap();
    }
    for block in [8193, 24577] {
        device.write_at(block << 10, &[0; 1024]).unwrap();
    }
    drop(device);
    let device = FileDevice::open(&image).unwrap();
    let how = RepairOptions { now: 1_700_000_000, ..RepairOptions::default() };
    let plan = plan(&device, &how).unwrap();
    assert!(plan.is_complete(), "{:?}", plan.after);
    let tables: Vec<&str> = plan
        .actions
        .iter()
        .map(|action| action.what.as_str())
        .filter(|what| what.starts_with("inode table"))
        .collect();
    assert_eq!(tables.len(), 4, "{tables:?}");
    assert!(tables.iter().all(|what| what.starts_with("inode table found")), "{tables:?}");
    plan.apply(&device).unwrap();
    e2fsck_clean(&image);
    assert!(debugfs(&image, "ls -p one").contains("/two/"), "its name is there");
}

/// Garbage in the bad-blocks inode, with the extents flag but no extent tree: it is not a list.
#[test]
fn garbage_is_no_list_of_bad_blocks() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024"]);
    for request in ["uid 7", "flags 0x80000", "block[0] 30000"] {
        debugfs(&image, &format!("set_inode_field <1> {request}"));
    }
    repair(&image);
    assert!(debugfs(&image, "testb 30000").contains("not in use"));
}

/// Fields of the superblock that make sound files look reserved: an inode number without its
/// feature, and a first ordinary inode that no backup has. The files stay.
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

/// A plan for garbage changes no block. Once, a superblock that was tried and rejected was in the
/// plan.
#[test]
fn a_plan_for_what_is_no_file_system_changes_nothing() {
    let device = MemoryDevice::from_bytes(&b"no file system\n".repeat(20_000));
    let plan = plan(&device, &RepairOptions::default()).unwrap();
    assert!(plan.is_empty() && !plan.before.examined && !plan.is_complete());
    assert!(plan.changed_blocks(&device).unwrap().is_empty());
}

#[test]
fn a_journal_device_beside_a_journal_inode_is_none() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024"]);
    debugfs(&image, "set_super_value journal_uuid 00000000-0002-0000-0000-000000000000");
    repair(&image);
    assert!(debugfs(&image, "ls -p one").contains("/two/"), "its files are there");
    assert!(debugfs(&image, "features").contains("has_journal"), "its journal is there");
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

#[test]
fn a_bitmap_on_the_list_of_bad_blocks_is_an_error() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext2", "-b", "1024"]);
    let stats = debugfs(&image, "stats");
    let (_, place) = stats.split_once("block bitmap at ").unwrap();
    let place: String = place.chars().take_while(char::is_ascii_digit).collect();
    for field in [format!("block[0] {place}"), "blocks 2".to_owned()] {
        debugfs(&image, &format!("set_inode_field <1> {field}"));
    }
    let report = check(&FileDevice::open_read_only(&image).unwrap(), &Options::default()).unwrap();
    let codes: Vec<String> = report.findings.iter().map(|finding| finding.code.to_string()).collect();
    assert!(codes.contains(&"0x01000a".to_owned()), "{codes:?}");
    repair(&image);
}

/// e2fsck takes no journal that is encrypted or inline by its flags. A repair takes the inode from
/// the copy in the superblock: the log stays in its blocks.
#[test]
fn a_journal_that_claims_to_be_encrypted_or_inline_is_made_again() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (options, flags) in [
        (&["-t", "ext4", "-J", "size=6"][..], "0x80800"),
        (&["-t", "ext4", "-J", "size=6", "-O", "encrypt"], "0x80800"),
        (&["-t", "ext4", "-J", "size=6"], "0xffffffff"),
        (&["-t", "ext3", "-J", "size=6"], "0x800"),
        (&["-t", "ext3", "-J", "size=6"], "0x10000000"),
    ] {
        let image = made(folder.path(), options);
        let log = debugfs(&image, "blocks <8>");
        debugfs(&image, &format!("sif <8> flags {flags}"));
        let found = check(&FileDevice::open_read_only(&image).unwrap(), &Options::default()).unwrap();
        let codes: Vec<Code> = found.findings.iter().map(|finding| finding.code).collect();
        assert!(codes.contains(&Code::JOURNAL_INODE), "{options:?} {flags}: {codes:?}");
        repair(&image);
        assert_eq!(debugfs(&image, "blocks <8>"), log, "{options:?} {flags}");
    }
}

/// The superblock names a file as the journal, but the reserved inode holds the log. The file
/// stays, and the superblock names the reserved inode again.
#[test]
fn a_file_that_is_named_as_the_journal_stays() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let content = folder.path().join("content");
    std::fs::write(&content, vec![0x5A; 1 << 20]).unwrap();
    for options in [&["-t", "ext3"][..], &["-t", "ext4", "-O", "^metadata_csum"], &["-t", "ext4"]] {
        let image = made(folder.path(), options);
        debugfs(&image, &format!("write {} file", content.display()));
        let stat = debugfs(&image, "stat file");
        let inode = stat.split("Inode:").nth(1).unwrap().split_whitespace().next().unwrap();
        debugfs(&image, &format!("set_super_value journal_inum {inode}"));
        repair(&image);
        let kept = folder.path().join("kept");
        debugfs(&image, &format!("dump file {}", kept.display()));
        assert!(std::fs::read(&kept).unwrap() == std::fs::read(&content).unwrap(), "{options:?}");
        assert!(debugfs(&image, "stats").contains("Journal inode:            8"), "{options:?}");
    }
}

/// A file claims the block with the list of the resize inode. The list stays where it is, and the
/// file no longer has that block.
#[test]
fn the_resize_inode_keeps_its_list() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let content = folder.path().join("content");
    std::fs::write(&content, [b'c'; 3072]).unwrap();
    let image = made(folder.path(), &["-t", "ext3", "-b", "1024"]);
    debugfs(&image, &format!("write {} file", content.display()));
    let listed = debugfs(&image, "stat <7>");
    let list = listed.split("(DIND):").nth(1).unwrap().split([',', '\n']).next().unwrap();
    debugfs(&image, &format!("set_inode_field file block[1] {list}"));
    repair(&image);
    assert!(debugfs(&image, "stat <7>").contains(&format!("(DIND):{list}")), "it stays where it was");
    assert!(!debugfs(&image, "blocks file").split_whitespace().any(|block| block == list));
    let kept = folder.path().join("kept");
    debugfs(&image, &format!("dump file {}", kept.display()));
    assert_eq!(std::fs::read(kept).unwrap().len(), 3072);
}

/// The only descriptor and the first block of the table are lost: the checksums of the other inodes
/// cover their numbers, and so say where the table was.
#[test]
fn a_table_is_found_by_its_second_block() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    for n in 0..100 {
        std::fs::create_dir_all(tree.join(format!("many/{n}"))).unwrap();
    }
    let tree = tree.to_str().unwrap();
    for block_size in ["1024", "4096"] {
        let image = folder.path().join("image");
        let size = if block_size == "1024" { "8M" } else { "32M" };
        mke2fs(&image, &["-t", "ext4", "-b", block_size, "-d", tree], size);
        let block_size: u64 = block_size.parse().unwrap();
        let table = slot_at(&image, "<1>", block_size);
        let device = FileDevice::open(&image).unwrap();
        device.write_at(table, &vec![0; usize::try_from(block_size).unwrap()]).unwrap();
        device.write_at(2048.max(block_size), &[0; 64]).unwrap();
        drop(device);
        repair(&image);
        assert_eq!(slot_at(&image, "<1>", block_size), table, "the table is where it was");
        for inode in [20, 60, 110] {
            let stat = debugfs(&image, &format!("stat <{inode}>"));
            assert!(stat.contains("Type: directory"), "{block_size}: {stat}");
        }
    }
}

/// A copy of the journal's inode is in the slot of a file, and no checksum tells: the log does not
/// become the file's content.
#[test]
fn a_copy_of_the_journal_inode_is_no_file() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let content = folder.path().join("content");
    std::fs::write(&content, [b'c'; 100]).unwrap();
    for kind in [&["-t", "ext3"][..], &["-t", "ext4", "-O", "^metadata_csum"]] {
        let image = made(folder.path(), &[kind, &["-b", "1024"]].concat());
        debugfs(&image, &format!("write {} file", content.display()));
        let (journal, file) = (slot_at(&image, "<8>", 1024), slot_at(&image, "file", 1024));
        let device = FileDevice::open(&image).unwrap();
        let mut slot = [0; 128];
        device.read_at(journal, &mut slot).unwrap();
        device.write_at(file, &slot).unwrap();
        drop(device);
        repair(&image);
        assert!(!debugfs(&image, "ls -p").contains("/file/"), "{kind:?}: the log has no other name");
        let found = lost_found(&image);
        assert!(!found.iter().any(|entry| entry.1.starts_with('#')), "{kind:?}: {found:?}");
    }
}

/// An orphan list whose head is not an inode is emptied, or every mount would complain.
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

/// A backup that says revision 0, but has the features and inodes of a later one: files stay.
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

/// The byte offset of the journal's superblock, and what it says.
fn journal_of(image: &Path) -> (u64, RawJournalSuperblock) {
    let at = debugfs(image, "bmap <8> 0").trim().parse::<u64>().unwrap() << 10;
    let mut bytes = vec![0; RawJournalSuperblock::SIZE];
    FileDevice::open_read_only(image).unwrap().read_at(at, &mut bytes).unwrap();
    (at, RawJournalSuperblock::read_from_bytes(&bytes).unwrap())
}

/// Writes a log of three transactions of one block each, which fill blocks from 9000 on.
fn write_log(folder: &Path, image: &Path) {
    let (commands, data) = (folder.join("commands"), folder.join("data"));
    std::fs::write(&data, [7; 1024]).unwrap();
    let blocks = (9000..9003).map(|block| format!("jw -b {block} {}\n", data.display()));
    std::fs::write(&commands, format!("jo -c\n{}jc\n", blocks.collect::<String>())).unwrap();
    run("debugfs", &["-w", "-f", commands.to_str().unwrap(), image.to_str().unwrap()]);
}

/// Once, files that were synchronised with fast commits were lost: `-p` and `-y` discarded the log.
#[test]
fn fast_commits_are_not_discarded() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024"]);
    write_log(folder.path(), &image);
    let (at, mut journal) = journal_of(&image);
    let device = FileDevice::open(&image).unwrap();
    let features = journal.features();
    let incompat = features.incompat | JournalIncompat::FAST_COMMIT;
    journal.set_features(JournalFeatures { incompat, ..features });
    journal.seal();
    device.write_at(at, journal.as_bytes()).unwrap();
    // A record of the transaction after the last one, at the start of the area.
    let area = at + (u64::from(journal.s_maxlen.get() - journal.fast_commit_area()) << 10);
    device.write_at(area, &[9, 0, 8, 0, 0, 0, 0, 0, 4, 0, 0, 0]).unwrap();
    let before = std::fs::read(&image).unwrap();
    let refused = plan(&device, &RepairOptions::default()).unwrap();
    let Preening::Refuses(finding) = refused.preening() else { panic!("{:?}", refused.preening()) };
    assert_eq!(finding.code, Code::LOG_UNSUPPORTED);
    assert!(finding.detail.contains("mount it with Linux or run e2fsck"), "{}", finding.detail);
    assert_eq!((refused.preened_ending(), refused.ending()), (Ending::Uncorrected, Ending::Unusable));
    refused.apply(&device).unwrap();
    assert!(std::fs::read(&image).unwrap() == before, "nothing is written");
    // Linux discards such a log when the superblock does not ask for recovery. The repair says so.
    debugfs(&image, "feature ^needs_recovery");
    let discarded = plan(&device, &RepairOptions::default()).unwrap();
    let action = discarded.actions.iter().find(|action| action.code == Code::LOG_NOT_EMPTY).unwrap();
    assert!(action.what.contains("fast commits") && action.cost == Cost::Doubtful, "{action:?}");
}

/// Once, the new, empty log began with transaction 1. After the next crash, old transactions that
/// stood where a new one ended were replayed.
#[test]
fn an_emptied_journal_begins_after_the_transactions_in_it() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024"]);
    write_log(folder.path(), &image);
    let (at, _) = journal_of(&image);
    FileDevice::open(&image).unwrap().write_at(at, &[0; 1024]).unwrap();
    repair(&image);
    let journal = journal_of(&image).1;
    assert_eq!((journal.s_start.get(), journal.s_sequence.get()), (0, 4));
}

/// Once, the whole log was discarded because the copy of the superblock in it was corrupt.
#[test]
fn a_corrupt_superblock_in_the_log_costs_nothing_else() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024"]);
    let (commands, data, zeros) =
        (folder.path().join("commands"), folder.path().join("data"), folder.path().join("zeros"));
    std::fs::write(&data, [7; 1024]).unwrap();
    std::fs::write(&zeros, [0; 1024]).unwrap();
    let text = format!("jo -c\njw -b 1 {}\njw -b 9000 {}\njc\n", zeros.display(), data.display());
    std::fs::write(&commands, text).unwrap();
    run("debugfs", &["-w", "-f", commands.to_str().unwrap(), image.to_str().unwrap()]);
    repair(&image);
    let mut block = [0; 1024];
    let device = FileDevice::open(&image).unwrap();
    device.read_at(9000 << 10, &mut block).unwrap();
    assert_eq!((block[0], is_marked_clean(&device)), (7, true));
}
