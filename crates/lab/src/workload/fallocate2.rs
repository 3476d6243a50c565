//! `fallocate2` of will-it-scale: append by fallocate until the file is full, truncate it to zero,
//! repeat. Each fallocate and each truncate is one operation.

use anyhow::Result;

use super::{Step, Worker};
use crate::target::{Cpu, Target};

pub(super) struct Fallocate2<F> {
    cpu: Cpu,
    file: F,
    size: u64,
    step: u64,
    at: u64,
    switches_scan: bool,
}

impl<F> Fallocate2<F> {
    pub(super) fn new(cpu: Cpu, file: F, size: u64, step: u64) -> Self {
        Self { cpu, file, size, step, at: 0, switches_scan: false }
    }

    /// Toggles optimised scanning before each truncate.
    pub(super) fn switching_scan(self) -> Self {
        Self { switches_scan: true, ..self }
    }
}

impl<T: Target> Worker<T> for Fallocate2<T::File> {
    fn step(&mut self, target: &T) -> Result<Step> {
        if self.at >= self.size {
            if self.switches_scan {
                target.switch_scan()?;
            }
            target.truncate(self.cpu, &self.file, 0)?;
            self.at = 0;
            return Ok(Step::Done { bytes: 0 });
        }
        target.fallocate(self.cpu, &self.file, self.at, self.step)?;
        self.at += self.step;
        Ok(Step::Done { bytes: self.step })
    }

    fn fill(&mut self, target: &T) -> Result<Step> {
        if self.at < self.size { self.step(target) } else { Ok(Step::Finished) }
    }

    fn sync(&mut self, target: &T) -> Result<()> {
        target.fsync(self.cpu, &self.file)
    }

    fn close(self: Box<Self>, target: &T) -> Result<()> {
        target.close(self.cpu, self.file)
    }
}
