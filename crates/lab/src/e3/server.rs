//! The file server, and what each of its calls needs from the disk. The server preallocates files,
//! reads and writes them directly, and truncates and unlinks them.
//!
//! The workload of the published server is not known. This one is our choice, and is the same for
//! all cluster sizes. Some files are preallocated as a whole. The others grow by many calls,
//! several files at a time. The size of the memory for metadata is a parameter. Now and then all
//! metadata in it is dropped, as if something else needed the memory. The measured reads and writes
//! transfer no data: they look up where the data would be, and the modelled disk computes how long
//! it takes to read or write there.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use blockyard_alloc::{Policy, Tunable};
use blockyard_device::modelled::{ModelParameters, Request, RequestKind};
use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_disk::InodeNr;
use blockyard_disk::inode::FileType;
use blockyard_disk::num::{count_as_f64, u64_from_usize, usize_from_u64};
use blockyard_engine::{Error, Fallocate, FileSystem, NewInode, OpenOptions, mkfs};
use blockyard_sync::CpuSlot;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::spindle::{Asked, Spindle};
use super::{ClusterPlan, Memory, Op};
use crate::age::{Ageing, Circumstances, age};
use crate::metered::{Class, Fetch, Metered};
use crate::run::Verdict;
use crate::target::engine::{context, unjournaled};
use crate::workload::scale::{scaled, whole};
use crate::workload::{KIB, MIB};

/// Number of directories. There are many, so that the files do not all lie near one of them.
const DIRECTORIES: u64 = 64;
/// Bytes of metadata that the engine itself keeps in memory.
const CACHE_BYTES: usize = 256 << 10;
/// File sizes are multiples of this many bytes.
const UNIT: u64 = 64 * KIB;
/// Number of units by which a file grows in a call.
const GROWTH: std::ops::RangeInclusive<u64> = 16..=240;
/// Size of a grown file, and of the largest files that are preallocated as a whole.
const LARGE: u64 = 64 * MIB;
/// A large file that is preallocated as a whole is then written at this many offsets. These writes
/// split the file's extent into more extents than fit in the inode.
const PLACES: u64 = 4;
/// Files that grow at the same time.
const GROWING: usize = 8;
/// Share of the allocations that preallocate a whole file.
const WHOLE: f64 = 0.5;
/// Direct reads and writes for each fallocate or truncate.
const READS: u32 = 12;
const WRITES: u32 = 4;
/// Bytes of a direct read and of a direct write.
const READ_BYTES: u64 = 64 * KIB;
const WRITE_BYTES: u64 = MIB;
/// Direct writes go to this many of the files allocated last.
const WRITTEN: u64 = 256;
/// How strongly direct reads prefer the files allocated last, as an exponent: 1 is no preference.
const NEWEST: f64 = 4.0;
/// Fallocates and truncates between two commits.
const COMMIT_EVERY: u64 = 32;
/// Processor time of a call, and additional time for each group that the call considers.
const CALL: Duration = Duration::from_micros(100);
const GROUP: Duration = Duration::from_nanos(500);
/// The disk model.
const DISK: &str = "desktop-7200-2009";

/// A file.
#[derive(Clone, Copy)]
struct File {
    inode: InodeNr,
    size: u64,
    directory: InodeNr,
    number: u64,
}

impl File {
    fn name(&self) -> Vec<u8> {
        format!("file{}", self.number).into_bytes()
    }
}

/// One measured call.
pub(super) struct Measured {
    pub(super) op: Op,
    pub(super) fetches: Vec<Fetch>,
    /// Number of separate physical runs that a direct read or write touches.
    pub(super) pieces: usize,
    pub(super) time: Duration,
}

/// The results of one file system.
pub(super) struct Outcome {
    pub(super) calls: Vec<Measured>,
    pub(super) files: u64,
    pub(super) extents_per_file: f64,
}

