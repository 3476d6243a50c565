//! Indexed directories: the root and node blocks that lead from a name's hash to the leaf that
//! holds it.
//!
//! Block 0 of an indexed directory is the root, disguised as a linear block that shows only `.` and
//! `..`. A node is disguised as a linear block with one unused entry. A root or node holds a sorted
//! array of (key, logical block). Entry 0 has the key 0, and limit and count lie in place of its
//! key. A leaf is a linear block ([`crate::dirblock`]).
//!
//! A key is a hash, except for bit 0. The hash of each name in a leaf is at least the leaf's key
//! with bit 0 cleared, and below the next leaf's key. If bit 0 of a key is set ("continues"), names
//! with the key's hash may also be in the previous leaf.
//!
//! [`Index::parse`] and [`IndexMut::parse`] check the bounds, order and block numbers of an array.
//! [`Index::checked`] checks only the bounds, for a block that `parse` accepted when it was read.
//! This module reads no blocks: the caller walks the tree and passes the blocks of each step.
//!
//! Invariants of an array that `parse` has accepted:
//!
//! - `limit` is exactly what fits, and `1 <= count <= limit`;
//! - keys never descend;
//! - every block number is in `1..blocks`.

pub use crate::defects::HtreeDefect;

use crate::checksum::object;
use crate::dirblock::{self, DirLayout, Entries, Packer};
use crate::dirhash::{DirHasher, HashVersion};

/// Bytes of one (hash, block) entry.
const ENTRY_LEN: usize = 8;
/// Where the root's info fields start.
const INFO_AT: usize = 24;
/// The only length of the info fields.
const INFO_LEN: u8 = 8;
/// The bit of the root's flags that marks an incompatible format; no such format is defined. The
/// other bits are ignored.
const FLAG_INCOMPATIBLE: u8 = 1;
/// Where entries start in a root and in a node.
const ROOT_ENTRIES_AT: usize = 32;
const NODE_ENTRIES_AT: usize = 8;
/// The bits of an entry's block field that hold the logical block number.
const BLOCK_MASK: u32 = 0x0FFF_FFFF;
/// Key bit: names with this hash may also be in the previous leaf.
pub const CONTINUES: u32 = 1;

/// What kind of index block a buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IndexKind {
    /// Block 0 of the directory.
    Root,
    /// Any other index block.
    Node,
}

impl IndexKind {
    /// Where the entries start.
    #[must_use]
    pub const fn entries_at(self) -> usize {
        match self {
            Self::Root => ROOT_ENTRIES_AT,
            Self::Node => NODE_ENTRIES_AT,
        }
    }

    /// How many entries fit, entry 0 included. With checksums, the last 8 bytes of the block are
    /// not for entries.
    #[must_use]
    pub const fn limit(self, layout: &DirLayout) -> usize {
        let tail = if layout.tail { 8 } else { 0 };
        (layout.block_size - self.entries_at() - tail) / ENTRY_LEN
    }
}

/// The info fields of a root, as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootInfo {
    /// Reserved, zero.
    pub reserved: u32,
    /// Hash version byte.
    pub hash_version: u8,
    /// Bytes of these fields.
    pub info_length: u8,
    /// Index levels below the root: 0 means that the root points to leaves.
    pub indirect_levels: u8,
    /// Flags: bit 0 marks an incompatible format.
    pub unused_flags: u8,
}

impl RootInfo {
    /// How many index levels below the root are allowed.
    #[must_use]
    pub const fn levels_max(largedir: bool) -> u8 {
        if largedir { 2 } else { 1 }
    }

    /// The fields, unchecked; `None` if the block is too short.
    #[must_use]
    pub fn read(block: &[u8]) -> Option<Self> {
        let raw: &[u8; 8] = block.get(INFO_AT..)?.first_chunk()?;
        let [r0, r1, r2, r3, hash_version, info_length, indirect_levels, unused_flags] = *raw;
        let reserved = u32::from_le_bytes([r0, r1, r2, r3]);
        Some(Self { reserved, hash_version, info_length, indirect_levels, unused_flags })
    }

