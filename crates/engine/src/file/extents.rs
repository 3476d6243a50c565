//! Where the bytes of a file are on the device, and which of them are data.

use crate::file::Files;
use crate::inode::{Inode, InodeCore};
use crate::{InodeRef, Result};
use blockyard_disk::inode::InodeMap;
use blockyard_disk::num::u32_from_u64;

/// A contiguous piece of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileExtent {
    /// First byte in the file; the start of a block.
    pub offset: u64,
    /// Bytes: whole blocks, even if the file ends inside the last. For content in the inode: the
    /// size of the file.
    pub len: u64,
    /// First byte on the device; `None` if the piece is not allocated yet (delayed allocation) or
    /// lies in the inode.
    pub physical: Option<u64>,
    /// Whether the piece is allocated as unwritten: it reads as zeroes unless it is dirty.
    pub unwritten: bool,
    /// Whether the piece is dirty in memory: not written back yet.
    pub dirty: bool,
}

/// What to look for in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// Bytes that were written.
    Data,
    /// Bytes that were not written, or the end of the file.
    Hole,
}

/// Consecutive blocks of a file in the same state.
struct Alike {
    len: u32,
    physical: Option<u64>,
    unwritten: bool,
    dirty: bool,
}

impl Alike {
    const fn is_data(&self) -> bool {
        self.dirty || self.physical.is_some() && !self.unwritten
    }
}

impl Files {
    /// See [`crate::FileSystem::extents`].
    pub(crate) fn extents(&self, inode: InodeRef, from: u64, most: usize) -> Result<Vec<FileExtent>> {
        let inode = self.readable_file(inode)?;
        let _shape = inode.hold_shape();
        let core = inode.core();
        core.check_alive(inode.number())?;
        if core.map == InodeMap::Inline {
            let whole =
                FileExtent { offset: 0, len: core.size, physical: None, unwritten: false, dirty: false };
            return Ok(if from < core.size { vec![whole] } else { Vec::new() });
        }
        let bits = self.volume.geometry().block_bits();
        let mut found: Vec<FileExtent> = Vec::new();
        let mut at = from >> bits;
        let blocks_max = u64::from(u32::MAX);
        while at < blocks_max && found.len() < most {
            let here = self.alike(&inode, &core, u32_from_u64(at), u32_from_u64(blocks_max - at))?;
            if here.physical.is_some() || here.dirty {
                found.push(FileExtent {
                    offset: at << bits,
                    len: u64::from(here.len) << bits,
                    physical: here.physical.map(|block| block << bits),
                    unwritten: here.unwritten,
                    dirty: here.dirty,
                });
            }
            at += u64::from(here.len);
        }
        Ok(found)
    }

    /// See [`crate::FileSystem::seek`].
    pub(crate) fn seek(&self, inode: InodeRef, offset: u64, what: Seek) -> Result<Option<u64>> {
        let inode = self.readable_file(inode)?;
        let _shape = inode.hold_shape();
        let core = inode.core();
        core.check_alive(inode.number())?;
        if offset >= core.size {
            return Ok(None);
        }
        if core.map == InodeMap::Inline {
            return Ok(Some(if what == Seek::Data { offset } else { core.size }));
        }
        let bits = self.volume.geometry().block_bits();
        let (mut at, end) = (offset >> bits, core.size.div_ceil(1 << bits));
        while at < end {
            let here = self.alike(&inode, &core, u32_from_u64(at), u32_from_u64(end - at))?;
            if here.is_data() == (what == Seek::Data) {
                return Ok(Some(offset.max(at << bits)));
            }
            debug_assert!(here.len > 0, "a search in inode {} does not go on at block {at}", inode.number());
            at += u64::from(here.len);
        }
        Ok(if what == Seek::Data { None } else { Some(core.size) })
    }

    /// The blocks from `logical` on that have the same state, at most `most`.
    fn alike(&self, inode: &Inode, core: &InodeCore, logical: u32, most: u32) -> Result<Alike> {
        let until = logical.saturating_add(most);
        let (most, dirty, is_written) = {
            let waiting = inode.waiting();
            let dirty = waiting.dirty.first_in(logical..until);
            let is_dirty = dirty == Some(logical);
            let end = if is_dirty {
                waiting.dirty.first_run(logical, most).map_or(logical + 1, |run| run.end)
            } else {
                dirty.unwrap_or(until)
            };
            let end = end.min(waiting.unconverted.alike_until(logical)).max(logical + 1);
            (end.min(until) - logical, is_dirty, waiting.unconverted.covers(logical))
        };
        let mapped = self.mapping.map_block(inode, core, logical, most)?;
        let unwritten = mapped.unwritten && !is_written;
        Ok(Alike { len: mapped.len, physical: mapped.physical, unwritten, dirty })
    }
}
