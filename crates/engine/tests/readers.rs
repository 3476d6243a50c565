//! Who reads a file does not wait for who writes elsewhere in it, and sees its bytes whole.

#![allow(clippy::unwrap_used, clippy::as_conversions)]

use blockyard_device::{BlockDevice, MemoryDevice, Result};
use blockyard_disk::InodeNr;
use blockyard_disk::inode::FileType;
use blockyard_engine::{Fallocate, FileSystem, NewInode, OpContext, OpenOptions, mkfs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};

const FILE: NewInode = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };

/// A device whose writes of data do not come back while it is shut. Data is what begins with 0xDA.
struct Gated {
    device: MemoryDevice,
    shut: Mutex<bool>,
    opened: Condvar,
    /// A write waits.
    waits: AtomicBool,
}

impl Gated {
    fn new(device: MemoryDevice) -> Self {
        Self { device, shut: Mutex::new(false), opened: Condvar::new(), waits: AtomicBool::new(false) }
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

/// A write-back holds the content lock while the device writes: readers of the same file waited for that.
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
        // What is on its way is read from memory.
        let mut written = [0; 6000];
        assert_eq!(fs.read(&ctx, file, 42_000, &mut written).unwrap(), 6000);
        assert!(written.iter().all(|&byte| byte == 0xDA));
        assert!(!writer.is_finished());
        device.set_shut(false);
    });
    fs.close(&ctx).unwrap();
}

/// Writers append, overwrite and cut, others write back, and blocks that a file lost go to another at once: readers see bytes
/// of their file only, and no zeroes where there was data.
#[test]
fn readers_see_their_file_whatever_others_do() {
    let device = made();
    let ctx = OpContext::system();
    let options = OpenOptions { dirty_data_bytes: 256 << 10, ..OpenOptions::default() };
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
                // What was freed is used again.
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
