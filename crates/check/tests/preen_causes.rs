//! Exit codes of `-p` beside `e2fsck -fp`, one cause each that the runs of `oracle_repair.rs`
//! found.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use blockyard_check::{RepairOptions, plan};
use blockyard_device::{BlockDevice, FileDevice};
use blockyard_testkit::{mke2fs, require, run};

fn debugfs(image: &Path, request: &str) -> String {
    let output = run("debugfs", &["-w", "-R", request, image.to_str().unwrap()]);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// An image with two directories, and one of 300 long names that has an index.
fn made(folder: &Path, options: &[&str]) -> PathBuf {
    let tree = folder.join("tree");
    std::fs::create_dir_all(tree.join("many")).unwrap();
    for n in 0..300 {
        std::fs::write(tree.join("many").join(format!("{n:0>200}")), b"").unwrap();
    }
    let image = folder.join("image");
    let tree = tree.to_str().unwrap();
    mke2fs(&image, &[options, &["-b", "1024", "-d", tree]].concat(), "32M");
    run("e2fsck", &["-fyD", image.to_str().unwrap()]);
    debugfs(&image, "mkdir one");
    debugfs(&image, "mkdir one/two");
    image
}

/// Exit codes of our -p and of e2fsck's, which adds 4 to 8 where it had found something.
fn exits(image: &Path) -> (u8, Option<i32>) {
    let device = FileDevice::open_read_only(image).unwrap();
    let how = RepairOptions { now: 1_700_000_000, ..RepairOptions::default() };
    let ours = plan(&device, &how).map_or(8, |plan| plan.preened_ending().exit_code());
    let theirs = run("e2fsck", &["-fp", image.to_str().unwrap()]).status.code();
    (ours, theirs.map(|code| code.min(8)))
}

fn write(image: &Path, at: u64, bytes: &[u8]) {
    FileDevice::open(image).unwrap().write_at(at, bytes).unwrap();
}

/// The first block of a file, in bytes.
fn place_of(image: &Path, path: &str) -> u64 {
    let blocks = debugfs(image, &format!("blocks {path}"));
    blocks.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn exit_codes_are_those_of_e2fsck() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (ext4, plain) = (&["-t", "ext4"][..], &["-t", "ext4", "-O", "^metadata_csum"][..]);
    let made = |options| made(folder.path(), options);
    let mut all = Vec::new();
    let mut judge = |name: &str, image: &Path| all.push((name.to_owned(), exits(image)));
    let image = made(ext4);
    let stats = debugfs(&image, "stats");
    let (_, place) = stats.split_once("inode table at ").unwrap();
    let place: String = place.chars().take_while(char::is_ascii_digit).collect();
    write(&image, (place.parse::<u64>().unwrap() << 10) + 16, &[1, 2, 3]);
    judge("checksum of the list of bad blocks", &image);

    let image = made(ext4);
    debugfs(&image, "set_inode_field one dtime 16");
    judge("a deletion time that is an inode number", &image);
    for (name, options) in [("ext3", &["-t", "ext3"][..]), ("ext4", ext4), ("ext2", &["-t", "ext2"])] {
        let image = made(options);
        write(&image, 2048, &[0; 1024]);
        judge(&format!("descriptors of {name} are gone"), &image);
    }
    let image = made(&["-t", "ext3"]);
    write(&image, 2048, &[0; 4]);
    judge("the block bitmap of a descriptor is gone", &image);
    for (name, options) in [("with checksums", ext4), ("without", plain)] {
        let image = made(options);
        let root = place_of(&image, "many");
        write(&image, root + 0x1C, &[0xFF]);
        judge(&format!("version of hashes {name}"), &image);
        let image = made(options);
        let root = place_of(&image, "many");
        write(&image, root + 0x1E, &[4]);
        judge(&format!("depth of an index {name}"), &image);
        let image = made(options);
        let root = place_of(&image, "many");
        // The block of the second entry.
        write(&image, root + 0x20 + 12, &[0xFF, 0xFF, 0xFF, 0]);
        judge(&format!("entry of a root {name}"), &image);
    }
    let image = made(&["-t", "ext4", "-I", "128"]);
    debugfs(&image, "ea_set one user.a value");
    let stat = debugfs(&image, "stat one");
    let block = stat.split("File ACL:").nth(1).unwrap().split_whitespace().next().unwrap();
    write(&image, (block.parse::<u64>().unwrap() << 10) + 36, &[0xFF; 4]);
    judge("an attribute says that its value is in an inode", &image);

    // Too few for the journal, too many for the inodes, more than the device has.
    for blocks in [4095, 8194, 32_000, 32_769, 40_000, 1_000_000] {
        let image = made(ext4);
        debugfs(&image, &format!("set_super_value blocks_count {blocks}"));
        judge(&format!("a file system of {blocks} blocks"), &image);
    }

    for options in [&["-t", "ext2"][..], ext4] {
        for inodes in [0, 5, 999_999] {
            let image = made(options);
            debugfs(&image, &format!("set_super_value inodes_count {inodes}"));
            judge(&format!("{inodes} inodes"), &image);
        }
    }

    // Names of inodes that no group has in use, or that one has where it says that there are none.
    let uninit = &["-t", "ext4", "-O", "^metadata_csum,uninit_bg"][..];
    let typeless = &["-t", "ext4", "-O", "^metadata_csum,uninit_bg,^filetype"][..];
    for options in [uninit, typeless] {
        let image = made(options);
        debugfs(&image, &format!("link many/{:0>200} one/name", 7));
        let place = place_of(&image, "one");
        // Behind `.`, `..` and `two`; the inode is one of the third group.
        write(&image, place + 36, &5000u32.to_le_bytes());
        judge(&format!("a name of an inode that is none, {options:?}"), &image);
    }
    for options in [ext4, uninit] {
        let image = made(options);
        let script = folder.path().join("script");
        let lines = "set_block_group 0 flags 5\nset_block_group 0 checksum calc\n";
        std::fs::write(&script, lines).unwrap();
        run("debugfs", &["-w", "-f", script.to_str().unwrap(), image.to_str().unwrap()]);
        judge("the group of the root has no inodes", &image);
    }

    // Without its flag the extent root is read as a block map, which claims blocks of others.
    let image = made(ext4);
    debugfs(&image, "set_inode_field many flags 0");
    judge("an inode without the flag of its extents", &image);
    let image = made(ext4);
    debugfs(&image, "set_inode_field many flags 0x80000");
    judge("an index without its flag", &image);
    let image = made(plain);
    debugfs(&image, "set_inode_field many flags 0x1000");
    judge("the same without checksums", &image);

    let wrong: Vec<_> = all.iter().filter(|(_, (ours, theirs))| Some(i32::from(*ours)) != *theirs).collect();
    assert!(wrong.is_empty(), "ours and theirs: {wrong:#?}");
}
