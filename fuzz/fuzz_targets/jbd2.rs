//! The journal's records: superblock, descriptor, revoke, commit, fast commit.

#![no_main]

use blockyard_disk::jbd2::{
    CommitBlock, JournalSuperblock, RawHeader, RawJournalSuperblock, RevokeBlock, fast_commit, tags,
};
use blockyard_fuzz::Input;
use libfuzzer_sys::fuzz_target;
use zerocopy::{FromBytes, IntoBytes};

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let head = input.block(1024);
    let mut raw = RawJournalSuperblock::read_from_bytes(&head).expect("the buffer has its size");
    let _ = JournalSuperblock::parse(&head, 1024, 4096);
    raw.seal();
    let Ok(journal) = JournalSuperblock::parse(raw.as_bytes(), 1024, 4096) else { return };
    let ring = journal.ring();
    let _ = ring.advance(journal.raw().s_first.get(), input.word() % 10_000);
    let mut block = input.block(1024);
    let format = journal.format();
    let _ = RawHeader::read(&block);
    format.seal_tail(&mut block);
    assert!(tags(format, &block).count() <= 1024 / 8);
    if let Ok(revoke) = RevokeBlock::parse(format, &block) {
        assert!(revoke.blocks().count() <= 1024 / 4);
    }
    let commit = CommitBlock::new(&block);
    let _ = commit.verify(format);
    let _ = fast_commit::head_of(&block);
});
