//! Worked examples of bigalloc: space is counted in whole clusters, whatever part of them is
//! mapped.

#![allow(clippy::unwrap_used)]

use blockyard_device::MemoryDevice;
use blockyard_disk::inode::FileType;
use blockyard_disk::{InodeNr, Timestamp};
use blockyard_engine::mkfs;
use blockyard_engine::{Fallocate, FileSystem, NewInode, OpContext, OpenOptions};
use std::sync::Arc;

const BLOCK: u64 = 4096;

fn context() -> OpContext {
    OpContext::root_at(Timestamp::from_seconds(1_700_000_000))
}

/// 4 KiB blocks in clusters of 16.
fn open() -> FileSystem {
    let device = Arc::new(MemoryDevice::new(4 << 30));
    let options =
        mkfs::Options::ext4().block_size(4096).features("bigalloc").cluster_size(65_536).identity(1, 1);
    mkfs::format(&*device, &options).unwrap();
    FileSystem::open(device, OpenOptions::default(), &context()).unwrap()
}

fn file(fs: &FileSystem, name: &str) -> InodeNr {
    let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
    fs.create(&context(), InodeNr::ROOT, name.as_bytes(), &new).unwrap()
}

/// Allocated and reserved space of a file, in blocks.
fn blocks(fs: &FileSystem, inode: InodeNr) -> u64 {
    fs.attributes(inode).unwrap().sectors * 512 / BLOCK
}

#[test]
fn a_cluster_stays_while_one_of_its_blocks_is_mapped() {
    let fs = open();
    let ctx = context();
    let free = fs.statistics().blocks_free;
    let a = file(&fs, "a");
    let allocate =
        |first: u64, n: u64| fs.fallocate(&ctx, a, Fallocate::Allocate, first * BLOCK, n * BLOCK).unwrap();
    let punch =
        |first: u64, n: u64| fs.fallocate(&ctx, a, Fallocate::PunchHole, first * BLOCK, n * BLOCK).unwrap();
    allocate(5, 1);
    assert_eq!(blocks(&fs, a), 16);
    allocate(0, 1);
    assert_eq!(blocks(&fs, a), 16);
    allocate(15, 3);
    assert_eq!(blocks(&fs, a), 32);
    punch(5, 1);
    assert_eq!(blocks(&fs, a), 32);
    punch(0, 1);
    assert_eq!(blocks(&fs, a), 32);
    punch(15, 1);
    assert_eq!(blocks(&fs, a), 16);
    fs.truncate(&ctx, a, 17 * BLOCK).unwrap();
    assert_eq!(blocks(&fs, a), 16);
    fs.truncate(&ctx, a, 16 * BLOCK).unwrap();
    assert_eq!(blocks(&fs, a), 0);
    assert_eq!(fs.statistics().blocks_free, free);
}

#[test]
fn reservations_follow_clusters() {
    let fs = open();
    let ctx = context();
    let b = file(&fs, "b");
    let free = fs.statistics().blocks_free;
    let write = |block: u64| fs.write(&ctx, b, block * BLOCK, &[7; 4096]).unwrap();
    let reserved = || free - fs.statistics().blocks_free;
    write(3);
    assert_eq!(reserved(), 16);
    write(9);
    assert_eq!(reserved(), 16);
    write(40);
    assert_eq!(reserved(), 32);
    fs.write_back_file(&ctx, b).unwrap();
    assert_eq!((reserved(), blocks(&fs, b)), (32, 32));
    write(4);
    assert_eq!((reserved(), blocks(&fs, b)), (32, 32), "the cluster is there already");
    fs.write_back_file(&ctx, b).unwrap();
    assert_eq!(blocks(&fs, b), 32);
    fs.truncate(&ctx, b, 4 * BLOCK).unwrap();
    assert_eq!(blocks(&fs, b), 16);
    fs.truncate(&ctx, b, 0).unwrap();
    assert_eq!((reserved(), blocks(&fs, b)), (0, 0));
}

#[test]
fn a_tree_block_takes_a_cluster() {
    let fs = open();
    let ctx = context();
    let m = file(&fs, "m");
    for n in 0..8 {
        fs.fallocate(&ctx, m, Fallocate::Allocate, n * 32 * BLOCK, BLOCK).unwrap();
    }
    assert_eq!(blocks(&fs, m), 144, "eight data clusters and a leaf");
}
