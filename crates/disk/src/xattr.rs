//! Extended attributes: reads, hashes and builds the lists of attributes in an inode's spare bytes
//! and in an attribute block.
//!
//! The list has the same form in an inode and in a block: the entries are placed from the start
//! upwards, the values from the end downwards, and four zero bytes end the entries.
//!
//! - In an inode, the list follows a magic word after the extra fields. Value offsets count from
//!   the first entry, and entries need not be sorted.
//! - A block has a header of 32 bytes. Value offsets count from the start of the block, and entries
//!   are sorted by (index, name length, name). Inodes with equal lists may share a block. Its
//!   header has the number of these inodes.
//!
//! A value may instead be the content of an inode of its own (`ea_inode`).
//!
//! Edits are made on an [`AttributeList`] and written back as a whole: attributes are few and
//! small, and a rewrite leaves no stale bytes. [`parse`] checks a whole list, but not its hashes,
//! before it returns any entry.

mod acl;
mod list;
mod name;
mod reference;

pub use crate::defects::XattrDefect;
pub use acl::{
    AclDefect, acl_exceeds_mode, acl_from_posix, acl_is_whole, acl_mode, acl_to_posix, acl_with_mode,
};
pub use list::{Attribute, AttributeList, Value};
pub use name::{join_name, split_name};
pub use reference::ValueReference;

use crate::num::usize_from_u32;

/// First word of an attribute block and of an in-inode list.
pub const MAGIC: u32 = 0xEA02_0000;
/// Bytes before the first entry of a block.
pub const BLOCK_HEADER_LEN: usize = 32;
/// Bytes of the magic word before the first entry in an inode.
pub const INODE_HEADER_LEN: usize = 4;
/// Bytes of an entry before its name.
pub const ENTRY_HEADER_LEN: usize = 16;
/// The longest value, wherever it is kept.
pub const VALUE_LEN_MAX: u32 = 64 * 1024;
/// How many inodes may share one block.
pub const REFCOUNT_MAX: u32 = 1024;

/// Where a list is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Home {
    /// After the extra fields of an inode: the area begins with the magic word.
    Inode,
    /// A block of its own: the area is the block.
    Block,
}

impl Home {
    /// Where the first entry starts in the area.
    #[must_use]
    pub const fn entries_at(self) -> usize {
        match self {
            Self::Inode => INODE_HEADER_LEN,
            Self::Block => BLOCK_HEADER_LEN,
        }
    }

    /// The offset in the area from which value offsets count.
    #[must_use]
    pub const fn values_from(self) -> usize {
        match self {
            Self::Inode => INODE_HEADER_LEN,
            Self::Block => 0,
        }
    }
}

/// One entry as stored. Its name was found to lie inside the area, and so was its value, unless the
/// value has an inode of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawEntry<'a> {
    /// Offset of the entry in the area.
    pub at: usize,
    /// Prefix of the name, by number.
    pub name_index: u8,
    /// Rest of the name.
    pub name: &'a [u8],
    /// Inode that holds the value; 0 if the value is in the area.
    pub value_inode: u32,
    /// Length of the value in bytes.
    pub value_size: u32,
    /// Stored hash; normally 0 in an inode's list, unless the value lies in an inode of its own.
    pub hash: u32,
    /// The value in the area, without padding; empty for a value in an inode of its own.
    pub value: &'a [u8],
    /// The value with the bytes that pad it to a multiple of 4, which are normally zero.
    pub padded_value: &'a [u8],
}

#[inline]
fn le32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |raw| u32::from_le_bytes(*raw))
}

const fn pad4(length: usize) -> usize {
    (length + 3) & !3
}

/// Offset of an attribute list's magic word in an inode of `inode_size` bytes. `None` if the inode
/// has no room for even an empty list, or `extra_isize` is not a multiple of 4.
#[must_use]
pub fn inode_area_at(inode_size: usize, extra_isize: u16) -> Option<usize> {
    let at = 128 + usize::from(extra_isize);
    (inode_size > 128 && extra_isize.is_multiple_of(4) && at + INODE_HEADER_LEN + 4 <= inode_size)
        .then_some(at)
}

/// Whether an area begins with the magic word. An in-inode area without it simply holds no
/// attributes.
#[must_use]
pub fn has_magic(area: &[u8]) -> bool {
    le32(area, 0) == MAGIC
}

/// Header of an attribute block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHeader {
    /// Number of inodes that share the block.
    pub refcount: u32,
    /// Blocks used, always 1.
    pub blocks: u32,
    /// Hash over the entries.
    pub hash: u32,
    /// crc32c of the block.
    pub checksum: u32,
}

