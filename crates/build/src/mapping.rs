//! How an inode finds its blocks: by extents, or by the block map of ext2 and ext3.

use crate::block_map::{self, BlockMap};
use blockyard_engine::mkfs::{ExtentTree, Run};
use std::ops::Range;

/// The kind of mapping that a file system has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mapping {
    /// Extent trees (`extents`).
    Extents,
    /// Block maps.
    Blocks,
}

impl Mapping {
    /// Blocks outside the inode that the mapping of a file needs, for data in `logical` that is
    /// split into `extents` pieces.
    pub(crate) fn nodes_for(self, logical: &[Range<u64>], extents: usize, block_size: u64) -> usize {
        match self {
            Self::Extents => ExtentTree::nodes_for(extents, block_size),
            Self::Blocks => block_map::nodes_for(logical, block_size.trailing_zeros()),
        }
    }
}

/// The mapping of one inode.
#[derive(Debug)]
pub(crate) enum Mapped {
    Extents(ExtentTree),
    Blocks(BlockMap),
}

impl Mapped {
    /// The mapping of these runs. The mapping's own blocks go to the places in `nodes`.
    pub(crate) fn of(runs: &[Run], nodes: &[u64], how: Mapping, block_size: u64) -> Self {
        match how {
            Mapping::Extents => Self::Extents(ExtentTree::of(runs.to_vec(), nodes, block_size)),
            Mapping::Blocks => Self::Blocks(BlockMap::of(runs, nodes, block_size.trailing_zeros())),
        }
    }

    /// The mapping's own blocks with their content. `seed` is the checksum seed of the inode.
    pub(crate) fn blocks(&self, block_size: u64, seed: Option<u32>) -> Vec<(u64, Vec<u8>)> {
        match self {
            Self::Extents(tree) => tree.blocks(block_size, seed),
            // Indirect blocks have no checksums.
            Self::Blocks(map) => map.blocks().collect(),
        }
    }
}
