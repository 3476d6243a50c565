//! Tests of the hash index.

#![allow(clippy::as_conversions)]

use super::*;
use crate::dirblock::NewEntry;
use crate::dirhash::{HashSeed, HashVersion};
use crate::inode::FileType;
use proptest::prelude::*;
use std::collections::BTreeMap;

const LAYOUT: DirLayout =
    DirLayout { block_size: 1024, tail: true, file_types: true, inodes_count: u32::MAX };

fn hasher() -> DirHasher {
    DirHasher::new(HashVersion::HalfMd4, HashSeed::new([0; 4]))
}

/// A directory in memory that uses this module as an engine does.
struct Directory {
    blocks: Vec<Vec<u8>>,
}

impl Directory {
    fn new() -> Self {
        let mut block = vec![0; 1024];
        dirblock::init_dots(&mut block, LAYOUT, 11, 2);
        Self { blocks: vec![block] }
    }

    fn count(&self) -> u32 {
        u32::try_from(self.blocks.len()).unwrap()
    }

    fn append(&mut self) -> u32 {
        self.blocks.push(vec![0; 1024]);
        self.count() - 1
    }

    fn is_indexed(&self) -> bool {
        self.blocks.len() > 1
    }

    /// The path to a hash: the index blocks from the root down, each with the index of the entry to
    /// follow, and then the leaf.
    fn path(&self, hash: u32) -> (Vec<(u32, usize)>, u32) {
        let info = RootInfo::verify(&self.blocks[0], &LAYOUT, true).unwrap();
        let mut path = Vec::new();
        let mut block = 0;
        for level in 0..=info.indirect_levels {
            let kind = if level == 0 { IndexKind::Root } else { IndexKind::Node };
            let index = Index::parse(&self.blocks[block as usize], kind, &LAYOUT, self.count()).unwrap();
            let at = index.find(hash);
            path.push((block, at));
            block = index.entry(at).block;
        }
        (path, block)
    }

    fn kind(block: u32) -> IndexKind {
        if block == 0 { IndexKind::Root } else { IndexKind::Node }
    }

    fn index(&mut self, block: u32) -> IndexMut<'_> {
        let count = self.count();
        IndexMut::parse(&mut self.blocks[block as usize], Self::kind(block), &LAYOUT, count).unwrap()
    }

    fn insert(&mut self, name: &[u8], inode: u32) {
        let entry = NewEntry { inode, file_type: FileType::Regular, name };
        if !self.is_indexed() {
            if dirblock::insert(&mut self.blocks[0], LAYOUT, &entry).unwrap() {
                return;
            }
            self.append();
            let [root, leaf] = &mut self.blocks[..] else { panic!() };
            convert(root, leaf, &LAYOUT, 1, 1).unwrap();
        }
        let hash = hasher().hash(name).major;
        let (path, leaf) = self.path(hash);
        if dirblock::insert(&mut self.blocks[leaf as usize], LAYOUT, &entry).unwrap() {
            return;
        }
        let path = self.make_room(path, hash);
        let new = self.append();
        let (low, high) = self.blocks.split_at_mut(new as usize);
        let key = split_leaf(&mut low[leaf as usize], &mut high[0], &LAYOUT, &hasher()).unwrap();
        let (block, at) = *path.last().unwrap();
        assert!(self.index(block).insert_after(at, IndexEntry { key, block: new }));
        let target = if hash >= key & !CONTINUES { new } else { leaf };
        assert!(dirblock::insert(&mut self.blocks[target as usize], LAYOUT, &entry).unwrap());
    }

    /// Splits full index blocks until the last one on the path has room.
    fn make_room(&mut self, mut path: Vec<(u32, usize)>, hash: u32) -> Vec<(u32, usize)> {
        while self.index(path.last().unwrap().0).as_index().is_full() {
            let depth = (0..path.len())
                .rev()
                .take_while(|&depth| self.index(path[depth].0).as_index().is_full())
                .last()
                .unwrap();
            let new = self.append();
            let count = self.count();
            let (low, high) = self.blocks.split_at_mut(new as usize);
            if depth == 0 {
                add_level(&mut low[0], &mut high[0], &LAYOUT, true, new, count).unwrap();
            } else {
                let (block, _) = path[depth];
                let node = &mut low[block as usize];
                let mut index = IndexMut::parse(node, IndexKind::Node, &LAYOUT, count).unwrap();
                let key = index.split_into(&mut high[0], &LAYOUT).unwrap();
                let (above, at) = path[depth - 1];
                assert!(self.index(above).insert_after(at, IndexEntry { key, block: new }));
            }
            path = self.path(hash).0;
        }
        path
    }

    fn lookup(&self, name: &[u8]) -> Option<u32> {
        if !self.is_indexed() {
            return dirblock::find(&self.blocks[0], LAYOUT, name).unwrap().map(|found| found.inode);
        }
        let hash = hasher().hash(name).major;
        let (path, leaf) = self.path(hash);
        dirblock::find(&self.blocks[leaf as usize], LAYOUT, name).unwrap().map(|found| found.inode).or_else(
            || {
                let (block, at) = *path.last().unwrap();
                let index =
                    Index::parse(&self.blocks[block as usize], Self::kind(block), &LAYOUT, self.count())
                        .unwrap();
                let next = (at + 1 < index.count()).then(|| index.entry(at + 1))?;
                next.continues(hash).then_some(())?;
                let found = dirblock::find(&self.blocks[next.block as usize], LAYOUT, name).unwrap();
                found.map(|found| found.inode)
            },
        )
    }
}

