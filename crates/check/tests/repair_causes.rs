//! Causes that runs of `oracle_repair.rs` found, each by itself.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::{Path, PathBuf};

use blockyard_check::{Cost, Options, RepairOptions, check, claimed_bytes, plan};
use blockyard_device::{BlockDevice, FileDevice};
use blockyard_testkit::{e2fsck_clean, mke2fs, require, run};
use support::small::{self, debugfs, repair};

fn made(folder: &Path, options: &[&str]) -> PathBuf {
    small::made(folder, options, "32M")
}

#[test]
fn a_directory_with_too_long_an_extent_stays() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]);
    // The length of its extent, with the bit that says unwritten.
    debugfs(&image, "set_inode_field one block[4] 0x00008100");
    let before = debugfs(&image, "stat one");
    assert!(before.contains("Size: 1024"), "{before}");
    repair(&image);
    assert!(debugfs(&image, "ls -p one").contains("/two/"), "its name is there");
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
        let device = FileDevice::open(&image).unwrap();
        device.write_at(1024, &[0; 1024]).unwrap();
        drop(device);
        repair(&image);
        assert!(debugfs(&image, "ls -p one").contains("/two/"), "{options:?}");
    }
}

/// A bitmap at the first block of its group's inode table: the bitmap moves, for it can be counted
/// anew.
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
    let device = FileDevice::open(&image).unwrap();
    device.write_at(1024, &[0; 1024]).unwrap();
    drop(device);
    repair(&image);
    assert!(!debugfs(&image, "features").contains("casefold"), "no names that differ in case only");
}

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

/// Garbage over the first block of the inode table, and a sound copy of that block in the log, with
/// other blocks behind it: the rest of the table stays where it is.
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
    // Named by its number: the root was lost, and `one` with the name `two` was not.
    let found = debugfs(&image, "ls -p lost+found");
    let names = found.split('/').filter(|name| name.starts_with('#')).count();
    assert!(names >= 2, "the directories one and three: {found}");
}

/// A descriptor of a single group, without a copy or a checksum, that says the table begins a block
/// later: what lies there looks like inodes, and not like the reserved ones.
#[test]
fn a_table_is_found_a_block_before() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    for n in 0..900 {
        std::fs::create_dir_all(tree.join(format!("many/{n}"))).unwrap();
    }
    let tree = tree.to_str().unwrap();
    let image = folder.path().join("image");
    mke2fs(&image, &["-t", "ext2", "-b", "4096", "-N", "4096", "-d", tree], "32M");
    let table =
        debugfs(&image, "imap <1>").split("at block ").nth(1).unwrap().split(',').next().unwrap().to_owned();
    let next = table.parse::<u64>().unwrap() + 1;
    debugfs(&image, &format!("set_block_group 0 inode_table {next}"));
    repair(&image);
    assert!(debugfs(&image, "ls -p many").contains("/899/"), "its names are there");
}

