//! A device that fails at the n-th read or write, or at all writes from the n-th on: nothing
//! panics, no result is wrong, and the image can be repaired.
//!
//! A failed read must not make the instance read-only, and if the image could be closed, it is
//! clean. After a failed write, e2fsck can repair the image. If the superblock is not torn, e2fsck
//! only has to recover the journal, and our recovery shows every file that an fsync made durable
//! and no operation touched since.

#![allow(clippy::as_conversions, clippy::unwrap_used)]

#[path = "support/image.rs"]
mod support;

use blockyard_device::{BlockDevice, Effect, Fault, FaultyDevice, MemoryDevice, Operation, When};
use blockyard_disk::InodeNr;
use blockyard_disk::inode::FileType;
use blockyard_engine::mkfs;
use blockyard_engine::{Error, Fallocate, FileSystem, OpenOptions, RenameMode, Result, Watched, XattrMode};
use blockyard_testkit::repair::repair;
use blockyard_testkit::{coverage, e2fsck_clean, full_matrix, require, seed};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::sync::Arc;
use support::{context, new, regular};

/// How many operations a run has.
fn operations() -> u32 {
    if full_matrix() { 2_000 } else { 400 }
}

/// Alignment of collapse and insert range, in bytes.
const UNIT: u64 = 1024;

type Faulty = FaultyDevice<MemoryDevice>;

fn little_memory() -> OpenOptions {
    OpenOptions { cache_bytes: 64 << 10, dirty_data_bytes: 1 << 20, inodes_max: 64, ..OpenOptions::default() }
}

/// An image with files of several extents in its root, so that there is something to read.
fn image() -> MemoryDevice {
    let device = Arc::new(MemoryDevice::new(48 << 20));
    mkfs::format(&*device, &mkfs::Options::ext4().block_size(1024).identity(1, 1)).unwrap();
    let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
    let fs = FileSystem::open(shared, OpenOptions::default(), &context()).unwrap();
    for n in 0..30 {
        let inode = fs.create(&context(), InodeNr::ROOT, format!("old-{n}").as_bytes(), &regular()).unwrap();
        for piece in 0..12 {
            fs.write(&context(), inode, piece * 30_000, &[n as u8; 5000]).unwrap();
        }
    }
    fs.close(&context()).unwrap();
    device.duplicate()
}

/// A run of operations, and the expected inode and content of each file. Nothing is expected of a
/// file whose last operation failed.
struct Script<'a> {
    fs: &'a Watched,
    rng: ChaCha8Rng,
    known: BTreeMap<String, (InodeNr, Vec<u8>)>,
    /// Files that have not been touched since an fsync made them durable.
    durable: BTreeMap<String, Vec<u8>>,
    failures: u32,
}

