//! Constants of a superblock that cannot be, where no copy of it is left: the values that mke2fs
//! would choose beside the others. Whether they are right shows in the descriptors.

use blockyard_disk::num::{u32_from_u64, u64_from_u32};
use blockyard_disk::superblock::RawSuperblock;
use blockyard_disk::{BlockCount, Incompat, RoCompat};
use zerocopy::little_endian::{U16, U32};

/// First ordinary inode.
const FIRST_INODE: u32 = 11;
/// Logarithm of the largest block size in KiB.
const LOG_BLOCK_MAX: u32 = 6;
/// What mke2fs takes for groups in a flex group, as a logarithm.
const LOG_FLEX: u8 = 4;

/// Replaces what cannot be.
pub(super) fn make_possible(sb: &mut RawSuperblock, device_size: u64) {
    let log = sb.s_log_block_size.get();
    if log > LOG_BLOCK_MAX {
        return;
    }
    let block_size = 1024u32 << log;
    sb.s_rev_level = U32::new(sb.s_rev_level.get().min(1));
    let inode_size = u32::from(sb.s_inode_size.get());
    if sb.s_rev_level.get() == 1
        && (!inode_size.is_power_of_two() || inode_size < 128 || inode_size > block_size)
    {
        sb.s_inode_size = U16::new(256);
    }
    let clustered = sb.ro_compat().contains(RoCompat::BIGALLOC);
    if !clustered {
        sb.s_log_cluster_size = sb.s_log_block_size;
        let per_group = sb.s_blocks_per_group.get();
        if per_group == 0 || per_group > 8 * block_size || !per_group.is_multiple_of(8) {
            sb.s_blocks_per_group = U32::new(8 * block_size);
        }
        sb.s_clusters_per_group = sb.s_blocks_per_group;
        sb.s_first_data_block = U32::new(u32::from(block_size == 1024));
    }
    let room = device_size >> (10 + log);
    let blocks = sb.blocks_count().raw();
    if blocks == 0 || blocks > room {
        sb.set_blocks_count(BlockCount::new(room));
    }
    if sb.reserved_blocks_count().raw() > sb.blocks_count().raw() / 2 {
        sb.set_reserved_blocks_count(BlockCount::new(0));
    }
    let desc_size = sb.s_desc_size.get();
    if sb.incompat().contains(Incompat::BIT64)
        && !(desc_size.is_power_of_two() && (32..=1024).contains(&desc_size))
    {
        sb.s_desc_size = U16::new(64);
    }
    if sb.s_log_groups_per_flex > 31 {
        sb.s_log_groups_per_flex = LOG_FLEX;
    }
    make_inodes_possible(sb, block_size);
}

/// The counts of inodes that depend on the number of groups.
fn make_inodes_possible(sb: &mut RawSuperblock, block_size: u32) {
    let per_group = u64_from_u32(sb.s_blocks_per_group.get());
    let blocks = sb.blocks_count().raw().saturating_sub(u64_from_u32(sb.s_first_data_block.get()));
    if per_group == 0 {
        return;
    }
    let groups = blocks.div_ceil(per_group).max(1);
    let inodes = u64_from_u32(sb.s_inodes_count.get());
    let inodes_per_group = sb.s_inodes_per_group.get();
    if inodes.is_multiple_of(groups) && inodes / groups <= u64_from_u32(8 * block_size) && inodes > 0 {
        sb.s_inodes_per_group = U32::new(u32_from_u64(inodes / groups));
    } else if let Ok(count) = u32::try_from(u64_from_u32(inodes_per_group) * groups) {
        sb.s_inodes_count = U32::new(count);
    }
    let first = sb.s_first_ino.get();
    if sb.s_rev_level.get() == 1 && (first < FIRST_INODE || first > sb.s_inodes_per_group.get()) {
        sb.s_first_ino = U32::new(FIRST_INODE);
    }
    if u32::from(sb.s_reserved_gdt_blocks.get()) > block_size / 4 {
        sb.s_reserved_gdt_blocks = U16::new(0);
    }
}
