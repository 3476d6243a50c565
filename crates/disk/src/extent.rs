//! Nodes of extent trees: a 12-byte header, then 12-byte entries. The root is in the inode and has
//! room for four entries. Every other node has a block of its own.

mod node;
mod raw;

pub use node::{Child, Extent, ExtentNode, NodeBounds};
pub use raw::{RawExtent, RawExtentHeader, RawExtentIndex, RawExtentTail};

/// `eh_magic`.
pub const MAGIC: u16 = 0xF30A;

/// Greatest depth of the root. A root of depth 0 is a leaf: it holds extents.
pub const DEPTH_MAX: u16 = 5;

/// Longest written extent in blocks.
pub const WRITTEN_LEN_MAX: u16 = 32_768;

/// Longest unwritten extent in blocks.
pub const UNWRITTEN_LEN_MAX: u16 = 32_767;

/// Entries that fit the root in the inode.
pub const ROOT_CAPACITY: u16 = 4;

/// Entries that fit a node in a block of this size.
#[must_use]
pub const fn block_capacity(block_size: usize) -> u16 {
    crate::num::low16(crate::num::u32_from_usize((block_size - RawExtentHeader::SIZE) / RawExtent::SIZE))
}
