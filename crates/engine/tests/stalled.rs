//! When a device stops answering, only the operations that need it wait. All others go on.

#![allow(clippy::unwrap_used)]

use blockyard_device::{BlockDevice, MemoryDevice, StallingDevice};
use blockyard_disk::inode::FileType;
use blockyard_disk::{InodeNr, Timestamp};
use blockyard_engine::{Fallocate, FileSystem, NewInode, OpContext, OpenOptions, SetAttributes, mkfs};
use blockyard_testkit::wait_until;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How many threads call fsync, each on its own file. Half of them have data to write.
const WAITING: u32 = 40;
const ROOT: InodeNr = InodeNr::ROOT;

type Device = Arc<StallingDevice<MemoryDevice>>;

fn at(seconds: i64) -> OpContext {
    OpContext::root_at(Timestamp::from_seconds(1_700_000_000 + seconds))
}

fn fresh(options: OpenOptions) -> (Device, Arc<FileSystem>) {
    let memory = MemoryDevice::new(64 << 20);
    mkfs::format(&memory, &mkfs::Options::ext4().block_size(4096).identity(1, 1)).unwrap();
    let device = Arc::new(StallingDevice::new(memory));
    let shared: Arc<dyn BlockDevice> = Arc::<StallingDevice<_>>::clone(&device);
    (device, Arc::new(FileSystem::open(shared, options, &at(0)).unwrap()))
}

/// Makes a durable file. This loads the bitmaps of its group, so later operations need not read
/// them from the device.
fn known(fs: &FileSystem) -> InodeNr {
    let known = file(fs, "known");
    fs.write(&at(0), known, 0, &[5; 5000]).unwrap();
    fs.sync(&at(0)).unwrap();
    known
}

fn file(fs: &FileSystem, name: &str) -> InodeNr {
    let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
    fs.create(&at(0), ROOT, name.as_bytes(), &new).unwrap()
}

/// Writes to half of the files and changes the permissions of the others. Then makes the device
/// stop answering and starts threads. The first one writes directly to another, empty file. Each
/// further thread calls fsync on one of `files`: half of these threads wait for their data to be
/// written, and half for a commit.
fn waiting(device: &Device, fs: &Arc<FileSystem>, files: &[InodeNr]) -> Vec<JoinHandle<()>> {
    for (number, inode) in files.iter().enumerate() {
        if number % 2 == 0 {
            fs.write(&at(1), *inode, 0, &[7; 5000]).unwrap();
        } else {
            let times = SetAttributes { permissions: Some(0o600), ..SetAttributes::default() };
            fs.set_attributes(&at(1), *inode, &times).unwrap();
        }
    }
    let direct = file(fs, "direct");
    device.stop_answering();
    let mut threads = vec![{
        let fs = Arc::clone(fs);
        thread::spawn(move || assert_eq!(fs.write_direct(&at(1), direct, 0, &[3; 8192]).unwrap(), 8192))
    }];
    // The direct write waits before any thread commits.
    wait_until("the direct write waits", || device.waiting() == 1);
    let sync = |inode: &InodeNr| {
        let (fs, inode) = (Arc::clone(fs), *inode);
        thread::spawn(move || fs.fsync(&at(1), inode).unwrap())
    };
    threads.extend(files.iter().map(sync));
    threads
}

