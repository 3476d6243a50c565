//! The content of files, and the targets of symbolic links.

use blockyard_disk::inline_data::{self, InlineData};
use blockyard_disk::num::{u64_from_usize, usize_from_u64};
use blockyard_disk::{Corruption, CorruptionKind, FileType, Inode, InodeMap};

use super::{Error, Reader, Result};

impl Reader {
    /// Fills `buf` from byte `offset` of an inode's content. Returns the number of bytes read.
    /// It is less than the length of `buf` only where the content ends, and always 0 for devices,
    /// pipes and sockets. Holes and unwritten blocks read as zeroes.
    ///
    /// # Errors
    /// [`Error::Device`], [`Error::Disk`].
    pub fn read(&self, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let left = inode.size().saturating_sub(offset);
        let wanted = usize_from_u64(left.min(u64_from_usize(buf.len())));
        let buf = &mut buf[..wanted];
        match inode.map() {
            InodeMap::None | InodeMap::Device(_) => return Ok(0),
            InodeMap::FastSymlink => copy_range(inode.block_field(), offset, buf),
            InodeMap::Inline => copy_range(&self.inline_content(inode)?, offset, buf),
            InodeMap::Extents | InodeMap::Indirect => self.read_mapped(inode, offset, buf)?,
        }
        Ok(wanted)
    }

    fn read_mapped(&self, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
        let bits = self.superblock().geometry().block_bits();
        let end = offset + u64_from_usize(buf.len());
        let mut skip = usize_from_u64(offset & ((1 << bits) - 1));
        let mut filled = 0;
        for run in self.runs(inode, offset >> bits..end.div_ceil(1 << bits)) {
            let run = run?;
            let length = (run.bytes(bits) - skip).min(buf.len() - filled);
            let part = &mut buf[filled..filled + length];
            match run.device_offset(bits, u64_from_usize(skip)) {
                Some(at) => self.device().read_at(at, part)?,
                None => part.fill(0),
            }
            filled += length;
            skip = 0;
        }
        Ok(())
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::Disk`], with [`CorruptionKind::SymlinkTarget`] when the target holds a NUL byte or
    /// the inode is not a symbolic link; [`Error::Device`].
    pub fn symlink_target(&self, inode: &Inode) -> Result<Vec<u8>> {
        let bad = || Error::from(Corruption::new(CorruptionKind::SymlinkTarget).in_inode(inode.number()));
        if inode.file_type() != FileType::Symlink {
            return Err(bad());
        }
        // A verified symbolic link is at most a block long.
        let mut target = vec![0; usize_from_u64(inode.size())];
        let length = self.read(inode, 0, &mut target)?;
        target.truncate(length);
        if target.contains(&0) { Err(bad()) } else { Ok(target) }
    }

    /// The content of an inode with inline data. As in Linux (observed on 6.18), a file may be
    /// longer than its inline data, and the rest reads as zeroes. A symbolic link may not be
    /// longer.
    fn inline_content(&self, inode: &Inode) -> Result<Vec<u8>> {
        let size = usize_from_u64(inode.size());
        let content = self.inline_data(inode)?.content(size);
        if content.len() < size && inode.file_type() == FileType::Symlink {
            let found = Corruption::new(CorruptionKind::InlineDataMissing);
            return Err(found.in_inode(inode.number()).into());
        }
        Ok(content)
    }

    /// The two places of inline data: `i_block` and the attribute `system.data`.
    pub(super) fn inline_data<'i>(&self, inode: &'i Inode) -> Result<InlineData<'i>> {
        let tail = inline_data::tail_of(inode.slot().attribute_area())
            .map_err(|kind| Corruption::new(kind).in_inode(inode.number()))?;
        Ok(InlineData { head: inode.block_field(), tail })
    }
}

/// Copies from `source` at `offset`. Bytes past the end of `source` are zero.
fn copy_range(source: &[u8], offset: u64, buf: &mut [u8]) {
    let there = usize::try_from(offset).ok().and_then(|start| source.get(start..)).unwrap_or(&[]);
    let length = there.len().min(buf.len());
    buf[..length].copy_from_slice(&there[..length]);
    buf[length..].fill(0);
}
