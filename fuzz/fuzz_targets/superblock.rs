//! The superblock: any bytes, and any bytes with a valid magic and checksum.

#![no_main]

use blockyard_disk::superblock::{MAGIC, RawSuperblock};
use blockyard_disk::{Checksums, GroupNr, Superblock};
use libfuzzer_sys::fuzz_target;
use zerocopy::FromBytes;
use zerocopy::little_endian::U16;

fn exercise(sb: &Superblock) {
    let geometry = sb.geometry();
    let groups = geometry.groups();
    for group in (0..groups).take(300).chain(groups.saturating_sub(3)..groups).map(GroupNr::new) {
        let head = sb.head(group);
        assert!(head.first.raw() < geometry.blocks_count().raw());
        let (block, offset) = sb.descriptor_place(group);
        assert!(geometry.contains(block), "descriptor of group {group} at {block}");
        assert!(offset + sb.desc_size() <= geometry.block_size());
        let _ = (geometry.blocks_in_group(group), geometry.clusters_in_group(group), geometry.flex_of(group));
    }
    let _ = (sb.journal_inode(), sb.orphan_file_inode(), sb.free_blocks_count(), sb.features().to_string());
}

fuzz_target!(|data: &[u8]| {
    if let Ok(sb) = Superblock::parse(data) {
        exercise(&sb);
    }
    let Ok((mut raw, _)) = RawSuperblock::read_from_prefix(data) else { return };
    raw.s_magic = U16::new(MAGIC);
    Checksums::of(&raw).seal_superblock(&mut raw);
    if let Ok(sb) = Superblock::verify(raw) {
        exercise(&sb);
    }
});
