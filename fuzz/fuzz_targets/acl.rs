//! Access lists, in the form on disk and in that of system calls: what one form says, the other says too.

#![no_main]

use blockyard_disk::xattr::{acl_from_posix, acl_to_posix};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut list = data.to_vec();
    if list.len() >= 4 {
        list[..4].copy_from_slice(&1u32.to_le_bytes());
    }
    if let Some(shown) = acl_to_posix(&list) {
        assert_eq!(acl_from_posix(&shown).expect("what was shown is a list"), list);
    }
    if list.len() >= 4 {
        list[..4].copy_from_slice(&2u32.to_le_bytes());
    }
    if let Some(stored) = acl_from_posix(&list) {
        // Ids where there are none are not kept.
        let shown = acl_to_posix(&stored).expect("what was stored is a list");
        assert_eq!(shown.len(), list.len());
        assert_eq!(acl_from_posix(&shown), Some(stored));
    }
});
