//! Directories without an index: every block is searched.

use super::{DAMAGED_MAX, Directory, DirectoryStore, Entry, Role};
use crate::extents::NodeBlock;
use crate::{Error, Result};
use blockyard_disk::InodeNr;
use blockyard_disk::dirblock::{self, Entries, NewEntry, Slot};
use blockyard_disk::htree::{self, HtreeDefect, IndexEntry, IndexKind, IndexMut};

impl<S: DirectoryStore> Directory<'_, S> {
    /// Searches the blocks for a name. Passes over damaged blocks, at most [`DAMAGED_MAX`] in a
    /// row. If no sound block has the name, a damaged block may have it, so the result is then the
    /// error of the first damaged block.
    pub(super) fn lookup_linear(&self, name: &[u8]) -> Result<Option<Entry>> {
        let (mut damage, mut damaged) = (None, 0);
        for logical in 0..self.store.blocks() {
            match self.search_leaf(logical, name) {
                Ok(None) => damaged = 0,
                Err(error @ Error::Corrupt(_)) if damaged < DAMAGED_MAX => {
                    damaged += 1;
                    damage.get_or_insert(error);
                }
                found => return found,
            }
        }
        damage.map_or(Ok(None), Err)
    }

    /// Adds a name in the first free slot. A full directory gets an index or one more block.
    pub(super) fn insert_linear(&mut self, entry: &NewEntry<'_>) -> Result<()> {
        if let Some((block, slot)) = self.find_slot(entry.name)? {
            self.store.prepare(&block)?;
            block.write(|bytes| dirblock::insert_at(bytes, self.rules.layout, slot, entry));
            return Ok(());
        }
        if self.rules.may_index && self.store.blocks() == 1 {
            self.give_index()?;
            return self.insert_in_tree(entry);
        }
        let first = if self.store.blocks() == 1 { Some(self.store.load(0, Role::Leaf)?) } else { None };
        for (logical, block) in self.store.append(1)? {
            self.store.set_role(&block, Role::Leaf);
            let inserted = block.write(|bytes| {
                dirblock::init_empty(bytes, self.rules.layout);
                dirblock::insert(bytes, self.rules.layout, entry)
            });
            inserted.map_err(|defect| self.damaged(logical, defect))?;
        }
        if let Some(block) = first {
            self.start_names(&block.read(<[u8]>::to_vec));
        }
        Ok(())
    }

    /// The first free slot that can hold a name, and the block of this slot.
    fn find_slot(&self, name: &[u8]) -> Result<Option<(S::Block, Slot)>> {
        for logical in 0..self.store.blocks() {
            let block = self.store.load(logical, Role::Leaf)?;
            let slot = block
                .read(|bytes| dirblock::slot_for(bytes, self.rules.layout, name.len()))
                .map_err(|defect| self.damaged(logical, defect))?;
            if let Some(slot) = slot {
                return Ok(Some((block, slot)));
            }
        }
        Ok(None)
    }

    /// Turns the one linear block into an index root, its names divided between two leaves by hash.
    ///
    /// Everything is computed on copies before the two blocks are appended.
    fn give_index(&mut self) -> Result<()> {
        debug_assert!(!self.indexed && self.store.blocks() == 1, "one linear block gets an index");
        let root = self.store.load(0, Role::Leaf)?;
        let linear = root.read(<[u8]>::to_vec);
        let mut root_bytes = linear.clone();
        let leaves = self.indexed_form(&mut root_bytes).map_err(|defect| self.damaged(0, defect))?;
        self.store.prepare(&root)?;
        for ((_, leaf), bytes) in self.store.append(leaves.len())?.into_iter().zip(leaves) {
            self.store.set_role(&leaf, Role::Leaf);
            leaf.write(|block| block.copy_from_slice(&bytes));
        }
        self.store.set_role(&root, Role::Index(IndexKind::Root));
        root.write(|block| block.copy_from_slice(&root_bytes));
        self.indexed = true;
        self.start_names(&linear);
        Ok(())
    }

    /// Starts the dentry cache of this directory with the names of its first block. The directory
    /// has no others, except the name that is being added, which the caller enters afterwards.
    fn start_names(&self, block: &[u8]) {
        let entries = Entries::new(block, self.rules.layout).into_iter().flatten().flatten();
        let names = entries.filter(|entry| entry.inode != 0 && entry.name != b"." && entry.name != b"..");
        if let Some(kept) = self.kept_names() {
            kept.start(names.map(|entry| (entry.name, InodeNr::new(entry.inode))));
        }
    }

    /// Rewrites the bytes of a linear block as an index root over two leaves, which will be logical
    /// blocks 1 and 2. Returns the bytes of the leaves.
    fn indexed_form(&self, root: &mut [u8]) -> std::result::Result<[Vec<u8>; 2], HtreeDefect> {
        let layout = &self.rules.layout;
        let (mut lower, mut upper) = (vec![0; layout.block_size], vec![0; layout.block_size]);
        htree::convert(root, &mut lower, layout, self.rules.hash_version.stored(), 1)?;
        let key = htree::split_leaf(&mut lower, &mut upper, layout, &self.rules.default_hasher())?;
        let inserted =
            IndexMut::parse(root, IndexKind::Root, layout, 3)?.insert_after(0, IndexEntry { key, block: 2 });
        assert!(inserted, "a root has room for two entries");
        Ok([lower, upper])
    }
}
