//! Images as the kernel leaves them when it is interrupted in the middle of its work. An image is
//! loop-mounted, and several threads work on it. Then ext4 is shut down, or the mounted image is
//! copied ([`Stop`]).
//!
//! The load is drawn from one seed. How its threads interleave depends on the machine, so the same
//! seed makes the same kind of image, but not the same image. A test should therefore keep the
//! image when it fails.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, XattrFlags, fallocate, setxattr};

use crate::fill::pattern;
use crate::oracle::{LoopDevice, LoopMount, run};

/// How the kernel is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// ext4's shutdown ioctl while all threads work. What was not committed is lost.
    Cut,
    /// ext4's shutdown ioctl while all threads work. It commits the running transaction first.
    CutAfterCommit,
    /// The threads pause, the file system is synced, and the image is copied while it is mounted.
    Copy,
}

/// An image to be made dirty.
#[derive(Clone, Copy, Debug)]
pub struct CrashImage<'a> {
    /// The image file; it holds a clean file system.
    pub image: &'a Path,
    /// A clean external journal; `None` if the journal is inside the image, or if there is none.
    pub journal: Option<&'a Path>,
    /// Mount options.
    pub options: &'a str,
    /// Seed of the load.
    pub seed: u64,
    /// Operations until the stop.
    pub operations: u64,
    /// How to stop.
    pub stop: Stop,
    /// Whether files that are unlinked while they are open stay open, as orphans.
    pub orphans: bool,
}

/// Threads of the load.
const THREADS: u64 = 3;

/// After this time the kernel is interrupted even if the load has not done all its operations.
const PATIENCE: Duration = Duration::from_secs(60);

impl CrashImage<'_> {
    /// Mounts the image, runs the load, and interrupts the kernel. The dirty image replaces the
    /// clean one.
    ///
    /// # Panics
    /// When the kernel does not mount the image, or cannot be interrupted.
    pub fn make_dirty(&self) {
        let journal = self.journal.map(LoopDevice::new);
        let options = match &journal {
            Some(journal) => format!("journal_path={},{}", journal.path(), self.options),
            None => self.options.to_owned(),
        };
        let mount = LoopMount::new(self.image, &options).unwrap_or_else(|error| panic!("{self:?}: {error}"));
        let load =
            Load { done: AtomicU64::new(0), paused: AtomicBool::new(false), stopped: AtomicBool::new(false) };
        let copies = std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let mut worker = Worker::new(mount.path(), self, thread);
                let load = &load;
                scope.spawn(move || worker.run(load));
            }
            load.wait_for(self.operations);
            let copies = self.stop_kernel(&load, mount.path());
            load.stopped.store(true, Ordering::Relaxed);
            copies
        });
        drop(mount);
        drop(journal);
        for (copy, original) in copies {
            fs::rename(copy, original).expect("a copy takes the place of its original");
        }
    }

    /// Shuts ext4 down, or copies the image. Returns the copies that were made, each with the file
    /// that the copy must replace after the unmount.
    fn stop_kernel(&self, load: &Load, root: &Path) -> Vec<(PathBuf, PathBuf)> {
        match self.stop {
            Stop::Cut | Stop::CutAfterCommit => shutdown(root, self.stop),
            Stop::Copy => {
                load.paused.store(true, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(30));
                sync(root);
                return [Some(self.image), self.journal].into_iter().flatten().map(copy_aside).collect();
            }
        }
        Vec::new()
    }
}

fn copy_aside(file: &Path) -> (PathBuf, PathBuf) {
    let copy = file.with_extension("copy");
    fs::copy(file, &copy).expect("an image is copied");
    (copy, file.to_owned())
}

/// Commits what was done so far.
fn sync(root: &Path) {
    let root = File::open(root).expect("the root is opened");
    rustix::fs::syncfs(&root).expect("the file system is synced");
}

