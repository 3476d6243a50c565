//! Quota files: verdicts equal those of e2fsck on files that the kernel and tools made, and on
//! files with a single wrong field. Repairs keep the limits.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::lchown;
use std::path::{Path, PathBuf};

use blockyard_check::{Options, RepairOptions, check, plan};
use blockyard_device::{BlockDevice, FileDevice, MemoryDevice};
use blockyard_testkit::images::{make_filled, profile_named};
use blockyard_testkit::{LoopMount, e2fsck_bounded, e2fsck_clean, full_matrix, mke2fs, require, run};

fn tool(program: &str, arguments: &[&str]) -> String {
    let output = run(program, arguments);
    assert!(output.status.code().is_some_and(|code| code <= 1), "{program} {arguments:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn debugfs(image: &Path, request: &str) -> String {
    tool("debugfs", &["-w", "-R", request, image.to_str().unwrap()])
}

/// Numbers everything below a directory, and gives each file an owner and a group by its number.
fn own(directory: &Path, next: &mut u32) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        *next += 1;
        let owner = [0, 7, 1000, 70_000].into_iter().cycle().nth(usize::try_from(*next).unwrap());
        lchown(entry.path(), owner, Some(*next % 40)).unwrap();
        if entry.file_type().unwrap().is_dir() && entry.file_name() != "lost+found" {
            own(&entry.path(), next);
        }
    }
}

/// An image of a profile with quota of users and groups, and of projects if the image has inodes of
/// 256 bytes and the feature extra_isize.
fn with_quota(name: &str, folder: &Path) -> PathBuf {
    let image = make_filled(profile_named(name), folder);
    let mount = LoopMount::new(&image, "").unwrap();
    own(mount.path(), &mut 0);
    drop(mount);
    let path = image.to_str().unwrap();
    let features = tool("dumpe2fs", &["-h", path]);
    let projects = features.contains("Inode size:\t          256") && features.contains("extra_isize");
    for n in 0..if projects { 5 } else { 0 } {
        debugfs(&image, &format!("set_inode_field deep/sub{n} projid {}", 70 + n % 2));
    }
    let (feature, kinds) = if projects {
        ("quota,project", "usrquota,grpquota,prjquota")
    } else {
        ("quota", "usrquota,grpquota")
    };
    tool("tune2fs", &["-O", feature, "-Q", kinds, path]);
    tool("e2fsck", &["-fy", path]);
    e2fsck_clean(&image);
    image
}

fn codes(device: &dyn BlockDevice) -> Vec<String> {
    let report = check(device, &Options::default()).unwrap();
    assert!(report.examined);
    report
        .findings
        .iter()
        .filter(|finding| finding.is_error())
        .map(|finding| finding.code.to_string())
        .collect()
}

fn repair(image: &Path) {
    let device = FileDevice::open(image).unwrap();
    let how = RepairOptions { now: 1_700_000_000, ..RepairOptions::default() };
    let plan = plan(&device, &how).unwrap();
    assert!(plan.is_complete(), "{:?} {:?}", plan.actions, plan.after);
    plan.apply(&device).unwrap();
}

