//! The hash index: the path from the root to the leaf of a name, and its growth.
//!
//! The path of a hash has at most three index blocks and a leaf. A name is in the leaf to which the
//! path of its hash leads. But if names with the same hash fill more than one leaf, the name may be
//! in a leaf to the right. The key of such a leaf says that the hash continues there.

use super::{Directory, DirectoryStore, Entry, Role};
use crate::extents::NodeBlock;
use crate::{Error, Result};
use blockyard_disk::dirblock::{self, NewEntry};
use blockyard_disk::dirhash::DirHasher;
use blockyard_disk::htree::{self, HtreeDefect, Index, IndexEntry, IndexKind, IndexMut, RootInfo};

/// One index block on the way down, and the entry that was followed.
#[derive(Clone)]
pub(super) struct Level<B> {
    block: B,
    logical: u32,
    kind: IndexKind,
    position: usize,
    count: usize,
    full: bool,
}

/// The path from the root to the leaf of a hash.
#[derive(Clone)]
pub(super) struct Path<B> {
    levels: Vec<Level<B>>,
    pub(super) leaf: u32,
    pub(super) hasher: DirHasher,
    /// The hash that led here.
    major: u32,
}

/// How often the insertion of a name may split a leaf before the directory counts as damaged. A
/// sound leaf needs fewer splits.
const SPLITS_MAX: usize = 4;

