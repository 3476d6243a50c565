//! Attribute lists in inodes and blocks: parses them, and writes back what was parsed.

#![no_main]

use blockyard_disk::xattr::{self, AttributeList, Home};
use blockyard_fuzz::Input;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let choice = input.byte();
    let home = if choice & 1 == 0 { Home::Inode } else { Home::Block };
    let length = match home {
        Home::Inode => 4 + 4 * (usize::from(choice >> 1) % 25),
        Home::Block => 1024,
    };
    let mut area = input.block(length);
    area[..4].copy_from_slice(&xattr::MAGIC.to_le_bytes());
    let Ok(entries) = xattr::parse(&area, home) else { return };
    for entry in &entries {
        let _ = xattr::join_name(entry.name_index, entry.name);
        let _ = xattr::acl_to_posix(entry.value).map(|shown| xattr::acl_from_posix(&shown));
    }
    let list = AttributeList::parse(&area, home).expect("it was parsed before");
    if list.is_empty() {
        // An empty list is written as no list at all.
        return;
    }
    let mut again = vec![0; length];
    let fits = match home {
        Home::Inode => list.write_inode_area(&mut again),
        Home::Block => list.write_block(&mut again, 1),
    };
    if fits {
        assert_eq!(AttributeList::parse(&again, home).expect("what was written parses"), list);
    }
});
