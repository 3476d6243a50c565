//! Reading file content.

use crate::file::Files;
use crate::inode::{Inode, InodeCore};
use crate::{Error, InodeRef, OpContext, Result};
use blockyard_disk::inode::{FileType, InodeMap};
use blockyard_disk::num::{u32_from_u64, u32_from_usize, u64_from_usize, usize_from_u32, usize_from_u64};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// Where a read looks for clean data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Via {
    /// Clean data kept in memory, and the device for the rest.
    Memory,
    /// Only the device, as with `O_DIRECT`.
    Device,
}

/// Where bytes lie.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// On the device.
    Device {
        /// The first byte.
        place: u64,
        /// How many blocks behind these bytes may be read too.
        ahead: u32,
    },
    /// In blocks of logged data, which follow each other on the device.
    Logged {
        /// The first block.
        physical: u64,
        /// The first byte, counted from the start of this block.
        inside: usize,
    },
}

/// Parts of a buffer, and where their bytes lie.
type Pieces = SmallVec<[(Range<usize>, Source); 4]>;

impl Files {
    /// See [`crate::FileSystem::read`].
    pub(crate) fn read(
        &self,
        _ctx: &OpContext,
        inode: InodeRef,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        let inode = self.readable_file(inode)?;
        self.read_via(Via::Memory, &inode, offset, buf)
    }

    /// See [`crate::FileSystem::read_direct`].
    pub(crate) fn read_direct(
        &self,
        ctx: &OpContext,
        inode: InodeRef,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        let block_size = self.volume.block_size();
        if !offset.is_multiple_of(u64_from_usize(block_size)) || !buf.len().is_multiple_of(block_size) {
            return Err(Error::Invalid("a direct read must cover whole blocks"));
        }
        let inode = self.readable_file(inode)?;
        let bits = self.volume.geometry().block_bits();
        let block = |byte: u64| u32::try_from(byte >> bits).unwrap_or(u32::MAX);
        let blocks = block(offset)..block(offset.saturating_add(u64_from_usize(buf.len())));
        let waits = || inode.waiting().dirty.first_in(blocks.clone()).is_some();
        if waits() {
            let mut data = inode.write();
            self.locked(ctx, &inode, &mut data).write_back_range(blocks.clone())?;
        }
        self.read_via(Via::Device, &inode, offset, buf)
    }

    pub(super) fn readable_file(&self, inode: InodeRef) -> Result<Arc<Inode>> {
        let inode = self.volume.inodes.inode(inode)?;
        match inode.kind() {
            FileType::Regular => Ok(inode),
            FileType::Directory => Err(Error::IsDirectory),
            _ => Err(Error::Invalid("not a regular file")),
        }
    }

    fn read_via(&self, via: Via, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let ahead_max = if via == Via::Memory { self.store.ahead_max() } else { 0 };
        let ahead = match ahead_max {
            0 => 0,
            most => inode.read_ahead.note_read(offset, buf.len(), u32_from_usize(most)),
        };
        // Takes the shape lock, not the content lock: so a reader does not wait while the file is
        // written back.
        let _shape = inode.hold_shape();
        let (buf, pieces) = {
            let core = inode.core();
            core.check_alive(inode.number())?;
            let len = core.size.saturating_sub(offset).min(u64_from_usize(buf.len()));
            let buf = &mut buf[..usize_from_u64(len)];
            if buf.is_empty() {
                return Ok(0);
            }
            if core.map == InodeMap::Inline {
                self.read_inline(inode, &core, offset, buf)?;
                return Ok(buf.len());
            }
            let pieces = self.look_up_content(inode, &core, offset, buf, ahead)?;
            (buf, pieces)
        };
        self.read_pieces(via, &pieces, buf)?;
        Ok(buf.len())
    }

    /// Fills `buf` with the file's content from byte `offset` on. Blocks without data read as
    /// zeroes.
    pub(crate) fn read_content(
        &self,
        inode: &Inode,
        core: &InodeCore,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        let pieces = self.look_up_content(inode, core, offset, buf, 0)?;
        self.read_pieces(Via::Memory, &pieces, buf)
    }

    /// Copies dirty data into `buf`, and zeroes the parts of `buf` that have no data. Returns the
    /// other parts, and where their bytes lie on the device. The last of these also says how many
    /// of the file's next `ahead` blocks follow it directly on the device.
    fn look_up_content(
        &self,
        inode: &Inode,
        core: &InodeCore,
        offset: u64,
        buf: &mut [u8],
        ahead: u32,
    ) -> Result<Pieces> {
        let bits = self.volume.geometry().block_bits();
        let block_size = self.volume.block_size();
        let (mut at, end) = (offset, offset + u64_from_usize(buf.len()));
        let mut pieces = Pieces::new();
        while at < end {
            let logical = u32_from_u64(at >> bits);
            let inside = usize_from_u64(at) % block_size;
            let here = usize_from_u64(at - offset);
            let blocks_left = u32_from_u64((end - 1) >> bits) - logical + 1;
            let (most, is_there) = {
                let waiting = inode.waiting();
                if let Some(bytes) = waiting.dirty.bytes_from(logical) {
                    let n = (bytes.len() - inside).min(usize_from_u64(end - at));
                    buf[here..here + n].copy_from_slice(&bytes[inside..inside + n]);
                    at += u64_from_usize(n);
                    continue;
                }
                let wanted = blocks_left.saturating_add(ahead);
                let next_dirty = waiting.dirty.first_in(logical..logical.saturating_add(wanted));
                let most = next_dirty.map_or(wanted, |dirty| dirty - logical);
                // Blocks of an unconverted piece have their data on the device, although they are
                // still mapped as unwritten.
                let alike = waiting.unconverted.alike_until(logical) - logical;
                (most.min(alike), waiting.unconverted.covers(logical))
            };
            let mapped = self.mapping.map_block(inode, core, logical, most)?;
            let n = (usize_from_u32(mapped.len) * block_size - inside).min(usize_from_u64(end - at));
            debug_assert!(n > 0, "reading of inode {} does not go on at {at}", inode.number());
            match mapped.physical.filter(|_| !mapped.unwritten || is_there) {
                Some(physical) => {
                    let source = if self.mapping.logs_data(inode, core) {
                        Source::Logged { physical, inside }
                    } else {
                        let place = (physical << bits) + u64_from_usize(inside);
                        Source::Device { place, ahead: mapped.len.saturating_sub(blocks_left) }
                    };
                    pieces.push((here..here + n, source));
                }
                None => buf[here..here + n].fill(0),
            }
            at += u64_from_usize(n);
        }
        Ok(pieces)
    }

    fn read_pieces(&self, via: Via, pieces: &Pieces, buf: &mut [u8]) -> Result<()> {
        for (part, source) in pieces {
            let part = &mut buf[part.clone()];
            match *source {
                Source::Device { place, .. } if via == Via::Device => self.store.read_direct(place, part)?,
                Source::Device { place, ahead } => self.store.read(place, part, ahead)?,
                Source::Logged { physical, inside } => self.read_logged(physical, inside, part)?,
            }
        }
        Ok(())
    }
}
