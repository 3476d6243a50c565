//! Compares directories with a map of names, and lists damaged directories. Most tests keep the
//! blocks of a directory in a vector ([`Store`]), with a limit on how many more may be appended.

#![allow(clippy::as_conversions)]

use super::{
    DAMAGED_MAX, Dentries, Dentry, DentryCache, Directory, DirectoryEntry, DirectoryRules, DirectoryStore,
    ListingDamage, Names, Role,
};
use crate::extents::NodeBlock;
use crate::{Error, FileSystem, NewInode, OpContext, OpenOptions, Result, mkfs};
use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_disk::dirblock::{self, DirLayout, Entries};
use blockyard_disk::dirhash::{HashSeed, HashVersion};
use blockyard_disk::htree::{Index, IndexKind, RootInfo};
use blockyard_disk::inode::FileType;
use blockyard_disk::{Corruption, CorruptionKind, InodeNr};
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;

const OWN: InodeNr = InodeNr::new(12);

/// Bytes and role of a block.
type Content = (Vec<u8>, Role);

#[derive(Clone)]
struct Block(Rc<RefCell<Content>>);

impl NodeBlock for Block {
    fn read<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        f(&self.0.borrow().0)
    }
    fn write<R>(&self, f: impl FnOnce(&mut [u8]) -> R) -> R {
        f(&mut self.0.borrow_mut().0)
    }
}

struct Store {
    names: Arc<Dentries>,
    cache: DentryCache,
    damage: ListingDamage,
    blocks: RefCell<Vec<Block>>,
    block_size: usize,
    budget: Cell<usize>,
    /// How many blocks were loaded.
    loads: Cell<usize>,
    /// Whether no block can be loaded after the next append.
    append_is_last: Cell<bool>,
    can_load: Cell<bool>,
}

impl Store {
    fn new(rules: &DirectoryRules) -> Self {
        let store = Self {
            names: Arc::new(Dentries::new(OWN)),
            cache: DentryCache::new(1 << 20),
            damage: ListingDamage::none(),
            blocks: RefCell::default(),
            block_size: rules.layout.block_size,
            budget: Cell::new(usize::MAX),
            loads: Cell::new(0),
            append_is_last: Cell::new(false),
            can_load: Cell::new(true),
        };
        let (_, block) = store.append(1).unwrap().pop().unwrap();
        block.write(|bytes| dirblock::init_dots(bytes, rules.layout, OWN.raw(), InodeNr::ROOT.raw()));
        store
    }
}

impl DirectoryStore for Store {
    type Block = Block;
    fn inode(&self) -> InodeNr {
        OWN
    }
    fn blocks(&self) -> u32 {
        self.blocks.borrow().len() as u32
    }
    fn load(&self, logical: u32, role: Role) -> Result<Block> {
        if !self.can_load.get() {
            return Err(Error::Corrupt(Corruption::new(CorruptionKind::BlockTwoKinds)));
        }
        self.loads.set(self.loads.get() + 1);
        let block = self.blocks.borrow()[logical as usize].clone();
        let stored = block.0.borrow().1;
        // If the index is damaged, the code under test reads nodes as leaves, too. It must get an
        // error, as with checksums on disk, which lie at different offsets in nodes and leaves.
        if role == Role::Leaf && stored == Role::Index(IndexKind::Node) {
            return Err(Error::Corrupt(Corruption::new(CorruptionKind::BlockTwoKinds)));
        }
        assert_eq!(stored, role, "block {logical}");
        Ok(block)
    }
    fn prepare(&self, _: &Block) -> Result<()> {
        Ok(())
    }
    fn append(&self, count: usize) -> Result<Vec<(u32, Block)>> {
        if count > self.budget.get() {
            return Err(Error::NoSpace);
        }
        self.budget.set(self.budget.get() - count);
        self.can_load.set(!self.append_is_last.get());
        let mut blocks = self.blocks.borrow_mut();
        let fresh = (0..count).map(|_| {
            blocks.push(Block(Rc::new(RefCell::new((vec![0; self.block_size], Role::Leaf)))));
            (blocks.len() as u32 - 1, blocks[blocks.len() - 1].clone())
        });
        Ok(fresh.collect())
    }
    fn set_role(&self, block: &Block, role: Role) {
        block.0.borrow_mut().1 = role;
    }
    fn names(&self) -> Option<Names<'_>> {
        Some(Names { directory: &self.names, cache: &self.cache })
    }
    fn damage(&self) -> &ListingDamage {
        &self.damage
    }
}

