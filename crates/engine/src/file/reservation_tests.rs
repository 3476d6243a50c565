//! Reservations for delayed data on nearly full images. The random runs recompute, after every
//! step, what must be reserved at least. They assert that the reservations are never smaller and
//! never exceed what is free, and that none is left after a sync.

#![allow(clippy::as_conversions, clippy::unwrap_used)]

use crate::FileSystem;
use crate::extents::blocks_for_entries;
use crate::inode::{Inode, InodeCore};
use crate::pool::Pool;
use crate::{Error, Fallocate, NewInode, OpContext, OpenOptions, mkfs};
use blockyard_device::{FaultyDevice, MemoryDevice};
use blockyard_disk::inode::{FileType, InodeMap};
use blockyard_disk::{InodeNr, Timestamp};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;

const FILES: usize = 6;

fn kinds() -> Vec<(&'static str, u64, mkfs::Options)> {
    let ext4 = |block_size| mkfs::Options::ext4().block_size(block_size).identity(1, 1);
    vec![
        ("4 KiB", 12, ext4(4096)),
        ("1 KiB", 6, ext4(1024)),
        ("indirect", 6, mkfs::Options::ext3().block_size(1024).identity(1, 1)),
        ("clusters of 8", 40, ext4(4096).cluster_size(32_768)),
        ("clusters of 16", 12, ext4(1024).cluster_size(16_384)),
        ("inline", 6, ext4(1024).features("inline_data,^has_journal")),
    ]
}

/// What write-back will need for a file: clusters, appended entries, and inserted entries. This is
/// computed only from the file's dirty blocks and its mapping.
fn needed(fs: &FileSystem, inode: &Inode, core: &InodeCore) -> (Vec<u32>, usize, usize) {
    let bits = fs.geometry().cluster_ratio_bits();
    let (mut clusters, mut behind, mut amid) = (Vec::new(), 0, 0);
    let mut last = None;
    for logical in inode.waiting().dirty.runs_in(0..u32::MAX).into_iter().flatten() {
        let here = fs.files.mapping.lookup_block(inode, core, logical).unwrap();
        let goes_on = last.replace((logical, here.found.is_some())) == Some((logical.wrapping_sub(1), false));
        match here.found {
            Some(extent) => amid += usize::from(extent.unwritten) * 2,
            None => {
                let cluster = logical >> bits;
                if !clusters.contains(&cluster)
                    && !fs.files.mapping.cluster_is_mapped(inode, core, cluster).unwrap()
                {
                    clusters.push(cluster);
                }
                let same_cluster = bits > 0 && !logical.is_multiple_of(1 << bits);
                if !(goes_on && same_cluster) {
                    *if here.right.is_some() { &mut amid } else { &mut behind } += 1;
                }
            }
        }
    }
    (clusters, behind, amid)
}

/// Compares the reservations of every file with the file's needs, and the sum of all reservations
/// with the free space.
fn check(fs: &FileSystem, what: &str) {
    let mut reserved = 0;
    for inode in fs.volume.inodes.table.all() {
        let (data, core) = (inode.read(), inode.core());
        let mapping = data.reserved_for_mapping();
        reserved += data.reserved_len() as u64 + mapping;
        let (clusters, behind, amid) = needed(fs, &inode, &core);
        let reserved: Vec<u32> = data.reserved_in(0..u32::MAX).into_iter().flatten().collect();
        assert_eq!(reserved, clusters, "{what}: clusters of inode {}", inode.number());
        if core.map == InodeMap::Extents {
            // `amid` may be too high: it counts two entries for each dirty block over an unwritten
            // extent. So this requires room for at most one inserted entry.
            let least = blocks_for_entries(core.root(), fs.volume.block_size(), behind, amid.min(1));
            assert!(mapping >= least, "{what}: inode {}: {mapping} of {least}", inode.number());
            assert!(data.reserved_len() + data.inserts() >= behind, "{what}: entries of {}", inode.number());
        }
    }
    let figures = fs.allocator().free_clusters();
    assert_eq!(figures.delayed, reserved, "{what}: reservations of all files");
    assert!(figures.free >= figures.delayed, "{what}: {figures:?}");
    assert_eq!(figures.free, fs.volume.groups.totals().free_clusters, "{what}: free clusters");
}

