//! Tests of extended attributes.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A block that the kernel wrote: user.a=1, user.h\u{e9}=abc, user.colour=blue, an ACL,
/// trusted.x=hello.
fn kernel_block() -> Vec<u8> {
    let mut block = vec![0; 1024];
    let head: &[u8] =
        b"\0\0\x02\xea\x01\0\0\0\x01\0\0\0\xb2\x7b\xe8\xd0\xed\x2e\xb1\xc5\0\0\0\0\0\0\0\0\0\0\0\0\
\x01\x01\xfc\x03\0\0\0\0\x01\0\0\0\x31\0\x61\0\x61\0\0\0\x03\x01\xec\x03\0\0\0\0\x03\0\0\0\
\x60\x62\xaa\xb8\x68\xc3\xa9\0\x06\x01\xf8\x03\0\0\0\0\x04\0\0\0\xa5\xac\xa7\xd7\x63\x6f\x6c\x6f\x75\x72\0\0\
\0\x02\xc8\x03\0\0\0\0\x24\0\0\0\x26\0\xf7\x03\x01\x04\xf0\x03\0\0\0\0\x05\0\0\0\x7b\x6c\x68\x65\x78\0\0\0";
    block[..head.len()].copy_from_slice(head);
    let tail: &[u8] = b"\x01\0\0\0\x01\0\x06\0\x02\0\x06\0\xe8\x03\0\0\x04\0\x04\0\x08\0\x04\0\x05\0\0\0\
\x10\0\x06\0\x20\0\x04\0abc\0hello\0\0\0blue1\0\0\0";
    let at = 1024 - tail.len();
    block[at..].copy_from_slice(tail);
    block
}

#[test]
fn a_block_of_the_kernel_reads_with_equal_hashes() {
    let block = kernel_block();
    let entries = parse(&block, Home::Block).unwrap();
    let names: Vec<(u8, &[u8], &[u8])> =
        entries.iter().map(|entry| (entry.name_index, entry.name, entry.value)).collect();
    assert_eq!(names[0], (1, b"a".as_slice(), b"1".as_slice()));
    assert_eq!(names[1], (1, "h\u{e9}".as_bytes(), b"abc".as_slice()));
    assert_eq!(names[2], (1, b"colour".as_slice(), b"blue".as_slice()));
    assert_eq!((names[3].0, names[3].1, names[3].2.len()), (2, b"".as_slice(), 36));
    assert_eq!(names[4], (4, b"x".as_slice(), b"hello".as_slice()));
    for entry in &entries {
        assert_eq!(entry.hash, entry_hash(entry.name, entry.value), "{entry:?}");
    }
    assert_ne!(entries[1].hash, entry_hash_signed(entries[1].name, entries[1].value));
    let header = BlockHeader::read(&block).unwrap();
    assert_eq!((header.refcount, header.checksum), (1, 0xC5B1_2EED));
    assert_eq!(header.hash, block_hash(entries.iter().map(|entry| entry.hash)));
    // The block's checksum cannot be computed here, because the checksum seed of its image is not
    // known.
    let posix = acl_to_posix(names[3].2).unwrap();
    assert_eq!(posix.len(), 4 + 6 * 8);
    assert_eq!(acl_from_posix(&posix).unwrap().unwrap(), names[3].2);
    assert!(acl_is_whole(names[3].2));
}

#[test]
fn an_entry_without_index_and_name_is_refused() {
    // Found by fuzzing: this entry differs from the end mark only in the value offset. Writing the
    // list back lost the entry.
    let mut area = vec![0; 64];
    area[..4].copy_from_slice(&MAGIC.to_le_bytes());
    area[6] = 8;
    assert_eq!(parse(&area, Home::Inode), Err(XattrDefect::Name { at: 4 }));
}

#[test]
fn writing_a_list_again_gives_the_same_entries() {
    let block = kernel_block();
    let list = AttributeList::parse(&block, Home::Block).unwrap();
    let mut again = vec![0xFF; 1024];
    assert!(list.write_block(&mut again, 1));
    assert_eq!(AttributeList::parse(&again, Home::Block).unwrap(), list);
    assert_eq!(BlockHeader::read(&again).unwrap().hash, BlockHeader::read(&block).unwrap().hash);
    let mut area = vec![0xFF; 200];
    assert!(list.write_inode_area(&mut area));
    assert_eq!(AttributeList::parse(&area, Home::Inode).unwrap(), list);
    assert!(parse(&area, Home::Inode).unwrap().iter().all(|entry| entry.hash == 0));
    let needed = list.area_len(Home::Inode);
    assert!(list.write_inode_area(&mut vec![0; needed]) && !list.write_inode_area(&mut vec![0; needed - 4]));
}

