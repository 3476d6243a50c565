//! Standard output and standard error of this program.
//!
//! This crate defines its own `print!`, `println!` and `eprintln!`. Those of the standard library
//! panic when the reader of a pipe has gone away, so `blockyard put --json ... | head -1` would
//! leave an image half changed. With the macros of this crate, the work continues, and the rest of
//! the output is dropped, because such a reader has seen enough. Any other failure to write
//! standard output (such as a full disk) is reported at the end, with exit code 8.
//!
//! A line on standard error stays one line whatever names it holds, because control characters are
//! escaped. On a terminal they are escaped in standard output too (`terminal.rs`).

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::sync::OnceLock;

use crate::terminal::{self, Guard};

/// As in the standard library, but never panics.
macro_rules! print {
    ($($part:tt)*) => { $crate::streams::out(format_args!($($part)*)) };
}

/// As in the standard library, but never panics.
macro_rules! println {
    () => { $crate::streams::out(format_args!("\n")) };
    ($($part:tt)*) => { $crate::streams::out(format_args!("{}\n", format_args!($($part)*))) };
}

/// Writes one line to standard error, with control characters escaped.
macro_rules! eprintln {
    ($($part:tt)*) => { $crate::streams::error_line(&format!($($part)*)) };
}

/// The first failure to write standard output. Later output is dropped.
static FAILED: OnceLock<io::Error> = OnceLock::new();

/// Writes to standard output, unless an earlier write failed.
pub(crate) fn out(text: Arguments<'_>) {
    if FAILED.get().is_none()
        && let Err(error) = write_guarded(text)
    {
        // Only the first failure is kept.
        let _ = FAILED.set(error);
    }
}

fn write_guarded(text: Arguments<'_>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if !terminal::is_terminal() {
        return out.write_fmt(text);
    }
    let mut guard = Guard::new(out);
    guard.write_fmt(text)?;
    guard.flush()
}

/// Writes one line to standard error. A failure cannot be reported anywhere.
pub(crate) fn error_line(line: &str) {
    let line = terminal::escaped(line.trim_end().as_bytes());
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// The exit code of the process: `code`, unless standard output could not be written. A reader that
/// is gone does not count as such a failure.
pub(crate) fn finish(code: ExitCode) -> ExitCode {
    if let Err(error) = io::stdout().lock().flush() {
        let _ = FAILED.set(error);
    }
    match FAILED.get() {
        Some(error) if error.kind() != ErrorKind::BrokenPipe => {
            eprintln!("blockyard: standard output: {error}");
            ExitCode::from(crate::commands::EXIT_OPERATIONAL)
        }
        _ => code,
    }
}