/// A file server with its files.
pub(super) struct Server<'p> {
    plan: &'p ClusterPlan,
    memory: Memory,
    device: Arc<Metered<MemoryDevice>>,
    pub(super) fs: FileSystem,
    /// Files of full size, in order of allocation.
    files: Vec<File>,
    /// Growing files, and their current sizes.
    growing: Vec<(File, u64)>,
    directories: Vec<InodeNr>,
    random: ChaCha8Rng,
    taken: u64,
    most: u64,
    steps: u64,
    names: u64,
    zeroes: Vec<u8>,
    clock: Duration,
    spindle: Option<Spindle>,
    calls: Vec<Measured>,
}

impl<'p> Server<'p> {
    pub(super) fn open(
        plan: &'p ClusterPlan,
        cluster_kib: Option<u32>,
        aged: Option<&Ageing>,
    ) -> Result<Self> {
        let bytes = plan.image_bytes();
        let device = Arc::new(Metered::new(MemoryDevice::new(bytes)));
        mkfs::format(&*device, &plan.mkfs_options(cluster_kib))?;
        let policy = Policy::parse(&plan.policy)?;
        let shared: Arc<dyn BlockDevice> = Arc::<Metered<MemoryDevice>>::clone(&device);
        if let Some(ageing) = aged {
            let room = bytes / 4;
            let who =
                Circumstances { rotational: plan.rotational, room, ..Circumstances::new(policy, plan.seed) };
            age(Arc::clone(&shared), ageing, &who)?;
        }
        let open = OpenOptions {
            cpus: 1,
            cache_bytes: CACHE_BYTES,
            rotational: plan.rotational,
            ..unjournaled(policy, plan.seed)
        };
        let fs = FileSystem::open(shared, open, &context(0))?;
        // Kernels of 2011 read a bitmap only when they need it.
        fs.allocator().set_tunable(Tunable::Prefetch, 0)?;
        fs.allocator().set_tunable(Tunable::Stats, 1)?;
        device.learn()?;
        device.remember(plan.pages());
        let free = fs.statistics().blocks_free << fs.geometry().block_bits();
        let mut server = Self {
            plan,
            memory: plan.memory,
            device,
            fs,
            files: Vec::new(),
            growing: Vec::new(),
            directories: Vec::new(),
            random: ChaCha8Rng::seed_from_u64(plan.seed),
            taken: 0,
            most: scaled(free, plan.memory.fill),
            steps: 0,
            names: 0,
            zeroes: vec![0; usize_from_u64(UNIT)],
            clock: Duration::ZERO,
            spindle: None,
            calls: Vec::new(),
        };
        server.make_directories()?;
        Ok(server)
    }

    fn make_directories(&mut self) -> Result<()> {
        let new = NewInode { kind: FileType::Directory, permissions: 0o755, device: None };
        for number in 0..DIRECTORIES {
            let name = format!("dir{number}").into_bytes();
            let made = self.fs.create(&context(0), InodeNr::ROOT, &name, &new)?;
            self.directories.push(made);
        }
        Ok(())
    }

    /// Fills the file system, runs it to a steady state, and then measures `calls` steps. A step is
    /// a fallocate, or a truncate and an unlink, and then some reads and writes.
    pub(super) fn run(mut self, calls: u64, verdict: &mut Verdict, show_e2fsck: bool) -> Result<Outcome> {
        while self.taken < self.most {
            self.allocate()?;
        }
        let files = u64_from_usize(self.files.len() + self.growing.len());
        // On average, each file is removed and replaced `turnovers` times.
        let (mut gone, most) = (0, files * self.memory.turnovers);
        while gone < most {
            let before = self.files.len();
            self.step()?;
            gone += u64::from(self.files.len() < before);
        }
        self.spindle = Some(Spindle::new(ModelParameters::named(DISK)?.model(self.device.size())?));
        for _ in 0..calls {
            self.step()?;
        }
        let ended = self.spindle.take().map(|mut spindle| spindle.finish()).unwrap_or_default();
        for (tag, time) in ended {
            self.calls[tag].time = time;
        }
        let extents_per_file = self.extents()?;
        let files = u64_from_usize(self.files.len());
        self.fs.close(&context(0))?;
        verdict.check(&*self.device)?;
        if show_e2fsck {
            verdict.e2fsck(|path| Ok(self.device.below().save(path)?))?;
        }
        Ok(Outcome { calls: self.calls, files, extents_per_file })
    }

