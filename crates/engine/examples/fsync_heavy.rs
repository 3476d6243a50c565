//! Many threads that each make a file, write 4 KiB and fsync it: `fsync_heavy [THREADS] [SECONDS] [FLUSH-MICROSECONDS]`.
//!
//! The image is in memory; a flush takes the given time (0), as on a device with a cache. Prints fsyncs and commits a
//! second: threads that wait for a commit share the next one.

use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_disk::InodeNr;
use blockyard_disk::inode::FileType;
use blockyard_engine::mkfs;
use blockyard_engine::{FileSystem, NewInode, OpContext, OpenOptions, Result};
use blockyard_sync::{AtomicBool, CpuSlot, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A memory device whose flush takes time.
struct Cached {
    below: MemoryDevice,
    flush: Duration,
}

impl BlockDevice for Cached {
    fn size(&self) -> u64 {
        self.below.size()
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> blockyard_device::Result<()> {
        self.below.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> blockyard_device::Result<()> {
        self.below.write_at(offset, data)
    }
    fn write_zeroes(&self, offset: u64, length: u64) -> blockyard_device::Result<()> {
        self.below.write_zeroes(offset, length)
    }
    fn discard(&self, offset: u64, length: u64) -> blockyard_device::Result<()> {
        self.below.discard(offset, length)
    }
    fn flush(&self) -> blockyard_device::Result<()> {
        if !self.flush.is_zero() {
            std::thread::sleep(self.flush);
        }
        Ok(())
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let threads: u32 = arguments.next().map_or(Ok(64), |text| text.parse())?;
    let seconds: u64 = arguments.next().map_or(Ok(2), |text| text.parse())?;
    let flush: u64 = arguments.next().map_or(Ok(0), |text| text.parse())?;
    let device = Arc::new(Cached { below: MemoryDevice::new(16 << 30), flush: Duration::from_micros(flush) });
    mkfs::format(&*device, &mkfs::Options::ext4().block_size(4096).identity(1, 1_700_000_000))?;
    let options = OpenOptions { cpus: threads, ..OpenOptions::default() };
    let fs = FileSystem::open(device, options, &OpContext::system())?;
    let stop = AtomicBool::new(false);
    let begin = Instant::now();
    let fsyncs: u32 = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|number| {
                let (fs, stop) = (&fs, &stop);
                scope.spawn(move || work(fs, number, stop))
            })
            .collect();
        std::thread::sleep(Duration::from_secs(seconds));
        stop.store(true, Ordering::Relaxed);
        running.into_iter().map(|thread| thread.join().expect("a thread does not panic").unwrap_or(0)).sum()
    });
    let elapsed = begin.elapsed().as_secs_f64();
    let commits = f64::from(u32::try_from(fs.commits())?);
    println!(
        "threads {threads}, flush {flush} us: {:.0} fsyncs and {:.0} commits a second",
        f64::from(fsyncs) / elapsed,
        commits / elapsed
    );
    fs.close(&OpContext::system())?;
    Ok(())
}

fn work(fs: &FileSystem, number: u32, stop: &AtomicBool) -> Result<u32> {
    let ctx = OpContext::system().on(CpuSlot::new(number));
    let directory = NewInode { kind: FileType::Directory, permissions: 0o755, device: None };
    let own = fs.create(&ctx, InodeNr::ROOT, format!("thread-{number}").as_bytes(), &directory)?;
    let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
    let mut fsyncs = 0;
    while !stop.load(Ordering::Relaxed) {
        let file = fs.create(&ctx, own, format!("file-{fsyncs}").as_bytes(), &new)?;
        fs.write(&ctx, file, 0, &[1; 4096])?;
        fs.fsync(&ctx, file).inspect_err(|error| eprintln!("{error}"))?;
        fsyncs += 1;
    }
    Ok(fsyncs)
}