impl BlockHeader {
    /// Reads the header and checks magic and block count. The caller checks the reference count.
    ///
    /// # Errors
    /// [`XattrDefect::Magic`], also for fewer than 1024 bytes; [`XattrDefect::Blocks`].
    pub fn read(block: &[u8]) -> Result<Self, XattrDefect> {
        if block.len() < 1024 || !has_magic(block) {
            return Err(XattrDefect::Magic);
        }
        let header = Self {
            refcount: le32(block, 4),
            blocks: le32(block, 8),
            hash: le32(block, 12),
            checksum: le32(block, 16),
        };
        if header.blocks == 1 { Ok(header) } else { Err(XattrDefect::Blocks) }
    }
}

/// A walk over the entries of an area. Each entry is checked for its own bounds, not against the
/// other entries.
///
/// The walk is bounded: every step advances by at least 16 bytes.
#[derive(Clone, Debug)]
pub struct RawEntries<'a> {
    area: &'a [u8],
    home: Home,
    at: usize,
    done: bool,
}

impl<'a> RawEntries<'a> {
    /// Starts at the first entry. The magic word is not checked.
    #[must_use]
    pub const fn new(area: &'a [u8], home: Home) -> Self {
        Self { area, home, at: home.entries_at(), done: false }
    }

    /// Offset of the end mark, once the walk has ended without an error.
    #[must_use]
    pub const fn position(&self) -> usize {
        self.at
    }

    fn check(&self) -> Result<RawEntry<'a>, XattrDefect> {
        let (area, at) = (self.area, self.at);
        if at + ENTRY_HEADER_LEN > area.len() {
            return Err(XattrDefect::Entry { at });
        }
        let name_len = usize::from(area[at]);
        let name_at = at + ENTRY_HEADER_LEN;
        // The end mark must fit after the entry.
        if name_at + pad4(name_len) + 4 > area.len() {
            return Err(XattrDefect::Entry { at });
        }
        let name = &area[name_at..name_at + name_len];
        let offset = usize::from(u16::from_le_bytes([area[at + 2], area[at + 3]]));
        let (value_inode, value_size) = (le32(area, at + 4), le32(area, at + 8));
        let padded_value = if value_inode == 0 && value_size > 0 {
            let start = self.home.values_from() + offset;
            let padded = start.checked_add(pad4(usize_from_u32(value_size)));
            let inside = padded.filter(|&end| end <= area.len());
            &area[start..inside.ok_or(XattrDefect::Value { at })?]
        } else {
            &[]
        };
        let value =
            if padded_value.is_empty() { padded_value } else { &padded_value[..usize_from_u32(value_size)] };
        if value_size > VALUE_LEN_MAX {
            return Err(XattrDefect::Value { at });
        }
        let hash = le32(area, at + 12);
        Ok(RawEntry {
            at,
            name_index: area[at + 1],
            name,
            value_inode,
            value_size,
            hash,
            value,
            padded_value,
        })
    }
}

impl<'a> Iterator for RawEntries<'a> {
    type Item = Result<RawEntry<'a>, XattrDefect>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        if self.at + 4 > self.area.len() {
            self.done = true;
            return Some(Err(XattrDefect::Entry { at: self.at }));
        }
        if le32(self.area, self.at) == 0 {
            self.done = true;
            return None;
        }
        let entry = self.check();
        match &entry {
            Ok(entry) => self.at += ENTRY_HEADER_LEN + pad4(entry.name.len()),
            Err(_) => self.done = true,
        }
        Some(entry)
    }
}

/// Reads a list and checks its magic, bounds, overlaps, names and duplicates. In a block, also
/// checks the header and the order of the entries.
///
/// # Errors
/// The first [`XattrDefect`].
pub fn parse(area: &[u8], home: Home) -> Result<Vec<RawEntry<'_>>, XattrDefect> {
    match home {
        Home::Inode if !has_magic(area) => return Err(XattrDefect::Magic),
        Home::Inode => {}
        Home::Block => {
            let header = BlockHeader::read(area)?;
            if header.refcount == 0 || header.refcount > REFCOUNT_MAX {
                return Err(XattrDefect::Refcount);
            }
        }
    }
    let entries = parse_entries(area, home)?;
    // The first four bytes of an entry with index 0 and an empty name differ from the end mark only
    // in the value offset. If such an entry were written back with offset 0, it would end the list
    // and hide the entries after it.
    let is_bad =
        |entry: &&RawEntry<'_>| entry.name.contains(&0) || (entry.name.is_empty() && entry.name_index == 0);
    match entries.iter().find(is_bad) {
        Some(entry) => return Err(XattrDefect::Name { at: entry.at }),
        None => check_names(&entries, home)?,
    }
    Ok(entries)
}