    /// Reads and checks the head of a root block: `.`, `..` and the info fields. The hash version
    /// may be 0..=2 or 6: the caller decides whether it can compute that hash. Of the flags, only
    /// bit 0 is checked: it must be clear.
    ///
    /// # Errors
    /// [`HtreeDefect`] for the first field that is wrong.
    pub fn verify(block: &[u8], layout: &DirLayout, largedir: bool) -> Result<Self, HtreeDefect> {
        if block.len() != layout.block_size || block.len() < 1024 {
            return Err(HtreeDefect::BlockSize);
        }
        let le16 = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
        let dotdot_len = dirblock::decode_rec_len(le16(16), layout.block_size);
        let dots = le16(4) == 12
            && block[6] == 1
            && block[8] == b'.'
            && dotdot_len == layout.block_size - 12
            && block[18] == 2
            && &block[20..22] == b"..";
        if !dots {
            return Err(HtreeDefect::RootDots);
        }
        let info = Self::read(block).ok_or(HtreeDefect::BlockSize)?;
        if info.reserved != 0 {
            return Err(HtreeDefect::Reserved);
        }
        // Versions 3 to 5 are the unsigned forms of 0 to 2. A flag of the superblock selects them,
        // so a root must not store them.
        if !matches!(info.hash_version, 0..=2 | HashVersion::SIPHASH_RAW) {
            return Err(HtreeDefect::HashVersion(info.hash_version));
        }
        if info.info_length != INFO_LEN {
            return Err(HtreeDefect::InfoLength(info.info_length));
        }
        if info.unused_flags & FLAG_INCOMPATIBLE != 0 {
            return Err(HtreeDefect::Flags(info.unused_flags));
        }
        if info.indirect_levels > Self::levels_max(largedir) {
            return Err(HtreeDefect::Levels(info.indirect_levels));
        }
        Ok(info)
    }
}

/// One entry of an index array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// Lower bound of the hashes in the block below. Bit 0 is [`CONTINUES`]. 0 for entry 0.
    pub key: u32,
    /// Logical block in the directory.
    pub block: u32,
}

impl IndexEntry {
    /// Whether names with hash `major` may continue from the previous block into the block of this
    /// entry.
    #[must_use]
    pub const fn continues(&self, major: u32) -> bool {
        self.key & CONTINUES != 0 && self.key & !CONTINUES == major & !CONTINUES
    }
}

/// Position of an array in its block, with limit and count checked.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: usize,
    limit: usize,
    count: usize,
}

impl Span {
    /// Checks position, order and block numbers of the array.
    fn check(block: &[u8], kind: IndexKind, layout: &DirLayout, blocks: u32) -> Result<Self, HtreeDefect> {
        let span = Self::head(block, kind, layout)?;
        let mut previous = 0;
        for index in 0..span.count {
            let entry = span.entry(block, index);
            if entry.key < previous {
                return Err(HtreeDefect::Order(index));
            }
            if entry.block == 0 || entry.block >= blocks {
                return Err(HtreeDefect::Block(index));
            }
            previous = entry.key;
        }
        Ok(span)
    }

    /// Checks everything but the entries: the block's size, the disguise of a node, limit and
    /// count.
    fn head(block: &[u8], kind: IndexKind, layout: &DirLayout) -> Result<Self, HtreeDefect> {
        if block.len() != layout.block_size || block.len() < 1024 {
            return Err(HtreeDefect::BlockSize);
        }
        if kind == IndexKind::Node {
            let rec_len = u16::from_le_bytes([block[4], block[5]]);
            let dressed = block[..4] == [0; 4]
                && dirblock::decode_rec_len(rec_len, layout.block_size) == layout.block_size
                && block[6] == 0;
            if !dressed {
                return Err(HtreeDefect::NodeHeader);
            }
        }
        let start = kind.entries_at();
        let raw_limit = u16::from_le_bytes([block[start], block[start + 1]]);
        let raw_count = u16::from_le_bytes([block[start + 2], block[start + 3]]);
        let (limit, count) = (usize::from(raw_limit), usize::from(raw_count));
        if limit != kind.limit(layout) {
            return Err(HtreeDefect::Limit(raw_limit));
        }
        if count == 0 || count > limit {
            return Err(HtreeDefect::Count(raw_count));
        }
        Ok(Self { start, limit, count })
    }

