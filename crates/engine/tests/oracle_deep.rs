//! Extent trees made by hand, deeper than a test could grow them; and directories with more
//! subdirectories than a link count can express.

#![allow(clippy::as_conversions, clippy::unwrap_used)]

#[path = "support/image.rs"]
mod support;

use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_disk::InodeNr;
use blockyard_engine::Error;
use blockyard_testkit::{LoopMount, e2fsck_clean, full_matrix, mke2fs, require, run};
use std::path::Path;
use std::sync::Arc;
use support::{ROOT, context, directory, file, make, open, open_device};

const BLOCK: usize = 1024;
/// Distance between the starts of the file's pieces, in blocks.
const STEP: u32 = 3;
const PIECES: u32 = 20;

fn block(device: &MemoryDevice, number: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    device.read_at(number * BLOCK as u64, &mut bytes).unwrap();
    bytes
}

/// Byte offset on the device where debugfs finds an inode.
fn inode_offset(image: &Path, inode: InodeNr) -> u64 {
    let output = run("debugfs", &["-R", &format!("imap <{inode}>"), image.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let after =
        |key: &str| text.split(key).nth(1).unwrap().split([',', '\n', ' ']).next().unwrap().to_owned();
    let table: u64 = after("located at block ").parse().unwrap();
    let offset = u64::from_str_radix(after("offset 0x").trim(), 16).unwrap();
    table * BLOCK as u64 + offset
}

fn index_node(depth: u16, max: u16, child: u64) -> Vec<u8> {
    let mut node = vec![0; 12 + 12 * usize::from(max)];
    for (at, value) in [(0, 0xF30A), (2, 1), (4, max), (6, depth)] {
        node[at..at + 2].copy_from_slice(&u16::to_le_bytes(value));
    }
    node[16..20].copy_from_slice(&(child as u32).to_le_bytes());
    node
}

/// Puts `levels` index nodes with one entry each between the root and the only leaf of a tree of
/// depth 1. The nodes take the blocks of the file's last extent, which is removed from the leaf.
fn deepen(image: &Path, inode: InodeNr, levels: u16) {
    let device = MemoryDevice::load(image).unwrap();
    let place = inode_offset(image, inode);
    let mut raw = vec![0; 128];
    device.read_at(place, &mut raw).unwrap();
    let root = &raw[40..100];
    assert_eq!(root[6], 1, "the tree has depth 1");
    let leaf_number = u64::from(u32::from_le_bytes(root[16..20].try_into().unwrap()));
    let mut leaf = block(&device, leaf_number);
    let count = u16::from_le_bytes(leaf[2..4].try_into().unwrap());
    let last = &leaf[12 + 12 * (usize::from(count) - 1)..][..12];
    let (len, first) =
        (u16::from_le_bytes([last[4], last[5]]), u32::from_le_bytes(last[8..12].try_into().unwrap()));
    assert_eq!(len, levels, "the last extent has a block for each level");
    leaf[2..4].copy_from_slice(&(count - 1).to_le_bytes());
    device.write_at(leaf_number * BLOCK as u64, &leaf).unwrap();
    let mut child = leaf_number;
    for level in 1..=levels {
        let number = u64::from(first) + u64::from(level) - 1;
        let mut node = index_node(level, ((BLOCK - 12) / 12) as u16, child);
        node.resize(BLOCK, 0);
        device.write_at(number * BLOCK as u64, &node).unwrap();
        child = number;
    }
    raw[40..100].copy_from_slice(&index_node(levels + 1, 4, child));
    raw[4..8].copy_from_slice(&((PIECES * STEP - STEP + 1) * BLOCK as u32).to_le_bytes());
    device.write_at(place, &raw).unwrap();
    device.save(image).unwrap();
}

#[test]
fn trees_of_depth_four_and_five_are_read_written_and_truncated() {
    if !require(&["mke2fs", "e2fsck", "debugfs", "root"]) {
        return;
    }
    for levels in [3, 4] {
        let scratch = tempfile::tempdir().unwrap();
        let image = scratch.path().join("image");
        make(&["-b", "1024", "-O", "^metadata_csum,^has_journal", "-I", "128"], "32M", &image);
        let (device, fs) = open(&image);
        let before = fs.statistics().blocks_free;
        let inode = file(&fs, ROOT, "deep");
        let mut content = vec![0; (PIECES * STEP - STEP + 1) as usize * BLOCK];
        for n in 0..PIECES {
            let at = (n * STEP) as usize * BLOCK;
            content[at..at + BLOCK].fill(n as u8 + 1);
            fs.write(&context(), inode, at as u64, &content[at..at + BLOCK]).unwrap();
        }
        // `deepen` will turn these blocks into index nodes.
        let at = u64::from(PIECES * STEP + 5) * BLOCK as u64;
        fs.write(&context(), inode, at, &vec![0xFF; usize::from(levels) * BLOCK]).unwrap();
        fs.close(&context()).unwrap();
        device.save(&image).unwrap();
        deepen(&image, inode, levels);
        {
            let mount = LoopMount::new(&image, "ro").unwrap();
            assert!(std::fs::read(mount.path().join("deep")).unwrap() == content, "the kernel's reading");
        }

        let (device, fs) = open(&image);
        let read = |fs: &blockyard_engine::FileSystem, len: usize| {
            let mut read = vec![0xEE; len];
            assert_eq!(fs.read(&context(), inode, 0, &mut read).unwrap(), len);
            read
        };
        assert!(read(&fs, content.len()) == content);
        // Write into holes, over data, and in so many pieces that leaves and the nodes above split.
        content.resize(4000 * BLOCK, 0);
        for n in (0..2000).map(|n| n * 7 % 2000 * 2) {
            let bytes = &mut content[n * BLOCK..(n + 1) * BLOCK];
            bytes.fill((n % 251) as u8);
            fs.write(&context(), inode, (n * BLOCK) as u64, bytes).unwrap();
            if n % 50 == 0 {
                fs.write_back_file(&context(), inode).unwrap();
            }
        }
        content.truncate(3999 * BLOCK);
        fs.truncate(&context(), inode, content.len() as u64).unwrap();
        assert!(read(&fs, content.len()) == content);
        fs.close(&context()).unwrap();
        device.save(&image).unwrap();
        {
            let mount = LoopMount::new(&image, "ro").unwrap();
            assert!(std::fs::read(mount.path().join("deep")).unwrap() == content, "the kernel's reading");
        }
        let fs = open_device(&device);
        content.truncate(1234 * BLOCK + 5);
        fs.truncate(&context(), inode, content.len() as u64).unwrap();
        assert!(read(&fs, content.len()) == content);
        fs.truncate(&context(), inode, 0).unwrap();
        fs.sync(&context()).unwrap();
        assert_eq!(fs.statistics().blocks_free, before);
        fs.close(&context()).unwrap();
        device.save(&image).unwrap();
        e2fsck_clean(&image);
    }
}

/// Runs only with `BLOCKYARD_FULL=1`. With dir_nlink, a directory takes more than 65,000
/// subdirectories, and its link count is then 1. Without dir_nlink, a directory that has 65,000
/// links takes no more subdirectories.
#[test]
fn a_directory_takes_more_subdirectories_than_links_can_count() {
    if !full_matrix() || !require(&["mke2fs", "e2fsck"]) {
        return;
    }
    for (feature, most) in [("dir_nlink", 65_100), ("^dir_nlink", 64_998)] {
        let scratch = tempfile::tempdir().unwrap();
        let image = scratch.path().join("image");
        mke2fs(
            &image,
            &["-t", "ext4", "-b", "1024", "-N", "70000", "-O", &format!("{feature},^has_journal")],
            "256M",
        );
        let (device, fs) = open(&image);
        let dir = directory(&fs, ROOT, "many");
        for n in 0..most {
            directory(&fs, dir, format!("{n}"));
        }
        let links = fs.attributes(dir).unwrap().links;
        let new = blockyard_engine::NewInode {
            kind: blockyard_disk::inode::FileType::Directory,
            permissions: 0o755,
            device: None,
        };
        match fs.create(&context(), dir, b"one more", &new) {
            Ok(_) => assert!(feature == "dir_nlink" && links == 1, "{links} links"),
            Err(Error::TooManyLinks) => assert!(feature == "^dir_nlink" && links == 65_000, "{links} links"),
            Err(other) => panic!("{other}"),
        }
        fs.close(&context()).unwrap();
        let device: Arc<MemoryDevice> = device;
        device.save(&image).unwrap();
        e2fsck_clean(&image);
    }
}
