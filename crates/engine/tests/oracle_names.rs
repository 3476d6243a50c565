//! Large directories: the dentry cache keeps their names in memory, beside their blocks. Names are
//! created, linked, removed, renamed and exchanged, also in a directory that was removed and
//! created again. A lookup always agrees with a map that the test keeps: with caches that hold the
//! directory and with smaller ones, in the instance that changed the directory and in a fresh one.
//! Debug builds of the engine check every answer of the dentry cache by a search of the blocks.

#![allow(clippy::as_conversions, clippy::unwrap_used)]

use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_disk::inode::FileType;
use blockyard_disk::{InodeNr, Timestamp};
use blockyard_engine::{Error, FileSystem, NewInode, OpContext, OpenOptions, RenameMode, mkfs};
use blockyard_testkit::{e2fsck_clean, full_matrix, require, seed};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What the two directories must hold: name to inode.
type Model = [BTreeMap<Vec<u8>, InodeNr>; 2];

const DIRS: [&[u8]; 2] = [b"one", b"other"];

fn context() -> OpContext {
    OpContext::root_at(Timestamp::from_seconds(1_700_000_000))
}

fn format(block_size: u32, features: &str) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(256 << 20));
    let options = mkfs::Options::ext4().block_size(block_size).features(features).identity(7, 1_700_000_000);
    mkfs::format(&*device, &options).unwrap();
    device
}

/// Opens with caches of these sizes in bytes: for metadata blocks, and for names.
fn open(device: &Arc<MemoryDevice>, (cache_bytes, name_cache_bytes): (usize, usize)) -> FileSystem {
    let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(device);
    // Few inodes may stay in memory, so directories are often evicted, and with them their cached
    // names.
    let options = OpenOptions { cache_bytes, name_cache_bytes, inodes_max: 512, ..OpenOptions::default() };
    FileSystem::open(shared, options, &context()).unwrap()
}

fn name(number: u32) -> Vec<u8> {
    // Three lengths, so that the gap that a removed name leaves does not fit every name.
    format!("{number:0>width$}", width = [4, 13, 60][number as usize % 3]).into_bytes()
}

/// A name of random length, at most 69 bytes: the number in decimal, then bytes of which about half
/// are `a` and the others are random from 0x30 to 0xFF.
fn odd_name(number: u32) -> Vec<u8> {
    let mut rng = ChaCha8Rng::seed_from_u64(u64::from(number));
    let mut name = format!("{number}").into_bytes();
    let len = rng.random_range(name.len()..70);
    name.resize_with(len, || if rng.random() { b'a' } else { rng.random_range(b'0'..=u8::MAX) });
    name
}

/// How many names there may be, and how they are spelled.
#[derive(Clone, Copy)]
struct Spelling {
    names: u32,
    name: fn(u32) -> Vec<u8>,
}

impl Spelling {
    fn any(self, rng: &mut ChaCha8Rng) -> Vec<u8> {
        (self.name)(rng.random_range(0..self.names))
    }
}

fn create(fs: &FileSystem, dir: InodeNr, name: &[u8]) -> Result<InodeNr, Error> {
    fs.create(&context(), dir, name, &NewInode { kind: FileType::Fifo, permissions: 0o644, device: None })
}

/// One random change, or a lookup of a name that may or may not exist.
fn step(fs: &FileSystem, dirs: [InodeNr; 2], model: &mut Model, spelling: Spelling, rng: &mut ChaCha8Rng) {
    let ctx = context();
    let (which, other) = (rng.random_range(0..2), rng.random_range(0..2));
    let (here, there) = (spelling.any(rng), spelling.any(rng));
    let (dir, held) = (dirs[which], model[which].get(&here).copied());
    match (rng.random_range(0..10), held) {
        (0..6, None) => {
            let inode = create(fs, dir, &here).unwrap();
            model[which].insert(here, inode);
        }
        (0..6, Some(_)) => assert!(matches!(create(fs, dir, &here), Err(Error::Exists))),
        (6..8, Some(_)) => {
            fs.unlink(&ctx, dir, &here).unwrap();
            model[which].remove(&here);
        }
        (8, Some(inode)) => {
            let (from, to) = ((dir, &here[..]), (dirs[other], &there[..]));
            match model[other].get(&there).copied() {
                // A rename from one name of an inode to another changes nothing: both names stay.
                Some(target) if target == inode => {
                    fs.rename(&ctx, from, to, RenameMode::Replace).unwrap();
                }
                Some(target) if rng.random() => {
                    fs.rename(&ctx, from, to, RenameMode::Exchange).unwrap();
                    model[which].insert(here, target);
                    model[other].insert(there, inode);
                }
                Some(_) if rng.random() => {
                    let refused = fs.rename(&ctx, from, to, RenameMode::NoReplace);
                    assert!(matches!(refused, Err(Error::Exists)), "{refused:?}");
                }
                _ => {
                    fs.rename(&ctx, from, to, RenameMode::Replace).unwrap();
                    model[which].remove(&here);
                    model[other].insert(there, inode);
                }
            }
        }
        (9, Some(inode)) if rng.random() => match fs.link(&ctx, inode, dirs[other], &there) {
            Ok(()) => assert!(model[other].insert(there, inode).is_none()),
            Err(Error::Exists) => assert!(model[other].contains_key(&there)),
            Err(error) => panic!("{error}"),
        },
        _ => assert_eq!(fs.lookup(dir, &here).ok(), held, "{}", String::from_utf8_lossy(&here)),
    }
}

