//! The target of a workload: a file system with files, driven by workers on CPU slots.
//!
//! There are three kinds: blockyard's engine, called directly; its allocator alone, in virtual
//! time; and the running kernel on a mounted directory, called through system calls. Only the
//! kernel has the cost of system calls, so every comparison with it carries a caveat.

pub mod engine;
pub mod kernel;
pub(crate) mod modelled;

use anyhow::{Result, bail};

/// The CPU slot that an operation runs on.
pub type Cpu = u32;

/// A file system under test. Calls block; several workers call at once.
pub trait Target: Send + Sync {
    /// An open file.
    type File: Send + Sync;

    /// Creates an empty regular file in the target's directory and opens it for reading and
    /// writing; `None` if the name exists.
    ///
    /// # Errors
    /// Those of the file system, with the name.
    fn create(&self, cpu: Cpu, name: &str) -> Result<Option<Self::File>>;

    /// Allocates `[offset, offset + length)`, in bytes, and extends the file's size to cover it
    /// (fallocate mode 0).
    ///
    /// # Errors
    /// Those of the file system.
    fn fallocate(&self, cpu: Cpu, file: &Self::File, offset: u64, length: u64) -> Result<()>;

    /// Sets the size in bytes.
    ///
    /// # Errors
    /// Those of the file system.
    fn truncate(&self, cpu: Cpu, file: &Self::File, size: u64) -> Result<()>;

    /// Writes `data` at `offset` through the cache.
    ///
    /// # Errors
    /// Those of the file system.
    fn write(&self, cpu: Cpu, file: &Self::File, offset: u64, data: &[u8]) -> Result<()>;

    /// Prepares a file for [`Self::write_direct`]. The file takes no other writes afterwards.
    ///
    /// # Errors
    /// Those of the file system.
    fn make_direct(&self, _file: &Self::File) -> Result<()> {
        Ok(())
    }

    /// Writes `data` to the device, not to the cache. `offset` and the length of `data` are
    /// multiples of the block size. The address of `data` is a multiple of 4096.
    ///
    /// # Errors
    /// Those of the file system.
    fn write_direct(&self, cpu: Cpu, file: &Self::File, offset: u64, data: &[u8]) -> Result<()>;

    /// Deletes a file of the target's directory that is not open.
    ///
    /// # Errors
    /// Those of the file system, with the name.
    fn unlink(&self, cpu: Cpu, name: &str) -> Result<()>;

    /// Fills `buf` from `offset` through the cache; the file must be long enough.
    ///
    /// # Errors
    /// Those of the file system.
    fn read(&self, cpu: Cpu, file: &Self::File, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Makes the written data durable.
    ///
    /// # Errors
    /// Those of the file system.
    fn fsync(&self, cpu: Cpu, file: &Self::File) -> Result<()>;

    /// Closes a file.
    ///
    /// # Errors
    /// Those of the file system.
    fn close(&self, cpu: Cpu, file: Self::File) -> Result<()>;

    /// Toggles optimised scanning (`mb_optimize_scan`).
    ///
    /// # Errors
    /// When the target cannot do that while it is mounted.
    fn switch_scan(&self) -> Result<()> {
        bail!("scanswitch: the scan mode of a mounted file system cannot be switched here")
    }

    /// Called once by each worker thread before its first operation. Targets that depend on the CPU
    /// pin the thread here.
    fn enter_worker(&self, _cpu: Cpu) {}

    /// Called between rounds of lockstep and overlap. In overlap, operations of one round count as
    /// simultaneous.
    fn next_round(&self) {}
}
