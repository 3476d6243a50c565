//! Scaled published numbers, and draws from the normal distribution.

use blockyard_disk::num::count_as_f64;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// Draws from the standard normal distribution (Box and Muller).
pub(crate) fn normal(random: &mut ChaCha8Rng) -> f64 {
    let (u, v): (f64, f64) = (random.random::<f64>().max(1e-300), random.random());
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

/// A scaled published number, rounded down.
#[must_use]
pub fn scaled(published: u64, scale: f64) -> u64 {
    whole(count_as_f64(published) * scale)
}

/// A non-negative number, rounded down.
#[allow(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts and sizes stay below 2^53 and are not negative"
)]
pub(crate) fn whole(value: f64) -> u64 {
    value as u64
}
