//! Bitmaps and descriptors of all groups.

use blockyard_disk::bitmap::count_clear;
use blockyard_disk::checksum::Checksums;
use blockyard_disk::group_desc::{GroupFlags, RawGroupDesc};
use blockyard_disk::num::{u64_from_u32, usize_from_u32, usize_from_u64};
use blockyard_disk::{GroupNr, InodeNr};

use super::layout::Layout;
use super::reserved::LOST_FOUND;

/// The descriptor table: all descriptors, padded to whole blocks.
pub(super) fn table(layout: &Layout, checksums: &Checksums, zeroed_tables: bool) -> Vec<u8> {
    let size = usize_from_u64(layout.params.desc_size());
    let mut table = vec![0; usize_from_u64(layout.heads.desc_blocks() << layout.params.block_bits)];
    for (group, bytes) in layout.geometry.all_groups().zip(table.chunks_exact_mut(size)) {
        let desc = describe(layout, checksums, group, zeroed_tables);
        desc.to_disk(bytes);
        checksums.seal_group_desc(group, bytes);
        debug_assert!(checksums.verify_group_desc(group, bytes).is_ok(), "group {group} would not open");
    }
    table
}

fn describe(layout: &Layout, checksums: &Checksums, group: GroupNr, zeroed_tables: bool) -> RawGroupDesc {
    let geometry = &layout.geometry;
    let places = &layout.places[usize_from_u32(group.raw())];
    let mut desc = RawGroupDesc::zeroed();
    desc.set_block_bitmap(places.block_bitmap);
    desc.set_inode_bitmap(places.inode_bitmap);
    desc.set_inode_table(places.inode_table);
    desc.set_free_clusters(layout.free_clusters(group));
    let used = layout.used_inodes_of(group);
    let free = geometry.inodes_per_group() - used;
    desc.set_free_inodes(free);
    desc.set_used_dirs(directories(layout, group));
    let mut flags = GroupFlags::empty();
    flags.set(GroupFlags::ITABLE_ZEROED, zeroed_tables);
    desc.set_flags(flags);
    if !layout.params.features.has_group_checksum() {
        return desc;
    }
    desc.set_itable_unused(free);
    flags.set(GroupFlags::INODE_UNINIT, is_inode_uninit(layout, group));
    flags.set(GroupFlags::BLOCK_UNINIT, layout.is_block_uninit(group));
    desc.set_flags(flags);
    let desc_size = usize_from_u64(layout.params.desc_size());
    if !layout.is_block_uninit(group) {
        let bitmap = block_bitmap(layout, group);
        checksums.seal_block_bitmap(&mut desc, desc_size, &bitmap, geometry.clusters_per_group());
    }
    if !is_inode_uninit(layout, group) {
        let bitmap = inode_bitmap(layout, group);
        checksums.seal_inode_bitmap(&mut desc, desc_size, &bitmap, geometry.inodes_per_group());
    }
    desc
}

fn directories(layout: &Layout, group: GroupNr) -> u32 {
    let content = layout.content.directories.get(usize_from_u32(group.raw())).copied().unwrap_or(0);
    let own = [InodeNr::ROOT, LOST_FOUND];
    content
        + own.into_iter().map(|inode| u32::from(layout.geometry.locate_inode(inode).0 == group)).sum::<u32>()
}

/// Whether a group's inode bitmap is left uninitialised.
pub(super) fn is_inode_uninit(layout: &Layout, group: GroupNr) -> bool {
    layout.params.features.has_group_checksum() && layout.used_inodes_of(group) == 0
}

/// The block bitmap of a group. The bits of used clusters and the bits after the group's last
/// cluster are set.
pub(super) fn block_bitmap(layout: &Layout, group: GroupNr) -> Vec<u8> {
    let mut bitmap = vec![0; usize_from_u64(layout.params.block_size())];
    let range = layout.group_range(group);
    let bits = layout.params.cluster_ratio_bits;
    for used in layout.space.ranges_in(range.clone()) {
        let last = (used.end - range.start).div_ceil(layout.params.cluster_ratio());
        set_bits(&mut bitmap, (used.start - range.start) >> bits, last);
    }
    let all = layout.params.block_size() * 8;
    let clusters = layout.geometry.clusters_in_group(group);
    set_bits(&mut bitmap, u64_from_u32(clusters), all);
    debug_assert_eq!(count_clear(&bitmap, 0..clusters), layout.free_clusters(group), "group {group}");
    bitmap
}

/// The inode bitmap of a group. The bits of used inodes and the bits after the group's last inode
/// are set.
pub(super) fn inode_bitmap(layout: &Layout, group: GroupNr) -> Vec<u8> {
    let mut bitmap = vec![0; usize_from_u64(layout.params.block_size())];
    set_bits(&mut bitmap, 0, u64_from_u32(layout.used_inodes_of(group)));
    let all = layout.params.block_size() * 8;
    let inodes = layout.geometry.inodes_per_group();
    set_bits(&mut bitmap, u64_from_u32(inodes), all);
    debug_assert_eq!(count_clear(&bitmap, 0..inodes), inodes - layout.used_inodes_of(group), "group {group}");
    bitmap
}

/// Sets the bits `from..to`, whole bytes at a time where possible.
fn set_bits(bitmap: &mut [u8], from: u64, to: u64) {
    let mut bit = from;
    while bit < to {
        let byte = &mut bitmap[usize_from_u64(bit / 8)];
        if bit.is_multiple_of(8) && bit + 8 <= to {
            *byte = 0xFF;
            bit += 8;
        } else {
            *byte |= 1 << (bit % 8);
            bit += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::set_bits;

    #[test]
    fn bits_are_set_exactly() {
        let mut bitmap = [0; 4];
        set_bits(&mut bitmap, 3, 18);
        assert_eq!(bitmap, [0xF8, 0xFF, 0x03, 0]);
        set_bits(&mut bitmap, 31, 32);
        assert_eq!(bitmap, [0xF8, 0xFF, 0x03, 0x80]);
    }
}
