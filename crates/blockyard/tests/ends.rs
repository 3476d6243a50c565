//! How an instance ends: it is closed or dropped, with or without open files, or an operation
//! panics. Also: who may open the image while an instance is open.

#![allow(clippy::unwrap_used)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use blockyard::device::{BlockDevice, DeviceError, DeviceId, MemoryDevice};
use blockyard::{FileSystem, ImageOptions, check, mkfs};

fn make(bytes: u64) -> Arc<MemoryDevice> {
    let memory = Arc::new(MemoryDevice::new(bytes));
    ImageOptions::new().make_on(Arc::clone(&memory)).unwrap().close().unwrap();
    memory
}

fn open(device: &Arc<MemoryDevice>) -> FileSystem {
    ImageOptions::new().open_device(Arc::clone(device)).unwrap()
}

fn assert_clean(device: &MemoryDevice) {
    let report = check::check(device, &check::Options::default()).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}

/// If the size or a feature is invalid, an existing host file keeps its content, and no new file is
/// made. An invalid size once emptied the file before it was refused.
#[test]
fn a_file_system_that_cannot_be_made_costs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (folder.path().join("old"), folder.path().join("new"));
    std::fs::write(&old, "somebody's content").unwrap();
    for image in [&old, &new] {
        let too_small = FileSystem::make_image(image, 1000).unwrap_err();
        assert_eq!(std::io::Error::from(too_small).kind(), std::io::ErrorKind::InvalidInput);
        let nonsense = ImageOptions::new().mkfs(mkfs::Options::ext4().features("no_such_feature"));
        assert!(nonsense.make(image, 64 << 20).is_err());
    }
    assert_eq!(std::fs::read_to_string(&old).unwrap(), "somebody's content");
    assert!(!new.exists());
}

/// Unsynced data survives a drop of the instance, and a check finds the image clean.
#[test]
fn a_dropped_instance_loses_nothing() {
    let memory = make(32 << 20);
    open(&memory).write("file", vec![7; 100_000]).unwrap();
    assert_clean(&memory);
    let fs = open(&memory);
    assert_eq!(fs.read("file").unwrap(), vec![7; 100_000]);
    // An open file keeps the image open, even after the `FileSystem` is dropped.
    let file = fs.create("late").unwrap();
    drop(fs);
    assert!(ImageOptions::new().open_device(Arc::clone(&memory)).unwrap_err().is_busy());
    file.write_at(b"late", 0).unwrap();
    drop(file);
    assert_clean(&memory);
    assert_eq!(open(&memory).read("late").unwrap(), b"late");
}

/// If a panic in the calling program drops an instance, its unsynced data is still written.
#[test]
fn a_panic_outside_loses_nothing() {
    let memory = make(32 << 20);
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let fs = open(&memory);
        fs.write("file", "text").unwrap();
        panic!("the program's own");
    }));
    assert!(ended.is_err());
    assert_clean(&memory);
    assert_eq!(open(&memory).read("file").unwrap(), b"text");
}

/// Closing ends the open files, and lets others open the image at once.
#[test]
fn close_ends_open_files() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let fs = FileSystem::make_image(&image, 32 << 20).unwrap();
    let other = fs.clone();
    let file = fs.create("file").unwrap();
    file.write_at(b"text", 0).unwrap();
    let unlinked = fs.create("gone").unwrap();
    fs.remove_file("gone").unwrap();
    fs.close().unwrap();
    let fs = FileSystem::open_image(&image).unwrap();
    assert_eq!(fs.read("file").unwrap(), b"text");
    for error in [
        file.write_at(b"x", 0).unwrap_err(),
        file.sync_all().unwrap_err(),
        other.read("file").unwrap_err(),
        other.clone().close().unwrap_err(),
    ] {
        assert!(error.to_string().contains("closed"), "{error}");
    }
    drop((file, unlinked, other));
    fs.close().unwrap();
    let device = blockyard::device::FileDevice::open_read_only(&image).unwrap();
    assert!(check::check(&device, &check::Options::default()).unwrap().is_clean());
}

/// Threads write to an instance while another thread closes it. Each operation either succeeds or
/// is refused, and the image holds the effect of each that succeeded.
#[test]
fn operations_beside_a_close_are_done_or_refused() {
    for _ in 0..20 {
        let memory = make(32 << 20);
        let fs = open(&memory);
        let done: Vec<usize> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..4)
                .map(|thread| {
                    let fs = fs.clone();
                    scope.spawn(move || {
                        (0..10_000).take_while(|n| fs.write(format!("{thread}-{n}"), "text").is_ok()).count()
                    })
                })
                .collect();
            let other = fs.clone();
            while other.exists("3-1").is_ok_and(|is| !is) {
                std::thread::yield_now();
            }
            other.close().unwrap();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        assert_clean(&memory);
        let fs = open(&memory);
        for (thread, count) in done.iter().enumerate() {
            for n in 0..*count {
                assert_eq!(fs.read(format!("{thread}-{n}")).unwrap(), b"text", "{thread}-{n} of {count}");
            }
        }
    }
}

