//! With `io_depth` a check reads many blocks of a device in parallel. Its report is the same as
//! without `io_depth`.
//!
//! `IMAGE=file` measures a check of that file. `MICROSECONDS=n` is how long each read is delayed
//! (1000 by default), `IO_DEPTH=n` sets the reads in flight (32), `THREADS=n` the threads (2).

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use blockyard_check::{Options, Part, PassCost, Step, Watch, check, measure};
use blockyard_device::{BlockDevice, DeviceId, FileDevice, Result};
use blockyard_testkit::{mke2fs, require, run};

/// A device whose reads take a while.
struct Slow {
    below: FileDevice,
    time: Duration,
    reads: AtomicUsize,
    in_flight: AtomicUsize,
    most: AtomicUsize,
}

impl Slow {
    fn open(image: &Path, time: Duration) -> Self {
        let below = FileDevice::open_read_only(image).unwrap();
        Self { below, time, reads: 0.into(), in_flight: 0.into(), most: 0.into() }
    }
}

impl BlockDevice for Slow {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let now = self.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
        if !self.time.is_zero() {
            std::thread::sleep(self.time);
        }
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.below.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.below.write_at(offset, data)
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> Result<()> {
        self.below.write_zeroes(offset, length)
    }

    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.below.discard(offset, length)
    }

    fn flush(&self) -> Result<()> {
        self.below.flush()
    }

    fn identity(&self) -> DeviceId {
        self.below.identity()
    }
}

/// Makes an image of 64 groups with directories whose blocks lie apart, one of them large. Some
/// counts of free blocks are wrong.
fn made(folder: &Path) -> std::path::PathBuf {
    let tree = folder.join("tree");
    for n in 0..200 {
        let directory = tree.join(format!("directory-{n}"));
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("file"), vec![1; 100_000]).unwrap();
    }
    std::fs::create_dir(tree.join("large")).unwrap();
    for n in 0..1500 {
        std::fs::write(tree.join("large").join(format!("{n:0>100}")), b"").unwrap();
    }
    let image = folder.join("image");
    let features = "^resize_inode";
    let options = ["-t", "ext4", "-O", features, "-b", "1024", "-g", "1024", "-N", "4000", "-G", "1", "-d"];
    mke2fs(&image, &[&options[..], &[tree.to_str().unwrap()]].concat(), "64M");
    for group in [3, 20, 40] {
        let request = format!("set_block_group {group} free_blocks_count 7");
        run("debugfs", &["-w", "-R", &request, image.to_str().unwrap()]);
    }
    image
}

#[test]
fn reads_are_in_flight_side_by_side() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path());
    let measured = |io_depth: Option<usize>| {
        let device = Slow::open(&image, Duration::from_millis(2));
        let report = check(&device, &Options { threads: Some(1), io_depth, ..Options::default() }).unwrap();
        (report, device.most.into_inner(), device.reads.into_inner())
    };
    let (one, most, reads) = measured(None);
    assert_eq!(most, 1);
    assert!(one.examined && !one.is_clean());
    let (many, most, _) = measured(Some(32));
    assert_eq!(one, many);
    assert!((16..=32).contains(&most), "{most} reads in flight");
    // The check reads 202 directories of one block, the large one of some 170 blocks, and the
    // tables and bitmaps of 64 groups. So some reads must take several blocks.
    assert!(reads < 450, "{reads} reads");
}

/// The blocks reserved for descriptors lie next to each other, and so do the descriptors. So a
/// check needs few reads for them.
#[test]
fn reserved_blocks_are_read_together() {
    if !require(&["mke2fs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    // mke2fs reserves 1024 blocks for descriptors.
    mke2fs(&image, &["-t", "ext4"], "8G");
    let device = FileDevice::open_read_only(&image).unwrap();
    let (report, costs) = measure(&device, None, &Options::default()).unwrap();
    assert!(report.examined && report.is_clean(), "{:?}", report.findings);
    let total = PassCost::total(&costs);
    assert!(total.bytes >= 2 * 1024 * 4096 && total.reads < 100, "{total:?}");
}

/// The steps that a check reports to its watch, and what the check costs.
fn watched(image: &Path) -> (Vec<Step>, Vec<PassCost>) {
    let device = FileDevice::open_read_only(image).unwrap();
    let steps: Arc<Mutex<Vec<Step>>> = Arc::default();
    let told = Arc::clone(&steps);
    let watch = Watch::new(move |step| told.lock().unwrap().push(step));
    let (_, costs) = measure(&device, None, &Options { watch, ..Options::default() }).unwrap();
    let steps = steps.lock().unwrap().clone();
    (steps, costs)
}

/// As soon as directories together would map more than twice the blocks of the file system, a check
/// skips the remaining ones. The progress does not count skipped directories, so it reaches its
/// end.
#[test]
fn progress_ends_where_directories_are_skipped() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    mke2fs(&image, &["-t", "ext4", "-b", "1024", "-O", "^has_journal"], "4M");
    for name in ["a", "b", "c", "d"] {
        // The extent covers 3000 of the 4096 blocks.
        for request in ["mkdir NAME", "sif NAME block[4] 3000", "sif NAME block[5] 300"] {
            let request = request.replace("NAME", name);
            run("debugfs", &["-w", "-R", &request, image.to_str().unwrap()]);
        }
    }
    let (steps, _) = watched(&image);
    for part in [Part::Inodes, Part::Directories, Part::Connectivity, Part::Links, Part::Groups] {
        let of_part: Vec<_> = steps.iter().filter(|step| step.part == part).collect();
        let done: u64 = of_part.iter().map(|step| step.more).sum();
        assert!(of_part.iter().all(|step| step.all == done), "{part:?}: {done} done, {of_part:?}");
    }
    // The check walks the root, lost+found and two of these four.
    assert!(steps.iter().any(|step| step.part == Part::Directories && step.all == 4), "{steps:?}");
}

#[test]
fn a_watch_is_told_each_item_and_all_bytes() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (steps, costs) = watched(&made(folder.path()));
    // The image has the root, lost+found and 201 directories, in 64 groups.
    for (part, all) in [(Part::Directories, 203), (Part::Groups, 64)] {
        let of_part: Vec<_> = steps.iter().filter(|step| step.part == part).collect();
        assert!(of_part.iter().all(|step| step.all == all), "{part:?}: {:?}", of_part[0]);
        assert_eq!(of_part.iter().map(|step| step.more).sum::<u64>(), all, "{part:?}");
    }
    let (most, all) = (steps.iter().map(|step| step.read_bytes).max(), PassCost::total(&costs).bytes);
    assert!(most.is_some_and(|most| most > all * 9 / 10 && most <= all), "{most:?} of {all} bytes");
}

#[test]
fn a_check_where_each_read_takes_a_while() {
    let Ok(image) = std::env::var("IMAGE") else { return };
    let number =
        |name: &str| -> Option<usize> { std::env::var(name).ok().and_then(|text| text.parse().ok()) };
    let (threads, io_depth) = (number("THREADS").or(Some(2)), number("IO_DEPTH").or(Some(32)));
    let microseconds = number("MICROSECONDS").and_then(|n| u64::try_from(n).ok()).unwrap_or(1000);
    let device = Slow::open(Path::new(&image), Duration::from_micros(microseconds));
    let begun = Instant::now();
    let report = check(&device, &Options { threads, io_depth, ..Options::default() }).unwrap();
    let (time, reads) = (begun.elapsed(), device.reads.into_inner());
    println!(
        "{image}: {time:?}, {reads} reads, {:?} at most in flight, {} errors",
        device.most, report.errors
    );
}
