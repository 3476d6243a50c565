//! Damages of inodes, directories and attributes that repairs handled badly in runs of
//! `oracle_repair.rs`, one for each test.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::{Path, PathBuf};

use blockyard_check::{Cost, Options, RepairOptions, check, plan};
use blockyard_device::{BlockDevice, FileDevice};
use blockyard_testkit::{e2fsck_clean, mke2fs, require, run};
use support::small::{debugfs, is_clean, lost_found, made_32m as made, repair};

/// If the superblock names a directory or an ordinary file as the orphan file, only that number is
/// wrong: the directory or file stays.
#[test]
fn what_is_no_orphan_file_is_not_removed_as_one() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, vec![7; 8192]).unwrap();
    for name in ["one", "file"] {
        let image = made(folder.path(), &["-t", "ext4", "-O", "orphan_file"]);
        debugfs(&image, &format!("write {} file", file.display()));
        let stat = debugfs(&image, &format!("stat {name}"));
        let inode = stat.split_whitespace().nth(1).unwrap();
        debugfs(&image, &format!("set_super_value orphan_file_inum {inode}"));
        assert!(!is_clean(&image), "{name}");
        repair(&image);
        assert!(debugfs(&image, "ls -p one").contains("/two/"), "{name}: its name is there");
        let kept = folder.path().join("kept");
        debugfs(&image, &format!("dump file {}", kept.display()));
        assert!(std::fs::read(kept).unwrap() == vec![7; 8192], "{name}: its content is there");
    }
}

/// The length of a name in an attribute block is too large and covers NUL bytes behind the name.
/// The attribute's value, which is in an inode of its own, still counts in `i_blocks`.
#[test]
fn a_value_counts_whatever_its_name_is() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let value = folder.path().join("value");
    std::fs::write(&value, vec![7; 9000]).unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-O", "ea_inode,^metadata_csum"]);
    // This attribute leaves no room in the inode for the next one.
    debugfs(&image, &format!("ea_set one user.b {}", "x".repeat(60)));
    debugfs(&image, &format!("ea_set -f {} one user.a-name-that-does-not-fit-there", value.display()));
    // debugfs does not count the value in i_blocks; e2fsck does.
    assert_eq!(run("e2fsck", &["-fy", image.to_str().unwrap()]).status.code(), Some(1));
    let stat = debugfs(&image, "stat one");
    assert!(stat.contains("Blockcount: 6"), "{stat}");
    let block = stat.split("File ACL: ").nth(1).unwrap().split_whitespace().next().unwrap();
    let at = block.parse::<u64>().unwrap() * 1024 + 32;
    let device = FileDevice::open(&image).unwrap();
    let mut length = [0];
    device.read_at(at, &mut length).unwrap();
    assert_eq!(length, [30], "the first entry of the block");
    device.write_at(at, &[94]).unwrap();
    drop(device);
    e2fsck_clean(&image);
    assert!(is_clean(&image));
}

/// The record of `.` is too long. It covers `..` and, depending on its length, nothing more, or
/// some or all of what follows.
#[test]
fn an_entry_for_dot_that_is_too_long_hides_no_names() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for length in [24u16, 28, 32, 36, 1024] {
        let image = made(folder.path(), &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]);
        debugfs(&image, "mkdir one/three");
        let block: u64 = debugfs(&image, "bmap one 0").trim().parse().unwrap();
        let device = FileDevice::open(&image).unwrap();
        device.write_at((block << 10) + 4, &length.to_le_bytes()).unwrap();
        drop(device);
        repair(&image);
        let names = debugfs(&image, "ls -p one");
        assert!(names.contains("/two/") && names.contains("/three/"), "{length}: {names}");
    }
}

/// Garbage in the place of an entry looks like an entry that names an impossible inode and ends
/// inside a later entry.
#[test]
fn bytes_that_look_like_an_entry_hide_no_names() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // `.` and `..` begin at 0 and 12, the names at 24 and 36.
    for (at, length, kept) in [(0, 40u16, &["two", "three"][..]), (24, 16, &["three"])] {
        let image = made(folder.path(), &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]);
        debugfs(&image, "mkdir one/three");
        let block: u64 = debugfs(&image, "bmap one 0").trim().parse().unwrap();
        let device = FileDevice::open(&image).unwrap();
        let mut entry = 0xFFFF_FFF0u32.to_le_bytes().to_vec();
        entry.extend_from_slice(&length.to_le_bytes());
        entry.extend_from_slice(&[4, 2]);
        device.write_at((block << 10) + at, &entry).unwrap();
        drop(device);
        repair(&image);
        let names = debugfs(&image, "ls -p one");
        assert!(kept.iter().all(|name| names.contains(&format!("/{name}/"))), "{at}: {names}");
    }
}

