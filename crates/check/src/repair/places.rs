//! New blocks for bitmaps whose descriptors name an impossible block, or one that something else
//! uses, when no backup names a better one. A repair computes what is in a bitmap, so any free
//! block will do (without flex_bg, any in the group).

use blockyard_device::DeviceError;
use blockyard_disk::num::u64_from_u32;
use blockyard_disk::{BlockNr, GroupNr, Incompat};

use super::bitmaps::put_descriptor;
use super::editor::Editor;
use super::log::Cost;
use crate::code::Code;
use crate::finding::{Finding, Site};

/// The groups that have a finding of one of these codes, in ascending order.
pub(super) fn groups_with(before: &[Finding], codes: [Code; 2]) -> Vec<GroupNr> {
    let mut groups: Vec<GroupNr> = before
        .iter()
        .filter(|finding| codes.contains(&finding.code))
        .filter_map(|finding| finding.site.group)
        .collect();
    groups.sort_unstable();
    groups.dedup();
    groups
}

/// Moves each bitmap whose place is impossible or taken, according to the findings, to a free block
/// if there is one. Returns whether there are such findings that the user has not declined.
pub(crate) fn place_bitmaps(ed: &mut Editor<'_, '_>, before: &[Finding]) -> Result<bool, DeviceError> {
    let wanted = |place, conflict| {
        if ed.log.accepts(place) { groups_with(before, [place, conflict]) } else { Vec::new() }
    };
    let blocks = wanted(Code::BLOCK_BITMAP_PLACE, Code::BLOCK_BITMAP_CONFLICT);
    let inodes = wanted(Code::INODE_BITMAP_PLACE, Code::INODE_BITMAP_CONFLICT);
    for &group in &blocks {
        move_bitmap(ed, group, Code::BLOCK_BITMAP_PLACE)?;
    }
    for &group in &inodes {
        move_bitmap(ed, group, Code::INODE_BITMAP_PLACE)?;
    }
    Ok(!blocks.is_empty() || !inodes.is_empty())
}

fn move_bitmap(ed: &mut Editor<'_, '_>, group: GroupNr, code: Code) -> Result<(), DeviceError> {
    let may_lie_elsewhere = ed.volume().incompat.contains(Incompat::FLEX_BG);
    let place = near(ed, group).or_else(|| if may_lie_elsewhere { ed.allocate() } else { None });
    let Some(place) = place else { return Ok(()) };
    let volume = ed.volume();
    let mut raw = vec![0; volume.desc_size];
    volume.device.read_at(super::bitmaps::descriptor_at(volume, group), &mut raw)?;
    let mut desc = blockyard_disk::group_desc::RawGroupDesc::from_disk(&raw);
    if code == Code::BLOCK_BITMAP_PLACE {
        desc.set_block_bitmap(place)
    } else {
        desc.set_inode_bitmap(place)
    }
    put_descriptor(ed, group, &desc)?;
    ed.log.rewrite_all = super::log::RewriteAll::Yes;
    ed.add(code, Site::group(group), Cost::Nothing, format!("bitmap moved to block {place}"));
    Ok(())
}

/// Claims a free block in the group itself. Without flex_bg the bitmap must lie there.
fn near(ed: &mut Editor<'_, '_>, group: GroupNr) -> Option<BlockNr> {
    let geometry = &ed.volume().geometry;
    let first = ed.scan.map.cluster(geometry.group_first_block(group));
    let cluster = ed.scan.map.free_from(first)?;
    if cluster >= first + u64_from_u32(geometry.clusters_in_group(group)) {
        return None;
    }
    let ratio = u64_from_u32(geometry.cluster_ratio());
    let block = geometry.first_data_block().raw() + cluster * ratio;
    ed.scan.map.claim(cluster, 1);
    ed.log.fresh.extend(block..block + ratio);
    Some(BlockNr::new(block))
}
