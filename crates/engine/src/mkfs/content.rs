//! What mkfs must know about the content of a new file system: the files that it does not make
//! itself.

use std::ops::Range;

/// What a new file system holds besides the files that mkfs itself makes, such as the root
/// directory, lost+found and the journal.
#[derive(Clone, Debug, Default)]
pub struct Content {
    /// Blocks taken from the free ones, whole clusters.
    pub blocks: Vec<Range<u64>>,
    /// How many inodes the content takes, from [`super::Blank::first_inode`] on.
    pub inodes: u32,
    /// How many of these inodes are directories, by group. The root directory and lost+found are
    /// not counted here.
    pub directories: Vec<u32>,
    /// Whether a file has 2 GiB or more.
    pub has_large_file: bool,
}
