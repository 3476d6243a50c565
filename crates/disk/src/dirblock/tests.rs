//! Tests of directory blocks.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn layout(block_size: usize, tail: bool, file_types: bool) -> DirLayout {
    DirLayout { block_size, tail, file_types, inodes_count: 1 << 20 }
}

fn layouts() -> Vec<DirLayout> {
    [1024, 4096, 65536]
        .into_iter()
        .flat_map(|size| {
            [(true, true), (true, false), (false, true), (false, false)].map(|(t, f)| layout(size, t, f))
        })
        .collect()
}

fn regular(inode: u32, name: &[u8]) -> NewEntry<'_> {
    NewEntry { inode, file_type: FileType::Regular, name }
}

#[test]
fn a_new_directory_has_its_dots_and_fills_the_block() {
    for layout in layouts() {
        let mut block = vec![0xAA; layout.block_size];
        init_dots(&mut block, layout, 12, 2);
        verify(&block, layout).unwrap();
        assert_eq!(dots(&block, layout), Ok(Dots { own: 12, parent: 2, dotdot_at: 12 }));
        assert!(is_empty(&block, layout).unwrap());
        assert_eq!(Entries::new(&block, layout).unwrap().count(), 2);
        assert_eq!(packed_len(&block, layout), Ok(24));
        assert_eq!(stored_checksum(&block).is_some(), layout.tail);
    }
}

#[test]
fn whole_64_kib_blocks_use_the_special_rec_len() {
    let layout = layout(65536, false, true);
    let mut block = vec![0; 65536];
    init_empty(&mut block, layout);
    assert_eq!(&block[4..6], &[0xFF, 0xFF]);
    verify(&block, layout).unwrap();
    block[4..6].fill(0);
    verify(&block, layout).unwrap();
}

#[test]
fn removing_the_first_entry_leaves_a_free_slot() {
    let layout = layout(1024, true, true);
    let mut block = vec![0; 1024];
    init_empty(&mut block, layout);
    assert!(insert(&mut block, layout, &regular(20, b"one")).unwrap());
    assert!(insert(&mut block, layout, &regular(21, b"two")).unwrap());
    let one = find(&block, layout, b"one").unwrap().unwrap();
    assert_eq!(one.at, 0);
    remove_at(&mut block, layout, &one).unwrap();
    assert_eq!(find(&block, layout, b"one"), Ok(None));
    assert!(insert(&mut block, layout, &regular(22, b"abc")).unwrap());
    assert_eq!(find(&block, layout, b"abc").unwrap().unwrap().at, 0);
    verify(&block, layout).unwrap();
}

#[test]
fn each_defect_is_named() {
    let layout = layout(1024, true, true);
    let mut fresh = vec![0; 1024];
    init_dots(&mut fresh, layout, 12, 2);
    let broken = |at: usize, bytes: &[u8]| {
        let mut block = fresh.clone();
        block[at..at + bytes.len()].copy_from_slice(bytes);
        verify(&block, layout).unwrap_err()
    };
    assert_eq!(broken(4, &[8, 0]), DirDefect::RecLen { at: 0 });
    assert_eq!(broken(4, &[14, 0]), DirDefect::RecLen { at: 0 });
    assert_eq!(broken(16, &[0, 4]), DirDefect::Overrun { at: 12 });
    assert_eq!(broken(16, &[0xE4, 3]), DirDefect::Remainder { at: 12 });
    assert_eq!(broken(6, &[5]), DirDefect::NameLen { at: 0 });
    assert_eq!(broken(6, &[0]), DirDefect::Name { at: 0 });
    assert_eq!(broken(8, b"/"), DirDefect::Name { at: 0 });
    assert_eq!(broken(0, &[0, 0, 0, 1]), DirDefect::InodeNumber { at: 0 });
    assert_eq!(broken(1019, &[0]), DirDefect::TailMissing);
    assert_eq!(verify(&fresh[..1000], layout), Err(DirDefect::BlockSize));
    let mut block = fresh.clone();
    block[8] = b'x';
    assert_eq!(dots(&block, layout), Err(DirDefect::Dot));
    let mut block = fresh.clone();
    block[20] = b'x';
    assert_eq!(dots(&block, layout), Err(DirDefect::DotDot));
}

