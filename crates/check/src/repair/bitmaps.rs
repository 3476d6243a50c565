//! Pass 5: bitmaps, counts and checksums of groups, and the totals of the superblock.

use std::collections::BTreeSet;

use blockyard_device::DeviceError;
use blockyard_disk::group_desc::{GroupFlags, RawGroupDesc};
use blockyard_disk::num::{u32_from_usize, u64_from_u32, usize_from_u32};
use blockyard_disk::{BlockCount, GroupNr, bitmap};
use zerocopy::little_endian::U32;

use super::editor::Editor;
use super::log::{Cost, RewriteAll};
use crate::code::Code;
use crate::directories;
use crate::facts::{Facts, GroupFacts};
use crate::finding::{Finding, Site};
use crate::volume::Volume;

/// Rewrites the bitmaps and descriptors of groups with findings, wrong counts or wrong checksums
/// (or of all groups, if the log asks for it), and the totals of the superblock.
pub(crate) fn repair(
    ed: &mut Editor<'_, '_>,
    facts: &Facts,
    findings: &[Finding],
) -> Result<(), DeviceError> {
    let named: BTreeSet<GroupNr> = findings.iter().filter_map(|finding| finding.site.group).collect();
    let all = ed.log.rewrite_all == RewriteAll::Yes;
    let (mut free_clusters, mut free_inodes) = (0, 0);
    for group in ed.volume().geometry.all_groups() {
        let known = &facts.groups[usize_from_u32(group.raw())];
        let counts = Counts::of(ed, known, group);
        free_clusters += u64_from_u32(counts.free_clusters);
        free_inodes += counts.free_inodes;
        let desc = ed.volume().group_of(group).desc;
        let unsealed = !is_sealed(ed, group)?;
        let mismatched =
            desc.free_clusters() != counts.free_clusters || desc.free_inodes() != counts.free_inodes;
        if all || unsealed || mismatched || named.contains(&group) {
            write_group(ed, known, group, &counts)?;
        }
    }
    ed.log.rewrite_all = RewriteAll::No;
    for finding in findings {
        ed.add(finding.code, finding.site, Cost::Nothing, corrected(finding));
    }
    write_totals(ed, free_clusters, free_inodes)
}

/// Says what was done about a finding. The detail of a finding about a count has the stored number
/// and the counted one; the counted one was written.
fn corrected(finding: &Finding) -> String {
    let what = match finding.code {
        Code::FREE_BLOCKS_TOTAL | Code::FREE_BLOCKS_GROUP => "free block count",
        Code::FREE_INODES_TOTAL | Code::FREE_INODES_GROUP => "free inode count",
        Code::USED_DIRS_GROUP => "directory count",
        _ if finding.detail.is_empty() => return "corrected".to_owned(),
        _ => return format!("corrected: {}", finding.detail),
    };
    match finding.detail.split_once(", counted ") {
        Some((stored, counted)) => format!("{what} {stored}, set to {counted}"),
        None => format!("{what} corrected: {}", finding.detail),
    }
}

/// Sets the totals of the superblock.
fn write_totals(ed: &Editor<'_, '_>, free_clusters: u64, free_inodes: u32) -> Result<(), DeviceError> {
    let bits = ed.volume().geometry.cluster_ratio_bits();
    ed.change_superblock(|sb| {
        sb.set_free_blocks_count(BlockCount::new(free_clusters << bits));
        sb.s_free_inodes_count = U32::new(free_inodes);
    })
}

/// What is in use in a group.
struct Counts {
    found: Vec<u64>,
    free_clusters: u32,
    free_inodes: u32,
    directories: u32,
    /// One more than the index of the last inode in use.
    inodes_end: u32,
}

impl Counts {
    fn of(ed: &Editor<'_, '_>, known: &GroupFacts, group: GroupNr) -> Self {
        let geometry = &ed.volume().geometry;
        let found: Vec<u64> = ed.scan.map.group_words(group).map(Iterator::collect).unwrap_or_default();
        let used: u32 = found.iter().map(|word| word.count_ones()).sum();
        let inodes = known.marked().count();
        let directories = known.kinds.iter().filter(|kind| kind.is_directory()).count();
        let end = known.marked().next_back().map_or(0, |last| last + 1);
        Self {
            found,
            free_clusters: geometry.clusters_in_group(group) - used,
            free_inodes: geometry.inodes_per_group() - u32_from_usize(inodes),
            directories: u32_from_usize(directories),
            inodes_end: u32_from_usize(end),
        }
    }
}

/// Byte offset of a group's descriptor on the device.
pub(crate) fn descriptor_at(volume: &Volume<'_>, group: GroupNr) -> u64 {
    let (block, index) = (group.raw() / volume.descs_per_block(), group.raw() % volume.descs_per_block());
    let start = volume.desc_block(block).raw() << volume.geometry.block_bits();
    start + u64_from_u32(index) * blockyard_disk::num::u64_from_usize(volume.desc_size)
}

fn is_sealed(ed: &Editor<'_, '_>, group: GroupNr) -> Result<bool, DeviceError> {
    let volume = ed.volume();
    let mut raw = vec![0; volume.desc_size];
    volume.device.read_at(descriptor_at(volume, group), &mut raw)?;
    Ok(volume.checksums.verify_group_desc(group, &raw).is_ok())
}

/// Writes a descriptor with its checksum.
pub(crate) fn put_descriptor(
    ed: &Editor<'_, '_>,
    group: GroupNr,
    desc: &RawGroupDesc,
) -> Result<(), DeviceError> {
    put_raw_descriptor(ed.volume(), group, desc)
}