/// A block with an access list, which has no name, and another attribute: whichever of them says
/// that its value is in an inode that cannot be, it goes, and the other one stays.
#[test]
fn an_access_list_goes_or_stays_alone() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // Owner rw-, user 1000 rw-, group r--, mask rw-, others r--, as user space writes it.
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in
        [(1u16, 6u16, u32::MAX), (2, 6, 1000), (4, 4, u32::MAX), (16, 6, u32::MAX), (32, 4, u32::MAX)]
    {
        list.extend_from_slice(&tag.to_le_bytes());
        list.extend_from_slice(&permissions.to_le_bytes());
        list.extend_from_slice(&id.to_le_bytes());
    }
    let file = folder.path().join("list");
    std::fs::write(&file, list).unwrap();
    let options = ["-t", "ext4", "-b", "1024", "-I", "128", "-O", "^metadata_csum"];
    for (index, stays) in [(2u8, "user.a"), (1, "system.posix_acl_access")] {
        let image = made(folder.path(), &options);
        debugfs(&image, "ea_set one user.a value");
        debugfs(&image, &format!("ea_set -f {} one system.posix_acl_access", file.to_str().unwrap()));
        let stat = debugfs(&image, "stat one");
        let block = stat.split("File ACL:").nth(1).unwrap().split_whitespace().next().unwrap();
        let at = block.parse::<u64>().unwrap() << 10;
        let device = FileDevice::open(&image).unwrap();
        let mut bytes = [0; 96];
        device.read_at(at, &mut bytes).unwrap();
        let is_it = |entry: &usize| bytes[*entry + 1] == index;
        // After the header of 32 bytes: entries of 16, and names in fours.
        let second = 32 + 16 + usize::from(bytes[32]).next_multiple_of(4);
        let entry = [32, second].into_iter().find(is_it).unwrap();
        device.write_at(at + u64::try_from(entry).unwrap() + 4, &[0xFF; 4]).unwrap();
        drop(device);
        repair(&image);
        let left = debugfs(&image, "ea_list one");
        let names = ["user.a", "system.posix_acl_access"].map(|name| left.contains(name));
        assert_eq!(names, [stays == "user.a", stays != "user.a"], "{left}");
    }
}

/// A constant of the superblock and a place in the only descriptor, both wrong behind checksums
/// that are right, and no backup: what the checksums speak for stays.
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
    // In one go: debugfs does not open what the first line makes.
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

/// Revision 0 in the superblock of a file system with inodes of 256 bytes: nothing can be read by
/// it.
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

/// An empty file without a name whose attributes could not be kept: there was something, so it gets
/// a name.
#[test]
fn a_file_that_lost_its_attributes_is_not_empty() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024", "-I", "128"]);
    let empty = folder.path().join("empty");
    std::fs::write(&empty, b"").unwrap();
    debugfs(&image, &format!("write {} file", empty.display()));
    debugfs(&image, "ea_set file user.name value");
    let stat = debugfs(&image, "stat file");
    let number = |key: &str| -> u64 {
        let rest = stat.split(key).nth(1).unwrap().trim_start();
        rest.split_whitespace().next().unwrap().parse().unwrap()
    };
    let (inode, block) = (number("Inode:"), number("File ACL:"));
    assert!(block > 0, "{stat}");
    debugfs(&image, "unlink file");
    debugfs(&image, &format!("set_inode_field <{inode}> links_count 1"));
    let device = FileDevice::open(&image).unwrap();
    device.write_at(block << 10, &[0xA7; 1024]).unwrap();
    drop(device);
    repair(&image);
    assert!(debugfs(&image, "ls -p lost+found").contains(&format!("/#{inode}/")), "{stat}");
}

/// No descriptor and no copy of them is left: where the first table lies says where the others of
/// its flex group do.
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

/// Garbage in the inode of the bad blocks, with the flag of an extent tree that is none: it is no
/// list.
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
/// feature, and a first ordinary inode that no backup knows.
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

/// A descriptor is wrong, and so is the backup that would say better: the descriptor is mended
/// without it.
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

/// The zero behind the target of a link in a block is gone: it comes back, and the target stays.
#[test]
fn a_target_ends_where_its_size_says() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024"]);
    let target = "t".repeat(80);
    debugfs(&image, &format!("symlink link {target}"));
    let block: u64 = debugfs(&image, "blocks link").split_whitespace().last().unwrap().parse().unwrap();
    let device = FileDevice::open(&image).unwrap();
    device.write_at((block << 10) + 80, b"x").unwrap();
    drop(device);
    repair(&image);
    let mut bytes = [0; 82];
    FileDevice::open_read_only(&image).unwrap().read_at(block << 10, &mut bytes).unwrap();
    assert_eq!(bytes, *[target.as_bytes(), &[0, 0]].concat());
    assert!(debugfs(&image, "stat link").contains("Size: 80"));
}

