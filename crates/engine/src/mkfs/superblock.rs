//! The superblock of the planned file system, and its copies.

use blockyard_disk::checksum::Checksums;
use blockyard_disk::num::{low8, low16, low32};
use blockyard_disk::superblock::{ErrorPolicy, FsFlags, FsState, RawSuperblock};
use blockyard_disk::{BlockCount, GroupNr, InodeNr};
use zerocopy::little_endian::{U16, U32, U64};

use super::feature::{BIT64, CSUM_SEED, FLEX_BG, METADATA_CSUM, MMP, ORPHAN_FILE};
use super::identity::Identity;
use super::inodes;
use super::layout::Layout;
use super::options::Options;
use super::reserved::{EXTRA_ISIZE, ORPHAN_FILE as ORPHAN_FILE_INODE};

/// acl and user_xattr, the mount options that mke2fs.conf switches on.
const DEFAULT_MOUNT_OPTIONS: u32 = 0x0004 | 0x0008;
/// Default seconds between MMP writes.
const MMP_INTERVAL: u32 = 5;

/// The superblock without its checksum and group number.
pub(super) fn build(layout: &Layout, options: &Options, identity: &Identity) -> RawSuperblock {
    let mut sb = RawSuperblock::zeroed();
    sizes(&mut sb, layout);
    counts(&mut sb, layout);
    state(&mut sb, layout, options);
    identify(&mut sb, layout, options, identity);
    places(&mut sb, layout, options);
    sb
}

/// The copy of the superblock in `group`, with its checksum.
pub(super) fn copy_for(sb: &RawSuperblock, group: GroupNr, checksums: &Checksums) -> RawSuperblock {
    let mut copy = *sb;
    if group != GroupNr::ZERO {
        // Only the primary says whether the file system is clean.
        copy.set_state(FsState::empty());
    }
    // The field has 16 bits. It holds the largest value for groups whose number does not fit.
    copy.s_block_group_nr = U16::new(u16::try_from(group.raw()).unwrap_or(u16::MAX));
    checksums.seal_superblock(&mut copy);
    assert!(checksums.verify_superblock(&copy).is_ok(), "a superblock that would not open");
    copy
}

fn sizes(sb: &mut RawSuperblock, layout: &Layout) {
    let (geometry, params) = (&layout.geometry, &layout.params);
    sb.s_magic = U16::new(0xEF53);
    sb.s_inodes_count = U32::new(geometry.inodes_count());
    sb.set_blocks_count(geometry.blocks_count());
    sb.set_reserved_blocks_count(BlockCount::new(layout.reserved_blocks));
    sb.s_first_data_block = U32::new(low32(params.first_block));
    sb.s_log_block_size = U32::new(params.block_bits - 10);
    sb.s_log_cluster_size = U32::new(params.block_bits + params.cluster_ratio_bits - 10);
    sb.s_blocks_per_group = U32::new(low32(geometry.blocks_per_group()));
    sb.s_clusters_per_group = U32::new(geometry.clusters_per_group());
    sb.s_inodes_per_group = U32::new(geometry.inodes_per_group());
    if params.features.contains(FLEX_BG) {
        sb.s_log_groups_per_flex = low8(params.flex_bits);
    }
    if params.features.contains(BIT64) {
        sb.s_desc_size = U16::new(64);
    }
    sb.set_compat(params.features.compat);
    sb.set_incompat(params.features.incompat);
    sb.set_ro_compat(params.features.ro_compat);
    sb.s_rev_level = U32::new(params.revision);
    sb.s_first_ino = U32::new(11);
    sb.s_inode_size = U16::new(geometry.inode_size());
    if geometry.inode_size() > 128 {
        sb.s_min_extra_isize = U16::new(EXTRA_ISIZE);
        sb.s_want_extra_isize = U16::new(EXTRA_ISIZE);
    }
}

fn counts(sb: &mut RawSuperblock, layout: &Layout) {
    sb.set_free_blocks_count(BlockCount::new(layout.free_blocks()));
    sb.s_free_inodes_count = U32::new(layout.geometry.inodes_count() - layout.used_inodes());
    sb.s_overhead_clusters = U32::new(low32(layout.overhead_clusters()));
    sb.s_reserved_gdt_blocks = U16::new(low16(low32(layout.heads.reserved_gdt_field())));
    let named = layout.heads.named_backups();
    sb.s_backup_bgs = [U32::new(named[0]), U32::new(named[1])];
}

fn state(sb: &mut RawSuperblock, layout: &Layout, options: &Options) {
    sb.set_state(FsState::VALID);
    sb.s_errors = U16::new(options.errors.unwrap_or(ErrorPolicy::Continue).raw());
    sb.s_max_mnt_count = U16::new(0xFFFF);
    if layout.params.revision > 0 {
        sb.s_default_mount_opts = U32::new(DEFAULT_MOUNT_OPTIONS);
    }
    sb.set_mkfs_time(options.time);
    sb.set_write_time(options.time);
    sb.set_check_time(options.time);
    let test = if options.test_fs { FsFlags::TEST_FILESYS } else { FsFlags::empty() };
    sb.set_flags(FsFlags::SIGNED_HASH | test);
}

fn identify(sb: &mut RawSuperblock, layout: &Layout, options: &Options, identity: &Identity) {
    sb.s_uuid = identity.uuid;
    let mut seed = [U32::new(0); 4];
    for (word, bytes) in seed.iter_mut().zip(identity.hash_seed.chunks_exact(4)) {
        *word = U32::from_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    sb.s_hash_seed = seed;
    sb.s_def_hash_version = 1;
    sb.s_volume_name[..options.label.len()].copy_from_slice(options.label.as_bytes());
    sb.s_last_mounted[..options.last_mounted.len()].copy_from_slice(options.last_mounted.as_bytes());
    if layout.params.features.contains(METADATA_CSUM) {
        sb.s_checksum_type = 1;
    }
    if layout.params.features.contains(CSUM_SEED) {
        sb.s_checksum_seed = U32::new(blockyard_disk::checksum::crc32c_raw(!0, &identity.uuid));
    }
}

fn places(sb: &mut RawSuperblock, layout: &Layout, options: &Options) {
    sb.s_raid_stride = U16::new(low16(options.stride.unwrap_or(0)));
    sb.s_raid_stripe_width = U32::new(options.stripe_width.unwrap_or(0));
    if let Some(journal) = &layout.files.journal {
        sb.s_journal_inum = U32::new(InodeNr::JOURNAL.raw());
        sb.s_jnl_backup_type = 1;
        let words = inodes::block_words(layout, &journal.mapping);
        for (field, word) in sb.s_jnl_blocks.iter_mut().zip(words) {
            *field = U32::new(word);
        }
        let size = inodes::size_of(layout, journal);
        sb.s_jnl_blocks[15] = U32::new(blockyard_disk::num::high32(size));
        sb.s_jnl_blocks[16] = U32::new(low32(size));
    }
    if let Some(block) = layout.files.mmp.filter(|_| layout.params.features.contains(MMP)) {
        sb.s_mmp_block = U64::new(block);
        sb.s_mmp_update_interval = U16::new(low16(mmp_interval(options)));
    }
    if layout.params.features.contains(ORPHAN_FILE) {
        sb.s_orphan_file_inum = U32::new(ORPHAN_FILE_INODE.raw());
    }
}

/// Seconds between MMP writes.
pub(super) fn mmp_interval(options: &Options) -> u32 {
    options.mmp_update_interval.filter(|seconds| *seconds > 0).unwrap_or(MMP_INTERVAL)
}