    #[inline]
    fn entry(&self, block: &[u8], index: usize) -> IndexEntry {
        let at = self.start + index * ENTRY_LEN;
        let word = |at: usize| u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
        let key = if index == 0 { 0 } else { word(at) };
        IndexEntry { key, block: word(at + 4) & BLOCK_MASK }
    }

    /// The last entry whose key is at most `major`. The continuation bit is part of the comparison:
    /// the key `hash | 1` is above `hash`. So the entry leads to the first block that may hold a
    /// name with the hash `major`.
    fn find(&self, block: &[u8], major: u32) -> usize {
        let (mut low, mut high) = (1, self.count);
        while low < high {
            let middle = low.midpoint(high);
            if self.entry(block, middle).key > major {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low - 1
    }
}

/// A checked index array, for lookups.
#[derive(Clone, Copy, Debug)]
pub struct Index<'a> {
    block: &'a [u8],
    span: Span,
}

impl<'a> Index<'a> {
    /// Checks an index block. `blocks` is the number of blocks of the directory.
    ///
    /// # Errors
    /// The first [`HtreeDefect`] of the array; for the head of a root see [`RootInfo::verify`].
    pub fn parse(
        block: &'a [u8],
        kind: IndexKind,
        layout: &DirLayout,
        blocks: u32,
    ) -> Result<Self, HtreeDefect> {
        Ok(Self { block, span: Span::check(block, kind, layout, blocks)? })
    }

    /// Takes an index block whose entries [`Self::parse`] checked when the block was read. Checks
    /// everything but the entries, in constant time. If the entries were not checked, lookups may
    /// miss names. [`Self::below`] still checks the block number that it returns.
    ///
    /// # Errors
    /// The first [`HtreeDefect`] found.
    pub fn checked(block: &'a [u8], kind: IndexKind, layout: &DirLayout) -> Result<Self, HtreeDefect> {
        Ok(Self { block, span: Span::head(block, kind, layout)? })
    }

    /// Number of entries; at least 1.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.span.count
    }

    /// The block that entry `index` points to, in a directory of `blocks` blocks. The index must be
    /// below [`Self::count`].
    ///
    /// # Errors
    /// [`HtreeDefect::Block`] when the entry points to the root or past the directory's end.
    ///
    /// # Panics
    /// When there is no such entry.
    pub fn below(&self, index: usize, blocks: u32) -> Result<u32, HtreeDefect> {
        let block = self.entry(index).block;
        if block == 0 || block >= blocks { Err(HtreeDefect::Block(index)) } else { Ok(block) }
    }

    /// Whether no further entry fits.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.span.count == self.span.limit
    }

    /// The entry at an index below [`Self::count`].
    ///
    /// # Panics
    /// When there is no such entry.
    #[inline]
    #[must_use]
    pub fn entry(&self, index: usize) -> IndexEntry {
        assert!(index < self.span.count);
        self.span.entry(self.block, index)
    }

    /// All entries in order.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = IndexEntry> + use<'a> {
        let (block, span) = (self.block, self.span);
        (0..span.count).map(move |index| span.entry(block, index))
    }

    /// The index of the entry to follow for a hash.
    #[inline]
    #[must_use]
    pub fn find(&self, major: u32) -> usize {
        self.span.find(self.block, major)
    }
}

/// A checked index array, to edit.
#[derive(Debug)]
pub struct IndexMut<'a> {
    block: &'a mut [u8],
    span: Span,
}