/// The flag of an index on a directory that lies in its inode: the flag goes, and the names stay.
#[test]
fn an_inline_directory_has_no_index() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-O", "inline_data"]);
    debugfs(&image, "set_inode_field one flags 0x10001000");
    let device = FileDevice::open_read_only(&image).unwrap();
    let report = check(&device, &Options::default()).unwrap();
    let codes: Vec<String> = report.findings.iter().map(|finding| finding.code.to_string()).collect();
    assert_eq!(codes, ["0x010049"], "as e2fsck says");
    repair(&image);
    assert!(debugfs(&image, "ls -p one").contains("/two/"), "its name is there");
}

/// An inline directory whose mode says nothing: its entries say what it is.
#[test]
fn an_inline_directory_without_a_mode_stays() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-O", "inline_data,^metadata_csum"]);
    debugfs(&image, "set_inode_field one mode 0177777");
    repair(&image);
    assert!(debugfs(&image, "ls -p one").contains("/two/"), "its name is there");
}

/// The key of one extent in the middle is far too high: the extents behind it are none the worse
/// for that.
#[test]
fn an_extent_out_of_order_goes_alone() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]);
    let pieces = folder.path().join("pieces");
    let file = std::fs::File::create(&pieces).unwrap();
    for piece in 0..20 {
        std::os::unix::fs::FileExt::write_all_at(&file, &[piece + 1; 1024], u64::from(piece) * 4096).unwrap();
    }
    debugfs(&image, &format!("write {} pieces", pieces.display()));
    let tree = debugfs(&image, "dump_extents pieces");
    let leaf = tree.lines().find(|line| line.trim_start().starts_with("0/ 1")).unwrap();
    let leaf: u64 = leaf.split_whitespace().nth(7).unwrap().parse().unwrap();
    let device = FileDevice::open(&image).unwrap();
    device.write_at((leaf << 10) + 12 + 12 * 10, &31_375u32.to_le_bytes()).unwrap();
    drop(device);
    repair(&image);
    let copy = folder.path().join("copy");
    debugfs(&image, &format!("dump pieces {}", copy.display()));
    let mut expected = std::fs::read(&pieces).unwrap();
    expected[10 * 4096..10 * 4096 + 1024].fill(0);
    assert!(std::fs::read(copy).unwrap() == expected, "one piece is missing");
}

/// An impossible size of a value that is kept in an inode: that inode says how long it is.
#[test]
fn the_size_of_a_value_comes_from_its_inode() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image =
        made(folder.path(), &["-t", "ext4", "-b", "1024", "-I", "128", "-O", "ea_inode,^metadata_csum"]);
    let value = folder.path().join("value");
    std::fs::write(&value, [b'v'; 1024]).unwrap();
    debugfs(&image, &format!("ea_set -f {} one user.large", value.display()));
    let stat = debugfs(&image, "stat one");
    let block: u64 =
        stat.split("File ACL:").nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap();
    let device = FileDevice::open(&image).unwrap();
    device.write_at((block << 10) + 32 + 8, &0x0529_C2DDu32.to_le_bytes()).unwrap();
    drop(device);
    repair(&image);
    let copy = folder.path().join("copy");
    debugfs(&image, &format!("ea_get -f {} one user.large", copy.display()));
    assert!(std::fs::read(copy).unwrap().starts_with(&[b'v'; 1024]), "the whole value");
}

/// What stands in lost+found, as `(inode, name)`.
fn lost_found(image: &Path) -> Vec<(u32, String)> {
    let listed = debugfs(image, "ls -p lost+found");
    let entries = listed.lines().filter_map(|line| {
        let mut fields = line.split('/').skip(1);
        let inode = fields.next()?.parse().ok()?;
        Some((inode, fields.nth(3)?.to_owned()))
    });
    entries.filter(|(_, name)| name != "." && name != "..").collect()
}

