//! One verified node of an extent tree.
//!
//! What a node may hold depends on its position: the range of logical blocks that its parent gives
//! it, and the depth left below its parent. [`NodeBounds`] passes both down. A walk that parses
//! each child with the bounds from the child's entry terminates, because the depth falls at each
//! step. The walk finds each logical block at most once, because siblings have disjoint ranges.

use zerocopy::FromBytes;

use super::raw::{RawExtent, RawExtentHeader, RawExtentIndex};
use super::{DEPTH_MAX, MAGIC, ROOT_CAPACITY, block_capacity};
use crate::checksum::verify_extent_block;
use crate::error::{Corruption, CorruptionKind};
use crate::geometry::Geometry;
use crate::num::u32_from_usize;
use crate::units::{BlockCount, BlockNr, LogicalBlock};

/// A run of logical blocks mapped to a run of physical ones; verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First logical block.
    pub logical: LogicalBlock,
    /// Blocks, 1 to 32768.
    pub length: u32,
    /// First physical block.
    pub physical: BlockNr,
    /// Allocated, but reads as zeroes.
    pub unwritten: bool,
}

impl Extent {
    /// The first logical block after the extent. It fits in 32 bits, because no verified extent
    /// maps logical block 2^32 - 1.
    #[must_use]
    pub const fn end(&self) -> u32 {
        self.logical.raw() + self.length
    }

    /// The physical block of a logical one inside the extent.
    #[must_use]
    pub fn physical_at(&self, logical: LogicalBlock) -> BlockNr {
        debug_assert!(logical >= self.logical && logical.raw() < self.end(), "{logical} is outside");
        self.physical + BlockCount::new(u64::from(logical.raw() - self.logical.raw()))
    }
}

/// What a node's position in the tree allows it to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeBounds {
    /// The key that the parent has for this node; `None` for the root.
    key: Option<u32>,
    /// First logical block that belongs to the next node.
    end: u32,
    /// Depth that the node must have; `None` for the root.
    depth: Option<u16>,
}

impl NodeBounds {
    /// Bounds of the root.
    pub const ROOT: Self = Self { key: None, end: u32::MAX, depth: None };

    /// First logical block that belongs to the next node (2^32 - 1 at the right edge).
    #[must_use]
    pub const fn end(&self) -> u32 {
        self.end
    }
}

/// A child as its parent describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Child {
    /// First logical block that the child covers.
    pub logical: LogicalBlock,
    /// Its block.
    pub block: BlockNr,
    /// What it may hold.
    pub bounds: NodeBounds,
}

/// A node of an extent tree that passed every check.
#[derive(Clone, Copy, Debug)]
pub struct ExtentNode<'a> {
    header: RawExtentHeader,
    entries: &'a [RawExtent],
    bounds: NodeBounds,
}

impl<'a> ExtentNode<'a> {
    /// Verifies the root in `i_block`.
    ///
    /// # Errors
    /// An `Extent*` kind with the byte offset.
    pub fn parse_root(geometry: &Geometry, i_block: &'a [u8; 60]) -> Result<Self, Corruption> {
        Self::parse(geometry, i_block, ROOT_CAPACITY, NodeBounds::ROOT)
    }

    /// Verifies the node in a block. `seed` is the checksum seed of the inode, if there is one.
    ///
    /// # Errors
    /// An `Extent*` kind. It has the byte offset, unless the checksum is wrong or there are fewer
    /// than 12 bytes. The caller adds block and inode.
    pub fn parse_block(
        geometry: &Geometry,
        block: &'a [u8],
        bounds: NodeBounds,
        seed: Option<u32>,
    ) -> Result<Self, Corruption> {
        let capacity = block_capacity(geometry.block_size());
        let node = Self::parse(geometry, block, capacity, bounds)?;
        if node.header.eh_max.get() != capacity {
            return Err(Corruption::at_offset(CorruptionKind::ExtentMax, 4));
        }
        verify_extent_block(seed, block)?;
        Ok(node)
    }

    fn parse(
        geometry: &Geometry,
        bytes: &'a [u8],
        capacity: u16,
        bounds: NodeBounds,
    ) -> Result<Self, Corruption> {
        let bad = |kind, offset| Corruption::at_offset(kind, offset);
        let (header, rest) = RawExtentHeader::read_from_prefix(bytes)
            .map_err(|_| Corruption::new(CorruptionKind::ExtentMagic))?;
        let (entries, max) = (header.eh_entries.get(), header.eh_max.get());
        check(header.eh_magic.get() == MAGIC, bad(CorruptionKind::ExtentMagic, 0))?;
        check(max > 0 && max <= capacity, bad(CorruptionKind::ExtentMax, 4))?;
        check(entries <= max, bad(CorruptionKind::ExtentEntries, 2))?;
        let depth = header.eh_depth.get();
        check(depth <= DEPTH_MAX, bad(CorruptionKind::ExtentDepth, 6))?;
        check(
            bounds.depth.is_none_or(|expected| depth == expected),
            bad(CorruptionKind::ExtentDepthOrder, 6),
        )?;
        check(depth == 0 || entries > 0, bad(CorruptionKind::ExtentIndexEmpty, 2))?;
        let (entries, _) = <[RawExtent]>::ref_from_prefix_with_elems(rest, usize::from(entries))
            .map_err(|_| bad(CorruptionKind::ExtentMax, 4))?;
        let node = Self { header, entries, bounds };
        node.check_keys()?;
        if depth == 0 {
            node.check_leaf(geometry)?
        } else {
            node.check_index(geometry)?
        }
        Ok(node)
    }