/// In a file system of the GNU Hurd, the field that Linux uses as `i_version` may name a block, in
/// which the file's translator is kept. The Hurd writes no types into directory entries, so entries
/// with types show that Linux made the file system.
#[test]
fn the_creator_is_the_one_whose_names_have_types() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (feature, creator) in [("filetype", "Linux"), ("^filetype", "Hurd")] {
        let image = made(folder.path(), &["-t", "ext2", "-b", "1024", "-O", feature]);
        // As the Hurd reads them, these versions name two blocks of metadata, and one outside the
        // file system.
        debugfs(&image, "set_inode_field one version 1");
        debugfs(&image, "set_inode_field one/two version 5");
        debugfs(&image, "set_inode_field lost+found version 99999999");
        debugfs(&image, "set_super_value creator_os 1");
        debugfs(&image, "feature filetype");
        let device = FileDevice::open(&image).unwrap();
        assert_eq!(plan(&device, &RepairOptions::default()).unwrap().preened_ending().exit_code(), 4);
        drop(device);
        repair(&image);
        assert!(debugfs(&image, "ls -p one").contains("/two/"), "{creator}: its name is there");
        let header = debugfs(&image, "show_super_stats -h");
        let made_by = header.lines().find(|line| line.contains("OS type")).unwrap();
        assert!(made_by.contains(creator), "{made_by}");
    }
}

/// An attribute block holds an access list (an entry with an empty name) and another attribute. If
/// one of the two says that its value is in an impossible inode, only that one is removed.
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
        // After the header of 32 bytes: entries of 16 bytes, each followed by its name, which is
        // padded to a multiple of 4 bytes.
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

/// An empty file without a name loses its attributes. Because it had attributes, it does not count
/// as empty and gets a name in lost+found.
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

/// The zero byte after a link's target in a block is lost. It is restored, and the target stays.
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

/// The target of a link is in its inode, which also has a block of attributes. No zero byte follows
/// where the size ends, so the target is cut there. Once, the target was taken for a block map, and
/// a byte of another file was cleared.
#[test]
fn a_target_in_an_inode_ends_where_its_size_says() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024", "-I", "128"]);
    debugfs(&image, &format!("symlink link {}", "f".repeat(30)));
    debugfs(&image, "ea_set link user.a value");
    debugfs(&image, "set_inode_field link size 29");
    repair(&image);
    let stat = debugfs(&image, "stat link");
    assert!(stat.contains(&format!("\"{}\"", "f".repeat(29))) && stat.contains("Size: 29"), "{stat}");
}

/// A short link with a block of attributes and a wrong `i_blocks`. Once, its target was taken for a
/// block map, and the link was lost.
#[test]
fn a_target_in_an_inode_stays_whatever_its_block_count() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (length, blocks) in [(3, 4), (6, 0), (30, 4), (59, 4)] {
        let image = made(folder.path(), &["-t", "ext4", "-b", "1024", "-I", "128"]);
        debugfs(&image, &format!("symlink link {}", "f".repeat(length)));
        debugfs(&image, "ea_set link user.a value");
        assert!(is_clean(&image), "{length}");
        debugfs(&image, &format!("set_inode_field link blocks {blocks}"));
        assert!(!is_clean(&image), "{length}");
        let device = FileDevice::open(&image).unwrap();
        let code = plan(&device, &RepairOptions::default()).unwrap().preened_ending().exit_code();
        assert_eq!(code, 1, "{length}: as e2fsck -fp");
        drop(device);
        repair(&image);
        let stat = debugfs(&image, "stat link");
        assert!(stat.contains(&format!("\"{}\"", "f".repeat(length))), "{stat}");
    }
}

