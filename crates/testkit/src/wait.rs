//! Waits for other processes.

use std::time::{Duration, Instant};

/// Longest wait: far beyond what a loaded machine needs, so that a test that hangs ends with a
/// message.
const LONGEST: Duration = Duration::from_secs(30);
/// Time between two checks.
const PAUSE: Duration = Duration::from_millis(20);

/// Waits until `holds` returns true.
///
/// # Panics
/// With `what` when `holds` still returns false after half a minute.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LONGEST, "{what}: not within {LONGEST:?}");
        std::thread::sleep(PAUSE);
    }
}
