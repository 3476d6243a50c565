//! Standard output and standard error, as this program writes to them.
//!
//! `print!`, `println!`, `eprint!` and `eprintln!` of this crate are defined here and stand in for those of the standard
//! library, which panic when nobody reads any more: `blockyard put --json ... | head -1` would leave an image half
//! changed. Here a reader that went away has seen enough: the work goes on and the rest of the output is dropped. Any
//! other failure to write standard output (a full disk) is told at the end, with exit code 8. A line on standard error
//! stays one line whatever names it holds: control characters are escaped.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::sync::OnceLock;

/// As in the standard library, but never panics.
macro_rules! print {
    ($($part:tt)*) => { $crate::streams::out(format_args!($($part)*)) };
}

/// As in the standard library, but never panics.
macro_rules! println {
    () => { $crate::streams::out(format_args!("\n")) };
    ($($part:tt)*) => { $crate::streams::out(format_args!("{}\n", format_args!($($part)*))) };
}

/// As in the standard library, but never panics.
macro_rules! eprint {
    ($($part:tt)*) => { $crate::streams::progress(format_args!($($part)*)) };
}

/// Writes one line to standard error; control characters in it are escaped.
macro_rules! eprintln {
    ($($part:tt)*) => { $crate::streams::error_line(&format!($($part)*)) };
}

/// The first failure to write standard output; what comes after it is dropped.
static FAILED: OnceLock<io::Error> = OnceLock::new();

/// Writes to standard output, unless that failed before.
pub(crate) fn out(text: Arguments<'_>) {
    if FAILED.get().is_none()
        && let Err(error) = io::stdout().lock().write_fmt(text)
    {
        // Only the first is kept.
        let _ = FAILED.set(error);
    }
}

/// Writes to standard error, as it is; nobody can be told when that fails.
pub(crate) fn progress(text: Arguments<'_>) {
    let _ = io::stderr().lock().write_fmt(text);
}

/// Writes one line to standard error.
pub(crate) fn error_line(line: &str) {
    let line = one_line(line);
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// The text with its control characters escaped, so that it is one line and does nothing to a terminal.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for letter in text.trim_end().chars() {
        if letter.is_control() {
            line.extend(letter.escape_default());
        } else {
            line.push(letter);
        }
    }
    line
}

/// The exit code of the process: `code`, unless standard output could not be written.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_a_line() {
        assert_eq!(one_line("a\nb\x1b[2J\tü'\n"), r"a\nb\u{1b}[2J\tü'");
    }
}
