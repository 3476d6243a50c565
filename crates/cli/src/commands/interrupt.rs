//! INT, TERM and HUP during a copy: the command stops at the next piece, in an orderly way, and
//! leaves nothing half made.
//!
//! A second signal, of whatever kind, ends the command at once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The signal that arrived, or 0. It only means "stop": no other data depends on it.
static ASKED: OnceLock<Arc<AtomicUsize>> = OnceLock::new();

/// The work was interrupted by a signal; what was begun has been finished or taken back.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("interrupted; what is complete stays")]
pub(crate) struct Interrupted {
    signal: u8,
}

impl Interrupted {
    /// The exit code as shells count it: 128 plus the signal number.
    pub(crate) const fn exit_code(self) -> u8 {
        128 + self.signal
    }
}

/// From here on, [`check`] reports signals.
///
/// # Errors
/// The system refuses.
pub(super) fn watch() -> std::io::Result<()> {
    let asked = Arc::clone(ASKED.get_or_init(Arc::default));
    // One for all signals, so that the second may be of another kind.
    let again = Arc::new(AtomicBool::new(false));
    for signal in taken_signals() {
        // The order matters, because each signal runs these actions in turn. The first signal finds
        // `again` unset, and then sets it. The second signal finds it set, and ends the process.
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&again))?;
        signal_hook::flag::register(signal, Arc::clone(&again))?;
        let number = usize::try_from(signal).unwrap_or_default();
        signal_hook::flag::register_usize(signal, Arc::clone(&asked), number)?;
    }
    Ok(())
}

/// The signals to take: INT, TERM, and HUP unless it is ignored (nohup).
pub(super) fn taken_signals() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored =
        status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    let ignores_hup = ignored.is_some_and(|mask| mask & 1 << (SIGHUP - 1) != 0);
    if ignores_hup { vec![SIGINT, SIGTERM] } else { vec![SIGINT, SIGTERM, SIGHUP] }
}

/// Lets the work continue until a signal arrives.
///
/// # Errors
/// [`Interrupted`] after a signal.
pub(super) fn check() -> Result<(), Interrupted> {
    // Relaxed: no other data comes with the signal.
    match ASKED.get().map_or(0, |asked| asked.load(Ordering::Relaxed)) {
        0 => Ok(()),
        signal => Err(Interrupted { signal: u8::try_from(signal).unwrap_or_default() }),
    }
}