impl<'a> IndexMut<'a> {
    /// Checks an index block. `blocks` is the number of blocks of the directory.
    ///
    /// # Errors
    /// As [`Index::parse`].
    pub fn parse(
        block: &'a mut [u8],
        kind: IndexKind,
        layout: &DirLayout,
        blocks: u32,
    ) -> Result<Self, HtreeDefect> {
        let span = Span::check(block, kind, layout, blocks)?;
        Ok(Self { block, span })
    }

    /// The array for lookups.
    #[must_use]
    pub fn as_index(&self) -> Index<'_> {
        Index { block: self.block, span: self.span }
    }

    /// Inserts (key, block) after the entry at `index`; `false` when the array is full.
    ///
    /// # Panics
    /// When there is no such entry, the key would not be in order there, or the block number needs
    /// more than 28 bits.
    #[must_use]
    pub fn insert_after(&mut self, index: usize, entry: IndexEntry) -> bool {
        let Span { start, limit, count } = self.span;
        assert!(index < count && entry.block & !BLOCK_MASK == 0);
        assert!(entry.key >= self.span.entry(self.block, index).key);
        assert!(index + 1 == count || entry.key <= self.span.entry(self.block, index + 1).key);
        if count == limit {
            return false;
        }
        let at = start + (index + 1) * ENTRY_LEN;
        self.block.copy_within(at..start + count * ENTRY_LEN, at + ENTRY_LEN);
        write_entry(self.block, at, entry);
        self.set_count(count + 1);
        true
    }

    /// Moves the upper half of the entries to `node`, which becomes an index node. Returns the key
    /// that leads to `node`. The caller inserts that key in the level above.
    ///
    /// # Errors
    /// [`HtreeDefect::Count`] with a single entry, [`HtreeDefect::BlockSize`] when `node` is not
    /// one block; nothing is changed then.
    pub fn split_into(&mut self, node: &mut [u8], layout: &DirLayout) -> Result<u32, HtreeDefect> {
        let count = self.span.count;
        if count < 2 {
            return Err(HtreeDefect::Count(1));
        }
        if node.len() != layout.block_size {
            return Err(HtreeDefect::BlockSize);
        }
        let kept = count / 2;
        let key = self.span.entry(self.block, kept).key;
        let from = self.span.start + kept * ENTRY_LEN;
        let moved = self.block[from..self.span.start + count * ENTRY_LEN].to_vec();
        fill_node(node, layout, &moved);
        self.block[from..self.span.start + count * ENTRY_LEN].fill(0);
        self.set_count(kept);
        Ok(key)
    }

    fn set_count(&mut self, count: usize) {
        let raw = u16::try_from(count).expect("count <= limit, and limit fits its 16-bit field");
        let at = self.span.start + 2;
        self.block[at..at + 2].copy_from_slice(&raw.to_le_bytes());
        self.span.count = count;
    }
}

fn write_entry(block: &mut [u8], at: usize, entry: IndexEntry) {
    block[at..at + 4].copy_from_slice(&entry.key.to_le_bytes());
    block[at + 4..at + 8].copy_from_slice(&entry.block.to_le_bytes());
}

fn write_limit_count(block: &mut [u8], kind: IndexKind, layout: &DirLayout, count: usize) {
    let narrow = |n: usize| u16::try_from(n).expect("a block of 64 KiB holds 8192 entries").to_le_bytes();
    let at = kind.entries_at();
    block[at..at + 2].copy_from_slice(&narrow(kind.limit(layout)));
    block[at + 2..at + 4].copy_from_slice(&narrow(count));
}

/// Makes `node` an index node with these entries. Limit and count replace the first entry's key.
fn fill_node(node: &mut [u8], layout: &DirLayout, entries: &[u8]) {
    node.fill(0);
    let rec_len = u16::try_from(layout.block_size).unwrap_or(u16::MAX);
    node[4..6].copy_from_slice(&rec_len.to_le_bytes());
    node[NODE_ENTRIES_AT..NODE_ENTRIES_AT + entries.len()].copy_from_slice(entries);
    write_limit_count(node, IndexKind::Node, layout, entries.len() / ENTRY_LEN);
}

