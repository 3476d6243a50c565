//! The fallocate2 workload on a memory image: `fallocate2 [WORKERS] [SECONDS] [IMAGE-GIB] [POLICY]
//! [on|off]`.
//!
//! Until SECONDS have passed, each worker allocates a file of 1 MiB in steps of 8 KiB, truncates it
//! to nothing, and begins again. The example prints millions of operations per second; each
//! allocated step and each truncation is one operation. The last argument says whether changes go
//! through the journal. The defaults are 1 worker, 2 seconds, 64 GiB, `linux-6.18` and `off`. With
//! `SAVE=PATH` in the environment, the image is saved at the end.

use blockyard_alloc::Policy;
use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_disk::InodeNr;
use blockyard_disk::inode::FileType;
use blockyard_engine::mkfs;
use blockyard_engine::{Fallocate, FileSystem, JournalUse, NewInode, OpContext, OpenOptions, Result};
use blockyard_sync::{AtomicBool, CpuSlot, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

const STEP: u64 = 8 << 10;
const STEPS: u64 = 128;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let workers: u32 = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let seconds: u64 = arguments.next().map_or(Ok(2), |text| text.parse())?;
    let gib: u64 = arguments.next().map_or(Ok(64), |text| text.parse())?;
    let policy = Policy::parse(&arguments.next().unwrap_or_else(|| "linux-6.18".to_owned()))?;
    let journaled = arguments.next().is_some_and(|text| text == "on");
    let device = Arc::new(MemoryDevice::new(gib << 30));
    mkfs::format(&*device, &mkfs::Options::ext4().block_size(4096).identity(1, 1_700_000_000))?;
    let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
    let journal = if journaled { JournalUse::Journaled } else { JournalUse::Ignored };
    let options = OpenOptions { cpus: workers, policy, journal, ..OpenOptions::default() };
    let fs = FileSystem::open(shared, options, &OpContext::system())?;
    let stop = AtomicBool::new(false);
    let begin = Instant::now();
    let operations: u64 = std::thread::scope(|scope| {
        let running: Vec<_> = (0..workers)
            .map(|number| {
                let (fs, stop) = (&fs, &stop);
                scope.spawn(move || work(fs, number, stop))
            })
            .collect();
        std::thread::sleep(Duration::from_secs(seconds));
        stop.store(true, Ordering::Relaxed);
        running.into_iter().map(|worker| worker.join().expect("a worker does not panic").unwrap_or(0)).sum()
    });
    let elapsed = begin.elapsed().as_secs_f64();
    let per_second = f64::from(u32::try_from(operations / 1000)?) / 1000.0 / elapsed;
    println!("workers {workers}: {per_second:.3} million operations a second");
    fs.close(&OpContext::system())?;
    if let Some(path) = std::env::var_os("SAVE") {
        device.save(std::path::Path::new(&path))?;
    }
    Ok(())
}

fn work(fs: &FileSystem, number: u32, stop: &AtomicBool) -> Result<u64> {
    let ctx = OpContext::system().on(CpuSlot::new(number));
    let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
    let inode = fs.create(&ctx, InodeNr::ROOT, format!("worker-{number}").as_bytes(), &new)?;
    fs.open_inode(inode, true)?;
    let mut operations = 0;
    while !stop.load(Ordering::Relaxed) {
        for step in 0..STEPS {
            fs.fallocate(&ctx, inode, Fallocate::Allocate, step * STEP, STEP)
                .inspect_err(|e| eprintln!("{e}"))?;
        }
        fs.truncate(&ctx, inode, 0).inspect_err(|e| eprintln!("{e}"))?;
        operations += STEPS + 1;
    }
    Ok(operations)
}
