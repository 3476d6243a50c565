//! blockyard's engine as a target: files in the root directory of an open image, called directly.

use anyhow::{Context, Result};
use blockyard_disk::inode::FileType;
use blockyard_disk::{InodeNr, Timestamp};
use blockyard_engine::{Fallocate, FileSystem, NewInode, OpContext};
use blockyard_sync::CpuSlot;

use super::{Cpu, Target};

/// Time in inodes: fixed, so that an image depends on its inputs only.
const NOW: i64 = 1_700_000_000;

/// Files in the root directory of an open file system.
pub struct EngineTarget {
    fs: FileSystem,
}

impl EngineTarget {
    /// A target on an open file system.
    #[must_use]
    pub fn new(fs: FileSystem) -> Self {
        Self { fs }
    }

    /// The file system.
    #[must_use]
    pub fn file_system(&self) -> &FileSystem {
        &self.fs
    }

    /// Closes the file system: everything is on the device afterwards.
    ///
    /// # Errors
    /// Of the device.
    pub fn close(self) -> Result<()> {
        self.fs.close(&context(0)).context("close the image")
    }
}

/// The context of an operation on a CPU slot.
#[must_use]
pub fn context(cpu: Cpu) -> OpContext {
    OpContext::root_at(Timestamp::from_seconds(NOW)).on(CpuSlot::new(cpu))
}

impl Target for EngineTarget {
    type File = InodeNr;

    fn create(&self, cpu: Cpu, name: &str) -> Result<InodeNr> {
        let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
        let made = self.fs.create(&context(cpu), InodeNr::ROOT, name.as_bytes(), &new);
        let inode = made.with_context(|| format!("create {name}"))?;
        self.fs.open_inode(inode, true).with_context(|| format!("open {name}"))?;
        Ok(inode)
    }

    fn fallocate(&self, cpu: Cpu, file: &InodeNr, offset: u64, length: u64) -> Result<()> {
        self.fs.fallocate(&context(cpu), *file, Fallocate::Allocate, offset, length).context("fallocate")
    }

    fn truncate(&self, cpu: Cpu, file: &InodeNr, size: u64) -> Result<()> {
        self.fs.truncate(&context(cpu), *file, size).context("truncate")
    }

    fn write(&self, cpu: Cpu, file: &InodeNr, offset: u64, data: &[u8]) -> Result<()> {
        self.fs.write(&context(cpu), *file, offset, data).context("write")
    }

    fn close(&self, cpu: Cpu, file: InodeNr) -> Result<()> {
        self.fs.release_inode(&context(cpu), file, true).context("close")
    }
}
