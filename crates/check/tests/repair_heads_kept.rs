//! Superblocks and descriptors with a correct checksum and one wrong field, which makes sound files
//! look wrong; and file systems whose superblocks and descriptors are all lost. Most of these
//! faults once cost a whole file system.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::{Path, PathBuf};

use blockyard_check::{Ending, RepairOptions, claimed_bytes, plan};
use blockyard_device::{BlockDevice, FileDevice};
use blockyard_disk::superblock::RawSuperblock;
use blockyard_disk::{BlockCount, Checksums, Incompat, RoCompat};
use blockyard_testkit::{e2fsck_clean, require, run};
use support::small::{self, debugfs, repair};
use zerocopy::{FromBytes, IntoBytes};

/// The tools that the tests need.
const TOOLS: [&str; 3] = ["mke2fs", "debugfs", "e2fsck"];
/// How many directories `many` has. Their inodes fill more than one block.
const MANY: usize = 90;

/// Changes the primary superblock, and seals it.
fn change(image: &Path, change: impl FnOnce(&mut RawSuperblock)) {
    let device = FileDevice::open(image).unwrap();
    let mut bytes = [0; RawSuperblock::SIZE];
    device.read_at(1024, &mut bytes).unwrap();
    let sb = RawSuperblock::mut_from_bytes(&mut bytes).unwrap();
    change(sb);
    Checksums::of(sb).seal_superblock(sb);
    device.write_at(1024, sb.as_bytes()).unwrap();
}

fn superblock_at(image: &Path, at: u64) -> RawSuperblock {
    let mut bytes = [0; RawSuperblock::SIZE];
    FileDevice::open_read_only(image).unwrap().read_at(at, &mut bytes).unwrap();
    RawSuperblock::read_from_bytes(&bytes).unwrap()
}

fn with_many(folder: &Path, options: &[&str], size: &str) -> PathBuf {
    small::with_many(folder, MANY, options, size)
}

/// Asserts that every directory in `many` has its name.
fn assert_kept(image: &Path, what: &str) {
    let names = debugfs(image, "ls -p many");
    assert!((0..MANY).all(|n| names.contains(&format!("/{n}/"))), "{what}: {names}");
}

