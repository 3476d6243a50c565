//! Decides where the attributes of each inode are stored: in the inode itself, in a block, or
//! partly in each. Up to [`REFCOUNT_MAX`] inodes whose blocks would hold equal lists share one
//! block. With `ea_inode`, a large value can have an inode of its own, which equal values share.
//!
//! [`Homes`] lists only inodes with attributes outside the inode. Value inodes are numbered after
//! all other inodes. Until then, [`Value::Inode`] holds the value's index in `Homes::values`, and
//! no hash, because the hash depends on the UUID.

use crate::error::{Error, Result};
use crate::numbering::Order;
use crate::tree::{NodeId, Tree};
use blockyard_disk::num::{u32_from_usize, usize_from_u32};
use blockyard_disk::xattr::{Attribute, AttributeList, Home, REFCOUNT_MAX, Value, entry_hash_of_inode_value};
use std::cmp::Reverse;
use std::collections::HashMap;

/// The space for the attributes of one inode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Bytes in the inode.
    pub(crate) inode: usize,
    /// Bytes in a block.
    pub(crate) block: usize,
    /// Whether values may have inodes (`ea_inode`).
    pub(crate) has_value_inodes: bool,
}

/// Where the attributes of one inode are stored.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placed {
    /// The attributes in the inode.
    pub(crate) inode: AttributeList,
    /// The block with the other attributes, as an index into [`Homes::blocks`].
    pub(crate) block: Option<usize>,
}

/// A block of attributes.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub(crate) list: AttributeList,
    /// The number of inodes that share it.
    pub(crate) users: u32,
    /// The first inode that uses it; `None` is the root. The data of this inode follows the block.
    pub(crate) owner: Option<NodeId>,
}

/// A value with an inode of its own.
#[derive(Clone, Debug)]
pub(crate) struct StoredValue {
    pub(crate) bytes: Vec<u8>,
    /// The number of attributes that refer to it; those in a shared block count once.
    pub(crate) references: u32,
}

/// Where attributes are stored, for each inode that cannot hold all of its attributes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Homes {
    of: HashMap<Option<NodeId>, Placed>,
    pub(crate) blocks: Vec<Shared>,
    pub(crate) values: Vec<StoredValue>,
}

impl Homes {
    /// Finds a home for the attributes of all inodes.
    ///
    /// # Errors
    /// [`Error::Refused`] for an inode whose attributes do not fit anywhere.
    pub(crate) fn find(tree: &Tree, order: &Order, room: Room) -> Result<Self> {
        let mut finding =
            Finding { homes: Self::default(), room, known: HashMap::new(), value: HashMap::new() };
        for id in std::iter::once(None).chain(order.inodes.iter().copied().map(Some)) {
            let Some(list) = tree.attributes(id).filter(|list| list.area_len(Home::Inode) > room.inode)
            else {
                continue;
            };
            // Linux stores a short target in `i_block` even if the link's `i_blocks` includes the
            // blocks of value inodes. e2fsck would take such a target for a block map, so short
            // links get no value inodes here.
            let is_fast = id.is_some_and(|id| tree.node(id).is_fast_symlink());
            let has_value_inodes = room.has_value_inodes && !is_fast;
            let Some(parted) = parted(list, Room { has_value_inodes, ..room }) else {
                let path = id.map_or_else(|| tree.host_path(b""), |id| tree.host_path_of(id));
                let hint = match (room.has_value_inodes, is_fast) {
                    (true, true) => "; a short symbolic link cannot have values in other inodes",
                    (true, false) | (false, true) => "",
                    (false, false) => "; ask for -O ea_inode",
                };
                let reason = format!(
                    "its extended attributes do not fit its inode and a block of {} bytes{hint}",
                    room.block
                );
                return Err(Error::Refused { path, reason });
            };
            finding.place(id, parted);
        }
        Ok(finding.homes)
    }

    /// Where the attributes of an inode are stored, if not all of them are in the inode.
    pub(crate) fn of(&self, id: Option<NodeId>) -> Option<&Placed> {
        self.of.get(&id)
    }

    /// The block of an inode's attributes.
    pub(crate) fn block_of(&self, id: Option<NodeId>) -> Option<&Shared> {
        self.of(id)?.block.map(|block| &self.blocks[block])
    }

    /// The sizes in bytes of the values in value inodes to which the inode `id` or its attribute
    /// block refers.
    pub(crate) fn values_of(&self, id: Option<NodeId>) -> impl Iterator<Item = u64> {
        let inode = self.of(id).map(|placed| &placed.inode);
        let lists = inode.into_iter().chain(self.block_of(id).map(|block| &block.list));
        lists.flat_map(AttributeList::iter).filter_map(|attribute| match &attribute.value {
            Value::Inode { size, .. } => Some(u64::from(*size)),
            Value::Bytes(_) => None,
        })
    }

    /// Whether an inode owns its attribute block. The block is then stored with the inode's data.
    pub(crate) fn owns_block(&self, id: Option<NodeId>) -> bool {
        self.block_of(id).is_some_and(|block| block.owner == id)
    }

