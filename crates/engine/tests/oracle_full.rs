//! Eight threads on a nearly full image of each kind: writes may be refused, but write-back never
//! fails, and e2fsck finds nothing.
//!
//! `RUNS=n` sets the number of runs for each kind: 2 by default, 40 with `BLOCKYARD_FULL=1`.
//! `STEPS=n` sets the number of operations of a thread: 250 by default, 1,500 with
//! `BLOCKYARD_FULL=1`. The first run has the seed `SEED`, and each further run the next number.

#![allow(clippy::as_conversions, clippy::unwrap_used)]

use blockyard_device::MemoryDevice;
use blockyard_disk::inode::FileType;
use blockyard_disk::{InodeNr, Timestamp};
use blockyard_engine::{Error, Fallocate, FileSystem, NewInode, OpContext, OpenOptions, Result, mkfs};
use blockyard_sync::CpuSlot;
use blockyard_testkit::{byte_range, e2fsck_clean, full_matrix, require, seed};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;

const THREADS: u32 = 8;
const FILES: u32 = 12;

/// The images: name, MiB, options.
fn kinds() -> Vec<(&'static str, u64, mkfs::Options)> {
    let ext4 = |block_size| mkfs::Options::ext4().block_size(block_size).identity(1, 1);
    vec![
        ("4 KiB", 16, ext4(4096)),
        ("1 KiB", 8, ext4(1024)),
        ("no journal", 8, ext4(1024).features("^has_journal")),
        ("indirect", 8, mkfs::Options::ext3().block_size(1024).identity(1, 1)),
        ("clusters of 2", 16, ext4(4096).cluster_size(8192)),
        ("clusters of 8", 48, ext4(4096).cluster_size(32_768)),
        ("clusters of 64", 24, ext4(1024).cluster_size(65_536)),
        ("inline", 8, ext4(1024).features("inline_data")),
    ]
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

fn context(slot: u32, privileged: bool) -> OpContext {
    OpContext { privileged, ..OpContext::root_at(Timestamp::from_seconds(1)).on(CpuSlot::new(slot)) }
}

/// Creates the small files, and a large one that takes all space except for about `left` clusters.
/// Half of these clusters are holes punched into the large file. `unit` is the size of a cluster in
/// bytes.
fn fill(fs: &FileSystem, unit: u64, left: u64) {
    let ctx = context(0, true);
    let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
    for n in 0..FILES {
        fs.create(&ctx, InodeNr::ROOT, format!("file{n}").as_bytes(), &new).unwrap();
    }
    let filler = fs.create(&ctx, InodeNr::ROOT, b"filler", &new).unwrap();
    let free = fs.statistics().blocks_available * u64::from(fs.statistics().block_size) / unit;
    for n in 0..free.saturating_sub(left / 2) {
        fs.write(&ctx, filler, n * unit, &vec![1; unit as usize]).unwrap();
    }
    fs.sync(&ctx).unwrap();
    for n in 0..left / 2 {
        fs.fallocate(&ctx, filler, Fallocate::PunchHole, n * 2 * unit, unit).unwrap();
    }
    fs.sync(&ctx).unwrap();
}

struct Worker<'a> {
    fs: &'a FileSystem,
    rng: ChaCha8Rng,
    slot: u32,
    unit: u64,
}

