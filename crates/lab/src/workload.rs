//! The workloads: the operations of each worker, one at a time.
//!
//! A workload is data ([`Workload`]). [`Workload::worker`] creates the state of one worker, whose
//! [`step`](Worker::step) performs one operation. The runner decides how the steps of many workers
//! share time, so a workload is the same in threads, lockstep and overlap.

mod append;
mod churn;
mod fallocate2;
mod fio;
pub mod scale;

use anyhow::Result;

use crate::target::{Cpu, Target};

use append::By;
pub(crate) use churn::blocks_of_files;
pub use fio::{Access, FioJob};

/// Bytes in a KiB.
pub const KIB: u64 = 1 << 10;
/// Bytes in a MiB.
pub const MIB: u64 = 1 << 20;
/// Bytes in a GiB.
pub const GIB: u64 = 1 << 30;
/// Number of files that a worker of [`Workload::Churn`] keeps.
pub const FILES_KEPT: u64 = 64;

/// A workload with its sizes in bytes.
///
/// - `Fallocate2`, `Append64`, and the fio jobs that write in ascending order are from published
///   measurements of ext4's allocator.
/// - Reviewers of the patches for round-robin allocation asked for `DirectAppend` and `Churn`.
/// - `ScanSwitch`, and the fio jobs that read or that write at random, are variants of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Each worker appends `step` bytes by fallocate to its own file until `size`, truncates it to
    /// 0, and repeats.
    Fallocate2 {
        /// File size at which the worker truncates.
        size: u64,
        /// Bytes of one append.
        step: u64,
    },
    /// Like `Fallocate2`, but the first worker toggles optimised scanning each time its file is
    /// full.
    ScanSwitch {
        /// File size at which the worker truncates.
        size: u64,
        /// Bytes of one append.
        step: u64,
    },
    /// Each worker appends `step` bytes by fallocate to its own file until `size`, once.
    Append64 {
        /// Final file size.
        size: u64,
        /// Bytes of one append.
        step: u64,
    },
    /// Like `Append64`, but by direct writes.
    DirectAppend {
        /// Final file size.
        size: u64,
        /// Bytes of one append, a multiple of the block size.
        step: u64,
    },
    /// Over and over, each worker creates a file, appends to it `step` bytes at a time, and makes
    /// it durable. If the worker then has more than 64 files, it deletes one at random.
    Churn {
        /// Largest file size.
        size: u64,
        /// Bytes of one append.
        step: u64,
    },
    /// Buffered writes or reads of one file for each worker, over and over until the cell's limit
    /// is reached.
    Fio(FioJob),
}

/// The result of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// One operation over this many bytes of file space.
    Done {
        /// Bytes allocated, written or read; 0 for any other operation.
        bytes: u64,
    },
    /// There is nothing left to do.
    Finished,
}

/// The workers of a cell.
pub type Workers<'t, T> = Vec<Box<dyn Worker<T> + 't>>;

/// The state of one worker.
pub trait Worker<T: Target>: Send {
    /// Performs one operation, or says that nothing is left to do.
    ///
    /// # Errors
    /// Those of the target.
    fn step(&mut self, target: &T) -> Result<Step>;

    /// Performs one operation towards the state in which placement is judged: the worker's last
    /// file has its full size. Returns [`Step::Finished`] once this state is reached.
    ///
    /// # Errors
    /// Those of the target.
    fn fill(&mut self, target: &T) -> Result<Step>;

    /// Makes the worker's open file durable, if it has one.
    ///
    /// # Errors
    /// Those of the target.
    fn sync(&mut self, target: &T) -> Result<()>;

    /// Closes the worker's open file, if it has one.
    ///
    /// # Errors
    /// Those of the target.
    fn close(self: Box<Self>, target: &T) -> Result<()>;
}

impl Workload {
    /// Names that [`Self::by_name`] knows.
    pub const NAMES: [&str; 11] = [
        "fallocate2",
        "scanswitch",
        "append64",
        "directappend",
        "churn",
        "seqwrite",
        "smallfiles",
        "allocstress",
        "randwrite",
        "seqread",
        "randread",
    ];

