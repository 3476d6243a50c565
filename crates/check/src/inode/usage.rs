//! Pass 1, what an inode adds to the usage of its owner, group and project.
//!
//! As observed, e2fsck counts an inode once, with its `i_blocks`, if a directory may name it.
//! Symbolic links with inline data do not count. A value inode does not count by itself. Instead,
//! each reference to it adds one inode to the counts of the referring inode's owner, group and
//! project. The value's blocks are part of the referring inode's `i_blocks`.

use blockyard_disk::inode::{FileType, InodeFlags, InodeSlot};
use blockyard_disk::num::u64_from_usize;
use blockyard_disk::xattr::{self, Home};
use blockyard_disk::{Incompat, RoCompat};

use super::Examination;
use super::attributes::InInode;
use crate::facts::Usages;

/// Adds the usage of an inode that a directory may name. A value inode adds nothing here.
pub(super) fn note(
    cx: &Examination<'_, '_, '_>,
    slot: &InodeSlot<&[u8]>,
    attributes: &InInode,
    usages: &mut Usages,
) {
    let raw = slot.raw();
    if raw.flags().contains(InodeFlags::EA_INODE) {
        return;
    }
    let volume = cx.scan.volume;
    let is_inline_link = raw.file_type() == Some(FileType::Symlink)
        && raw.flags().contains(InodeFlags::INLINE_DATA)
        && volume.incompat.contains(Incompat::INLINE_DATA);
    if is_inline_link {
        return;
    }
    let huge = volume.ro_compat.contains(RoCompat::HUGE_FILE);
    let bytes = raw.sectors(huge, volume.geometry.block_bits()).saturating_mul(512);
    let inodes = 1 + attributes.values + values_in_block(cx, slot);
    for (sums, number) in usages.iter_mut().zip([raw.uid(), raw.gid(), slot.project()]) {
        let sum = sums.entry(number).or_default();
        sum.bytes = sum.bytes.saturating_add(bytes);
        sum.inodes += inodes;
    }
}

/// How many attributes in the attribute block have their values in value inodes.
fn values_in_block(cx: &Examination<'_, '_, '_>, slot: &InodeSlot<&[u8]>) -> u64 {
    let volume = cx.scan.volume;
    let place = volume.file_acl(slot.raw());
    if !volume.incompat.contains(Incompat::EA_INODE) || place.raw() == 0 || !volume.contains(place) {
        return 0;
    }
    let bytes = volume.block(place).unwrap_or_default();
    let entries = xattr::parse(&bytes, Home::Block).unwrap_or_default();
    u64_from_usize(entries.iter().filter(|entry| entry.value_inode != 0).count())
}