struct Run {
    fs: FileSystem,
    rng: ChaCha8Rng,
    files: Vec<InodeNr>,
    unit: u64,
}

impl Run {
    fn new(mib: u64, options: &mkfs::Options, seed: u64, open: OpenOptions) -> Self {
        let device = Arc::new(MemoryDevice::new(mib << 20));
        mkfs::format(&*device, options).unwrap();
        let ctx = OpContext::root_at(Timestamp::from_seconds(1));
        let fs = FileSystem::open(device, open, &ctx).unwrap();
        let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
        let make = |name: String| fs.create(&ctx, InodeNr::ROOT, name.as_bytes(), &new).unwrap();
        let files = (0..FILES).map(|n| make(format!("file{n}"))).collect();
        // Little space stays free, and it is fragmented.
        let filler = make("filler".to_owned());
        let unit = (fs.volume.block_size() as u64) << fs.geometry().cluster_ratio_bits();
        let left = 60 + seed % 200;
        let free = fs.statistics().blocks_available * fs.volume.block_size() as u64 / unit;
        let bytes = vec![1; unit as usize];
        for n in 0..free.saturating_sub(left / 2) {
            fs.write(&ctx, filler, n * unit, &bytes).unwrap();
        }
        fs.sync(&ctx).unwrap();
        for n in 0..left / 2 {
            fs.fallocate(&ctx, filler, Fallocate::PunchHole, n * 2 * unit, unit).unwrap();
        }
        fs.sync(&ctx).unwrap();
        Self { fs, rng: ChaCha8Rng::seed_from_u64(seed), files, unit }
    }

    /// One operation. Refusals are fine, but write-back, commit and sync must succeed.
    fn step(&mut self) -> &'static str {
        let ctx = OpContext {
            privileged: self.rng.random_range(0..2) == 0,
            ..OpContext::root_at(Timestamp::from_seconds(1))
        };
        let file = *self.files.choose(&mut self.rng).unwrap();
        let size = self.fs.attributes(file).unwrap().size;
        let (at, len) = blockyard_testkit::byte_range(&mut self.rng, self.unit, size);
        let aligned = (at / self.unit * self.unit, len.div_ceil(self.unit) * self.unit);
        let choice = self.rng.random_range(0..100);
        let fs = &self.fs;
        let fallocate = |what, (at, len)| fs.fallocate(&ctx, file, what, at, len);
        let (name, result) = match choice {
            0..50 => ("write", fs.write(&ctx, file, at, &vec![7; len as usize])),
            50..53 => {
                let block = fs.volume.block_size() as u64;
                let bytes = vec![7; (len.clamp(1, 6 * block)).next_multiple_of(block) as usize];
                ("direct", fs.write_direct(&ctx, file, at / block * block, &bytes).map(drop))
            }
            53..56 => ("truncate", fs.truncate(&ctx, file, at)),
            56..58 => ("cut", fs.truncate(&ctx, file, 0)),
            58..64 => ("allocate", fallocate(Fallocate::Allocate, (at, len))),
            64..68 => ("keep", fallocate(Fallocate::AllocateKeepSize, (at, len))),
            68..78 => ("punch", fallocate(Fallocate::PunchHole, (at, len))),
            78..82 => ("zero", fallocate(Fallocate::ZeroRange, (at, len))),
            82..84 => ("zero aligned", fallocate(Fallocate::ZeroRange, aligned)),
            84..87 => ("collapse", fallocate(Fallocate::CollapseRange, aligned)),
            87..90 => ("insert", fallocate(Fallocate::InsertRange, aligned)),
            90..97 => ("write back", fs.write_back_file(&ctx, file)),
            97..99 => ("commit", fs.commit(&ctx)),
            _ => ("sync", fs.sync(&ctx)),
        };
        if matches!(name, "write back" | "sync" | "commit") {
            result.unwrap();
        } else if let Err(error) = result {
            let fine = matches!(
                error,
                Error::NoSpace | Error::Invalid(_) | Error::FileTooLarge | Error::NotSupported(_)
            );
            assert!(fine, "{name}: {error}");
        }
        name
    }
}