/// Makes `root` an index root with one leaf.
///
/// # Panics
/// When the buffer is not one block.
pub fn init_root(root: &mut [u8], layout: &DirLayout, own: u32, parent: u32, stored_version: u8, leaf: u32) {
    let linear = DirLayout { tail: false, ..*layout };
    dirblock::init_dots(root, linear, own, parent);
    root[INFO_AT..ROOT_ENTRIES_AT].copy_from_slice(&[0, 0, 0, 0, stored_version, INFO_LEN, 0, 0]);
    write_entry(root, ROOT_ENTRIES_AT, IndexEntry { key: 0, block: leaf });
    write_limit_count(root, IndexKind::Root, layout, 1);
}

/// Turns `root`, the only block of a linear directory, into an index root that points to `leaf`.
/// The entries other than `.` and `..` move to `leaf`, with the slack between them. `leaf_block` is
/// the logical block of `leaf`.
///
/// # Errors
/// A defect of the linear block, or [`HtreeDefect::BlockSize`] when `leaf` is not one block; both
/// buffers are then unchanged.
pub fn convert(
    root: &mut [u8],
    leaf: &mut [u8],
    layout: &DirLayout,
    stored_version: u8,
    leaf_block: u32,
) -> Result<(), HtreeDefect> {
    if leaf.len() != layout.block_size {
        return Err(HtreeDefect::BlockSize);
    }
    let dots = dirblock::dots(root, *layout)?;
    let mut places = None;
    for entry in Entries::new(root, *layout)?.skip(2) {
        let at = entry?.at;
        places = Some((places.map_or(at, |(first, _)| first), at));
    }
    dirblock::init_empty(leaf, *layout);
    if let Some((first, last)) = places {
        dirblock::copy_entries(root, (first, last), leaf, *layout);
    }
    init_root(root, layout, dots.own, dots.parent, stored_version, leaf_block);
    Ok(())
}

/// Adds a level: the root's entries move to `node` (logical block `node_block`), and the root gets
/// a single entry that points to `node`.
///
/// # Errors
/// [`HtreeDefect::Levels`] when the features allow no more levels, a defect of the root, or
/// [`HtreeDefect::BlockSize`] when `node` is not one block; nothing is changed then.
pub fn add_level(
    root: &mut [u8],
    node: &mut [u8],
    layout: &DirLayout,
    largedir: bool,
    node_block: u32,
    blocks: u32,
) -> Result<(), HtreeDefect> {
    let info = RootInfo::verify(root, layout, largedir)?;
    let span = Span::check(root, IndexKind::Root, layout, blocks)?;
    if node.len() != layout.block_size {
        return Err(HtreeDefect::BlockSize);
    }
    if info.indirect_levels >= RootInfo::levels_max(largedir) {
        return Err(HtreeDefect::Levels(info.indirect_levels + 1));
    }
    let entries = span.start..span.start + span.count * ENTRY_LEN;
    let moved = root[entries.clone()].to_vec();
    fill_node(node, layout, &moved);
    root[entries].fill(0);
    root[INFO_AT + 6] = info.indirect_levels + 1;
    write_entry(root, ROOT_ENTRIES_AT, IndexEntry { key: 0, block: node_block });
    write_limit_count(root, IndexKind::Root, layout, 1);
    Ok(())
}

