//! What the kernel converted from unwritten, and when: noted among its decisions.

use std::ops::Range;

/// A piece of a file that the kernel converted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversion {
    /// Line of the trace, from 0.
    pub line: u32,
    /// Decisions of that line that came before.
    pub decisions: usize,
    /// Pieces that write-back had mapped in that line; one may need no decision.
    pub pieces: usize,
    /// Blocks that a write had placed at once in that line, or failed to; most need no decision.
    pub placed: usize,
    /// Commits and new walks of that line that came before.
    pub again: Again,
    /// Inode.
    pub inode: u32,
    /// Logical blocks.
    pub blocks: Range<u32>,
    /// CPU on which it was done.
    pub cpu: u32,
}

/// What shows in a line of the trace that the kernel tries again after it found nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Again {
    /// Transactions closed, also for other reasons: what comes later belongs to the next.
    pub commits: usize,
    /// Walks over a file's folios that write-back began anew.
    pub walks: usize,
}
