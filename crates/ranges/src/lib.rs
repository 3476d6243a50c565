//! Random ranges of files. Most of them begin or end at an edge or next to one. The edges are:
//!
//! - the beginnings of blocks, clusters, pages, folios and groups
//! - offsets at which the file's map changes its form, as where another level of indirect blocks
//!   begins
//! - offsets at which numbers of 32 bits overflow
//! - the end of the file, and the largest offset that the caller allows
//! - the beginnings and ends of earlier ranges
//!
//! Bugs show at edges, and uniformly drawn offsets almost never hit one. So a draw first chooses an
//! edge, and then the byte before, at or after it. A few draws ignore the edges. [`Edges`] says
//! where the edges of a file are, and [`Ranges`] draws. The same random numbers give the same
//! ranges.
//!
//! ```
//! use blockyard_ranges::{Edges, Ranges};
//! use rand::SeedableRng;
//!
//! let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(1);
//! let mut ranges = Ranges::new(Edges::extents(4096).up_to(1 << 20));
//! let size = 10_000;
//! let range = ranges.range(&mut rng, size, 65_536);
//! assert!(range.start < range.end && range.end - range.start <= 65_536);
//! ```

#![forbid(unsafe_code)]

mod draw;
mod edges;

pub use draw::Ranges;
pub use edges::Edges;
