//! Eight threads use one image at the same time. Each reads back what it wrote. Afterwards e2fsck
//! finds nothing, and the kernel reads the same content.

#![allow(clippy::as_conversions, clippy::unwrap_used)]

use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_disk::inode::FileType;
use blockyard_disk::{InodeNr, Timestamp};
use blockyard_engine::mkfs;
use blockyard_engine::{Error, Fallocate, FileSystem, NewInode, OpContext, OpenOptions, Result, Watched};
use blockyard_sync::CpuSlot;
use blockyard_testkit::{LoopMount, coverage, e2fsck_clean, full_matrix, require, seed};
use rand::seq::IteratorRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const THREADS: u32 = 8;

fn context(slot: u32) -> OpContext {
    OpContext::root_at(Timestamp::from_seconds(1_700_000_000)).on(CpuSlot::new(slot))
}

type Files = BTreeMap<String, (InodeNr, Vec<u8>)>;

/// The work of one thread: its own files in its own directory, and short-lived names in a directory
/// that all threads share.
struct Worker<'a> {
    fs: &'a Watched,
    ctx: OpContext,
    rng: ChaCha8Rng,
    number: u32,
    own: InodeNr,
    shared: InodeNr,
    files: Files,
    made: u32,
}

impl Worker<'_> {
    fn run(mut self, steps: u32) -> Files {
        for step in 0..steps {
            match self.step() {
                Ok(()) | Err(Error::NoSpace | Error::NoInodes | Error::NotSupported(_)) => {}
                Err(error) => panic!("worker {} step {step}: {error}", self.number),
            }
        }
        self.files
    }

    fn pick(&mut self) -> Option<String> {
        self.files.keys().choose(&mut self.rng).cloned()
    }

    fn step(&mut self) -> Result<()> {
        let choice = self.rng.random_range(0..16);
        let Some(name) = self.pick().filter(|_| choice > 2) else { return self.create() };
        let (inode, mut content) = self.files[&name].clone();
        let at = self.rng.random_range(0..200_000u64);
        let len = self.rng.random_range(1..30_000u64);
        match choice {
            3..=7 => {
                let bytes: Vec<u8> = (0..len).map(|n| (n as u32 * 7 + self.number) as u8).collect();
                self.fs.write(&self.ctx, inode, at, &bytes)?;
                content.resize(content.len().max((at + len) as usize), 0);
                content[at as usize..(at + len) as usize].copy_from_slice(&bytes);
            }
            8 => {
                self.fs.truncate(&self.ctx, inode, at)?;
                content.resize(at as usize, 0);
            }
            9 => {
                match self.fs.fallocate(&self.ctx, inode, Fallocate::Allocate, at, len) {
                    Ok(()) => content.resize(content.len().max((at + len) as usize), 0),
                    // Blocks allocated before space ran out stay, and the size covers them.
                    Err(Error::NoSpace) => content.resize(self.fs.attributes(inode)?.size as usize, 0),
                    Err(error) => return Err(error),
                }
            }
            10 => {
                self.fs.fallocate(&self.ctx, inode, Fallocate::PunchHole, at, len)?;
                let end = (at + len).min(content.len() as u64) as usize;
                if (at as usize) < end {
                    content[at as usize..end].fill(0);
                }
            }
            11 => self.fs.write_back_file(&self.ctx, inode)?,
            12 if self.rng.random_range(0..8) == 0 => self.fs.fsync(&self.ctx, inode)?,
            13 => {
                self.fs.unlink(&self.ctx, self.own, name.as_bytes())?;
                self.files.remove(&name);
                return Ok(());
            }
            14 => return self.visit_shared(),
            _ => {
                let mut read = vec![0; content.len()];
                assert_eq!(self.fs.read(&self.ctx, inode, 0, &mut read)?, content.len());
                assert!(read == content, "worker {}: {name} reads something else", self.number);
            }
        }
        self.files.insert(name, (inode, content));
        Ok(())
    }

    fn create(&mut self) -> Result<()> {
        self.made += 1;
        let name = format!("file-{}-{}", self.number, self.made);
        let inode = self.fs.create(&self.ctx, self.own, name.as_bytes(), &regular())?;
        self.files.insert(name, (inode, Vec::new()));
        Ok(())
    }

    /// Creates a name in the shared directory, lists the directory, and removes the name.
    fn visit_shared(&mut self) -> Result<()> {
        self.made += 1;
        let name = format!("shared-{}-{}", self.number, self.made);
        let inode = self.fs.create(&self.ctx, self.shared, name.as_bytes(), &regular())?;
        self.fs.write(&self.ctx, inode, 0, name.as_bytes())?;
        let mut seen = false;
        self.fs.read_dir(self.shared, 0, |entry| {
            seen |= entry.name == name.as_bytes();
            true
        })?;
        assert!(seen);
        self.fs.unlink(&self.ctx, self.shared, name.as_bytes())
    }
}

