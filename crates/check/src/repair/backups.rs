//! Rewrites wrong backups: copies of the superblock, and copies of descriptors that contradict the
//! primary descriptors about the places of bitmaps or inode tables. This is done after the last
//! repair, if superblock and descriptors are sound. e2fsck leaves such copies alone until it needs
//! them.

use blockyard_device::DeviceError;
use blockyard_disk::group_desc::RawGroupDesc;
use blockyard_disk::num::{low16, u64_from_u32};
use blockyard_disk::{BlockCount, BlockNr, Checksums, GroupNr};
use zerocopy::IntoBytes;

use super::log::{Cost, Log};
use crate::code::Code;
use crate::descriptors;
use crate::finding::{Sink, Site};
use crate::volume::Volume;

/// Rewrites the copies of the superblock that the check finds wrong, and the copies of descriptor
/// blocks that `refresh_descriptors` finds wrong.
pub(super) fn refresh(volume: &Volume<'_>, log: &mut Log) -> Result<(), DeviceError> {
    let mut sink = Sink::default();
    descriptors::check_backups(volume, &mut sink);
    let wrong: Vec<GroupNr> =
        sink.into_findings().into_iter().filter_map(|finding| finding.site.group).collect();
    for group in volume.superblock_groups().into_iter().filter(|group| group.raw() != 0) {
        let first = volume.geometry.group_first_block(group);
        if wrong.contains(&group) && log.accepts(Code::BACKUP_SUPERBLOCK) {
            write_superblock(volume, group)?;
            let site = Site::group(group).at_block(first);
            log.add(Code::BACKUP_SUPERBLOCK, site, Cost::Nothing, "backup rewritten");
        }
        for index in 0..volume.old_desc_blocks() {
            let copy = first + BlockCount::new(1 + u64_from_u32(index));
            refresh_descriptors(volume, index, copy, log)?;
        }
    }
    for index in volume.old_desc_blocks()..volume.desc_blocks() {
        if let Some(copy) = volume.second_meta_block(index) {
            refresh_descriptors(volume, index, copy, log)?;
        }
    }
    Ok(())
}

fn write_superblock(volume: &Volume<'_>, group: GroupNr) -> Result<(), DeviceError> {
    let mut sb = volume.sb;
    sb.s_block_group_nr.set(low16(group.raw()));
    Checksums::of(&sb).seal_superblock(&mut sb);
    let first = volume.geometry.group_first_block(group).raw();
    volume.device.write_at(first << volume.geometry.block_bits(), sb.as_bytes())
}

/// Rewrites a copy of a descriptor block if the primary block names other places for bitmaps or
/// inode tables.
fn refresh_descriptors(
    volume: &Volume<'_>,
    index: u32,
    copy: BlockNr,
    log: &mut Log,
) -> Result<(), DeviceError> {
    if !volume.contains(copy) || !log.accepts(Code::BACKUP_DESCRIPTORS) {
        return Ok(());
    }
    let (right, old) = (volume.block(volume.desc_block(index))?, volume.block(copy)?);
    let places = |raw: &[u8]| {
        let desc = RawGroupDesc::from_disk(raw);
        [desc.block_bitmap(), desc.inode_bitmap(), desc.inode_table()]
    };
    let pairs = right.chunks_exact(volume.desc_size).zip(old.chunks_exact(volume.desc_size));
    let first = index * volume.descs_per_block();
    let known = blockyard_disk::num::usize_from_u32(volume.geometry.groups() - first);
    if pairs.take(known).any(|(right, old)| places(right) != places(old)) {
        volume.device.write_at(copy.raw() << volume.geometry.block_bits(), &right)?;
        let site = Site::block(copy);
        log.add(Code::BACKUP_DESCRIPTORS, site, Cost::Nothing, "backup of descriptors rewritten");
    }
    Ok(())
}