fn rules(block_size: usize, tail: bool, may_index: bool, large: bool) -> DirectoryRules {
    DirectoryRules {
        layout: DirLayout { block_size, tail, file_types: true, inodes_count: u32::MAX },
        hash_seed: HashSeed::new([1, 2, 3, 4]),
        hash_version: HashVersion::HalfMd4,
        unsigned_hash: false,
        may_index,
        large,
    }
}

/// Reads all names by a walk that is independent of the code under test. Asserts that the index
/// names every block once, and that all hashes are in bounds.
fn names_by_walk(store: &Store, rules: &DirectoryRules, indexed: bool) -> BTreeMap<Vec<u8>, u32> {
    let blocks = store.blocks.borrow();
    let mut names = BTreeMap::new();
    let mut take = |bytes: &[u8], bounds: Option<(u32, u32)>| {
        dirblock::verify(bytes, rules.layout).unwrap();
        for entry in Entries::new(bytes, rules.layout).unwrap() {
            let entry = entry.unwrap();
            if entry.inode == 0 || entry.name == b"." || entry.name == b".." {
                continue;
            }
            if let Some((low, high)) = bounds {
                let major = rules.default_hasher().hash(entry.name).major;
                assert!(low & !1 <= major && major <= high, "{low:x} {major:x} {high:x}");
            }
            assert!(names.insert(entry.name.to_vec(), entry.inode).is_none(), "a name twice");
        }
    };
    if !indexed {
        blocks.iter().for_each(|block| take(&block.0.borrow().0, None));
        return names;
    }
    let mut seen = vec![false; blocks.len()];
    let levels =
        RootInfo::verify(&blocks[0].0.borrow().0, &rules.layout, rules.large).unwrap().indirect_levels;
    let mut stack = vec![(0u32, levels + 1, 0u32, u32::MAX)];
    while let Some((logical, level, low, high)) = stack.pop() {
        assert!(!std::mem::replace(&mut seen[logical as usize], true), "block {logical} twice");
        let block = blocks[logical as usize].0.borrow();
        if level == 0 {
            take(&block.0, Some((low, high)));
            continue;
        }
        let kind = if logical == 0 { IndexKind::Root } else { IndexKind::Node };
        let index = Index::parse(&block.0, kind, &rules.layout, blocks.len() as u32).unwrap();
        for at in 0..index.count() {
            let entry = index.entry(at);
            let key = if at == 0 { low } else { entry.key };
            let end = if at + 1 < index.count() { index.entry(at + 1).key } else { high };
            stack.push((entry.block, level - 1, key, end));
        }
    }
    assert!(seen.iter().all(|&seen| seen), "a block that the index does not reach");
    names
}

fn read(directory: &Directory<'_, Store>, cookie: u64, at_least: usize) -> Vec<DirectoryEntry> {
    let batch = directory.read(cookie, at_least);
    assert!(batch.error.is_none(), "{:?}", batch.error);
    batch.entries
}

fn read_all(directory: &Directory<'_, Store>, at_least: usize) -> Vec<(Vec<u8>, u32)> {
    let mut cookie = 0;
    let mut all = Vec::new();
    loop {
        let batch = read(directory, cookie, at_least);
        let Some(last) = batch.last() else { return all };
        assert!(batch.windows(2).all(|pair| pair[0].cookie <= pair[1].cookie));
        assert!(last.cookie > cookie);
        cookie = last.cookie;
        all.extend(batch.into_iter().map(|entry| (entry.name, entry.inode.raw())));
    }
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u16, u8),
    Remove(u16),
    Replace(u16),
    Find(u16),
    Forget,
    Read(u8),
    Budget(u8),
}

fn known_as(inode: Option<u32>) -> Dentry {
    inode.map_or(Dentry::Absent, |inode| Dentry::Inode(InodeNr::new(inode)))
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        12 => (0..400u16, any::<u8>()).prop_map(|(name, len)| Op::Insert(name, len)),
        3 => (0..400u16).prop_map(Op::Remove),
        1 => (0..400u16).prop_map(Op::Replace),
        4 => (0..400u16).prop_map(Op::Find),
        1 => (1..40u8).prop_map(Op::Read),
        1 => (0..6u8).prop_map(Op::Budget),
        // `Forget` is rare, so that most runs keep the cached names to the end.
        1 => (0..40u8).prop_map(|n| if n == 0 { Op::Forget } else { Op::Find(u16::from(n)) }),
    ];
    proptest::collection::vec(op, 1..500)
}

