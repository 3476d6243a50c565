//! Checks that a journal shares no block with group heads, bitmaps or inode tables. A commit would
//! overwrite them, and a replay would read them as log records.

use blockyard_disk::group_desc::RawGroupDesc;
use blockyard_disk::{BlockCount, BlockNr, Corruption, CorruptionKind, GroupNr, Superblock};

use crate::error::Result;
use crate::journal_map::JournalMap;

fn shared(block: BlockNr) -> Corruption {
    Corruption::new(CorruptionKind::JournalMapping).in_block(block)
}

/// Fails if a journal block belongs to a group head: to a superblock (or a copy of it), to group
/// descriptors, or to blocks reserved for more descriptors.
pub(crate) fn keep_off_heads(sb: &Superblock, map: &JournalMap) -> Result<(), Corruption> {
    let geometry = sb.geometry();
    for run in map.runs() {
        let last = BlockNr::new(run.end.raw() - 1);
        let groups = geometry.group_of(run.start).raw()..=geometry.group_of(last).raw();
        for group in groups.map(GroupNr::new) {
            let head = sb.head(group).blocks();
            // A group without superblock copy and descriptors has an empty head. An empty head
            // shares no block, even if its position is inside a run.
            if !head.is_empty() && head.start < run.end && run.start < head.end {
                return Err(shared(head.start));
            }
        }
    }
    Ok(())
}

/// Fails if a journal block belongs to a bitmap or an inode table. A descriptor with a wrong
/// checksum is skipped, because its block numbers prove nothing. `read_block` reads a block of the
/// file system: from the device, or from the log, which may hold newer descriptors.
pub(crate) fn keep_off_tables(
    sb: &Superblock,
    map: &JournalMap,
    mut read_block: impl FnMut(BlockNr, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let geometry = sb.geometry();
    let table_blocks = BlockCount::new(geometry.inode_table_blocks());
    let mut block = vec![0; geometry.block_size()];
    let mut held = None;
    for group in geometry.all_groups() {
        let (number, offset) = sb.descriptor_place(group);
        if held != Some(number) {
            read_block(number, &mut block)?;
            held = Some(number);
        }
        let bytes = &block[offset..offset + sb.desc_size()];
        if sb.checksums().verify_group_desc(group, bytes).is_err() {
            continue;
        }
        let descriptor = RawGroupDesc::from_disk(bytes);
        let one = BlockCount::new(1);
        let areas = [
            (descriptor.block_bitmap(), one),
            (descriptor.inode_bitmap(), one),
            (descriptor.inode_table(), table_blocks),
        ];
        if let Some((start, _)) = areas.into_iter().find(|(start, count)| map.overlaps(*start, *count)) {
            return Err(shared(start).in_group(group).into());
        }
    }
    Ok(())
}
