//! Inode tables and bitmaps that are damaged, or whose positions are wrong or lost. Each test has
//! one case that a repair once handled badly in a run of `oracle_repair.rs`.

#![allow(clippy::unwrap_used)]

mod support;

use blockyard_check::{RepairOptions, plan};
use blockyard_device::{BlockDevice, FileDevice};
use blockyard_testkit::{e2fsck_clean, mke2fs, require, run};
use support::small::{self, debugfs, lost_found, made_32m as made, repair, slot_at};

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

/// The first block of the inode table is garbage, and the log has a sound copy of it. The copy must
/// not be taken for the table, because other blocks follow it: the table stays where it is.
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
    // The root was lost, so the directories that were in it are in lost+found, under new names that
    // begin with `#` and the inode number. `one` still has its content, so `two` has its old name.
    let found = debugfs(&image, "ls -p lost+found");
    let names = found.split('/').filter(|name| name.starts_with('#')).count();
    assert!(names >= 2, "the directories one and three: {found}");
}

/// The only descriptor and the root's block are lost, so that no directory names itself as the
/// root. Inodes have no checksums. The table is found by its reserved inodes. If these are lost as
/// well, the table is not found, and the directories lose their names.
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

/// A descriptor without a copy, but with a correct checksum, names a wrong place for its table.
/// Nothing is there, although the bitmap says that inodes are in use.
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