fn name(number: u16, len: u8) -> Vec<u8> {
    let mut name = format!("n{number}-").into_bytes();
    let len = usize::from(len).max(name.len()).min(255);
    name.resize(len, b'x');
    name
}

fn run(rules: &DirectoryRules, ops: &[Op], longest: u8) {
    let store = Store::new(rules);
    let mut directory = Directory::new(&store, rules, false);
    let mut model: BTreeMap<u16, (Vec<u8>, u32)> = BTreeMap::new();
    for (step, op) in ops.iter().enumerate() {
        match *op {
            Op::Insert(number, len) => {
                let inode = InodeNr::new(step as u32 + 100);
                let name = model
                    .get(&number)
                    .map_or_else(|| name(number, len.min(longest)), |(name, _)| name.clone());
                let held = directory.lookup(&name).unwrap();
                assert_eq!(held.is_some(), model.contains_key(&number));
                if held.is_some() {
                    continue;
                }
                match directory.insert(&name, inode, FileType::Regular) {
                    Ok(()) => assert!(model.insert(number, (name, inode.raw())).is_none()),
                    Err(Error::NoSpace) => assert!(store.budget.get() < 4),
                    Err(error) => panic!("{error}"),
                }
            }
            Op::Remove(number) => {
                let Some((name, inode)) = model.remove(&number) else { continue };
                let entry = directory.lookup(&name).unwrap().expect("the model has it");
                assert_eq!((entry.inode.raw(), entry.file_type), (inode, Some(FileType::Regular)));
                directory.remove(&name).unwrap();
                assert!(matches!(directory.remove(&name), Err(Error::NotFound)));
                assert!(!directory.replace(&name, OWN, FileType::Regular).unwrap());
            }
            Op::Replace(number) => {
                let Some((name, inode)) = model.get_mut(&number) else { continue };
                *inode += 1_000_000;
                assert!(directory.replace(name, InodeNr::new(*inode), FileType::Regular).unwrap());
            }
            Op::Find(number) => {
                let (name, inode) = model
                    .get(&number)
                    .map_or_else(|| (name(number, 0), None), |(name, inode)| (name.clone(), Some(*inode)));
                let known = store.names.ask(&name);
                assert!(
                    known == Dentry::Unknown || known == known_as(inode),
                    "{known:?} instead of {inode:?}"
                );
                assert_eq!(directory.find(&name).unwrap().map(InodeNr::raw), inode);
            }
            Op::Forget => store.names().into_iter().for_each(Names::forget),
            Op::Read(at_least) => {
                let mut all = read_all(&directory, usize::from(at_least));
                all.retain(|(name, _)| name != b"." && name != b"..");
                let expected: BTreeMap<_, _> = model.values().cloned().collect();
                assert_eq!(all.len(), expected.len());
                assert_eq!(all.into_iter().collect::<BTreeMap<_, _>>(), expected);
            }
            Op::Budget(blocks) => store.budget.set(if blocks < 3 { usize::from(blocks) } else { usize::MAX }),
        }
    }
    assert_holds(&store, rules, &directory, &model.into_values().collect());
}

/// Asserts that the directory holds these names and no others: by lookups, by the cached names, and
/// by a walk. Also changes the directory's parent and reads it back.
fn assert_holds(
    store: &Store,
    rules: &DirectoryRules,
    directory: &Directory<'_, Store>,
    expected: &BTreeMap<Vec<u8>, u32>,
) {
    for (name, inode) in expected {
        assert_eq!(directory.lookup(name).unwrap().map(|entry| entry.inode.raw()), Some(*inode));
        assert_eq!(directory.lookup(&[&**name, b"?"].concat()).unwrap(), None);
    }
    for (name, inode) in expected {
        let known = store.names.ask(name);
        assert!(known == Dentry::Unknown || known == known_as(Some(*inode)), "{known:?} instead of {inode}");
    }
    assert_eq!(names_by_walk(store, rules, directory.is_indexed()), *expected);
    assert_eq!(directory.is_empty().unwrap(), expected.is_empty());
    assert_eq!(directory.parent().unwrap(), InodeNr::ROOT);
    directory.set_parent(InodeNr::new(77)).unwrap();
    assert_eq!(directory.parent().unwrap(), InodeNr::new(77));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn agrees_with_a_map(ops in ops(), tail: bool, may_index: bool) {
        run(&rules(1024, tail, may_index, false), &ops, 255);
    }

    /// Many names per block.
    #[test]
    fn agrees_with_a_map_of_short_names(ops in ops(), tail: bool, may_index: bool, size in 0..3usize) {
        run(&rules([1024, 2048, 4096][size], tail, may_index, false), &ops, 20);
    }
}

