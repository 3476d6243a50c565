//! What a commit takes from the groups: bitmap checksums and descriptor blocks.

use super::Groups;
use crate::cache::{BlockKind, Buffer};
use crate::txn::Image;
use blockyard_disk::num::{u32_from_usize, usize_from_u32};
use blockyard_disk::{BlockNr, GroupNr};
use std::collections::BTreeSet;

impl Groups {
    /// Stores a changed bitmap's checksum in its descriptor and lets go of the bitmap. The gate is closed.
    pub(crate) fn freeze_bitmap(&self, buffer: &Buffer) {
        let (sums, size) = (self.sb.checksums(), self.sb.desc_size());
        match buffer.kind() {
            BlockKind::BlockBitmap(group) => {
                let mut state = self.lock(group);
                let bits = self.geometry().clusters_per_group();
                buffer.read(|bytes| sums.seal_block_bitmap(&mut state.raw, size, bytes, bits));
                state.block_bitmap = None;
                self.touch(group, &mut state);
            }
            BlockKind::InodeBitmap(group) => {
                let mut state = self.lock(group);
                let bits = self.geometry().inodes_per_group();
                buffer.read(|bytes| sums.seal_inode_bitmap(&mut state.raw, size, bytes, bits));
                state.inode_bitmap = None;
                self.touch(group, &mut state);
            }
            _ => {}
        }
    }

    /// Encodes every descriptor block with a changed descriptor. The gate is closed and the bitmaps are frozen.
    pub(crate) fn freeze_descriptors(&self, images: &mut Vec<Image>) {
        let changed = std::mem::take(&mut *self.dirty.lock());
        let per_block = u32_from_usize(self.geometry().block_size() / self.sb.desc_size());
        let firsts: BTreeSet<u32> =
            changed.into_iter().map(|group| group.raw() / per_block * per_block).collect();
        images.extend(firsts.into_iter().map(|first| self.descriptor_block(first, per_block)));
    }

    fn descriptor_block(&self, first: u32, per_block: u32) -> Image {
        let mut bytes = vec![0; self.geometry().block_size()].into_boxed_slice();
        let size = self.sb.desc_size();
        let last = self.geometry().groups().min(first + per_block);
        let mut block = BlockNr::ZERO;
        for group in (first..last).map(GroupNr::new) {
            let mut state = self.lock(group);
            let (number, offset) = self.sb.descriptor_place(group);
            block = number;
            let place = &mut bytes[offset..offset + size];
            state.raw.to_disk(place);
            self.sb.checksums().seal_group_desc(group, place);
            state.dirty = false;
        }
        debug_assert!(usize_from_u32(last - first) * size <= self.geometry().block_size());
        Image { block, bytes }
    }
}