#[test]
fn reservations_hold_on_nearly_full_images() {
    let seed = blockyard_testkit::seed(5);
    let (runs, steps) = if blockyard_testkit::full_matrix() { (60, 2_000) } else { (2, 250) };
    for (name, mib, options) in kinds() {
        for run in 0..runs {
            let open = OpenOptions { delayed_allocation: run % 4 != 3, cpus: 2, ..OpenOptions::default() };
            let mut world = Run::new(mib, &options, seed + run, open);
            check(&world.fs, name);
            for step in 0..steps {
                let what = world.step();
                check(&world.fs, &format!("{name}, seed {}, step {step}, {what}", seed + run));
            }
            world.fs.sync(&OpContext::system()).unwrap();
            check(&world.fs, name);
            assert_eq!(world.fs.allocator().free_clusters().delayed, 0, "{name}: all is written");
        }
    }
}

/// Reserves all clusters but `left`, including the file system's own reserve. Returns how many it
/// reserved.
fn reserve_all_but(fs: &FileSystem, ctx: &OpContext, left: u64) -> u64 {
    let space = &fs.volume.space;
    let taken = (0..).take_while(|_| space.reserve(ctx, 1, Pool::Reserve).is_ok()).count() as u64;
    assert!(taken > left);
    space.unreserve(ctx, left);
    taken - left
}

/// A regression test. Zeroing a range may have to write data back midway: a zeroed piece may need a
/// larger reservation for the mapping when all clusters are reserved already. This write-back wrote
/// into blocks that the zeroing had just allocated, so the range kept the old data.
#[test]
fn a_zeroed_range_begins_anew_when_data_is_written_back_midway() {
    const BLOCKS: u64 = 60;
    let ctx = OpContext::root_at(Timestamp::from_seconds(1_700_000_000));
    let open = |device: Arc<dyn blockyard_device::BlockDevice>| {
        FileSystem::open(device, OpenOptions::default(), &ctx).unwrap()
    };
    let base = Arc::new(MemoryDevice::new(4 << 20));
    let options = mkfs::Options::ext4().block_size(1024).identity(1, 1).features("^has_journal");
    mkfs::format(&*base, &options).unwrap();
    let fs = open(Arc::<MemoryDevice>::clone(&base));
    let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
    let inode = fs.create(&ctx, InodeNr::ROOT, b"file", &new).unwrap();
    // A hole, and behind it extents that are alternately written and unwritten. Zeroing these
    // extents allocates no block for data.
    fs.fallocate(&ctx, inode, Fallocate::Allocate, 1024, BLOCKS * 1024).unwrap();
    (0..BLOCKS).step_by(2).for_each(|block| fs.write(&ctx, inode, 1024 + block * 1024, &[6; 1024]).unwrap());
    fs.close(&ctx).unwrap();
    let mut midway = 0;
    for left in (0..400).step_by(5) {
        let device = Arc::new(FaultyDevice::new(base.duplicate()));
        let fs = open(Arc::<FaultyDevice<MemoryDevice>>::clone(&device));
        // The hole gets dirty data.
        fs.write(&ctx, inode, 0, &[7; 1024]).unwrap();
        let taken = reserve_all_but(&fs, &ctx, left);
        let written = device.counts().writes;
        let zeroed = fs.fallocate(&ctx, inode, Fallocate::ZeroRange, 0, (1 + BLOCKS) * 1024);
        let is_written_back = device.counts().writes > written;
        fs.volume.space.unreserve(&ctx, taken);
        match zeroed {
            Ok(()) => {
                let mut bytes = vec![1; usize::try_from((1 + BLOCKS) * 1024).unwrap()];
                assert_eq!(fs.read(&ctx, inode, 0, &mut bytes).unwrap(), bytes.len());
                assert!(bytes.iter().all(|byte| *byte == 0), "with {left} clusters");
                midway += u32::from(is_written_back);
            }
            Err(error) => assert!(matches!(error, Error::NoSpace), "{error}"),
        }
        check(&fs, "a zeroed range");
        fs.close(&ctx).unwrap();
    }
    assert!(midway > 0);
}
