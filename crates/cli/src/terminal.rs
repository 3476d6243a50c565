//! The terminal, where standard output is one: how wide it is, and what may not reach it.
//!
//! Names, labels and content of an image are anybody's bytes: on a terminal, control characters
//! could move the cursor, change the title or answer for the user. So everything that this program
//! prints passes through [`Guard`], which escapes them there, and lets every byte through to files
//! and pipes. Names are escaped before they are printed (`commands/names.rs`), because a line break
//! is no harm in a text but is one in a name.

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

/// Columns when nobody says.
const COLUMNS: usize = 100;

/// Whether escapes are those of JSON.
static IS_JSON: OnceLock<bool> = OnceLock::new();

/// Says whether standard output holds JSON; what is escaped there stays JSON.
pub(crate) fn holds_json(is_json: bool) {
    // Set once, at the start.
    let _ = IS_JSON.set(is_json);
}

/// Whether standard output is a terminal.
pub(crate) fn is_terminal() -> bool {
    static IS_TERMINAL: OnceLock<bool> = OnceLock::new();
    *IS_TERMINAL.get_or_init(|| io::stdout().is_terminal())
}

/// Letters in a line: COLUMNS, else what the terminal of standard output says, else 100.
pub(crate) fn columns() -> usize {
    let wanted = std::env::var("COLUMNS").ok().and_then(|text| text.trim().parse().ok());
    let there = || console::Term::stdout().size_checked().map(|(_, columns)| usize::from(columns));
    wanted.or_else(there).filter(|columns| *columns > 0).unwrap_or(COLUMNS)
}

/// Whether a letter may do more on a terminal than stand there: control characters, and those that
/// turn the direction of writing, by which a name can look like another.
pub(crate) fn is_unsafe(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Bytes as one line of text that does nothing to a terminal: unsafe letters as Rust writes them
/// (`\n`, `\u{1b}`), bytes that are no UTF-8 as `\xff`.
pub(crate) fn escaped(bytes: &[u8]) -> String {
    let mut line = String::with_capacity(bytes.len());
    for part in bytes.utf8_chunks() {
        for letter in part.valid().chars() {
            if is_unsafe(letter) {
                line.extend(letter.escape_default());
            } else {
                line.push(letter);
            }
        }
        line.extend(part.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    line
}

/// Writes to what may be a terminal: there, unsafe letters but line breaks and tabs are escaped.
pub(crate) struct Guard<W> {
    out: W,
    is_terminal: bool,
    /// The first bytes of a letter whose others are yet to come.
    begun: Vec<u8>,
}

impl<W: Write> Guard<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, is_terminal: is_terminal(), begun: Vec::new() }
    }

    /// Writes what is text, escaped; an incomplete letter at the end waits.
    fn write_text(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut all = std::mem::take(&mut self.begun);
        all.extend_from_slice(bytes);
        self.begun = all.split_off(all.len() - incomplete(&all));
        self.out.write_all(text(&all).as_bytes())
    }
}

impl<W: Write> Write for Guard<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_terminal {
            return self.out.write(bytes);
        }
        self.write_text(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let begun = std::mem::take(&mut self.begun);
        self.out.write_all(text(&begun).as_bytes())?;
        self.out.flush()
    }
}

/// How many bytes at the end begin a letter that is not complete.
fn incomplete(bytes: &[u8]) -> usize {
    let tail = (1..=3.min(bytes.len())).find(|&count| bytes[bytes.len() - count] >= 0xC0);
    let Some(count) = tail else { return 0 };
    let wanted = match bytes[bytes.len() - count] {
        0xC0..=0xDF => 2,
        0xE0..=0xEF => 3,
        _ => 4,
    };
    if count < wanted { count } else { 0 }
}

/// As [`escaped`], with line breaks and tabs as they are.
fn text(bytes: &[u8]) -> String {
    let is_json = IS_JSON.get().copied().unwrap_or(false);
    let mut text = String::with_capacity(bytes.len());
    for part in bytes.utf8_chunks() {
        for letter in part.valid().chars() {
            match letter {
                '\n' | '\t' => text.push(letter),
                unsafe_one if is_unsafe(unsafe_one) && is_json => {
                    // All of them lie in the plane that one escape of JSON reaches.
                    text.push_str(&format!("\\u{:04x}", u32::from(unsafe_one)));
                }
                unsafe_one if is_unsafe(unsafe_one) => text.extend(unsafe_one.escape_default()),
                other => text.push(other),
            }
        }
        text.extend(part.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(parts: &[&[u8]], is_terminal: bool) -> Vec<u8> {
        let mut out = Vec::new();
        let mut guard = Guard { out: &mut out, is_terminal, begun: Vec::new() };
        parts.iter().for_each(|part| guard.write_all(part).unwrap());
        guard.flush().unwrap();
        out
    }

    #[test]
    fn names_cannot_break_a_line() {
        assert_eq!(escaped("a\nb\x1b[2J\tü'".as_bytes()), r"a\nb\u{1b}[2J\tü'");
        assert_eq!(escaped(b"\xff\x7f\xc2\x9b31m"), r"\xff\u{7f}\u{9b}31m");
        assert_eq!(escaped("a\u{202e}gpj.exe".as_bytes()), r"a\u{202e}gpj.exe");
    }

    /// Whatever pieces a text comes in, a terminal gets whole letters and no control characters.
    #[test]
    fn a_terminal_gets_no_control_characters() {
        let bytes = "a\n\tü\x1b[2J\u{9b}x€😀".as_bytes();
        for at in 0..=bytes.len() {
            let text = written(&[&bytes[..at], &bytes[at..]], true);
            assert_eq!(String::from_utf8(text).unwrap(), "a\n\tü\\u{1b}[2J\\u{9b}x€😀", "{at}");
        }
        assert_eq!(written(&[b"\xe2\x82"], true), br"\xe2\x82");
        assert_eq!(written(&[bytes, b"\xff"], false), [bytes, b"\xff"].concat(), "pipes get what there is");
    }
}
