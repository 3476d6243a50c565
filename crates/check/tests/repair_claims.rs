//! Bitmaps or descriptors are lost or wrong, so that they do not show which blocks belong to files.
//! A repair still uses no block of a file for anything else.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use blockyard_check::{Action, Code, RepairOptions, plan};
use blockyard_device::{BlockDevice, FileDevice};
use blockyard_disk::group_desc::{GroupFlags, RawGroupDesc};
use blockyard_testkit::{e2fsck_clean, mke2fs, require, run};
use support::small::debugfs;

/// The tools that the tests need.
const TOOLS: [&str; 3] = ["mke2fs", "debugfs", "e2fsck"];
/// Bytes of a block.
const BLOCK: u64 = 1024;
/// Blocks of a group.
const GROUP: u64 = 8192;

/// Files for an image.
struct Files {
    count: u64,
    /// Blocks with data in each file.
    blocks: u64,
    /// Distance from one block with data to the next, in blocks. If it is 2 or more, holes lie
    /// between the blocks, and each block is an extent of its own.
    step: u64,
}

impl Files {
    /// Makes an image of 32 MiB with the files, each block of which is different.
    fn image(&self, folder: &Path, options: &[&str]) -> PathBuf {
        let tree = folder.join("tree");
        std::fs::create_dir_all(&tree).unwrap();
        for n in 0..self.count {
            let file = File::create(tree.join(format!("f{n}"))).unwrap();
            for nth in 0..self.blocks {
                let bytes = format!("{n:>15} {nth:>15}\n").repeat(32);
                file.write_all_at(bytes.as_bytes(), nth * self.step * BLOCK).unwrap();
            }
        }
        let image = folder.join("image");
        mke2fs(&image, &[options, &["-d", tree.to_str().unwrap()]].concat(), "32M");
        image
    }

    /// Asserts that the image has all files with their content.
    fn assert_kept(&self, folder: &Path, image: &Path, what: &str) {
        let copy = folder.join("copy");
        for n in 0..self.count {
            let _ = std::fs::remove_file(&copy);
            debugfs(image, &format!("dump f{n} {}", copy.to_str().unwrap()));
            let is_same = std::fs::read(&copy).ok() == std::fs::read(folder.join(format!("tree/f{n}"))).ok();
            assert!(is_same, "{what}: file {n}");
        }
    }
}

/// Repairs the image, and asserts that the repair is complete, that e2fsck finds nothing
/// afterwards, and that no two files were found with the same blocks.
fn repair(image: &Path, what: &str) {
    let device = FileDevice::open(image).unwrap();
    let how = RepairOptions { now: 1_700_000_000, ..RepairOptions::default() };
    let plan = plan(&device, &how).unwrap();
    let shared: Vec<&Action> =
        plan.actions.iter().filter(|action| action.code == Code::SHARED_BLOCKS).collect();
    assert!(shared.is_empty(), "{what}: {shared:?}");
    assert!(plan.is_complete(), "{what}: {:?}", plan.after);
    plan.apply(&device).unwrap();
    e2fsck_clean(image);
}

fn write(image: &Path, block: u64, bytes: &[u8]) {
    FileDevice::open(image).unwrap().write_at(block * BLOCK, bytes).unwrap();
}

/// Zeroes the descriptors, their copies and all bitmaps, and overwrites the inode tables that are
/// not in use with garbage.
fn lose_places(image: &Path) {
    let mut table = [0; 4 * 64];
    FileDevice::open(image).unwrap().read_at(2 * BLOCK, &mut table).unwrap();
    for (group, raw) in table.chunks_exact(64).enumerate() {
        let desc = RawGroupDesc::from_disk(raw);
        write(image, desc.block_bitmap().raw(), &[0; 1024]);
        write(image, desc.inode_bitmap().raw(), &[0; 1024]);
        // All files have their inodes in the first group.
        assert_eq!(desc.flags().contains(GroupFlags::INODE_UNINIT), group > 0, "group {group}");
        if group > 0 {
            write(image, desc.inode_table().raw(), &[0xA5; 64 * 1024]);
        }
    }
    for group in [0, 1, 3] {
        write(image, group * GROUP + 2, &[0; 1024]);
    }
}

/// No bitmap says which blocks are in use, and the journal is the only long run of zeroes. Once,
/// empty tables were placed in it, and then there was no room for bitmaps.
#[test]
fn empty_tables_take_no_blocks_of_files() {
    if !require(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let files = Files { count: 93, blocks: 300, step: 1 };
    for features in ["^flex_bg,^resize_inode", "^resize_inode"] {
        let options = ["-t", "ext4", "-b", "1024", "-N", "1024", "-O", features];
        let image = files.image(folder.path(), &options);
        lose_places(&image);
        repair(&image, features);
        files.assert_kept(folder.path(), &image, features);
    }
}

/// `mke2fs -S` leaves descriptors that call all tables unused, and the repair reads such a table
/// only when it finds a name of an inode in the table. Once, the resize inode got a block of a file
/// whose table was not yet read.
#[test]
fn the_resize_inode_takes_no_block_of_a_file_in_a_table_that_is_called_unused() {
    if !require(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // More files than a table has inodes, each with extents in a block of its own.
    let files = Files { count: 100, blocks: 60, step: 2 };
    for features in ["^flex_bg", "^flex_bg,^metadata_csum,uninit_bg"] {
        let options = ["-t", "ext4", "-b", "1024", "-N", "128", "-O", features];
        let image = files.image(folder.path(), &options);
        let again = ["-q", "-F", "-S", "-E", "nodiscard"];
        let made = run("mke2fs", &[&again[..], &options, &[image.to_str().unwrap(), "32M"]].concat());
        assert!(made.status.success(), "{features}: {made:?}");
        repair(&image, features);
        files.assert_kept(folder.path(), &image, features);
    }
}
