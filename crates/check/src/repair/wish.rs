//! What a repair may do besides mending what is wrong.

use crate::{Code, Report};

/// A change of something that is not wrong, because the user asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wish {
    /// Write directories anew: packed, in hash order, with an index where one is needed. Inline
    /// directories, directories with case folding, and lost+found stay as they are.
    RebuildDirectories,
    /// Give files, directories and symbolic links extents instead of block maps.
    BlockMapsToExtents,
    /// Give every file its own blocks, and remove the feature `shared_blocks`.
    UnshareBlocks,
    /// Write anew the extent trees that need fewer blocks than they have, as `e2fsck -fy` does.
    PackExtentTrees,
}

impl Wish {
    /// Whether there may be something to do, judged by what a check found.
    pub(super) fn is_due(self, found: &Report) -> bool {
        let is_loose = || found.findings.iter().any(|finding| finding.code == Code::EXTENT_TREE_LOOSE);
        self != Self::PackExtentTrees || is_loose()
    }
}

/// What an inode gets in place of a shared block that another inode keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shared {
    /// A copy; nothing if there is no space for one.
    #[default]
    Clone,
    /// Nothing: the block is cut from the inode.
    Drop,
}
