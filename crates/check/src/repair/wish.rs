//! What a repair may do besides mending what is wrong.

/// A change of something that is not wrong, because the user asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wish {
    /// Write directories anew: packed, in hash order, with an index where one is needed. Inline
    /// directories and directories with case folding stay as they are.
    RebuildDirectories,
    /// Give files, directories and symbolic links extents instead of block maps.
    BlockMapsToExtents,
    /// Give every file its own blocks on a file system that shares them, and remove that feature.
    UnshareBlocks,
}
