//! The header, entries and tail of an extent tree's node as they stand on disk.

use zerocopy::little_endian::{U16, U32};

use crate::layout::on_disk;
use crate::num::{high32, join32, low16, low32};
use crate::units::{BlockNr, LogicalBlock};

on_disk! {
    /// Head of every node.
    pub struct RawExtentHeader[12] {
        /// 0xF30A.
        0 eh_magic: U16,
        /// Entries in use.
        2 eh_entries: U16,
        /// Entries that fit.
        4 eh_max: U16,
        /// Levels below this node.
        6 eh_depth: U16,
        /// Unused.
        8 eh_generation: U32,
    }
}

on_disk! {
    /// Entry of a leaf.
    pub struct RawExtent[12] {
        /// First logical block.
        0 ee_block: U32,
        /// Length in blocks. A value above 32768 means an unwritten extent of that value minus
        /// 32768 blocks.
        4 ee_len: U16,
        /// First physical block, bits 32..48.
        6 ee_start_hi: U16,
        /// First physical block, low half.
        8 ee_start_lo: U32,
    }
}

on_disk! {
    /// Entry of an index node.
    pub struct RawExtentIndex[12] {
        /// First logical block that the child covers.
        0 ei_block: U32,
        /// Block of the child, low half.
        4 ei_leaf_lo: U32,
        /// Block of the child, bits 32..48.
        8 ei_leaf_hi: U16,
        /// Unused.
        10 ei_unused: U16,
    }
}

on_disk! {
    /// Tail of a node that occupies a block. It follows the `eh_max` entry slots. The root node, in
    /// the inode, has no tail.
    pub struct RawExtentTail[4] {
        /// crc32c of the header and all entry slots.
        0 et_checksum: U32,
    }
}

impl RawExtent {
    /// A written or unwritten extent.
    ///
    /// # Panics
    /// When the length is 0, or above 32768 for a written or 32767 for an unwritten extent.
    #[must_use]
    pub fn new(logical: LogicalBlock, length: u16, physical: BlockNr, unwritten: bool) -> Self {
        let longest = if unwritten { super::UNWRITTEN_LEN_MAX } else { super::WRITTEN_LEN_MAX };
        assert!(length > 0 && length <= longest, "extent of {length} blocks");
        let mut extent = Self::zeroed();
        extent.ee_block = U32::new(logical.raw());
        extent.ee_len = U16::new(if unwritten { length + super::WRITTEN_LEN_MAX } else { length });
        extent.set_start(physical);
        extent
    }

    /// First physical block.
    #[must_use]
    pub fn start(&self) -> BlockNr {
        BlockNr::new(join32(u32::from(self.ee_start_hi.get()), self.ee_start_lo.get()))
    }

    /// Sets the first physical block (48 bits).
    pub fn set_start(&mut self, block: BlockNr) {
        self.ee_start_lo = U32::new(low32(block.raw()));
        self.ee_start_hi = U16::new(low16(high32(block.raw())));
    }

    /// Whether the blocks are allocated but read as zeroes.
    #[must_use]
    pub fn is_unwritten(&self) -> bool {
        self.ee_len.get() > super::WRITTEN_LEN_MAX
    }

    /// Length in blocks, without the unwritten mark.
    #[must_use]
    pub fn length(&self) -> u16 {
        let stored = self.ee_len.get();
        if self.is_unwritten() { stored - super::WRITTEN_LEN_MAX } else { stored }
    }
}

impl RawExtentIndex {
    /// An entry for the child in block `child`.
    #[must_use]
    pub fn new(logical: LogicalBlock, child: BlockNr) -> Self {
        let mut index = Self::zeroed();
        index.ei_block = U32::new(logical.raw());
        index.set_leaf(child);
        index
    }

    /// Block of the child.
    #[must_use]
    pub fn leaf(&self) -> BlockNr {
        BlockNr::new(join32(u32::from(self.ei_leaf_hi.get()), self.ei_leaf_lo.get()))
    }

    /// Sets the block of the child (48 bits).
    pub fn set_leaf(&mut self, block: BlockNr) {
        self.ei_leaf_lo = U32::new(low32(block.raw()));
        self.ei_leaf_hi = U16::new(low16(high32(block.raw())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unwritten_mark_leaves_the_length() {
        let written = RawExtent::new(LogicalBlock::new(5), 32_768, BlockNr::new(0x1234_5678_9ABC), false);
        assert_eq!((written.length(), written.is_unwritten()), (32_768, false));
        assert_eq!(written.start(), BlockNr::new(0x1234_5678_9ABC));
        let unwritten = RawExtent::new(LogicalBlock::new(5), 32_767, BlockNr::new(1), true);
        assert_eq!((unwritten.length(), unwritten.is_unwritten()), (32_767, true));
        assert_eq!(unwritten.ee_len.get(), 0xFFFF);
    }
}
