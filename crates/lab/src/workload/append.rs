//! `append64`: fio's falloc engine in append mode without preallocation. Each operation is one
//! fallocate that extends the file, until the file has its full size.
//!
//! `directappend` is the same with direct writes.

use anyhow::Result;
use blockyard_disk::num::usize_from_u64;

use super::{Step, Worker};
use crate::aligned::Aligned;
use crate::target::{Cpu, Target};

/// How a file grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Fallocate,
    DirectWrite,
}

pub(super) struct Append<F> {
    cpu: Cpu,
    file: F,
    size: u64,
    step: u64,
    at: u64,
    /// The content of a direct write; `None` for fallocate.
    content: Option<Aligned>,
}

impl<F> Append<F> {
    pub(super) fn new(cpu: Cpu, file: F, (size, step): (u64, u64), by: By) -> Self {
        let content = (by == By::DirectWrite).then(|| Aligned::zeroes(usize_from_u64(step)));
        Self { cpu, file, size, step, at: 0, content }
    }
}

impl<T: Target> Worker<T> for Append<T::File> {
    fn step(&mut self, target: &T) -> Result<Step> {
        if self.at >= self.size {
            return Ok(Step::Finished);
        }
        match &self.content {
            Some(content) => target.write_direct(self.cpu, &self.file, self.at, content.bytes())?,
            None => target.fallocate(self.cpu, &self.file, self.at, self.step)?,
        }
        self.at += self.step;
        Ok(Step::Done { bytes: self.step })
    }

    fn fill(&mut self, target: &T) -> Result<Step> {
        self.step(target)
    }

    fn sync(&mut self, target: &T) -> Result<()> {
        target.fsync(self.cpu, &self.file)
    }

    fn close(self: Box<Self>, target: &T) -> Result<()> {
        target.close(self.cpu, self.file)
    }
}
