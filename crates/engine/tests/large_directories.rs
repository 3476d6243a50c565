//! Directories of hundreds of blocks, with block caches of at most 1 MiB. Names, listings and the
//! resulting image must be right, and reads must not change what is written to the image.

#![allow(clippy::as_conversions, clippy::unwrap_used)]

use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_disk::inode::FileType;
use blockyard_disk::{InodeNr, Timestamp};
use blockyard_engine::instruments::Instruments;
use blockyard_engine::{FileSystem, JournalUse, NewInode, OpContext, OpenOptions, mkfs};
use blockyard_sync::CpuSlot;
use blockyard_testkit::{e2fsck_clean, full_matrix, require, seed};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::sync::Arc;

const FIFO: NewInode = NewInode { kind: FileType::Fifo, permissions: 0o644, device: None };
const DIRECTORY: NewInode = NewInode { kind: FileType::Directory, permissions: 0o755, device: None };
const THREADS: u32 = 4;
/// Number of directories that all threads use. Each thread also has a directory of its own.
const SHARED: usize = 3;
/// How many names a thread may have in one directory.
const NAMES: u32 = 1700;

fn context(slot: u32) -> OpContext {
    OpContext::root_at(Timestamp::from_seconds(1_700_000_000)).on(CpuSlot::new(slot))
}

/// A name of 59 bytes. Fourteen of them fill a block of 1 KiB.
fn name(thread: u32, number: u32) -> Vec<u8> {
    format!("{thread}-{number:0>57}").into_bytes()
}

fn open(device: &Arc<MemoryDevice>, options: &OpenOptions) -> FileSystem {
    let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(device);
    FileSystem::open(shared, options.clone(), &context(0)).unwrap()
}

/// The names that one thread has created and not removed, in the shared directories and in its own.
struct Made {
    own: InodeNr,
    names: [BTreeMap<Vec<u8>, InodeNr>; SHARED + 1],
}

impl Made {
    fn directory(&self, shared: &[InodeNr], which: usize) -> InodeNr {
        shared.get(which).copied().unwrap_or(self.own)
    }

    fn is_there(&self, fs: &FileSystem, shared: &[InodeNr], thread: u32) {
        for (which, names) in self.names.iter().enumerate() {
            for number in 0..NAMES {
                let name = name(thread, number);
                let found = fs.lookup(self.directory(shared, which), &name).ok();
                assert_eq!(found, names.get(&name).copied(), "thread {thread}, directory {which}");
            }
        }
    }
}

/// Creates, removes, looks up and lists names. Every other thread removes its own directory now and
/// then, and creates it again under the same name.
fn work(fs: &FileSystem, shared: &[InodeNr], thread: u32, steps: u32, seed: u64) -> Made {
    let ctx = context(thread);
    let mut rng = ChaCha8Rng::seed_from_u64(seed * 100 + u64::from(thread));
    let own_name = format!("own{thread}").into_bytes();
    let own = fs.create(&ctx, InodeNr::ROOT, &own_name, &DIRECTORY).unwrap();
    let mut made = Made { own, names: std::array::from_fn(|_| BTreeMap::new()) };
    for step in 1..=steps {
        let which = rng.random_range(0..=SHARED);
        let directory = made.directory(shared, which);
        let name = name(thread, rng.random_range(0..NAMES));
        let names = &mut made.names[which];
        match (rng.random_range(0..10), names.get(&name).copied()) {
            (0..6, None) => {
                names.insert(name.clone(), fs.create(&ctx, directory, &name, &FIFO).unwrap());
            }
            (0, Some(_)) => {
                fs.unlink(&ctx, directory, &name).unwrap();
                names.remove(&name);
            }
            (_, held) => assert_eq!(fs.lookup(directory, &name).ok(), held, "thread {thread} step {step}"),
        }
        if step % 3000 == 0 {
            let prefix = format!("{thread}-").into_bytes();
            let mut count = 0;
            fs.read_dir(directory, 0, |entry| {
                count += usize::from(entry.name.starts_with(&prefix));
                true
            })
            .unwrap();
            assert_eq!(count, made.names[which].len(), "thread {thread} step {step}");
        }
        if step % 5000 == 0 && thread.is_multiple_of(2) {
            for name in std::mem::take(&mut made.names[SHARED]).into_keys() {
                fs.unlink(&ctx, made.own, &name).unwrap();
            }
            fs.rmdir(&ctx, InodeNr::ROOT, &own_name).unwrap();
            made.own = fs.create(&ctx, InodeNr::ROOT, &own_name, &DIRECTORY).unwrap();
        }
        if step % 7000 == 0 {
            fs.sync(&ctx).unwrap();
        }
    }
    made
}

