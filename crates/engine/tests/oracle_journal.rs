//! The journal at work: operations that change a whole file, shared commits, what fdatasync
//! commits, commits by age, and a journal on a separate device.

#![allow(clippy::as_conversions, clippy::unwrap_used)]

#[path = "support/image.rs"]
mod support;

use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_disk::{InodeNr, Timestamp};
use blockyard_engine::mkfs;
use blockyard_engine::{Error, Fallocate, FileSystem, OpContext, OpenOptions, Refusal};
use blockyard_sync::CpuSlot;
use blockyard_testkit::repair::repair;
use blockyard_testkit::{LoopMount, e2fsck_clean, mke2fs, require, run};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use support::{context, regular};

const SLOW_FLUSH: Duration = Duration::from_millis(2);

fn clean(device: &MemoryDevice) {
    let report = blockyard_check::check(device, &blockyard_check::Options::default()).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
    if require(&["e2fsck"]) {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("image");
        device.save(&path).unwrap();
        e2fsck_clean(&path);
    }
}

/// Punches, writes, zeroes, shifts and truncates a file with up to 16,000 extents.
#[test]
fn a_file_of_many_extents_changes_over_its_whole_length() {
    const BLOCKS: u64 = 16_000;
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let make = mkfs::Options::ext4().block_size(1024).identity(1, 1);
    mkfs::format(&*device, &make).unwrap();
    let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
    let fs = FileSystem::open(shared, OpenOptions::default(), &context()).unwrap();
    let ctx = context();
    let file = fs.create(&ctx, InodeNr::ROOT, b"file", &regular()).unwrap();
    fs.fallocate(&ctx, file, Fallocate::Allocate, 0, BLOCKS << 10).unwrap();
    for block in (0..BLOCKS).step_by(2) {
        fs.fallocate(&ctx, file, Fallocate::PunchHole, block << 10, 1024).unwrap();
    }
    fs.write(&ctx, file, 0, &vec![7; (BLOCKS as usize) << 10]).unwrap();
    fs.fsync(&ctx, file).unwrap();
    // Alternately written and unwritten: one extent per block.
    for block in (0..BLOCKS).step_by(2) {
        fs.fallocate(&ctx, file, Fallocate::ZeroRange, block << 10, 1024).unwrap();
    }
    fs.fallocate(&ctx, file, Fallocate::InsertRange, 10 << 10, 100 << 10).unwrap();
    fs.fallocate(&ctx, file, Fallocate::CollapseRange, 10 << 10, 100 << 10).unwrap();
    let mut bytes = vec![0; (BLOCKS as usize) << 10];
    fs.read(&ctx, file, 0, &mut bytes).unwrap();
    let expected = |block: usize| if block.is_multiple_of(2) { 0 } else { 7 };
    assert!(bytes.chunks(1024).enumerate().all(|(n, block)| block.iter().all(|&byte| byte == expected(n))));
    fs.fallocate(&ctx, file, Fallocate::ZeroRange, 1 << 10, (BLOCKS - 2) << 10).unwrap();
    for block in (0..BLOCKS).step_by(2) {
        fs.write(&ctx, file, block << 10, &[9; 1024]).unwrap();
    }
    fs.truncate(&ctx, file, 5000).unwrap();
    assert!(!fs.has_failed());
    fs.unlink(&ctx, InodeNr::ROOT, b"file").unwrap();
    fs.close(&ctx).unwrap();
    clean(&device);
}

#[test]
fn a_shift_that_no_transaction_holds_is_refused_before_it_begins() {
    let device = Arc::new(MemoryDevice::new(256 << 20));
    let make = mkfs::Options::ext4().block_size(1024).features("^flex_bg").identity(1, 1);
    mkfs::format(&*device, &make).unwrap();
    let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
    // With so small a cache, a transaction may change at most 256 blocks. That many leaves hold
    // about 21,000 extents, and the file has 30,000.
    let options = OpenOptions { cache_bytes: 64 << 10, ..OpenOptions::default() };
    let fs = FileSystem::open(shared, options, &context()).unwrap();
    let ctx = context();
    let file = fs.create(&ctx, InodeNr::ROOT, b"file", &regular()).unwrap();
    fs.fallocate(&ctx, file, Fallocate::Allocate, 0, 60_000 << 10).unwrap();
    for block in (0..60_000).step_by(2) {
        fs.fallocate(&ctx, file, Fallocate::PunchHole, block << 10, 1024).unwrap();
    }
    let refused = fs.fallocate(&ctx, file, Fallocate::InsertRange, 0, 1024).unwrap_err();
    assert!(matches!(refused, Error::NotSupported(_)), "{refused}");
    fs.fallocate(&ctx, file, Fallocate::InsertRange, 59_000 << 10, 1024).unwrap();
    fs.close(&ctx).unwrap();
    clean(&device);
}