impl Script<'_> {
    fn run(&mut self) {
        for step in 0..operations() {
            let name = format!("new-{}", self.rng.random_range(0..25));
            self.durable.remove(&name);
            let Some((inode, content)) = self.known.remove(&name) else {
                match self.fs.create(&context(), InodeNr::ROOT, name.as_bytes(), &regular()) {
                    Ok(inode) => drop(self.known.insert(name, (inode, Vec::new()))),
                    Err(_) => self.failures += 1,
                }
                continue;
            };
            match self.change(inode, content, &name, step) {
                Ok(Some(content)) => drop(self.known.insert(name, (inode, content))),
                Ok(None) => {}
                Err(_) => self.failures += 1,
            }
        }
    }

    /// One operation on a file. Returns the file's content afterwards, or `None` if the file is
    /// gone.
    fn change(
        &mut self,
        inode: InodeNr,
        mut content: Vec<u8>,
        name: &str,
        step: u32,
    ) -> Result<Option<Vec<u8>>> {
        let ctx = context();
        let at = self.rng.random_range(0..150_000u64);
        let len = self.rng.random_range(1..20_000u64);
        match self.rng.random_range(0..16) {
            choice @ (0..=5 | 9..=12) => {
                self.change_content(choice, inode, &mut content, (at, len), step as u8)?;
            }
            6 => {
                self.fs.unlink(&ctx, InodeNr::ROOT, name.as_bytes())?;
                return Ok(None);
            }
            7 => {
                self.fs.fsync(&ctx, inode)?;
                self.durable.insert(name.to_owned(), content.clone());
            }
            8 => self.read_old(step % 30)?,
            13 => {
                let value = vec![step as u8; 1 + len as usize % 700];
                self.fs.set_xattr(&ctx, inode, b"user.some", &value, XattrMode::Set)?;
                assert_eq!(self.fs.xattr(inode, b"user.some")?, value);
            }
            14 => self.remove_or_visit_directory(&format!("dir-{}", step % 7), name)?,
            _ => {
                let mut read = vec![0; content.len()];
                assert_eq!(self.fs.read(&ctx, inode, 0, &mut read)?, content.len());
                assert!(read == content, "{name} reads something else");
            }
        }
        Ok(Some(content))
    }

    /// One operation on a file's content, applied to `content` too.
    fn change_content(
        &self,
        choice: u32,
        inode: InodeNr,
        content: &mut Vec<u8>,
        (at, len): (u64, u64),
        byte: u8,
    ) -> Result<()> {
        let fallocate = |what, at, len| self.fs.fallocate(&context(), inode, what, at, len);
        match choice {
            0..=3 => {
                self.fs.write(&context(), inode, at, &vec![byte; len as usize])?;
                overwrite(content, at, len, byte);
            }
            4 => {
                self.fs.truncate(&context(), inode, at)?;
                content.resize(at as usize, 0);
            }
            5 => {
                fallocate(Fallocate::PunchHole, at, len)?;
                let end = (at + len).min(content.len() as u64);
                if at < end {
                    overwrite(content, at, end - at, 0);
                }
            }
            9 => {
                fallocate(Fallocate::ZeroRange, at, len)?;
                overwrite(content, at, len, 0);
            }
            10 => fallocate(Fallocate::AllocateKeepSize, at, len)?,
            11 => {
                let (at, len) = (at / UNIT * UNIT, len.next_multiple_of(UNIT));
                if at + len < content.len() as u64 {
                    fallocate(Fallocate::CollapseRange, at, len)?;
                    content.drain(at as usize..(at + len) as usize);
                }
            }
            _ => {
                let (at, len) = (at / UNIT * UNIT, len.next_multiple_of(UNIT));
                if at < content.len() as u64 {
                    fallocate(Fallocate::InsertRange, at, len)?;
                    content.splice(at as usize..at as usize, std::iter::repeat_n(0, len as usize));
                }
            }
        }
        Ok(())
    }

    fn read_old(&self, n: u32) -> Result<()> {
        let old = self.fs.lookup(InodeNr::ROOT, format!("old-{n}").as_bytes())?;
        let mut read = [0; 5000];
        self.fs.read(&context(), old, 30_000, &mut read)?;
        assert!(read.iter().all(|&byte| byte == n as u8), "an old file reads something else");
        Ok(())
    }

    /// Removes a directory, or creates it and moves the file `name` into it and out again.
    fn remove_or_visit_directory(&self, dir: &str, name: &str) -> Result<()> {
        let ctx = context();
        match self.fs.lookup(InodeNr::ROOT, dir.as_bytes()) {
            Ok(_) => self.fs.rmdir(&ctx, InodeNr::ROOT, dir.as_bytes()),
            Err(Error::NotFound) => {
                let new = new(FileType::Directory);
                let dir = self.fs.create(&ctx, InodeNr::ROOT, dir.as_bytes(), &new)?;
                let (outside, inside) = ((InodeNr::ROOT, name.as_bytes()), (dir, &b"in"[..]));
                self.fs.rename(&ctx, outside, inside, RenameMode::Replace)?;
                self.fs.rename(&ctx, inside, outside, RenameMode::Replace)
            }
            Err(other) => Err(other),
        }
    }
}

/// What a write does to the content of a file.
fn overwrite(content: &mut Vec<u8>, at: u64, len: u64, byte: u8) {
    let (start, end) = (at as usize, (at + len) as usize);
    content.resize(content.len().max(end), 0);
    content[start..end].fill(byte);
}

/// What a run left.
struct Left {
    device: Arc<Faulty>,
    closed: bool,
    failed: bool,
    durable: BTreeMap<String, Vec<u8>>,
}

/// Runs the script on a copy of the image, with a fault if one is given.
fn trial(image: &MemoryDevice, fault: Option<Fault>) -> Left {
    let device = Arc::new(FaultyDevice::new(image.duplicate()));
    let shared: Arc<dyn BlockDevice> = Arc::<Faulty>::clone(&device);
    if let Some(fault) = fault {
        device.add(fault);
    }
    let Ok(fs) = FileSystem::open(shared, little_memory(), &context()) else {
        return Left { device, closed: false, failed: false, durable: BTreeMap::new() };
    };
    let fs = Watched::new(fs);
    let rng = ChaCha8Rng::seed_from_u64(4242);
    let mut script = Script { fs: &fs, rng, known: BTreeMap::new(), durable: BTreeMap::new(), failures: 0 };
    script.run();
    let (failed, durable) = (fs.has_failed(), script.durable);
    if fault.is_none() {
        coverage::assert_done("oracle_faults", &["1k"], fs.done());
    }
    let closed = fs.into_inner().close(&context()).is_ok();
    Left { device, closed, failed, durable }
}