fn stress(options: OpenOptions, seed: u64) {
    let device = Arc::new(MemoryDevice::new(512 << 20));
    let format = mkfs::Options::ext4().block_size(1024).journal_mib(4).identity(7, 1_700_000_000);
    mkfs::format(&*device, &format).unwrap();
    let options = OpenOptions { inodes_max: 64, cpus: THREADS, ..options };
    let fs = open(&device, &options);
    let shared: Vec<InodeNr> = (0..SHARED)
        .map(|number| {
            fs.create(&context(0), InodeNr::ROOT, number.to_string().as_bytes(), &DIRECTORY).unwrap()
        })
        .collect();
    let steps = if full_matrix() { 60_000 } else { 12_000 };
    let made: Vec<Made> = std::thread::scope(|scope| {
        let (fs, shared) = (&fs, &shared);
        let threads: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || work(fs, shared, thread, steps, seed))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for &directory in &shared {
        let blocks = fs.attributes(directory).unwrap().size / 1024;
        assert!(blocks >= 256, "{blocks} blocks are not many");
    }
    let verify = |fs: &FileSystem| {
        (0..).zip(&made).for_each(|(thread, made)| made.is_there(fs, &shared, thread));
    };
    verify(&fs);
    fs.close(&context(0)).unwrap();
    let report = blockyard_check::check(&*device, &blockyard_check::Options::default()).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
    let fs = open(&device, &options);
    verify(&fs);
    fs.close(&context(0)).unwrap();
    if require(&["e2fsck"]) {
        let scratch = tempfile::tempdir().unwrap();
        let image = scratch.path().join("image");
        device.save(&image).unwrap();
        e2fsck_clean(&image);
    }
}

#[test]
fn threads_agree_when_the_cache_holds_next_to_nothing() {
    stress(OpenOptions { cache_bytes: 1, ..OpenOptions::default() }, seed(1));
}

#[test]
fn threads_agree_when_names_find_little_memory() {
    stress(
        OpenOptions { cache_bytes: 300_000, name_cache_bytes: 200_000, ..OpenOptions::default() },
        seed(2),
    );
}

#[test]
fn threads_agree_when_transactions_are_small() {
    stress(
        OpenOptions {
            cache_bytes: 1 << 20,
            instruments: Instruments::transaction_blocks(64),
            ..OpenOptions::default()
        },
        seed(3),
    );
}

#[test]
fn threads_agree_without_a_journal() {
    let journal = JournalUse::Ignored;
    stress(OpenOptions { cache_bytes: 300_000, journal, ..OpenOptions::default() }, seed(4));
}

/// Makes a fixed sequence of changes in small directories. With `look`, a large directory is also
/// listed before the changes and searched between them. Returns the number of commits, and the
/// image after closing.
fn changes_beside(look: bool, name_cache_bytes: usize) -> (u64, Vec<u8>) {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let format = mkfs::Options::ext4().block_size(1024).journal_mib(8).identity(7, 1_700_000_000);
    mkfs::format(&*device, &format).unwrap();
    let ctx = context(0);
    let options = OpenOptions { cache_bytes: 300_000, name_cache_bytes, ..OpenOptions::default() };
    let fs = open(&device, &options);
    let large = fs.create(&ctx, InodeNr::ROOT, b"large", &DIRECTORY).unwrap();
    for number in 0..5000 {
        fs.create(&ctx, large, &name(0, number), &FIFO).unwrap();
    }
    fs.close(&ctx).unwrap();
    let fs = open(&device, &options);
    assert!(fs.attributes(large).unwrap().size / 1024 >= 256);
    if look {
        let mut entries = 0;
        fs.read_dir(large, 0, |_| {
            entries += 1;
            true
        })
        .unwrap();
        assert_eq!(entries, 5002);
    }
    let file = NewInode { kind: FileType::Regular, ..FIFO };
    let small: Vec<InodeNr> = (0..30)
        .map(|number| {
            fs.create(&ctx, InodeNr::ROOT, format!("small{number}").as_bytes(), &DIRECTORY).unwrap()
        })
        .collect();
    for step in 0..4000usize {
        let (directory, name) = (small[step % small.len()], format!("file{}", step % 1200));
        if step >= 1200 {
            fs.unlink(&ctx, directory, name.as_bytes()).unwrap();
        }
        let inode = fs.create(&ctx, directory, name.as_bytes(), &file).unwrap();
        fs.write(&ctx, inode, 0, &vec![1; 1 + step * 37 % 9000]).unwrap();
        if step % 3 == 0 {
            fs.write_back_file(&ctx, inode).unwrap();
        }
        if look {
            fs.lookup(large, &self::name(0, step as u32)).unwrap();
        }
    }
    let commits = fs.commits();
    fs.close(&ctx).unwrap();
    let mut image = vec![0; 64 << 20];
    device.read_at(0, &mut image).unwrap();
    (commits, image)
}

/// Makes changes in two directories of thousands of names. With `reads`, reads between the changes
/// evict inodes from memory. Returns the number of commits, and the image after closing.
fn changes_between(reads: bool, journal_mib: u32) -> (u64, Vec<u8>) {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let format = mkfs::Options::ext4().block_size(1024).journal_mib(journal_mib).identity(7, 1_700_000_000);
    mkfs::format(&*device, &format).unwrap();
    let ctx = context(0);
    let fs = open(&device, &OpenOptions { cache_bytes: 1 << 20, inodes_max: 2048, ..OpenOptions::default() });
    let [large, small] =
        [b"large", b"small"].map(|name| fs.create(&ctx, InodeNr::ROOT, name, &DIRECTORY).unwrap());
    for number in 0..4000 {
        fs.create(&ctx, large, &name(0, number), &FIFO).unwrap();
    }
    let many: Vec<InodeNr> =
        (0..5000).map(|number| fs.create(&ctx, small, &name(1, number), &FIFO).unwrap()).collect();
    fs.sync(&ctx).unwrap();
    for round in 0..4 {
        fs.create(&ctx, large, &name(2, round), &FIFO).unwrap();
        for number in 0..300 {
            fs.create(&ctx, small, &name(3 + round, number), &FIFO).unwrap();
        }
        for _ in 0..if reads { 3 } else { 0 } {
            many.iter().for_each(|&inode| assert_eq!(fs.attributes(inode).unwrap().links, 1));
        }
    }
    for number in 0..2500 {
        fs.create(&ctx, if number % 2 == 0 { large } else { small }, &name(9, number), &FIFO).unwrap();
    }
    let commits = fs.commits();
    fs.close(&ctx).unwrap();
    let mut image = vec![0; 64 << 20];
    device.read_at(0, &mut image).unwrap();
    (commits, image)
}

/// The point at which a transaction ends must not depend on which inodes are in memory.
#[test]
fn reads_that_push_a_large_directory_out_of_memory_decide_nothing() {
    for journal_mib in [4, 16] {
        let (commits, image) = changes_between(false, journal_mib);
        assert!(commits > 2, "{commits} commits");
        let (commits_between, image_between) = changes_between(true, journal_mib);
        assert_eq!(commits_between, commits, "a log of {journal_mib} MiB");
        assert!(image_between == image, "the images differ, with a log of {journal_mib} MiB");
    }
}

/// Reads leave blocks and names in memory. The points at which transactions end, and so the content
/// of the disk, must not depend on them.
#[test]
fn who_looks_into_a_large_directory_decides_nothing() {
    let (commits, image) = changes_beside(false, 64 << 20);
    assert!(commits > 2, "{commits} commits");
    for name_cache_bytes in [64 << 20, 100_000, 0] {
        let (commits_beside, image_beside) = changes_beside(true, name_cache_bytes);
        assert_eq!(commits_beside, commits);
        assert!(image_beside == image, "the images differ with {name_cache_bytes} bytes of names");
    }
}
