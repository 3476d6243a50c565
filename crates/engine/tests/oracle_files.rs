//! Files on images that mke2fs made: after each scenario e2fsck finds nothing, and the kernel reads
//! what we wrote.

#![allow(clippy::as_conversions, clippy::unwrap_used)]

#[path = "support/image.rs"]
mod support;

use blockyard_engine::{Fallocate, FileSystem};
use blockyard_testkit::{LoopMount, e2fsck_clean, require};
use support::{ROOT, context, directory, file, make, open};

/// The options of mke2fs for each image.
const MATRIX: &[&[&str]] = &[
    &[],
    &["-b", "1024"],
    &["-O", "^has_journal"],
    &["-O", "^metadata_csum"],
    &["-O", "^metadata_csum,uninit_bg"],
    &["-O", "^64bit"],
    &["-O", "^flex_bg"],
    &["-O", "^resize_inode,^has_journal"],
    &["-t", "ext3"],
    &["-t", "ext2"],
    &["-I", "128"],
    &["-O", "bigalloc", "-C", "16384"],
    &["-O", "bigalloc", "-C", "65536"],
    &["-O", "bigalloc", "-b", "1024", "-C", "2048"],
    &["-O", "inline_data"],
    &["-O", "metadata_csum_seed,orphan_file"],
    &["-b", "2048", "-G", "4"],
    &["-b", "4096", "-g", "8192"],
    &["-O", "meta_bg,^resize_inode"],
    &["-E", "lazy_itable_init=1"],
];

fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|n| ((n * 31 + n / 255 + salt) % 251) as u8).collect()
}

/// Writes small, large and sparse files and truncates some. Returns the paths and the content that
/// must be read back.
fn exercise(fs: &FileSystem) -> Vec<(String, Vec<u8>)> {
    let ctx = context();
    let mut expected = Vec::new();
    let dir = directory(fs, ROOT, "dir");
    for n in 0..40 {
        let name = format!("file-with-a-longer-name-{n}");
        let inode = file(fs, dir, &name);
        let content = pattern(n * 777, n);
        fs.write(&ctx, inode, 0, &content).unwrap();
        expected.push((format!("dir/{name}"), content));
    }
    let big = file(fs, ROOT, "big");
    let content = pattern(3_000_000, 7);
    fs.write(&ctx, big, 0, &content).unwrap();
    expected.push(("big".to_owned(), content));
    let sparse = file(fs, ROOT, "sparse");
    let mut content = vec![0; 5_000_000];
    for n in 0..60 {
        let at = n * 80_000 + n * 13;
        let part = pattern(1000 + n * 100, n);
        fs.write(&ctx, sparse, at as u64, &part).unwrap();
        content[at..at + part.len()].copy_from_slice(&part);
        if n % 7 == 0 {
            fs.write_back_file(&ctx, sparse).unwrap();
        }
    }
    fs.truncate(&ctx, sparse, 4_999_999).unwrap();
    content.truncate(4_999_999);
    expected.push(("sparse".to_owned(), content));
    let cut = file(fs, ROOT, "cut");
    fs.write(&ctx, cut, 0, &pattern(900_000, 3)).unwrap();
    fs.fsync(&ctx, cut).unwrap();
    fs.truncate(&ctx, cut, 123_457).unwrap();
    fs.truncate(&ctx, cut, 300_000).unwrap();
    let mut content = pattern(900_000, 3)[..123_457].to_vec();
    content.resize(300_000, 0);
    expected.push(("cut".to_owned(), content));
    for (path, content) in &expected {
        assert!(&read_path(fs, path) == content, "{path} before the image was closed");
    }
    expected
}

fn read_path(fs: &FileSystem, path: &str) -> Vec<u8> {
    let inode = path.split('/').fold(ROOT, |dir, name| fs.lookup(dir, name.as_bytes()).unwrap());
    let mut content = vec![0xEE; fs.attributes(inode).unwrap().size as usize];
    assert_eq!(fs.read(&context(), inode, 0, &mut content).unwrap(), content.len());
    content
}

fn fallocate_tricks(fs: &FileSystem) -> (String, Vec<u8>) {
    let ctx = context();
    let unit = 65_536u64;
    let inode = file(fs, ROOT, "tricks");
    let mut content = pattern(20 * unit as usize, 11);
    fs.write(&ctx, inode, 0, &content).unwrap();
    fs.fallocate(&ctx, inode, Fallocate::PunchHole, unit + 100, 2 * unit).unwrap();
    content[unit as usize + 100..3 * unit as usize + 100].fill(0);
    fs.fallocate(&ctx, inode, Fallocate::ZeroRange, 5 * unit + 7, unit).unwrap();
    content[5 * unit as usize + 7..6 * unit as usize + 7].fill(0);
    fs.fallocate(&ctx, inode, Fallocate::CollapseRange, 8 * unit, unit).unwrap();
    content.drain(8 * unit as usize..9 * unit as usize);
    fs.fallocate(&ctx, inode, Fallocate::InsertRange, 4 * unit, 2 * unit).unwrap();
    let tail = content.split_off(4 * unit as usize);
    content.resize(6 * unit as usize, 0);
    content.extend(tail);
    fs.fallocate(&ctx, inode, Fallocate::AllocateKeepSize, 30 * unit, 3 * unit).unwrap();
    fs.fallocate(&ctx, inode, Fallocate::Allocate, 21 * unit, 2 * unit).unwrap();
    content.resize(23 * unit as usize, 0);
    let part = pattern(unit as usize / 2, 5);
    fs.write(&ctx, inode, 22 * unit + 50, &part).unwrap();
    content[22 * unit as usize + 50..][..part.len()].copy_from_slice(&part);
    assert!(read_path(fs, "tricks") == content);
    ("tricks".to_owned(), content)
}

#[test]
fn the_kernel_and_e2fsck_agree_with_what_was_written() {
    if !require(&["mke2fs", "e2fsck", "root"]) {
        return;
    }
    for options in MATRIX {
        println!("mke2fs {options:?}");
        let scratch = tempfile::tempdir().unwrap();
        let image = scratch.path().join("image");
        make(options, "64M", &image);
        let (device, fs) = open(&image);
        let mut expected = exercise(&fs);
        if fs.superblock().features().incompat.contains(blockyard_disk::Incompat::EXTENTS) {
            expected.push(fallocate_tricks(&fs));
        }
        fs.close(&context()).unwrap();
        device.save(&image).unwrap();
        e2fsck_clean(&image);
        {
            let mount = LoopMount::new(&image, "ro").unwrap();
            for (path, content) in &expected {
                let read = std::fs::read(mount.path().join(path)).unwrap();
                assert!(read == *content, "{path}: the kernel reads something else");
            }
        }
        // Open the image again, and remove everything.
        let (device, fs) = open(&image);
        for (path, content) in &expected {
            assert!(&read_path(&fs, path) == content, "{path} after the image was opened again");
            let (parent, name) = match path.split_once('/') {
                Some((dir, name)) => (fs.lookup(ROOT, dir.as_bytes()).unwrap(), name),
                None => (ROOT, path.as_str()),
            };
            fs.unlink(&context(), parent, name.as_bytes()).unwrap();
        }
        fs.rmdir(&context(), ROOT, b"dir").unwrap();
        fs.close(&context()).unwrap();
        device.save(&image).unwrap();
        e2fsck_clean(&image);
    }
}