    /// Checks that the keys increase, that the first key is the parent's key for this node, and
    /// that the last key is below the parent's next key.
    fn check_keys(&self) -> Result<(), Corruption> {
        if let (Some(first), Some(key)) = (self.entries.first(), self.bounds.key) {
            check(first.ee_block.get() == key, entry_bad(CorruptionKind::ExtentParentKey, 0))?;
        }
        for (position, pair) in self.entries.windows(2).enumerate() {
            let increases = pair[0].ee_block.get() < pair[1].ee_block.get();
            check(increases, entry_bad(CorruptionKind::ExtentOrder, position + 1))?;
        }
        match self.entries.last() {
            Some(last) if last.ee_block.get() >= self.bounds.end => {
                let kind = if self.bounds.end == u32::MAX {
                    CorruptionKind::ExtentLogicalWrap
                } else {
                    CorruptionKind::ExtentParentKey
                };
                Err(entry_bad(kind, self.entries.len() - 1))
            }
            _ => Ok(()),
        }
    }

    /// Checks each extent's length, end and physical range. Keys are known to increase.
    fn check_leaf(&self, geometry: &Geometry) -> Result<(), Corruption> {
        for (position, entry) in self.entries.iter().enumerate() {
            let bad = |kind| entry_bad(kind, position);
            check(entry.length() > 0, bad(CorruptionKind::ExtentLength))?;
            let end = u64::from(entry.ee_block.get()) + u64::from(entry.length());
            check(end <= u64::from(u32::MAX), bad(CorruptionKind::ExtentLogicalWrap))?;
            match self.entries.get(position + 1) {
                Some(next) => {
                    let apart = end <= u64::from(next.ee_block.get());
                    check(apart, bad(CorruptionKind::ExtentOrder))?;
                }
                None => check(end <= u64::from(self.bounds.end), bad(CorruptionKind::ExtentParentKey))?,
            }
            let start = entry.start();
            let behind = start.raw() + u64::from(entry.length());
            let inside = geometry.contains(start) && behind <= geometry.blocks_count().raw();
            check(inside, bad(CorruptionKind::ExtentPhysical))?;
        }
        Ok(())
    }

    fn check_index(&self, geometry: &Geometry) -> Result<(), Corruption> {
        for (position, entry) in self.entries.iter().enumerate() {
            let inside = geometry.contains(as_index(entry).leaf());
            check(inside, entry_bad(CorruptionKind::ExtentPhysical, position))?;
        }
        Ok(())
    }

    /// Levels below this node; 0 for a leaf.
    #[must_use]
    pub fn depth(&self) -> u16 {
        self.header.eh_depth.get()
    }

    /// Entries that fit the node.
    #[must_use]
    pub fn capacity(&self) -> u16 {
        self.header.eh_max.get()
    }

    /// Entries in use.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no entry is in use.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// What this node may hold.
    #[must_use]
    pub const fn bounds(&self) -> NodeBounds {
        self.bounds
    }

    /// Extent `position` of a leaf; `None` past the last, or in an index node.
    #[must_use]
    pub fn extent(&self, position: usize) -> Option<Extent> {
        let entry = self.entries.get(position).filter(|_| self.depth() == 0)?;
        Some(Extent {
            logical: LogicalBlock::new(entry.ee_block.get()),
            length: u32::from(entry.length()),
            physical: entry.start(),
            unwritten: entry.is_unwritten(),
        })
    }

    /// Child `position` of an index node; `None` past the last, or in a leaf.
    #[must_use]
    pub fn child(&self, position: usize) -> Option<Child> {
        let entry = self.entries.get(position).filter(|_| self.depth() > 0)?;
        let key = entry.ee_block.get();
        let end = self.entries.get(position + 1).map_or(self.bounds.end, |next| next.ee_block.get());
        Some(Child {
            logical: LogicalBlock::new(key),
            block: as_index(entry).leaf(),
            bounds: NodeBounds { key: Some(key), end, depth: Some(self.depth() - 1) },
        })
    }

    /// The position of the last entry whose key is at most `logical`; `None` if all are above.
    #[must_use]
    pub fn find(&self, logical: LogicalBlock) -> Option<usize> {
        self.entries.partition_point(|entry| entry.ee_block.get() <= logical.raw()).checked_sub(1)
    }
}

fn check(ok: bool, found: Corruption) -> Result<(), Corruption> {
    if ok { Ok(()) } else { Err(found) }
}

fn entry_bad(kind: CorruptionKind, position: usize) -> Corruption {
    Corruption::at_offset(kind, u32_from_usize(RawExtentHeader::SIZE + position * RawExtent::SIZE))
}

/// The same bytes as an index entry; both have 12 bytes and begin with the key.
fn as_index(entry: &RawExtent) -> RawExtentIndex {
    zerocopy::transmute!(*entry)
}