/// Recovers the image with our code, in memory: every durable file must be there. The image is
/// opened read-only, because the engine refuses to write to an image that is marked as having
/// errors.
fn recover(left: &Left, nth: u64) {
    let device: Arc<dyn BlockDevice> = Arc::new(left.device.below().duplicate());
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let fs = FileSystem::open(device, options, &context()).unwrap();
    for (name, content) in &left.durable {
        let inode = fs.lookup(InodeNr::ROOT, name.as_bytes()).unwrap_or_else(|error| {
            panic!("write {nth}: {name} was durable: {error}");
        });
        let mut found = vec![0; content.len()];
        assert_eq!(fs.read(&context(), inode, 0, &mut found).unwrap(), content.len(), "write {nth}: {name}");
        assert!(found == *content, "write {nth}: {name} reads something else");
        assert_eq!(fs.attributes(inode).unwrap().size, content.len() as u64, "write {nth}: {name}");
    }
}

/// Asserts that e2fsck can repair the image. Unless the superblock is torn, e2fsck must repair only
/// what any recovery repairs.
fn mend(device: &Faulty, nth: u64) {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("image");
    device.below().save(&path).unwrap();
    let is_whole = is_whole(device);
    let repair = repair(&path, None);
    assert!(matches!(repair.exit, Some(0 | 1)), "write {nth}: {repair:?}");
    assert!(!is_whole || repair.is_recovery_only(), "write {nth}: {repair:?}");
    e2fsck_clean(&path);
}

/// Whether the primary superblock is valid. After a torn write it is not, and only a repair with a
/// backup superblock helps.
fn is_whole(device: &Faulty) -> bool {
    let mut bytes = [0; 1024];
    device.below().read_at(1024, &mut bytes).unwrap();
    blockyard_disk::superblock::Superblock::parse(&bytes).is_ok()
}

fn clean(device: &Faulty) {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("image");
    device.below().save(&path).unwrap();
    e2fsck_clean(&path);
}

/// Which of `total` calls to fail: all of them in a full run, otherwise a seeded sample of 8. With
/// `FAULTS=n`, a sample of `n` in either case.
fn sample(total: u64, rng: &mut ChaCha8Rng) -> Vec<u64> {
    let count: Option<usize> = std::env::var("FAULTS").ok().and_then(|count| count.parse().ok());
    match count {
        None if full_matrix() => (1..=total).collect(),
        count => (0..count.unwrap_or(8)).map(|_| rng.random_range(1..=total)).collect(),
    }
}

#[test]
fn failed_reads_harm_nothing() {
    let image = image();
    let Left { device, closed, durable, .. } = trial(&image, None);
    assert!(closed && !durable.is_empty());
    let total = device.counts().reads;
    println!("{total} reads");
    assert!(total > 50, "only {total} reads: the script does not test much");
    let mut rng = ChaCha8Rng::seed_from_u64(seed(5));
    for nth in sample(total, &mut rng) {
        let fault = Fault { operation: Operation::Read, when: When::Nth(nth), effect: Effect::Nothing };
        let Left { device, closed, failed, .. } = trial(&image, Some(fault));
        assert!(!failed, "read {nth}: the instance turned read-only: something was half changed");
        if closed && require(&["e2fsck"]) {
            clean(&device);
        }
    }
}

#[test]
fn failed_writes_can_be_mended() {
    let image = image();
    let total = trial(&image, None).device.counts().writes;
    println!("{total} writes");
    let mut rng = ChaCha8Rng::seed_from_u64(seed(6));
    for nth in sample(total, &mut rng) {
        let when = if nth % 2 == 0 { When::Nth(nth) } else { When::From(nth) };
        let fault = Fault { operation: Operation::Write, when, effect: Effect::Short(512) };
        let left = trial(&image, Some(fault));
        assert!(
            !(left.closed && left.failed),
            "write {nth}: an instance that failed cannot be closed cleanly"
        );
        if require(&["e2fsck"]) {
            mend(&left.device, nth);
        }
        if is_whole(&left.device) {
            recover(&left, nth);
        }
    }
}

/// docs/testing.md must list the image.
#[test]
fn the_image_is_told() {
    coverage::assert_images("oracle_faults", [("1k", UNIT)]);
}
