//! Reading file content.

use crate::data::FileData;
use crate::file::Files;
use crate::inode::{Inode, InodeCore};
use crate::{Error, OpContext, Result};
use blockyard_disk::InodeNr;
use blockyard_disk::inode::{FileType, InodeMap};
use blockyard_disk::num::{u32_from_u64, u64_from_usize, usize_from_u32, usize_from_u64};

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
        let data = inode.read();
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
        self.read_content(&inode, &data, &core, offset, buf)?;
        Ok(buf.len())
    }

    /// Fills `buf` from the dirty blocks and the device; what is not mapped reads as zeroes.
    pub(crate) fn read_content(
        &self,
        inode: &Inode,
        data: &FileData,
        core: &InodeCore,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        let bits = self.volume.geometry().block_bits();
        let block_size = self.volume.block_size();
        let (mut at, end) = (offset, offset + u64_from_usize(buf.len()));
        while at < end {
            let logical = u32_from_u64(at >> bits);
            let inside = usize_from_u64(at) % block_size;
            let here = usize_from_u64(at - offset);
            if let Some(bytes) = data.dirty.bytes_from(logical) {
                let n = (bytes.len() - inside).min(usize_from_u64(end - at));
                buf[here..here + n].copy_from_slice(&bytes[inside..inside + n]);
                at += u64_from_usize(n);
                continue;
            }
            let blocks_left = u32_from_u64((end - 1) >> bits) - logical + 1;
            let next_dirty = data.dirty.first_in(logical..logical.saturating_add(blocks_left));
            let most = next_dirty.map_or(blocks_left, |dirty| dirty - logical);
            // What waits for its conversion is there although the mapping says zeroes.
            let most = most.min(data.unconverted.alike_until(logical) - logical);
            let mapped = self.mapping.map_block(inode, core, logical, most)?;
            let n = (usize_from_u32(mapped.len) * block_size - inside).min(usize_from_u64(end - at));
            debug_assert!(n > 0, "reading of inode {} does not go on at {at}", inode.number());
            let part = &mut buf[here..here + n];
            let readable = !mapped.unwritten || data.unconverted.covers(logical);
            match mapped.physical.filter(|_| readable) {
                Some(physical) if self.mapping.logs_data(inode, core) => {
                    self.read_logged(physical, inside, part)?
                }
                Some(physical) => {
                    self.volume.device.read_at((physical << bits) + u64_from_usize(inside), part)?
                }
                None => part.fill(0),
            }
            at += u64_from_usize(n);
        }
        Ok(())
    }
}
