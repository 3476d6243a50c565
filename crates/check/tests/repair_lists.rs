//! Damage that runs of `oracle_repair.rs` found: wrong fields and entries of lists, tables and
//! directories. Sound files must still be there after the repair.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;

use blockyard_check::{Action, Cost, Options, RepairOptions, check, plan};
use blockyard_device::{BlockDevice, FileDevice};
use blockyard_testkit::{e2fsck_bounded, e2fsck_clean, require, run};
use support::small::{self, debugfs, lost_found, made, repair};

/// Header of an attribute list in an inode.
const ATTRIBUTES: [u8; 4] = 0xEA02_0000u32.to_le_bytes();

/// The number after some words in the output of debugfs.
fn number_behind(text: &str, words: &str) -> u64 {
    let (_, rest) = text.split_once(words).unwrap_or_else(|| panic!("{words:?} in {text}"));
    let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

/// Byte offset of an inode in the image.
fn place_of(image: &Path, inode: &str, block_size: u64) -> u64 {
    let told = debugfs(image, &format!("imap {inode}"));
    let (_, offset) = told.split_once("offset 0x").unwrap();
    let digits: String = offset.chars().take_while(char::is_ascii_hexdigit).collect();
    number_behind(&told, "located at block ") * block_size + u64::from_str_radix(&digits, 16).unwrap()
}

fn codes(image: &Path) -> Vec<String> {
    let report = check(&FileDevice::open_read_only(image).unwrap(), &Options::default()).unwrap();
    report.findings.iter().map(|finding| finding.code.to_string()).collect()
}

/// One entry of an attribute list: name index, offset of the value, zero-padded name, value.
type Entry<'a> = (u8, u16, &'a [u8; 4], &'a [u8]);

/// An attribute list of two entries as it is in an inode.
fn list(entries: [Entry<'_>; 2]) -> Vec<u8> {
    let mut area = ATTRIBUTES.to_vec();
    area.resize(96, 0);
    for ((index, offset, name, value), at) in entries.into_iter().zip([4, 24]) {
        let length = name.iter().take_while(|byte| **byte != 0).count();
        area[at] = u8::try_from(length).unwrap();
        area[at + 1] = index;
        area[at + 2..at + 4].copy_from_slice(&offset.to_le_bytes());
        area[at + 8..at + 12].copy_from_slice(&u32::try_from(value.len()).unwrap().to_le_bytes());
        area[at + 16..at + 20].copy_from_slice(name);
        if !value.is_empty() {
            let from = 4 + usize::from(offset);
            area[from..from + value.len()].copy_from_slice(value);
        }
    }
    area
}

/// Actions that move a file to lost+found name its old path, as far as that is known.
#[test]
fn lost_files_are_told_with_their_old_paths() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4"], "8M");
    let content = folder.path().join("content");
    std::fs::write(&content, b"few bytes\n").unwrap();
    for made in ["/a", "/a/b", "/a/b/c"] {
        debugfs(&image, &format!("mkdir {made}"));
    }
    debugfs(&image, &format!("write {} /a/b/c/file", content.display()));
    // Clears the inodes of c and a. Then b and the file have lost the directories that they are in.
    debugfs(&image, "clri /a/b/c");
    debugfs(&image, "clri /a");
    let device = FileDevice::open(&image).unwrap();
    let plan = plan(&device, &RepairOptions { now: 1_700_000_000, ..RepairOptions::default() }).unwrap();
    assert!(plan.is_complete(), "{:?}", plan.after);
    let told = |action: &Action| {
        let path = action.path.as_ref().map(|path| String::from_utf8_lossy(path).into_owned());
        format!("{} {} {}", action.cost.text(), path.as_deref().unwrap_or("-"), action.what)
    };
    let costly: Vec<String> =
        plan.actions.iter().filter(|action| action.cost > Cost::Nothing).map(told).collect();
    assert_eq!(
        costly,
        [
            "removed /a name of inode 15 removed",
            "removed /a/b/c name of inode 17 removed",
            "moved /a/b named lost+found/#16.b",
            "moved /a/b/c/file named lost+found/#18.file",
        ]
    );
}

/// A directory and everything in it lost their inodes. The blocks of the directories still have the
/// names, so the repair lists each name exactly once, with its path. An earlier version listed
/// only the first name.
#[test]
fn names_in_lost_directories_are_listed() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for options in [&["-t", "ext4"][..], &["-t", "ext3", "-b", "1024"]] {
        let image = made(folder.path(), options, "8M");
        let content = folder.path().join("content");
        std::fs::write(&content, b"few bytes\n").unwrap();
        for request in ["mkdir /a", "mkdir /a/b", "write CONTENT /a/f", "write CONTENT /a/b/file"] {
            debugfs(&image, &request.replace("CONTENT", content.to_str().unwrap()));
        }
        for path in ["/a/b/file", "/a/f", "/a/b", "/a"] {
            debugfs(&image, &format!("clri {path}"));
        }
        let device = FileDevice::open(&image).unwrap();
        let plan = plan(&device, &RepairOptions { now: 1_700_000_000, ..RepairOptions::default() }).unwrap();
        assert!(plan.is_complete(), "{:?}", plan.after);
        let costly = plan.actions.iter().filter(|action| action.cost > Cost::Nothing);
        let told: Vec<(&str, &str, &str)> = costly
            .map(|action| {
                let path = std::str::from_utf8(action.path.as_deref().unwrap()).unwrap();
                (action.cost.text(), path, &action.what[..])
            })
            .collect();
        assert_eq!(
            told,
            [
                ("removed", "/a", "name of inode 15 removed"),
                ("removed", "/a/b", "name of inode 16 lost with its directory"),
                ("removed", "/a/f", "name of inode 17 lost with its directory"),
                ("removed", "/a/b/file", "name of inode 18 lost with its directory"),
            ],
            "{options:?}"
        );
        plan.apply(&device).unwrap();
        e2fsck_clean(&image);
    }
}

