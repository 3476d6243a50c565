//! What a commit takes from the groups: bitmap checksums and descriptor blocks. While the commit
//! freezes (copies) them, the gate is open, and handles of the next epoch change groups.

use super::{GroupState, Groups};
use crate::cache::{BlockKind, Buffer, Copied};
use crate::epoch::Epoch;
use crate::txn::Image;
use blockyard_disk::group_desc::RawGroupDesc;
use blockyard_disk::num::{u32_from_usize, usize_from_u32};
use blockyard_disk::{BlockNr, GroupNr};
use std::collections::BTreeSet;

impl Groups {
    /// Whether a descriptor has changed. Call with the gate closed.
    pub(crate) fn has_changes(&self) -> bool {
        !self.dirty.lock().is_empty()
    }

    /// Takes the groups whose descriptor changed. Call with the gate closed.
    pub(crate) fn take_dirty(&self) -> Vec<GroupNr> {
        std::mem::take(&mut *self.dirty.lock())
    }

    /// If the block is a bitmap, stores its checksum in the group's descriptor. The checksum is
    /// computed from `copied`, the block's content at the end of `epoch`. Unpins the bitmap if
    /// nobody has changed it since.
    pub(crate) fn freeze_bitmap(&self, epoch: Epoch, buffer: &Buffer, copied: &Copied) {
        let (sums, size) = (self.sb.checksums(), self.sb.desc_size());
        match copied.kind() {
            BlockKind::BlockBitmap(group) => {
                let mut state = self.lock(group);
                let bits = self.geometry().clusters_per_group();
                state.as_of(epoch, |raw| sums.seal_block_bitmap(raw, size, copied.bytes(), bits));
                debug_assert_eq!(buffer.block(), self.places(group).block_bitmap, "group {group}");
                debug_assert!(sums.verify_block_bitmap(&state.raw, size, copied.bytes(), bits).is_ok());
                if !buffer.is_dirty() {
                    state.block_bitmap = None;
                }
            }
            BlockKind::InodeBitmap(group) => {
                let mut state = self.lock(group);
                let bits = self.geometry().inodes_per_group();
                state.as_of(epoch, |raw| sums.seal_inode_bitmap(raw, size, copied.bytes(), bits));
                debug_assert_eq!(buffer.block(), self.places(group).inode_bitmap, "group {group}");
                debug_assert!(sums.verify_inode_bitmap(&state.raw, size, copied.bytes(), bits).is_ok());
                if !buffer.is_dirty() {
                    state.inode_bitmap = None;
                }
            }
            _ => {}
        }
    }

    /// Encodes the descriptor blocks that begin with the groups `firsts`, as of the end of `epoch`.
    /// The bitmaps must be frozen already, because their checksums are in the descriptors.
    pub(crate) fn freeze_descriptors(&self, epoch: Epoch, firsts: &BTreeSet<u32>, images: &mut Vec<Image>) {
        images.extend(firsts.iter().map(|&first| self.descriptor_block(epoch, first)));
    }

    /// The first group of each descriptor block that contains a `changed` group.
    pub(crate) fn descriptor_blocks(&self, changed: &[GroupNr]) -> BTreeSet<u32> {
        let per_block = self.descriptors_per_block();
        changed.iter().map(|group| group.raw() / per_block * per_block).collect()
    }

    fn descriptors_per_block(&self) -> u32 {
        u32_from_usize(self.geometry().block_size() / self.sb.desc_size())
    }

    fn descriptor_block(&self, epoch: Epoch, first: u32) -> Image {
        let mut bytes = vec![0; self.geometry().block_size()].into_boxed_slice();
        let size = self.sb.desc_size();
        let last = self.geometry().groups().min(first + self.descriptors_per_block());
        let mut block = BlockNr::ZERO;
        for group in (first..last).map(GroupNr::new) {
            let mut state = self.lock(group);
            let (number, offset) = self.sb.descriptor_place(group);
            debug_assert!(block == BlockNr::ZERO || block == number, "descriptors of several blocks");
            block = number;
            let place = &mut bytes[offset..offset + size];
            state.at_end_of(epoch).to_disk(place);
            self.sb.checksums().seal_group_desc(group, place);
            debug_assert!(self.sb.checksums().verify_group_desc(group, place).is_ok(), "group {group}");
            if state.epoch == epoch {
                state.epoch = Epoch::NONE;
            }
        }
        debug_assert!(usize_from_u32(last - first) * size <= self.geometry().block_size());
        Image { block, bytes }
    }
}

impl GroupState {
    /// The descriptor at the end of a past epoch.
    fn at_end_of(&self, epoch: Epoch) -> &RawGroupDesc {
        if self.epoch == epoch || self.epoch == Epoch::NONE { &self.raw } else { &self.before }
    }

    /// Applies `f` to the present descriptor. If the descriptor has changed since the end of
    /// `epoch`, also applies `f` to the saved descriptor of that time.
    fn as_of(&mut self, epoch: Epoch, f: impl Fn(&mut RawGroupDesc)) {
        f(&mut self.raw);
        if self.epoch != epoch && self.epoch != Epoch::NONE {
            f(&mut self.before);
        }
    }
}
