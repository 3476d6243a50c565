//! Block maps: the path to any logical block, and any pointer.

#![no_main]

use blockyard_disk::LogicalBlock;
use blockyard_disk::indirect::{self, DIRECT, LEVELS_MAX};
use blockyard_fuzz::{Input, superblock};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let sb = superblock(input.byte());
    let bits = 10 + u32::from(input.byte()) % 7;
    let logical = input.word();
    match indirect::path(bits, LogicalBlock::new(logical)) {
        Some(way) => {
            assert!(way.root < DIRECT + LEVELS_MAX && way.levels <= LEVELS_MAX);
            assert!(way.indexes.iter().all(|index| *index < 1 << (bits - 2)));
        }
        None => assert!(u64::from(logical) >= indirect::blocks_max(bits)),
    }
    for pointer in indirect::pointers(input.0) {
        if let Ok(Some(block)) = indirect::pointer(sb.geometry(), pointer.get()) {
            assert!(sb.geometry().contains(block));
        }
    }
});