/// An empty attribute whose value would lie outside of the inode hides the attribute of inline data
/// or of encryption: e2fsck asks to truncate the file, or to clear the flag. Our check finds the
/// same; our repair keeps the content and the flag.
#[test]
fn an_attribute_outside_hides_the_others() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let content = folder.path().join("content");
    std::fs::write(&content, b"few bytes\n").unwrap();
    // A context of version 1: modes, flags, descriptor, nonce.
    let context = [&[1, 1, 4, 0][..], &[7; 24]].concat();
    let inline: Entry<'_> = (7, 0, b"data", b"");
    let encryption: Entry<'_> = (9, 64, b"c\0\0\0", &context);
    for (offset, is_hidden) in [(0x5C, false), (0x5D, true), (0x2000, true)] {
        let other: Entry<'_> = (1, offset, b"user", b"");
        for (feature, own, code) in [("inline_data", inline, "0x010075"), ("encrypt", encryption, "0x01008a")]
        {
            let features = format!("{feature},^metadata_csum");
            let image =
                made(folder.path(), &["-t", "ext4", "-b", "1024", "-I", "256", "-O", &features], "8M");
            debugfs(&image, &format!("write {} file", content.display()));
            let owner = if feature == "encrypt" { "three" } else { "file" };
            if owner == "three" {
                debugfs(&image, "set_inode_field three flags 0x80800");
            }
            let device = FileDevice::open(&image).unwrap();
            device.write_at(place_of(&image, owner, 1024) + 160, &list([own, other])).unwrap();
            drop(device);
            let found = codes(&image);
            assert_eq!(found.contains(&code.to_owned()), is_hidden, "{feature} {offset:#x}: {found:?}");
            assert_eq!(
                e2fsck_bounded(&image).code,
                Some(if is_hidden { 4 } else { 0 }),
                "{feature} {offset:#x}"
            );
            repair(&image);
            assert!(debugfs(&image, "cat file").contains("few bytes"), "{feature} {offset:#x}");
            let flags = debugfs(&image, "stat three");
            assert!(feature != "encrypt" || flags.contains("Flags: 0x80800"), "{flags}");
        }
    }
}

