//! What mkfs must know about the content of a new file system, apart from the files that every new
//! file system has.

use std::ops::Range;

/// What a new file system holds besides the files that every new file system has.
#[derive(Clone, Debug, Default)]
pub struct Content {
    /// Blocks taken from the free ones, whole clusters.
    pub blocks: Vec<Range<u64>>,
    /// Inodes taken, from the first one on.
    pub inodes: u32,
    /// Directories among them, by group; the root directory and lost+found are counted already.
    pub directories: Vec<u32>,
    /// Whether a file has 2 GiB or more.
    pub has_large_file: bool,
}