/// The size of a link with inline data is one too small: it is corrected, and the target stays.
#[test]
fn a_link_with_inline_data_keeps_its_target() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (image, tree) = (folder.path().join("image"), folder.path().join("tree"));
    std::fs::create_dir(&tree).unwrap();
    std::os::unix::fs::symlink("i".repeat(100), tree.join("link")).unwrap();
    let options = ["-t", "ext4", "-b", "1024", "-O", "inline_data", "-d", tree.to_str().unwrap()];
    mke2fs(&image, &options, "8M");
    assert!(debugfs(&image, "stat link").contains("Size: 100"), "an inline link");
    debugfs(&image, "set_inode_field link size 99");
    repair(&image);
    assert!(debugfs(&image, "stat link").contains("Size: 100"));
}

/// The index flag of an inline directory is cleared, and the names stay.
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

/// An inline directory with an invalid mode: its entries show that it is a directory.
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

/// An entry gives an impossible size for a value in an inode of its own: the size of that inode
/// counts.
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

/// Names in lost+found begin with the inode number. What follows depends on what was found:
///
/// - a directory that is named only below itself: that name;
/// - another directory: the inode that its `..` names;
/// - a file: a suffix for the kind of file that its first bytes suggest.
///
/// If the resulting name is taken, a number is added. The plan lists the names that were removed.
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
    // A loop: `one` is named only below itself.
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

/// The inode of a directory is zeroed. If the bitmap calls the directory's blocks used although no
/// inode claims them, the inodes that the directory named get names in lost+found that end with the
/// old ones. Names in free blocks do not count.
#[test]
fn names_come_back_from_a_directory_without_its_inode() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for options in [&["-t", "ext4"][..], &["-t", "ext2", "-b", "1024"], &["-t", "ext3", "-O", "^filetype"]] {
        for is_marked in [true, false] {
            let image = made(folder.path(), options);
            debugfs(&image, &format!("write {} one/letter", folder.path().join("image").display()));
            let place = debugfs(&image, "blocks one");
            debugfs(&image, "clri one");
            if !is_marked {
                debugfs(&image, &format!("freeb {}", place.trim()));
            }
            repair(&image);
            let names = lost_found(&image);
            assert_eq!(names.len(), 2, "{options:?}: {names:?}");
            for old in [".letter", ".two"] {
                let told = names.iter().any(|(_, name)| name.ends_with(old));
                assert_eq!(told, is_marked, "{options:?}: {names:?}");
            }
        }
    }
}

#[test]
fn attributes_that_go_are_named() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // The attributes are in the inode, and then in a block.
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
        // The offset of the first entry's value.
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

/// Of two equal names, the one with the greater inode number stays, as for e2fsck, wherever it is
/// in the directory. The other gets a new name. A third name that looks like the new one does not
/// change.
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

/// An entry of the attribute block names a value inode, but also has an offset. Then e2fsck finds
/// no attribute of the file, not even the one that inline data needs. Our repair keeps the inline
/// data and the value.
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

/// An attribute in the attribute block names an inode for its value, although the value is in the
/// block. The hash says so, and neither the value nor the inline data of the file is lost.
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

/// Of two names of a directory in the same parent, the first stays, as for e2fsck.
#[test]
fn a_directory_with_two_names_in_one_parent_keeps_the_first() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for options in [&["-t", "ext4"][..], &["-t", "ext4", "-O", "inline_data"], &["-t", "ext2"]] {
        let image = made(folder.path(), options);
        for request in ["mkdir both", "mkdir both/kept", "mkdir both/kept/below"] {
            debugfs(&image, request);
        }
        debugfs(&image, "ln both/kept both/second");
        repair(&image);
        let names = debugfs(&image, "ls -p both");
        assert!(names.contains("/kept/") && !names.contains("/second/"), "{options:?}: {names}");
        assert!(debugfs(&image, "ls -p both/kept").contains("/below/"), "{options:?}");
    }
}

