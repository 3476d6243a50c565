//! A file system of 16 TiB. Opening it takes little time and memory, and writing all over it takes
//! little memory.

#![allow(clippy::as_conversions, clippy::unwrap_used)]

use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_disk::inode::FileType;
use blockyard_disk::{InodeNr, Timestamp};
use blockyard_engine::mkfs;
use blockyard_engine::{FileSystem, NewInode, OpContext, OpenOptions};
use blockyard_inspect::reader::Reader;
use blockyard_testkit::full_matrix;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// A test holds this while it measures, because all tests share the resident size of the process.
static MEASURING: Mutex<()> = Mutex::new(());

/// Resident memory of this process in bytes, if a page has 4096 bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn opening_sixteen_tebibytes_is_cheap() {
    let _alone = MEASURING.lock().unwrap_or_else(PoisonError::into_inner);
    let device = Arc::new(MemoryDevice::new(16 << 40));
    mkfs::format(&*device, &mkfs::Options::ext4().block_size(4096).identity(1, 1)).unwrap();
    let ctx = OpContext::root_at(Timestamp::from_seconds(1));
    let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
    let (before, begin) = (resident(), Instant::now());
    let fs = FileSystem::open(shared, OpenOptions::default(), &ctx).unwrap();
    let (took, grew) = (begin.elapsed(), resident().saturating_sub(before));
    println!("opened in {took:?}, {} MiB", grew >> 20);
    // The requirement is 0.5 s and 100 MiB in a release build on an idle machine. This build or
    // machine may be slower, so ten times as long is allowed.
    assert!(took.as_secs_f64() < 5.0, "opening took {took:?}");
    assert!(grew < 100 << 20, "opening took {} MiB", grew >> 20);
    let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
    let inode = fs.create(&ctx, InodeNr::ROOT, b"file", &new).unwrap();
    fs.write(&ctx, inode, (1 << 43) + 5, b"far").unwrap();
    let mut read = [0; 3];
    fs.write_back_file(&ctx, inode).unwrap();
    fs.read(&ctx, inode, (1 << 43) + 5, &mut read).unwrap();
    assert_eq!(&read, b"far");
    fs.close(&ctx).unwrap();
}

/// Writes blocks that are a group's length apart in their file. A full run writes 131,071 blocks,
/// which must lie in more than 65,000 groups. Other runs write every 64th of these blocks, and need
/// a 64th as many groups. Memory, except for the content of the image, must stay below 300 MiB.
#[test]
fn writing_in_every_group_takes_little_memory() {
    let _alone = MEASURING.lock().unwrap_or_else(PoisonError::into_inner);
    let step: u32 = if full_matrix() { 1 } else { 64 };
    let device = Arc::new(MemoryDevice::new(16 << 40));
    mkfs::format(&*device, &mkfs::Options::ext4().block_size(4096).identity(1, 1)).unwrap();
    let ctx = OpContext::root_at(Timestamp::from_seconds(1));
    let (before, held_before) = (resident(), device.resident_bytes());
    let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
    // On a device with seek times the search begins at the goal's group.
    let options = OpenOptions { rotational: true, ..OpenOptions::default() };
    let fs = FileSystem::open(shared, options, &ctx).unwrap();
    let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
    let inode = fs.create(&ctx, InodeNr::ROOT, b"file", &new).unwrap();
    let mut peak = 0;
    // The goal of a block is the physical start of the extent before it in the file, plus the
    // block's distance in the file from the start of that extent. So each goal is in another group.
    for number in (0..131_071u32).step_by(step as usize) {
        fs.write(&ctx, inode, u64::from(number) << 27, b"here").unwrap();
        fs.write_back_file(&ctx, inode).unwrap();
        if number % 1024 == 0 {
            let device_grew = device.resident_bytes() - held_before;
            peak = peak.max(resident().saturating_sub(before).saturating_sub(device_grew));
        }
    }
    let mut groups = std::collections::BTreeSet::new();
    let size = fs.attributes(inode).unwrap().sectors;
    fs.close(&ctx).unwrap();
    let reader = Reader::open(device).unwrap();
    let read = reader.inode(inode).unwrap();
    for extent in reader.extents(&read) {
        groups.insert(extent.unwrap().physical.raw() >> 15);
    }
    println!("{} groups, {size} sectors, {} MiB", groups.len(), peak >> 20);
    assert!(groups.len() as u32 > 65_000 / step, "only {} groups", groups.len());
    assert!(peak < 300 << 20, "{} MiB beside what the image holds", peak >> 20);
}