/// Shuts ext4 down with an ioctl. Does nothing for [`Stop::Copy`]. Perl makes the call, because
/// Rust has no safe interface for it.
///
/// # Panics
/// When the call fails.
pub fn shutdown(root: &Path, stop: Stop) {
    let flag = match stop {
        Stop::CutAfterCommit => "1",
        Stop::Cut => "2",
        Stop::Copy => return,
    };
    let script = "open F, '<', $ARGV[0] or die $!; my $f = pack('L', $ARGV[1]); \
                  defined ioctl(F, 0x8004587D, $f) or die $!;";
    let root = root.to_str().expect("mount points have UTF-8 names");
    let output = run("perl", &["-e", script, root, flag]);
    assert!(output.status.success(), "shutdown: {output:?}");
}

/// What the workers share with the thread that started them. Relaxed accesses are enough, because
/// they publish no other data.
struct Load {
    done: AtomicU64,
    paused: AtomicBool,
    stopped: AtomicBool,
}

impl Load {
    fn wait_for(&self, operations: u64) {
        let start = Instant::now();
        while self.done.load(Ordering::Relaxed) < operations && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// One kind of work in the load.
struct Part {
    /// The part is drawn with probability `weight` / (sum of all weights).
    weight: u64,
    /// The operations that it does, from `coverage::OPERATIONS`.
    operations: &'static [&'static str],
    work: fn(&mut Worker) -> std::io::Result<()>,
}

const fn part(
    weight: u64,
    operations: &'static [&'static str],
    work: fn(&mut Worker) -> std::io::Result<()>,
) -> Part {
    Part { weight, operations, work }
}

/// The whole load.
const LOAD: &[Part] = &[
    part(4, &["create", "write", "fsync"], Worker::write),
    part(3, &["append", "fsync", "fdatasync"], Worker::append),
    part(2, &["rename"], Worker::rename),
    part(2, &["unlink"], Worker::unlink),
    part(1, &["unlink open"], Worker::unlink_open),
    part(2, &["truncate", "allocate keep", "punch", "write", "fsync"], Worker::change_size),
    part(2, &["set xattr"], Worker::attribute),
    part(1, &["link"], Worker::link),
    part(1, &["mkdir", "create", "write", "unlink", "rmdir", "fsync"], Worker::subtree),
    part(1, &["symlink"], Worker::symlink),
    part(1, &["create"], Worker::many_names),
];

/// Names of the operations in the load.
pub fn operations() -> impl Iterator<Item = &'static str> {
    LOAD.iter().flat_map(|part| part.operations).copied()
}

/// The generator `SplitMix64`.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn length(&mut self, limit: u64) -> usize {
        usize::try_from(self.below(limit)).expect("small")
    }
}

struct Worker {
    draw: Draw,
    directory: PathBuf,
    shared: PathBuf,
    thread: u64,
    orphans: bool,
    /// Files that stay open after one of their names was removed. Those that have no other name are
    /// orphans after the stop.
    held: Vec<File>,
}

impl Worker {
    fn new(root: &Path, plan: &CrashImage<'_>, thread: u64) -> Self {
        let (directory, shared) = (root.join(format!("worker-{thread}")), root.join("shared"));
        for path in [&directory, &shared] {
            fs::create_dir_all(path).expect("a directory is made");
        }
        let (draw, orphans) = (Draw(plan.seed ^ (thread << 56)), plan.orphans);
        Self { draw, directory, shared, thread, orphans, held: Vec::new() }
    }