/// A directory that only itself leads to keeps the name that it had there; another one says which
/// directory `..` names, a file what it begins with; and a name that is taken gets an end. The
/// names that went are listed.
#[test]
fn names_in_lost_found_say_where_files_came_from() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]);
    let text = folder.path().join("text");
    std::fs::write(&text, b"some text\n").unwrap();
    debugfs(&image, &format!("write {} unlinked", text.display()));
    debugfs(&image, "mkdir three/four");
    let number = |path: &str| -> u32 {
        let stat = debugfs(&image, &format!("stat {path}"));
        stat.split("Inode:").nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap()
    };
    let [one, three, four, unlinked] = ["one", "three", "three/four", "unlinked"].map(number);
    // A circle: `one` is named below itself alone.
    for request in ["ln one one/two/back", "unlink one", "unlink three/four", "unlink unlinked"] {
        debugfs(&image, request);
    }
    debugfs(&image, &format!("set_inode_field <{unlinked}> links_count 1"));
    debugfs(&image, &format!("ln three lost+found/#{unlinked}.txt"));
    debugfs(&image, "unlink three");
    let device = FileDevice::open(&image).unwrap();
    let how = RepairOptions { now: 1_700_000_000, ..RepairOptions::default() };
    let plan = plan(&device, &how).unwrap();
    assert!(plan.is_complete(), "{:?}", plan.after);
    plan.apply(&device).unwrap();
    e2fsck_clean(&image);
    let names = lost_found(&image);
    let of = |inode: u32| names.iter().find(|entry| entry.0 == inode).map(|entry| entry.1.clone());
    assert_eq!(of(one), Some(format!("#{one}.back")), "{names:?}");
    assert_eq!(of(four), Some(format!("#{four}.in-{three}")), "{names:?}");
    assert_eq!(of(three), Some(format!("#{unlinked}.txt")), "{names:?}");
    assert_eq!(of(unlinked), Some(format!("#{unlinked}.txt~1")), "{names:?}");
    let gone: Vec<_> = plan.actions.iter().filter_map(|action| action.name.as_deref()).collect();
    assert_eq!(gone, [b"back"], "{:?}", plan.actions);
}

/// The extent of a directory begins a block too early, in the device or in the directory, which no
/// cluster does: it goes where its first block lies, and to the first logical block.
#[test]
fn a_directory_beside_its_cluster_stays() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = ["-t", "ext4", "-b", "4096", "-O", "bigalloc,^metadata_csum", "-C", "16384"];
    for is_early in [true, false] {
        let image = made(folder.path(), &options);
        let block: u64 = debugfs(&image, "blocks one").split_whitespace().next().unwrap().parse().unwrap();
        let field = if is_early { format!("block[5] {}", block - 1) } else { "block[3] 1".to_owned() };
        debugfs(&image, &format!("set_inode_field one {field}"));
        repair(&image);
        assert!(debugfs(&image, "ls -p one").contains("/two/"), "{field}: its name is there");
    }
}

