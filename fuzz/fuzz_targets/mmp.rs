//! The MMP block.

#![no_main]

use blockyard_disk::Checksums;
use blockyard_disk::mmp::{MAGIC, RawMmp};
use blockyard_fuzz::{Input, raw_superblock};
use libfuzzer_sys::fuzz_target;
use zerocopy::{FromBytes, IntoBytes};

fuzz_target!(|data: &[u8]| {
    let _ = RawMmp::parse(data);
    let mut input = Input(data);
    let checksums = Checksums::of(&raw_superblock(input.byte()));
    let mut block = input.block(1024);
    block[..4].copy_from_slice(&MAGIC.to_le_bytes());
    let mut mmp = RawMmp::read_from_bytes(&block).expect("the buffer has its size");
    let _ = checksums.verify_mmp(&mmp);
    checksums.seal_mmp(&mut mmp);
    let parsed = RawMmp::parse(mmp.as_bytes()).expect("it has its magic");
    assert!(checksums.verify_mmp(parsed).is_ok());
});