/// A device whose flush takes time.
struct Slow(MemoryDevice);

impl BlockDevice for Slow {
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> blockyard_device::Result<()> {
        self.0.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> blockyard_device::Result<()> {
        self.0.write_at(offset, data)
    }
    fn write_zeroes(&self, offset: u64, length: u64) -> blockyard_device::Result<()> {
        self.0.write_zeroes(offset, length)
    }
    fn discard(&self, offset: u64, length: u64) -> blockyard_device::Result<()> {
        self.0.discard(offset, length)
    }
    fn flush(&self) -> blockyard_device::Result<()> {
        std::thread::sleep(SLOW_FLUSH);
        Ok(())
    }
}

#[test]
fn threads_that_sync_share_commits() {
    const THREADS: u32 = 32;
    const FILES: u32 = 8;
    let device = Arc::new(Slow(MemoryDevice::new(64 << 20)));
    mkfs::format(&*device, &mkfs::Options::ext4().block_size(4096).identity(1, 1)).unwrap();
    let shared: Arc<dyn BlockDevice> = Arc::<Slow>::clone(&device);
    let options = OpenOptions { cpus: THREADS, ..OpenOptions::default() };
    let fs = FileSystem::open(shared, options, &context()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let fs = &fs;
            scope.spawn(move || {
                let ctx = context().on(CpuSlot::new(thread));
                for n in 0..FILES {
                    let name = format!("{thread}-{n}");
                    let file = fs.create(&ctx, InodeNr::ROOT, name.as_bytes(), &regular()).unwrap();
                    fs.write(&ctx, file, 0, &[1; 4096]).unwrap();
                    fs.fsync(&ctx, file).unwrap();
                }
            });
        }
    });
    let commits = fs.commits();
    assert!(commits * 4 <= u64::from(THREADS * FILES), "{commits} commits for {} fsyncs", THREADS * FILES);
    // Nothing has changed since, so nothing is committed.
    let file = fs.lookup(InodeNr::ROOT, b"0-0").unwrap();
    fs.fsync(&context(), file).unwrap();
    fs.sync(&context()).unwrap();
    assert_eq!(fs.commits(), commits);
    fs.close(&context()).unwrap();
}

#[test]
fn fdatasync_leaves_times_behind() {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    mkfs::format(&*device, &mkfs::Options::ext4().block_size(1024).identity(1, 1)).unwrap();
    let shared: Arc<dyn BlockDevice> = device;
    let ctx = context();
    let fs = FileSystem::open(shared, OpenOptions::default(), &ctx).unwrap();
    let file = fs.create(&ctx, InodeNr::ROOT, b"file", &regular()).unwrap();
    fs.write(&ctx, file, 0, &[1; 3000]).unwrap();
    fs.fdatasync(&ctx, file).unwrap();
    let commits = fs.commits();
    fs.write(&ctx, file, 0, &[2; 3000]).unwrap();
    fs.fsync(&ctx, file).unwrap();
    assert_eq!(fs.commits(), commits, "not even times changed");
    let ctx = OpContext::root_at(Timestamp::from_seconds(ctx.now.seconds + 1));
    fs.write(&ctx, file, 0, &[2; 3000]).unwrap();
    fs.fdatasync(&ctx, file).unwrap();
    assert_eq!(fs.commits(), commits, "only times changed");
    fs.fsync(&ctx, file).unwrap();
    assert_eq!(fs.commits(), commits + 1);
    fs.write(&ctx, file, 3000, &[2; 10]).unwrap();
    fs.fdatasync(&ctx, file).unwrap();
    assert_eq!(fs.commits(), commits + 2, "the size changed");
}

