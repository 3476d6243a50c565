//! Compares the tree with a map from logical block to (physical block, state). Nodes are tiny, so
//! that the tree becomes deep quickly.

#![allow(clippy::as_conversions)]

use super::{
    Extent, NodeBlock, ROOT_BYTES, Tree, TreeStore, blocks_for_entries, check_node, empty_root, hold_from,
    node,
};
use crate::system_zones::SystemZones;
use crate::{Error, Result};
use blockyard_disk::BlockNr;
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

const NODE_BYTES: usize = 12 + 12 * 4 + 4;
const SPACE: u32 = 4096;

#[derive(Clone)]
struct Block(Rc<RefCell<Vec<u8>>>);

impl NodeBlock for Block {
    fn read<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        f(&self.0.borrow())
    }
    fn write<R>(&self, f: impl FnOnce(&mut [u8]) -> R) -> R {
        f(&mut self.0.borrow_mut())
    }
}

/// Tree blocks in a map. Allocations fail once `budget` is used up.
struct Store {
    nodes: RefCell<BTreeMap<u64, Block>>,
    next: Cell<u64>,
    budget: Cell<u32>,
}

impl Store {
    fn new() -> Self {
        Self { nodes: RefCell::default(), next: Cell::new(1 << 40), budget: Cell::new(u32::MAX) }
    }
}

impl TreeStore for Store {
    type Node = Block;
    fn load(&self, block: BlockNr, depth: u16) -> Result<Block> {
        let found = self.nodes.borrow()[&block.raw()].clone();
        found.read(|bytes| check_node(bytes, Some(depth), &SystemZones::none(1 << 48))).unwrap();
        Ok(found)
    }
    fn prepare(&self, _: &Block) -> Result<()> {
        Ok(())
    }
    fn allocate(&self, _: Option<BlockNr>, _: bool) -> Result<(BlockNr, Block)> {
        if self.budget.get() == 0 {
            return Err(Error::NoSpace);
        }
        self.budget.set(self.budget.get() - 1);
        let block = self.next.get();
        self.next.set(block + 1);
        let fresh = Block(Rc::new(RefCell::new(vec![0; NODE_BYTES])));
        self.nodes.borrow_mut().insert(block, fresh.clone());
        Ok((BlockNr::new(block), fresh))
    }
    fn prepare_free(&self, _: BlockNr) -> Result<()> {
        Ok(())
    }
    fn free(&self, block: BlockNr) -> Result<()> {
        assert!(self.nodes.borrow_mut().remove(&block.raw()).is_some(), "freed twice");
        Ok(())
    }
}

type Model = BTreeMap<u32, (u64, bool)>;

/// Walks the whole tree. Checks keys, order and depth, and that every allocated node is reachable.
fn read_all(root: &[u8; ROOT_BYTES], store: &Store) -> Model {
    let mut model = Model::new();
    let mut seen = 0;
    let mut stack = vec![(root.to_vec(), None::<u32>, node::depth(root))];
    while let Some((bytes, first_key, depth)) = stack.pop() {
        check_node(&bytes, Some(depth as u16), &SystemZones::none(1 << 48)).unwrap();
        if let Some(key) = first_key {
            assert_eq!(node::key(&bytes, 0), key, "first key differs from the parent's");
        }
        for index in 0..node::count(&bytes) {
            if depth > 0 {
                let child = store.nodes.borrow()[&node::child(&bytes, index)].0.borrow().clone();
                seen += 1;
                stack.push((child, Some(node::key(&bytes, index)), depth - 1));
                continue;
            }
            let extent = node::leaf_entry(&bytes, index);
            for offset in 0..extent.len {
                let previous = model
                    .insert(extent.logical + offset, (extent.physical + u64::from(offset), extent.unwritten));
                assert!(previous.is_none(), "two extents hold block {}", extent.logical + offset);
            }
        }
    }
    assert_eq!(seen, store.nodes.borrow().len(), "tree blocks leaked");
    model
}