impl Worker<'_> {
    fn run(mut self, steps: u64) {
        for step in 0..steps {
            let (name, result) = self.step();
            let must_work = matches!(name, "write_back" | "fsync" | "sync" | "commit" | "close");
            match result {
                Ok(()) => {}
                Err(
                    Error::NoSpace
                    | Error::NoInodes
                    | Error::Invalid(_)
                    | Error::NotSupported(_)
                    | Error::FileTooLarge,
                ) if !must_work => {}
                Err(error) => panic!("thread {} step {step}: {name}: {error}", self.slot),
            }
            assert!(!self.fs.has_failed(), "thread {} step {step}: {name} failed half-way", self.slot);
        }
    }

    fn step(&mut self) -> (&'static str, Result<()>) {
        let ctx = context(self.slot, self.rng.random_range(0..2) == 0);
        let name = format!("file{}", self.rng.random_range(0..FILES));
        let choice = self.rng.random_range(0..100);
        let fs = self.fs;
        let file = match fs.lookup(InodeNr::ROOT, name.as_bytes()) {
            Ok(file) => file,
            Err(error) => return ("lookup", Err(error)),
        };
        let size = fs.attributes(file).map_or(0, |seen| seen.size);
        let (at, len) = byte_range(&mut self.rng, self.unit, size);
        let aligned = (at / self.unit * self.unit, len.div_ceil(self.unit) * self.unit);
        let fallocate = |what, (at, len)| fs.fallocate(&ctx, file, what, at, len);
        match choice {
            0..50 => ("write", fs.write(&ctx, file, at, &vec![7; len as usize])),
            50..56 => ("truncate", fs.truncate(&ctx, file, at)),
            56..58 => ("truncate", fs.truncate(&ctx, file, 0)),
            58..64 => ("allocate", fallocate(Fallocate::Allocate, (at, len))),
            64..67 => ("keep", fallocate(Fallocate::AllocateKeepSize, (at, len))),
            67..75 => ("punch", fallocate(Fallocate::PunchHole, (at, len))),
            75..80 => (
                "zero",
                fallocate(Fallocate::ZeroRange, *[(at, len), aligned].choose(&mut self.rng).unwrap()),
            ),
            80..83 => ("collapse", fallocate(Fallocate::CollapseRange, aligned)),
            83..86 => ("insert", fallocate(Fallocate::InsertRange, aligned)),
            86..90 => ("fsync", fs.fsync(&ctx, file)),
            90..95 => ("write_back", fs.write_back_file(&ctx, file)),
            95..97 => {
                fs.open_inode(file, true).unwrap();
                ("close", fs.release_inode(&ctx, file, true))
            }
            97 => ("commit", fs.commit(&ctx)),
            98 => ("write_back", fs.write_back_all(&ctx)),
            _ => ("sync", fs.sync(&ctx)),
        }
    }
}

/// The options of a run, in rotation: defaults, little memory and frequent commits, defaults, no
/// delayed allocation.
fn options_of(run: u64) -> OpenOptions {
    let options = OpenOptions { cpus: THREADS, seed: run, ..OpenOptions::default() };
    match run % 4 {
        1 => OpenOptions { dirty_data_bytes: 1 << 20, inodes_max: 8, commit_point_handles: 20, ..options },
        3 => OpenOptions { delayed_allocation: false, ..options },
        _ => options,
    }
}

#[test]
fn who_was_told_that_there_is_space_gets_it() {
    if !require(&["e2fsck"]) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = scratch.path().join("image");
    let first = seed(6);
    let runs = number("RUNS").unwrap_or(if full_matrix() { 40 } else { 2 });
    let steps = number("STEPS").unwrap_or(if full_matrix() { 1_500 } else { 250 });
    for (name, mib, options) in kinds() {
        for run in first..first + runs {
            println!("{name}, seed {run}");
            let device = Arc::new(MemoryDevice::new(mib << 20));
            mkfs::format(&*device, &options).unwrap();
            let fs =
                FileSystem::open(Arc::<MemoryDevice>::clone(&device), options_of(run), &context(0, true))
                    .unwrap();
            let unit = (fs.geometry().block_size() as u64) << fs.geometry().cluster_ratio_bits();
            fill(&fs, unit, 40 + run * 37 % 160);
            std::thread::scope(|scope| {
                for slot in 0..THREADS {
                    let rng = ChaCha8Rng::seed_from_u64(run ^ u64::from(slot) << 32);
                    let worker = Worker { fs: &fs, rng, slot, unit };
                    scope.spawn(move || worker.run(steps));
                }
            });
            fs.sync(&context(0, true)).unwrap();
            let figures = fs.allocator().free_clusters();
            assert_eq!(figures.delayed, 0, "all is written, nothing is promised");
            assert_eq!(figures.free * unit, fs.statistics().blocks_free * fs.geometry().block_size() as u64);
            fs.close(&context(0, true)).unwrap();
            device.save(&image).unwrap();
            e2fsck_clean(&image);
        }
    }
}