/// A device in which one read panics: the n-th after `reads` was set to n.
struct Trap {
    below: Arc<MemoryDevice>,
    /// The number of reads until one panics, including that one. At 0 no read panics.
    reads: AtomicU64,
    /// How long that read waits before it panics.
    delay: Duration,
}

impl BlockDevice for Trap {
    fn size(&self) -> u64 {
        self.below.size()
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        if self.reads.load(Ordering::SeqCst) > 0 && self.reads.fetch_sub(1, Ordering::SeqCst) == 1 {
            std::thread::sleep(self.delay);
            panic!("the trap");
        }
        self.below.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.below.write_at(offset, data)
    }
    fn write_zeroes(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.below.write_zeroes(offset, length)
    }
    fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.below.discard(offset, length)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.below.flush()
    }
    fn identity(&self) -> DeviceId {
        self.below.identity()
    }
}

/// An image with directories, and a [`Trap`] over it. The image was closed, so that none of its
/// directories is cached, and operations on them must read.
fn trapped(delay: Duration) -> (Arc<MemoryDevice>, Arc<Trap>) {
    let memory = make(64 << 20);
    let fs = open(&memory);
    for number in 0..40 {
        fs.create_dir(format!("dir-{number}")).unwrap();
        for file in 0..30 {
            fs.write(format!("dir-{number}/{file}"), vec![1; 5000]).unwrap();
        }
    }
    fs.close().unwrap();
    let trap = Arc::new(Trap { below: Arc::clone(&memory), reads: AtomicU64::new(0), delay });
    (memory, trap)
}

/// At whichever read an operation panics, the instance becomes read-only, and the image then holds
/// what the last sync left.
#[test]
fn a_panic_inside_an_operation_leaves_what_was_committed() {
    let mut panics = 0;
    for nth in 1..=12 {
        let (memory, trap) = trapped(Duration::ZERO);
        let fs = ImageOptions::new().open_device(Arc::clone(&trap)).unwrap();
        fs.write("kept", "kept").unwrap();
        fs.sync().unwrap();
        fs.write("lost", "lost").unwrap();
        trap.reads.store(nth, Ordering::SeqCst);
        let ended = catch_unwind(AssertUnwindSafe(|| {
            fs.remove_dir_all("dir-7").unwrap();
            fs.create_dir_all("dir-9/a/b/c").unwrap();
        }));
        trap.reads.store(0, Ordering::SeqCst);
        if ended.is_ok() {
            continue;
        }
        panics += 1;
        assert!(fs.is_read_only().unwrap(), "{nth}");
        assert_eq!(fs.write("later", "x").unwrap_err().errno(), 30);
        assert!(fs.sync().is_err());
        assert_eq!(fs.read("kept").unwrap(), b"kept");
        assert!(fs.close().is_err());
        // The image holds what was synced, and nothing later.
        let found = ImageOptions::new().read_only(true).open_device(Arc::clone(&memory)).unwrap();
        assert_eq!(found.read("kept").unwrap(), b"kept");
        assert!(!found.exists("lost").unwrap() && !found.exists("later").unwrap());
        assert_eq!(found.read_dir("dir-7").unwrap().count(), 30);
        drop(found);
        let overlay = blockyard::device::OverlayDevice::new(memory);
        let report = check::check(&overlay, &check::Options::default()).unwrap();
        assert!(report.findings.iter().all(|finding| !finding.is_error()), "{nth}: {:?}", report.findings);
    }
    assert!(panics >= 3, "only {panics} of the trials panicked");
}