/// The superblock names a journal inode, although the feature has_journal is off and the file
/// system is too small for a journal. A bitmap has wrong padding. No journal is made, but the
/// padding is still mended.
#[test]
fn what_follows_a_journal_that_is_not_made_is_mended() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = ["-t", "ext4", "-b", "4096", "-N", "512", "-O", "^has_journal,^metadata_csum"];
    let image = made(folder.path(), &options, "4M");
    debugfs(&image, "set_super_value journal_inum 300");
    let bitmap = number_behind(&debugfs(&image, "stats"), "inode bitmap at ");
    let device = FileDevice::open(&image).unwrap();
    device.write_at((bitmap << 12) + 4000, &[0; 8]).unwrap();
    drop(device);
    repair(&image);
}

/// The list of bad blocks names a block of the inode table. The inodes in it keep their names.
#[test]
fn a_table_on_the_list_of_bad_blocks_keeps_its_inodes() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext2", "-b", "1024"], "32M");
    let table = place_of(&image, "three", 1024) >> 10;
    for field in [format!("block[0] {table}"), "blocks 2".to_owned()] {
        debugfs(&image, &format!("set_inode_field <1> {field}"));
    }
    assert!(codes(&image).contains(&"0x020005".to_owned()), "{:?}", codes(&image));
    repair(&image);
    let names = debugfs(&image, "ls -p");
    assert!(names.contains("/one/") && names.contains("/three/"), "{names}");
}

/// The bad-blocks inode has an owner, and its map names a block outside the file system. So the
/// other block that it names is garbage, too.
#[test]
fn a_map_that_leads_outside_is_no_list_of_bad_blocks() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024"], "32M");
    for request in ["uid 7", "block[0] 30000", "block[1] 0xFFFFFF00"] {
        debugfs(&image, &format!("set_inode_field <1> {request}"));
    }
    repair(&image);
    assert!(debugfs(&image, "testb 30000").contains("not in use"));
}

/// lost+found must be made, but every inode in the used part of a table is taken. The old
/// lost+found gets a name in the new one.
#[test]
fn lost_found_takes_an_inode_that_was_never_used() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024"], "32M");
    debugfs(&image, "unlink lost+found");
    repair(&image);
    assert!(debugfs(&image, "ls -p lost+found").contains("/#11"), "{}", debugfs(&image, "ls -p lost+found"));
}

/// The blocks that mke2fs gives lost+found are room for names when no block is free. They stay, as
/// with e2fsck, also when names are added or a block is damaged. Once, only one block was left.
#[test]
fn lost_found_keeps_its_blocks() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (options, size) in
        [(&["-t", "ext4", "-b", "1024"][..], 12_288), (&["-t", "ext3", "-b", "4096", "-I", "128"], 16_384)]
    {
        for (damage, names) in [
            ("clri many", 80),
            ("zap_block -f lost+found 0", 0),
            ("zap_block -f lost+found 2", 0),
            ("unlink many/7", 1),
        ] {
            let image = small::with_many(folder.path(), 80, options, "32M");
            debugfs(&image, damage);
            repair(&image);
            let stat = debugfs(&image, "stat lost+found");
            assert!(stat.contains(&format!("Size: {size}\n")), "{options:?}, {damage}: {stat}");
            let found = lost_found(&image).len();
            assert_eq!(found, names, "{options:?}, {damage}");
        }
    }
}

/// The first block of the first table, with all reserved inodes, was swapped with another block.
/// The rest of the table is in its place, and stays there.
#[test]
fn a_block_with_the_root_elsewhere_is_no_table() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = ["-t", "ext2", "-b", "4096", "-I", "128", "-N", "4096"];
    let image = small::with_many(folder.path(), 200, &options, "32M");
    let table = number_behind(&debugfs(&image, "imap <1>"), "located at block ");
    let device = FileDevice::open(&image).unwrap();
    let (mut first, mut other) = (vec![0; 4096], vec![0; 4096]);
    // The other block is free.
    device.read_at(table << 12, &mut first).unwrap();
    device.read_at(8000 << 12, &mut other).unwrap();
    device.write_at(table << 12, &other).unwrap();
    device.write_at(8000 << 12, &first).unwrap();
    drop(device);
    assert_ne!(e2fsck_bounded(&image).code, Some(0));
    repair(&image);
    let found = debugfs(&image, "ls -p lost+found");
    let names = found.split('/').filter(|name| name.starts_with('#')).count();
    assert!(names >= 160, "directories behind the block: {found}");
}

