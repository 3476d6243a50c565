//! Random ranges of files, most of which meet an edge: where a block, cluster, page, folio or group
//! begins, where a map changes its form, where the file ends, where a range that was drawn before
//! began or ended.
//!
//! Offsets drawn evenly almost never lie on such edges, and faults live there. So a draw chooses an
//! edge first and goes -1, 0 or +1 byte from it; a few draws are any byte at all. [`Edges`] says
//! where the edges of a file are, and [`Ranges`] draws. The same source of random numbers gives the
//! same ranges.
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
