//! Which unwritten extents the kernel converted to written ones, and how much other work it had
//! done before in the same line of the trace.

use std::ops::Range;

/// A converted range of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversion {
    /// Line of the trace, from 0.
    pub line: u32,
    /// Number of earlier decisions of that line.
    pub decisions: usize,
    /// Number of ranges that write-back had mapped in that line; a range may need no decision.
    pub pieces: usize,
    /// Number of blocks that a write had allocated immediately in that line, or had failed to
    /// allocate. With bigalloc, most of these blocks lie in a cluster that is already allocated,
    /// and need no decision.
    pub allocated: usize,
    /// Earlier commits and restarted walks of that line.
    pub again: Again,
    /// Inode.
    pub inode: u32,
    /// Logical blocks.
    pub blocks: Range<u32>,
    /// CPU that converted the range.
    pub cpu: u32,
}

/// Commits and restarted walks in a line so far. After a search found no space, the kernel does
/// both to try again. It also commits for other reasons, which are counted too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Again {
    /// Transactions that were closed.
    pub commits: usize,
    /// Walks over a file's folios that write-back restarted.
    pub walks: usize,
}