/// A directory without an index reads every block that it needs before it grows. So an error of the
/// device cannot follow the change.
#[test]
fn nothing_is_read_after_a_linear_directory_has_grown() {
    let rules = rules(1024, true, false, false);
    let store = Store::new(&rules);
    let mut directory = Directory::new(&store, &rules, false);
    store.append_is_last.set(true);
    let mut inserted = 0;
    while store.can_load.get() {
        let name = format!("{inserted:0>100}");
        directory.insert(name.as_bytes(), InodeNr::new(inserted + 100), FileType::Regular).unwrap();
        inserted += 1;
    }
    store.can_load.set(true);
    assert_eq!(store.blocks(), 2);
    assert_eq!(names_by_walk(&store, &rules, false).len(), inserted as usize);
}

/// 250-byte names in 1 KiB blocks fill two levels of index long before 60,000 names. The third
/// level needs `large_dir`. Without `large_dir` the directory reports that it is full, and keeps
/// the names that it has.
#[test]
fn three_levels_need_large_directories() {
    for large in [true, false] {
        let rules = rules(1024, true, true, large);
        let store = Store::new(&rules);
        let mut directory = Directory::new(&store, &rules, false);
        let mut inserted = 0;
        for number in 0..60_000u32 {
            let name = format!("{number:0>250}");
            match directory.insert(name.as_bytes(), InodeNr::new(number + 100), FileType::Regular) {
                Ok(()) => inserted += 1,
                Err(Error::NoSpace) if !large => break,
                Err(error) => panic!("{error} after {inserted} names"),
            }
        }
        let levels = store.blocks.borrow()[0].read(|bytes| RootInfo::read(bytes).unwrap().indirect_levels);
        assert_eq!((levels, inserted == 60_000), if large { (2, true) } else { (1, false) }, "{inserted}");
        assert_eq!(names_by_walk(&store, &rules, true).len(), inserted);
        let mut cookie = 0;
        let mut count = 0;
        while let Some(last) = read(&directory, cookie, 1000).last() {
            count += read(&directory, cookie, 1000).len();
            cookie = last.cookie;
        }
        assert_eq!(count, inserted + 2);
    }
}

/// A reader in the middle of a directory misses no name that stays and sees none twice. Meanwhile
/// other names come and go, and the directory grows an index.
#[test]
fn cookies_survive_changes() {
    let rules = rules(1024, true, true, false);
    let store = Store::new(&rules);
    let mut directory = Directory::new(&store, &rules, false);
    let name = |number: u32| format!("stays-{number}").into_bytes();
    for number in 0..20 {
        directory.insert(&name(number), InodeNr::new(100 + number), FileType::Regular).unwrap();
    }
    let mut seen = Vec::new();
    let mut cookie = 0;
    for round in 0..1000u32 {
        let batch = read(&directory, cookie, 3);
        let Some(last) = batch.last() else { break };
        cookie = last.cookie;
        seen.extend(batch.into_iter().map(|entry| entry.name).filter(|name| name.starts_with(b"stays")));
        for extra in 0..10 {
            let name = format!("comes-{round}-{extra}").into_bytes();
            directory.insert(&name, InodeNr::new(5000), FileType::Regular).unwrap();
            if extra % 2 == 0 {
                directory.remove(&name).unwrap();
            }
        }
    }
    assert!(directory.is_indexed());
    let mut once = seen.clone();
    once.sort();
    once.dedup();
    assert_eq!((seen.len(), once.len()), (20, 20));
}

/// A directory with `count` files: `name-0` and so on.
fn with_names<'a>(store: &'a Store, rules: &'a DirectoryRules, count: u32) -> Directory<'a, Store> {
    let mut directory = Directory::new(store, rules, false);
    for number in 0..count {
        let name = format!("name-{number}").into_bytes();
        directory.insert(&name, InodeNr::new(100), FileType::Regular).unwrap();
    }
    directory
}

#[test]
fn damaged_blocks_are_errors_that_name_the_place() {
    let rules = rules(1024, true, true, false);
    let store = Store::new(&rules);
    let mut directory = with_names(&store, &rules, 200);
    for logical in 1..store.blocks() {
        store.blocks.borrow()[logical as usize].write(|bytes| bytes[4..6].copy_from_slice(&[3, 0]));
    }
    let error = directory.lookup(b"name-7").unwrap_err().to_string();
    assert!(error.contains("inode 12, logical block") && error.contains("impossible rec_len"), "{error}");
    assert!(directory.insert(b"new", InodeNr::new(9), FileType::Regular).is_err());
}