/// Reads the entries of a list. Checks the positions of entries and values, but not the header,
/// names or order.
///
/// # Errors
/// [`XattrDefect::Entry`], [`XattrDefect::Value`], [`XattrDefect::Overlap`].
pub fn parse_entries(area: &[u8], home: Home) -> Result<Vec<RawEntry<'_>>, XattrDefect> {
    let mut walk = RawEntries::new(area, home);
    let entries: Vec<RawEntry<'_>> = walk.by_ref().collect::<Result<_, _>>()?;
    check_overlap(&entries, area, walk.position() + 4)?;
    Ok(entries)
}

/// Checks that values start after the end mark and share no bytes.
fn check_overlap(entries: &[RawEntry<'_>], area: &[u8], entries_end: usize) -> Result<(), XattrDefect> {
    let base = area.as_ptr().addr();
    let mut ranges: Vec<(usize, usize, usize)> = entries
        .iter()
        .filter(|entry| !entry.value.is_empty())
        .map(|entry| (entry.value.as_ptr().addr() - base, pad4(entry.value.len()), entry.at))
        .collect();
    ranges.sort_unstable();
    let mut free_from = entries_end;
    for (start, length, at) in ranges {
        if start < free_from {
            return Err(XattrDefect::Overlap { at });
        }
        free_from = start + length;
    }
    Ok(())
}

/// The sort key of a block's entries.
fn sort_key<'a>(entry: &RawEntry<'a>) -> (u8, usize, &'a [u8]) {
    (entry.name_index, entry.name.len(), entry.name)
}

fn check_names(entries: &[RawEntry<'_>], home: Home) -> Result<(), XattrDefect> {
    if home == Home::Block
        && let Some(pair) = entries.windows(2).find(|pair| sort_key(&pair[0]) > sort_key(&pair[1]))
    {
        return Err(XattrDefect::Order { at: pair[1].at });
    }
    let mut sorted: Vec<_> = entries.iter().collect();
    sorted.sort_by_key(|entry| sort_key(entry));
    match sorted.windows(2).find(|pair| sort_key(pair[0]) == sort_key(pair[1])) {
        Some(pair) => Err(XattrDefect::Duplicate { at: pair[1].at }),
        None => Ok(()),
    }
}

fn hash_words(hash: u32, value: &[u8]) -> u32 {
    value.chunks(4).fold(hash, |hash, chunk| {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        hash.rotate_left(16) ^ u32::from_le_bytes(word)
    })
}

/// Hash of an entry whose value is in the area.
#[must_use]
pub fn entry_hash(name: &[u8], value: &[u8]) -> u32 {
    let name_hash = name.iter().fold(0u32, |hash, &byte| hash.rotate_left(5) ^ u32::from(byte));
    hash_words(name_hash, value)
}

/// As [`entry_hash`], with the name as signed characters. Old kernels wrote this hash, so a checker
/// accepts both.
#[must_use]
pub fn entry_hash_signed(name: &[u8], value: &[u8]) -> u32 {
    let widen = |byte: u8| i32::from(byte.cast_signed()).cast_unsigned();
    let name_hash = name.iter().fold(0u32, |hash, &byte| hash.rotate_left(5) ^ widen(byte));
    hash_words(name_hash, value)
}

/// Hash of an entry whose value is kept in an inode of its own; `value_hash` is
/// [`crate::checksum::object::ea_inode_hash`].
#[must_use]
pub fn entry_hash_of_inode_value(name: &[u8], value_hash: u32) -> u32 {
    entry_hash(name, &value_hash.to_le_bytes())
}

/// As [`entry_hash_of_inode_value`] with signed characters.
#[must_use]
pub fn entry_hash_of_inode_value_signed(name: &[u8], value_hash: u32) -> u32 {
    entry_hash_signed(name, &value_hash.to_le_bytes())
}

/// Hash of a block from the hashes of its entries in order; 0 ("do not share") if one of them is 0.
#[must_use]
pub fn block_hash(entry_hashes: impl IntoIterator<Item = u32>) -> u32 {
    let mut block = 0u32;
    for hash in entry_hashes {
        if hash == 0 {
            return 0;
        }
        block = block.rotate_left(16) ^ hash;
    }
    block
}

#[cfg(test)]
mod tests;
