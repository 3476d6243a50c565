//! Index blocks of directories (roots and nodes), and the hashes of names.

#![no_main]

use blockyard_disk::checksum::verify_htree;
use blockyard_disk::dirblock::DirLayout;
use blockyard_disk::dirhash::{DirHasher, HashSeed, HashVersion};
use blockyard_disk::htree::{Index, IndexKind, RootInfo};
use blockyard_fuzz::Input;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let choice = input.byte();
    let layout = DirLayout {
        block_size: if choice & 1 == 0 { 1024 } else { 4096 },
        tail: choice & 2 == 0,
        file_types: true,
        inodes_count: 1000,
    };
    let kind = if choice & 4 == 0 { IndexKind::Root } else { IndexKind::Node };
    let hash = input.word();
    let length = usize::from(input.byte());
    let name = input.take(length);
    if let Some(version) = HashVersion::from_raw(choice >> 4) {
        let found = DirHasher::new(version, HashSeed::new([hash, 1, 2, 3])).hash(name);
        assert!(found.major & 1 == 0 && found.major != 0xFFFF_FFFE);
    }
    let mut block = input.block(layout.block_size);
    let _ = RootInfo::verify(&block, &layout, choice & 8 == 0);
    let _ = verify_htree(Some(hash), &block, kind.entries_at());
    // The right limit follows from the layout. It is set here, so that the input gets past the
    // check of the limit.
    let limit = u16::try_from(kind.limit(&layout)).expect("a limit fits 16 bits");
    let at = kind.entries_at();
    block[at..at + 2].copy_from_slice(&limit.to_le_bytes());
    if let Ok(index) = Index::parse(&block, kind, &layout, 5000) {
        let position = index.find(hash);
        let entry = index.entry(position);
        assert!(entry.key <= hash && entry.block < 5000);
        assert!(index.entries().len() == index.count());
    }
});