/// A sync runs beside an operation that panics. If the sync fails, the image holds only what was
/// synced before. In no trial does a check find an error.
#[test]
fn a_commit_that_waits_for_an_operation_that_panics_writes_nothing() {
    let mut panics = 0;
    for nth in 1..=8 {
        let (memory, trap) = trapped(Duration::from_millis(30));
        let fs = ImageOptions::new().open_device(Arc::clone(&trap)).unwrap();
        fs.write("kept", "kept").unwrap();
        fs.sync().unwrap();
        fs.write("lost", "lost").unwrap();
        trap.reads.store(nth, Ordering::SeqCst);
        let (ended, synced) = std::thread::scope(|scope| {
            let operation = scope
                .spawn(|| catch_unwind(AssertUnwindSafe(|| fs.remove_dir_all("dir-7").unwrap())).is_err());
            let sync = scope.spawn(|| {
                // Wait until the operation has started.
                while trap.reads.load(Ordering::SeqCst) == nth {
                    std::thread::yield_now();
                }
                fs.sync()
            });
            (operation.join().unwrap(), sync.join().unwrap())
        });
        trap.reads.store(0, Ordering::SeqCst);
        panics += u64::from(ended);
        if ended && synced.is_err() {
            drop(fs);
            let found = ImageOptions::new().read_only(true).open_device(Arc::clone(&memory)).unwrap();
            assert!(!found.exists("lost").unwrap());
            assert_eq!(found.read_dir("dir-7").unwrap().count(), 30);
        }
        let report = check::check(&*memory, &check::Options::default()).unwrap();
        assert!(report.findings.iter().all(|finding| !finding.is_error()), "{nth}: {:?}", report.findings);
    }
    assert!(panics >= 2, "only {panics} of the trials panicked");
}

/// The background threads write old data without being asked, and end with the instance.
#[test]
fn the_thread_in_the_background_commits() {
    let memory = make(32 << 20);
    let fs = ImageOptions::new()
        .background(true)
        .commit_interval(Duration::from_secs(1))
        .write_back_age(Duration::from_secs(1))
        .open_device(Arc::clone(&memory))
        .unwrap();
    let before = fs.with_engine(|engine, _| Ok(engine.commits())).unwrap();
    fs.write("file", "text").unwrap();
    let is_there = || {
        let copy = Arc::new(memory.duplicate());
        // If the copy was made while the journal was being written, opening it may fail.
        let Ok(found) = ImageOptions::new().read_only(true).open_device(copy) else { return false };
        found.read("file").is_ok_and(|text| text == b"text")
    };
    // The data is written some time after the first second. The limit of 60 seconds allows for a
    // busy machine.
    let waited = (0..600).take_while(|_| {
        std::thread::sleep(Duration::from_millis(100));
        !is_there()
    });
    assert!(waited.count() < 600, "nothing was committed");
    assert!(fs.with_engine(|engine, _| Ok(engine.commits())).unwrap() > before);
    drop(fs);
    assert_eq!(Arc::strong_count(&memory), 1, "somebody holds the device");
    assert_clean(&memory);
}

/// When more than half of `dirty_data_bytes` is dirty, the write-back thread writes some of it back
/// before it is old.
#[test]
fn the_thread_in_the_background_writes_back_what_is_much() {
    let memory = make(64 << 20);
    let never = Duration::from_secs(1 << 30);
    let fs = ImageOptions::new()
        .background(true)
        .dirty_data_bytes(4 << 20)
        .write_back_age(never)
        .commit_interval(never)
        .open_device(memory)
        .unwrap();
    let files: Vec<_> = (0..30).map(|number| fs.create(format!("file-{number}")).unwrap()).collect();
    for file in &files {
        file.write_at(&[1; 100_000], 0).unwrap();
    }
    let is_placed = || files.iter().any(|file| file.extents().unwrap().iter().all(|extent| !extent.dirty));
    // The limit of 60 seconds allows for a busy machine.
    let waited = (0..600).take_while(|_| {
        std::thread::sleep(Duration::from_millis(100));
        !is_placed()
    });
    assert!(waited.count() < 600, "nothing was written back");
    fs.close().unwrap();
}

#[test]
fn readers_and_a_writer_exclude_each_other_unless_shared() {
    let memory = make(32 << 20);
    let writer = open(&memory);
    let read_only = || ImageOptions::new().read_only(true);
    for refused in [
        ImageOptions::new().open_device(Arc::clone(&memory)),
        read_only().open_device(Arc::clone(&memory)),
        ImageOptions::new().make_on(Arc::clone(&memory)),
    ] {
        let error = refused.unwrap_err();
        assert!(error.is_busy(), "{error}");
        assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::ResourceBusy);
    }
    writer.write("file", "text").unwrap();
    writer.sync().unwrap();
    let beside = read_only().shared(true).open_device(Arc::clone(&memory)).unwrap();
    assert_eq!(beside.read("file").unwrap(), b"text");
    writer.close().unwrap();
    drop(beside);
    let readers = [read_only(), read_only()].map(|options| options.open_device(Arc::clone(&memory)).unwrap());
    assert!(ImageOptions::new().open_device(Arc::clone(&memory)).unwrap_err().is_busy());
    drop(readers);
    open(&memory).close().unwrap();
}