/// With flex_bg, bitmaps and the root of a small file system directly follow the blocks reserved
/// for descriptors. Once, if the superblock said that more were reserved, a repair wrote indirect
/// blocks of the resize inode over bitmaps and root.
#[test]
fn lists_of_the_resize_inode_cover_no_root() {
    if !require(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (size, options) in [("8M", "^metadata_csum"), ("8M", "metadata_csum"), ("48M", "metadata_csum")] {
        let image = with_many(folder.path(), &["-t", "ext4", "-b", "4096", "-O", options], size);
        let right = superblock_at(&image, 1024).s_reserved_gdt_blocks.get();
        for more in [1, 2, 3, 5] {
            change(&image, |sb| sb.s_reserved_gdt_blocks.set(right + more));
            repair(&image);
            assert_kept(&image, &format!("{size} {options}: {right} and {more}"));
            assert_eq!(superblock_at(&image, 1024).s_reserved_gdt_blocks.get(), right);
        }
    }
}

/// The superblock says that too many blocks are reserved for descriptors. The bitmaps of group 0
/// lie elsewhere, so these blocks hold directories, but no bitmap or table. The directories stay.
#[test]
fn lists_of_the_resize_inode_cover_no_file() {
    if !require(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = with_many(folder.path(), &["-t", "ext4", "-b", "4096", "-O", "^metadata_csum"], "8M");
    for field in ["block_bitmap", "inode_bitmap"] {
        let free = debugfs(&image, "ffb 1 1500");
        let free = free.rsplit(' ').map(str::trim).find(|word| !word.is_empty()).unwrap().to_owned();
        debugfs(&image, &format!("set_block_group 0 {field} {free}"));
        debugfs(&image, &format!("setb {free}"));
    }
    repair(&image);
    change(&image, |sb| sb.s_reserved_gdt_blocks.set(6));
    repair(&image);
    assert_kept(&image, "bitmaps elsewhere");
}

/// Groups are not as large as mke2fs makes them by default. Once, the repair guessed their size,
/// and did not look for backups where groups of the right size have them.
#[test]
fn a_wrong_size_of_groups_is_no_guess() {
    if !require(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for options in [
        &["-t", "ext3", "-b", "2048", "-g", "2048", "-N", "6144"][..],
        &["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "^flex_bg,^metadata_csum"],
        &["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "^flex_bg,metadata_csum"],
        // This one has no backup, but `s_clusters_per_group` is right.
        &[
            "-t",
            "ext2",
            "-b",
            "1024",
            "-g",
            "1024",
            "-O",
            "sparse_super2,^resize_inode",
            "-E",
            "num_backup_sb=0",
        ],
    ] {
        for bits in [1, 8, 0x4000] {
            let image = with_many(folder.path(), options, "24M");
            let right = superblock_at(&image, 1024).s_blocks_per_group.get();
            change(&image, |sb| sb.s_blocks_per_group.set(right ^ bits));
            repair(&image);
            assert_kept(&image, &format!("{options:?} {bits}"));
            assert_eq!(superblock_at(&image, 1024).s_blocks_per_group.get(), right, "{options:?}");
        }
    }
}

/// The superblock has the feature bigalloc by mistake. Once, every inode with a block map was
/// cleared, because bigalloc does not allow such maps.
#[test]
fn bigalloc_with_block_maps_is_none() {
    if !require(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for options in [
        &["-t", "ext3", "-b", "4096"][..],
        &["-t", "ext2", "-b", "4096"],
        &["-t", "ext2", "-b", "1024"],
        &["-t", "ext3", "-b", "2048", "-g", "2048"],
        &["-t", "ext4", "-b", "4096", "-O", "^extent,^64bit"],
    ] {
        let image = with_many(folder.path(), options, "40M");
        change(&image, |sb| sb.set_ro_compat(sb.ro_compat() | RoCompat::BIGALLOC));
        repair(&image);
        assert_kept(&image, &format!("{options:?}"));
        assert!(!superblock_at(&image, 1024).ro_compat().contains(RoCompat::BIGALLOC));
    }
}

/// bigalloc with clusters of one block is possible, and stays when something else is repaired.
#[test]
fn bigalloc_with_clusters_of_a_block_stays() {
    if !require(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = ["-t", "ext4", "-b", "4096", "-O", "bigalloc,^resize_inode", "-C", "4096"];
    let image = with_many(folder.path(), &options, "40M");
    debugfs(&image, "sif <2> links_count 9");
    repair(&image);
    assert_kept(&image, "a cluster of a block");
    assert!(superblock_at(&image, 1024).ro_compat().contains(RoCompat::BIGALLOC));
}

/// The log of a mounted file system has copies of the first table block, with a sound root. The
/// descriptor of the only group names such a copy as its table.
#[test]
fn the_copy_of_a_table_in_the_log_is_not_the_table() {
    if !require(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for kind in ["ext3", "ext4"] {
        let image = with_many(folder.path(), &["-t", kind, "-b", "4096"], "32M");
        let log: u64 = debugfs(&image, "blocks <8>").split_whitespace().next().unwrap().parse().unwrap();
        let table = small::slot_at(&image, "<1>", 4096);
        let device = FileDevice::open(&image).unwrap();
        let mut block = vec![0; 4096];
        device.read_at(table, &mut block).unwrap();
        device.write_at((log + 4) << 12, &block).unwrap();
        drop(device);
        let script = folder.path().join("script");
        let lines = format!("set_block_group 0 inode_table {}\nset_block_group 0 checksum calc\n", log + 4);
        std::fs::write(&script, lines).unwrap();
        let arguments = ["-w", "-f", script.to_str().unwrap(), image.to_str().unwrap()];
        run("debugfs", &arguments);
        repair(&image);
        assert_kept(&image, kind);
    }
}

/// The superblock claims one block too many, and that block begins a cluster. With clusters of 16
/// blocks, backups are not where they would be without bigalloc. If there are backups,
/// [`claimed_bytes`] is still right.
#[test]
fn a_block_too_many_goes_by_any_backup() {
    if !require(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let features = "bigalloc,sparse_super2,^resize_inode";
    for backups in ["num_backup_sb=2", "num_backup_sb=0"] {
        let options = ["-t", "ext4", "-b", "1024", "-O", features, "-C", "16384", "-E", backups];
        let image = with_many(folder.path(), &options, "300M");
        change(&image, |sb| sb.set_blocks_count(sb.blocks_count() + BlockCount::new(1)));
        let claimed = claimed_bytes(&FileDevice::open_read_only(&image).unwrap()).unwrap();
        assert_eq!(claimed == 300 << 20, backups == "num_backup_sb=2", "{claimed} bytes");
        std::fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(claimed).unwrap();
        repair(&image);
        assert_kept(&image, backups);
    }
}

/// Once, an error that was left in the superblock was copied into every sound backup.
#[test]
fn casefold_without_an_encoding_goes_and_backups_stay() {
    if !require(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = with_many(folder.path(), &["-t", "ext4", "-b", "4096", "-g", "2048"], "48M");
    let backup = 2048 << 12;
    let before = superblock_at(&image, backup);
    change(&image, |sb| sb.set_incompat(sb.incompat() | Incompat::CASEFOLD));
    let device = FileDevice::open(&image).unwrap();
    let declined = [blockyard_check::Code::SUPERBLOCK_CONSTANT].into();
    let how = RepairOptions { declined, now: 1_700_000_000, ..RepairOptions::default() };
    let left = plan(&device, &how).unwrap();
    assert!(
        !left.changed_blocks(&device).unwrap().contains(&(backup >> 12)),
        "a sound backup is overwritten"
    );
    drop(left);
    drop(device);
    repair(&image);
    assert_kept(&image, "casefold");
    assert!(!superblock_at(&image, 1024).incompat().contains(Incompat::CASEFOLD));
    assert_eq!(superblock_at(&image, backup).incompat(), before.incompat());
}

/// If a directory folds case, the feature is right, and it is the encoding that was lost.
#[test]
fn casefold_that_a_directory_uses_gets_its_encoding() {
    if !require(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = with_many(folder.path(), &["-t", "ext4", "-b", "4096", "-O", "casefold"], "48M");
    debugfs(&image, "mkdir folded");
    debugfs(&image, "sif folded flags 0x40080000");
    change(&image, |sb| sb.s_encoding.set(0));
    let device = FileDevice::open(&image).unwrap();
    let how = RepairOptions { now: 1_700_000_000, ..RepairOptions::default() };
    // There is no verdict about such a directory, so the plan is not called complete.
    plan(&device, &how).unwrap().apply(&device).unwrap();
    drop(device);
    e2fsck_clean(&image);
    let sb = superblock_at(&image, 1024);
    assert!(sb.incompat().contains(Incompat::CASEFOLD) && sb.s_encoding.get() == 1);
    assert!(debugfs(&image, "stat folded").contains("0x40080000"), "the directory still folds case");
}

/// Byte offsets of the superblock and of its backups with sparse_super, up to group 27.
fn superblocks(image: &Path) -> Vec<u64> {
    let sb = superblock_at(image, 1024);
    let size = 1024 << sb.s_log_block_size.get();
    let group_at = |group: u64| {
        let block = u64::from(sb.s_first_data_block.get()) + group * u64::from(sb.s_blocks_per_group.get());
        block * size
    };
    let backups = [1, 3, 5, 7, 9, 25, 27].map(group_at).into_iter();
    let end = sb.blocks_count().raw() * size;
    std::iter::once(1024).chain(backups.filter(|at| *at < end)).collect()
}

/// Zeroes every superblock and the first block of descriptors behind it.
fn lose_heads(image: &Path) {
    let size = 1024u64 << superblock_at(image, 1024).s_log_block_size.get();
    let places = superblocks(image);
    let device = FileDevice::open(image).unwrap();
    for at in places {
        device.write_at(at, &[0; 1024]).unwrap();
        let behind = (at / size + 1) * size;
        device.write_at(behind, &vec![0; usize::try_from(size).unwrap()]).unwrap();
    }
}

/// With flex_bg, the tables of several groups come before the first block of a file. Once, the
/// table of each group was inferred to be as large as all of them together.
#[test]
fn heads_of_several_groups_are_inferred() {
    if !require(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (options, size) in [
        (&["-t", "ext4", "-b", "1024"][..], "32M"),
        (&["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"], "32M"),
        (&["-t", "ext4", "-b", "1024", "-O", "^has_journal"], "64M"),
        (&["-t", "ext4", "-b", "1024"], "200M"),
        (&["-t", "ext4", "-b", "1024", "-i", "1024"], "64M"),
        (&["-t", "ext4", "-b", "4096"], "600M"),
        (&["-t", "ext4", "-b", "1024", "-O", "^flex_bg"], "64M"),
        (&["-t", "ext3", "-b", "1024"], "64M"),
    ] {
        let image = with_many(folder.path(), options, size);
        lose_heads(&image);
        repair(&image);
        assert_kept(&image, &format!("{options:?} {size}"));
    }
}

/// The inode bitmap is lost, too, so the number of inodes of a group is a guess. Once, a repair
/// that relied on a wrong guess cleared the files. Now either nothing is changed, or all is kept.
#[test]
fn heads_with_a_guessed_number_of_inodes_cost_no_file() {
    if !require(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (options, size) in [
        (&["-t", "ext4", "-b", "1024"][..], "32M"),
        (&["-t", "ext4", "-b", "1024", "-O", "^flex_bg"], "32M"),
        (&["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"], "32M"),
        (&["-t", "ext3", "-b", "1024"], "32M"),
    ] {
        let image = with_many(folder.path(), options, size);
        let stats = debugfs(&image, "stats");
        let (_, place) = stats.split_once("inode bitmap at ").unwrap();
        let place: u64 = place.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap();
        lose_heads(&image);
        let device = FileDevice::open(&image).unwrap();
        device.write_at(place << 10, &[0; 1024]).unwrap();
        let how = RepairOptions { now: 1_700_000_000, ..RepairOptions::default() };
        let plan = plan(&device, &how).unwrap();
        if plan.ending() == Ending::Unusable {
            assert!(plan.actions.is_empty() && plan.changed_blocks(&device).unwrap().is_empty());
            continue;
        }
        assert!(plan.is_complete(), "{options:?}: {:?}", plan.after);
        plan.apply(&device).unwrap();
        drop(device);
        e2fsck_clean(&image);
        assert_kept(&image, &format!("{options:?}"));
    }
}

/// The descriptor of a group without inodes in use places its table over that of group 0. Its
/// checksum is correct, and no copy says otherwise. The findings name group 0, but its table stays.
#[test]
fn a_table_that_another_overlaps_stays() {
    if !require(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for features in
        ["sparse_super2", "sparse_super2,^metadata_csum,uninit_bg", "sparse_super2,meta_bg,^resize_inode"]
    {
        let options = ["-t", "ext4", "-b", "1024", "-O", features, "-E", "num_backup_sb=0"];
        let image = with_many(folder.path(), &options, "32M");
        let stats = debugfs(&image, "stats");
        let (_, first) = stats.split_once("inode table at ").unwrap();
        let first: u64 = first.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap();
        for group in [1, 2] {
            let damaged = folder.path().join("damaged");
            std::fs::copy(&image, &damaged).unwrap();
            let script = folder.path().join("script");
            let place = format!("set_block_group {group} inode_table {}", first - 3);
            std::fs::write(&script, format!("{place}\nset_block_group {group} checksum calc\n")).unwrap();
            run("debugfs", &["-w", "-f", script.to_str().unwrap(), damaged.to_str().unwrap()]);
            repair(&damaged);
            assert_kept(&damaged, &format!("{features}, group {group}"));
        }
    }
}

/// Two tables lie where mke2fs puts none, and a third overlaps both. Only the third is wrong.
#[test]
fn tables_that_a_third_one_overlaps_stay() {
    if !require(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let features = "sparse_super2,^metadata_csum,uninit_bg,^has_journal";
    let options = ["-t", "ext4", "-b", "1024", "-N", "256", "-O", features, "-E", "num_backup_sb=0"];
    let image = small::with_many(folder.path(), 160, &options, "32M");
    let stats = debugfs(&image, "stats");
    let place = |group: usize| -> u64 {
        let text = stats.split("inode table at ").nth(group + 1).unwrap();
        text.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    assert!(debugfs(&image, "imap <140>").contains("group 2"), "the inodes fill more than two groups");
    let requests = |lines: &str| {
        let script = folder.path().join("script");
        std::fs::write(&script, lines).unwrap();
        run("debugfs", &["-w", "-f", script.to_str().unwrap(), image.to_str().unwrap()]);
    };
    let device = FileDevice::open(&image).unwrap();
    let mut table = vec![0; 16 << 10];
    for (group, to) in [(1, 20_000), (2, 20_020)] {
        device.read_at(place(group) << 10, &mut table).unwrap();
        device.write_at(to << 10, &table).unwrap();
        requests(&format!(
            "set_block_group {group} inode_table {to}\nset_block_group {group} checksum calc\n"
        ));
    }
    drop(device);
    run("e2fsck", &["-fy", image.to_str().unwrap()]);
    e2fsck_clean(&image);
    let sound = std::fs::read(&image).unwrap();
    for wrong in [20_006, 20_010, 20_014] {
        std::fs::write(&image, &sound).unwrap();
        requests(&format!("set_block_group 3 inode_table {wrong}\nset_block_group 3 checksum calc\n"));
        repair(&image);
        let names = debugfs(&image, "ls -p many");
        assert!((0..160).all(|n| names.contains(&format!("/{n}/"))), "{wrong}: {names}");
    }
}