#[test]
fn what_is_cut_out_of_a_file_is_named_in_bytes() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext2", "-b", "1024"]);
    let content = folder.path().join("content");
    std::fs::write(&content, [7; 9000]).unwrap();
    debugfs(&image, &format!("write {} file", content.display()));
    debugfs(&image, "set_inode_field file block[3] 99999999");
    let device = FileDevice::open(&image).unwrap();
    let how = RepairOptions { check: Options::default(), now: 1_700_000_000, ..RepairOptions::default() };
    let plan = plan(&device, &how).unwrap();
    let cut: Vec<_> = plan.actions.iter().filter(|action| action.cost == Cost::Cut).collect();
    let [cut] = cut[..] else { panic!("{cut:?}") };
    let [range] = &cut.ranges[..] else { panic!("{cut:?}") };
    assert_eq!((cut.path.as_deref(), range), (Some(&b"/file"[..]), &(3072..4096)));
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
    // All copies get it, the last one keeps its checksum.
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
fn attributes_that_go_are_named() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // In the inode and in a block.
    let cases = [("256", 128 + 32 + 4, "user.second"), ("128", 32, "user.first")];
    for (inode_size, entry, lost) in cases {
        let image = made(folder.path(), &["-t", "ext4", "-b", "1024", "-I", inode_size]);
        debugfs(&image, "ea_set one user.second something");
        debugfs(&image, "ea_set one user.first something");
        let start = if inode_size == "256" {
            let place = debugfs(&image, "imap one");
            let block = place.split("located at block ").nth(1).unwrap().split(',').next().unwrap();
            let offset = place.split("offset 0x").nth(1).unwrap().trim();
            (block.parse::<u64>().unwrap() << 10) + u64::from_str_radix(offset, 16).unwrap()
        } else {
            let stat = debugfs(&image, "stat one");
            let block = stat.split("File ACL:").nth(1).unwrap().split_whitespace().next().unwrap();
            block.parse::<u64>().unwrap() << 10
        };
        // Where the value of the first entry is.
        FileDevice::open(&image).unwrap().write_at(start + entry + 2, &[0xFF, 0xFF]).unwrap();
        let device = FileDevice::open(&image).unwrap();
        let plan = plan(&device, &RepairOptions::default()).unwrap();
        let cut: Vec<_> = plan.actions.iter().filter(|action| action.cost == Cost::Cut).collect();
        let [cut] = cut[..] else { panic!("{inode_size}: {:?}", plan.actions) };
        assert!(cut.what.starts_with("1 sound attributes kept"), "{cut:?}");
        assert!(cut.what.ends_with(&format!("; lost: {lost}")), "{cut:?}");
        assert_eq!(cut.path.as_deref(), Some(&b"/one"[..]));
    }
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

/// Which of two equal names stays cannot be told from the names: it is the one that e2fsck keeps,
/// wherever it stands in the directory. A name that looks like the new one does not change.
#[test]
fn of_equal_names_the_one_of_the_greatest_inode_stays() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for links in [["name-a", "name-b"], ["name-b", "name-a"]] {
        let image = made(folder.path(), &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]);
        for name in ["name-a", "name-b", "name-b~1"] {
            debugfs(&image, &format!("write /dev/null {name}"));
        }
        let requests = links.map(|name| format!("ln {name} one/{name}"));
        requests.iter().for_each(|request| drop(debugfs(&image, request)));
        debugfs(&image, "ln name-b~1 one/name-b~1");
        let block: u64 = debugfs(&image, "blocks one").trim().parse().unwrap();
        let device = FileDevice::open(&image).unwrap();
        let mut bytes = [0; 1024];
        device.read_at(block * 1024, &mut bytes).unwrap();
        let at = bytes.windows(6).position(|part| part == b"name-a").unwrap();
        device.write_at(block * 1024 + u64::try_from(at).unwrap() + 5, b"b").unwrap();
        drop(device);
        let copy = folder.path().join("copy");
        std::fs::copy(&image, &copy).unwrap();
        run("e2fsck", &["-fy", copy.to_str().unwrap()]);
        repair(&image);
        let number = |image: &Path, path: &str| debugfs(image, &format!("imap {path}"));
        let kept = number(&image, "one/name-b");
        assert_eq!(kept, number(&copy, "one/name-b"), "{links:?}");
        assert_eq!(kept, number(&image, "name-b"), "{links:?}");
        assert_eq!(number(&image, "one/name-b~2"), number(&image, "name-a"), "{links:?}");
        assert_eq!(number(&image, "one/name-b~1"), number(&image, "name-b~1"), "{links:?}");
    }
}

/// A file that the superblock names as the journal is none: the reserved inode holds the log.
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

/// The block of an inode table that a request to debugfs names, and the byte in it.
fn slot_at(image: &Path, inode: &str, block_size: u64) -> u64 {
    let found = debugfs(image, &format!("imap {inode}"));
    let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
    let block = found.split("at block ").nth(1).unwrap().split(',').next().unwrap();
    let offset = found.split("offset ").nth(1).unwrap().trim();
    block.parse::<u64>().unwrap() * block_size + number(offset)
}