fn put_raw_descriptor(volume: &Volume<'_>, group: GroupNr, desc: &RawGroupDesc) -> Result<(), DeviceError> {
    let mut raw = vec![0; volume.desc_size];
    let at = descriptor_at(volume, group);
    volume.device.read_at(at, &mut raw)?;
    desc.to_disk(&mut raw);
    volume.checksums.seal_group_desc(group, &mut raw);
    volume.device.write_at(at, &raw)
}

fn write_group(
    ed: &Editor<'_, '_>,
    known: &GroupFacts,
    group: GroupNr,
    counts: &Counts,
) -> Result<(), DeviceError> {
    let volume = ed.volume();
    let geometry = &volume.geometry;
    let mut desc = volume.group_of(group).desc;
    let has_flags = volume
        .ro_compat
        .intersects(blockyard_disk::RoCompat::GDT_CSUM | blockyard_disk::RoCompat::METADATA_CSUM);
    let mut flags = desc.flags();
    flags.remove(GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_UNINIT);
    desc.set_flags(flags);
    desc.set_free_clusters(counts.free_clusters);
    desc.set_free_inodes(counts.free_inodes);
    desc.set_used_dirs(counts.directories);
    let unused = desc.itable_unused().min(geometry.inodes_per_group() - counts.inodes_end);
    desc.set_itable_unused(if has_flags { unused } else { 0 });
    let mut block = vec![0; volume.block_size()];
    for (at, word) in counts.found.iter().enumerate() {
        if let Some(bytes) = block.get_mut(8 * at..8 * at + 8) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }
    bitmap::pad_from(&mut block, geometry.clusters_in_group(group));
    volume.checksums.seal_block_bitmap(&mut desc, volume.desc_size, &block, geometry.clusters_per_group());
    put_if_changed(ed, desc.block_bitmap(), &block)?;
    let mut block = vec![0; volume.block_size()];
    for index in known.marked() {
        bitmap::set(&mut block, u32_from_usize(index));
    }
    bitmap::pad_from(&mut block, geometry.inodes_per_group());
    volume.checksums.seal_inode_bitmap(&mut desc, volume.desc_size, &block, geometry.inodes_per_group());
    put_if_changed(ed, desc.inode_bitmap(), &block)?;
    put_descriptor(ed, group, &desc)
}

fn put_if_changed(
    ed: &Editor<'_, '_>,
    place: blockyard_disk::BlockNr,
    block: &[u8],
) -> Result<(), DeviceError> {
    if ed.volume().block(place).is_ok_and(|old| old == block) { Ok(()) } else { ed.put_block(place, block) }
}

/// Marks inode tables as used ([`open_tables`]) if directories name inodes there that were not
/// scanned, and the user accepts the repair. Returns whether there are such tables.
///
/// Until these inodes are scanned, the blocks of their files look free. So this is done before
/// every repair of passes 1 and 2 that allocates blocks. Later passes need no such step: pass 2
/// reports these inodes as errors, and later passes run only if pass 2 has no errors.
pub(super) fn open_named(ed: &mut Editor<'_, '_>, facts: &Facts) -> Result<bool, DeviceError> {
    let volume = ed.volume();
    let mut groups = directories::groups_named(volume, facts);
    groups.retain(|group| {
        let is_uninit = volume.group_of(*group).flags.contains(GroupFlags::INODE_UNINIT);
        ed.log.accepts(if is_uninit { Code::UNINIT_INODE } else { Code::UNUSED_AREA_INODE })
    });
    open_tables(ed, &groups)?;
    Ok(!groups.is_empty())
}

/// Marks whole inode tables as used, so that all their inodes are read from now on. The caller
/// found the root, or inodes that directories name, in the part of each table that the descriptor
/// calls never used.
pub(crate) fn open_tables(ed: &mut Editor<'_, '_>, groups: &BTreeSet<GroupNr>) -> Result<(), DeviceError> {
    for &group in groups {
        let mut desc = ed.volume().group_of(group).desc;
        let mut flags = desc.flags();
        flags.remove(GroupFlags::INODE_UNINIT);
        desc.set_flags(flags);
        desc.set_itable_unused(0);
        put_descriptor(ed, group, &desc)?;
        ed.add(
            Code::UNUSED_AREA_INODE,
            Site::group(group),
            Cost::Nothing,
            "whole inode table marked as used",
        );
    }
    Ok(())
}

/// Lowers the descriptor's count of never-used inodes (`itable_unused`), so that the first `used`
/// inodes of the table are scanned from now on.
pub(crate) fn open_table(ed: &Editor<'_, '_>, group: GroupNr, used: u32) -> Result<(), DeviceError> {
    let per_group = ed.volume().geometry.inodes_per_group();
    assert!(0 < used && used <= per_group, "{used} inodes of {per_group}");
    let mut desc = ed.volume().group_of(group).desc;
    let mut flags = desc.flags();
    flags.remove(GroupFlags::INODE_UNINIT);
    desc.set_flags(flags);
    desc.set_itable_unused(per_group - used);
    put_descriptor(ed, group, &desc)
}

/// Clears the uninit flags and the counts of never-used inodes in descriptors from a backup: what
/// they call unused may be in use by now.
pub(crate) fn forget_uninit(volume: &Volume<'_>) -> Result<(), DeviceError> {
    let uninit = GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_UNINIT;
    for group in volume.geometry.all_groups() {
        let mut desc = volume.group_of(group).desc;
        let mut flags = desc.flags();
        flags.remove(uninit);
        desc.set_flags(flags);
        desc.set_itable_unused(0);
        put_raw_descriptor(volume, group, &desc)?;
    }
    Ok(())
}
