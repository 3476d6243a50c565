//! Readers of a file do not wait for a writer of the same file, and see only the file's own bytes.
//! Data of a file that is read sequentially is read ahead.

#![allow(clippy::unwrap_used, clippy::as_conversions)]

use blockyard_device::{BlockDevice, MemoryDevice, Result};
use blockyard_disk::InodeNr;
use blockyard_disk::inode::FileType;
use blockyard_engine::{Fallocate, FileSystem, NewInode, OpContext, OpenOptions, mkfs};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

const FILE: NewInode = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };

/// A device that can be shut. While it is shut, writes whose first byte is 0xDA do not return. One
/// test fills its file data with this byte.
struct Gated {
    device: MemoryDevice,
    shut: Mutex<bool>,
    opened: Condvar,
    /// Whether a write has waited for the device to be opened.
    waits: AtomicBool,
    /// The number of read calls, and the number of bytes that they read.
    reads: [AtomicU64; 2],
}

impl Gated {
    fn new(device: MemoryDevice) -> Self {
        Self {
            device,
            shut: Mutex::new(false),
            opened: Condvar::new(),
            waits: AtomicBool::new(false),
            reads: Default::default(),
        }
    }

    fn set_shut(&self, shut: bool) {
        *self.shut.lock().unwrap() = shut;
        self.opened.notify_all();
    }
}

impl BlockDevice for Gated {
    fn size(&self) -> u64 {
        self.device.size()
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.reads[0].fetch_add(1, Ordering::Relaxed);
        self.reads[1].fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.device.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let mut shut = self.shut.lock().unwrap();
        while *shut && data[0] == 0xDA {
            self.waits.store(true, Ordering::Release);
            shut = self.opened.wait(shut).unwrap();
        }
        drop(shut);
        self.device.write_at(offset, data)
    }
    fn write_zeroes(&self, offset: u64, length: u64) -> Result<()> {
        self.device.write_zeroes(offset, length)
    }
    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.device.discard(offset, length)
    }
    fn flush(&self) -> Result<()> {
        self.device.flush()
    }
}

fn made() -> Arc<Gated> {
    let device = MemoryDevice::new(64 << 20);
    mkfs::format(&device, &mkfs::Options::ext4().block_size(4096).identity(1, 1)).unwrap();
    Arc::new(Gated::new(device))
}

/// Write-back holds the content lock during device I/O. Readers of the same file once waited for
/// this lock. Now they do not, whether they read clean data or data that is being written.
#[test]
fn a_device_that_does_not_answer_a_writer_holds_up_no_reader() {
    let device = made();
    let ctx = OpContext::system();
    let fs = FileSystem::open(Arc::<Gated>::clone(&device), OpenOptions::default(), &ctx).unwrap();
    let file = fs.create(&ctx, InodeNr::ROOT, b"f", &FILE).unwrap();
    fs.write(&ctx, file, 0, &[1; 40_000]).unwrap();
    fs.sync(&ctx).unwrap();
    fs.write(&ctx, file, 40_960, &[0xDA; 8192]).unwrap();
    device.set_shut(true);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| fs.fsync(&OpContext::system(), file).unwrap());
        while !device.waits.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let mut clean = [0; 5000];
        assert_eq!(fs.read(&ctx, file, 30_000, &mut clean).unwrap(), 5000);
        assert!(clean.iter().all(|&byte| byte == 1));
        // Data that is being written is read from memory.
        let mut written = [0; 6000];
        assert_eq!(fs.read(&ctx, file, 42_000, &mut written).unwrap(), 6000);
        assert!(written.iter().all(|&byte| byte == 0xDA));
        assert!(!writer.is_finished());
        device.set_shut(false);
    });
    fs.close(&ctx).unwrap();
}

/// One thread appends to a file, collapses a range of it, truncates it and writes it back. Another
/// file gets the freed blocks at once. Readers of the first file see only its own bytes, and no
/// zeroes.
#[test]
fn readers_see_their_file_whatever_others_do() {
    read_beside_changes(0);
}

/// As the test above, but with a cache for clean data. Cached data must leave the cache when its
/// block is freed.
#[test]
fn readers_of_kept_data_see_their_file_whatever_others_do() {
    read_beside_changes(256 << 10);
    read_beside_changes(16 << 20);
}

