//! INT and TERM while a command copies: it ends in order at the next piece, and leaves nothing half
//! made.
//!
//! Asked a second time it ends at once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGINT, SIGTERM};

/// The signal that came, or 0. A single word that only says "stop": nothing else is read on its
/// account.
static ASKED: OnceLock<Arc<AtomicUsize>> = OnceLock::new();

/// The work was interrupted by a signal; what was begun is ended or taken back.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("interrupted; what is complete stays")]
pub(crate) struct Interrupted {
    signal: u8,
}

impl Interrupted {
    /// As a shell counts it: 128 and the number of the signal.
    pub(crate) const fn exit_code(self) -> u8 {
        128 + self.signal
    }
}

/// From here on signals are told by [`check`].
///
/// # Errors
/// When the system refuses.
pub(super) fn watch() -> std::io::Result<()> {
    let asked = Arc::clone(ASKED.get_or_init(Arc::default));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal sets the words, the second finds them set.
        let again = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&again))?;
        signal_hook::flag::register(signal, again)?;
        let number = usize::try_from(signal).unwrap_or_default();
        signal_hook::flag::register_usize(signal, Arc::clone(&asked), number)?;
    }
    Ok(())
}

/// Whether to go on.
///
/// # Errors
/// [`Interrupted`] after a signal.
pub(super) fn check() -> Result<(), Interrupted> {
    // Relaxed: the signal comes with nothing that is to be seen behind it.
    match ASKED.get().map_or(0, |asked| asked.load(Ordering::Relaxed)) {
        0 => Ok(()),
        signal => Err(Interrupted { signal: u8::try_from(signal).unwrap_or_default() }),
    }
}
