//! What a workload runs against: a file system with files, driven by workers on CPU slots.
//!
//! Two kinds exist: blockyard's engine, called directly, and the running kernel on a mounted
//! directory, called through system calls. A comparison of the two says so, because only one of
//! them crosses that boundary.

pub mod engine;
pub mod kernel;
pub(crate) mod modelled;

use anyhow::{Result, bail};

/// The CPU slot that an operation acts on.
pub type Cpu = u32;

/// A file system under test. Calls block; several workers call at once.
pub trait Target: Send + Sync {
    /// An open file.
    type File: Send + Sync;

    /// Creates an empty regular file in the root directory and opens it for writing; `None` where
    /// the name is taken.
    ///
    /// # Errors
    /// As the file system answers, with the name.
    fn create(&self, cpu: Cpu, name: &str) -> Result<Option<Self::File>>;

    /// Allocates `[offset, offset + length)` and extends the file's size over it (fallocate mode
    /// 0). Bytes.
    ///
    /// # Errors
    /// As the file system answers.
    fn fallocate(&self, cpu: Cpu, file: &Self::File, offset: u64, length: u64) -> Result<()>;

    /// Sets the size in bytes.
    ///
    /// # Errors
    /// As the file system answers.
    fn truncate(&self, cpu: Cpu, file: &Self::File, size: u64) -> Result<()>;

    /// Writes `data` at `offset` through the cache.
    ///
    /// # Errors
    /// As the file system answers.
    fn write(&self, cpu: Cpu, file: &Self::File, offset: u64, data: &[u8]) -> Result<()>;

    /// Fills `buf` from `offset` through the cache; the file reaches so far.
    ///
    /// # Errors
    /// As the file system answers.
    fn read(&self, cpu: Cpu, file: &Self::File, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Makes what was written durable.
    ///
    /// # Errors
    /// As the file system answers.
    fn fsync(&self, cpu: Cpu, file: &Self::File) -> Result<()>;

    /// Closes a file.
    ///
    /// # Errors
    /// As the file system answers.
    fn close(&self, cpu: Cpu, file: Self::File) -> Result<()>;

    /// Switches optimised scanning (`mb_optimize_scan`) on when it is off, and off when it is on.
    ///
    /// # Errors
    /// Where that is only possible at mount.
    fn switch_scan(&self) -> Result<()> {
        bail!("scanswitch: the scan mode of a mounted file system is not switched here")
    }

    /// Called once by each worker thread before its first operation, to pin it where that means
    /// something.
    fn enter_worker(&self, _cpu: Cpu) {}

    /// Called between rounds of lockstep and overlap: operations of one round count as simultaneous
    /// in overlap.
    fn next_round(&self) {}
}
