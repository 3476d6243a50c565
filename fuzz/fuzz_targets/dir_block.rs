//! Linear directory blocks: walking, searching, inserting and removing. A block is still sound
//! after an entry was inserted, and after the entry was removed again.

#![no_main]

use blockyard_disk::dirblock::{self, DirLayout, Entries, NewEntry};
use blockyard_disk::inode::FileType;
use blockyard_fuzz::Input;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let choice = input.byte();
    let layout = DirLayout {
        block_size: if choice & 1 == 0 { 1024 } else { 4096 },
        tail: choice & 2 == 0,
        file_types: choice & 4 == 0,
        inodes_count: 1000,
    };
    let length = usize::from(input.byte());
    let name = input.take(length);
    let mut block = input.block(layout.block_size);
    let _ = dirblock::verify(&block, layout);
    let _ = dirblock::dots(&block, layout);
    let _ = dirblock::is_empty(&block, layout);
    let _ = dirblock::packed_len(&block, layout);
    let walked: Result<Vec<_>, _> = Entries::new(&block, layout).and_then(Iterator::collect);
    let is_sound = walked.is_ok();
    let _ = Entries::in_area(input.0, layout).count();
    if name.is_empty() {
        return;
    }
    let entry = NewEntry { inode: 12, file_type: FileType::Regular, name };
    let was_there = dirblock::find(&block, layout, name);
    if let Ok(true) = dirblock::insert(&mut block, layout, &entry) {
        assert!(is_sound, "inserted into a damaged block");
        let found = dirblock::find(&block, layout, name).expect("the block stays sound");
        let found = found.expect("what was inserted is found");
        dirblock::remove_at(&mut block, layout, &found).expect("what was found is removed");
        let left: Result<Vec<_>, _> = Entries::new(&block, layout).and_then(Iterator::collect);
        left.expect("the block stays sound");
    }
    assert_eq!(was_there.is_ok(), is_sound || was_there.is_ok());
});
