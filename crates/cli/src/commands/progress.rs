//! One line on a terminal that says how far a command is, once it takes longer than a second.
//!
//! Drawn between two steps of the work itself, a few times a second: no thread, and nothing is drawn over other output.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use super::Output;

/// Work shorter than this shows nothing.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time between two lines.
const PAUSE: Duration = Duration::from_millis(200);

/// Takes its line away when dropped.
pub(super) struct Progress {
    /// Nothing to draw on, or it was not wanted.
    is_off: bool,
    next: Instant,
    is_drawn: bool,
}

impl Progress {
    /// Draws where standard error is a terminal, but not with --quiet, and not between JSON.
    pub(super) fn new(output: &Output) -> Self {
        let is_off = output.quiet || output.json || !std::io::stderr().is_terminal();
        Self { is_off, next: Instant::now() + PATIENCE, is_drawn: false }
    }

    /// Shows a text, if it is time.
    pub(super) fn show(&mut self, text: impl FnOnce() -> String) {
        if self.is_off {
            return;
        }
        let now = Instant::now();
        if now >= self.next {
            self.next = now + PAUSE;
            self.is_drawn = true;
            eprint!("\r\x1b[K{}", text());
            let _ = std::io::stderr().flush();
        }
    }

    /// Takes the line away, before something else is printed.
    pub(super) fn clear(&mut self) {
        if self.is_drawn {
            self.is_drawn = false;
            eprint!("\r\x1b[K");
            let _ = std::io::stderr().flush();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
