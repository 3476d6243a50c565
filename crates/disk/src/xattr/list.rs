//! Attributes as owned values: the list that an edit works on, and how the list is written back.

use super::{
    BLOCK_HEADER_LEN, ENTRY_HEADER_LEN, Home, INODE_HEADER_LEN, MAGIC, RawEntry, VALUE_LEN_MAX, XattrDefect,
    block_hash, entry_hash, pad4, parse,
};
use crate::num::{u32_from_usize, usize_from_u32};

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// Kept in the same area as the entry.
    Bytes(Vec<u8>),
    /// Kept as the content of an inode of its own.
    Inode {
        /// The inode, not 0.
        inode: u32,
        /// Length of the value in bytes.
        size: u32,
        /// Hash of the entry (see [`super::entry_hash_of_inode_value`]).
        entry_hash: u32,
    },
}

impl Value {
    /// The inode that holds the value, if one does.
    #[must_use]
    pub const fn inode(&self) -> Option<u32> {
        match self {
            Self::Bytes(_) => None,
            Self::Inode { inode, .. } => Some(*inode),
        }
    }

    /// Length of the value in bytes.
    #[must_use]
    pub const fn size(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Inode { size, .. } => usize_from_u32(*size),
        }
    }
}

/// One attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attribute {
    /// Prefix of the name, by number.
    pub index: u8,
    /// Rest of the name, at most 255 bytes.
    pub name: Vec<u8>,
    /// The value.
    pub value: Value,
}

impl Attribute {
    fn key(&self) -> (u8, usize, &[u8]) {
        (self.index, self.name.len(), &self.name)
    }

    /// Bytes that the entry and its value occupy in an area.
    #[must_use]
    pub fn stored_len(&self) -> usize {
        let value = match &self.value {
            Value::Bytes(bytes) => pad4(bytes.len()),
            Value::Inode { .. } => 0,
        };
        ENTRY_HEADER_LEN + pad4(self.name.len()) + value
    }
}

impl From<&RawEntry<'_>> for Attribute {
    fn from(raw: &RawEntry<'_>) -> Self {
        let value = if raw.value_inode == 0 {
            Value::Bytes(raw.value.to_vec())
        } else {
            Value::Inode { inode: raw.value_inode, size: raw.value_size, entry_hash: raw.hash }
        };
        Self { index: raw.name_index, name: raw.name.to_vec(), value }
    }
}

/// A set of attributes with distinct names, sorted as in a block.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct AttributeList(Vec<Attribute>);

impl AttributeList {
    /// Checks an area and returns its attributes.
    ///
    /// # Errors
    /// As [`parse`].
    pub fn parse(area: &[u8], home: Home) -> Result<Self, XattrDefect> {
        let mut list: Vec<Attribute> = parse(area, home)?.iter().map(Attribute::from).collect();
        list.sort_by(|a, b| a.key().cmp(&b.key()));
        Ok(Self(list))
    }

