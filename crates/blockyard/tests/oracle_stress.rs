//! Sixteen threads create, open, rename, exchange, link, remove, list and read the same few files
//! by path, and use the files they opened. An open file never shows another file's content, no
//! inode or file descriptor is leaked, and e2fsck finds the image clean.
//!
//! `STEPS=n` sets the number of operations per thread; the default is 400. `SECONDS_LONG=n` runs
//! for n seconds instead, and `BLOCKYARD_FULL=1` for 600 seconds. `SEED` sets the seed.

#![allow(clippy::as_conversions, clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use blockyard::{File, FileSystem, ImageOptions, OpenOptions, RenameMode};
use blockyard_testkit::{e2fsck_clean, full_matrix, require, seed};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const THREADS: u64 = 16;
const DIRECTORIES: u32 = 4;
const NAMES: u32 = 6;
const BLOCK: u64 = 4096;

/// An open file, and the tag at the start of each of its blocks that is not a hole.
struct Open {
    file: File,
    tag: u64,
}

struct Stress<'a> {
    fs: &'a FileSystem,
    random: ChaCha8Rng,
    open: Vec<Open>,
    tags: &'a AtomicU64,
    /// Operations that succeeded.
    done: u64,
}

impl Stress<'_> {
    fn path(&mut self) -> String {
        format!("d{}/f{}", self.random.random_range(0..DIRECTORIES), self.random.random_range(0..NAMES))
    }

    /// Counts a success and returns its value. Returns `None` for an error that other threads can
    /// cause by creating, renaming or removing the same names. Panics at any other error.
    fn note<T>(&mut self, what: &str, result: blockyard::Result<T>) -> Option<T> {
        match result {
            Ok(value) => {
                self.done += 1;
                Some(value)
            }
            // ENOENT, EEXIST, ENOTEMPTY.
            Err(error) if [2, 17, 39].contains(&error.errno()) => None,
            Err(error) => panic!("{what}: {error} ({})", error.errno()),
        }
    }

    fn step(&mut self) {
        let (path, other) = (self.path(), self.path());
        match self.random.random_range(0..14) {
            0 | 1 => {
                let made = self.fs.create_new(&path);
                if let Some(file) = self.note("create", made) {
                    let tag = self.tags.fetch_add(1, Ordering::Relaxed);
                    file.write_at(&tag.to_le_bytes(), 0).unwrap();
                    self.open.push(Open { file, tag });
                }
            }
            2 | 3 => {
                let opened = OpenOptions::new().read(true).write(true).open(self.fs, &path);
                if let Some(file) = self.note("open", opened)
                    && let Some(tag) = tag_at(&file, 0)
                {
                    self.open.push(Open { file, tag });
                }
            }
            4 => {
                let renamed = self.fs.rename(&path, &other);
                self.note("rename", renamed);
            }
            5 => {
                let exchanged = self.fs.rename_with(&path, &other, RenameMode::Exchange);
                self.note("exchange", exchanged);
            }
            6 | 7 => {
                let removed = self.fs.remove_file(&path);
                self.note("remove", removed);
            }
            8 => {
                let linked = self.fs.hard_link(&path, &other);
                self.note("link", linked);
            }
            9 => {
                let directory = format!("d{}", self.random.random_range(0..DIRECTORIES));
                for entry in self.fs.read_dir(&directory).unwrap() {
                    let found = entry.unwrap().metadata();
                    self.note("metadata", found);
                }
            }
            10 | 11 => self.use_one(),
            12 => {
                if !self.open.is_empty() {
                    let at = self.random.random_range(0..self.open.len());
                    drop(self.open.swap_remove(at));
                }
            }
            _ => {
                let found = self.fs.read(&path);
                self.note("read", found);
            }
        }
        if self.open.len() > 8 {
            self.open.remove(0);
        }
    }

    /// Writes, reads, truncates, punches or syncs an open file, even if its names were removed.
    fn use_one(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let at = self.random.random_range(0..self.open.len());
        let block = self.random.random_range(0..8u64);
        let Open { file, tag } = &self.open[at];
        match self.random.random_range(0..8) {
            0 => file.set_len(block * BLOCK + 8).unwrap(),
            1 => file.sync_all().unwrap(),
            2 => file.punch_hole(block * BLOCK, BLOCK).unwrap(),
            3 | 4 => drop(file.write_at(&tag.to_le_bytes(), block * BLOCK).unwrap()),
            _ => {
                if let Some(found) = tag_at(file, block * BLOCK) {
                    assert_eq!(found, *tag, "another file's content");
                }
            }
        }
        self.done += 1;
    }
}

/// The tag at an offset of a file; `None` in holes and beyond the end.
fn tag_at(file: &File, offset: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    let read = file.read_at(&mut bytes, offset).unwrap();
    let tag = u64::from_le_bytes(bytes);
    (read == 8 && tag != 0).then_some(tag)
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn sixteen_threads_on_the_same_names() {
    if !require(&["e2fsck"]) {
        return;
    }
    let seed = seed(240);
    let steps = number("STEPS").unwrap_or(400);
    let long = number("SECONDS_LONG").or(full_matrix().then_some(600)).map(Duration::from_secs);
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let before = descriptors();
    let fs = ImageOptions::new().background(true).make(&image, 256 << 20).unwrap();
    let free = fs.statfs().unwrap().inodes_free;
    for number in 0..DIRECTORIES {
        fs.create_dir(format!("d{number}")).unwrap();
    }
    let (tags, failed, began) = (AtomicU64::new(1), AtomicBool::new(false), Instant::now());
    let done: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (fs, tags, failed) = (&fs, &tags, &failed);
                scope.spawn(move || {
                    let random = ChaCha8Rng::seed_from_u64(seed.wrapping_mul(THREADS).wrapping_add(thread));
                    let mut stress = Stress { fs, random, open: Vec::new(), tags, done: 0 };
                    let goes_on = |step: u64| match long {
                        Some(long) => began.elapsed() < long,
                        None => step < steps,
                    };
                    let guard = Told(failed);
                    for step in (0..).take_while(|step| goes_on(*step)) {
                        // One failure stops all threads.
                        if step % 64 == 0 && failed.load(Ordering::Relaxed) {
                            break;
                        }
                        stress.step();
                    }
                    drop(guard);
                    stress.done
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    println!("seed {seed}: {done} operations worked, {} files were made", tags.load(Ordering::Relaxed) - 1);
    for number in 0..DIRECTORIES {
        fs.remove_dir_all(format!("d{number}")).unwrap();
    }
    assert_eq!(fs.statfs().unwrap().inodes_free, free, "inodes are left over");
    fs.close().unwrap();
    assert_eq!(descriptors(), before, "descriptors are left open");
    e2fsck_clean(&image);
}

/// Sets the flag that stops the other threads if the thread that owns this value panics.
struct Told<'a>(&'a AtomicBool);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}
