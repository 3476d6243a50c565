//! The content of files: reading, writing, and which blocks they have.

use crate::{Fallocate, FileSystem, OpContext, Result};
use blockyard_disk::InodeNr;

impl FileSystem {
    /// Reads at byte `offset` into `buf`; gives the number of bytes, less than asked only at the end of the file. Waits for no
    /// device write of others: beside a write to the same bytes it gives old ones, new ones, or some of each, never others.
    ///
    /// # Errors
    /// [`Error::IsDirectory`], [`Error::StaleInode`], [`Error::Corrupt`], [`Error::Device`].
    pub fn read(&self, ctx: &OpContext, inode: InodeNr, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.files.read(ctx, inode, offset, buf)
    }

    /// Reads at byte `offset` from the device at once, after what waits of the range was written. Offset and length are whole
    /// blocks; gives the number of bytes, less than asked only at the end of the file.
    ///
    /// # Errors
    /// As [`FileSystem::read`]; [`Error::Invalid`] for parts of blocks; those of writing back.
    pub fn read_direct(&self, ctx: &OpContext, inode: InodeNr, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.files.read_direct(ctx, inode, offset, buf)
    }

    /// Writes all of `bytes` at byte `offset`, past the end too; a gap reads as zeroes. The data is durable after
    /// [`FileSystem::fsync`] or [`FileSystem::sync`].
    ///
    /// # Errors
    /// [`Error::NoSpace`], before anything changed unless the data fits and its mapping does not, or others take the space of
    /// a write in pieces meanwhile; [`Error::FileTooLarge`], [`Error::NotPermitted`],
    /// [`Error::IsDirectory`], [`Error::ReadOnly`], and those of reading.
    pub fn write(&self, ctx: &OpContext, inode: InodeNr, offset: u64, bytes: &[u8]) -> Result<()> {
        self.files.write(ctx, inode, offset, bytes)
    }

    /// As [`FileSystem::write`], but of what does not fit as a whole the beginning is written that does; gives the
    /// number of bytes.
    ///
    /// # Errors
    /// As [`FileSystem::write`]; [`Error::NoSpace`] when nothing fits.
    pub fn write_some(&self, ctx: &OpContext, inode: InodeNr, offset: u64, bytes: &[u8]) -> Result<usize> {
        self.files.write_some(ctx, inode, offset, bytes)
    }

    /// Writes all of `bytes` at the end of the file; gives the offset where they went.
    ///
    /// # Errors
    /// As [`FileSystem::write`].
    pub fn append(&self, ctx: &OpContext, inode: InodeNr, bytes: &[u8]) -> Result<u64> {
        self.files.append(ctx, inode, bytes)
    }

    /// Writes at byte `offset` to the device at once; gives the number of bytes that went when space ran out. Offset and
    /// length are whole blocks. The mapping is durable after [`FileSystem::fsync`] only.
    ///
    /// Files that are not mapped by extents, or log their data, are written as by [`FileSystem::write_some`].
    ///
    /// # Errors
    /// As [`FileSystem::write_some`]; [`Error::Invalid`] for parts of blocks.
    pub fn write_direct(&self, ctx: &OpContext, inode: InodeNr, offset: u64, bytes: &[u8]) -> Result<usize> {
        self.files.write_direct(ctx, inode, offset, bytes)
    }

    /// Sets a file's size. What is cut off is freed; what is added reads as zeroes.
    ///
    /// # Errors
    /// As [`FileSystem::write`].
    pub fn truncate(&self, ctx: &OpContext, inode: InodeNr, size: u64) -> Result<()> {
        self.files.truncate(ctx, inode, size)
    }

    /// Changes the allocation of `len` bytes at byte `offset`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an empty range or one that is not aligned where it must be; [`Error::NotSupported`] for
    /// indirect-mapped files where unwritten extents are needed; [`Error::NoSpace`]; as [`FileSystem::write`].
    pub fn fallocate(
        &self,
        ctx: &OpContext,
        inode: InodeNr,
        what: Fallocate,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.files.fallocate(ctx, inode, what, offset, len)
    }
}
