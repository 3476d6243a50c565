//! `append64`: fio's falloc engine in append mode without preallocation. Each operation is one
//! fallocate that extends the file, until the file has its full size.

use anyhow::Result;

use super::{Step, Worker};
use crate::target::{Cpu, Target};

pub(super) struct Append<F> {
    cpu: Cpu,
    file: F,
    size: u64,
    step: u64,
    at: u64,
}

impl<F> Append<F> {
    pub(super) fn new(cpu: Cpu, file: F, size: u64, step: u64) -> Self {
        Self { cpu, file, size, step, at: 0 }
    }
}

impl<T: Target> Worker<T> for Append<T::File> {
    fn step(&mut self, target: &T) -> Result<Step> {
        if self.at >= self.size {
            return Ok(Step::Finished);
        }
        target.fallocate(self.cpu, &self.file, self.at, self.step)?;
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
