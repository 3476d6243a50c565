//! The seed of a test, whether to run it in full, and random ranges for tests of files.

use blockyard_ranges::{Edges, Ranges};
use rand::Rng;

/// The seed of a randomised test: `SEED` from the environment, otherwise `default`. Prints the
/// seed, so that a failure can be repeated with `SEED=... cargo test name`.
#[must_use]
pub fn seed(default: u64) -> u64 {
    let seed = std::env::var("SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    println!("SEED={seed}");
    seed
}

/// Whether the full matrices were asked for (`BLOCKYARD_FULL=1`).
#[must_use]
pub fn full_matrix() -> bool {
    std::env::var_os("BLOCKYARD_FULL").is_some_and(|value| value == "1")
}

/// A range for an operation on a file of `size` bytes: its start and its length in bytes. `unit` is
/// the block size, for example. The range is at most 12 units long, and ends at most one byte
/// beyond the first 200 units. Most ranges begin or end where a unit or the file begins or ends, or
/// one byte before or after that.
pub fn byte_range(random: &mut impl Rng, unit: u64, size: u64) -> (u64, u64) {
    let mut ranges = Ranges::new(Edges::extents(unit).up_to(200 * unit));
    let longest = if random.random_range(0..4) == 0 { 12 * unit } else { 2 * unit };
    let range = ranges.range(random, size, longest);
    (range.start, range.end - range.start)
}
