//! Access control lists in the on-disk form and in the form of system calls, each converted to the
//! other form and back. An on-disk list loses nothing if a system call could have set it. A list in
//! the form of system calls loses only the ids of entries that have no id on disk.

#![no_main]

use blockyard_disk::xattr::{acl_from_posix, acl_is_whole, acl_to_posix};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut list = data.to_vec();
    if list.len() >= 4 {
        list[..4].copy_from_slice(&1u32.to_le_bytes());
    }
    if let Some(shown) = acl_to_posix(&list) {
        // A list on disk may be empty, or have the id that stands for no user or group. No system
        // call can set such a list.
        if let Ok(Some(stored)) = acl_from_posix(&shown) {
            assert_eq!(stored, list);
        }
    }
    if list.len() >= 4 {
        list[..4].copy_from_slice(&2u32.to_le_bytes());
    }
    if let Ok(Some(stored)) = acl_from_posix(&list) {
        // Entries of some types have no id on disk: an id in the input is lost.
        let shown = acl_to_posix(&stored).expect("what was stored is a list");
        assert_eq!(shown.len(), list.len());
        let _ = acl_is_whole(&stored);
        assert_eq!(acl_from_posix(&shown), Ok(Some(stored)));
    }
});