#[test]
fn three_levels_hold_every_name() {
    let mut directory = Directory::new();
    let mut model = BTreeMap::new();
    let names = 40_000u32;
    for n in 0..names {
        let name = format!("{n:07}-{}", "n".repeat(225)).into_bytes();
        directory.insert(&name, n + 20);
        model.insert(name, n + 20);
    }
    let info = RootInfo::verify(&directory.blocks[0], &LAYOUT, true).unwrap();
    assert_eq!(info.indirect_levels, 2, "the test needs three levels");
    assert_eq!(RootInfo::verify(&directory.blocks[0], &LAYOUT, false), Err(HtreeDefect::Levels(2)));
    for (name, inode) in &model {
        assert_eq!(directory.lookup(name), Some(*inode));
    }
    assert_eq!(directory.lookup(b"absent"), None);
}

#[test]
fn leaves_split_by_hash_and_neither_half_overflows() {
    let mut leaf = vec![0; 1024];
    let mut packer = Packer::new(&mut leaf, LAYOUT);
    let names: Vec<String> = (0..60).map(|n| format!("file{n}")).collect();
    let names: Vec<&String> = names.iter().take_while(|name| packer.push(5, 1, name.as_bytes())).collect();
    let mut new = vec![0; 1024];
    let key = split_leaf(&mut leaf, &mut new, &LAYOUT, &hasher()).unwrap();
    for name in names {
        let upper = hasher().hash(name.as_bytes()).major >= key;
        let block = if upper { &new } else { &leaf };
        assert!(dirblock::find(block, LAYOUT, name.as_bytes()).unwrap().is_some(), "{name}");
    }
    let halves = [&leaf, &new].map(|block| dirblock::packed_len(block, LAYOUT).unwrap());
    assert!(halves.iter().all(|&half| half > 400 && half < 600), "{halves:?}");
}

#[test]
fn equal_hashes_across_a_split_set_the_continuation_bit() {
    // The legacy hash is so weak that a search finds collisions.
    let hasher = DirHasher::new(HashVersion::Legacy, HashSeed::new([0; 4]));
    let mut by_hash: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for n in 0..400_000u32 {
        let name = format!("{n:x}");
        by_hash.entry(hasher.hash(name.as_bytes()).major).or_default().push(name);
    }
    let twins = by_hash.into_values().find(|names| names.len() >= 2).expect("a collision");
    let mut leaf = vec![0; 1024];
    let mut packer = Packer::new(&mut leaf, LAYOUT);
    assert!(twins[..2].iter().all(|name| packer.push(5, 1, name.as_bytes())));
    let mut new = vec![0; 1024];
    let key = split_leaf(&mut leaf, &mut new, &LAYOUT, &hasher).unwrap();
    assert_eq!(key, hasher.hash(twins[0].as_bytes()).major | CONTINUES);
    assert!(IndexEntry { key, block: 1 }.continues(key & !CONTINUES));
}

#[test]
fn slack_weighs_when_a_leaf_is_split() {
    let mut leaf = vec![0; 1024];
    let mut packer = Packer::new(&mut leaf, LAYOUT);
    let mut names: Vec<String> = (0..8).map(|n| format!("name{n}")).collect();
    names.sort_by_key(|name| hasher().hash(name.as_bytes()).major);
    // The `rec_len` of the last entry includes the rest of the block, so this entry takes more than
    // half of the block.
    for name in &names {
        assert!(packer.push(5, 1, name.as_bytes()));
    }
    let mut new = vec![0; 1024];
    let key = split_leaf(&mut leaf, &mut new, &LAYOUT, &hasher()).unwrap();
    assert_eq!(key, hasher().hash(names[7].as_bytes()).major);
}

#[test]
fn a_single_name_cannot_be_split() {
    let mut leaf = vec![0; 1024];
    assert!(Packer::new(&mut leaf, LAYOUT).push(5, 1, b"one"));
    let before = leaf.clone();
    let mut new = vec![0; 1024];
    assert_eq!(split_leaf(&mut leaf, &mut new, &LAYOUT, &hasher()), Err(HtreeDefect::Leaf));
    assert_eq!(leaf, before);
}