/// Without the root of the index, all names but `..` are still listed, with an error.
#[test]
fn a_damaged_index_hides_no_name() {
    let rules = rules(1024, true, true, false);
    let store = Store::new(&rules);
    let directory = with_names(&store, &rules, 200);
    let mut whole = read_all(&directory, 7);
    whole.retain(|(name, _)| name != b"..");
    store.blocks.borrow()[0].write(|bytes| bytes.fill(0));
    let (mut cookie, mut names) = (0, Vec::new());
    loop {
        let batch = directory.read(cookie, 7);
        assert!(matches!(batch.error, Some(Error::Corrupt(_))));
        let Some(last) = batch.entries.last() else { break };
        cookie = last.cookie;
        names.extend(batch.entries.into_iter().map(|entry| (entry.name, entry.inode.raw())));
    }
    assert_eq!(names, whole);
}

/// A regression test: if the index was damaged, each batch of a listing searched the whole
/// directory.
#[test]
fn a_directory_with_a_damaged_index_is_searched_once() {
    let rules = rules(1024, true, true, false);
    let store = Store::new(&rules);
    let directory = with_names(&store, &rules, 8000);
    store.blocks.borrow()[0].write(|bytes| bytes.fill(0));
    let blocks = store.blocks() as usize;
    for _ in 0..2 {
        store.damage.forget_leaves();
        store.loads.set(0);
        let (mut cookie, mut names, mut batches) = (0, 0, 0);
        loop {
            let batch = directory.read(cookie, 100);
            batches += 1;
            let Some(last) = batch.entries.last() else { break };
            cookie = last.cookie;
            names += batch.entries.iter().filter(|entry| entry.name.starts_with(b"name-")).count();
        }
        assert_eq!(names, 8000);
        // Each block is loaded once in the search and once in the listing. Each batch also loads
        // the root and the leaf where it continues.
        let most = 2 * blocks + 3 * batches;
        assert!(store.loads.get() <= most, "{} loads of {blocks} blocks", store.loads.get());
    }
}

/// The last call of a listing meets no damage, but must report the damage that earlier calls met.
/// A regression test: for that, the last call searched the whole directory again.
#[test]
fn a_listing_in_several_calls_searches_once() {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    let options = mkfs::Options::ext4().block_size(1024).features("^has_journal").identity(1, 1);
    mkfs::format(&*device, &options).unwrap();
    let open = || {
        let device = Arc::<MemoryDevice>::clone(&device);
        FileSystem::open(device, OpenOptions::default(), &OpContext::system()).unwrap()
    };
    let fs = open();
    let new = |kind| NewInode { kind, permissions: 0o755, device: None };
    let ctx = OpContext::system();
    let dir = fs.create(&ctx, InodeNr::ROOT, b"dir", &new(FileType::Directory)).unwrap();
    for number in 0..1500 {
        let name = format!("name-{number}-{}", "x".repeat(200));
        fs.create(&ctx, dir, name.as_bytes(), &new(FileType::Regular)).unwrap();
    }
    fs.close(&ctx).unwrap();
    let mut image = vec![0; 16 << 20];
    device.read_at(0, &mut image).unwrap();
    // A node begins with an unused directory entry that spans the block. Then come two numbers: how
    // many index entries fit (126), and how many there are. When nodes are sorted by the keys of
    // their second entries, the middle node leads to neither the first name nor the last.
    let is_node = |block: &[u8]| block[..9] == [0, 0, 0, 0, 0, 4, 0, 0, 126] && block[10] > 1;
    let key = |block: &[u8]| u32::from_le_bytes(block[16..20].try_into().unwrap());
    let mut nodes: Vec<_> = image.chunks(1024).enumerate().filter(|(_, block)| is_node(block)).collect();
    nodes.sort_by_key(|(_, block)| key(block));
    assert!(nodes.len() > 2, "{} nodes", nodes.len());
    device.write_at(nodes[nodes.len() / 2].0 as u64 * 1024, &[0; 1024]).unwrap();

    let fs = open();
    let inode = fs.volume.inodes.inode(dir).unwrap();
    let (mut cookie, mut names, mut searches) = (0, 0, Vec::new());
    loop {
        let mut taken = 0;
        let listed = fs.read_dir(dir, cookie, |entry| {
            if taken == 100 {
                return false;
            }
            taken += 1;
            cookie = entry.next;
            true
        });
        let leaves = inode.damage.leaves();
        if let Some(leaves) = leaves.filter(|leaves| !searches.iter().any(|kept| Arc::ptr_eq(kept, leaves))) {
            searches.push(leaves);
        }
        names += taken;
        if taken < 100 {
            assert!(matches!(listed, Err(Error::Corrupt(_))), "{listed:?}");
            break;
        }
        listed.unwrap();
    }
    assert_eq!((names, searches.len()), (1502, 1));
}

