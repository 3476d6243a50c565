//! Makes an image in memory, writes files from eight threads, and saves the image:
//! `eight_writers IMAGE`.
//!
//! Check the result with `e2fsck -fn IMAGE`, or mount it.

use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_disk::InodeNr;
use blockyard_disk::inode::FileType;
use blockyard_engine::mkfs;
use blockyard_engine::{FileSystem, NewInode, OpContext, OpenOptions};
use blockyard_sync::CpuSlot;
use std::path::Path;
use std::sync::Arc;

const IMAGE_BYTES: u64 = 1 << 30;
const WRITERS: u32 = 8;
const FILES_EACH: u32 = 100;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: eight_writers IMAGE")?;
    let device = Arc::new(MemoryDevice::new(IMAGE_BYTES));
    mkfs::format(&*device, &mkfs::Options::ext4().block_size(4096).identity(1, 1_700_000_000))?;
    let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
    let options = OpenOptions { cpus: WRITERS, ..OpenOptions::default() };
    let fs = FileSystem::open(shared, options, &OpContext::system())?;
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|number| (number, &fs))
            .map(|(n, fs)| scope.spawn(move || write_files(fs, n)))
            .collect();
        writers.into_iter().try_for_each(|writer| writer.join().map_err(|_| "a writer panicked")?)
    })?;
    println!("{:?}", fs.statistics());
    fs.close(&OpContext::system())?;
    device.save(Path::new(&path))?;
    Ok(())
}

/// The work of one thread: files of about 1 to 100 KiB in a directory of its own.
fn write_files(fs: &FileSystem, number: u32) -> Result<(), &'static str> {
    let ctx = OpContext::system().on(CpuSlot::new(number));
    let directory = NewInode { kind: FileType::Directory, permissions: 0o755, device: None };
    let file = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
    let run = || -> blockyard_engine::Result<()> {
        let dir = fs.create(&ctx, InodeNr::ROOT, format!("writer-{number}").as_bytes(), &directory)?;
        for n in 0..FILES_EACH {
            let inode = fs.create(&ctx, dir, format!("file-{n}").as_bytes(), &file)?;
            fs.open_inode(inode, true)?;
            for piece in 0..=n {
                fs.append(&ctx, inode, format!("{number}:{n}:{piece}\n").repeat(128).as_bytes())?;
            }
            fs.release_inode(&ctx, inode, true)?;
        }
        Ok(())
    };
    run().map_err(|error| {
        eprintln!("writer {number}: {error}");
        "a writer failed"
    })
}
