//! Playing a trace: whoever plays answers each operation with success or an errno, and both sides are compared.

pub mod engine;
pub mod kernel;

use anyhow::Result;

use super::Line;

/// How an operation ended: success, or the errno that a program would see.
pub type Outcome = std::result::Result<(), i32>;

/// A file system that plays traces.
pub trait Player {
    /// Carries out one line.
    ///
    /// # Errors
    /// Only when playing cannot go on at all (a trace that uses a number it never opened, a lost mount); an operation
    /// that the file system refuses is an [`Outcome`].
    fn play(&mut self, line: &Line) -> Result<Outcome>;
}

/// Plays a whole trace and gives the outcome of each line.
///
/// # Errors
/// As [`Player::play`].
pub fn play_all(player: &mut dyn Player, lines: &[Line]) -> Result<Vec<Outcome>> {
    lines.iter().map(|line| player.play(line)).collect()
}
