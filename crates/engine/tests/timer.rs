//! The timer of a mount, driven by the test's own clock: what is on the device after each tick.
//! Also the order in which files are written back.

#![allow(clippy::unwrap_used)]

use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_disk::inode::FileType;
use blockyard_disk::{InodeNr, Timestamp};
use blockyard_engine::{FileSystem, NewInode, OpContext, OpenOptions, mkfs};
use std::sync::Arc;

fn at(seconds: i64) -> OpContext {
    OpContext::root_at(Timestamp::from_seconds(1_700_000_000 + seconds))
}

/// What a crash now would leave of each file: its size, and whether all its bytes are `with`;
/// `None` if there is no such file.
fn after_a_crash(device: &MemoryDevice, names: &[&str], with: u8) -> Vec<Option<(u64, bool)>> {
    let copy: Arc<dyn BlockDevice> = Arc::new(device.duplicate());
    let fs =
        FileSystem::open(copy, OpenOptions { read_only: true, ..OpenOptions::default() }, &at(0)).unwrap();
    let look = |name: &&str| {
        let inode = fs.lookup(InodeNr::ROOT, name.as_bytes()).ok()?;
        let size = fs.attributes(inode).unwrap().size;
        let mut content = vec![0; usize::try_from(size).unwrap()];
        fs.read(&at(0), inode, 0, &mut content).unwrap();
        Some((size, content.iter().all(|byte| *byte == with)))
    };
    names.iter().map(look).collect()
}

#[test]
fn data_goes_at_thirty_seconds_and_metadata_at_five() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    mkfs::format(&*device, &mkfs::Options::ext4().block_size(4096).identity(1, 1)).unwrap();
    let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
    let fs = FileSystem::open(shared, OpenOptions::default(), &at(0)).unwrap();
    let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
    let names = ["first", "second"];
    let first = fs.create(&at(1), InodeNr::ROOT, b"first", &new).unwrap();
    fs.write(&at(1), first, 0, &[7; 5000]).unwrap();
    fs.tick(&at(4)).unwrap();
    assert_eq!(after_a_crash(&device, &names, 7), [None, None], "nothing is due");
    fs.tick(&at(6)).unwrap();
    assert_eq!(
        after_a_crash(&device, &names, 7),
        [Some((0, true)), None],
        "the name is committed, the data waits"
    );
    let second = fs.create(&at(20), InodeNr::ROOT, b"second", &new).unwrap();
    fs.write(&at(20), second, 0, &[7; 3000]).unwrap();
    // The file is written again, but its age still counts from its first dirty block.
    fs.write(&at(25), first, 4096, &[7; 4096]).unwrap();
    fs.tick(&at(30)).unwrap();
    assert_eq!(after_a_crash(&device, &names, 7), [Some((0, true)), Some((0, true))], "29 seconds old");
    fs.tick(&at(31)).unwrap();
    fs.tick(&at(36)).unwrap();
    assert_eq!(
        after_a_crash(&device, &names, 7),
        [Some((8192, true)), Some((0, true))],
        "only the first expired"
    );
    fs.tick(&at(50)).unwrap();
    fs.tick(&at(55)).unwrap();
    assert_eq!(after_a_crash(&device, &names, 7), [Some((8192, true)), Some((3000, true))]);
    fs.close(&at(60)).unwrap();
}

/// Files are written back in the order in which they became dirty, not by inode number.
#[test]
fn the_file_that_became_dirty_first_gets_the_first_blocks() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    mkfs::format(&*device, &mkfs::Options::ext4().block_size(4096).identity(1, 1)).unwrap();
    let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
    let fs = FileSystem::open(shared, OpenOptions::default(), &at(0)).unwrap();
    let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
    let files: Vec<InodeNr> = (0..6)
        .map(|n| fs.create(&at(0), InodeNr::ROOT, format!("file-{n}").as_bytes(), &new).unwrap())
        .collect();
    let order = [3, 1, 5, 2, 4, 0];
    for n in order {
        fs.write(&at(0), files[n], 0, &[1; 160 << 10]).unwrap();
    }
    fs.close(&at(0)).unwrap();
    let reader = blockyard_inspect::reader::Reader::open(device).unwrap();
    let place = |inode: InodeNr| {
        let inode = reader.inode(inode).unwrap();
        let first = reader.extents(&inode).next().unwrap().unwrap();
        first.physical.raw()
    };
    let places = order.map(|n| place(files[n]));
    assert!(places.is_sorted(), "{places:?}");
}