#[derive(Clone, Debug)]
enum Op {
    Insert { at: u32, len: u32, physical: u64, unwritten: bool, budget: u32 },
    Append { len: u32, budget: u32 },
    Remove { at: u32, len: u32 },
    Truncate { to: u32 },
    SetState { at: u32, len: u32, unwritten: bool, budget: u32 },
    Collapse { at: u32, len: u32 },
    OpenHole { at: u32, len: u32, budget: u32 },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let at = 0..SPACE;
    let len = prop_oneof![4 => 1u32..4, 1 => 1u32..200];
    let budget = prop_oneof![5 => Just(u32::MAX), 1 => 0u32..3];
    let op = prop_oneof![
        8 => (at.clone(), len.clone(), 0u64..1 << 30, any::<bool>(), budget.clone()).prop_map(
            |(at, len, physical, unwritten, budget)| Op::Insert { at, len, physical, unwritten, budget }),
        3 => (len.clone(), budget.clone()).prop_map(|(len, budget)| Op::Append { len, budget }),
        3 => (at.clone(), len.clone()).prop_map(|(at, len)| Op::Remove { at, len }),
        1 => at.clone().prop_map(|to| Op::Truncate { to }),
        3 => (at.clone(), len.clone(), any::<bool>(), budget.clone())
            .prop_map(|(at, len, unwritten, budget)| Op::SetState { at, len, unwritten, budget }),
        1 => (at.clone(), len.clone()).prop_map(|(at, len)| Op::Collapse { at, len }),
        1 => (at, len, budget).prop_map(|(at, len, budget)| Op::OpenHole { at, len, budget }),
    ];
    prop::collection::vec(op, 1..300)
}

struct World {
    root: [u8; ROOT_BYTES],
    store: Store,
    model: Model,
}

impl World {
    fn tree(&mut self, budget: u32) -> Tree<'_, Store> {
        self.store.budget.set(budget);
        Tree::new(&mut self.root, &self.store)
    }

    fn free_run(&self, at: u32, len: u32) -> u32 {
        (0..len).take_while(|offset| !self.model.contains_key(&(at + offset))).count() as u32
    }

    fn insert(&mut self, extent: Extent, budget: u32) {
        if self.tree(budget).insert(extent).is_ok() {
            for offset in 0..extent.len {
                let value = (extent.physical + u64::from(offset), extent.unwritten);
                self.model.insert(extent.logical + offset, value);
            }
        }
    }

    fn remove(&mut self, range: Range<u32>) {
        let mut freed = Model::new();
        let result = self.tree(u32::MAX).remove(range.clone(), |piece| {
            for offset in 0..piece.len {
                let value = (piece.physical + u64::from(offset), piece.unwritten);
                assert!(freed.insert(piece.logical + offset, value).is_none());
            }
        });
        if matches!(result, Err(Error::FileTooLarge)) {
            return;
        }
        result.unwrap();
        let expected: Model = self.model.range(range.clone()).map(|(&key, &value)| (key, value)).collect();
        assert_eq!(freed, expected);
        self.model.retain(|key, _| !range.contains(key));
    }

    fn shift(&mut self, from: u32, by: i64) {
        let moved: Vec<_> = self.model.range(from..).map(|(&key, &value)| (key, value)).collect();
        self.model.retain(|&key, _| key < from);
        self.model.extend(moved.into_iter().map(|(key, value)| ((i64::from(key) + by) as u32, value)));
    }

    fn set_state(&mut self, range: Range<u32>, unwritten: bool, budget: u32) {
        match self.tree(budget).set_state(range.clone(), unwritten) {
            Ok(()) => self.model.range_mut(range).for_each(|(_, value)| value.1 = unwritten),
            // Pieces before the failure may be converted. Every block is mapped where it was.
            Err(_) => {
                let now = read_all(&self.root, &self.store);
                assert_eq!(
                    now.iter().map(|(k, v)| (*k, v.0)).collect::<Vec<_>>(),
                    self.model.iter().map(|(k, v)| (*k, v.0)).collect::<Vec<_>>()
                );
                self.model = now;
            }
        }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Insert { at, len, physical, unwritten, budget } => {
                let len = self.free_run(at, len);
                if len > 0 {
                    self.insert(Extent { logical: at, len, physical, unwritten }, budget);
                }
            }
            Op::Append { len, budget } => {
                let (logical, physical) = match self.model.last_key_value() {
                    Some((&key, &(physical, _))) => (key + 1, physical + 1),
                    None => (0, 77),
                };
                self.insert(Extent { logical, len, physical, unwritten: false }, budget);
            }
            Op::Remove { at, len } => self.remove(at..at + len),
            Op::Truncate { to } => self.remove(to..u32::MAX),
            Op::SetState { at, len, unwritten, budget } => self.set_state(at..at + len, unwritten, budget),
            Op::Collapse { at, len } => {
                self.remove(at..at + len);
                if self.model.range(at..at + len).next().is_none() {
                    self.tree(u32::MAX).collapse(at..at + len, |_| panic!("already removed")).unwrap();
                    self.shift(at + len, -i64::from(len));
                }
            }
            Op::OpenHole { at, len, budget } => {
                if self.tree(budget).open_hole(at, len).is_ok() {
                    self.shift(at, i64::from(len));
                }
            }
        }
        assert_eq!(read_all(&self.root, &self.store), self.model);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_tree_behaves_as_a_map(ops in ops()) {
        let mut world = World { root: empty_root(), store: Store::new(), model: Model::new() };
        for op in &ops {
            world.apply(op);
        }
        for logical in (0..SPACE).step_by(7) {
            let here = world.tree(0).lookup(logical).unwrap();
            let expected = world.model.get(&logical).copied();
            prop_assert_eq!(
                here.found.map(|e| (e.physical + u64::from(logical - e.logical), e.unwritten)),
                expected
            );
            if expected.is_none() {
                let left = world.model.range(..logical).next_back().map(|(&key, _)| key);
                prop_assert_eq!(here.left.map(|e| e.end() - 1), left);
            }
            let after = here.found.map_or(logical, |e| e.end() - 1);
            let right = world.model.range(after + 1..).next().map(|(&key, _)| key);
            prop_assert_eq!(here.right.map(|e| e.logical), right);
        }
        let held = hold_from(&world.root, &world.store, 0, usize::MAX).unwrap();
        prop_assert_eq!(held.count(), world.store.nodes.borrow().len());
        world.remove(0..u32::MAX);
        prop_assert_eq!(world.root, empty_root());
    }
}