/// While other names come and go beside a damaged node of the index, a listing returns every name
/// that stays, exactly once.
#[test]
fn cookies_survive_changes_beside_a_damaged_node() {
    let rules = rules(1024, true, true, false);
    let store = Store::new(&rules);
    let mut directory = with_names(&store, &rules, 8000);
    let is_node = |logical: &u32| {
        store.blocks.borrow()[*logical as usize].read(|bytes| bytes[..6] == [0, 0, 0, 0, 0, 4])
    };
    let node = (1..store.blocks()).find(is_node).unwrap();
    store.blocks.borrow()[node as usize].write(|bytes| bytes[20..24].fill(0xFF));
    let (mut cookie, mut seen, mut entered, mut refused) = (0, Vec::new(), 0, 0);
    for round in 0.. {
        let batch = directory.read(cookie, 40);
        let Some(last) = batch.entries.last() else { break };
        cookie = last.cookie;
        let names = batch.entries.into_iter().map(|entry| entry.name);
        seen.extend(names.filter(|name| name.starts_with(b"name-")));
        for extra in 0..10 {
            let name = format!("comes-{round}-{extra}").into_bytes();
            match directory.insert(&name, InodeNr::new(5000), FileType::Regular) {
                Ok(()) => entered += 1,
                Err(_) => refused += 1,
            }
            if extra % 2 == 0 && directory.lookup(&name).is_ok_and(|entry| entry.is_some()) {
                directory.remove(&name).unwrap();
            }
        }
    }
    assert!(entered > 100 && refused > 100, "{entered} names entered, {refused} refused");
    let count = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!((count, seen.len()), (8000, 8000));
}

/// A regression test: two leaves may have names with the same hash. If one such name was added to
/// the first leaf during a listing, the other, in the second leaf, was never listed.
#[test]
fn a_new_name_hides_none_with_the_same_hash() {
    let rules = DirectoryRules { hash_version: HashVersion::Legacy, ..rules(1024, true, true, false) };
    let major = |name: &[u8]| rules.default_hasher().hash(name).major;
    let mut by_hash = HashMap::new();
    let (comes, stays) = (0..10_000)
        .find_map(|number| {
            let name = format!("name-{number:07}").into_bytes();
            by_hash.insert(major(&name), name.clone()).map(|earlier| (earlier, name))
        })
        .unwrap();
    let shared = major(&stays);
    let other = |number: u32| format!("fill-{number:07}").into_bytes();
    let below: Vec<_> = (0..10_000).map(other).filter(|name| major(name) < shared).take(48).collect();
    let above: Vec<_> = (0..10_000).map(other).filter(|name| major(name) > shared).take(48).collect();
    // One block has no room for these 50 names, so it is split.
    let build = |below_count: usize| {
        let store = Store::new(&rules);
        let mut directory = Directory::new(&store, &rules, false);
        let others = below[..below_count].iter().chain(&above[..48 - below_count]);
        for name in [&comes, &stays].into_iter().chain(others) {
            directory.insert(name, InodeNr::new(100), FileType::Regular).unwrap();
        }
        assert!(directory.is_indexed());
        let leaf_of = |name: &[u8]| directory.lookup(name).unwrap().unwrap().logical;
        let is_shared = leaf_of(&comes) != leaf_of(&stays);
        (store, is_shared)
    };
    let below_count = (0..=48).find(|&count| build(count).1).unwrap();
    let mut staying =
        [&below[..below_count], &above[..48 - below_count], std::slice::from_ref(&stays)].concat();
    staying.sort();
    for at_least in 2..20 {
        let (store, _) = build(below_count);
        let mut directory = Directory::new(&store, &rules, true);
        directory.remove(&comes).unwrap();
        let root = store.blocks.borrow()[0].clone();
        let sound = root.read(<[u8]>::to_vec);
        // The root is damaged while names are listed, and sound while a name is added.
        root.write(|bytes| bytes.fill(0));
        let (mut cookie, mut listed) = (0, Vec::new());
        loop {
            let batch = directory.read(cookie, at_least);
            assert!(batch.entries.is_sorted_by_key(|entry| entry.cookie));
            let Some(last) = batch.entries.last() else { break };
            if cookie == 0 {
                root.write(|bytes| bytes.copy_from_slice(&sound));
                directory.insert(&comes, InodeNr::new(100), FileType::Regular).unwrap();
                root.write(|bytes| bytes.fill(0));
            }
            cookie = last.cookie;
            listed.extend(batch.entries.into_iter().map(|entry| entry.name));
        }
        listed.retain(|name| name != b"." && *name != comes);
        listed.sort();
        assert_eq!(listed, staying, "{at_least} at a time");
    }
}