    /// A workload with the published sizes. File sizes are multiplied by `scale` (rounded up to
    /// whole operations, at least one). The names of fio jobs may end with `:fallocate=none` (no
    /// preallocation) or `:fallocate=native` (fio's default). `None` for an unknown name, and for
    /// any other ending.
    #[must_use]
    pub fn by_name(name: &str, scale: f64) -> Option<Self> {
        let sized = |size: u64, step: u64| scaled(size, scale).next_multiple_of(step);
        let (name, option) = name.split_once(':').map_or((name, None), |(name, option)| (name, Some(option)));
        let preallocate = match option {
            None | Some("fallocate=native") => true,
            Some("fallocate=none") => false,
            Some(_) => return None,
        };
        let job =
            |name: &str, block, size| Self::Fio(FioJob { preallocate, ..FioJob::new(name, block, size) });
        let of = |access, job: Self| match job {
            Self::Fio(job) => Self::Fio(FioJob { access, ..job }),
            other => other,
        };
        Some(match (name, option) {
            ("fallocate2", None) => Self::Fallocate2 { size: sized(MIB, 8 * KIB), step: 8 * KIB },
            ("scanswitch", None) => Self::ScanSwitch { size: sized(32 * MIB, 256 * KIB), step: 256 * KIB },
            ("append64", None) => Self::Append64 { size: sized(GIB, 4 * KIB), step: 4 * KIB },
            ("directappend", None) => Self::DirectAppend { size: sized(GIB, 64 * KIB), step: 64 * KIB },
            ("churn", None) => Self::Churn { size: sized(4 * MIB, 16 * KIB), step: 16 * KIB },
            ("seqwrite", _) => job("seqwrite", MIB, sized(4 * GIB, MIB)),
            ("smallfiles", _) => job("smallfiles", 4 * KIB, sized(GIB, 4 * KIB)),
            ("allocstress", _) => job("allocstress", 4 * KIB, sized(2 * GIB, 4 * KIB)),
            ("randwrite", _) => of(Access::RandomWrite, job("randwrite", 4 * KIB, sized(GIB, 4 * KIB))),
            ("seqread", _) => of(Access::Read, job("seqread", MIB, sized(4 * GIB, MIB))),
            ("randread", _) => of(Access::RandomRead, job("randread", 4 * KIB, sized(GIB, 4 * KIB))),
            _ => return None,
        })
    }