#[test]
fn each_defect_is_named() {
    let broken = |at: usize, bytes: &[u8]| {
        let mut block = kernel_block();
        block[at..at + bytes.len()].copy_from_slice(bytes);
        parse(&block, Home::Block).unwrap_err()
    };
    assert_eq!(broken(0, &[1]), XattrDefect::Magic);
    assert_eq!(broken(8, &[2]), XattrDefect::Blocks);
    assert_eq!(broken(4, &[0]), XattrDefect::Refcount);
    assert_eq!(broken(5, &[9]), XattrDefect::Refcount);
    assert_eq!(broken(48, &[0]), XattrDefect::Name { at: 32 });
    assert_eq!(broken(35, &[4]), XattrDefect::Value { at: 32 });
    assert_eq!(broken(34, &[0x20, 0]), XattrDefect::Overlap { at: 32 });
    assert_eq!(broken(34, &[0xF8, 3]), XattrDefect::Overlap { at: 72 });
    assert_eq!(broken(33, &[7]), XattrDefect::Order { at: 52 });
    assert_eq!(parse(&[0; 64], Home::Inode), Err(XattrDefect::Magic));
    let mut full = kernel_block();
    full[32..].fill(1);
    assert!(matches!(parse(&full, Home::Block), Err(XattrDefect::Value { at: 32 })));
    let mut twice = AttributeList::parse(&kernel_block(), Home::Block).unwrap();
    twice.set(Attribute { index: 1, name: b"b".to_vec(), value: Value::Bytes(b"2".to_vec()) });
    let mut block = vec![0; 1024];
    assert!(twice.write_block(&mut block, 1));
    block[68] = b'a';
    assert_eq!(parse(&block, Home::Block), Err(XattrDefect::Duplicate { at: 52 }));
}

#[test]
fn names_split_at_known_prefixes() {
    for (full, split) in [
        ("user.colour", Some((1, "colour"))),
        ("trusted.x", Some((4, "x"))),
        ("security.selinux", Some((6, "selinux"))),
        ("system.posix_acl_access", Some((2, ""))),
        ("system.posix_acl_default", Some((3, ""))),
        ("system.data", Some((7, "data"))),
        ("user.", None),
        ("colour", None),
    ] {
        let got = split_name(full.as_bytes());
        assert_eq!(got, split.map(|(index, rest)| (index, rest.as_bytes())), "{full}");
        if let Some((index, rest)) = got {
            assert_eq!(join_name(index, rest).as_deref(), Some(full.as_bytes()));
        }
    }
    assert_eq!(join_name(99, b"x"), None);
}

proptest! {
    #[test]
    fn lists_behave_like_a_map(
        edits in proptest::collection::vec(
            (1u8..3, "[a-d]{1,3}", proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40))),
            1..60,
        ),
    ) {
        let mut list = AttributeList::default();
        let mut model = BTreeMap::new();
        for (index, name, value) in edits {
            let key = (index, name.len(), name.clone().into_bytes());
            match value {
                Some(bytes) => {
                    let attribute = Attribute { index, name: key.2.clone(), value: Value::Bytes(bytes.clone()) };
                    prop_assert_eq!(list.set(attribute).is_some(), model.insert(key, bytes).is_some());
                }
                None => {
                    prop_assert_eq!(list.remove(index, &key.2).is_some(), model.remove(&key).is_some());
                }
            }
            let mut block = vec![0; 4096];
            prop_assert!(list.write_block(&mut block, 1));
            let read = parse(&block, Home::Block).unwrap();
            prop_assert_eq!(read.len(), model.len());
            for (entry, ((index, _, name), value)) in read.iter().zip(&model) {
                prop_assert_eq!((entry.name_index, entry.name, entry.value), (*index, &name[..], &value[..]));
            }
        }
    }

    #[test]
    fn hostile_bytes_never_panic(mut area in proptest::collection::vec(any::<u8>(), 0..2048), plausible in any::<bool>()) {
        if plausible && area.len() > 64 {
            area[..4].copy_from_slice(&MAGIC.to_le_bytes());
            area[8..12].copy_from_slice(&1u32.to_le_bytes());
            for at in (32..area.len() - 16).step_by(20) {
                area[at] %= 4;
                area[at + 3] &= 3;
                area[at + 8..at + 12].copy_from_slice(&3u32.to_le_bytes());
            }
        }
        for home in [Home::Inode, Home::Block] {
            let _ = parse(&area, home);
            for entry in RawEntries::new(&area, home) {
                let _ = entry.map(|entry| (acl_to_posix(entry.value), entry_hash(entry.name, entry.value)));
            }
        }
        let _ = acl_from_posix(&area).map(|list| list.map(|list| acl_is_whole(&list)));
    }
}