/// Splits a leaf by hash: the names with the higher hashes move to `new_leaf`. Returns the key that
/// leads to `new_leaf`.
///
/// The split aims at moving half of `leaf`, counted in the bytes that entries take up, slack
/// included. Then both leaves are packed without slack between entries. The key has [`CONTINUES`]
/// set if names with the key's hash stay in `leaf`.
///
/// # Errors
/// [`HtreeDefect::Leaf`] when there are fewer than two names or `new_leaf` is not one block, or a
/// defect of `leaf`; both are unchanged then.
pub fn split_leaf(
    leaf: &mut [u8],
    new_leaf: &mut [u8],
    layout: &DirLayout,
    hasher: &DirHasher,
) -> Result<u32, HtreeDefect> {
    let old = leaf.to_vec();
    let mut map = Vec::new();
    for entry in Entries::new(&old, *layout)? {
        let entry = entry?;
        if entry.inode != 0 {
            map.push((hasher.hash(entry.name).major, entry));
        }
    }
    if map.len() < 2 || new_leaf.len() != layout.block_size {
        return Err(HtreeDefect::Leaf);
    }
    map.sort_by_key(|(hash, _)| *hash);
    let upper = map.split_off(split_point(&map, layout.block_size));
    let key = upper[0].0;
    let continues = map.last().is_some_and(|(hash, _)| *hash == key);
    let mut packer = Packer::new(new_leaf, *layout);
    let fits = upper.iter().all(|(_, entry)| packer.push(entry.inode, entry.file_type, entry.name));
    map.sort_by_key(|(_, entry)| entry.at);
    let mut packer = Packer::new(leaf, *layout);
    let fits = fits && map.iter().all(|(_, entry)| packer.push(entry.inode, entry.file_type, entry.name));
    debug_assert!(fits, "parts of a block fit in a block");
    Ok(key | u32::from(continues))
}

/// How many of the entries, sorted by hash, stay in the lower part: at least one, and not all. As
/// in Linux (observed on 6.18) the weight of an entry is its `rec_len`, which includes the slack
/// that removed names left behind it.
fn split_point(map: &[(u32, dirblock::Entry<'_>)], block_size: usize) -> usize {
    let mut size = 0;
    for (index, (_, entry)) in map.iter().enumerate().rev() {
        if size + entry.rec_len / 2 > block_size / 2 {
            return index + 1;
        }
        size += entry.rec_len;
    }
    map.len() / 2
}

/// Offset of the tail of an index block, right after the last entry that fits. The second word of
/// the tail is the checksum.
fn checksum_at(kind: IndexKind, layout: &DirLayout) -> usize {
    kind.entries_at() + kind.limit(layout) * ENTRY_LEN
}

/// The crc32c that an index block should hold, and the stored one; `inode_seed` is the checksum
/// seed of the directory's inode.
///
/// # Errors
/// [`HtreeDefect::BlockSize`] if the bytes are not one block, [`HtreeDefect::Limit`] if
/// the limit is wrong or leaves no room for a checksum, [`HtreeDefect::Count`] if the count is
/// above the limit.
pub fn checksums(
    block: &[u8],
    kind: IndexKind,
    layout: &DirLayout,
    inode_seed: u32,
) -> Result<(u32, u32), HtreeDefect> {
    if block.len() != layout.block_size || block.len() < 1024 {
        return Err(HtreeDefect::BlockSize);
    }
    let start = kind.entries_at();
    let raw_limit = u16::from_le_bytes([block[start], block[start + 1]]);
    let raw_count = u16::from_le_bytes([block[start + 2], block[start + 3]]);
    if usize::from(raw_limit) != kind.limit(layout) {
        return Err(HtreeDefect::Limit(raw_limit));
    }
    if raw_count > raw_limit {
        return Err(HtreeDefect::Count(raw_count));
    }
    let at = checksum_at(kind, layout);
    let sum = object::htree(inode_seed, block, start).ok_or(HtreeDefect::Limit(raw_limit))?;
    let stored = u32::from_le_bytes([block[at + 4], block[at + 5], block[at + 6], block[at + 7]]);
    Ok((sum, stored))
}

/// Writes the checksum of an index block.
///
/// # Errors
/// As [`checksums`].
pub fn set_checksum(
    block: &mut [u8],
    kind: IndexKind,
    layout: &DirLayout,
    inode_seed: u32,
) -> Result<(), HtreeDefect> {
    let (sum, _) = checksums(block, kind, layout, inode_seed)?;
    let at = checksum_at(kind, layout);
    block[at + 4..at + 8].copy_from_slice(&sum.to_le_bytes());
    Ok(())
}

#[cfg(test)]
mod tests;
