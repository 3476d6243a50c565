//! Shared by several tests, mostly the regression tests in `findings*.rs`: fresh images, runs in
//! which each read fails in turn, images as a power cut leaves them, and the checks of an image
//! afterwards.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use crate::support::{ROOT, context, file};
use blockyard_device::{
    BlockDevice, Effect, Fault, FaultyDevice, MemoryDevice, Operation, RecorderDevice, When,
};
use blockyard_disk::InodeNr;
use blockyard_disk::num::{u64_from_usize, usize_from_u64};
use blockyard_engine::{Error, Fallocate, FileSystem, OpenOptions, mkfs};
use std::path::Path;
use std::sync::Arc;

pub(crate) const FILE: &[u8] = b"file";

pub(crate) fn ext4(block_size: u32) -> mkfs::Options {
    mkfs::Options::ext4().block_size(block_size)
}

pub(crate) fn formatted(options: &mkfs::Options, size: u64) -> MemoryDevice {
    let device = MemoryDevice::new(size);
    mkfs::format(&device, &options.clone().identity(1, 1)).unwrap();
    device
}

pub(crate) fn open_on<D: BlockDevice + 'static>(device: &Arc<D>, options: OpenOptions) -> FileSystem {
    let shared: Arc<dyn BlockDevice> = Arc::<D>::clone(device);
    FileSystem::open(shared, options, &context()).unwrap()
}

pub(crate) fn fresh(options: &mkfs::Options, size: u64) -> (Arc<MemoryDevice>, FileSystem) {
    let device = Arc::new(formatted(options, size));
    let fs = open_on(&device, OpenOptions::default());
    (device, fs)
}

/// Options of an image without blocks reserved for root. Ordinary writes can take all blocks except
/// the file system's own reserve.
pub(crate) fn full() -> mkfs::Options {
    let mut options = ext4(1024);
    options.reserved_percent = Some(0.0);
    options
}

/// Writes files until no ordinary space is left. The last blocks go to small files, whose mapping
/// needs no tree block.
pub(crate) fn fill(fs: &FileSystem) {
    let fillers = (0..7).map(|number| file(fs, ROOT, format!("filler{number}")));
    for (filler, len) in fillers.collect::<Vec<_>>().into_iter().zip([64 << 10].into_iter().chain([1024; 6]))
    {
        let mut at = 0;
        while let Ok(written) = fs.write_some(&context(), filler, at, &vec![9; len]) {
            at += u64_from_usize(written);
        }
        fs.sync(&context()).unwrap();
    }
}

/// Options under which every operation finds the running transaction too old and commits it.
pub(crate) fn committing() -> OpenOptions {
    OpenOptions { commit_interval_seconds: 0, ..OpenOptions::default() }
}

pub(crate) fn assert_sound(device: &dyn BlockDevice) {
    let report = blockyard_check::check(device, &blockyard_check::Options::default()).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}

/// Closes the file system. Our checker and e2fsck must find nothing.
pub(crate) fn judge(fs: FileSystem, device: &MemoryDevice) {
    fs.close(&context()).unwrap();
    judge_image(device);
}

pub(crate) fn judge_image(device: &MemoryDevice) {
    assert_sound(device);
    if blockyard_testkit::require(&["e2fsck"]) {
        let scratch = tempfile::tempdir().unwrap();
        let image = scratch.path().join("image");
        device.save(&image).unwrap();
        blockyard_testkit::e2fsck_clean(&image);
    }
}

pub(crate) fn content(fs: &FileSystem, inode: InodeNr) -> Vec<u8> {
    let mut bytes = vec![0xee; usize_from_u64(fs.attributes(inode).unwrap().size)];
    let read = fs.read(&context(), inode, 0, &mut bytes).unwrap();
    assert_eq!(read, bytes.len());
    bytes
}

pub(crate) fn part(fs: &FileSystem, inode: InodeNr, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    let read = fs.read(&context(), inode, at, &mut bytes).unwrap();
    bytes.truncate(read);
    bytes
}

/// Runs `work` on a copy of `base`, closes it, and records all writes. Each prefix of these writes
/// gives the image that a power cut at that point leaves. Opens each such image, shows it to `look`
/// and closes it; then our checker must find nothing in it.
pub(crate) fn after_each_write(
    base: &MemoryDevice,
    options: &OpenOptions,
    work: impl FnOnce(&FileSystem),
    look: impl Fn(&FileSystem),
) {
    let device = Arc::new(RecorderDevice::new(base.duplicate()));
    let fs = open_on(&device, options.clone());
    work(&fs);
    fs.close(&context()).unwrap();
    let log = device.take_log();
    assert!(log.events().len() > 3);
    for count in 0..=log.events().len() {
        let cut = Arc::new(base.duplicate());
        log.apply_prefix(count, &*cut).unwrap();
        let fs = open_on(&cut, OpenOptions::default());
        look(&fs);
        fs.close(&context()).unwrap();
        let report = blockyard_check::check(&*cut, &blockyard_check::Options::default()).unwrap();
        assert!(report.is_clean(), "after {count} writes: {:?}", report.findings);
    }
}