    /// The name of the workload, as [`Self::by_name`] takes it.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Fallocate2 { .. } => "fallocate2".to_owned(),
            Self::ScanSwitch { .. } => "scanswitch".to_owned(),
            Self::Append64 { .. } => "append64".to_owned(),
            Self::DirectAppend { .. } => "directappend".to_owned(),
            Self::Churn { .. } => "churn".to_owned(),
            Self::Fio(job) if job.preallocate => job.name.clone(),
            Self::Fio(job) => format!("{}:fallocate=none", job.name),
        }
    }

    /// Size in bytes of the published experiment's file system; for workloads that were not
    /// published, a size that is enough for their files.
    #[must_use]
    pub fn published_device(&self) -> u64 {
        match self {
            Self::Fallocate2 { .. } | Self::ScanSwitch { .. } | Self::Churn { .. } => 64 * GIB,
            Self::Append64 { .. } | Self::DirectAppend { .. } => 200 * GIB,
            Self::Fio(job) if job.name == "allocstress" => 128 * GIB,
            Self::Fio(_) => 64 * GIB,
        }
    }

    /// Whether data is written, not only allocated. A device that stores the data needs memory for
    /// it.
    #[must_use]
    pub fn writes_data(&self) -> bool {
        matches!(self, Self::Fio(_) | Self::DirectAppend { .. } | Self::Churn { .. })
    }

    /// Whether files are written before the workers start, because the workers read them.
    #[must_use]
    pub fn lays_out(&self) -> bool {
        matches!(self, Self::Fio(job) if job.access.reads())
    }

    /// The number of workers of the published experiment, or of the published experiment that is
    /// most like this workload.
    #[must_use]
    pub fn published_workers(&self) -> u32 {
        match self {
            Self::Fallocate2 { .. }
            | Self::ScanSwitch { .. }
            | Self::Append64 { .. }
            | Self::DirectAppend { .. } => 64,
            Self::Churn { .. } => 48,
            Self::Fio(job) if job.name == "allocstress" => 48,
            Self::Fio(_) => 6,
        }
    }

    /// Whether a worker ends on its own; otherwise time or a number of operations ends it.
    #[must_use]
    pub fn ends_by_itself(&self) -> bool {
        matches!(self, Self::Append64 { .. } | Self::DirectAppend { .. })
    }

    /// Largest size that one worker's file reaches, in bytes.
    #[must_use]
    pub fn file_size(&self) -> u64 {
        match self {
            Self::Fallocate2 { size, .. }
            | Self::ScanSwitch { size, .. }
            | Self::Append64 { size, .. }
            | Self::DirectAppend { size, .. }
            | Self::Churn { size, .. } => *size,
            Self::Fio(job) => job.size,
        }
    }

    /// Bytes of the file system that the files of one worker may fill at a time. Churn draws file
    /// sizes at random, so its files may take up to about 1.5 times the expected space.
    #[must_use]
    pub fn space_of_worker(&self) -> u64 {
        match self {
            Self::Churn { size, step } => blocks_of_files(FILES_KEPT + 1, size / step) * 3 / 2 * step,
            _ => self.file_size(),
        }
    }

    /// A warning if the files are too small to be placed like the published ones. `None` if they
    /// are large enough, and for workloads whose published files are small.
    #[must_use]
    pub fn too_small(&self) -> Option<String> {
        let is_small = matches!(self, Self::Fallocate2 { .. } | Self::ScanSwitch { .. } | Self::Churn { .. });
        let is_made_small = !is_small && self.file_size() < 8 * MIB;
        is_made_small.then(|| {
            format!(
                "{}: files of {} KiB are shorter than the 8 MiB that Linux preallocates for one; at this --scale placement shows \
                 little",
                self.name(),
                self.file_size() / KIB
            )
        })
    }

    /// Prepares the files in a single thread before the workers start, as fio's parent process
    /// does. Returns the workers.
    ///
    /// - All files are created, except those of churn, which its workers create.
    /// - Files of a job that asks for preallocation are preallocated.
    /// - Files that will be read are written.
    ///
    /// # Errors
    /// Those of the target.
    pub fn workers<'t, T: Target>(&self, target: &T, workers: u32, cpus: u32) -> Result<Workers<'t, T>>
    where
        T::File: 't,
    {
        let made = (0..workers).map(|index| {
            let worker = self.worker(target, index, index % cpus.max(1));
            // Operations that prepare files do not overlap.
            target.next_round();
            worker
        });
        made.collect()
    }

    fn worker<'t, T: Target>(&self, target: &T, index: u32, cpu: Cpu) -> Result<Box<dyn Worker<T> + 't>>
    where
        T::File: 't,
    {
        if let Self::Churn { size, step } = self {
            return Ok(Box::new(churn::Churn::new((cpu, index), *size, *step)));
        }
        let name = self.name();
        let name = name.split_once(':').map_or(name.as_str(), |(name, _)| name);
        let (_, file) = new_file(target, cpu, &format!("{name}.{index}"))?;
        Ok(match self {
            Self::Fallocate2 { size, step } => Box::new(fallocate2::Fallocate2::new(cpu, file, *size, *step)),
            Self::ScanSwitch { size, step } if index == 0 => {
                Box::new(fallocate2::Fallocate2::new(cpu, file, *size, *step).switching_scan())
            }
            Self::ScanSwitch { size, step } => Box::new(fallocate2::Fallocate2::new(cpu, file, *size, *step)),
            Self::Append64 { size, step } => {
                Box::new(append::Append::new(cpu, file, (*size, *step), By::Fallocate))
            }
            Self::DirectAppend { size, step } => {
                target.make_direct(&file)?;
                Box::new(append::Append::new(cpu, file, (*size, *step), By::DirectWrite))
            }
            Self::Churn { .. } => unreachable!("its workers create their files"),
            Self::Fio(job) => {
                if job.preallocate {
                    fio::preallocate(target, cpu, &file, job.size)?;
                }
                fio::worker(target, (cpu, index), file, job)?
            }
        })
    }
}

