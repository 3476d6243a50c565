//! Random bytes and truncations: no panic, no hang, bounded memory, and the same findings with one
//! thread and with two.
//!
//! 300 damaged images by default, 10,000 with `BLOCKYARD_FULL=1`; `FLIPS=n` sets another number.

#![allow(clippy::unwrap_used, clippy::as_conversions)]

use std::path::Path;
use std::time::{Duration, Instant};

use blockyard_check::{Options, check};
use blockyard_device::{BlockDevice, DeviceError, MemoryDevice, OverlayDevice, Result};
use blockyard_testkit::images::{fill, make, make_filled, profile_named};
use blockyard_testkit::mutate::Inventory;
use blockyard_testkit::{LoopMount, full_matrix, is_root, require, run, seed};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The check of a damaged image of 64 MiB must not take longer than this, on a busy machine and
/// without optimisation.
const TIME_MAX: Duration = Duration::from_secs(60);
/// Resident memory that the whole run may reach: up to five images of 64 MiB, and the checker.
const MEMORY_MAX_KIB: u64 = 1 << 20;

/// A device that ends early.
struct Truncated<'a> {
    device: &'a OverlayDevice<&'a MemoryDevice>,
    size: u64,
}

impl BlockDevice for Truncated<'_> {
    fn size(&self) -> u64 {
        self.size
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let length = buf.len() as u64;
        if offset.checked_add(length).is_none_or(|end| end > self.size) {
            return Err(DeviceError::OutOfRange { operation: "read", offset, length, size: self.size });
        }
        self.device.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, _: &[u8]) -> Result<()> {
        Err(DeviceError::ReadOnly { operation: "write", offset })
    }

    fn write_zeroes(&self, offset: u64, _: u64) -> Result<()> {
        Err(DeviceError::ReadOnly { operation: "write zeroes", offset })
    }

    fn discard(&self, offset: u64, _: u64) -> Result<()> {
        Err(DeviceError::ReadOnly { operation: "discard", offset })
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }
}

/// Overwrites at most 48 bytes at random, in up to three areas, mostly inside metadata.
fn damage(device: &OverlayDevice<&MemoryDevice>, areas: &[(u64, u64)], random: &mut ChaCha8Rng) {
    let size = device.size();
    for _ in 0..random.random_range(1..4) {
        let (start, length) = match areas.choose(random) {
            Some(area) if random.random_bool(0.8) => *area,
            _ => (random.random_range(0..size - 4096), 4096),
        };
        for _ in 0..random.random_range(1..=16) {
            let at = start + random.random_range(0..length);
            device.write_at(at, &[random.random()]).unwrap();
        }
    }
}

/// An image to damage: name, bytes, and where its structures are (offset and length).
type Base = (String, MemoryDevice, Vec<(u64, u64)>);

/// Where the structures of a valid image are: offset and length.
fn areas(image: &Path) -> Vec<(u64, u64)> {
    let structures = Inventory::read(image).structures;
    structures.iter().map(|structure| (structure.at as u64, structure.length as u64)).collect()
}

/// An image copied while it was mounted; the damage is mostly to its journal.
fn dirty_base(directory: &Path) -> Base {
    let path = make(profile_named("ext4-1k"), directory);
    let journal = areas(&path).into_iter().max_by_key(|area| area.0).unwrap();
    let mount = LoopMount::new(&path, "").unwrap();
    fill(mount.path(), false);
    assert!(run("sync", &["-f", mount.path().to_str().unwrap()]).status.success());
    let image = MemoryDevice::load(&path).unwrap();
    drop(mount);
    std::fs::remove_file(&path).unwrap();
    // The last structure of an empty image is the journal's superblock. The areas are that block,
    // the blocks of the log behind it, and the superblock of the file system.
    let areas =
        (0..400).map(|block| (journal.0 + 1024 * block, 1024)).chain([(1024, 1024), journal]).collect();
    ("dirty".into(), image, areas)
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn damage_of_any_kind_is_survived() {
    if !require(&["mke2fs"]) {
        return;
    }
    let mut random = ChaCha8Rng::seed_from_u64(seed(3));
    let wanted: usize = std::env::var("FLIPS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(if full_matrix() { 10_000 } else { 300 });
    let directory = tempfile::tempdir().unwrap();
    let mut bases: Vec<Base> = Vec::new();
    for profile in ["ext4-1k", "inline", "indirect", "bigalloc"].map(profile_named) {
        // Only root can fill the image; an empty one is better than nothing.
        let path =
            if is_root() { make_filled(profile, directory.path()) } else { make(profile, directory.path()) };
        bases.push((profile.name.into(), MemoryDevice::load(&path).unwrap(), areas(&path)));
        std::fs::remove_file(&path).unwrap();
    }
    if is_root() {
        bases.push(dirty_base(directory.path()));
    }
    for (name, image, areas) in &bases {
        for _ in 0..wanted.div_ceil(bases.len()) {
            let overlay = OverlayDevice::new(image);
            damage(&overlay, areas, &mut random);
            let size =
                if random.random_bool(0.1) { random.random_range(0..image.size()) } else { image.size() };
            let device = Truncated { device: &overlay, size };
            let started = Instant::now();
            let two = check(&device, &Options { threads: Some(2), ..Options::default() });
            assert!(started.elapsed() < TIME_MAX, "{name}: {:?}", started.elapsed());
            if random.random_bool(0.1) {
                let one = check(&device, &Options { threads: Some(1), ..Options::default() });
                assert_eq!(one.ok(), two.ok(), "one thread and two");
            }
        }
    }
    assert!(resident_kib() < MEMORY_MAX_KIB, "{} KiB resident", resident_kib());
}
