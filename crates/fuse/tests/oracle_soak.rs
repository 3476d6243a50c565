//! Mixed load for 5 seconds, or for 30 minutes with `BLOCKYARD_FULL=1`. In the 30 minutes, the
//! median memory may grow by at most 5 % from the first third to the last. Afterwards no file is
//! open, at most one inode besides the root is remembered, and all descriptors are closed.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use blockyard_fuse::{Mount, Options, Request};
use blockyard_testkit::{e2fsck_clean, fill, full_matrix, mke2fs, require, seed, wait_until};

/// Number of threads, each in a directory of its own.
const WORKERS: u64 = 4;
/// Number of file names that each thread uses.
const NAMES: u64 = 200;

/// Runs one operation after another until the time is over, and returns their number.
fn work(directory: &Path, seed: u64, until: Instant) -> std::io::Result<u64> {
    let mut state = seed | 1;
    let mut draw = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut done = 0;
    while Instant::now() < until {
        let path = directory.join(format!("n{}", draw(NAMES)));
        let other = directory.join(format!("n{}", draw(NAMES)));
        let size = usize::try_from(draw(60_000)).unwrap();
        let result = match draw(10) {
            0..=3 => fs::write(&path, fill::pattern(done, size)),
            4 => fs::read(&path).map(drop),
            5 => fs::rename(&path, &other),
            6 => fs::remove_file(&path),
            7 => fs::hard_link(&path, &other),
            8 => fs::File::options().write(true).open(&path).and_then(|file| {
                file.write_all_at(&fill::pattern(done, 5000), draw(100_000))?;
                if draw(8) == 0 { file.sync_all() } else { Ok(()) }
            }),
            _ => fs::read_dir(directory).map(|entries| assert!(entries.count() < 1000)),
        };
        match result {
            Err(error) if !matches!(error.raw_os_error(), Some(2 | 17)) => return Err(error),
            _ => done += 1,
        }
    }
    Ok(done)
}

/// Resident memory of this process in KiB.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}

#[test]
fn nothing_grows_and_nothing_is_left_over() {
    if !require(&["root", "mke2fs", "e2fsck", "mount"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (image, directory) = (folder.path().join("image"), folder.path().join("mnt"));
    mke2fs(&image, &["-t", "ext4"], "256M");
    fs::create_dir(&directory).unwrap();
    let before = descriptors();
    let request = Request {
        image: image.clone(),
        directory: directory.clone(),
        options: Options::default(),
        record: None,
    };
    let mount = Mount::new(&request).unwrap();
    let handle = mount.handle();
    let serving = mount.spawn().unwrap();
    let time = Duration::from_secs(if full_matrix() { 1800 } else { 5 });
    let until = Instant::now() + time;
    let seed = seed(1);
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let own = directory.join(format!("w{worker}"));
            fs::create_dir(&own).unwrap();
            thread::spawn(move || work(&own, seed.wrapping_add(worker), until))
        })
        .collect();
    let mut memory = Vec::new();
    while Instant::now() < until {
        thread::sleep(time / 90);
        memory.push(resident());
    }
    let done: u64 = workers.into_iter().map(|worker| worker.join().unwrap().unwrap()).sum();
    let third = memory.len() / 3;
    let (first, last) = (median(memory[..third].to_vec()), median(memory[2 * third..].to_vec()));
    println!("{done} operations; memory {first} KiB in the first third, {last} in the last");
    assert!(!full_matrix() || last * 100 <= first * 105, "memory grew from {first} to {last} KiB");
    for worker in 0..WORKERS {
        fs::remove_dir_all(directory.join(format!("w{worker}"))).unwrap();
    }
    // The kernel sends its forgets and releases a moment later.
    wait_until("everything is forgotten", || {
        let (nodes, files) = handle.server().counts();
        nodes <= 1 && files == 0
    });
    handle.unmount().unwrap();
    serving.wait().unwrap();
    wait_until("descriptors are closed", || descriptors() <= before);
    e2fsck_clean(&image);
}