#[test]
fn sums_are_those_that_e2fsck_counts() {
    if !require(&["root", "mke2fs", "tune2fs", "debugfs", "dumpe2fs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let few = ["ext4", "ext3-1k", "ea_inode", "bigalloc"];
    let more = ["ext2", "inline", "bigalloc-1k", "orphan_file", "no-journal", "inodes-1k", "indirect", "mmp"];
    for name in few.iter().chain(more.iter().filter(|_| full_matrix())) {
        let image = with_quota(name, folder.path());
        assert_eq!(codes(&FileDevice::open_read_only(&image).unwrap()), Vec::<String>::new(), "{name}");
        // A file changes its owner and its group: the quota files of users and groups are wrong,
        // and are corrected.
        debugfs(&image, "set_inode_field one-mib uid 4711");
        debugfs(&image, "set_inode_field one-mib gid 4712");
        let found = codes(&FileDevice::open_read_only(&image).unwrap());
        assert_eq!(found, ["0x060002", "0x060002"], "{name}");
        repair(&image);
        e2fsck_clean(&image);
        let listed = debugfs(&image, "list_quota user");
        assert!(
            listed.lines().any(|line| line.split_whitespace().next() == Some("4711")),
            "{name}: {listed}"
        );
    }
}

/// Byte offset of the first block of a quota file on the device.
fn place_of(image: &Path, inode: u32) -> u64 {
    let blocks = debugfs(image, &format!("blocks <{inode}>"));
    blocks.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 12
}

/// A small image with owners 0, 5, 1000 and 1001.
fn small(folder: &Path) -> PathBuf {
    let tree = folder.join("tree");
    std::fs::create_dir_all(tree.join("d")).unwrap();
    for (name, owner) in [("a", 0), ("b", 5), ("c", 1000), ("d/e", 1001)] {
        std::fs::write(tree.join(name), vec![7; 5000]).unwrap();
        lchown(tree.join(name), Some(owner), Some(owner)).unwrap();
    }
    let image = folder.join("small.img");
    std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let path = image.to_str().unwrap();
    let options = ["-q", "-F", "-t", "ext4", "-b", "4096", "-O", "quota,^metadata_csum", "-d"];
    tool("mke2fs", &[&options[..], &[tree.to_str().unwrap(), path]].concat());
    tool("e2fsck", &["-fy", path]);
    image
}

/// Byte offset of the first record in a quota file. The file has blocks of 1 KiB. Blocks 1 to 4 are
/// the path through the tree to the record, and block 5 is the first block of records.
const RECORD: u64 = 5 * 1024 + 16;

#[test]
fn single_fields_are_judged_as_e2fsck_does() {
    if !require(&["root", "mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = small(folder.path());
    let base = place_of(&image, 3);
    let whole = MemoryDevice::load(&image).unwrap();
    let edits: &[(&str, u64, &[u8])] = &[
        ("space", RECORD + 48, &[1, 2]),
        ("inodes", RECORD + 24, &[9]),
        ("number", RECORD + 72, &[77, 0]),
        ("padding of a record", RECORD + 4, &[9]),
        ("times", RECORD + 56, &[9, 0, 0, 0, 0, 0, 0, 0, 9]),
        ("records of a block", RECORD - 8, &[9]),
        ("chain of a block", RECORD - 16, &[3]),
        ("magic", 0, &[1]),
        ("version", 4, &[2]),
        ("grace", 8, &[5]),
        ("flags", 16, &[1]),
        ("too many blocks", 20, &[70]),
        ("too few blocks", 20, &[3]),
        ("chain of free blocks", 24, &[99]),
        ("chain of room", 28, &[99]),
        ("no chain of room", 28, &[0]),
        ("reference outside", 1024, &[200]),
        ("reference lost", 1024, &[0]),
        ("reference to the root", 1024, &[1]),
        ("block of records twice", 4096 + 36, &[5]),
        ("record of nobody", RECORD + 9 * 72, &[1, 2, 3, 4]),
        ("records gone", RECORD - 16, &[0; 1024]),
        ("file gone", 0, &[0; 4096]),
    ];
    for (name, at, bytes) in edits {
        let device = whole.duplicate();
        device.write_at(base + at, bytes).unwrap();
        device.save(&image).unwrap();
        let sound = e2fsck_bounded(&image).code == Some(0);
        let found = codes(&device);
        assert_eq!(found.is_empty(), sound, "{name}: {found:?}");
        repair(&image);
        e2fsck_clean(&image);
    }
}

/// For quota, e2fsck does not count a symbolic link whose target is inline data, but counts all
/// other inodes with inline data.
#[test]
fn links_with_inline_targets_are_not_counted() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (tree, image) = (folder.path().join("tree"), folder.path().join("image"));
    std::fs::create_dir_all(tree.join("directory")).unwrap();
    std::fs::write(tree.join("file"), [b'f'; 100]).unwrap();
    for length in [20, 60, 100] {
        std::os::unix::fs::symlink("L".repeat(length), tree.join(format!("link{length}"))).unwrap();
    }
    mke2fs(&image, &["-t", "ext4", "-O", "inline_data,quota", "-d", tree.to_str().unwrap()], "16M");
    tool("e2fsck", &["-fy", image.to_str().unwrap()]);
    e2fsck_clean(&image);
    assert_eq!(codes(&FileDevice::open_read_only(&image).unwrap()), Vec::<String>::new());
    debugfs(&image, "set_inode_field link100 uid 5");
    debugfs(&image, "set_inode_field link20 uid 5");
    repair(&image);
    e2fsck_clean(&image);
}

#[test]
fn limits_are_kept_and_lost_files_made_anew() {
    if !require(&["root", "mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = small(folder.path());
    let base = place_of(&image, 3);
    let device = FileDevice::open(&image).unwrap();
    // Limits of user 0, and of user 4711, who has no files; and a wrong sum.
    device.write_at(base + RECORD + 8, &100u64.to_le_bytes()).unwrap();
    let new = base + RECORD + 4 * 72;
    device.write_at(new, &4711u64.to_le_bytes()).unwrap();
    device.write_at(new + 32, &2048u64.to_le_bytes()).unwrap();
    device.write_at(base + RECORD + 48, &[1]).unwrap();
    drop(device);
    repair(&image);
    e2fsck_clean(&image);
    let listed = debugfs(&image, "list_quota user");
    let row = |number: &str| -> Vec<String> {
        let line = listed.lines().find(|line| line.split_whitespace().next() == Some(number));
        line.unwrap_or_else(|| panic!("{number}: {listed}")).split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(row("0")[6], "100", "limit of inodes");
    assert_eq!(row("4711")[1..4], ["0", "0", "2048"], "nothing used, a limit of 2 MiB");
    // Now the inodes of the quota files are damaged.
    for request in ["clri <4>", "set_inode_field <3> mode 0040600", "set_inode_field <3> links_count 0"] {
        debugfs(&image, request);
        let sound = e2fsck_bounded(&image).code == Some(0);
        assert_eq!(codes(&FileDevice::open_read_only(&image).unwrap()).is_empty(), sound, "{request}");
        repair(&image);
        e2fsck_clean(&image);
    }
    assert!(debugfs(&image, "list_quota group").contains("1001"));
    assert!(debugfs(&image, "list_quota user").contains("2048"), "the limit is still there");
}

/// The root is examined whatever its link count is, so a count of 0 is repaired.
#[test]
fn a_root_without_links_is_repaired() {
    if !require(&["root", "mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = small(folder.path());
    debugfs(&image, "set_inode_field <2> links_count 0");
    repair(&image);
    e2fsck_clean(&image);
}

/// The superblock names a user's file or directory as a quota file. A repair keeps its name and its
/// content. The quota file of users is then the one in the reserved inode, unless that inode was
/// cleared.
#[test]
fn a_file_of_a_user_is_no_quota_file() {
    if !require(&["root", "mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (field, path, cleared) in [
        ("usr_quota_inum", "/a", None),
        ("grp_quota_inum", "/d", None),
        ("prj_quota_inum", "/b", None),
        ("usr_quota_inum", "/c", Some(3)),
    ] {
        let image = small(folder.path());
        cleared.iter().for_each(|inode| drop(debugfs(&image, &format!("clri <{inode}>"))));
        let stat = debugfs(&image, &format!("stat {path}"));
        let inode = stat.split("Inode:").nth(1).unwrap().split_whitespace().next().unwrap();
        debugfs(&image, &format!("set_super_value {field} {inode}"));
        assert_eq!(e2fsck_bounded(&image).code, Some(4), "{field}");
        assert!(!codes(&FileDevice::open_read_only(&image).unwrap()).is_empty(), "{field}");
        repair(&image);
        e2fsck_clean(&image);
        let (kept, map) = (debugfs(&image, &format!("stat {path}")), "EXTENTS:");
        assert!(kept.contains(&format!("Inode: {inode} ")), "{field}: {kept}");
        assert_eq!(kept.split(map).nth(1), stat.split(map).nth(1), "{field}");
        let records = debugfs(&image, "list_quota user").contains("1001");
        assert_eq!(records, cleared.is_none(), "{field}: the quota file stays");
    }
}