    /// Works until `load` is stopped. Errors are expected: a drawn name does not exist, space runs
    /// out, or ext4 is shut down.
    fn run(&mut self, load: &Load) {
        while !load.stopped.load(Ordering::Relaxed) {
            if load.paused.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            let _ = self.operation();
            load.done.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A name in the worker's own directory, or now and then in the shared one.
    fn name(&mut self) -> PathBuf {
        let directory = if self.draw.below(6) == 0 { &self.shared } else { &self.directory };
        let number = self.draw.below(40);
        let padding = if number.is_multiple_of(3) { "-with-a-longer-name".repeat(3) } else { String::new() };
        directory.join(format!("name-{number}{padding}"))
    }

    /// Fewer than `limit` bytes of content. Now and then each KiB begins with the journal's magic,
    /// which must be escaped if data is logged (`data=journal`).
    fn content(&mut self, limit: u64) -> Vec<u8> {
        let length = self.draw.length(limit);
        let mut bytes = pattern(self.draw.next(), length);
        if length >= 4 && self.draw.below(4) == 0 {
            for block in bytes.chunks_exact_mut(1024) {
                block[..4].copy_from_slice(&0xC03B_3998u32.to_be_bytes());
            }
        }
        bytes
    }

    fn operation(&mut self) -> std::io::Result<()> {
        let all: u64 = LOAD.iter().map(|part| part.weight).sum();
        let mut drawn = self.draw.below(all);
        let mut is_it = |part: &&Part| match drawn.checked_sub(part.weight) {
            Some(left) => {
                drawn = left;
                false
            }
            None => true,
        };
        LOAD.iter().find(&mut is_it).map_or(Ok(()), |part| (part.work)(self))
    }

    fn rename(&mut self) -> std::io::Result<()> {
        fs::rename(self.name(), self.name())
    }

    fn unlink(&mut self) -> std::io::Result<()> {
        fs::remove_file(self.name())
    }

    fn link(&mut self) -> std::io::Result<()> {
        fs::hard_link(self.name(), self.name())
    }

    fn symlink(&mut self) -> std::io::Result<()> {
        std::os::unix::fs::symlink("t".repeat(1 + self.draw.length(200)), self.name())
    }

    fn write(&mut self) -> std::io::Result<()> {
        let (path, content) = (self.name(), self.content(40_000));
        let mut file = File::create(path)?;
        file.write_all(&content)?;
        if self.draw.below(3) == 0 { file.sync_all() } else { Ok(()) }
    }

    fn append(&mut self) -> std::io::Result<()> {
        let (path, content) = (self.name(), self.content(9000));
        let mut file = File::options().append(true).open(path)?;
        file.write_all(&content)?;
        if self.draw.below(2) == 0 { file.sync_all() } else { file.sync_data() }
    }

    fn unlink_open(&mut self) -> std::io::Result<()> {
        let path = self.name();
        let mut file = File::open(&path)?;
        fs::remove_file(path)?;
        if !self.orphans {
            return Ok(());
        }
        file.read_exact(&mut [0])?;
        let slot = self.draw.length(8);
        if slot < self.held.len() {
            self.held[slot] = file;
        } else {
            self.held.push(file);
        }
        Ok(())
    }

    fn change_size(&mut self) -> std::io::Result<()> {
        let file = File::options().write(true).open(self.name())?;
        let (offset, length) = (self.draw.below(60_000), 1 + self.draw.below(30_000));
        match self.draw.below(4) {
            0 | 1 => file.set_len(offset)?,
            2 => fallocate(&file, FallocateFlags::KEEP_SIZE, offset, length)?,
            _ => fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, length)?,
        }
        file.write_all_at(b"after", offset / 2)?;
        if self.draw.below(3) == 0 { file.sync_all() } else { Ok(()) }
    }

    fn attribute(&mut self) -> std::io::Result<()> {
        let (path, value) = (self.name(), self.content(700));
        let name = if self.draw.below(2) == 0 { c"user.one" } else { c"user.two" };
        Ok(setxattr(&path, name, &value, XattrFlags::empty())?)
    }

    /// Makes a directory with files, or removes it again. The freed metadata blocks leave revoke
    /// records.
    fn subtree(&mut self) -> std::io::Result<()> {
        let path = self.directory.join(format!("subtree-{}", self.draw.below(3)));
        if path.exists() {
            return fs::remove_dir_all(path);
        }
        fs::create_dir(&path)?;
        for n in 0..60 {
            fs::write(path.join(format!("{n}-{}", "n".repeat(90))), pattern(n, 500))?;
        }
        sync_directory(&path)
    }

    /// Creates long names in the shared directory, enough to split its blocks.
    fn many_names(&mut self) -> std::io::Result<()> {
        let first = self.draw.below(1000);
        for n in first..first + 25 {
            let name = format!("thread-{}-{n}-{}", self.thread, "m".repeat(60));
            let _ = File::create_new(self.shared.join(name))?;
        }
        Ok(())
    }
}

fn sync_directory(path: &Path) -> std::io::Result<()> {
    File::open(path)?.sync_all()
}
