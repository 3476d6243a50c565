//! The environment of a workload: an open file system on a recording device, and the facts promised
//! so far.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use blockyard_device::{BlockDevice, MemoryDevice, RecorderDevice, WriteLog};
use blockyard_disk::InodeNr;
use blockyard_disk::inode::FileType;
use blockyard_disk::num::u64_from_usize;
use blockyard_engine::{FileSystem, NewInode, OpContext, OpenOptions, Watched, mkfs};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::facts::{Fact, Facts, POISON, Value, Want, stamps};
use super::image::Image;
use super::walk;
use crate::target::Cpu;
use crate::target::engine::context;

/// A memory device that records its writes and flushes.
type Recorder = RecorderDevice<MemoryDevice>;

/// An open file system whose writes are recorded.
pub(super) struct Stage {
    pub(super) fs: Watched,
    pub(super) seed: u64,
    device: Arc<Recorder>,
    facts: Mutex<Vec<Fact>>,
}

/// The result of a run: the image before the run, the log of its writes, and the promises.
pub(super) struct Recording {
    pub(super) base: Image,
    pub(super) log: WriteLog,
    pub(super) facts: Facts,
    /// Names of the operations that succeeded.
    pub(super) operations: Vec<&'static str>,
}

/// The file system that a workload runs on.
pub(super) struct Setup {
    /// Bytes of the image.
    pub(super) size: u64,
    pub(super) mkfs: mkfs::Options,
    pub(super) open: OpenOptions,
}

/// Creates an image, runs `work` on it, and closes it.
pub(super) fn record(setup: Setup, seed: u64, work: impl FnOnce(&Stage) -> Result<()>) -> Result<Recording> {
    let device = MemoryDevice::new(setup.size);
    // Fills the device with stamps that belong to no file. A file in which they appear exposes
    // blocks that were never written for it.
    device.write_at(0, &stamps(POISON, 0, 0, setup.size))?;
    let mkfs = mkfs::Options { no_discard: true, lazy_itable_init: Some(false), ..setup.mkfs };
    mkfs::format(&device, &mkfs.identity(seed, 1)).context("make the image")?;
    let base = Image::of_device(&device)?;
    let device = Arc::new(Recorder::new(device));
    let shared: Arc<dyn BlockDevice> = Arc::<Recorder>::clone(&device);
    let fs = FileSystem::open(shared, setup.open, &context(0)).context("open the image")?;
    let stage = Stage { fs: Watched::new(fs), seed, device: Arc::clone(&device), facts: Mutex::default() };
    work(&stage).context("the workload")?;
    let operations = stage.fs.done().collect();
    stage.fs.into_inner().close(&context(0)).context("close the image")?;
    let log = device.take_log();
    let facts = stage.facts.into_inner().unwrap_or_else(PoisonError::into_inner);
    let facts = Facts::new(&log, &facts);
    Ok(Recording { base, log, facts, operations })
}

/// An empty regular file.
pub(super) const REGULAR: NewInode = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };

/// A directory.
pub(super) const DIRECTORY: NewInode =
    NewInode { kind: FileType::Directory, permissions: 0o755, device: None };

/// The context of an operation on a CPU slot. Files that it creates belong to user `owner` and may
/// hold only that owner's stamps.
pub(super) fn owner(owner: u16, cpu: Cpu) -> OpContext {
    OpContext { uid: u32::from(owner), ..context(cpu) }
}

/// Upper bound of [`Stage::growth`], which is reached with blocks of 8 KiB.
const GROWTH_MAX: u64 = 8;

impl Stage {
    /// Bytes of a block.
    pub(super) fn block(&self) -> u64 {
        u64_from_usize(self.fs.geometry().block_size())
    }

    /// Factor for sizes in bytes. It grows with the block size, from 1 with blocks of 1 KiB, but
    /// only up to [`GROWTH_MAX`]. So a size that is multiplied by it has fewer blocks if these are
    /// larger than 8 KiB.
    pub(super) fn growth(&self) -> u64 {
        (self.block() >> 10).min(GROWTH_MAX)
    }