impl<S: DirectoryStore> Directory<'_, S> {
    /// The root of the index, its fields and the hash function that it names.
    fn root(&self) -> Result<(S::Block, RootInfo, DirHasher)> {
        let root = self.store.load(0, Role::Index(IndexKind::Root))?;
        let info = root
            .read(|bytes| RootInfo::verify(bytes, &self.rules.layout, self.rules.large))
            .map_err(|defect| self.damaged(0, defect))?;
        let hasher = self
            .rules
            .hasher_of(&info)
            .ok_or(Error::NotSupported("a directory whose names are hashed by SipHash (encrypted)"))?;
        Ok((root, info, hasher))
    }

    /// The hash function that the root names. If the root cannot be read, the function of new
    /// indexes.
    pub(super) fn likely_hasher(&self) -> DirHasher {
        self.root().map_or_else(|_| self.rules.default_hasher(), |(_, _, hasher)| hasher)
    }

    /// The path to the leaf where names of this hash begin. `major` computes the hash with the
    /// function that the root names.
    pub(super) fn path(&self, major: impl FnOnce(&DirHasher) -> u32) -> Result<Path<S::Block>> {
        let (root, info, hasher) = self.root()?;
        let major = major(&hasher);
        let mut levels = Vec::with_capacity(usize::from(info.indirect_levels) + 1);
        let (mut level, mut below) = self.level(root, 0, IndexKind::Root, |index| index.find(major))?;
        for _ in 0..info.indirect_levels {
            levels.push(level);
            let block = self.store.load(below, Role::Index(IndexKind::Node))?;
            (level, below) = self.level(block, below, IndexKind::Node, |index| index.find(major))?;
        }
        levels.push(level);
        debug_assert_eq!(levels.len(), usize::from(info.indirect_levels) + 1, "a level for each index block");
        Ok(Path { levels, leaf: below, hasher, major })
    }

    /// The level of a path for an index block, at the position that `choose` returns; and the block
    /// to which the entry at this position leads.
    fn level(
        &self,
        block: S::Block,
        logical: u32,
        kind: IndexKind,
        choose: impl FnOnce(&Index<'_>) -> usize,
    ) -> Result<(Level<S::Block>, u32)> {
        let seen = block.read(|bytes| {
            let index = Index::checked(bytes, kind, &self.rules.layout)?;
            let position = choose(&index);
            let below = index.below(position, self.store.blocks())?;
            Ok((position, index.count(), index.is_full(), below))
        });
        let (position, count, full, below) =
            seen.map_err(|defect: HtreeDefect| self.damaged(logical, defect))?;
        Ok((Level { block, logical, kind, position, count, full }, below))
    }

    /// Moves a path to the next leaf and returns that leaf's key; `None` after the last leaf.
    pub(super) fn advance(&self, path: &mut Path<S::Block>) -> Result<Option<u32>> {
        let Some((turn, entry)) = self.next_entry(path)? else { return Ok(None) };
        path.levels[turn].position += 1;
        let mut below = entry.block;
        for depth in turn + 1..path.levels.len() {
            let block = self.store.load(below, Role::Index(IndexKind::Node))?;
            (path.levels[depth], below) = self.level(block, below, IndexKind::Node, |_| 0)?;
        }
        path.leaf = below;
        Ok(Some(entry.key))
    }

    /// The entry that leads to the leaf after the leaf of a path, and the depth of the level that
    /// holds this entry; `None` at the last leaf.
    fn next_entry(&self, path: &Path<S::Block>) -> Result<Option<(usize, IndexEntry)>> {
        let Some(turn) = path.levels.iter().rposition(|level| level.position + 1 < level.count) else {
            return Ok(None);
        };
        let level = &path.levels[turn];
        let entry = level.block.read(|bytes| {
            let index = Index::checked(bytes, level.kind, &self.rules.layout)?;
            let position = (level.position + 1).min(index.count() - 1);
            index.below(position, self.store.blocks())?;
            Ok(index.entry(position))
        });
        match entry {
            Ok(entry) => Ok(Some((turn, entry))),
            Err::<_, HtreeDefect>(defect) => Err(self.damaged(level.logical, defect)),
        }
    }

    pub(super) fn lookup_in_tree(&self, name: &[u8]) -> Result<Option<Entry>> {
        let path = self.path(|hasher| hasher.hash(name).major)?;
        let found = self.search_leaf(path.leaf, name)?;
        if found.is_some() { Ok(found) } else { self.find_behind(&path, name) }
    }

    /// The entry of a name in a leaf.
    pub(super) fn search_leaf(&self, logical: u32, name: &[u8]) -> Result<Option<Entry>> {
        let block = self.store.load(logical, Role::Leaf)?;
        let found = block
            .read(|bytes| dirblock::find(bytes, self.rules.layout, name))
            .map_err(|defect| self.damaged(logical, defect))?;
        Ok(found.map(|found| self.entry_at(logical, found)))
    }

    /// Searches the leaves that continue the leaf of a path.
    fn find_behind(&self, path: &Path<S::Block>, name: &[u8]) -> Result<Option<Entry>> {
        if !self.is_continued(path)? {
            return Ok(None);
        }
        let mut path = path.clone();
        while self.is_continued(&path)? {
            self.advance(&mut path)?;
            let found = self.search_leaf(path.leaf, name)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Whether names with the path's hash may continue in the next leaf.
    fn is_continued(&self, path: &Path<S::Block>) -> Result<bool> {
        Ok(self.next_entry(path)?.is_some_and(|(_, entry)| entry.continues(path.major)))
    }

    pub(super) fn insert_in_tree(&self, entry: &NewEntry<'_>) -> Result<()> {
        for _ in 0..SPLITS_MAX {
            let path = self.path(|hasher| hasher.hash(entry.name).major)?;
            let block = self.store.load(path.leaf, Role::Leaf)?;
            let slot = block
                .read(|bytes| dirblock::slot_for(bytes, self.rules.layout, entry.name.len()))
                .map_err(|defect| self.damaged(path.leaf, defect))?;
            let Some(slot) = slot else {
                self.split_leaf(path)?;
                continue;
            };
            self.store.prepare(&block)?;
            block.write(|bytes| dirblock::insert_at(bytes, self.rules.layout, slot, entry));
            return Ok(());
        }
        Err(self.damaged(0, HtreeDefect::Leaf))
    }

    /// Splits the leaf of a path, after making room in the index.
    ///
    /// The split is computed on copies before a block is appended: if the leaf cannot be split,
    /// nothing changes.
    fn split_leaf(&self, path: Path<S::Block>) -> Result<()> {
        let Path { mut levels, leaf: logical, hasher, .. } = path;
        let leaf = self.store.load(logical, Role::Leaf)?;
        let mut lower = leaf.read(<[u8]>::to_vec);
        let mut upper = vec![0; self.rules.layout.block_size];
        let key = htree::split_leaf(&mut lower, &mut upper, &self.rules.layout, &hasher)
            .map_err(|defect| self.damaged(logical, defect))?;

        let full = levels.iter().rev().take_while(|level| level.full).count();
        let grows = full == levels.len();
        if grows && levels.len() > usize::from(RootInfo::levels_max(self.rules.large)) {
            return Err(Error::NoSpace);
        }
        self.check_keys(&levels, full, key)?;
        for level in &levels {
            self.store.prepare(&level.block)?;
        }
        self.store.prepare(&leaf)?;
        // One new node for each of the `full` lowest levels: if the root is among them, its entries
        // move down into a node, and the others are split. One more block is the new leaf.
        let mut fresh = self.store.append(full + 1)?.into_iter();
        let mut next = || fresh.next().expect("the store appended as many blocks as were asked for");

        let mut splits = full;
        if grows {
            let (node_logical, node) = next();
            self.lower_root(&mut levels, node_logical, node)?;
            splits -= 1;
        }
        for depth in levels.len() - splits..levels.len() {
            let (node_logical, node) = next();
            self.split_index(&mut levels, depth, node_logical, node)?;
        }
        let (new_logical, new_leaf) = next();
        self.store.set_role(&new_leaf, Role::Leaf);
        new_leaf.write(|bytes| bytes.copy_from_slice(&upper));
        leaf.write(|bytes| bytes.copy_from_slice(&lower));
        let bottom = levels.len() - 1;
        self.insert_key(&levels[bottom], IndexEntry { key, block: new_logical })
    }

    /// Moves the entries of a full root into a new node below it. The path then goes through that
    /// node.
    fn lower_root(&self, levels: &mut Vec<Level<S::Block>>, logical: u32, node: S::Block) -> Result<()> {
        debug_assert!(levels[0].full, "the tree grows when its root is full");
        let root = levels[0].clone();
        let mut root_bytes = root.block.read(<[u8]>::to_vec);
        let mut node_bytes = vec![0; self.rules.layout.block_size];
        let (layout, large) = (&self.rules.layout, self.rules.large);
        htree::add_level(&mut root_bytes, &mut node_bytes, layout, large, logical, self.store.blocks())
            .map_err(|defect| self.damaged(0, defect))?;
        self.store.set_role(&node, Role::Index(IndexKind::Node));
        node.write(|bytes| bytes.copy_from_slice(&node_bytes));
        root.block.write(|bytes| bytes.copy_from_slice(&root_bytes));
        let Level { position, count, .. } = root;
        levels[0] = Level { position: 0, count: 1, full: false, ..root };
        // The node is not full: its header is shorter than a root's, so it holds more entries.
        let full = false;
        levels.insert(1, Level { block: node, logical, kind: IndexKind::Node, position, count, full });
        Ok(())
    }

    /// Splits the full index block at `depth`, whose parent has room. Afterwards the path goes
    /// through the half that holds the entry which the path follows.
    fn split_index(
        &self,
        levels: &mut [Level<S::Block>],
        depth: usize,
        logical: u32,
        node: S::Block,
    ) -> Result<()> {
        debug_assert!(depth > 0 && !levels[depth - 1].full, "the parent of a split block has room");
        let level = levels[depth].clone();
        let mut lower = level.block.read(<[u8]>::to_vec);
        let mut upper = vec![0; self.rules.layout.block_size];
        let split = IndexMut::parse(&mut lower, level.kind, &self.rules.layout, self.store.blocks())
            .and_then(|mut index| {
                let key = index.split_into(&mut upper, &self.rules.layout)?;
                Ok((key, index.as_index().count()))
            });
        let (key, kept) = split.map_err(|defect| self.damaged(level.logical, defect))?;
        self.store.set_role(&node, Role::Index(IndexKind::Node));
        node.write(|bytes| bytes.copy_from_slice(&upper));
        level.block.write(|bytes| bytes.copy_from_slice(&lower));
        self.insert_key(&levels[depth - 1], IndexEntry { key, block: logical })?;
        levels[depth - 1].count += 1;
        if level.position < kept {
            levels[depth] = Level { count: kept, full: false, ..level };
        } else {
            levels[depth - 1].position += 1;
            let position = level.position - kept;
            let count = level.count - kept;
            levels[depth] =
                Level { block: node, logical, kind: IndexKind::Node, position, count, full: false };
        }
        Ok(())
    }

    /// Inserts an entry behind the path's position in a level that has room.
    fn insert_key(&self, level: &Level<S::Block>, entry: IndexEntry) -> Result<()> {
        let blocks = self.store.blocks();
        let inserted = level.block.write(|bytes| {
            let mut index = IndexMut::parse(bytes, level.kind, &self.rules.layout, blocks)?;
            let fits = key_fits(&index.as_index(), level.position, entry.key);
            Ok::<_, HtreeDefect>(fits && index.insert_after(level.position, entry))
        });
        match inserted {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.damaged(level.logical, HtreeDefect::Order(level.position + 1))),
            Err(defect) => Err(self.damaged(level.logical, defect)),
        }
    }

    /// Checks before any change that the new keys fit into the order of the path's levels: the key
    /// of the new leaf, and the keys that move up when the `full` lowest levels are split. In a
    /// damaged index they may not fit.
    fn check_keys(&self, levels: &[Level<S::Block>], full: usize, leaf_key: u32) -> Result<()> {
        let mut key = leaf_key;
        for (below, level) in levels.iter().rev().enumerate() {
            let (fits, middle) = level
                .block
                .read(|bytes| {
                    let index = Index::parse(bytes, level.kind, &self.rules.layout, self.store.blocks())?;
                    let middle = index.entry(index.count() / 2).key;
                    Ok::<_, HtreeDefect>((key_fits(&index, level.position, key), middle))
                })
                .map_err(|defect| self.damaged(level.logical, defect))?;
            if !fits {
                return Err(self.damaged(level.logical, HtreeDefect::Order(level.position + 1)));
            }
            if below >= full {
                break;
            }
            key = middle;
        }
        Ok(())
    }
}

/// Whether a key belongs right behind a position.
fn key_fits(index: &Index<'_>, position: usize, key: u32) -> bool {
    let before = position < index.count() && index.entry(position).key <= key;
    before && (position + 1 == index.count() || key <= index.entry(position + 1).key)
}
