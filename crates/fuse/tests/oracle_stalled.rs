//! A device stops answering under a real mount. Only the requests that need the device wait for it;
//! all others are answered.

#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use blockyard::ImageOptions;
use blockyard::device::{FileDevice, StallingDevice};
use blockyard_testkit::{e2fsck_clean, require, wait_until};
use mounted::{Mounted, place};

mod mounted;

/// Number of threads that wait in fsync: more than the mount has receiving threads.
const WAITING: usize = 40;

/// Runs operations that need nothing from the device, until several commits are due.
fn others(directory: &Path) {
    let began = Instant::now();
    for number in 0.. {
        let (path, later) = (directory.join(format!("other{number}")), directory.join("later"));
        fs::write(&path, [9; 3000]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), [9; 3000]);
        fs::rename(&path, &later).unwrap();
        fs::hard_link(&later, &path).unwrap();
        fs::remove_file(&later).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        for waiting in 0..WAITING {
            assert_eq!(fs::metadata(directory.join(format!("{waiting}"))).unwrap().len(), 5000);
        }
        assert!(fs::read_dir(directory).unwrap().count() > WAITING);
        if began.elapsed() > Duration::from_secs(8) {
            println!("{number} rounds beside them");
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_silent_device_holds_up_nobody_else() {
    if !require(&["root", "mke2fs", "e2fsck", "mount"]) {
        return;
    }
    let place = place(&["-t", "ext4", "-b", "4096"], "64M");
    let device = Arc::new(StallingDevice::new(FileDevice::open(&place.image).unwrap()));
    let options = ImageOptions::new().background(true).commit_interval(Duration::from_secs(1));
    let fs = options.open_device(Arc::clone(&device)).unwrap();
    let mounted = Mounted::over(fs, &place);
    let directory = &place.directory;
    let new = |number: usize| {
        let mut file = File::create_new(directory.join(format!("{number}"))).unwrap();
        file.write_all(&[5; 5000]).unwrap();
        file.sync_all().unwrap();
        file
    };
    let files: Vec<File> = (0..WAITING).map(new).collect();
    device.stop_answering();
    let sync = |file: File| {
        thread::spawn(move || {
            file.write_all_at(&[7; 5000], 0).unwrap();
            file.sync_all().unwrap();
        })
    };
    let waiting: Vec<_> = files.into_iter().map(sync).collect();
    wait_until("all wait", || device.waiting() >= WAITING);
    let (done, ended) = mpsc::channel();
    let beside = {
        let directory = directory.clone();
        thread::spawn(move || {
            others(&directory);
            done.send(()).unwrap();
        })
    };
    let went_on = ended.recv_timeout(Duration::from_secs(25));
    // The mount can still be asked for its report.
    let report = mounted.handle.report();
    device.answer();
    waiting.into_iter().for_each(|thread| thread.join().unwrap());
    beside.join().unwrap();
    assert!(went_on.is_ok(), "others were held up");
    assert!(report.contains("commits"), "{report}");
    for number in 0..WAITING {
        assert_eq!(fs::read(directory.join(format!("{number}"))).unwrap(), [7; 5000]);
    }
    mounted.unmount();
    e2fsck_clean(&place.image);
}