/// A superblock without a backup says that the first ordinary inode comes after the first files.
/// Its checksum, if it has one, is correct. The files stay.
#[test]
fn files_below_the_first_inode_stay() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for options in [&["-t", "ext4", "-b", "4096"][..], &["-t", "ext2", "-b", "4096"]] {
        let image = made(folder.path(), options, "32M");
        debugfs(&image, "set_super_value first_ino 14");
        repair(&image);
        assert!(debugfs(&image, "ls -p one").contains("/two/"), "{options:?}");
    }
}

/// The superblock, whose checksum is correct if it has one, reserves more blocks for descriptors
/// than there are before the first table. The table stays where it is.
#[test]
fn a_table_is_not_among_reserved_descriptors() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for options in [&["-t", "ext4", "-b", "4096"][..], &["-t", "ext3", "-b", "1024"]] {
        let image = made(folder.path(), options, "32M");
        debugfs(&image, "set_super_value reserved_gdt_blocks 255");
        repair(&image);
        assert!(debugfs(&image, "ls -p one").contains("/two/"), "{options:?}");
    }
}

/// In a superblock with a correct checksum the total of inodes and their number in a group
/// contradict each other, and no backup helps. The bitmaps show which is right.
#[test]
fn inodes_are_as_many_as_their_bitmaps_have() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // Groups of an unusual size, whose backups are not where they are looked for first; and a
    // single group, which has none.
    let small = &["-t", "ext4", "-b", "1024", "-I", "128", "-g", "512", "-N", "16384", "-O", "^flex_bg"][..];
    for (options, size, fields) in [
        (small, "32M", ["inodes_count 20480", "inodes_per_group 320", "inodes_count 8192"]),
        (
            &["-t", "ext4", "-b", "4096", "-N", "4096"],
            "64M",
            ["inodes_count 8192", "inodes_per_group 8192", "inodes_count 2048"],
        ),
    ] {
        for field in fields {
            let image = made(folder.path(), options, size);
            let before = debugfs(&image, "stats -h");
            debugfs(&image, &format!("set_super_value {field}"));
            repair(&image);
            let counts =
                |text: &str| ["Inode count:", "Inodes per group:"].map(|words| number_behind(text, words));
            assert_eq!(counts(&debugfs(&image, "stats -h")), counts(&before), "{field}");
            assert!(debugfs(&image, "ls -p one").contains("/two/"), "{field} {options:?}");
        }
    }
}

/// The superblock is garbage, and backups are not where they are looked for first. The unknown
/// features in the garbage do not end the search.
#[test]
fn garbage_in_the_superblock_does_not_end_the_search() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024", "-g", "512", "-O", "^flex_bg"], "32M");
    FileDevice::open(&image).unwrap().write_at(1024, &[0xA7; 1024]).unwrap();
    repair(&image);
    assert!(debugfs(&image, "ls -p one").contains("/two/"));
}

/// The hash of an attribute covers the padding of its value, whatever bytes the padding has.
#[test]
fn padding_of_a_value_is_in_its_hash() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = ["-t", "ext4", "-b", "1024", "-I", "128", "-O", "^metadata_csum"];
    let image = made(folder.path(), &options, "32M");
    debugfs(&image, "ea_set one user.a value");
    let block = number_behind(&debugfs(&image, "stat one"), "File ACL: ");
    // The value is the last in its block, and padded to eight bytes.
    FileDevice::open(&image).unwrap().write_at((block << 10) + 1023, &[0x20]).unwrap();
    assert_eq!(e2fsck_bounded(&image).code, Some(4));
    let found = codes(&image);
    assert!(!found.is_empty(), "the hash is wrong");
    repair(&image);
    assert!(debugfs(&image, "ea_get one user.a").contains("\"value\""));
}

