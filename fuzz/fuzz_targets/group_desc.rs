//! Group descriptors under several valid superblocks.

#![no_main]

use blockyard_disk::{GroupDescriptor, GroupNr};
use blockyard_fuzz::{Input, superblock};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let sb = superblock(input.byte());
    let group = GroupNr::new(u32::from(input.byte()) % sb.geometry().groups());
    let mut bytes = input.block(sb.desc_size());
    let _ = GroupDescriptor::parse(&sb, group, &bytes);
    sb.checksums().seal_group_desc(group, &mut bytes);
    if let Ok(desc) = GroupDescriptor::parse(&sb, group, &bytes) {
        assert!(sb.geometry().contains(desc.block_bitmap()) && sb.geometry().contains(desc.inode_bitmap()));
        let end = desc.inode_table().raw() + sb.geometry().inode_table_blocks();
        assert!(end <= sb.geometry().blocks_count().raw());
        let _ = desc.verify_counts(&sb);
    }
});