/// An entry of the attribute block whose value has an inode, with an offset: e2fsck finds no
/// attribute of that inode then, not even the one that inline data needs.
#[test]
fn an_offset_in_the_attribute_block_hides_no_inline_data() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (content, value) = (folder.path().join("content"), folder.path().join("value"));
    std::fs::write(&content, [b'c'; 100]).unwrap();
    std::fs::write(&value, [b'v'; 1024]).unwrap();
    for sums in ["^metadata_csum", "metadata_csum"] {
        let features = format!("inline_data,ea_inode,{sums}");
        let image = made(folder.path(), &["-t", "ext4", "-b", "1024", "-I", "256", "-O", &features]);
        debugfs(&image, &format!("write {} file", content.display()));
        debugfs(&image, &format!("ea_set -f {} file user.{}", value.display(), "a".repeat(40)));
        let stat = debugfs(&image, "stat file");
        let block = stat.split("File ACL:").nth(1).unwrap().split_whitespace().next().unwrap();
        let device = FileDevice::open(&image).unwrap();
        let at = (block.parse::<u64>().unwrap() << 10) + 32;
        let mut entry = [0; 8];
        device.read_at(at, &mut entry).unwrap();
        assert_eq!((entry[0], entry[4] > 0), (40, true), "the value has an inode: {stat}");
        device.write_at(at + 2, &[4, 0]).unwrap();
        drop(device);
        let device = FileDevice::open(&image).unwrap();
        assert!(!check(&device, &Options::default()).unwrap().is_clean(), "{features}");
        drop(device);
        repair(&image);
        assert_eq!(debugfs(&image, "cat file"), "c".repeat(100), "{features}");
        let kept = folder.path().join("kept");
        debugfs(&image, &format!("ea_get -f {} file user.{}", kept.display(), "a".repeat(40)));
        assert_eq!(std::fs::read(kept).unwrap(), [b'v'; 1024], "{features}");
    }
}

/// A file that claims the block with the list of the resize inode gets a copy of it.
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

/// The only descriptor and the first block of the table are lost: the numbers in the checksums of
/// the other inodes say where the table was.
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

/// The inode of the journal at another number, too, where no checksum tells: the log is no content.
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

/// An attribute in the block that names an inode for its value, which lies in the block: the hash
/// says so, and neither it nor the inline data of the file is lost.
#[test]
fn a_value_in_the_block_has_no_inode() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (content, value) = (folder.path().join("content"), folder.path().join("value"));
    std::fs::write(&content, [b'c'; 100]).unwrap();
    std::fs::write(&value, [b'v'; 200]).unwrap();
    for inode in [4u32, 0x0400_0000] {
        let features = "inline_data,ea_inode,^metadata_csum";
        let image = made(folder.path(), &["-t", "ext4", "-b", "1024", "-I", "256", "-O", features]);
        debugfs(&image, &format!("write {} file", content.display()));
        debugfs(&image, &format!("ea_set -f {} file user.value", value.display()));
        let stat = debugfs(&image, "stat file");
        let block = stat.split("File ACL:").nth(1).unwrap().split_whitespace().next().unwrap();
        let device = FileDevice::open(&image).unwrap();
        let at = (block.parse::<u64>().unwrap() << 10) + 32;
        device.write_at(at + 4, &inode.to_le_bytes()).unwrap();
        drop(device);
        repair(&image);
        assert_eq!(debugfs(&image, "cat file"), "c".repeat(100), "{inode:#x}");
        let kept = folder.path().join("kept");
        debugfs(&image, &format!("ea_get -f {} file user.value", kept.display()));
        assert_eq!(std::fs::read(kept).unwrap(), [b'v'; 200], "{inode:#x}");
    }
}