/// Performs operations that need nothing from the device, at a time when the running transaction is
/// old enough to be committed.
fn others(fs: &FileSystem, files: &[InodeNr], known: InodeNr) {
    let now = at(100);
    for (number, inode) in files.iter().enumerate() {
        let seen = fs.attributes(*inode).unwrap();
        assert_eq!(seen.size, if number % 2 == 0 { 5000 } else { 0 });
        assert_eq!(seen.sectors > 0, seen.size > 0, "{seen:?}");
        assert_eq!(fs.lookup(ROOT, format!("{number}").as_bytes()).unwrap(), *inode);
    }
    let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
    let directory = NewInode { kind: FileType::Directory, permissions: 0o755, device: None };
    for number in 0..50 {
        let (name, later) = (format!("other{number}"), format!("later{number}"));
        let inode = fs.create(&now, ROOT, name.as_bytes(), &new).unwrap();
        fs.write(&now, inode, 0, &[9; 3000]).unwrap();
        let mut bytes = [0; 3000];
        assert_eq!(fs.read(&now, inode, 0, &mut bytes).unwrap(), 3000);
        fs.fallocate(&now, inode, Fallocate::Allocate, 0, 20_000).unwrap();
        fs.link(&now, inode, ROOT, later.as_bytes()).unwrap();
        fs.unlink(&now, ROOT, name.as_bytes()).unwrap();
        fs.truncate(&now, inode, 1000).unwrap();
        fs.create(&now, ROOT, name.as_bytes(), &directory).unwrap();
        fs.rmdir(&now, ROOT, name.as_bytes()).unwrap();
    }
    // Only whole blocks are written: the rest of a partial block would have to be read.
    fs.write(&now, known, 0, &[9; 8192]).unwrap();
    assert!(fs.statistics().blocks_free > 0);
    // The only commit that has ended is that of the sync in the function `known`.
    assert_eq!(fs.commits(), 1);
}

fn trial(options: OpenOptions, someone_commits: bool) {
    let (device, fs) = fresh(options);
    let files: Vec<InodeNr> = (0..WAITING).map(|number| file(&fs, &format!("{number}"))).collect();
    let known = known(&fs);
    let mut threads = waiting(&device, &fs, &files);
    // These wait for the device: the threads with data to write, the direct writer, and the one
    // thread that commits for all the others.
    let asking = usize::try_from(WAITING / 2).unwrap() + 2;
    wait_until("all wait", || device.waiting() == asking);
    if someone_commits {
        let fs = Arc::clone(&fs);
        threads.push(thread::spawn(move || fs.commit_aged(&at(100)).unwrap()));
    }
    let (done, ended) = mpsc::channel();
    let beside = {
        let (fs, files) = (Arc::clone(&fs), files.clone());
        thread::spawn(move || {
            others(&fs, &files, known);
            done.send(()).unwrap();
        })
    };
    let went_on = ended.recv_timeout(Duration::from_secs(20));
    assert_eq!(device.waiting(), asking, "who waits for the device");
    device.answer();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    beside.join().unwrap();
    assert!(went_on.is_ok(), "others were held up");
    Arc::into_inner(fs).unwrap().close(&at(200)).unwrap();
    let report = blockyard_check::check(device.below(), &blockyard_check::Options::default()).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}

#[test]
fn operations_go_on_beside_a_commit_that_hangs() {
    trial(OpenOptions::default(), false);
}

#[test]
fn operations_go_on_beside_a_timer_that_waits_for_such_a_commit() {
    trial(OpenOptions { has_timer: true, ..OpenOptions::default() }, true);
}

/// With `has_timer`, operations leave an old transaction to the timer, even if the timer has not
/// committed it yet.
#[test]
fn where_a_timer_commits_no_operation_does() {
    let (device, fs) = fresh(OpenOptions { has_timer: true, ..OpenOptions::default() });
    let known = known(&fs);
    device.stop_answering();
    let (done, ended) = mpsc::channel();
    let beside = {
        let fs = Arc::clone(&fs);
        thread::spawn(move || {
            others(&fs, &[], known);
            done.send(()).unwrap();
        })
    };
    let went_on = ended.recv_timeout(Duration::from_secs(20));
    device.answer();
    beside.join().unwrap();
    assert!(went_on.is_ok(), "an operation waited for the device");
    fs.commit_aged(&at(101)).unwrap();
    assert_eq!(fs.commits(), 2);
    Arc::into_inner(fs).unwrap().close(&at(200)).unwrap();
}
