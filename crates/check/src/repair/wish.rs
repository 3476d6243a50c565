//! What a repair may do in addition.

/// A change of something that is not wrong, because the user asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wish {
    /// Write every directory anew: packed, in hash order, with an index where it needs one.
    RebuildDirectories,
    /// Give files with block maps extents.
    BlockMapsToExtents,
    /// Give every file its own blocks on a file system that shares them, and remove that feature.
    UnshareBlocks,
}