    /// A list in its final form, with inode numbers and hashes of values. `first` is the number of
    /// the first value inode, and `hashes` are the hashes of all values.
    pub(crate) fn numbered(list: &AttributeList, first: u32, hashes: &[u32]) -> AttributeList {
        let mut numbered = AttributeList::default();
        for attribute in list.iter() {
            let mut attribute = attribute.clone();
            if let Value::Inode { inode, entry_hash, .. } = &mut attribute.value {
                *entry_hash = entry_hash_of_inode_value(&attribute.name, hashes[usize_from_u32(*inode)]);
                *inode += first;
            }
            numbered.set(attribute);
        }
        numbered
    }
}

/// A list split into the part in the inode, the part in the block, and the names whose values go to
/// inodes of their own.
struct Parted {
    inode: Vec<Attribute>,
    block: Vec<Attribute>,
    /// Prefix index and name of each attribute whose value moves.
    moved: Vec<(u8, Vec<u8>)>,
}

/// Splits a list between the inode and a block. If the whole list fits into the block, the block
/// gets all of it. Otherwise the inode gets each attribute that still fits, and the block gets the
/// rest. If the rest is too large for the block, values move to inodes of their own: as few as
/// possible, the largest first. Returns `None` if that is not enough.
fn parted(list: &AttributeList, room: Room) -> Option<Parted> {
    let mut by_size: Vec<&Attribute> = list.iter().collect();
    by_size.sort_by_key(|attribute| Reverse(attribute.stored_len()));
    let most = if room.has_value_inodes { by_size.len() } else { 0 };
    (0..=most).find_map(|count| {
        let moved: Vec<(u8, Vec<u8>)> =
            by_size[..count].iter().map(|attribute| (attribute.index, attribute.name.clone())).collect();
        let is_moved = |attribute: &Attribute| {
            moved.iter().any(|(index, name)| *index == attribute.index && *name == attribute.name)
        };
        let len = |attribute: &Attribute| match (&attribute.value, is_moved(attribute)) {
            (Value::Bytes(bytes), true) => attribute.stored_len() - bytes.len().next_multiple_of(4),
            _ => attribute.stored_len(),
        };
        let empty = AttributeList::default();
        let whole: usize = list.iter().map(len).sum();
        let (mut inode, mut block) = (Vec::new(), Vec::new());
        if empty.area_len(Home::Block) + whole <= room.block && count == 0 {
            block.extend(list.iter().cloned());
        } else {
            let mut used = empty.area_len(Home::Inode);
            for attribute in list.iter() {
                if used + len(attribute) <= room.inode {
                    used += len(attribute);
                    inode.push(attribute.clone());
                } else {
                    block.push(attribute.clone());
                }
            }
        }
        let fits = empty.area_len(Home::Block) + block.iter().map(len).sum::<usize>() <= room.block;
        fits.then_some(Parted { inode, block, moved })
    })
}

/// The state of the search for homes.
struct Finding {
    homes: Homes,
    room: Room,
    /// For a list, the latest block that holds it, as an index into `homes.blocks`.
    known: HashMap<AttributeList, usize>,
    /// The index of each value in `homes.values`.
    value: HashMap<Vec<u8>, u32>,
}

impl Finding {
    fn place(&mut self, id: Option<NodeId>, parted: Parted) {
        let moved = &parted.moved;
        let inode = self.stored(parted.inode, moved);
        self.count(&inode);
        let mut placed = Placed { inode, block: None };
        if !parted.block.is_empty() {
            let list = self.stored(parted.block, moved);
            let known = self.known.get(&list).copied();
            let known = known.filter(|&block| self.homes.blocks[block].users < REFCOUNT_MAX);
            let block = known.unwrap_or_else(|| {
                self.count(&list);
                self.known.insert(list.clone(), self.homes.blocks.len());
                self.homes.blocks.push(Shared { list, users: 0, owner: id });
                self.homes.blocks.len() - 1
            });
            self.homes.blocks[block].users += 1;
            placed.block = Some(block);
        }
        debug_assert!(placed.inode.is_empty() || placed.inode.area_len(Home::Inode) <= self.room.inode);
        self.homes.of.insert(id, placed);
    }

    /// A list in which the moved values are replaced by references.
    fn stored(&mut self, attributes: Vec<Attribute>, moved: &[(u8, Vec<u8>)]) -> AttributeList {
        let mut list = AttributeList::default();
        for mut attribute in attributes {
            let is_moved =
                moved.iter().any(|(index, name)| *index == attribute.index && *name == attribute.name);
            if let (Value::Bytes(bytes), true) = (&attribute.value, is_moved) {
                let size = u32_from_usize(bytes.len());
                let values = &mut self.homes.values;
                let inode = *self.value.entry(bytes.clone()).or_insert_with(|| {
                    values.push(StoredValue { bytes: bytes.clone(), references: 0 });
                    u32_from_usize(values.len()) - 1
                });
                attribute.value = Value::Inode { inode, size, entry_hash: 0 };
            }
            list.set(attribute);
        }
        list
    }

    /// Adds the references in a list to the counts of the values.
    fn count(&mut self, list: &AttributeList) {
        for value in list.iter().filter_map(|attribute| attribute.value.inode()) {
            self.homes.values[usize_from_u32(value)].references += 1;
        }
    }
}