    /// Number of blocks for a size that is `blocks` KiB times [`Self::growth`]: `blocks` itself
    /// with blocks of up to 8 KiB, and fewer with larger blocks.
    pub(super) fn fewer(&self, blocks: u64) -> u64 {
        blocks * self.growth() / (self.block() >> 10)
    }

    /// Blocks that the file system reserves for itself, about 2 %.
    pub(super) fn kept_back(&self) -> u64 {
        self.fs.geometry().blocks_count().raw() / 50
    }

    /// A random generator that depends only on the seed and `stream`.
    pub(super) fn random(&self, stream: u64) -> ChaCha8Rng {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        random.set_stream(stream);
        random
    }

    /// Adds a fact that holds for every later cut, until another fact replaces it.
    pub(super) fn note(&self, fact: Fact) {
        let mut facts = self.facts.lock().unwrap_or_else(PoisonError::into_inner);
        facts.push(fact);
        self.device.mark(&(facts.len() - 1).to_string());
    }

    /// From here on a path holds one of these values.
    pub(super) fn allow(&self, path: &str, values: &[Value]) {
        self.note(Fact::Path(path.to_owned(), Some(Want::OneOf(values.to_vec()))));
    }

    /// From here on a path holds a prefix of `bytes`, at least `least` of them.
    pub(super) fn allow_beginning(&self, path: &str, bytes: &[u8], least: usize) {
        self.note(Fact::Path(path.to_owned(), Some(Want::Begins(bytes.into(), least))));
    }

    /// From here on the file at a path is a mixture of these versions ([`Want::Mixed`]).
    pub(super) fn allow_mixed(&self, path: &str, versions: &[Arc<[u8]>]) {
        self.note(Fact::Path(path.to_owned(), Some(Want::Mixed(versions.to_vec()))));
    }

    /// From here on nothing is promised about a path.
    pub(super) fn release(&self, path: &str) {
        self.note(Fact::Path(path.to_owned(), None));
    }

    /// Makes a file durable, and promises that it is at `path` with these bytes.
    pub(super) fn promise(&self, inode: InodeNr, path: &str, bytes: &[u8]) -> Result<()> {
        self.fs.fsync(&context(0), inode)?;
        self.allow(path, &[Value::holds(bytes)]);
        Ok(())
    }

    /// Records the names of the whole tree ([`Fact::Names`]). Some workloads with one thread call
    /// this after each operation.
    pub(super) fn step(&self) -> Result<()> {
        self.note(Fact::Names(walk::names_hash(&walk::of_engine(&self.fs, walk::Files::Named)?)));
        Ok(())
    }

    /// Makes everything durable.
    pub(super) fn sync(&self) -> Result<()> {
        self.fs.sync(&context(0))?;
        self.note(Fact::Durable);
        Ok(())
    }

    /// Creates a file in the root directory and writes its own stamps to it.
    pub(super) fn file(&self, id: u16, name: &str, version: u16, len: u64) -> Result<(InodeNr, Vec<u8>)> {
        let inode = self.fs.create(&owner(id, 0), InodeNr::ROOT, name.as_bytes(), &REGULAR)?;
        let bytes = stamps(id, version, 0, len);
        self.fs.write(&context(0), inode, 0, &bytes)?;
        Ok((inode, bytes))
    }

    /// Creates a directory in the root directory.
    pub(super) fn directory(&self, name: &str) -> Result<InodeNr> {
        Ok(self.fs.create(&context(0), InodeNr::ROOT, name.as_bytes(), &DIRECTORY)?)
    }

    /// Creates a file that takes all free blocks except about `spare`, so that blocks are soon
    /// reused.
    pub(super) fn ballast(&self, spare: u64) -> Result<()> {
        let file = self.fs.create(&context(0), InodeNr::ROOT, b"ballast", &REGULAR)?;
        let bytes = self.fs.statistics().blocks_free.saturating_sub(spare) * self.block();
        self.fs.fallocate(&context(0), file, blockyard_engine::Fallocate::AllocateKeepSize, 0, bytes)?;
        self.sync()
    }
}
