//! Trimming free blocks: on a device that destroys discarded data, nothing needed is lost.

#![allow(clippy::unwrap_used)]

#[path = "support/image.rs"]
mod support;

use blockyard_device::{BlockDevice, DeviceId, MemoryDevice, Result as DeviceResult};
use blockyard_engine::{Error, FileSystem, OpContext, OpenOptions, mkfs};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use support::{ROOT, context, file};

const BLOCK: u64 = 4096;

/// A device on which discarded bytes read as garbage. It counts them and lists the discarded runs.
struct Shredder {
    below: MemoryDevice,
    discarded: AtomicU64,
    runs: Mutex<Vec<(u64, u64)>>,
}

impl Shredder {
    fn taken(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.runs.lock().unwrap())
    }
}

impl BlockDevice for Shredder {
    fn size(&self) -> u64 {
        self.below.size()
    }
    fn is_read_only(&self) -> bool {
        self.below.is_read_only()
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> DeviceResult<()> {
        self.below.read_at(offset, buffer)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> DeviceResult<()> {
        self.below.write_at(offset, data)
    }
    fn write_zeroes(&self, offset: u64, length: u64) -> DeviceResult<()> {
        self.below.write_zeroes(offset, length)
    }
    fn discard(&self, offset: u64, length: u64) -> DeviceResult<()> {
        self.discarded.fetch_add(length, Ordering::Relaxed);
        self.runs.lock().unwrap().push((offset, length));
        self.below.write_at(offset, &vec![0xA5; usize::try_from(length).unwrap()])
    }
    fn flush(&self) -> DeviceResult<()> {
        self.below.flush()
    }
    fn identity(&self) -> DeviceId {
        self.below.identity()
    }
}

fn world(options: &mkfs::Options, size: u64) -> (Arc<Shredder>, FileSystem) {
    let device = Arc::new(Shredder {
        below: MemoryDevice::new(size),
        discarded: AtomicU64::new(0),
        runs: Mutex::default(),
    });
    mkfs::format(&device.below, options).unwrap();
    let shared: Arc<dyn BlockDevice> = Arc::<Shredder>::clone(&device);
    (device, FileSystem::open(shared, OpenOptions::default(), &context()).unwrap())
}

fn content(seed: u8, blocks: u64) -> Vec<u8> {
    vec![seed; usize::try_from(blocks * BLOCK).unwrap()]
}

/// As on Linux 6.18 (docs/behaviour/block-allocation.md): a trimmed group is skipped until a block
/// is freed in it and the transaction that freed the block has committed.
#[test]
fn free_blocks_are_trimmed_once() {
    let (device, fs) = world(&mkfs::Options::ext4().block_size(4096).identity(1, 1), 256 << 20);
    let free = fs.statistics().blocks_free * BLOCK;
    assert_eq!(fs.trim(&context(), 0..u64::MAX, 0).unwrap(), free);
    assert_eq!(device.taken().iter().map(|run| run.1).sum::<u64>(), free);
    assert_eq!(fs.trim(&context(), 0..u64::MAX, 0).unwrap(), 0);
    let inode = file(&fs, ROOT, "f");
    fs.write(&context(), inode, 0, &content(7, 100)).unwrap();
    fs.sync(&context()).unwrap();
    fs.unlink(&context(), ROOT, b"f").unwrap();
    assert_eq!(fs.trim(&context(), 0..u64::MAX, 0).unwrap(), 0, "freed and not committed");
    fs.commit(&context()).unwrap();
    let trimmed = fs.trim(&context(), 0..u64::MAX, 0).unwrap();
    assert!(trimmed >= 100 * BLOCK && trimmed < free, "{trimmed} of one group");
    assert_eq!(fs.trim(&context(), 0..u64::MAX, 0).unwrap(), 0);
    fs.close(&context()).unwrap();
}

#[test]
fn runs_are_cut_to_the_range_and_short_ones_left_out() {
    let (device, fs) = world(&mkfs::Options::ext4().block_size(4096).identity(1, 1), 256 << 20);
    let (from, to) = (200 << 20, (200 << 20) + 10 * BLOCK);
    assert_eq!(fs.trim(&context(), from..to, 0).unwrap(), 10 * BLOCK);
    assert_eq!(device.taken(), [(from, 10 * BLOCK)]);
    assert_eq!(fs.trim(&context(), from..to, 11 * BLOCK).unwrap(), 0);
    assert_eq!(fs.trim(&context(), from..to, 9 * BLOCK + 1).unwrap(), 10 * BLOCK, "a group trimmed in part");
    for (range, at_least) in
        [(256 << 20..u64::MAX, 0), (0..BLOCK - 1, 0), (0..0, 0), (0..u64::MAX, (128 << 20) + 1)]
    {
        let refused = fs.trim(&context(), range.clone(), at_least);
        assert!(matches!(refused, Err(Error::Invalid(_))), "{range:?} {at_least}: {refused:?}");
    }
    assert_eq!(fs.trim(&context(), (256 << 20) - BLOCK..u64::MAX, 128 << 20).unwrap(), 0);
    fs.close(&context()).unwrap();
    let shared: Arc<dyn BlockDevice> = Arc::<Shredder>::clone(&device);
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let fs = FileSystem::open(shared, options, &context()).unwrap();
    assert!(matches!(fs.trim(&context(), 0..u64::MAX, 0), Err(Error::ReadOnly)));
}

/// Trims images of three geometries:
///
/// - with blocks of 1 KiB: block 0 belongs to no group;
/// - with clusters: the device ends three blocks after the file system;
/// - with blocks of 64 KiB.
#[test]
fn blocks_of_every_geometry() {
    let kinds = [
        (mkfs::Options::ext4().block_size(1024), 1024),
        (mkfs::Options::ext4().block_size(4096).cluster_size(65536), 4096),
        (mkfs::Options::ext4().block_size(65536), 65536),
    ];
    for (options, block) in kinds {
        let (device, fs) = world(&options.identity(1, 1), (96 << 20) + 3 * block);
        let trimmed = fs.trim(&context(), 0..u64::MAX, 0).unwrap();
        let free = fs.statistics().blocks_free * block;
        assert!(trimmed <= free && trimmed + 65536 > free, "{block}: {trimmed} of {free}");
        let inode = file(&fs, ROOT, "f");
        fs.write(&context(), inode, 0, &content(7, 3)).unwrap();
        file(&fs, ROOT, "g");
        fs.sync(&context()).unwrap();
        // Nothing was freed since the trim, so neither half has anything to trim.
        let half = device.size() / 2;
        let parts = [0..half, half..u64::MAX].map(|part| fs.trim(&context(), part, 2 * block).unwrap());
        assert_eq!(parts, [0, 0]);
        let mut got = content(0, 3);
        fs.read(&context(), inode, 0, &mut got).unwrap();
        assert_eq!(got, content(7, 3));
        fs.close(&context()).unwrap();
        is_sound(&device);
    }
}

/// Subtracts one from the number of running writers when dropped, also in a panic.
struct Done<'a>(&'a AtomicU64);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Four writers create and remove files while a fifth thread trims all the time: each file holds
/// what was written to it.
#[test]
fn files_survive_trimming_beside_them() {
    let (device, fs) = world(&mkfs::Options::ext4().block_size(4096).identity(1, 1), 64 << 20);
    let writers = AtomicU64::new(4);
    thread::scope(|scope| {
        for worker in 0..4u8 {
            let (fs, writers) = (&fs, &writers);
            scope.spawn(move || {
                let ctx = OpContext { cpu: blockyard_sync::CpuSlot::new(u32::from(worker)), ..context() };
                let _done = Done(writers);
                for round in 0..60u8 {
                    let name = [b'a' + worker, b'0' + round % 5];
                    _ = fs.unlink(&ctx, ROOT, &name);
                    let inode = fs.create(&ctx, ROOT, &name, &support::regular()).unwrap();
                    let data = content(worker * 60 + round, 1 + u64::from(round) * 3);
                    fs.write(&ctx, inode, 0, &data).unwrap();
                    fs.fsync(&ctx, inode).unwrap();
                    let mut got = vec![0; data.len()];
                    fs.read(&ctx, inode, 0, &mut got).unwrap();
                    assert!(got == data, "{worker} {round}");
                }
            });
        }
        while writers.load(Ordering::Relaxed) > 0 {
            fs.trim(&context(), 0..u64::MAX, 0).unwrap();
        }
    });
    assert!(device.discarded.load(Ordering::Relaxed) > 64 << 20);
    fs.close(&context()).unwrap();
    is_sound(&device);
}

fn is_sound(device: &Shredder) {
    let image = tempfile::NamedTempFile::new().unwrap();
    device.below.save(image.path()).unwrap();
    blockyard_testkit::e2fsck_clean(image.path());
}