/// The bit of the feature inline_data is lost, but inline data proves that it is needed. Links keep
/// their targets, and one action sets the feature, however many inodes need it.
#[test]
fn links_in_inodes_bring_their_feature_back() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-I", "256", "-O", "inline_data"]);
    let target = "t".repeat(100);
    ["a", "b"].iter().for_each(|name| drop(debugfs(&image, &format!("symlink {name} {target}"))));
    debugfs(&image, "feature ^inline_data");
    assert!(!is_clean(&image), "the feature is needed");
    let device = FileDevice::open(&image).unwrap();
    let plan = plan(&device, &RepairOptions::default()).unwrap();
    let said: Vec<_> = plan.actions.iter().map(|action| action.what.as_str()).collect();
    assert_eq!(said, ["feature inline_data set"]);
    assert_eq!(plan.preened_ending().exit_code(), 1, "as e2fsck -fp");
    drop(plan);
    drop(device);
    repair(&image);
    for name in ["a", "b"] {
        assert!(debugfs(&image, &format!("stat {name}")).contains("Size: 100"), "{name} stays");
    }
}

/// Makes an image with an attribute whose value is in an inode of its own. Returns the image and
/// that inode.
fn with_value_inode(folder: &Path, options: &[&str]) -> (PathBuf, u32) {
    let image = made(folder, options);
    let value = folder.join("value");
    std::fs::write(&value, [b'v'; 1024]).unwrap();
    debugfs(&image, "write /dev/null file");
    debugfs(&image, &format!("ea_set -f {} file user.large", value.display()));
    // debugfs does not count the value in i_blocks; e2fsck corrects that.
    run("e2fsck", &["-fy", image.to_str().unwrap()]);
    let of_value = |inode: &u32| debugfs(&image, &format!("stat <{inode}>")).contains("Flags: 0x280000");
    let inode = (12..64).find(of_value).expect("the value is in an inode");
    (image, inode)
}

#[test]
fn the_inode_of_a_value_has_one_link() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (image, inode) = with_value_inode(folder.path(), &["-t", "ext4", "-O", "ea_inode"]);
    assert!(is_clean(&image), "as made");
    for links in [7, 65535] {
        debugfs(&image, &format!("set_inode_field <{inode}> links_count {links}"));
        assert!(!is_clean(&image), "{links} links");
        repair(&image);
        assert!(debugfs(&image, &format!("stat <{inode}>")).contains("Links: 1 "), "{links}");
    }
    // A name counts as a link, and then the attribute does not.
    debugfs(&image, &format!("ln <{inode}> name"));
    assert!(is_clean(&image), "one name");
}

/// The bit of the feature ea_inode is lost. If one attribute of a file has its value in an inode of
/// its own, e2fsck then finds no attribute of the file, not even the one that inline data needs.
#[test]
fn values_in_inodes_bring_their_feature_back() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for size in ["256", "512"] {
        let options = ["-t", "ext4", "-I", size, "-O", "ea_inode,inline_data"];
        let (image, _) = with_value_inode(folder.path(), &options);
        debugfs(&image, "feature ^ea_inode");
        assert!(!is_clean(&image), "{size}");
        repair(&image);
        let kept = folder.path().join("kept");
        debugfs(&image, &format!("ea_get -f {} file user.large", kept.display()));
        assert_eq!(std::fs::read(kept).unwrap(), [b'v'; 1024], "{size}");
    }
    // Without inline data, files need no attribute, so nothing is wrong.
    let (image, _) = with_value_inode(folder.path(), &["-t", "ext4", "-O", "ea_inode"]);
    debugfs(&image, "feature ^ea_inode");
    assert!(is_clean(&image), "no inline data");
}

#[test]
fn inline_directories_have_no_types_without_the_feature() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-I", "256", "-O", "inline_data"]);
    // Without the feature, the entries of inline directories must have no types.
    debugfs(&image, "feature ^filetype");
    repair(&image);
    assert!(is_clean(&image), "every type is gone");
    assert!(debugfs(&image, "ls -p one").contains("/two/"), "its name is there");
}

/// Without checksums, the checksum field in blocks of the orphan file must be zero. tune2fs leaves
/// the old checksum there.
#[test]
fn the_orphan_file_has_no_checksum_without_the_feature() {
    if !require(&["mke2fs", "tune2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-O", "orphan_file"]);
    run("tune2fs", &["-O", "^metadata_csum", image.to_str().unwrap()]);
    assert!(!is_clean(&image), "a checksum is left");
    let device = FileDevice::open(&image).unwrap();
    assert_eq!(plan(&device, &RepairOptions::default()).unwrap().preened_ending().exit_code(), 1);
    drop(device);
    repair(&image);
    assert!(is_clean(&image), "it is gone");
}
