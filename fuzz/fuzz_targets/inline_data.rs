//! Inline files and directories.

#![no_main]

use blockyard_disk::dirblock::DirLayout;
use blockyard_disk::inline_data::InlineData;
use blockyard_fuzz::Input;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let size = input.word();
    let head = input.block(60);
    let head: &[u8; 60] = head.first_chunk().expect("60 bytes were taken");
    let inline = InlineData { head, tail: input.0.get(..800).unwrap_or(input.0) };
    let content = inline.content(usize::try_from(size).expect("64-bit hosts"));
    assert!(content.len() <= inline.capacity());
    let layout = DirLayout { block_size: 1024, tail: size & 1 == 0, file_types: true, inodes_count: 1000 };
    let _ = inline.dir_entries(layout).take_while(Result::is_ok).count();
    let mut block = vec![0; 1024];
    let _ = inline.convert_dir(12, &mut block, layout);
});