/// Runs `work` again and again, each time on a freshly opened copy of `base`. In the n-th run, the
/// n-th read of `work` fails. `look` gets the file system and whether `work` succeeded. The
/// instance must not have failed, and our checker must find nothing in the closed image.
pub(crate) fn with_each_read_failing(
    base: &MemoryDevice,
    options: &OpenOptions,
    work: impl Fn(&FileSystem) -> Result<(), Error>,
    look: impl Fn(&FileSystem, bool),
) {
    let mut failed = 0;
    for nth in 1.. {
        let device = Arc::new(FaultyDevice::new(base.duplicate()));
        let fs = open_on(&device, options.clone());
        let when = When::Nth(device.counts().reads + nth);
        device.add(Fault { operation: Operation::Read, when, effect: Effect::Nothing });
        let done = work(&fs);
        let struck = device.strikes() > 0;
        device.heal();
        look(&fs, done.is_ok());
        assert!(!fs.has_failed(), "read {nth}");
        fs.close(&context()).unwrap();
        let report = blockyard_check::check(device.below(), &blockyard_check::Options::default()).unwrap();
        assert!(report.is_clean(), "read {nth}: {:?}", report.findings);
        failed += u32::from(done.is_err());
        if !struck {
            break;
        }
    }
    assert!(failed > 0, "nothing failed");
}

/// Makes a durable file of `extents` extents of one block each, with holes of one block between
/// them. Returns its inode and its content.
pub(crate) fn comb(fs: &FileSystem, extents: usize, byte: u8) -> (InodeNr, Vec<u8>) {
    let block = usize_from_u64(u64::from(fs.statistics().block_size));
    let inode = file(fs, ROOT, FILE);
    let mut model = vec![0; (2 * extents - 1) * block];
    for at in (0..extents).map(|n| 2 * n * block) {
        fs.write(&context(), inode, u64_from_usize(at), &vec![byte; block]).unwrap();
        model[at..at + block].fill(byte);
    }
    fs.fsync(&context(), inode).unwrap();
    (inode, model)
}

/// Saves the image, runs debugfs commands on it, and loads the result.
pub(crate) fn debugged(device: &MemoryDevice, scratch: &Path, commands: &[String]) -> MemoryDevice {
    let image = scratch.join("image");
    device.save(&image).unwrap();
    for command in commands {
        blockyard_testkit::run("debugfs", &["-w", "-R", command, image.to_str().unwrap()]);
    }
    MemoryDevice::load(&image).unwrap()
}

/// Grows a file of a few bytes beyond its first block, with zeroes only.
pub(crate) type Grow = fn(&FileSystem, InodeNr) -> Result<(), Error>;
/// Ways to grow a file, with their names.
pub(crate) const GROWTHS: [(&str, Grow); 6] = [
    ("truncate", |fs, inode| fs.truncate(&context(), inode, 9000)),
    ("write behind", |fs, inode| fs.write(&context(), inode, 8192, &[0; 808])),
    ("write in the block", |fs, inode| fs.write(&context(), inode, 3000, &[0; 6000])),
    ("allocate", |fs, inode| fs.fallocate(&context(), inode, Fallocate::Allocate, 5000, 4000)),
    ("zero", |fs, inode| fs.fallocate(&context(), inode, Fallocate::ZeroRange, 4096, 4904)),
    ("direct", |fs, inode| fs.write_direct(&context(), inode, 8192, &[0; 4096]).map(drop)),
];

/// An image with a file of 26 bytes. The rest of its block holds bytes other than zero.
pub(crate) fn file_with_more_behind_its_end() -> (Arc<MemoryDevice>, InodeNr) {
    let (device, fs) = fresh(&ext4(4096), 32 << 20);
    let inode = file(&fs, ROOT, FILE);
    fs.write(&context(), inode, 0, b"the only block of its kind").unwrap();
    fs.close(&context()).unwrap();
    let mut block = [0; 4096];
    let place = (0..32 << 20).step_by(4096).find(|&at| {
        device.read_at(at, &mut block).unwrap();
        block.starts_with(b"the only block of its kind")
    });
    device.write_at(place.unwrap() + 26, &[0xbb; 4070]).unwrap();
    (device, inode)
}

/// A fresh image of 16 MiB, changed by debugfs commands; `None` without debugfs.
pub(crate) fn changed(options: &mkfs::Options, commands: &[&str]) -> Option<MemoryDevice> {
    if !blockyard_testkit::require(&["debugfs"]) {
        return None;
    }
    let scratch = tempfile::tempdir().unwrap();
    let commands: Vec<String> = commands.iter().map(|&command| command.to_owned()).collect();
    Some(debugged(&formatted(options, 16 << 20), scratch.path(), &commands))
}
