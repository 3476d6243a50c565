//! Standard output as a terminal: its width, and what must not reach it.
//!
//! Names, labels and content of an image can hold any bytes. On a terminal, control characters
//! could move the cursor, change the title, or make the terminal send input as if the user had
//! typed it. So the output of this program passes through [`Guard`], which escapes control
//! characters on a terminal, and passes every byte through to files and pipes. Only images,
//! archives and traces on standard output bypass it. Names are escaped before they are printed
//! (`commands/names.rs`), because a line break is harmless in a text but not in a name.

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

/// Columns if neither COLUMNS nor a terminal specifies them.
const COLUMNS: usize = 100;

/// Whether to escape in JSON's syntax.
static IS_JSON: OnceLock<bool> = OnceLock::new();

/// Says whether standard output holds JSON, so that escapes keep it valid.
pub(crate) fn holds_json(is_json: bool) {
    // Set once, at the start.
    let _ = IS_JSON.set(is_json);
}

/// Whether standard output is a terminal.
pub(crate) fn is_terminal() -> bool {
    static IS_TERMINAL: OnceLock<bool> = OnceLock::new();
    *IS_TERMINAL.get_or_init(|| io::stdout().is_terminal())
}

/// Characters per line: COLUMNS, else the width of the terminal on standard output, else 100.
pub(crate) fn columns() -> usize {
    let wanted = std::env::var("COLUMNS").ok().and_then(|text| text.trim().parse().ok());
    let there = || console::Term::stdout().size_checked().map(|(_, columns)| usize::from(columns));
    wanted.or_else(there).filter(|columns| *columns > 0).unwrap_or(COLUMNS)
}

/// Whether a character may affect a terminal beyond its own place: control characters, line and
/// paragraph separators, and those that change the direction of writing, which can make one name
/// look like another.
pub(crate) fn is_unsafe(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Bytes as one line of text that is harmless on a terminal. Unsafe characters are escaped as in
/// Rust (`\n`, `\u{1b}`), bytes that are not UTF-8 as `\xff`.
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

/// A writer. If standard output is a terminal, it escapes bytes that are not UTF-8, and unsafe
/// characters other than line breaks and tabs.
pub(crate) struct Guard<W> {
    out: W,
    is_terminal: bool,
    /// The first bytes of an incomplete character.
    begun: Vec<u8>,
}

impl<W: Write> Guard<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, is_terminal: is_terminal(), begun: Vec::new() }
    }

    /// Writes text, escaped. An incomplete character at the end is kept until its rest comes.
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

/// The number of bytes at the end that begin an incomplete character.
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

/// As [`escaped`], but with line breaks and tabs unchanged, and with JSON's escapes for unsafe
/// characters if standard output holds JSON.
fn text(bytes: &[u8]) -> String {
    let is_json = IS_JSON.get().copied().unwrap_or(false);
    let mut text = String::with_capacity(bytes.len());
    for part in bytes.utf8_chunks() {
        for letter in part.valid().chars() {
            match letter {
                '\n' | '\t' => text.push(letter),
                unsafe_one if is_unsafe(unsafe_one) && is_json => {
                    // All unsafe characters are below U+10000, so one JSON escape is enough.
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

    /// However a text is split, a terminal gets complete characters, and no control characters
    /// except line breaks and tabs.
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
