//! The running kernel as a target: files in a mounted directory, through system calls.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::{FallocateFlags, OFlags, fallocate, fcntl_getfl, fcntl_setfl};

use super::{Cpu, Target};

/// Files in one directory of a mounted file system.
#[derive(Debug)]
pub struct KernelTarget {
    directory: PathBuf,
    cpus: Vec<usize>,
}

impl KernelTarget {
    /// A target in an existing directory. A worker's thread with CPU slot `k` is pinned to the
    /// `k`-th of the CPUs that the calling thread may use, starting over after the last.
    #[must_use]
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.to_path_buf(), cpus: crate::cpus::allowed() }
    }
}

impl Target for KernelTarget {
    type File = File;

    fn create(&self, _: Cpu, name: &str) -> Result<Option<File>> {
        let path = self.directory.join(name);
        match OpenOptions::new().read(true).write(true).create_new(true).open(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(None),
            made => made.map(Some).with_context(|| format!("create {}", path.display())),
        }
    }

    fn fallocate(&self, _: Cpu, file: &File, offset: u64, length: u64) -> Result<()> {
        fallocate(file, FallocateFlags::empty(), offset, length).context("fallocate")
    }

    fn truncate(&self, _: Cpu, file: &File, size: u64) -> Result<()> {
        file.set_len(size).context("ftruncate")
    }

    fn write(&self, _: Cpu, file: &File, offset: u64, data: &[u8]) -> Result<()> {
        file.write_all_at(data, offset).context("pwrite")
    }

    fn make_direct(&self, file: &File) -> Result<()> {
        let flags = fcntl_getfl(file).context("fcntl")?;
        fcntl_setfl(file, flags | OFlags::DIRECT).context("O_DIRECT")
    }

    fn write_direct(&self, _: Cpu, file: &File, offset: u64, data: &[u8]) -> Result<()> {
        file.write_all_at(data, offset).context("direct pwrite")
    }

    fn unlink(&self, _: Cpu, name: &str) -> Result<()> {
        let path = self.directory.join(name);
        std::fs::remove_file(&path).with_context(|| format!("unlink {}", path.display()))
    }

    fn read(&self, _: Cpu, file: &File, offset: u64, buf: &mut [u8]) -> Result<()> {
        file.read_exact_at(buf, offset).context("pread")
    }

    fn fsync(&self, _: Cpu, file: &File) -> Result<()> {
        file.sync_all().context("fsync")
    }

    fn close(&self, _: Cpu, file: File) -> Result<()> {
        drop(file);
        Ok(())
    }

    fn enter_worker(&self, cpu: Cpu) {
        // A worker that cannot be pinned still measures; it is only noisier.
        let _ = crate::cpus::stay_on(&self.cpus, blockyard_disk::num::usize_from_u32(cpu));
    }
}