/// Empties a directory, removes it and creates it again: no name of the old one may come back.
fn renew(fs: &FileSystem, dirs: &mut [InodeNr; 2], model: &mut Model, which: usize) {
    for name in std::mem::take(&mut model[which]).into_keys() {
        fs.unlink(&context(), dirs[which], &name).unwrap();
    }
    fs.rmdir(&context(), InodeNr::ROOT, DIRS[which]).unwrap();
    let new = NewInode { kind: FileType::Directory, permissions: 0o755, device: None };
    dirs[which] = fs.create(&context(), InodeNr::ROOT, DIRS[which], &new).unwrap();
}

fn compare(fs: &FileSystem, dirs: [InodeNr; 2], model: &Model, spelling: Spelling) {
    for (dir, model) in dirs.into_iter().zip(model) {
        assert_eq!(fs.lookup(dir, b".").unwrap(), dir);
        assert_eq!(fs.lookup(dir, b"..").unwrap(), InodeNr::ROOT);
        for number in 0..spelling.names {
            let name = (spelling.name)(number);
            match (fs.lookup(dir, &name), model.get(&name)) {
                (Ok(found), Some(inode)) => assert_eq!(found, *inode),
                (Err(Error::NotFound), None) => {}
                (found, expected) => panic!("name {number}: {found:?}, expected {expected:?}"),
            }
        }
        let mut listed = BTreeMap::new();
        fs.read_dir(dir, 0, |entry| {
            if entry.name != b"." && entry.name != b".." {
                assert!(listed.insert(entry.name, entry.inode).is_none());
            }
            true
        })
        .unwrap();
        assert_eq!(&listed, model);
    }
}

#[test]
fn tables_and_blocks_never_disagree() {
    let steps = if full_matrix() { 40_000 } else { 6_000 };
    let seed = seed(41);
    let kinds = [
        (1024, "", (4 << 20, 64 << 20), name as fn(u32) -> Vec<u8>),
        (4096, "", (64 << 20, 48 << 10), name),
        (4096, "^dir_index", (64 << 20, 64 << 20), name),
        (1024, "^metadata_csum", (0, 16 << 10), name),
        (1024, "", (64 << 20, 0), name),
        (1024, "", (4 << 20, 64 << 20), odd_name),
        (1024, "", (4 << 20, 64 << 10), odd_name),
    ];
    for (turn, (block_size, features, memory, name)) in kinds.into_iter().enumerate() {
        let mut rng = ChaCha8Rng::seed_from_u64(seed + turn as u64);
        let spelling = Spelling { names: if features == "^dir_index" { 400 } else { 2_000 }, name };
        let device = format(block_size, features);
        let mut model = Model::default();
        let fs = open(&device, memory);
        let new = NewInode { kind: FileType::Directory, permissions: 0o755, device: None };
        let mut dirs = DIRS.map(|name| fs.create(&context(), InodeNr::ROOT, name, &new).unwrap());
        fs.close(&context()).unwrap();
        for life in 0..3 {
            let fs = open(&device, memory);
            for number in 0..steps / 3 {
                step(&fs, dirs, &mut model, spelling, &mut rng);
                if number == steps / 6 && life > 0 {
                    renew(&fs, &mut dirs, &mut model, life % 2);
                }
            }
            compare(&fs, dirs, &model, spelling);
            fs.close(&context()).unwrap();
            let fs = open(&device, memory);
            compare(&fs, dirs, &model, spelling);
            fs.close(&context()).unwrap();
        }
        if require(&["e2fsck"]) {
            let scratch = tempfile::tempdir().unwrap();
            let image = scratch.path().join("image");
            device.save(&image).unwrap();
            e2fsck_clean(&image);
        }
    }
}

/// Sets its flag when dropped, also by a panic, so that a thread waiting for the flag ends too.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Readers find every name that stays, and none that never existed, while a writer fills, splits
/// and empties the blocks.
#[test]
fn readers_beside_a_writer_find_what_stays() {
    let device = format(1024, "");
    let fs = open(&device, (1 << 20, 64 << 20));
    let new = NewInode { kind: FileType::Directory, permissions: 0o755, device: None };
    let dir = fs.create(&context(), InodeNr::ROOT, b"shared", &new).unwrap();
    let stay: Vec<InodeNr> = (0..400).map(|number| create(&fs, dir, &name(number)).unwrap()).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in 0..3u64 {
            let (fs, stay, done) = (&fs, &stay, &done);
            scope.spawn(move || {
                let mut rng = ChaCha8Rng::seed_from_u64(reader);
                while !done.load(Ordering::Relaxed) {
                    let number = rng.random_range(0..400u32);
                    assert_eq!(fs.lookup(dir, &name(number)).unwrap(), stay[number as usize]);
                    let never = fs.lookup(dir, &name(1_000_000 + number));
                    assert!(matches!(never, Err(Error::NotFound)), "{never:?}");
                }
            });
        }
        let _done = Done(&done);
        for _ in 0..3 {
            for number in 1_000..2_500 {
                create(&fs, dir, &name(number)).unwrap();
            }
            for number in 1_000..2_500 {
                fs.unlink(&context(), dir, &name(number)).unwrap();
            }
        }
    });
    fs.close(&context()).unwrap();
}
