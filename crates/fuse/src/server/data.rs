//! The content of files.

use std::sync::Arc;

use blockyard::disk::inode::InodeFlags;
use blockyard::disk::num::{u64_from_u32, u64_from_usize, usize_from_u32};
use blockyard::{Fallocate, File};
use rustix::fs::OFlags;

use super::{Caller, HandleNr, NodeNr, Server};
use crate::errno::{Answer, Errno};
use crate::handles::Use;

/// An open file, and how the kernel must treat it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The kernel's number for the open file.
    pub handle: HandleNr,
    /// Whether the kernel must not cache writes. There are two possible reasons:
    /// - The file is append-only, but the kernel would write back whole pages.
    /// - The kernel believes the file to be longer than files can be. Bytes that the kernel cached
    ///   for an append would then be lost.
    pub is_uncached: bool,
}

/// How bytes are read or written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfer {
    /// Whether to bypass the file system's cache, if offset and length are whole blocks.
    pub is_direct: bool,
    /// The writer, if the write must clear the file's set-id bits and capabilities, because this
    /// writer may not keep them.
    pub unprivileged: Option<Caller>,
    /// Whether the kernel writes back its cache. Then the kernel ignores a short count, so the
    /// write must fail unless all bytes were written.
    pub is_cached: bool,
}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Bytes written.
    pub len: u32,
    /// Whether the file's block count has changed. If so, the kernel is still to be notified.
    pub allocates: bool,
}

impl Server {
    /// Opens a file.
    ///
    /// # Errors
    /// `EPERM` if the file's flags forbid it.
    pub fn open(&self, caller: Caller, node: NodeNr, flags: OFlags) -> Answer<Opened> {
        let id = self.id(node)?;
        let writes = flags.intersects(OFlags::WRONLY | OFlags::RDWR);
        let mut is_uncached = self.nodes.is_overlong(id.number);
        if writes {
            let of_inode = self.inodes().metadata(id)?.flags();
            if of_inode.contains(InodeFlags::IMMUTABLE) {
                return Err(Errno::PERM);
            }
            if of_inode.contains(InodeFlags::APPEND) {
                if !flags.contains(OFlags::APPEND) {
                    return Err(Errno::PERM);
                }
                is_uncached = true;
            }
        }
        // Every handle can read, because the kernel fills the rest of a partly written page through
        // the handle of the writer.
        let fs = if is_uncached { self.as_caller(caller) } else { self.as_caching_caller(caller) };
        let file = fs.by_inode().open(id, true, writes)?;
        let what_for = match (writes, is_uncached) {
            (false, _) => Use::Reading,
            (true, false) => Use::Writing,
            (true, true) => Use::WritingUncached,
        };
        Ok(Opened { handle: self.handles.insert(file, what_for), is_uncached })
    }

    /// Closes a file.
    pub fn release(&self, handle: HandleNr) {
        let is_nameless = |file: Arc<File>| file.metadata().is_ok_and(|metadata| metadata.nlink() == 0);
        if self.handles.get(handle).is_ok_and(is_nameless) {
            self.removals.note();
        }
        self.handles.remove(handle);
    }

    /// Reads at most `size` bytes into `into`, replacing its content.
    ///
    /// # Errors
    /// `EBADF`, or a device error.
    pub fn read(
        &self,
        handle: HandleNr,
        offset: u64,
        size: u32,
        how: Transfer,
        into: &mut Vec<u8>,
    ) -> Answer<()> {
        let file = self.handles.get(handle)?;
        into.resize(usize_from_u32(size), 0);
        let read = if how.is_direct && self.is_whole_blocks(offset, into.len()) {
            file.read_direct_at(into, offset)?
        } else {
            file.read_at(into, offset)?
        };
        into.truncate(read);
        self.note_access(file.id());
        Ok(())
    }

