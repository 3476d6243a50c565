//! Power cuts under the mount. The kernel writes through the mount to a device that records writes
//! and flushes. A cut may lose any part of the unflushed writes. The test recovers a sample of the
//! states that cuts could have left: our mount, Linux and e2fsck take turns. What an fsync made
//! durable before the cut must be there.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use blockyard::ImageOptions;
use blockyard::device::{CrashPlan, CrashState, Event, FileDevice, RecorderDevice, WriteLog};
use blockyard_testkit::{LoopMount, e2fsck_clean, full_matrix, require, run, seed, wait_until};
use mounted::{Mounted, Place, place};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

mod mounted;

/// Writing threads, each with its own files.
const WRITERS: usize = 3;

type Device = Arc<RecorderDevice<FileDevice>>;

fn content(name: &str, len: usize) -> Vec<u8> {
    let seed = name.bytes().fold(7, |sum: u8, byte| sum.wrapping_mul(31).wrapping_add(byte));
    (0..len).map(|at| u8::try_from(at * 7 % 251).unwrap() ^ seed).collect()
}

/// Makes files one after another. Writes each file three times, each time longer, and then replaces
/// it. After each fsync of such a file, adds a mark to the log: the name, and the number of durable
/// bytes.
fn write_until(
    directory: &Path,
    writer: usize,
    device: &Device,
    is_over: &AtomicBool,
) -> std::io::Result<()> {
    for number in 0.. {
        let name = format!("w{writer}-{number}");
        let path = directory.join(&name);
        let file = File::create_new(&path)?;
        for len in [100, 5_000, 40_000] {
            if is_over.load(Ordering::Relaxed) {
                return Ok(());
            }
            file.write_all_at(&content(&name, len), 0)?;
            file.sync_all()?;
            device.mark(&format!("{name} {len}"));
        }
        // The content is written under another name, which is then renamed over the file. After a
        // cut, either the old or the new file is there in full, and both have the same content.
        let aside = directory.join(format!("w{writer}-aside"));
        fs::write(&aside, content(&name, 40_000))?;
        File::open(&aside)?.sync_all()?;
        fs::rename(&aside, &path)?;
        // This file is never synced, so nothing is promised about it.
        fs::write(directory.join(format!("w{writer}-loose")), content("loose", 70_000))?;
    }
    Ok(())
}

/// Lets the writers work on a mount for a while. Returns what reached the device.
fn record(place: &Place, time: Duration) -> WriteLog {
    let device = Arc::new(RecorderDevice::new(FileDevice::open(&place.image).unwrap()));
    let fs = ImageOptions::new().background(true).open_device(Arc::clone(&device)).unwrap();
    let mounted = Mounted::over(fs, place);
    let is_over = Arc::<AtomicBool>::default();
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (directory, device) = (place.directory.clone(), Arc::clone(&device));
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || write_until(&directory, writer, &device, &is_over))
        })
        .collect();
    thread::sleep(time);
    // On a busy disk, each of the first fsyncs may take long.
    wait_until("ten promises are made", || device.log().marks().count() >= 10);
    // The cut: later writes are ignored.
    let log = device.log();
    is_over.store(true, Ordering::Relaxed);
    writers.into_iter().for_each(|writer| writer.join().unwrap().unwrap());
    mounted.unmount();
    log
}

/// Picks `count` states, each with equal probability.
fn sample(log: &WriteLog, count: usize, rng: &mut ChaCha8Rng) -> Vec<CrashState> {
    let plan = CrashPlan { seed: rng.random(), subsets_max: 4, random_subsets: 8, torn: 2 };
    let mut sample = Vec::new();
    let states = log.crash_states(&plan).filter(|state| !tears_superblock(log, state));
    for (number, state) in states.enumerate() {
        if sample.len() < count {
            sample.push(state);
        } else if let Some(place) = sample.get_mut(rng.random_range(0..=number)) {
            *place = state;
        }
    }
    sample
}

/// Whether only one of the two sectors of the superblock was written. Then the superblock's
/// checksum is wrong and only a backup helps, on Linux too.
fn tears_superblock(log: &WriteLog, state: &CrashState) -> bool {
    state.steps.iter().any(|step| {
        let (Some(sectors), Event::Write { offset, .. }) = (&step.sectors, &log.events()[step.event]) else {
            return false;
        };
        let first = usize::try_from(offset / 512).unwrap();
        let has = |sector: usize| sector.checked_sub(first).and_then(|at| sectors.get(at));
        has(2) != has(3)
    })
}

/// The files that were durable at a cut: their names, and how many of their bytes were durable.
fn promised(log: &WriteLog, state: &CrashState) -> BTreeMap<String, usize> {
    let before = log.marks().filter(|(at, _)| *at < state.point);
    let fact = |(_, text): (usize, &str)| {
        let (name, len) = text.split_once(' ').unwrap();
        (name.to_owned(), len.parse().unwrap())
    };
    before.map(fact).collect()
}

fn check(directory: &Path, facts: &BTreeMap<String, usize>, what: &str) {
    for (name, len) in facts {
        let found = fs::read(directory.join(name)).unwrap_or_else(|error| panic!("{what}: {name}: {error}"));
        assert!(found.len() >= *len, "{what}: {name} has {} bytes, {len} were durable", found.len());
        assert!(found[..*len] == content(name, *len), "{what}: {name} has other content");
    }
}

/// Recovers a state by our mount, Linux or e2fsck, as `round` says. Checks that the promised
/// content is there and that e2fsck then finds no fault.
fn judge(image: &Path, directory: &Path, facts: &BTreeMap<String, usize>, state: &CrashState, round: usize) {
    match round % 3 {
        0 => {
            let mounted = Mounted::new(image, directory, "");
            check(directory, facts, &format!("our mount, {state}"));
            mounted.unmount();
        }
        1 => check(LoopMount::new(image, "").unwrap().path(), facts, &format!("Linux, {state}")),
        _ => {
            let repaired = run("e2fsck", &["-fy", image.to_str().unwrap()]);
            let said = String::from_utf8_lossy(&repaired.stdout);
            assert!(matches!(repaired.status.code(), Some(0 | 1)), "{state}: {said}");
            check(LoopMount::new(image, "ro").unwrap().path(), facts, &format!("e2fsck, {state}"));
        }
    }
    e2fsck_clean(image);
}

#[test]
fn what_fsync_promised_outlives_a_power_cut() {
    if !require(&["root", "mke2fs", "e2fsck", "mount"]) {
        return;
    }
    let (loads, states) = if full_matrix() { (20, 10) } else { (1, 6) };
    let mut rng = ChaCha8Rng::seed_from_u64(seed(27));
    let mut facts_seen = 0;
    for _ in 0..loads {
        let place = place(&["-t", "ext4", "-J", "size=4"], "64M");
        let folder = place.image.parent().unwrap();
        let (before, state_image) = (folder.join("before"), folder.join("state"));
        fs::copy(&place.image, &before).unwrap();
        let log = record(&place, Duration::from_millis(rng.random_range(100..900)));
        for (round, state) in sample(&log, states, &mut rng).iter().enumerate() {
            fs::copy(&before, &state_image).unwrap();
            let device = FileDevice::open(&state_image).unwrap();
            state.build(&log, &device).unwrap();
            drop(device);
            let facts = promised(&log, state);
            facts_seen += facts.len();
            judge(&state_image, &place.directory, &facts, state, round);
        }
    }
    println!("{} states, {facts_seen} promises", loads * states);
    assert!(facts_seen > loads * states, "hardly anything was promised");
}
