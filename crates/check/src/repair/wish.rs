//! What a repair may do besides.

/// Something that is not wrong and is changed where a user asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wish {
    /// Write every directory anew: packed, in the order of hashes, with an index where it needs
    /// one.
    RebuildDirectories,
    /// Give files with block maps extents.
    BlockMapsToExtents,
    /// Give every file its own blocks on a file system that shares them, and take that feature off.
    UnshareBlocks,
}
