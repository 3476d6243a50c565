//! Jobs of fio: the three jobs of the published comparison of round-robin allocation (`rw=write`),
//! and jobs with `randwrite`, `read` and `randread`. All jobs set `time_based` and
//! `group_reporting`.
//!
//! The options as fio defines them:
//!
//! - Each job has its own file of `size` bytes.
//! - Unless `fallocate=none`, the parent preallocates every file, one after the other, before any
//!   job starts. Files to be read are laid out completely and made durable (`create_fsync=1`).
//! - Operations go through the page cache in blocks of `bs` bytes. They visit the blocks in
//!   ascending order, or in random order, every block once before any is visited again.
//! - With `time_based` a job that has visited its whole file starts over. From then on its writes
//!   overwrite.

use anyhow::Result;
use blockyard_disk::num::{u64_from_usize, usize_from_u64};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::{MIB, Step, Worker};
use crate::target::{Cpu, Target};

/// The access of a job to its file: fio's `rw`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// `write`.
    Write,
    /// `randwrite`.
    RandomWrite,
    /// `read`.
    Read,
    /// `randread`.
    RandomRead,
}

impl Access {
    pub(super) const fn reads(self) -> bool {
        matches!(self, Self::Read | Self::RandomRead)
    }

    const fn is_random(self) -> bool {
        matches!(self, Self::RandomWrite | Self::RandomRead)
    }
}

/// One fio job section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FioJob {
    /// Name of the job, and prefix of the names of its files.
    pub name: String,
    /// `rw`: the access to the file.
    pub access: Access,
    /// `bs`: bytes of one operation.
    pub block: u64,
    /// `size`: bytes of one job's file, a multiple of `block`.
    pub size: u64,
    /// Whether the parent preallocates every file. True is fio's default, `fallocate=native`; false
    /// is `fallocate=none`.
    pub preallocate: bool,
}

impl FioJob {
    /// A job that writes in ascending order, with fio's default preallocation.
    #[must_use]
    pub fn new(name: &str, block: u64, size: u64) -> Self {
        Self { name: name.to_owned(), access: Access::Write, block, size, preallocate: true }
    }
}

/// Preallocates as the parent does with `fallocate=native`. Like fio it continues if the file
/// system cannot preallocate.
///
/// # Errors
/// Those of the target.
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

/// Creates the worker of a job on an open file. For a job that reads, the file is laid out and made
/// durable first. `index` selects the order of random operations.
///
/// # Errors
/// Those of the target.
pub(super) fn worker<'t, T: Target>(
    target: &T,
    (cpu, index): (Cpu, u32),
    file: T::File,
    job: &FioJob,
) -> Result<Box<dyn Worker<T> + 't>>
where
    T::File: 't,
{
    if job.access.reads() {
        let data = vec![0; usize_from_u64(job.size.min(MIB))];
        let mut at = 0;
        while at < job.size {
            let length = usize_from_u64((job.size - at).min(MIB));
            target.write(cpu, &file, at, &data[..length])?;
            at += u64_from_usize(length);
        }
        target.fsync(cpu, &file)?;
    }
    Ok(Box::new(FioWorker::new(cpu, index, file, job)))
}

struct FioWorker<F> {
    cpu: Cpu,
    file: F,
    access: Access,
    data: Vec<u8>,
    /// Blocks of the file, and how many of them this pass has visited.
    blocks: u64,
    visited: u64,
    /// The random order in which a pass visits the blocks; empty if the order is ascending.
    order: Vec<u64>,
    random: ChaCha8Rng,
    /// Whether every byte was written.
    full: bool,
}

impl<F> FioWorker<F> {
    fn new(cpu: Cpu, index: u32, file: F, job: &FioJob) -> Self {
        // Zeroes, because a sparse memory device does not store them. So even the largest jobs need
        // little memory.
        let data = vec![0; usize_from_u64(job.block)];
        let blocks = job.size / job.block;
        let order = if job.access.is_random() { (0..blocks).collect() } else { Vec::new() };
        let random = ChaCha8Rng::seed_from_u64(index.into());
        let full = job.access.reads();
        Self { cpu, file, access: job.access, data, blocks, visited: 0, order, random, full }
    }

    /// The offset of the next operation.
    fn next(&mut self) -> u64 {
        if self.visited == 0 {
            self.order.shuffle(&mut self.random);
        }
        let block = self.order.get(usize_from_u64(self.visited)).copied().unwrap_or(self.visited);
        self.visited += 1;
        if self.visited >= self.blocks {
            self.visited = 0;
        }
        block * u64_from_usize(self.data.len())
    }
}

impl<T: Target> Worker<T> for FioWorker<T::File> {
    fn step(&mut self, target: &T) -> Result<Step> {
        let at = self.next();
        if self.access.reads() {
            target.read(self.cpu, &self.file, at, &mut self.data)?;
        } else {
            target.write(self.cpu, &self.file, at, &self.data)?;
        }
        self.full |= self.visited == 0;
        Ok(Step::Done { bytes: u64_from_usize(self.data.len()) })
    }

    fn fill(&mut self, target: &T) -> Result<Step> {
        if self.full { Ok(Step::Finished) } else { self.step(target) }
    }

    fn sync(&mut self, target: &T) -> Result<()> {
        target.fsync(self.cpu, &self.file)
    }

    fn close(self: Box<Self>, target: &T) -> Result<()> {
        target.close(self.cpu, self.file)
    }
}