    /// Mean number of extents of the files of full size.
    fn extents(&self) -> Result<f64> {
        let mut all = 0;
        for file in &self.files {
            all += self.fs.extents(file.inode, 0, usize::MAX)?.len();
        }
        Ok(count_as_f64(u64_from_usize(all)) / count_as_f64(u64_from_usize(self.files.len().max(1))))
    }

    /// A fallocate, or the removal of a file, with the accompanying reads and writes.
    fn step(&mut self) -> Result<()> {
        if self.taken >= self.most {
            self.remove()?
        } else {
            self.allocate()?
        }
        for _ in 0..READS {
            self.direct(Op::Read)?;
        }
        for _ in 0..WRITES {
            self.direct(Op::Write)?;
        }
        self.steps += 1;
        if self.steps.is_multiple_of(COMMIT_EVERY) {
            self.fs.commit(&context(0))?;
        }
        if self.steps.is_multiple_of(self.plan.spike_every()) {
            self.device.forget();
        }
        Ok(())
    }

    fn size(&mut self) -> u64 {
        match self.random.random_range(0..10) {
            0..=2 => self.random.random_range(1..=16) * UNIT,
            3..=5 => self.random.random_range(64..=256) * UNIT,
            _ => LARGE,
        }
    }

    /// Preallocates a whole file, or the next part of a growing one.
    fn allocate(&mut self) -> Result<()> {
        while self.growing.len() < GROWING {
            let file = self.create(LARGE)?;
            self.growing.push((file, 0));
        }
        if self.random.random_bool(WHOLE) {
            let size = self.size();
            let file = self.create(size)?;
            if self.fallocate(file.inode, 0, size)? {
                self.write_first(file)?;
                self.files.push(file);
            } else {
                self.fs.unlink(&context(0), file.directory, &file.name())?;
            }
            return Ok(());
        }
        let index = self.random.random_range(0..self.growing.len());
        let (file, has) = self.growing[index];
        let more = (self.random.random_range(GROWTH) * UNIT).min(file.size - has);
        if !self.fallocate(file.inode, has, more)? {
            return Ok(());
        }
        self.growing[index].1 = has + more;
        if has + more == file.size {
            self.growing.swap_remove(index);
            self.files.push(file);
        }
        Ok(())
    }

    /// Writes a file of the largest size at some offsets, which splits its unwritten extent.
    /// Smaller files are not written.
    fn write_first(&mut self, file: File) -> Result<()> {
        for place in (1..=PLACES).take_while(|_| file.size == LARGE) {
            let at = place * (LARGE / (PLACES + 1)) / UNIT * UNIT;
            self.fs.write_direct(&context(0), file.inode, at, &self.zeroes)?;
        }
        Ok(())
    }

    /// Creates an empty file, to which `size` bytes will be allocated.
    fn create(&mut self, size: u64) -> Result<File> {
        let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
        let directory = self.directories[self.random.random_range(0..self.directories.len())];
        let mut file = File { inode: directory, size, directory, number: self.names };
        self.names += 1;
        file.inode = self.fs.create(&context(0), directory, &file.name(), &new)?;
        Ok(file)
    }

    /// Preallocates a range, or removes another file if there is no space. Returns whether there
    /// was space.
    fn fallocate(&mut self, inode: InodeNr, at: u64, length: u64) -> Result<bool> {
        let done = self.call(Op::Fallocate, |fs| {
            match fs.fallocate(&context(0), inode, Fallocate::Allocate, at, length) {
                Err(Error::NoSpace) => Ok(false),
                done => done.map(|()| true),
            }
        })?;
        if done {
            self.taken += length;
        } else {
            self.fs.commit(&context(0))?;
            self.remove()?;
        }
        Ok(done)
    }