/// A damaged index of two levels hides no name, whichever node is damaged. This must also hold if
/// the root names another hash function (here TEA) than new roots do. A regression test: listings
/// without the index always used the function of new roots, so some names were listed twice and
/// others not at all.
#[test]
fn a_damaged_node_of_an_index_hides_no_name() {
    for hash_version in [HashVersion::HalfMd4, HashVersion::Tea] {
        let rules = rules(1024, true, true, false);
        let store = Store::new(&rules);
        with_names(&store, &DirectoryRules { hash_version, ..rules }, 8000);
        let directory = Directory::new(&store, &rules, true);
        let whole = read_all(&directory, 500);
        let mut nodes = 0;
        for logical in 1..store.blocks() {
            let block = store.blocks.borrow()[logical as usize].clone();
            let sound = block.read(<[u8]>::to_vec);
            if sound[..6] != [0, 0, 0, 0, 0, 4] {
                continue;
            }
            nodes += 1;
            // A pointer to nowhere, or no node at all.
            for damaged in [[&sound[..20], &[0xFF; 4], &sound[24..]].concat(), vec![0; 1024]] {
                block.write(|bytes| bytes.copy_from_slice(&damaged));
                store.damage.forget_leaves();
                let (mut cookie, mut names) = (0, Vec::new());
                loop {
                    let batch = directory.read(cookie, 500);
                    let Some(last) = batch.entries.last() else { break };
                    cookie = last.cookie;
                    names.extend(batch.entries.into_iter().map(|entry| (entry.name, entry.inode.raw())));
                }
                assert_eq!(names, whole, "block {logical}");
            }
            block.write(|bytes| bytes.copy_from_slice(&sound));
        }
        assert!(nodes >= 2, "{nodes} nodes");
    }
}

/// A regression test: a listing ended after 1,024 damaged blocks in all, and a search for leaves
/// also counted the blocks that its batch had met before. Now only damaged blocks in a row count.
#[test]
fn many_damaged_blocks_hide_only_their_own_names() {
    let rules = rules(1024, true, true, false);
    let store = Store::new(&rules);
    let mut directory = Directory::new(&store, &rules, false);
    let name = |number: u32| format!("name-{number}-{}", "x".repeat(200)).into_bytes();
    for number in 0..6000 {
        directory.insert(&name(number), InodeNr::new(100), FileType::Regular).unwrap();
    }
    let mut path = directory.path(|_| 0).unwrap();
    let mut leaves = vec![path.leaf];
    while directory.advance(&mut path).unwrap().is_some() {
        leaves.push(path.leaf);
    }
    let damaged: Vec<u32> = leaves
        .iter()
        .enumerate()
        .filter(|&(at, &logical)| at < 600 || logical < 600 || at % 2 == 0)
        .map(|(_, &logical)| logical)
        .collect();
    assert!(damaged.len() > DAMAGED_MAX, "{} of {} leaves", damaged.len(), leaves.len());
    let is_readable = |name: &Vec<u8>| !damaged.contains(&directory.lookup(name).unwrap().unwrap().logical);
    let mut readable: Vec<_> = (0..6000).map(name).filter(is_readable).collect();
    readable.sort();
    assert!(readable.len() > 1000, "{} names", readable.len());
    // The root's last entry leads to the node of the last leaves.
    let node = store.blocks.borrow()[0].read(|bytes| {
        let index = Index::parse(bytes, IndexKind::Root, &rules.layout, store.blocks()).unwrap();
        index.entry(index.count() - 1).block
    });
    assert!(!leaves.contains(&node), "the index has two levels");
    for logical in damaged {
        store.blocks.borrow()[logical as usize].write(|bytes| bytes[4..6].copy_from_slice(&[3, 0]));
    }
    for node_is_damaged in [false, true] {
        if node_is_damaged {
            store.blocks.borrow()[node as usize].write(|bytes| bytes.fill(0));
        }
        for at_least in [100, 10_000] {
            store.damage.forget_leaves();
            let (mut cookie, mut listed) = (0, Vec::new());
            loop {
                let batch = directory.read(cookie, at_least);
                assert!(batch.entries.is_sorted_by_key(|entry| entry.cookie));
                let Some(last) = batch.entries.last() else { break };
                cookie = last.cookie;
                listed.extend(batch.entries.into_iter().map(|entry| entry.name));
            }
            listed.retain(|name| name.starts_with(b"name-"));
            listed.sort();
            assert_eq!(listed.len(), readable.len(), "{at_least} at a time, node {node_is_damaged}");
            assert!(listed == readable, "{at_least} at a time, node {node_is_damaged}");
        }
    }
}

