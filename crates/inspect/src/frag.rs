//! Fragmentation figures from one scan of an image, as the three usual instruments define them.
//!
//! - [`free_space`]: what `e2freefrag` prints about free extents;
//! - [`mod@file`]: what `filefrag` counts for one file (and how that differs from a plain count);
//! - [`table`]: the table that `filefrag -v` prints;
//! - [`defrag`]: the totals and the score of `e4defrag -c`.
//!
//! These modules compute with extents and free runs in blocks, which the caller reads from the
//! image. (Only [`table`] also asks the reader for the geometry and for the position of an inode.)
//! The definitions are those of e2fsprogs 1.47.0, down to their rounding. docs/format-notes.md
//! names the odd ones.

pub mod defrag;
pub mod file;
pub mod free_space;
pub mod table;
