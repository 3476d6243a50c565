//! Inodes under several valid superblocks.

#![no_main]

use blockyard_disk::inode::InodeSlot;
use blockyard_disk::{Inode, InodeNr};
use blockyard_fuzz::{Input, superblock};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let sb = superblock(input.byte());
    let number = InodeNr::new(input.word() % (sb.geometry().inodes_count() + 2));
    let mut slot = InodeSlot::new(input.block(usize::from(sb.geometry().inode_size())));
    let _ = Inode::parse(&sb, number, slot.bytes());
    sb.checksums().seal_inode(number, &mut slot);
    if let Ok(inode) = Inode::parse(&sb, number, slot.bytes()) {
        let slot = inode.slot();
        let _ = (slot.accessed(), slot.changed(), slot.modified(), slot.created(), slot.version());
        let _ = (slot.project(), slot.extra(), slot.attribute_area(), inode.fast_symlink_target());
        let _ = (inode.map(), inode.sectors(), inode.file_acl(), inode.links());
        assert!(inode.size() >> sb.geometry().block_bits() <= u64::from(u32::MAX));
    }
});
