//! Reading file content.

use crate::file::Files;
use crate::inode::{Inode, InodeCore};
use crate::{Error, OpContext, Result};
use blockyard_disk::InodeNr;
use blockyard_disk::inode::{FileType, InodeMap};
use blockyard_disk::num::{u32_from_u64, u64_from_usize, usize_from_u32, usize_from_u64};
use smallvec::SmallVec;
use std::ops::Range;

/// Where bytes lie.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// At this byte of the device.
    Device(u64),
    /// In a logged block and those behind it, from a byte inside of it on.
    Logged {
        /// The block.
        physical: u64,
        /// The byte.
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
        inode: InodeNr,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        let inode = self.volume.inodes.inode(inode)?;
        match inode.kind() {
            FileType::Regular => {}
            FileType::Directory => return Err(Error::IsDirectory),
            _ => return Err(Error::Invalid("not a regular file")),
        }
        // Not the content's lock: who reads does not wait for who writes elsewhere in the file.
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
                self.read_inline(&inode, &core, offset, buf)?;
                return Ok(buf.len());
            }
            let pieces = self.look_up_content(&inode, &core, offset, buf)?;
            (buf, pieces)
        };
        self.read_pieces(&pieces, buf)?;
        Ok(buf.len())
    }

    /// Fills `buf` from the dirty blocks and the device; what is not mapped reads as zeroes.
    pub(crate) fn read_content(
        &self,
        inode: &Inode,
        core: &InodeCore,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        let pieces = self.look_up_content(inode, core, offset, buf)?;
        self.read_pieces(&pieces, buf)
    }

    /// Copies what waits into `buf`, and zeroes what is not mapped; gives where the rest lies on the device.
    fn look_up_content(
        &self,
        inode: &Inode,
        core: &InodeCore,
        offset: u64,
        buf: &mut [u8],
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
                let next_dirty = waiting.dirty.first_in(logical..logical.saturating_add(blocks_left));
                let most = next_dirty.map_or(blocks_left, |dirty| dirty - logical);
                // What waits for its conversion is there although the mapping says zeroes.
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
                        Source::Device((physical << bits) + u64_from_usize(inside))
                    };
                    pieces.push((here..here + n, source));
                }
                None => buf[here..here + n].fill(0),
            }
            at += u64_from_usize(n);
        }
        Ok(pieces)
    }

    fn read_pieces(&self, pieces: &Pieces, buf: &mut [u8]) -> Result<()> {
        for (part, source) in pieces {
            let part = &mut buf[part.clone()];
            match *source {
                Source::Device(offset) => self.volume.device.read_at(offset, part)?,
                Source::Logged { physical, inside } => self.read_logged(physical, inside, part)?,
            }
        }
        Ok(())
    }
}