    /// Truncates and unlinks a random file, so that the ages of files are distributed
    /// exponentially.
    fn remove(&mut self) -> Result<()> {
        let index = self.random.random_range(0..self.files.len());
        let file = self.files.remove(index);
        self.taken -= file.size;
        self.call(Op::Truncate, |fs| fs.truncate(&context(0), file.inode, 0))?;
        self.call(Op::Unlink, |fs| fs.unlink(&context(0), file.directory, &file.name()))
    }

    /// Performs a call and counts what it had to fetch. The allocator's bitmaps are dropped first,
    /// because only the cache of the [`Metered`] device stands for the server's memory.
    fn call<T>(
        &mut self,
        op: Op,
        call: impl FnOnce(&FileSystem) -> blockyard_engine::Result<T>,
    ) -> Result<T> {
        self.fs.allocator().evict_all(CpuSlot::new(0));
        self.device.take();
        let before = self.fs.allocator().stats().groups_considered.iter().sum::<u64>();
        let done = call(&self.fs)?;
        let groups = self.fs.allocator().stats().groups_considered.iter().sum::<u64>() - before;
        let fetches = self.needed();
        let processor = CALL + GROUP * u32::try_from(groups).unwrap_or(u32::MAX);
        self.note(op, fetches, Vec::new(), processor);
        Ok(done)
    }

    /// The bitmaps and mapping blocks that a call had to fetch. Inodes and descriptors do not
    /// count, as if they had been read before the call.
    fn needed(&self) -> Vec<Fetch> {
        let mut fetches = self.device.take();
        fetches.retain(|fetch| matches!(fetch.class, Class::Bitmap | Class::Map));
        fetches
    }

    /// A direct read of any file, or a direct write to a recently allocated one: looks up where a
    /// part of the file is.
    fn direct(&mut self, op: Op) -> Result<()> {
        if self.files.is_empty() {
            return Ok(());
        }
        let count = u64_from_usize(self.files.len());
        let (among, skew, bytes, kind) = match op {
            Op::Write => (count.min(WRITTEN), 1.0, WRITE_BYTES, RequestKind::Write),
            Op::Read | Op::Fallocate | Op::Truncate | Op::Unlink => {
                (count, NEWEST, READ_BYTES, RequestKind::Read)
            }
        };
        let back = whole(self.random.random::<f64>().powf(skew) * count_as_f64(among)).min(among - 1);
        let file = self.files[usize_from_u64(count - 1 - back)];
        let length = bytes.min(file.size);
        let at = self.random.random_range(0..file.size / length) * length;
        self.device.take();
        let found = self.fs.extents(file.inode, at, PIECES_MAX)?;
        let fetches = self.needed();
        let mut pieces = Vec::new();
        for extent in found {
            let begin = extent.offset.max(at);
            let end = (extent.offset + extent.len).min(at + length);
            if let Some(physical) = extent.physical.filter(|_| begin < end) {
                pieces.push(Request {
                    kind,
                    offset: physical + (begin - extent.offset),
                    length: end - begin,
                });
            }
        }
        self.note(op, fetches, pieces, CALL);
        Ok(())
    }

    /// Passes a call to the disk if measuring has begun. The gaps between calls are distributed
    /// exponentially.
    fn note(&mut self, op: Op, fetches: Vec<Fetch>, content: Vec<Request>, processor: Duration) {
        let Some(spindle) = &mut self.spindle else { return };
        let mean = 1.0 / self.memory.calls_per_s;
        let gap = -mean * (1.0 - self.random.random::<f64>()).ln();
        self.clock += Duration::from_secs_f64(gap);
        let metadata = fetches.iter().map(|fetch| Request::read(fetch.offset, 4096)).collect();
        let pieces = content.len();
        spindle.come(self.clock, self.calls.len(), Asked { metadata, content, processor });
        self.calls.push(Measured { op, fetches, pieces, time: Duration::ZERO });
    }
}

/// Most extents that are looked up for one read or write.
const PIECES_MAX: usize = 512;