/// `..` of a directory names an inode in a part of a table that is not read, because the descriptor
/// calls it unused. Once, the repair repeated its rounds until it gave up.
#[test]
fn dotdot_into_an_unread_table_is_corrected() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let small = ["-t", "ext4", "-b", "1024", "-g", "8192", "-N", "4096", "-O"];
    for (feature, inode) in
        [("^metadata_csum,uninit_bg", 900u32), ("^metadata_csum", 700), ("inline_data", 900)]
    {
        let image = made(folder.path(), &[&small[..], &[feature]].concat(), "40M");
        if feature == "inline_data" {
            debugfs(&image, &format!("set_inode_field one block[0] {inode}"));
        } else {
            let block: u64 = debugfs(&image, "blocks one").trim().parse().unwrap();
            FileDevice::open(&image).unwrap().write_at((block << 10) + 12, &inode.to_le_bytes()).unwrap();
        }
        assert_eq!(e2fsck_bounded(&image).code, Some(4), "{feature}");
        repair(&image);
        let names = debugfs(&image, "ls -p one");
        assert!(names.contains("/2/040755/0/0/../") && names.contains("/two/"), "{feature}: {names}");
    }
}

/// The list of bad blocks names the block of its own inode. That block could be read, so the list
/// is wrong.
#[test]
fn the_list_of_bad_blocks_does_not_name_its_own_inode() {
    if !require(&["mke2fs", "debugfs", "dumpe2fs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // An inode fills a block. So no other inode lies in a bad block.
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024", "-I", "1024"], "32M");
    let head = run("dumpe2fs", &[image.to_str().unwrap()]);
    let table = number_behind(&String::from_utf8_lossy(&head.stdout), "Inode table at ");
    for field in [format!("block[0] {table}"), "size 1024".to_owned(), "blocks 2".to_owned()] {
        debugfs(&image, &format!("set_inode_field <1> {field}"));
    }
    assert_eq!(e2fsck_bounded(&image).code, Some(4));
    assert_eq!(codes(&image), ["0x01007b"]);
    repair(&image);
    assert!(debugfs(&image, "ls -p one").contains("/two/"));
}

/// A name with an impossible inode number is removed, and listed.
#[test]
fn a_name_of_an_impossible_inode_is_listed() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"], "32M");
    let block: u64 = debugfs(&image, "blocks one").trim().parse().unwrap();
    let device = FileDevice::open(&image).unwrap();
    // The entry behind `.` and `..`.
    device.write_at((block << 10) + 24, &0x00FF_FFF0u32.to_le_bytes()).unwrap();
    let plan = plan(&device, &RepairOptions { now: 1_700_000_000, ..RepairOptions::default() }).unwrap();
    let removed = plan.actions.iter().filter(|action| action.cost == Cost::Removed);
    let paths: Vec<Option<&[u8]>> = removed.map(|action| action.path.as_deref()).collect();
    assert_eq!(paths, [Some(&b"/one/two"[..])], "{:?}", plan.actions);
    plan.apply(&device).unwrap();
    e2fsck_clean(&image);
}

/// A block of an inode table is listed as bad, and no name leads to an inode in it. For e2fsck
/// these inodes are in use, so that nobody allocates them. The list stays.
#[test]
fn inodes_in_a_bad_block_count_as_used() {
    if !require(&["mke2fs", "debugfs", "dumpe2fs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for options in
        [&["-t", "ext2", "-b", "1024"][..], &["-t", "ext4", "-b", "1024", "-O", "^uninit_bg,^metadata_csum"]]
    {
        let image = made(folder.path(), options, "32M");
        let head = run("dumpe2fs", &[image.to_str().unwrap()]);
        let head = String::from_utf8_lossy(&head.stdout).into_owned();
        let (_, last) = head.rsplit_once("Inode table at ").unwrap();
        let block = number_behind(last, "-");
        for field in [format!("block[0] {block}"), "size 1024".to_owned(), "blocks 2".to_owned()] {
            debugfs(&image, &format!("set_inode_field <1> {field}"));
        }
        assert!(!small::is_clean(&image), "{options:?}");
        repair(&image);
        assert!(small::is_clean(&image), "{options:?}");
        assert_eq!(debugfs(&image, "blocks <1>").trim(), block.to_string(), "{options:?}");
    }
}
