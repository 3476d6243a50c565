//! The one seed of a test, and whether to run in full.

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
