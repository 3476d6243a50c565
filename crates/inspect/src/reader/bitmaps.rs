//! The bitmaps of a group, even if they were never written.

use std::ops::Range;
use std::sync::Arc;

use blockyard_disk::group_desc::GroupFlags;
use blockyard_disk::num::u32_from_u64;
use blockyard_disk::{BlockCount, BlockNr, Geometry, GroupDescriptor, bitmap};

use super::{Reader, Result};

impl Reader {
    /// The block bitmap of a group, with its checksum verified. If the group is flagged
    /// BLOCK_UNINIT, returns the bitmap that the flag implies instead. That bitmap marks as used
    /// the group head, the group's own bitmaps and table as far as they lie in the group, and all
    /// bits past the group's end.
    ///
    /// # Errors
    /// [`super::Error::Device`], [`super::Error::Disk`].
    pub fn block_bitmap(&self, desc: &GroupDescriptor) -> Result<Arc<[u8]>> {
        let sb = self.superblock();
        let geometry = sb.geometry();
        if desc.flags().contains(GroupFlags::BLOCK_UNINIT) {
            return Ok(self.initial_block_bitmap(desc).into());
        }
        let number = desc.block_bitmap();
        let block = self.block(number)?;
        sb.checksums()
            .verify_block_bitmap(desc.raw(), sb.desc_size(), &block, geometry.clusters_per_group())
            .map_err(|found| found.in_group(desc.group()).in_block(number))?;
        Ok(block)
    }

    fn initial_block_bitmap(&self, desc: &GroupDescriptor) -> Vec<u8> {
        let geometry = self.superblock().geometry();
        let group = desc.group();
        let mut bits = vec![0; geometry.block_size()];
        let one = BlockCount::new(1);
        let table = BlockCount::new(geometry.inode_table_blocks());
        let own = [
            self.superblock().head(group).blocks(),
            desc.block_bitmap()..desc.block_bitmap() + one,
            desc.inode_bitmap()..desc.inode_bitmap() + one,
            desc.inode_table()..desc.inode_table() + table,
        ];
        for blocks in own {
            if let Some(range) = clusters_inside(geometry, desc, &blocks) {
                bitmap::set_range(&mut bits, range);
            }
        }
        bitmap::pad_from(&mut bits, geometry.clusters_in_group(group));
        bits
    }

    /// The inode bitmap of a group, with its checksum verified. If the group is flagged
    /// INODE_UNINIT, returns instead a bitmap that marks no inode as used.
    ///
    /// # Errors
    /// [`super::Error::Device`], [`super::Error::Disk`].
    pub fn inode_bitmap(&self, desc: &GroupDescriptor) -> Result<Arc<[u8]>> {
        let sb = self.superblock();
        let geometry = sb.geometry();
        if desc.flags().contains(GroupFlags::INODE_UNINIT) {
            let mut bits = vec![0; geometry.block_size()];
            bitmap::pad_from(&mut bits, geometry.inodes_per_group());
            return Ok(bits.into());
        }
        let number = desc.inode_bitmap();
        let block = self.block(number)?;
        sb.checksums()
            .verify_inode_bitmap(desc.raw(), sb.desc_size(), &block, geometry.inodes_per_group())
            .map_err(|found| found.in_group(desc.group()).in_block(number))?;
        Ok(block)
    }
}

/// The bits in a group's bitmap for the part of `blocks` that lies in the group; `None` if no part
/// does.
fn clusters_inside(
    geometry: &Geometry,
    desc: &GroupDescriptor,
    blocks: &Range<BlockNr>,
) -> Option<Range<u32>> {
    let first = geometry.group_first_block(desc.group()).raw();
    let end = first + geometry.blocks_in_group(desc.group());
    let (start, stop) = (blocks.start.raw().max(first), blocks.end.raw().min(end));
    let bits = geometry.cluster_ratio_bits();
    (start < stop)
        .then(|| u32_from_u64((start - first) >> bits)..u32_from_u64(((stop - 1 - first) >> bits) + 1))
}