/// Creates a file with an unused name, because an image may hold the files of an earlier run. Also
/// returns the name.
fn new_file<T: Target>(target: &T, cpu: Cpu, name: &str) -> Result<(String, T::File)> {
    let mut number = 0u32;
    loop {
        let name = format!("{name}.{number}");
        if let Some(file) = target.create(cpu, &name)? {
            return Ok((name, file));
        }
        number += 1;
    }
}

/// `size` times `scale`, at least 1.
#[allow(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "sizes stay below 2^53 and the scale is a small positive number"
)]
fn scaled(size: u64, scale: f64) -> u64 {
    ((size as f64 * scale).round() as u64).max(1)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use anyhow::Context;
    use std::sync::Mutex;

    /// A target that records what was asked of it.
    #[derive(Default)]
    pub(crate) struct Log {
        pub(crate) asked: Mutex<Vec<String>>,
        pub(crate) taken: Vec<&'static str>,
        pub(crate) cannot_allocate: bool,
        pub(crate) rounds: std::sync::atomic::AtomicU32,
    }

    impl Target for Log {
        type File = String;
        fn create(&self, cpu: Cpu, name: &str) -> Result<Option<String>> {
            if self.taken.contains(&name) {
                return Ok(None);
            }
            self.asked.lock().unwrap().push(format!("{cpu} create {name}"));
            Ok(Some(name.to_owned()))
        }
        fn fallocate(&self, cpu: Cpu, _: &String, offset: u64, length: u64) -> Result<()> {
            if self.cannot_allocate {
                return Err(blockyard_engine::Error::NotSupported("fallocate")).context("fallocate");
            }
            self.asked.lock().unwrap().push(format!("{cpu} fallocate {offset} {length}"));
            Ok(())
        }
        fn truncate(&self, cpu: Cpu, _: &String, size: u64) -> Result<()> {
            self.asked.lock().unwrap().push(format!("{cpu} truncate {size}"));
            Ok(())
        }
        fn write(&self, cpu: Cpu, _: &String, offset: u64, data: &[u8]) -> Result<()> {
            self.asked.lock().unwrap().push(format!("{cpu} write {offset} {}", data.len()));
            Ok(())
        }
        fn make_direct(&self, file: &String) -> Result<()> {
            self.asked.lock().unwrap().push(format!("direct {file}"));
            Ok(())
        }
        fn write_direct(&self, cpu: Cpu, _: &String, offset: u64, data: &[u8]) -> Result<()> {
            assert!(data.as_ptr().align_offset(4096) == 0);
            self.asked.lock().unwrap().push(format!("{cpu} write direct {offset} {}", data.len()));
            Ok(())
        }
        fn unlink(&self, cpu: Cpu, name: &str) -> Result<()> {
            self.asked.lock().unwrap().push(format!("{cpu} unlink {name}"));
            Ok(())
        }
        fn read(&self, cpu: Cpu, _: &String, offset: u64, buf: &mut [u8]) -> Result<()> {
            self.asked.lock().unwrap().push(format!("{cpu} read {offset} {}", buf.len()));
            Ok(())
        }
        fn fsync(&self, cpu: Cpu, file: &String) -> Result<()> {
            self.asked.lock().unwrap().push(format!("{cpu} fsync {file}"));
            Ok(())
        }
        fn close(&self, cpu: Cpu, file: String) -> Result<()> {
            self.asked.lock().unwrap().push(format!("{cpu} close {file}"));
            Ok(())
        }
        fn switch_scan(&self) -> Result<()> {
            self.asked.lock().unwrap().push("switch".to_owned());
            Ok(())
        }
        fn next_round(&self) {
            self.rounds.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }

    fn steps(workload: &Workload, count: usize) -> Vec<String> {
        let log = Log::default();
        let mut workers = workload.workers(&log, 1, 1).unwrap();
        for _ in 0..count {
            workers[0].step(&log).unwrap();
        }
        let mut worker = workers.pop().unwrap();
        while worker.fill(&log).unwrap() != Step::Finished {}
        worker.close(&log).unwrap();
        log.asked.into_inner().unwrap()
    }

    #[test]
    fn fallocate2_appends_and_truncates() {
        let log = steps(&Workload::Fallocate2 { size: 16 * KIB, step: 8 * KIB }, 4);
        assert_eq!(
            log,
            [
                "0 create fallocate2.0.0",
                "0 fallocate 0 8192",
                "0 fallocate 8192 8192",
                "0 truncate 0",
                "0 fallocate 0 8192",
                "0 fallocate 8192 8192",
                "0 close fallocate2.0.0",
            ]
        );
    }

    #[test]
    fn directappend_writes_behind_the_end() {
        let log = steps(&Workload::DirectAppend { size: 128 * KIB, step: 64 * KIB }, 3);
        assert_eq!(
            log,
            [
                "0 create directappend.0.0",
                "direct directappend.0.0",
                "0 write direct 0 65536",
                "0 write direct 65536 65536",
                "0 close directappend.0.0",
            ]
        );
    }

    /// Each file grows to its size, is made durable and closed. After that, if there are more than
    /// 64 files, one of them is deleted. `fill` completes the last file and creates no other.
    #[test]
    fn churn_deletes_what_it_created_before() {
        let log = steps(&Workload::Churn { size: 8 * KIB, step: 4 * KIB }, 1000);
        let of = |kind: &str| log.iter().filter(|line| line.split(' ').nth(1) == Some(kind)).count();
        let [created, durable, closed, deleted] = ["create", "fsync", "close", "unlink"].map(of);
        assert_eq!((durable, closed, deleted), (created, created, created - 64));
        let mut files = std::collections::BTreeSet::new();
        for line in &log {
            match line.split(' ').collect::<Vec<_>>()[..] {
                [_, "create", name] => assert!(files.insert(name), "{name} is created twice"),
                [_, "unlink", name] => assert!(files.remove(name), "{name} is no file"),
                _ => {}
            }
        }
        assert_eq!(files.len(), 64);
        let mean = of("write") * 10 / created;
        assert!((11..20).contains(&mean), "files have 1 or 2 blocks, on average {mean} tenths");
    }

    #[test]
    fn the_first_worker_of_scanswitch_switches_at_each_full_file() {
        let log = Log::default();
        let workload = Workload::ScanSwitch { size: 8 * KIB, step: 8 * KIB };
        let mut workers = workload.workers(&log, 2, 2).unwrap();
        for worker in &mut workers {
            for _ in 0..3 {
                worker.step(&log).unwrap();
            }
        }
        let log = log.asked.into_inner().unwrap();
        let appends = |cpu: u32| {
            [
                format!("{cpu} fallocate 0 8192"),
                format!("{cpu} truncate 0"),
                format!("{cpu} fallocate 0 8192"),
            ]
        };
        let mut first = appends(0).to_vec();
        first.insert(1, "switch".to_owned());
        assert_eq!(log[2..], [first, appends(1).to_vec()].concat());
    }

    #[test]
    fn append64_ends_at_its_size() {
        let log = Log::default();
        let workload = Workload::Append64 { size: 8 * KIB, step: 4 * KIB };
        let mut workers = workload.workers(&log, 1, 1).unwrap();
        assert_eq!(workers[0].step(&log).unwrap(), Step::Done { bytes: 4096 });
        assert_eq!(workers[0].step(&log).unwrap(), Step::Done { bytes: 4096 });
        assert_eq!(workers[0].step(&log).unwrap(), Step::Finished);
    }

    #[test]
    fn fio_jobs_preallocate_in_the_parent_and_start_over_at_the_end() {
        let mut job = FioJob::new("smallfiles", 4 * KIB, 8 * KIB);
        let log = steps(&Workload::Fio(job.clone()), 3);
        assert_eq!(log[..3], ["0 create smallfiles.0.0", "0 fallocate 0 8192", "0 write 0 4096"]);
        assert_eq!(log[3..5], ["0 write 4096 4096", "0 write 0 4096"]);
        job.preallocate = false;
        assert_eq!(steps(&Workload::Fio(job), 1)[1], "0 write 0 4096");
    }

    /// As with fio's random map, each block is visited once before any is visited again. Two passes
    /// have different orders, but a second run of the worker repeats both.
    #[test]
    fn random_jobs_visit_every_block_once_a_pass() {
        let workload = Workload::Fio(FioJob {
            access: Access::RandomWrite,
            ..FioJob::new("randwrite", 4 * KIB, 40 * 4 * KIB)
        });
        let log = steps(&workload, 80);
        let writes = &log[2..82];
        let [mut first, mut second] = [writes[..40].to_vec(), writes[40..].to_vec()];
        assert_ne!(first, second);
        first.sort();
        second.sort();
        assert_eq!(first, second);
        assert_eq!(first.iter().collect::<std::collections::BTreeSet<_>>().len(), 40);
        assert_eq!(steps(&workload, 80), log);
        // Blocks that a pass has not reached are written before placement is judged.
        assert_eq!(steps(&workload, 3).iter().filter(|line| line.contains(" write ")).count(), 40);
    }

    #[test]
    fn jobs_that_read_lay_their_file_out_before() {
        for (access, name) in [(Access::Read, "seqread"), (Access::RandomRead, "randread")] {
            let job = FioJob { access, ..FioJob::new(name, 4 * KIB, 3 * 4 * KIB) };
            let log = steps(&Workload::Fio(job), 6);
            let file = format!("{name}.0.0");
            assert_eq!(
                log[..3],
                [format!("0 create {file}"), "0 fallocate 0 12288".into(), "0 write 0 12288".into()]
            );
            // Without this fsync, the file would still be written back during the reads.
            assert_eq!(log[3], format!("0 fsync {file}"));
            let mut reads = log[4..7].to_vec();
            assert_eq!(log[10..], [format!("0 close {file}")]);
            if access == Access::Read {
                assert_eq!(reads, log[7..10]);
            }
            reads.sort();
            assert_eq!(reads, ["0 read 0 4096", "0 read 4096 4096", "0 read 8192 4096"]);
        }
    }

    #[test]
    fn names_of_an_earlier_run_are_passed_over() {
        let log = Log { taken: vec!["append64.0.0", "append64.0.1"], ..Log::default() };
        Workload::by_name("append64", 1.0).unwrap().workers(&log, 2, 2).unwrap();
        assert_eq!(log.asked.into_inner().unwrap(), ["0 create append64.0.2", "1 create append64.1.0"]);
    }

    /// fio's `fallocate=native` falls back to none on a file system that does not support it, such
    /// as ext3.
    #[test]
    fn fio_jobs_do_without_preallocation_where_there_is_none() {
        let log = Log { cannot_allocate: true, ..Log::default() };
        let job = Workload::Fio(FioJob::new("smallfiles", 4 * KIB, 8 * KIB));
        assert_eq!(job.workers(&log, 1, 1).unwrap()[0].step(&log).unwrap(), Step::Done { bytes: 4096 });
        let append = Workload::by_name("append64", 1.0).unwrap();
        assert!(append.workers(&log, 1, 1).unwrap()[0].step(&log).is_err());
    }

    #[test]
    fn published_sizes_scale_to_whole_operations() {
        assert_eq!(
            Workload::by_name("append64", 0.1),
            Some(Workload::Append64 { size: 107_376_640, step: 4096 })
        );
        assert_eq!(Workload::by_name("seqwrite", 1e-9).unwrap().file_size(), MIB);
        assert_eq!(Workload::by_name("fallocate2", 0.1).unwrap().file_size(), 104 * KIB);
        assert_eq!(Workload::by_name("nothing", 1.0), None);
        for name in Workload::NAMES.into_iter().chain(["allocstress:fallocate=none"]) {
            assert_eq!(Workload::by_name(name, 1.0).unwrap().name(), name);
        }
        assert_eq!(Workload::by_name("seqwrite:fallocate=native", 1.0).unwrap().name(), "seqwrite");
        for wrong in ["append64:fallocate=none", "seqwrite:fallocate=posix", "seqwrite:", "e1"] {
            assert_eq!(Workload::by_name(wrong, 1.0), None, "{wrong}");
        }
    }

    #[test]
    fn workers_share_the_cpus_that_there_are() {
        let log = Log::default();
        Workload::by_name("fallocate2", 1.0).unwrap().workers(&log, 3, 2).unwrap();
        let cpus: Vec<_> = log.asked.into_inner().unwrap().iter().map(|line| line.as_bytes()[0]).collect();
        assert_eq!(cpus, *b"010");
    }
}
