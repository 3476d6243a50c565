//! The three fio jobs of the round-robin comparison: `rw=write`, one file a job, `time_based`, `group_reporting`.
//!
//! Meanings of the options, as fio defines them: each job has its own file of `size` bytes; unless `fallocate=none`,
//! the parent preallocates every file, one after the other, before any job starts; writes are sequential in blocks of
//! `bs` through the page cache; with `time_based` a job that reaches the end of its file starts over at its beginning,
//! so that from then on it overwrites.

use anyhow::Result;

use super::{Step, Worker};
use crate::target::{Cpu, Target};

/// One fio job section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FioJob {
    /// Name of the job, which begins its files' names.
    pub name: String,
    /// `bs`: bytes of one write.
    pub block: u64,
    /// `size`: bytes of one job's file, a multiple of `block`.
    pub size: u64,
    /// fio's default (`fallocate=native`): the parent preallocates every file. False is `fallocate=none`.
    pub preallocate: bool,
}

impl FioJob {
    /// A job with fio's default preallocation.
    #[must_use]
    pub fn new(name: &str, block: u64, size: u64) -> Self {
        Self { name: name.to_owned(), block, size, preallocate: true }
    }
}

/// What the parent does with `fallocate=native`; like fio it goes on where the file system cannot preallocate.
///
/// # Errors
/// As the target answers.
pub(super) fn preallocate<T: Target>(target: &T, cpu: Cpu, file: &T::File, size: u64) -> Result<()> {
    match target.fallocate(cpu, file, 0, size) {
        Err(error) if is_unsupported(&error) => Ok(()),
        done => done,
    }
}

fn is_unsupported(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(blockyard_engine::Error::NotSupported(_)))
        || error.downcast_ref() == Some(&rustix::io::Errno::OPNOTSUPP)
}

pub(super) struct SequentialWriter<F> {
    cpu: Cpu,
    file: F,
    data: Vec<u8>,
    size: u64,
    at: u64,
    /// Whether every byte was written once.
    full: bool,
}

impl<F> SequentialWriter<F> {
    pub(super) fn new(cpu: Cpu, file: F, job: &FioJob) -> Self {
        // Zeroes: a sparse memory device keeps no storage for them, so the sizes of the jobs fit any machine.
        let data = vec![0; blockyard_disk::num::usize_from_u64(job.block)];
        Self { cpu, file, data, size: job.size, at: 0, full: false }
    }
}

impl<T: Target> Worker<T> for SequentialWriter<T::File> {
    fn step(&mut self, target: &T) -> Result<Step> {
        target.write(self.cpu, &self.file, self.at, &self.data)?;
        let bytes = blockyard_disk::num::u64_from_usize(self.data.len());
        self.at += bytes;
        if self.at >= self.size {
            self.at = 0;
            self.full = true;
        }
        Ok(Step::Done { bytes })
    }

    fn fill(&mut self, target: &T) -> Result<Step> {
        if self.full { Ok(Step::Finished) } else { self.step(target) }
    }

    fn close(self: Box<Self>, target: &T) -> Result<()> {
        target.close(self.cpu, self.file)
    }
}
