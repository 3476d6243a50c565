//! Replaces impossible constants in a superblock: in the primary one if no backup is left, or in a
//! backup that a repair uses. Most get the values that mke2fs would choose, given the other
//! constants; an impossible number of reserved blocks becomes 0. If no backup is left, the
//! descriptors and bitmaps then show whether these values are right.

use blockyard_device::{BlockDevice, DeviceError, OverlayDevice};
use blockyard_disk::group_desc::GroupFlags;
use blockyard_disk::num::{u32_from_u64, u32_from_usize, u64_from_u32};
use blockyard_disk::superblock::RawSuperblock;
use blockyard_disk::{BlockCount, Incompat, RoCompat, bitmap};
use zerocopy::little_endian::{U16, U32};

use super::editor;
use crate::descriptors;
use crate::finding::Sink;
use crate::superblock::{self, Opened};

/// First ordinary inode.
const FIRST_INODE: u32 = 11;
/// Logarithm of the largest block size in KiB.
const LOG_BLOCK_MAX: u32 = 6;
/// Logarithm of the number of groups in a flex group, as mke2fs chooses it.
const LOG_FLEX: u8 = 4;

/// Replaces impossible values. Returns false if the block size is impossible, or if nothing tells
/// the size of a group: both fields for it are impossible, and the inode counts contradict the
/// usual size.
pub(super) fn make_possible(sb: &mut RawSuperblock, device_size: u64) -> bool {
    let log = sb.s_log_block_size.get();
    if log > LOG_BLOCK_MAX {
        return false;
    }
    let block_size = 1024u32 << log;
    sb.s_rev_level = U32::new(sb.s_rev_level.get().min(1));
    let inode_size = u32::from(sb.s_inode_size.get());
    if sb.s_rev_level.get() == 1
        && (!inode_size.is_power_of_two() || inode_size < 128 || inode_size > block_size)
    {
        sb.s_inode_size = U16::new(256);
    }
    let room = device_size >> (10 + log);
    let blocks = sb.blocks_count().raw();
    if blocks == 0 || blocks > room {
        sb.set_blocks_count(BlockCount::new(room));
    }
    if has_block_clusters(sb) && refutes_bigalloc(sb) {
        sb.set_ro_compat(sb.ro_compat().difference(RoCompat::BIGALLOC));
    }
    let mut is_sized = true;
    if !sb.ro_compat().contains(RoCompat::BIGALLOC) {
        sb.s_log_cluster_size = sb.s_log_block_size;
        sb.s_first_data_block = U32::new(u32::from(block_size == 1024));
        let known = known_group_size(sb, block_size);
        is_sized = known.is_some() || agrees_with_inodes(sb, 8 * block_size) != Some(false);
        sb.s_blocks_per_group = U32::new(known.unwrap_or(8 * block_size));
        sb.s_clusters_per_group = sb.s_blocks_per_group;
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
    is_sized
}

/// Whether bigalloc is set although a cluster is a block. mke2fs can make that, and so can one
/// wrong bit.
pub(super) fn has_block_clusters(sb: &RawSuperblock) -> bool {
    sb.ro_compat().contains(RoCompat::BIGALLOC)
        && sb.s_log_cluster_size == sb.s_log_block_size
        && sb.s_clusters_per_group == sb.s_blocks_per_group
}

/// Whether other fields say that there is no bigalloc: it needs extents, and a first group that
/// begins with block 0.
pub(super) fn refutes_bigalloc(sb: &RawSuperblock) -> bool {
    !sb.incompat().contains(Incompat::EXTENTS) || sb.s_first_data_block.get() == 1
}

/// Blocks per group without bigalloc. Two fields should then have the same value. If both values
/// are possible, the one that agrees with the inode counts is taken. If that does not decide, the
/// one that a larger power of two divides is taken. `None` if neither is possible.
fn known_group_size(sb: &RawSuperblock, block_size: u32) -> Option<u32> {
    let is_possible = |size: &u32| *size > 0 && *size <= 8 * block_size && size.is_multiple_of(8);
    let said = [sb.s_clusters_per_group.get(), sb.s_blocks_per_group.get()].into_iter();
    let rank = |size: &u32| (agrees_with_inodes(sb, *size) == Some(true), size.trailing_zeros());
    said.filter(is_possible).max_by_key(rank)
}

/// Whether groups of this size are as many as the two inode counts imply; `None` if these imply no
/// number of groups.
fn agrees_with_inodes(sb: &RawSuperblock, group_size: u32) -> Option<bool> {
    let (inodes, in_group) = (sb.s_inodes_count.get(), sb.s_inodes_per_group.get());
    if in_group == 0 || inodes == 0 || !inodes.is_multiple_of(in_group) {
        return None;
    }
    debug_assert!(group_size > 0, "groups of no blocks");
    let blocks = sb.blocks_count().raw().saturating_sub(u64_from_u32(sb.s_first_data_block.get()));
    Some(blocks.div_ceil(u64_from_u32(group_size)) == u64_from_u32(inodes / in_group))
}

/// Replaces impossible counts of inodes, which depend on the number of groups, and an impossible
/// first inode or number of reserved descriptor blocks.
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

/// Chooses between two numbers of inodes per group: `stored`, and the one now in the superblock,
/// which the total number of inodes led to. In an inode bitmap, the bits after the last inode of
/// the group are set. If most bitmaps have all bits set from the smaller number on, that number is
/// right, otherwise the larger one.
pub(super) fn weigh_inodes_per_group(device: &dyn BlockDevice, stored: u32) -> Result<(), DeviceError> {
    // A superblock that is garbage may have unknown features. That is no error here.
    let Ok(Opened::Volume(volume)) = superblock::open(device, &mut Sink::default()) else {
        return Ok(());
    };
    let (taken, groups) = (volume.geometry.inodes_per_group(), volume.geometry.groups());
    let bits = 8 * u32_from_usize(volume.block_size());
    let is_possible = stored > FIRST_INODE && stored.is_multiple_of(8) && stored <= bits;
    let Some(total) = stored.checked_mul(groups).filter(|_| is_possible && stored != taken) else {
        return Ok(());
    };
    let put = |device: &dyn BlockDevice| {
        editor::change_superblock(device, |sb| {
            sb.s_inodes_per_group = U32::new(stored);
            sb.s_inodes_count = U32::new(total);
        })
    };
    let trial = OverlayDevice::new(device);
    if stored < taken {
        put(&trial)?;
    }
    if are_padded(&trial)? == (stored < taken) {
        put(device)?;
    }
    Ok(())
}

/// Whether most inode bitmaps, except those of uninit groups, have all bits after the last inode
/// set.
fn are_padded(device: &dyn BlockDevice) -> Result<bool, DeviceError> {
    let mut sink = Sink::default();
    let Ok(Opened::Volume(mut volume)) = superblock::open(device, &mut sink) else { return Ok(false) };
    descriptors::load(&mut volume, &mut sink);
    let written = volume.groups.iter().filter(|group| !group.flags.contains(GroupFlags::INODE_UNINIT));
    let places = written.map(|group| group.desc.inode_bitmap()).filter(|place| volume.contains(*place));
    let (mut padded, mut all) = (0, 0);
    for place in places {
        let behind = volume.geometry.inodes_per_group()..8 * u32_from_usize(volume.block_size());
        padded += usize::from(bitmap::next_clear(&volume.block(place)?, behind).is_none());
        all += 1;
    }
    Ok(padded * 2 > all)
}

/// Whether a superblock says revision 0, whose inodes have 128 bytes, but has the features and the
/// inode size of a later revision.
pub(super) fn has_lost_revision(sb: &RawSuperblock) -> bool {
    let inode_size = u64::from(sb.s_inode_size.get());
    let block_size = 1024u64.checked_shl(sb.s_log_block_size.get()).unwrap_or(0);
    sb.s_rev_level.get() == 0
        && !(sb.compat().is_empty() && sb.incompat().is_empty() && sb.ro_compat().is_empty())
        && inode_size.is_power_of_two()
        && (129..=block_size).contains(&inode_size)
}
