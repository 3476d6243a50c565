//! Plays traces. There are two players: blockyard's engine and the running kernel. A player answers
//! each operation with success or an errno, so that the answers of the two can be compared.

pub mod engine;
pub mod kernel;

use std::collections::BTreeSet;

use anyhow::Result;
use blockyard_trace::{Line, Op};

/// The result of an operation: success, or the errno that a program would see.
pub type Outcome = std::result::Result<(), i32>;

/// A file system that plays traces.
pub trait Player {
    /// Performs one line.
    ///
    /// # Errors
    /// Only when playing cannot continue, as when the trace uses the number of a file that it has
    /// not opened, or when the mount is lost. An operation that the file system refuses is an
    /// [`Outcome`].
    fn play(&mut self, line: &Line) -> Result<Outcome>;
}

/// The numbers (`fd`) of files that could not be opened. Operations on such a number fail with
/// EBADF, as for a program that ignores the failed open, until the trace closes it.
#[derive(Debug, Default)]
struct Refused(BTreeSet<u32>);

impl Refused {
    /// The outcome of an operation on a refused number; `None` for other operations.
    fn outcome(&mut self, op: &Op) -> Option<Outcome> {
        const EBADF: i32 = 9;
        let fd = op.file().filter(|fd| self.0.contains(fd))?;
        if matches!(op, Op::Close { .. }) {
            self.0.remove(&fd);
        }
        Some(Err(EBADF))
    }

    /// Records the outcome of opening a file.
    fn opened(&mut self, fd: u32, outcome: Outcome) {
        if outcome.is_ok() {
            self.0.remove(&fd);
        } else {
            self.0.insert(fd);
        }
    }
}

/// Plays a whole trace and returns the outcome of each line.
///
/// # Errors
/// As [`Player::play`].
pub fn play_all(player: &mut dyn Player, lines: &[Line]) -> Result<Vec<Outcome>> {
    lines.iter().map(|line| player.play(line)).collect()
}