/// A list of orphans that begins with what is no inode is emptied, or every mount would complain.
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

/// An empty file whose extent tree says a depth that Linux does not read.
#[test]
fn an_empty_tree_has_no_depth() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("empty"), b"").unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]);
    debugfs(&image, &format!("write {} empty", folder.path().join("empty").display()));
    debugfs(&image, "set_inode_field empty block[0] 0x0000f30a");
    debugfs(&image, "set_inode_field empty block[1] 0x40000004");
    repair(&image);
    let at = slot_at(&image, "empty", 1024);
    let mut root = [0; 8];
    FileDevice::open(&image).unwrap().read_at(at + 40, &mut root).unwrap();
    assert_eq!(root, [0x0A, 0xF3, 0, 0, 4, 0, 0, 0]);
}

/// An index node over a leaf, in a directory without checksums: it looks like an empty leaf, and
/// e2fsck takes it for the node it was.
#[test]
fn an_index_node_in_the_place_of_a_leaf_is_found() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let many = folder.path().join("tree/many");
    std::fs::create_dir_all(&many).unwrap();
    for n in 0..900 {
        std::fs::write(many.join(format!("{n:0>200}")), b"").unwrap();
    }
    let image = folder.path().join("image");
    let tree = folder.path().join("tree");
    let options = ["-t", "ext4", "-b", "1024", "-O", "^metadata_csum", "-d", tree.to_str().unwrap()];
    mke2fs(&image, &options, "32M");
    run("e2fsck", &["-fyD", image.to_str().unwrap()]);
    let device = FileDevice::open(&image).unwrap();
    let block = |logical: u32| {
        let place = debugfs(&image, &format!("bmap many {logical}")).trim().parse::<u64>().unwrap() << 10;
        let mut bytes = vec![0; 1024];
        device.read_at(place, &mut bytes).unwrap();
        (place, bytes)
    };
    let first_below = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at + 4..at + 8].try_into().unwrap());
    let (_, root) = block(0);
    assert_eq!(root[30], 1, "the tree has two levels");
    let (_, node) = block(first_below(&root, 32));
    let (leaf, _) = block(first_below(&node, 8));
    device.write_at(leaf, &node).unwrap();
    drop(device);
    let found = run("e2fsck", &["-fn", image.to_str().unwrap()]);
    assert_eq!(found.status.code(), Some(4), "{found:?}");
    let device = FileDevice::open(&image).unwrap();
    assert!(!check(&device, &Options::default()).unwrap().is_clean());
    drop(device);
    repair(&image);
}

/// The superblock is lost, and the descriptors behind its backup, too: those in their own place are
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

/// A backup that says revision 0 has the features and inodes of a later one: files stay.
#[test]
fn a_backup_of_revision_0_is_one_of_revision_1() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]);
    let device = FileDevice::open(&image).unwrap();
    device.write_at((8193 << 10) + 76, &0u32.to_le_bytes()).unwrap();
    // The table of the second group lies nowhere: descriptors come from the backup.
    device.write_at(2048 + 32 * 2 + 8, &[0xFF; 4]).unwrap();
    drop(device);
    repair(&image);
    assert!(debugfs(&image, "ls -p one").contains("/two/"), "its name is there");
}

/// Flags that are all set, on a file with a block map: the map says what it is.
#[test]
fn a_file_with_a_block_map_has_no_inline_data() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let content = folder.path().join("content");
    std::fs::write(&content, [b'c'; 30_000]).unwrap();
    let features = "inline_data,^extent,^64bit,^metadata_csum";
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024", "-I", "256", "-O", features]);
    debugfs(&image, &format!("write {} file", content.display()));
    debugfs(&image, "set_inode_field file flags 0xffffffff");
    repair(&image);
    let kept = folder.path().join("kept");
    debugfs(&image, &format!("dump file {}", kept.display()));
    assert!(std::fs::read(kept).unwrap() == [b'c'; 30_000]);
}