fn regular() -> NewInode {
    NewInode { kind: FileType::Regular, permissions: 0o644, device: None }
}

fn directory() -> NewInode {
    NewInode { kind: FileType::Directory, permissions: 0o755, device: None }
}

fn open(device: &Arc<MemoryDevice>, options: OpenOptions) -> FileSystem {
    let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(device);
    FileSystem::open(shared, options, &context(0)).unwrap()
}

fn run(name: &str, options: &mkfs::Options, open_options: OpenOptions, size: u64) {
    println!("{name}");
    let device = Arc::new(MemoryDevice::new(size));
    mkfs::format(&*device, options).unwrap();
    let fs = Watched::new(open(&device, open_options));
    let seed = seed(77);
    let steps = if full_matrix() { 2_500 } else { 250 };
    let shared = fs.create(&context(0), InodeNr::ROOT, b"shared", &directory()).unwrap();
    let results: Vec<Files> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|number| {
                let ctx = context(number);
                let dir = format!("own-{number}");
                let own = fs.create(&ctx, InodeNr::ROOT, dir.as_bytes(), &directory()).unwrap();
                let rng = ChaCha8Rng::seed_from_u64(seed ^ u64::from(number));
                let files = Files::new();
                let worker = Worker { fs: &fs, ctx, rng, number, own, shared, files, made: 0 };
                scope.spawn(move || worker.run(steps))
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    coverage::assert_done("oracle_threads", &[name], fs.done());
    fs.into_inner().close(&context(0)).unwrap();
    judge(&device, &results);
}

fn judge(device: &MemoryDevice, results: &[Files]) {
    if !require(&["e2fsck", "root"]) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = scratch.path().join("image");
    device.save(&image).unwrap();
    e2fsck_clean(&image);
    let mount = LoopMount::new(&image, "ro").unwrap();
    for (number, files) in results.iter().enumerate() {
        for (name, (_, content)) in files {
            let path = mount.path().join(format!("own-{number}")).join(name);
            let read = std::fs::read(Path::new(&path)).unwrap();
            let differs = read.iter().zip(content).position(|(a, b)| a != b);
            assert!(
                read == *content,
                "{}: the kernel reads something else at {differs:?} of {} bytes ({} expected)",
                path.display(),
                read.len(),
                content.len()
            );
        }
    }
}

fn defaults() -> OpenOptions {
    OpenOptions { cpus: THREADS, ..OpenOptions::default() }
}

#[test]
fn four_kib_blocks() {
    run("4k", &mkfs::Options::ext4().block_size(4096).identity(1, 1), defaults(), 256 << 20);
}

#[test]
fn one_kib_blocks_and_little_memory() {
    let little = OpenOptions {
        cache_bytes: 1 << 20,
        dirty_data_bytes: 1 << 20,
        inodes_max: 64,
        commit_point_handles: 50,
        ..defaults()
    };
    run("1k", &mkfs::Options::ext4().block_size(1024).identity(1, 1), little, 128 << 20);
}

#[test]
fn nearly_full() {
    let options = OpenOptions { commit_point_handles: 1000, ..defaults() };
    run("full", &mkfs::Options::ext4().block_size(1024).identity(1, 1), options, 12 << 20);
}

#[test]
fn clusters() {
    let options =
        mkfs::Options::ext4().block_size(4096).features("bigalloc").cluster_size(65_536).identity(1, 1);
    run("bigalloc", &options, defaults(), 512 << 20);
}

#[test]
fn block_maps() {
    run("ext3", &mkfs::Options::ext3().block_size(1024).identity(1, 1), defaults(), 128 << 20);
}

/// docs/testing.md must list the images.
#[test]
fn the_images_are_told() {
    let images = [("4k", 4096), ("1k", 1024), ("full", 1024), ("bigalloc", 4096), ("ext3", 1024)];
    coverage::assert_images("oracle_threads", images);
}
