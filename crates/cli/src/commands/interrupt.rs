//! INT, TERM and HUP during a copy, a build or an export: the command stops after the current piece
//! of work. It leaves no incomplete file, except with `build --keep-partial`.
//!
//! A second of these signals ends the command at once, unless it comes within [`APART`] of the
//! first.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// The number of the latest signal, or 0 if none arrived.
static ASKED: OnceLock<Arc<AtomicUsize>> = OnceLock::new();

/// The work was interrupted by a signal. Anything begun has been finished or undone.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted {
    signal: u8,
}

impl Interrupted {
    /// The exit code as shells count it: 128 plus the signal number.
    pub(crate) const fn exit_code(self) -> u8 {
        128 + self.signal
    }
}

/// A second signal counts only if it comes at least this time after the first. Programs such as
/// timeout send one signal twice: to the command, and to its process group.
const APART: Duration = Duration::from_millis(500);

/// Catches the signals from now on, so that [`check`] reports them.
///
/// # Errors
/// The system refuses a signal handler, or the thread that waits for a second signal.
pub(super) fn watch() -> std::io::Result<()> {
    let asked = Arc::<AtomicUsize>::default();
    if ASKED.set(Arc::clone(&asked)).is_err() {
        return Ok(());
    }
    for signal in taken_signals() {
        let number = usize::try_from(signal).unwrap_or_default();
        signal_hook::flag::register_usize(signal, Arc::clone(&asked), number)?;
    }
    let mut signals = Signals::new(taken_signals())?;
    let wait = move || {
        let mut first: Option<Instant> = None;
        for signal in signals.forever() {
            if first.get_or_insert_with(Instant::now).elapsed() >= APART {
                std::process::exit(128 + signal);
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).map(drop)
}

/// The signals to catch: INT, TERM, and HUP unless it is ignored (nohup).
pub(super) fn taken_signals() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored =
        status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    let ignores_hup = ignored.is_some_and(|mask| mask & 1 << (SIGHUP - 1) != 0);
    if ignores_hup { vec![SIGINT, SIGTERM] } else { vec![SIGINT, SIGTERM, SIGHUP] }
}

/// Fails once a signal has arrived, so that the caller ends the work.
///
/// # Errors
/// [`Interrupted`] after a signal.
pub(super) fn check() -> Result<(), Interrupted> {
    // Relaxed is enough: the number of the signal publishes no other data.
    match ASKED.get().map_or(0, |asked| asked.load(Ordering::Relaxed)) {
        0 => Ok(()),
        signal => Err(Interrupted { signal: u8::try_from(signal).unwrap_or_default() }),
    }
}
