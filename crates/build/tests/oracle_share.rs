//! On a file system that can share blocks between files, the image shares the blocks of large
//! files. Its bytes equal those of an image without sharing.

#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use blockyard_build::{Builder, Tree};
use blockyard_device::{BlockDevice, FileDevice, Result};
use blockyard_engine::mkfs::Options;
use blockyard_testkit::{LoopMount, e2fsck_clean, require, run};

/// A file device that counts the bytes which it shares with other files.
struct Counting(FileDevice, AtomicU64);

impl BlockDevice for Counting {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn is_read_only(&self) -> bool {
        self.0.is_read_only()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.0.write_at(offset, data)
    }

    fn share_from(&self, offset: u64, length: u64, file: BorrowedFd<'_>, from: u64) -> Result<bool> {
        let is_shared = self.0.share_from(offset, length, file, from)?;
        // Relaxed is enough: the count is read after the threads have ended.
        self.1.fetch_add(if is_shared { length } else { 0 }, Ordering::Relaxed);
        Ok(is_shared)
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> Result<()> {
        self.0.write_zeroes(offset, length)
    }

    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.0.discard(offset, length)
    }

    fn flush(&self) -> Result<()> {
        self.0.flush()
    }
}

/// How many MiB must be shared at least: the whole blocks of the test's large files.
const LARGE: u64 = 9 + 5 + 2;

fn make_tree(top: &Path) {
    fs::create_dir_all(top.join("below")).unwrap();
    let noise: Vec<u8> = (0u32..9 << 18).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    fs::write(top.join("large"), &noise).unwrap();
    fs::write(top.join("below/odd"), &noise[..(5 << 20) + 4097]).unwrap();
    fs::write(top.join("below/small"), &noise[..40_000]).unwrap();
    let sparse = File::create(top.join("sparse")).unwrap();
    sparse.write_all_at(&noise[..2 << 20], 8 << 20).unwrap();
    sparse.set_len(20 << 20).unwrap();
}

/// Makes an image starting at byte `start` of a file. Returns its bytes, and how many were shared.
fn image(tree: Tree, path: &Path, start: u64, options: Options) -> (Vec<u8>, u64) {
    let builder = Builder { options, threads: 2, ..Builder::default() };
    let plan = builder.plan(tree).unwrap();
    let bytes = plan.bytes();
    let device = Counting(FileDevice::create_at(path, start, bytes).unwrap(), AtomicU64::new(0));
    plan.write(&device).unwrap();
    let mut image = vec![0; usize::try_from(bytes).unwrap()];
    device.read_at(0, &mut image).unwrap();
    (image, device.1.into_inner())
}

fn archive(top: &Path, spool: &Path) -> Tree {
    let tar = ["--sort=name", "--format=pax", "--numeric-owner", "--sparse", "-cC"];
    let archive = run("tar", &[&tar[..], &[top.to_str().unwrap(), "."]].concat());
    assert!(archive.status.success(), "{archive:?}");
    Tree::read_archive(std::io::Cursor::new(archive.stdout), Path::new("archive"), spool).unwrap()
}

fn check(make: &[&str], kind: &str) {
    if !require(&["root", make[0], "tar", "e2fsck", "mount"]) {
        return;
    }
    let plain = tempfile::tempdir().unwrap();
    let store = plain.path().join("store");
    File::create(&store).unwrap().set_len(600 << 20).unwrap();
    let made = run(make[0], &[&make[1..], &[store.to_str().unwrap()]].concat());
    assert!(made.status.success(), "{made:?}");
    let sharing = LoopMount::of_type(&store, kind).unwrap();
    let source = sharing.path().join("source");
    make_tree(&source);
    let tree = || Tree::read(&source, 1).unwrap();

    for block in [4096, 1024] {
        let options = || Options::ext4().block_size(block);
        let (expected, none) = image(tree(), &plain.path().join("image"), 0, options());
        assert_eq!(none, 0, "two file systems share nothing");
        let path = sharing.path().join("image");
        let (found, shared) = image(tree(), &path, 0, options());
        assert!(found == expected, "{kind}, blocks of {block}: other bytes");
        // Blocks of 1 KiB need not lie where the file system can share them.
        assert!(shared >> 20 >= LARGE || block < 4096, "{kind}: {shared} bytes are shared");
        e2fsck_clean(&path);
        let (found, shared) = image(tree(), &sharing.path().join("parted"), 512, options());
        assert!(found == expected && shared == 0, "{kind}, in a part that begins within a block");
        let (found, shared) = image(archive(&source, sharing.path()), &path, 0, options());
        assert!(found == expected, "{kind}, of an archive, blocks of {block}: other bytes");
        assert!(shared >> 20 >= LARGE || block < 4096, "{kind}: {shared} bytes of the spool are shared");
    }
    // The image keeps its bytes when the source is overwritten.
    let path = sharing.path().join("image");
    let (before, shared) = image(tree(), &path, 0, Options::ext4().block_size(4096));
    assert!(shared >> 20 >= LARGE, "{kind}: {shared} bytes are shared");
    fs::write(source.join("large"), vec![0x55; 9 << 20]).unwrap();
    assert!(fs::read(&path).unwrap() == before);
}

#[test]
fn large_files_share_their_blocks_with_the_image_on_xfs() {
    check(&["mkfs.xfs", "-q", "-m", "reflink=1"], "xfs");
}

#[test]
fn large_files_share_their_blocks_with_the_image_on_btrfs() {
    check(&["mkfs.btrfs", "-q"], "btrfs");
}
