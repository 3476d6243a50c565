//! Permissions in chmod's syntax: octal, or symbolic changes (`u+x,go-w`, `a=rX`).
//!
//! An image has no umask, so a change without `u`, `g`, `o` or `a` means the same as with `a`.

use std::str::FromStr;

/// A change of permissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ModeChange {
    /// Set these bits. A directory also keeps its set-id bits.
    Octal(u16),
    /// Apply these changes in order.
    Symbolic(Vec<Clause>),
}

/// One change, such as `go-w`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Clause {
    /// Bits of the affected classes, including set-id and sticky bits.
    classes: u16,
    operator: u8,
    letters: String,
}

const USER: u16 = 0o4700;
const GROUP: u16 = 0o2070;
const OTHERS: u16 = 0o0007;
const STICKY: u16 = 0o1000;

impl FromStr for ModeChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is neither octal permissions nor changes such as u+x,go-w");
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            let mode = u16::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777);
            return mode.map(Self::Octal).ok_or_else(wrong);
        }
        let mut clauses = Vec::new();
        for part in text.split(',') {
            let who = part.bytes().take_while(|byte| b"ugoa".contains(byte)).count();
            let classes = part[..who].bytes().fold(0, |all, byte| {
                all | match byte {
                    b'u' => USER,
                    b'g' => GROUP,
                    b'o' => OTHERS,
                    _ => USER | GROUP | OTHERS | STICKY,
                }
            });
            let classes = if who == 0 { USER | GROUP | OTHERS | STICKY } else { classes };
            let mut rest = &part[who..];
            if rest.is_empty() {
                return Err(wrong());
            }
            while let Some(operator) = rest.bytes().next() {
                if !b"+-=".contains(&operator) {
                    return Err(wrong());
                }
                let length = rest[1..].bytes().take_while(u8::is_ascii_alphabetic).count();
                let letters = rest[1..=length].to_owned();
                let is_copy = matches!(letters.as_str(), "u" | "g" | "o");
                if !is_copy && !letters.bytes().all(|letter| b"rwxXst".contains(&letter)) {
                    return Err(wrong());
                }
                rest = &rest[1 + length..];
                clauses.push(Clause { classes, operator, letters });
            }
        }
        Ok(Self::Symbolic(clauses))
    }
}

impl ModeChange {
    /// The permissions after the change. An octal mode keeps the set-id bits of a directory, as in
    /// chmod with up to four digits.
    pub(super) fn applied(&self, mode: u16, is_directory: bool) -> u16 {
        match self {
            Self::Octal(bits) if is_directory => bits | mode & 0o6000,
            Self::Octal(bits) => *bits,
            Self::Symbolic(clauses) => {
                clauses.iter().fold(mode, |mode, clause| clause.applied(mode, is_directory))
            }
        }
    }
}

impl Clause {
    fn applied(&self, mode: u16, is_directory: bool) -> u16 {
        let bits = self.letters.bytes().fold(0, |all, letter| all | letter_bits(letter, mode, is_directory));
        let bits = bits & self.classes;
        match self.operator {
            b'+' => mode | bits,
            b'-' => mode & !bits,
            // `=` keeps the set-id bits of a directory; only `-s` clears them.
            _ if is_directory => mode & !(self.classes & 0o1777) | bits,
            _ => mode & !self.classes | bits,
        }
    }
}

/// The bits of a letter, in all classes.
fn letter_bits(letter: u8, mode: u16, is_directory: bool) -> u16 {
    let everywhere = |bits: u16| bits << 6 | bits << 3 | bits;
    match letter {
        b'r' => 0o444,
        b'w' => 0o222,
        b'x' => 0o111,
        b'X' if is_directory || mode & 0o111 != 0 => 0o111,
        b's' => 0o6000,
        b't' => STICKY,
        b'u' => everywhere(mode >> 6 & 7),
        b'g' => everywhere(mode >> 3 & 7),
        b'o' => everywhere(mode & 7),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The results of chmod (GNU coreutils) with a umask of 0.
    #[test]
    fn changes_are_those_of_chmod() {
        for (text, before, is_directory, after) in [
            ("644", 0o4755, false, 0o644),
            ("0755", 0o2700, true, 0o2755),
            ("u+x,go-w", 0o662, false, 0o740),
            ("a=rX", 0o640, false, 0o444),
            ("a=rX", 0o740, false, 0o555),
            ("a=rX", 0o2640, true, 0o2555),
            ("+t", 0o755, true, 0o1755),
            ("u+s,g+s", 0o755, false, 0o6755),
            ("ug-s", 0o6755, false, 0o755),
            ("g=u", 0o640, false, 0o660),
            ("o=g-w", 0o660, false, 0o664),
            ("-x", 0o755, false, 0o644),
            ("o+s", 0o644, false, 0o644),
            ("=", 0o6755, false, 0),
        ] {
            let change: ModeChange = text.parse().unwrap();
            assert_eq!(change.applied(before, is_directory), after, "{text} of {before:o}");
        }
        for wrong in ["", "8", "17777", "u", "u+q", "z+x", "u+x,", "+ux"] {
            assert!(wrong.parse::<ModeChange>().is_err(), "{wrong}");
        }
    }
}