/// Maps blocks in ascending order as write-back does, each in an entry of its own, and then makes
/// them written. Returns the largest number of nodes that the tree had gained at any time.
fn write_back(world: &mut World, blocks: &[u32]) -> usize {
    let before = world.store.nodes.borrow().len();
    let mut most = before;
    for &logical in blocks {
        let extent = Extent { logical, len: 1, physical: 1 << 40 | u64::from(logical) << 2, unwritten: true };
        world.tree(u32::MAX).insert_separately(extent).unwrap();
        world.model.insert(logical, (extent.physical, true));
        most = most.max(world.store.nodes.borrow().len());
    }
    for &logical in blocks {
        world.set_state(logical..logical + 1, false, u32::MAX);
        most = most.max(world.store.nodes.borrow().len());
    }
    most - before
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_tree_gains_no_more_nodes_than_reserved(
        ops in ops(),
        amid in prop::collection::btree_set(0..SPACE, 0..60),
        behind in prop::collection::btree_set(SPACE..2 * SPACE, 0..60),
        unwritten in prop::collection::btree_set(0..SPACE, 0..30),
    ) {
        let mut world = World { root: empty_root(), store: Store::new(), model: Model::new() };
        for op in &ops {
            world.apply(op);
        }
        world.remove(SPACE..u32::MAX);
        let amid: Vec<u32> = amid.into_iter().filter(|at| !world.model.contains_key(at)).collect();
        let behind: Vec<u32> = behind.into_iter().collect();
        let unwritten: Vec<u32> =
            unwritten.into_iter().filter(|at| world.model.get(at).is_some_and(|(_, unwritten)| *unwritten)).collect();
        let inserts = amid.len() + 2 * unwritten.len();
        let reserved = blocks_for_entries(&world.root, NODE_BYTES, behind.len(), inserts);
        let before = world.store.nodes.borrow().len();
        let gained = write_back(&mut world, &[amid, behind].concat());
        for at in unwritten {
            world.set_state(at..at + 1, false, u32::MAX);
        }
        let gained = gained.max(world.store.nodes.borrow().len().saturating_sub(before));
        prop_assert!(gained as u64 <= reserved, "{gained} nodes, {reserved} reserved");
        prop_assert_eq!(read_all(&world.root, &world.store), world.model);
    }
}