fn read_beside_changes(clean_data_bytes: usize) {
    let device = made();
    let ctx = OpContext::system();
    let options = OpenOptions { dirty_data_bytes: 256 << 10, clean_data_bytes, ..OpenOptions::default() };
    let fs = FileSystem::open(Arc::<Gated>::clone(&device), options, &ctx).unwrap();
    let [mine, other] = [b"mine", b"othr"].map(|name| fs.create(&ctx, InodeNr::ROOT, name, &FILE).unwrap());
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..120u64 {
                for step in 0..20 {
                    fs.append(&ctx, mine, &vec![7; 3000 + step * 371]).unwrap();
                }
                if round % 3 == 0 {
                    fs.fsync(&ctx, mine).unwrap();
                }
                fs.fallocate(&ctx, mine, Fallocate::CollapseRange, 4096, 8192).unwrap();
                fs.truncate(&ctx, mine, 10_000 + round * 13).unwrap();
                fs.sync(&ctx).unwrap();
                // Freed blocks are reused.
                fs.write(&ctx, other, 0, &[9; 100_000]).unwrap();
                fs.write_back_file(&ctx, other).unwrap();
                fs.truncate(&ctx, other, 0).unwrap();
            }
            ends.store(true, Ordering::Release);
        });
        for reader in 0..3u64 {
            let (fs, ctx, ends) = (&fs, &ctx, &ends);
            scope.spawn(move || {
                let mut buf = vec![0; 30_000];
                let mut at = reader;
                while !ends.load(Ordering::Acquire) {
                    let got = fs.read(ctx, mine, at % 90_000, &mut buf).unwrap();
                    let wrong = buf[..got].iter().position(|&byte| byte != 7);
                    assert_eq!(wrong, None, "byte {:?} of a read at {}", wrong.map(|n| buf[n]), at % 90_000);
                    at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)
                        >> 3;
                }
            });
        }
    });
    fs.close(&ctx).unwrap();
    let report = blockyard_check::check(&device.device, &blockyard_check::Options::default()).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}

/// When a file is read sequentially in small steps, the device gets a few large reads. A second
/// pass needs no device reads. Direct reads go to the device. Later reads see what a direct write
/// wrote.
#[test]
fn what_is_read_in_order_is_read_ahead_and_kept() {
    let device = made();
    let ctx = OpContext::system();
    let options = OpenOptions { clean_data_bytes: 16 << 20, ..OpenOptions::default() };
    let bytes: Vec<u8> = (0..8u32 << 20).map(|n| (n / 4099) as u8).collect();
    let fs = FileSystem::open(Arc::<Gated>::clone(&device), options.clone(), &ctx).unwrap();
    let file = fs.create(&ctx, InodeNr::ROOT, b"f", &FILE).unwrap();
    fs.write(&ctx, file, 0, &bytes).unwrap();
    fs.close(&ctx).unwrap();
    let fs = FileSystem::open(Arc::<Gated>::clone(&device), options, &ctx).unwrap();
    let mut buf = [0; 3000];
    let read_all = |fs: &FileSystem, buf: &mut [u8; 3000]| {
        let before = [0, 1].map(|n| device.reads[n].load(Ordering::Relaxed));
        for at in (0..bytes.len()).step_by(3000) {
            let n = fs.read(&ctx, file, at as u64, buf).unwrap();
            assert!(buf[..n] == bytes[at..(at + 3000).min(bytes.len())], "at {at}");
        }
        [0, 1].map(|n| device.reads[n].load(Ordering::Relaxed) - before[n])
    };
    let [reads, read] = read_all(&fs, &mut buf);
    assert!(reads < 20 && read < 9 << 20, "{reads} reads of {read} bytes");
    assert_eq!(read_all(&fs, &mut buf), [0, 0]);
    // A direct read bypasses the cached data.
    let mut block = [0; 4096];
    let before = device.reads[0].load(Ordering::Relaxed);
    assert_eq!(fs.read_direct(&ctx, file, 4096, &mut block).unwrap(), 4096);
    assert_eq!(device.reads[0].load(Ordering::Relaxed) - before, 1);
    // Buffered and direct writes leave their data in the cache too, so the read below needs no
    // device read.
    fs.write(&ctx, file, 10_000, &[3; 5000]).unwrap();
    fs.fsync(&ctx, file).unwrap();
    fs.write_direct(&ctx, file, 4096, &[4; 4096]).unwrap();
    let before = device.reads[1].load(Ordering::Relaxed);
    let mut both = [0; 7000];
    assert_eq!(fs.read(&ctx, file, 8000, &mut both).unwrap(), 7000);
    assert_eq!([both[0], both[191], both[192], both[2000], both[6999]], [4, 4, bytes[8192], 3, 3]);
    assert_eq!(device.reads[1].load(Ordering::Relaxed), before);
    fs.close(&ctx).unwrap();
}
