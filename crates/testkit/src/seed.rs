//! The one seed of a test, whether to run in full, and what tests of files draw.

use rand::Rng;

/// The seed of a randomised test: `SEED` from the environment, otherwise `default`; printed so that a failure can be
/// repeated with `SEED=... cargo test name`.
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

/// A range of bytes to do something to: its start and its length, mostly among the first units (blocks, say) of a file, at
/// any byte, few of them long.
pub fn byte_range(random: &mut impl Rng, unit: u64) -> (u64, u64) {
    let at = match random.random_range(0..4) {
        0 => random.random_range(0..4 * unit),
        1 => random.random_range(0..200 * unit),
        _ => random.random_range(0..60 * unit),
    };
    let len = match random.random_range(0..4) {
        0 => random.random_range(1..200),
        1 => random.random_range(1..12 * unit),
        _ => random.random_range(1..2 * unit),
    };
    (at, len)
}