#[test]
fn limits_are_those_of_the_format() {
    let big = DirLayout { block_size: 4096, ..LAYOUT };
    assert_eq!(IndexKind::Root.limit(&big), 507);
    assert_eq!(IndexKind::Node.limit(&big), 510);
    let plain = DirLayout { tail: false, ..big };
    assert_eq!((IndexKind::Root.limit(&plain), IndexKind::Node.limit(&plain)), (508, 511));
}

#[test]
fn each_defect_of_a_root_is_named() {
    let mut root = vec![0; 1024];
    init_root(&mut root, &LAYOUT, 11, 2, 1, 1);
    let head = |at: usize, value: u8| {
        let mut block = root.clone();
        block[at] = value;
        RootInfo::verify(&block, &LAYOUT, false).unwrap_err()
    };
    assert_eq!(head(4, 16), HtreeDefect::RootDots);
    assert_eq!(head(16, 0), HtreeDefect::RootDots);
    assert_eq!(head(24, 1), HtreeDefect::Reserved);
    for version in [3, 4, 5, 7] {
        assert_eq!(head(28, version), HtreeDefect::HashVersion(version));
    }
    assert_eq!(head(29, 12), HtreeDefect::InfoLength(12));
    assert_eq!(head(30, 2), HtreeDefect::Levels(2));
    assert_eq!(head(31, 1), HtreeDefect::Flags(1));
    let array = |at: usize, value: u8| {
        let mut block = root.clone();
        block[at] = value;
        Index::parse(&block, IndexKind::Root, &LAYOUT, 2).unwrap_err()
    };
    assert_eq!(array(32, 5), HtreeDefect::Limit(5));
    assert_eq!(array(34, 0), HtreeDefect::Count(0));
    assert_eq!(array(34, 255), HtreeDefect::Count(255));
    assert_eq!(array(36, 2), HtreeDefect::Block(0));
    assert_eq!(array(34, 2), HtreeDefect::Block(1));
    let mut two = root.clone();
    let mut index = IndexMut::parse(&mut two, IndexKind::Root, &LAYOUT, 3).unwrap();
    assert!(index.insert_after(0, IndexEntry { key: 100, block: 2 }));
    assert!(index.insert_after(1, IndexEntry { key: 200, block: 1 }));
    two[48..52].copy_from_slice(&50u32.to_le_bytes());
    assert_eq!(Index::parse(&two, IndexKind::Root, &LAYOUT, 3).unwrap_err(), HtreeDefect::Order(2));
    assert_eq!(Index::parse(&root, IndexKind::Node, &LAYOUT, 3).unwrap_err(), HtreeDefect::NodeHeader);
}

#[test]
fn checksums_cover_the_counted_entries_only() {
    let mut root = vec![0; 1024];
    init_root(&mut root, &LAYOUT, 11, 2, 1, 1);
    set_checksum(&mut root, IndexKind::Root, &LAYOUT, 77).unwrap();
    let good = |block: &[u8]| {
        let (sum, stored) = checksums(block, IndexKind::Root, &LAYOUT, 77).unwrap();
        sum == stored
    };
    assert!(good(&root));
    root[40] ^= 1;
    assert!(good(&root), "beyond count");
    root[36] ^= 1;
    assert!(!good(&root));
}

proptest! {
    #[test]
    fn hostile_bytes_never_panic(
        mut block in proptest::collection::vec(any::<u8>(), 1024),
        dress in any::<bool>(),
        major in any::<u32>(),
    ) {
        if dress {
            // A valid node head with random entries gets past the first checks.
            block[..8].copy_from_slice(&[0, 0, 0, 0, 0, 4, 0, 0]);
            let limit = u16::try_from(IndexKind::Node.limit(&LAYOUT)).unwrap();
            block[8..10].copy_from_slice(&limit.to_le_bytes());
            block[11] = 0;
        }
        for kind in [IndexKind::Root, IndexKind::Node] {
            let _ = checksums(&block, kind, &LAYOUT, 1);
            let _ = set_checksum(&mut block.clone(), kind, &LAYOUT, 1);
            if let Ok(index) = Index::parse(&block, kind, &LAYOUT, u32::MAX) {
                let at = index.find(major);
                prop_assert!(index.entry(at).key <= major);
                prop_assert!(at + 1 == index.count() || index.entry(at + 1).key > major);
            }
        }
        let _ = RootInfo::verify(&block, &LAYOUT, true);
        let mut other = vec![0; 1024];
        let _ = split_leaf(&mut block.clone(), &mut other, &LAYOUT, &hasher());
        let _ = convert(&mut block.clone(), &mut other, &LAYOUT, 1, 1);
        let _ = add_level(&mut block, &mut other, &LAYOUT, true, 1, 2);
    }
}
