//! Blocks of the orphan file.

#![no_main]

use blockyard_disk::checksum::{seal_orphan_block, verify_orphan_block};
use blockyard_disk::orphan_file::{MAGIC, OrphanBlock, slots_per_block};
use blockyard_disk::{BlockNr, InodeNr};
use blockyard_fuzz::Input;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // First a block of any length, then a complete one with the right magic.
    let _ = OrphanBlock::parse(data).map(|block| block.inodes().count());
    let mut input = Input(data);
    let length = 1024 << (input.byte() % 3);
    let (seed, number) = (Some(input.word()), BlockNr::new(u64::from(input.word())));
    let mut block = input.block(length);
    block[length - 8..length - 4].copy_from_slice(&MAGIC.to_le_bytes());
    seal_orphan_block(seed, number, &mut block);
    assert!(verify_orphan_block(seed, number, &block).is_ok());
    let inodes = OrphanBlock::parse(&block).expect("it has its magic").inodes();
    let inodes: Vec<InodeNr> = inodes.collect();
    assert!(inodes.len() <= slots_per_block(length) && !inodes.contains(&InodeNr::ZERO));
});