#[test]
fn the_tail_checksum_covers_everything_before_it() {
    let layout = layout(1024, true, true);
    let mut block = vec![0; 1024];
    init_dots(&mut block, layout, 12, 2);
    set_checksum(&mut block, 0x1234).unwrap();
    assert_eq!(stored_checksum(&block), Some(checksum(&block, 0x1234)));
    block[100] ^= 1;
    assert_ne!(stored_checksum(&block), Some(checksum(&block, 0x1234)));
}

#[derive(Clone, Debug)]
enum Operation {
    Insert(Vec<u8>, u32),
    Remove(usize),
    Retarget(usize, u32),
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let name = proptest::collection::vec(b'a'..=b'e', 1..40);
    let operation = prop_oneof![
        4 => (name, 1u32..1000).prop_map(|(name, inode)| Operation::Insert(name, inode)),
        2 => any::<usize>().prop_map(Operation::Remove),
        1 => (any::<usize>(), 1u32..1000).prop_map(|(nth, inode)| Operation::Retarget(nth, inode)),
    ];
    proptest::collection::vec(operation, 1..120)
}

proptest! {
    #[test]
    fn behaves_like_a_map(operations in operations(), which in 0usize..8) {
        let layout = layouts()[which];
        let mut block = vec![0; layout.block_size];
        init_empty(&mut block, layout);
        let mut model: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
        for operation in operations {
            match operation {
                Operation::Insert(name, inode) => {
                    let found = find(&block, layout, &name).unwrap();
                    prop_assert_eq!(found.map(|found| found.inode), model.get(&name).copied());
                    let slot = slot_for(&block, layout, name.len()).unwrap();
                    if found.is_none() && let Some(slot) = slot {
                        insert_at(&mut block, layout, slot, &regular(inode, &name));
                        model.insert(name, inode);
                    }
                }
                Operation::Remove(nth) | Operation::Retarget(nth, _) if model.is_empty() => { let _ = nth; }
                Operation::Remove(nth) => {
                    let name = model.keys().nth(nth % model.len()).unwrap().clone();
                    let found = find(&block, layout, &name).unwrap().unwrap();
                    remove_at(&mut block, layout, &found).unwrap();
                    // Removing the same entry again fails, unless it was the first of the block:
                    // the first entry stays as a free slot.
                    prop_assert_eq!(remove_at(&mut block, layout, &found).is_ok(), found.at == 0);
                    model.remove(&name);
                }
                Operation::Retarget(nth, inode) => {
                    let name = model.keys().nth(nth % model.len()).unwrap().clone();
                    let found = find(&block, layout, &name).unwrap().unwrap();
                    set_inode(&mut block, layout, found.at, inode, FileType::Fifo).unwrap();
                    model.insert(name, inode);
                }
            }
            verify(&block, layout).unwrap();
            let names: BTreeMap<Vec<u8>, u32> = Entries::new(&block, layout)
                .unwrap()
                .map(Result::unwrap)
                .filter(|entry| entry.inode != 0)
                .map(|entry| (entry.name.to_vec(), entry.inode))
                .collect();
            prop_assert_eq!(&names, &model);
        }
    }

    #[test]
    fn packing_keeps_every_entry(count in 0usize..60, which in 0usize..8) {
        let layout = layouts()[which];
        let mut block = vec![1; layout.block_size];
        let names: Vec<Vec<u8>> = (0..count).map(|n| format!("name-{n}-{}", "y".repeat(n % 9)).into_bytes()).collect();
        let mut packer = Packer::new(&mut block, layout);
        let packed: Vec<&Vec<u8>> = names.iter().take_while(|name| packer.push(9, 1, name)).collect();
        let used = packer.used();
        verify(&block, layout).unwrap();
        prop_assert_eq!(packed_len(&block, layout), Ok(used));
        for name in packed {
            prop_assert!(find(&block, layout, name).unwrap().is_some());
        }
    }

    #[test]
    fn hostile_bytes_never_panic(
        mut block in proptest::collection::vec(any::<u8>(), 1024),
        which in 0usize..4,
        at in any::<usize>(),
    ) {
        let layout = layouts()[which];
        let _ = verify(&block, layout);
        let _ = dots(&block, layout);
        let _ = packed_len(&block, layout);
        let _ = is_empty(&block, layout);
        let _ = insert(&mut block, layout, &regular(3, b"some name"));
        let found = Found { at: at % 1100, inode: 1, file_type: 0 };
        let _ = remove_at(&mut block, layout, &found);
        let _ = slot_for(&block, layout, 9);
        let _ = set_inode(&mut block, layout, at % 1100, 7, FileType::Regular);
    }
}