    /// The attributes in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Attribute> {
        self.0.iter()
    }

    /// Whether there are no attributes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn position(&self, index: u8, name: &[u8]) -> Result<usize, usize> {
        self.0.binary_search_by(|attribute| attribute.key().cmp(&(index, name.len(), name)))
    }

    /// The attribute with this name; `None` if there is none.
    #[must_use]
    pub fn find(&self, index: u8, name: &[u8]) -> Option<&Attribute> {
        self.position(index, name).ok().map(|at| &self.0[at])
    }

    /// Adds or replaces an attribute. Returns the replaced one.
    ///
    /// # Panics
    /// When the name is longer than 255 bytes, or a [`Value::Bytes`] is longer than 64 KiB: the
    /// caller must refuse such attributes.
    pub fn set(&mut self, attribute: Attribute) -> Option<Attribute> {
        assert!(attribute.name.len() <= 255);
        if let Value::Bytes(bytes) = &attribute.value {
            assert!(bytes.len() <= usize_from_u32(VALUE_LEN_MAX));
        }
        match self.position(attribute.index, &attribute.name) {
            Ok(at) => Some(std::mem::replace(&mut self.0[at], attribute)),
            Err(at) => {
                self.0.insert(at, attribute);
                None
            }
        }
    }

    /// Removes an attribute and returns it; `None` if there is none with this name.
    pub fn remove(&mut self, index: u8, name: &[u8]) -> Option<Attribute> {
        self.position(index, name).ok().map(|at| self.0.remove(at))
    }

    /// Bytes that an area of this kind needs for the list, with header and end mark.
    #[must_use]
    pub fn area_len(&self, home: Home) -> usize {
        home.entries_at() + 4 + self.0.iter().map(Attribute::stored_len).sum::<usize>()
    }

    /// Writes the list into the area that an inode has for attributes. If the list does not fit,
    /// returns `false` and writes nothing. An empty list leaves zeroes without a magic word.
    #[must_use]
    pub fn write_inode_area(&self, area: &mut [u8]) -> bool {
        if self.0.is_empty() {
            area.fill(0);
            return true;
        }
        if self.area_len(Home::Inode) > area.len() {
            return false;
        }
        area.fill(0);
        area[..INODE_HEADER_LEN].copy_from_slice(&MAGIC.to_le_bytes());
        self.write_entries(area, Home::Inode);
        true
    }

    /// Writes the list as a block with a reference count. Does not set the block's checksum. If the
    /// list does not fit, returns `false` and writes nothing.
    #[must_use]
    pub fn write_block(&self, block: &mut [u8], refcount: u32) -> bool {
        if self.area_len(Home::Block) > block.len() {
            return false;
        }
        block.fill(0);
        block[..4].copy_from_slice(&MAGIC.to_le_bytes());
        block[4..8].copy_from_slice(&refcount.to_le_bytes());
        block[8..12].copy_from_slice(&1u32.to_le_bytes());
        let hashes = self.write_entries(block, Home::Block);
        block[12..16].copy_from_slice(&block_hash(hashes).to_le_bytes());
        debug_assert!(BLOCK_HEADER_LEN == Home::Block.entries_at());
        true
    }

    /// Writes entries upwards and values downwards into a zeroed area that must be large enough.
    /// Returns the hashes of the entries, in order.
    fn write_entries(&self, area: &mut [u8], home: Home) -> Vec<u32> {
        let mut at = home.entries_at();
        // Values are padded to multiples of 4 and begin at multiples of 4, so any bytes after the
        // last multiple stay unused.
        let mut value_at = area.len() & !3;
        let mut hashes = Vec::with_capacity(self.0.len());
        for attribute in &self.0 {
            let (inode, size, hash) = match &attribute.value {
                Value::Inode { inode, size, entry_hash } => (*inode, *size, *entry_hash),
                Value::Bytes(bytes) => {
                    let hash = if home == Home::Block { entry_hash(&attribute.name, bytes) } else { 0 };
                    (0, u32_from_usize(bytes.len()), hash)
                }
            };
            let offset = match &attribute.value {
                Value::Bytes(bytes) if !bytes.is_empty() => {
                    value_at -= pad4(bytes.len());
                    area[value_at..value_at + bytes.len()].copy_from_slice(bytes);
                    value_at - home.values_from()
                }
                _ => 0,
            };
            let name_len = u8::try_from(attribute.name.len()).expect("set() refuses longer names");
            let offset = u16::try_from(offset).expect("an area is at most 64 KiB and a value is not empty");
            area[at] = name_len;
            area[at + 1] = attribute.index;
            area[at + 2..at + 4].copy_from_slice(&offset.to_le_bytes());
            area[at + 4..at + 8].copy_from_slice(&inode.to_le_bytes());
            area[at + 8..at + 12].copy_from_slice(&size.to_le_bytes());
            area[at + 12..at + 16].copy_from_slice(&hash.to_le_bytes());
            let name_at = at + ENTRY_HEADER_LEN;
            area[name_at..name_at + attribute.name.len()].copy_from_slice(&attribute.name);
            at = name_at + pad4(attribute.name.len());
            hashes.push(hash);
        }
        hashes
    }
}
