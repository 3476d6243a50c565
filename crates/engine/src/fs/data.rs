//! The content of files: reading, writing, and their blocks.

#[cfg(doc)]
use crate::Error;
use std::ops::Range;

use crate::{Fallocate, FileExtent, FileSystem, InodeRef, OpContext, Result, Seek};

impl FileSystem {
    /// Reads at byte `offset` into `buf`. Returns the number of bytes, which is less than asked
    /// only at the end of the file. A read does not wait while other operations write data to the
    /// device, but it waits while blocks of the file are freed or moved. If a write to the same
    /// bytes runs at the same time, the read returns old bytes, new bytes, or some of each, and
    /// nothing else.
    ///
    /// # Errors
    /// [`Error::IsDirectory`], [`Error::Invalid`] for anything else that is no regular file,
    /// [`Error::StaleInode`], [`Error::Corrupt`], [`Error::Device`].
    pub fn read(
        &self,
        ctx: &OpContext,
        inode: impl Into<InodeRef>,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        let _operation = self.volume.watch();
        self.files.read(ctx, inode.into(), offset, buf)
    }

    /// Reads at byte `offset` directly from the device, after writing back dirty data in the range.
    /// Offset and length must be whole blocks. Returns the number of bytes, which is less than
    /// asked only at the end of the file. Content in the inode, and logged data, are read as by
    /// [`FileSystem::read`].
    ///
    /// # Errors
    /// As [`FileSystem::read`]; [`Error::Invalid`] for partial blocks; errors of write-back.
    pub fn read_direct(
        &self,
        ctx: &OpContext,
        inode: impl Into<InodeRef>,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        let _operation = self.volume.watch();
        self.files.read_direct(ctx, inode.into(), offset, buf)
    }

    /// Writes all of `bytes` at byte `offset`, even past the end; a gap reads as zeroes. The data
    /// is durable after [`FileSystem::fsync`] or [`FileSystem::sync`].
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::FileTooLarge`], [`Error::NotPermitted`],
    /// [`Error::ReadOnly`], and as [`FileSystem::read`]. After [`Error::NoSpace`] nothing has
    /// changed, with two exceptions: if the data fits but its mapping does not, or if others take
    /// the space meanwhile, the beginning of a long write may have been written.
    pub fn write(
        &self,
        ctx: &OpContext,
        inode: impl Into<InodeRef>,
        offset: u64,
        bytes: &[u8],
    ) -> Result<()> {
        let _operation = self.volume.watch();
        self.files.write(ctx, inode.into(), offset, bytes)
    }

    /// As [`FileSystem::write`], but if not all bytes fit, writes only the first ones that do.
    /// Returns the number of bytes written.
    ///
    /// # Errors
    /// As [`FileSystem::write`]; [`Error::NoSpace`] when nothing fits.
    pub fn write_some(
        &self,
        ctx: &OpContext,
        inode: impl Into<InodeRef>,
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize> {
        let _operation = self.volume.watch();
        self.files.write_some(ctx, inode.into(), offset, bytes)
    }

    /// Writes all of `bytes` at the end of the file. Returns the offset where they begin.
    ///
    /// # Errors
    /// As [`FileSystem::write`].
    pub fn append(&self, ctx: &OpContext, inode: impl Into<InodeRef>, bytes: &[u8]) -> Result<u64> {
        let _operation = self.volume.watch();
        self.files.append(ctx, inode.into(), bytes)
    }

    /// As [`FileSystem::append`], but if not all bytes fit, appends only the first ones that do.
    /// Returns the range of the file, in bytes, that was appended.
    ///
    /// # Errors
    /// As [`FileSystem::append`]; [`Error::NoSpace`] when nothing fits.
    pub fn append_some(
        &self,
        ctx: &OpContext,
        inode: impl Into<InodeRef>,
        bytes: &[u8],
    ) -> Result<Range<u64>> {
        let _operation = self.volume.watch();
        self.files.append_some(ctx, inode.into(), bytes)
    }

    /// Writes at byte `offset` directly to the device. Returns the number of bytes, which is less
    /// than asked if space runs out or the file reaches its largest size. Offset and length must be
    /// whole blocks. Data and mapping are durable only after [`FileSystem::fsync`].
    ///
    /// Files that log their data are written as by [`FileSystem::write_some`]. In a file without
    /// extents, a write that meets a hole before the end of the file continues as
    /// [`FileSystem::write_some`], and this data is then written back.
    ///
    /// # Errors
    /// As [`FileSystem::write_some`]; [`Error::Invalid`] for partial blocks.
    pub fn write_direct(
        &self,
        ctx: &OpContext,
        inode: impl Into<InodeRef>,
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize> {
        let _operation = self.volume.watch();
        self.files.write_direct(ctx, inode.into(), offset, bytes)
    }

    /// Sets a file's size. The part cut off is freed; an added part reads as zeroes.
    ///
    /// # Errors
    /// As [`FileSystem::write`].
    pub fn truncate(&self, ctx: &OpContext, inode: impl Into<InodeRef>, size: u64) -> Result<()> {
        let _operation = self.volume.watch();
        self.files.truncate(ctx, inode.into(), size)
    }

    /// Changes the allocation of `len` bytes at byte `offset`.
    ///
    /// # Errors
    /// As [`FileSystem::write`], and those below. What was allocated or zeroed before an error
    /// stays.
    /// * [`Error::Invalid`] for an empty range, for collapsing a range that reaches the end of the
    ///   file, and for inserting a range at or behind the end. Ranges to collapse or insert must be
    ///   aligned to clusters.
    /// * [`Error::NotSupported`] in a file without extents, except for [`Fallocate::PunchHole`];
    ///   and for moving more extents than the journal can take at once.
    pub fn fallocate(
        &self,
        ctx: &OpContext,
        inode: impl Into<InodeRef>,
        what: Fallocate,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let _operation = self.volume.watch();
        self.files.fallocate(ctx, inode.into(), what, offset, len)
    }

    /// Where the bytes of a file lie from byte `from` on: at most `most` pieces in ascending order,
    /// without holes. Dirty data is shown at the blocks to which it is mapped already, if any.
    ///
    /// # Errors
    /// As [`FileSystem::read`].
    pub fn extents(&self, inode: impl Into<InodeRef>, from: u64, most: usize) -> Result<Vec<FileExtent>> {
        let _operation = self.volume.watch();
        self.files.extents(inode.into(), from, most)
    }

    /// The first byte at or after `offset` that is data or that is in a hole, depending on `what`.
    /// `None` if data is sought and none follows, or if `offset` is not inside the file. The end of
    /// the file counts as a hole. Unwritten blocks are holes unless they are dirty.
    ///
    /// # Errors
    /// As [`FileSystem::read`].
    pub fn seek(&self, inode: impl Into<InodeRef>, offset: u64, what: Seek) -> Result<Option<u64>> {
        let _operation = self.volume.watch();
        self.files.seek(inode.into(), offset, what)
    }
}