#[test]
fn sequential_appends_fill_their_leaves() {
    let mut world = World { root: empty_root(), store: Store::new(), model: Model::new() };
    for n in 0..64 {
        world.insert(
            Extent { logical: n * 2, len: 1, physical: u64::from(n) * 10, unwritten: false },
            u32::MAX,
        );
    }
    // 64 extents fill 16 leaves of four entries. These need four index nodes, which the root holds.
    assert_eq!(node::depth(&world.root), 2);
    assert_eq!(world.store.nodes.borrow().len(), 20);
}

/// Inserts entries in an order that leaves nodes half empty. The tree gets the greatest depth that
/// the format allows, and then refuses some entries.
#[test]
fn a_tree_grows_to_depth_five_and_no_further() {
    let mut world = World { root: empty_root(), store: Store::new(), model: Model::new() };
    let mut refused = 0;
    for n in 0..2600u32 {
        let logical = n * 1_237 % 2_600 * 2;
        let extent = Extent { logical, len: 1, physical: u64::from(logical) * 3, unwritten: n % 3 == 0 };
        match world.tree(u32::MAX).insert(extent) {
            Ok(()) => drop(world.model.insert(logical, (extent.physical, extent.unwritten))),
            Err(Error::FileTooLarge) => refused += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(node::depth(&world.root), super::DEPTH_MAX);
    assert!(refused > 0 && world.model.len() > 1_000, "{refused} refused of {}", world.model.len());
    assert_eq!(read_all(&world.root, &world.store), world.model);
    world.set_state(500..900, false, u32::MAX);
    world.remove(1_000..1_500);
    assert_eq!(read_all(&world.root, &world.store), world.model);
    world.remove(0..u32::MAX);
    assert_eq!(world.root, empty_root());
}

#[test]
fn a_full_written_extent_becomes_unwritten_in_two_pieces() {
    let mut world = World { root: empty_root(), store: Store::new(), model: Model::new() };
    world.insert(Extent { logical: 0, len: 32_768, physical: 100, unwritten: false }, u32::MAX);
    world.set_state(0..32_768, true, u32::MAX);
    assert_eq!(node::count(&world.root), 2);
    assert_eq!(read_all(&world.root, &world.store), world.model);
}

/// If one block of an unwritten extent becomes written at write time, a short remainder of the
/// extent on either side becomes written, too. Observed on Linux 6.18 with 4 KiB blocks, where a
/// remainder of up to about 8 blocks is short.
#[test]
fn short_rests_of_unwritten_extents_are_initialised_too() {
    let written = |len: u32, at: u32, end_of_file: u32| {
        let mut world = World { root: empty_root(), store: Store::new(), model: Model::new() };
        world.insert(Extent { logical: 0, len, physical: 100, unwritten: true }, u32::MAX);
        world.tree(0).initialised_with(at..at + 1, end_of_file, 8).unwrap()
    };
    assert_eq!(written(20, 10, 20), 10..11);
    assert_eq!(written(20, 12, 20), 12..20);
    assert_eq!(written(20, 6, 20), 0..7);
    assert_eq!(written(20, 7, 20), 7..8);
    assert_eq!(written(7, 3, 7), 0..7);
    // In the first case the extent reaches over the end of the file. In the second, nothing of it
    // follows the block.
    assert_eq!(written(8, 3, 7), 3..4);
    assert_eq!(written(7, 6, 7), 6..7);
}

/// The root is full, and an unwritten extent follows a written one. If the first unwritten block is
/// initialised, the written extent takes it over. If the block is separated instead, the tree gets
/// deeper.
#[test]
fn a_written_neighbour_takes_a_block_over_before_anything_is_split() {
    let made = || {
        let mut world = World { root: empty_root(), store: Store::new(), model: Model::new() };
        for (logical, unwritten) in [(0, false), (10, true), (30, false), (50, false)] {
            let physical = 100 + 2 * u64::from(logical.max(10) - 10);
            world.insert(
                Extent { logical, len: 10, physical: physical + u64::from(logical.min(10)), unwritten },
                u32::MAX,
            );
        }
        world
    };
    let mut world = made();
    world.tree(u32::MAX).initialise(10..11).unwrap();
    assert_eq!((node::depth(&world.root), node::count(&world.root)), (0, 4));
    assert_eq!(node::leaf_entry(&world.root, 0).len, 11);
    let mut world = made();
    world.tree(u32::MAX).separate(&(10..11)).unwrap();
    assert_eq!(node::depth(&world.root), 1, "split first, the root grows");
}

/// Seen on Linux 6.18: if a written extent takes over a data block from the unwritten extent beside
/// it at write time, the tree keeps its depth, even if the leaf would fit into the root. The leaf
/// goes into the root if a whole extent is converted, or a part of one after its I/O has ended.
#[test]
fn a_neighbour_that_takes_a_block_over_leaves_the_tree_as_deep_as_it_is() {
    let made = || {
        let mut world = World { root: empty_root(), store: Store::new(), model: Model::new() };
        for (logical, unwritten) in [(0, false), (10, true), (20, false), (50, false), (70, false)] {
            let physical = 100 + u64::from(logical) * if logical < 50 { 1 } else { 2 };
            world.insert(Extent { logical, len: 10, physical, unwritten }, u32::MAX);
        }
        world.tree(u32::MAX).remove(50..80, |_| {}).unwrap();
        assert_eq!(node::depth(&world.root), 1, "one leaf of three entries");
        world
    };
    let depth_after = |change: &dyn Fn(&mut World)| {
        let mut world = made();
        change(&mut world);
        node::depth(&world.root)
    };
    for (block, side) in [(10, "left"), (19, "right")] {
        let depth = depth_after(&|world| world.tree(u32::MAX).initialise(block..block + 1).unwrap());
        assert_eq!(depth, 1, "the {side} neighbour takes the block over");
        let depth = depth_after(&|world| world.tree(u32::MAX).set_state(block..block + 1, false).unwrap());
        assert_eq!(depth, 0, "converted after the I/O, at the {side} end");
    }
    assert_eq!(depth_after(&|world| world.tree(u32::MAX).initialise(10..20).unwrap()), 0);
}

/// Seen on Linux 6.18 with a full root: the extent behind a new block takes the block over directly
/// only if a hole lies before the block. Otherwise the tree grows first.
#[test]
fn an_extent_right_behind_another_gets_an_entry_before_the_next_one_takes_it() {
    for (left, allocates) in [(8, true), (7, false)] {
        let mut world = World { root: empty_root(), store: Store::new(), model: Model::new() };
        let first = world.store.next.get();
        for (logical, len, physical) in [(0, 1, 1000), (4, 2, 2000), (8, left, 3000), (17, 7, 4001)] {
            world.insert(Extent { logical, len, physical, unwritten: true }, u32::MAX);
        }
        let new = Extent { logical: 16, len: 1, physical: 4000, unwritten: true };
        world.insert(new, u32::MAX);
        assert_eq!(world.store.next.get() > first, allocates);
        assert_eq!(read_all(&world.root, &world.store), world.model);
    }
}

/// Seen on Linux 6.18: entries that a write-back separated are one entry again when a block is
/// placed right behind them.
#[test]
fn an_extent_that_grows_joins_the_one_before_it_from_which_it_was_separated() {
    let mut world = World { root: empty_root(), store: Store::new(), model: Model::new() };
    for (logical, len, physical) in [(0, 2, 1000), (4, 2, 2000), (8, 8, 3000)] {
        world.insert(Extent { logical, len, physical, unwritten: true }, u32::MAX);
    }
    world.tree(u32::MAX).separate(&(8..10)).unwrap();
    world.tree(u32::MAX).separate(&(10..16)).unwrap();
    assert_eq!((node::depth(&world.root), node::count(&world.root)), (0, 4));
    world.insert(Extent { logical: 16, len: 1, physical: 3008, unwritten: true }, u32::MAX);
    assert_eq!((node::depth(&world.root), node::count(&world.root)), (0, 3));
    assert_eq!(node::leaf_entry(&world.root, 2).len, 9);
    assert_eq!(read_all(&world.root, &world.store), world.model);
}