    /// Whether the kernel's cache may hold bytes that were written to a file but not sent to us.
    /// Returns true while the file is open for writing.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn may_be_cached(&self, handle: HandleNr) -> Answer<bool> {
        Ok(self.handles.is_written(self.handles.get(handle)?.id().number))
    }

    /// The inodes that are open for writing: the kernel's cache may hold bytes of these files that
    /// were not sent to us.
    #[must_use]
    pub fn written(&self) -> Vec<NodeNr> {
        self.handles.written().into_iter().map(NodeNr::of).collect()
    }

    /// Writes `bytes`. Returns a short count if space runs out on the way, or if the file reaches
    /// its largest size. But two kinds of write return an error if they are not complete:
    /// - a write-back of the kernel's cache, because the kernel would ignore a short count, and a
    ///   later fsync would promise more than was written;
    /// - a direct write, because the kernel would turn a short count into `EIO`.
    ///
    /// # Errors
    /// `ENOSPC`, `EFBIG`, `EROFS`, and errors of the device.
    pub fn write(&self, handle: HandleNr, offset: u64, bytes: &[u8], how: Transfer) -> Answer<Written> {
        let file = self.handles.get(handle)?;
        let blocks = || Ok::<_, Errno>(self.inodes().metadata(file.id())?.blocks());
        let before = blocks()?;
        if let Some(writer) = how.unprivileged {
            self.drop_privileges(writer, file.id())?;
        }
        let is_direct = how.is_direct && self.is_whole_blocks(offset, bytes.len());
        let mut written = 0;
        loop {
            let (rest, at) = (&bytes[written..], offset + u64_from_usize(written));
            let done = self.removals.with_space(|| {
                Ok(if is_direct { file.write_direct_at(rest, at)? } else { file.write_at(rest, at)? })
            });
            match done {
                Err(Errno::NOSPC) if how.is_cached => self.handles.note_no_room(file.id().number),
                Err(Errno::FBIG) if how.is_cached => self.nodes.note_overlong(file.id().number),
                _ => {}
            }
            written += done?;
            if written == bytes.len() || !(how.is_cached || how.is_direct) {
                break;
            }
        }
        Ok(Written { len: blockyard::disk::num::u32_from_usize(written), allocates: blocks()? != before })
    }

    /// Returns an error if an earlier write-back of the kernel's cache found no space for the file,
    /// or went beyond the largest size of a file. Another program may have made that write. While
    /// the kernel serves a write, it asks for the attributes of the open file. If the answer is
    /// this error, the kernel passes it on to the writer.
    ///
    /// # Errors
    /// `ENOSPC`, once; `EFBIG` until the file's size is set.
    pub fn check_room(&self, handle: HandleNr) -> Answer<()> {
        match self.handles.cached_by(handle) {
            Some(inode) if self.handles.take_no_room(inode) => Err(Errno::NOSPC),
            Some(inode) if self.nodes.is_overlong(inode) => Err(Errno::FBIG),
            _ => Ok(()),
        }
    }

    fn is_whole_blocks(&self, offset: u64, len: usize) -> bool {
        let size = u64_from_u32(self.block_size);
        len > 0 && offset.is_multiple_of(size) && u64_from_usize(len).is_multiple_of(size)
    }

    /// Makes a file or directory durable.
    ///
    /// # Errors
    /// A device error, or the error of an earlier write-back whose data was lost.
    pub fn fsync(&self, node: NodeNr, only_data: bool) -> Answer<()> {
        let id = self.id(node)?;
        if only_data {
            self.inodes().sync_data(id)?
        } else {
            self.inodes().sync_all(id)?
        }
        Ok(())
    }

    /// Changes the allocation of a range; `mode` is that of `fallocate(2)`. Clears set-id bits and
    /// capabilities unless the caller is root.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for unknown modes, and the errors of `fallocate(2)`.
    pub fn fallocate(
        &self,
        caller: Caller,
        handle: HandleNr,
        offset: u64,
        len: u64,
        mode: u32,
    ) -> Answer<()> {
        let what = fallocate_mode(mode).ok_or(Errno::OPNOTSUPP)?;
        let file = self.handles.get(handle)?;
        if !caller.is_privileged() {
            self.drop_privileges(caller, file.id())?;
        }
        self.removals.with_space(|| Ok(file.fallocate(what, offset, len)?))
    }

    /// The first byte at or after `offset` that is data or in a hole, as `whence` asks.
    ///
    /// # Errors
    /// `ENXIO` if there is none, `EINVAL` for other kinds of seek.
    pub fn seek(&self, handle: HandleNr, offset: u64, whence: u32) -> Answer<u64> {
        const DATA: u32 = 3;
        const HOLE: u32 = 4;
        let file = self.handles.get(handle)?;
        let found = match whence {
            DATA => file.seek_data(offset)?,
            HOLE => file.seek_hole(offset)?,
            _ => return Err(Errno::INVAL),
        };
        found.ok_or(Errno::NXIO)
    }

    /// Copies a range between files, and returns the number of bytes.
    ///
    /// # Errors
    /// The errors of reading and writing, if nothing was copied.
    pub fn copy_range(
        &self,
        caller: Caller,
        (from, offset): (HandleNr, u64),
        (to, target): (HandleNr, u64),
        len: u64,
    ) -> Answer<u64> {
        let (from, to): (_, std::sync::Arc<File>) = (self.handles.get(from)?, self.handles.get(to)?);
        if !caller.is_privileged() {
            self.drop_privileges(caller, to.id())?;
        }
        let copied = self.removals.with_space(|| Ok(from.copy_range(offset, len, &to, target)?))?;
        self.note_access(from.id());
        Ok(copied)
    }
}

/// Translates the mode of `fallocate(2)`.
fn fallocate_mode(mode: u32) -> Option<Fallocate> {
    use rustix::fs::FallocateFlags as Flags;
    let keep = Flags::KEEP_SIZE;
    let flags = Flags::from_bits(mode)?;
    Some(match flags {
        _ if flags.is_empty() => Fallocate::Allocate,
        _ if flags == keep => Fallocate::AllocateKeepSize,
        _ if flags == keep | Flags::PUNCH_HOLE => Fallocate::PunchHole,
        _ if flags == Flags::ZERO_RANGE => Fallocate::ZeroRange,
        _ if flags == keep | Flags::ZERO_RANGE => Fallocate::ZeroRangeKeepSize,
        _ if flags == Flags::COLLAPSE_RANGE => Fallocate::CollapseRange,
        _ if flags == Flags::INSERT_RANGE => Fallocate::InsertRange,
        _ => return None,
    })
}