/// An operation commits if by the callers' clock five seconds have passed since the last commit, or
/// since the file system was opened.
#[test]
fn age_commits() {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    mkfs::format(&*device, &mkfs::Options::ext4().block_size(1024).identity(1, 1)).unwrap();
    let shared: Arc<dyn BlockDevice> = device;
    let at = |seconds: i64| OpContext::root_at(Timestamp::from_seconds(1_700_000_000 + seconds));
    let fs = FileSystem::open(shared, OpenOptions::default(), &at(0)).unwrap();
    for (seconds, commits) in [(1, 0), (4, 0), (5, 1), (6, 1), (9, 1), (10, 2)] {
        let name = format!("file-{seconds}");
        fs.create(&at(seconds), InodeNr::ROOT, name.as_bytes(), &regular()).unwrap();
        assert_eq!(fs.commits(), commits, "after {seconds} seconds");
    }
}

/// A loop device, detached when dropped.
struct Attached(String);

impl Attached {
    fn new(image: &Path) -> Self {
        let output = run("losetup", &["--show", "-f", image.to_str().unwrap()]);
        assert!(output.status.success(), "losetup: {output:?}");
        Self(String::from_utf8(output.stdout).unwrap().trim().to_owned())
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        run("losetup", &["-d", &self.0]);
    }
}

#[test]
fn a_journal_on_its_own_device() {
    if !require(&["root", "e2fsck", "mke2fs"]) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let (image, log) = (scratch.path().join("image"), scratch.path().join("log"));
    mke2fs(&log, &["-O", "journal_dev", "-b", "1024"], "2048");
    {
        let attached = Attached::new(&log);
        let place = format!("device={}", attached.0);
        mke2fs(&image, &["-t", "ext4", "-b", "1024", "-J", &place], "32M");
    }
    let load = |path: &Path| Arc::new(MemoryDevice::load(path).unwrap());
    let (home, journal) = (load(&image), load(&log));
    let open = |home: &Arc<MemoryDevice>, journal: &Arc<MemoryDevice>| {
        let home: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(home);
        FileSystem::open_with_journal(
            home,
            Arc::<MemoryDevice>::clone(journal),
            OpenOptions::default(),
            &context(),
        )
        .unwrap()
    };
    let alone: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&home);
    let refused = FileSystem::open(alone, OpenOptions::default(), &context());
    assert!(matches!(refused, Err(Error::Refused(Refusal::OnlyReadable(_)))), "the journal was not given");
    let fs = open(&home, &journal);
    let file = fs.create(&context(), InodeNr::ROOT, b"file", &regular()).unwrap();
    fs.write(&context(), file, 0, &[5; 20_000]).unwrap();
    fs.fsync(&context(), file).unwrap();
    // The power fails here.
    let (cut_home, cut_journal) = (home.duplicate(), journal.duplicate());
    fs.close(&context()).unwrap();
    clean_with_log(&home, &journal, scratch.path());

    cut_home.save(&image).unwrap();
    cut_journal.save(&log).unwrap();
    let repair = repair(&image, Some(&log));
    assert!(repair.is_recovery_only(), "{repair:?}");
    let by_e2fsck = load(&image);
    let (ours, our_log) = (Arc::new(cut_home), Arc::new(cut_journal));
    let fs = open(&ours, &our_log);
    let file = fs.lookup(InodeNr::ROOT, b"file").unwrap();
    let mut bytes = [0; 20_000];
    assert_eq!(fs.read(&context(), file, 0, &mut bytes).unwrap(), 20_000);
    assert_eq!(bytes, [5; 20_000]);
    fs.close(&context()).unwrap();
    clean_with_log(&ours, &our_log, scratch.path());
    by_e2fsck.save(&image).unwrap();
    let attached = Attached::new(&log);
    let mount = LoopMount::new(&image, &format!("journal_path={}", attached.0)).unwrap();
    assert_eq!(std::fs::read(mount.path().join("file")).unwrap(), [5; 20_000]);
}

fn clean_with_log(home: &MemoryDevice, log: &MemoryDevice, scratch: &Path) {
    let (image, journal) = (scratch.join("home"), scratch.join("journal"));
    home.save(&image).unwrap();
    log.save(&journal).unwrap();
    let output = run("e2fsck", &["-fn", "-j", journal.to_str().unwrap(), image.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stdout));
}