/// In a directory without an index, more than 1,024 damaged blocks in a row end a listing and a
/// lookup. If there are sound blocks between them, more than 1,024 damaged blocks end neither.
#[test]
fn only_damaged_blocks_in_a_row_end_a_listing_without_an_index() {
    let rules = rules(1024, true, false, false);
    let most = DAMAGED_MAX as u32;
    let last = 2 * most + 5;
    let listed = |is_damaged: &dyn Fn(u32) -> bool| {
        let store = Store::new(&rules);
        for (logical, block) in store.append(last as usize).unwrap() {
            let name = format!("name-{logical}");
            let entry =
                dirblock::NewEntry { inode: 100, file_type: FileType::Regular, name: name.as_bytes() };
            block.write(|bytes| {
                dirblock::init_empty(bytes, rules.layout);
                assert!(dirblock::insert(bytes, rules.layout, &entry).unwrap());
                if is_damaged(logical) {
                    bytes[4..6].copy_from_slice(&[3, 0]);
                }
            });
        }
        let directory = Directory::new(&store, &rules, false);
        let batch = directory.read(0, 10_000);
        assert!(matches!(batch.error, Some(Error::Corrupt(_))));
        assert!(batch.entries.is_sorted_by_key(|entry| entry.cookie));
        let found = directory.lookup(format!("name-{last}").as_bytes());
        (batch.entries.len() - 2, found.is_ok_and(|entry| entry.is_some()))
    };
    // The directory has a first block and blocks 1 to 2,053. The three calls damage every second
    // block, 1,024 blocks in a row, and 1,025 blocks in a row.
    assert_eq!(listed(&|logical| logical % 2 == 0), (1027, true));
    assert_eq!(listed(&|logical| (2..most + 2).contains(&logical)), (1029, true));
    assert_eq!(listed(&|logical| (2..most + 3).contains(&logical)), (1, false));
}

/// A regression test: one damaged block hid every name of its directory.
#[test]
fn a_damaged_block_hides_only_its_own_names() {
    for may_index in [true, false] {
        let rules = rules(1024, true, may_index, false);
        let store = Store::new(&rules);
        let directory = with_names(&store, &rules, 200);
        let whole = read_all(&directory, 7);
        for logical in u32::from(may_index)..store.blocks() {
            let block = store.blocks.borrow()[logical as usize].clone();
            let sound = block.read(<[u8]>::to_vec);
            block.write(|bytes| bytes[4..6].copy_from_slice(&[3, 0]));
            let (mut cookie, mut names, mut errors) = (0, Vec::<(Vec<u8>, u32)>::new(), 0);
            loop {
                let batch = directory.read(cookie, 7);
                errors += u32::from(batch.error.is_some());
                let Some(last) = batch.entries.last() else { break };
                cookie = last.cookie;
                names.extend(batch.entries.into_iter().map(|entry| (entry.name, entry.inode.raw())));
            }
            let is_name = |name: &[u8]| name.starts_with(b"name");
            names.retain(|(name, _)| is_name(name));
            let readable = |(name, _): &&(Vec<u8>, u32)| is_name(name) && directory.lookup(name).is_ok();
            let expected: Vec<_> = whole.iter().filter(readable).cloned().collect();
            assert_eq!(names, expected, "block {logical}");
            assert!(errors > 0 && !names.is_empty() && names.len() < 200, "block {logical}");
            block.write(|bytes| bytes.copy_from_slice(&sound));
        }
        assert_eq!(read_all(&directory, 7), whole);
    }
}
