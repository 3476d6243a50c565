//! Inodes that are encoded into their table blocks and leave memory before the transaction that
//! created them commits: none of their changes may be lost.

#![allow(clippy::unwrap_used)]

use blockyard_device::MemoryDevice;
use blockyard_disk::InodeNr;
use blockyard_disk::inode::FileType;
use blockyard_engine::{FileSystem, JournalUse, NewInode, OpContext, OpenOptions, mkfs};
use std::sync::Arc;

const FILE: NewInode = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
const DIRECTORY: NewInode = NewInode { kind: FileType::Directory, permissions: 0o755, device: None };

fn image(size: u64) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(size));
    mkfs::format(&*device, &mkfs::Options::ext4().block_size(4096).identity(1, 1)).unwrap();
    device
}

fn open(device: &Arc<MemoryDevice>) -> FileSystem {
    FileSystem::open(Arc::<MemoryDevice>::clone(device), OpenOptions::default(), &OpContext::system())
        .unwrap()
}

/// Threads on one CPU slot create files, each thread in its own directory. Inodes of several
/// threads lie in the same blocks of the inode table. If `unnamed`, the threads also create files
/// without a name, which are on the orphan list. After the image is reopened, each name leads to a
/// file with one link.
fn make_on_many_threads(unnamed: bool) {
    const FILES: u32 = 3000;
    let ctx = OpContext::system();
    let device = image(8 << 30);
    let fs = open(&device);
    let make_dir =
        |number| fs.create(&ctx, InodeNr::ROOT, format!("d{number}").as_bytes(), &DIRECTORY).unwrap();
    let dirs: Vec<InodeNr> = (0..24).map(make_dir).collect();
    std::thread::scope(|scope| {
        for &dir in &dirs {
            let (fs, ctx) = (&fs, ctx);
            scope.spawn(move || {
                for number in 0..FILES {
                    fs.create(&ctx, dir, format!("f{number}").as_bytes(), &FILE).unwrap();
                    if unnamed && number % 10 == 0 {
                        fs.create_unnamed(&ctx, dir, 0o600).unwrap();
                    }
                }
            });
        }
    });
    fs.close(&ctx).unwrap();
    let fs = open(&device);
    for &dir in &dirs {
        for number in 0..FILES {
            let inode = fs.lookup(dir, format!("f{number}").as_bytes()).unwrap();
            assert_eq!(fs.attributes(inode).unwrap().links, 1, "{inode:?}");
        }
    }
}

#[test]
fn files_made_on_many_threads_are_there() {
    make_on_many_threads(false);
}

#[test]
fn files_made_beside_unnamed_ones_are_there() {
    make_on_many_threads(true);
}

/// A file is created, and then up to 6,000 others. With enough of them, the inode of the first file
/// leaves memory before a commit. fsync of the first file still commits exactly once, a second
/// fsync commits nothing, and the file is found after a crash.
#[test]
fn fsync_of_an_inode_that_left_memory_commits_it() {
    let ctx = OpContext::system();
    for others in [0, 1000, 3000, 6000] {
        let device = image(256 << 20);
        let fs = open(&device);
        let first = fs.create(&ctx, InodeNr::ROOT, b"first", &FILE).unwrap();
        for number in 0..others {
            fs.create(&ctx, InodeNr::ROOT, format!("other{number}").as_bytes(), &FILE).unwrap();
        }
        let before = fs.commits();
        fs.fsync(&ctx, first).unwrap();
        assert_eq!(fs.commits(), before + 1, "{others} others");
        fs.fsync(&ctx, first).unwrap();
        assert_eq!(fs.commits(), before + 1, "what is durable is not committed again");
        let crashed = Arc::new(device.duplicate());
        drop(fs);
        let fs = open(&crashed);
        assert_eq!(fs.lookup(InodeNr::ROOT, b"first").unwrap(), first, "{others} others");
        assert_eq!(fs.attributes(first).unwrap().links, 1);
    }
}

/// fsync and fdatasync of an unchanged file commit nothing after another file was changed and the
/// change was committed.
#[test]
fn fsync_of_a_clean_file_commits_nothing() {
    let ctx = OpContext::system();
    for journal in [JournalUse::Journaled, JournalUse::Ignored] {
        let device = image(256 << 20);
        let reopen = || {
            let options = OpenOptions { journal, ..OpenOptions::default() };
            FileSystem::open(Arc::<MemoryDevice>::clone(&device), options, &ctx).unwrap()
        };
        let fs = reopen();
        let clean = fs.create(&ctx, InodeNr::ROOT, b"clean", &FILE).unwrap();
        // The inode of the last of these files is in another table block than the inode of `clean`.
        let others = (0..100).map(|number| format!("other{number}"));
        let others: Vec<InodeNr> =
            others.map(|name| fs.create(&ctx, InodeNr::ROOT, name.as_bytes(), &FILE).unwrap()).collect();
        fs.close(&ctx).unwrap();
        let fs = reopen();
        fs.write(&ctx, others[99], 0, b"changed").unwrap();
        fs.commit(&ctx).unwrap();
        let before = fs.commits();
        fs.fsync(&ctx, clean).unwrap();
        fs.fdatasync(&ctx, clean).unwrap();
        assert_eq!(fs.commits(), before, "{journal:?}");
        fs.close(&ctx).unwrap();
    }
}
