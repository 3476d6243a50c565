//! The resize inode. The superblock alone determines what this inode maps, so a wrong resize inode
//! is made anew. If that is not possible, the inode and its feature are removed.
//!
//! One double-indirect block lists the reserved descriptor blocks of group 0. Each reserved
//! descriptor block lists its copies in the groups with a backup.

use blockyard_device::DeviceError;
use blockyard_disk::inode::FileType;
use blockyard_disk::num::{low32, u32_from_usize, u64_from_u32, u64_from_usize, usize_from_u64};
use blockyard_disk::{BlockCount, BlockNr, Compat, Incompat, InodeNr};
use zerocopy::little_endian::{U16, U32};

use super::editor::Editor;
use super::log::{Cost, Tried};
use crate::code::Code;
use crate::descriptors::SystemRange;
use crate::finding::{Finding, Site};

/// Word of `i_block` that refers to a double-indirect block.
const DOUBLE: usize = 13;

/// Whether a finding is about the resize inode's content.
pub(crate) fn is_about_resize(code: Code) -> bool {
    matches!(code, Code::RESIZE_INODE | Code::RESIZE_REST | Code::RESIZE_WITHOUT_FEATURE)
}

/// Repairs the resize inode when a finding asks for it; returns whether something was done.
pub(super) fn repair(ed: &mut Editor<'_, '_>, findings: &[Finding]) -> Result<bool, DeviceError> {
    let Some(finding) = findings.iter().find(|finding| is_about_resize(finding.code)) else {
        return Ok(false);
    };
    let volume = ed.volume();
    let site = Site::inode(InodeNr::RESIZE);
    let useless =
        !volume.compat.contains(Compat::RESIZE_INODE) || volume.incompat.contains(Incompat::META_BG);
    let tries = ed.log.try_again(Tried::Inode, InodeNr::RESIZE);
    if !useless && tries == 0 && remake(ed)? {
        ed.add(finding.code, site, Cost::Nothing, "resize inode rebuilt");
        return Ok(true);
    }
    let mut slot = ed.slot(InodeNr::RESIZE)?;
    slot.bytes_mut().fill(0);
    ed.put_slot(InodeNr::RESIZE, &mut slot)?;
    ed.change_superblock(|sb| {
        sb.set_compat(sb.compat().difference(Compat::RESIZE_INODE));
        sb.s_reserved_gdt_blocks = U16::new(0);
    })?;
    ed.add(finding.code, site, Cost::Nothing, "resize inode and its feature removed");
    Ok(true)
}

/// Writes the inode and its blocks. Returns false if that is not possible.
fn remake(ed: &mut Editor<'_, '_>) -> Result<bool, DeviceError> {
    let volume = ed.volume();
    let geometry = &volume.geometry;
    // Block numbers in the lists have 32 bits.
    let end = geometry.blocks_count().raw().saturating_add(geometry.blocks_per_group());
    if end > u64_from_u32(u32::MAX) {
        return Ok(false);
    }
    let words = volume.block_size() / 4;
    let reserved = u64::from(volume.sb.s_reserved_gdt_blocks.get());
    let first = volume.desc_block(0) + BlockCount::new(u64_from_u32(volume.old_desc_blocks()));
    if !volume.contains_range(first, reserved.max(1)) || is_occupied(ed, first, reserved) {
        return Ok(false);
    }
    let Some(double) = ed.allocate() else { return Ok(false) };
    let mut top = vec![0; volume.block_size()];
    let groups: Vec<u64> = volume.superblock_groups().iter().map(|group| u64_from_u32(group.raw())).collect();
    for index in 0..reserved {
        let place = first + BlockCount::new(index);
        let slot = usize_from_u64(u64_from_u32(volume.old_desc_blocks()) + index) % words;
        put_word(&mut top, slot, place);
        let mut list = vec![0; volume.block_size()];
        for (nth, group) in groups.iter().filter(|group| **group != 0).enumerate().take(words) {
            put_word(&mut list, nth, place + BlockCount::new(group * geometry.blocks_per_group()));
        }
        ed.put_block(place, &list)?;
    }
    ed.put_block(double, &top)?;
    let mut slot = ed.slot(InodeNr::RESIZE)?;
    let extra = slot.bytes().len().saturating_sub(blockyard_disk::inode::RawInode::SIZE).min(32);
    slot.bytes_mut().fill(0);
    slot.set_extra_isize(blockyard_disk::num::low16(u32_from_usize(extra)));
    let now = low32(ed.now);
    let raw = slot.raw_mut();
    raw.i_mode = U16::new(FileType::Regular.mode_bits() | 0o600);
    raw.i_links_count = U16::new(1);
    for time in [&mut raw.i_atime, &mut raw.i_ctime, &mut raw.i_mtime] {
        *time = U32::new(now);
    }
    let per = u64_from_usize(words);
    raw.set_size((12 + per + per * per) << geometry.block_bits());
    let mut map = [0; 15];
    map[DOUBLE] = low32(double.raw());
    raw.set_block_words(map);
    let clusters =
        (1 + reserved * u64_from_usize(groups.len())).div_ceil(u64_from_u32(geometry.cluster_ratio()));
    let sectors = clusters << (geometry.block_bits() - 9 + geometry.cluster_ratio_bits());
    raw.set_blocks_field(sectors);
    ed.put_slot(InodeNr::RESIZE, &mut slot)?;
    Ok(true)
}

/// Whether one of the reserved descriptor blocks is other metadata, or is mapped by an inode. If
/// so, `s_reserved_gdt_blocks` is too large.
fn is_occupied(ed: &Editor<'_, '_>, first: BlockNr, reserved: u64) -> bool {
    if reserved == 0 {
        return false;
    }
    let map = ed.scan.map;
    let last = BlockNr::new(first.raw() + reserved - 1);
    debug_assert!(ed.volume().contains(last), "the reserved blocks end behind the file system");
    let area = ed.volume().geometry.first_data_block();
    let is_other = |range: &SystemRange| {
        range.first != area && range.first <= last && range.first.raw() + range.count > first.raw()
    };
    ed.scan.system.iter().any(is_other)
        || map.shared_in(map.cluster(first), map.cluster(last) - map.cluster(first) + 1) > 0
}

fn put_word(block: &mut [u8], nth: usize, value: BlockNr) {
    assert!(value.raw() <= u64::from(u32::MAX), "block {value} does not fit a word");
    block[4 * nth..4 * nth + 4].copy_from_slice(&low32(value.raw()).to_le_bytes());
}
