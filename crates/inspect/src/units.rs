//! Figures for people: sizes, times and rates with their unit, counts with their noun.

/// Bytes in a binary unit with about three digits: `512 bytes`, `4.00 KiB`, `1.79 GiB`; `-` for a
/// value that is not a number.
#[must_use]
pub fn bytes(count: f64) -> String {
    scaled(count, 1024.0, &["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"])
}

/// As [`bytes`], for a count of KiB.
#[must_use]
pub fn kib(count: f64) -> String {
    bytes(count * 1024.0)
}

/// As [`bytes`], per second, for a rate in MiB per second.
#[must_use]
pub fn mib_per_second(rate: f64) -> String {
    match bytes(rate * 1024.0 * 1024.0) {
        unknown if unknown == "-" => unknown,
        known => known + "/s",
    }
}

/// A time that is given in microseconds: `400 ns`, `12.3 µs`, `4.00 ms`, `1.20 s`.
#[must_use]
pub fn micros(time: f64) -> String {
    scaled(time * 1e3, 1000.0, &["ns", "µs", "ms", "s"])
}

/// A time that a person waits: `4.2 s`, `3 min 20 s`, `2 h 5 min`.
#[must_use]
pub fn patience(time: std::time::Duration) -> String {
    let seconds = time.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, _) => format!("{:.1} s", time.as_secs_f64()),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

/// A count and its noun, in the plural unless the count is one: `1 worker`, `2 entries`.
#[must_use]
pub fn counted(count: u64, noun: &str) -> String {
    if count == 1 {
        return format!("{count} {noun}");
    }
    let is_vowel = |letter: u8| b"aeiou".contains(&letter);
    match noun.as_bytes() {
        [.., before, b'y'] if !is_vowel(*before) => format!("{count} {}ies", &noun[..noun.len() - 1]),
        [.., b's' | b'x'] | [.., b'c' | b's', b'h'] => format!("{count} {noun}es"),
        _ => format!("{count} {noun}s"),
    }
}

/// The value in the largest unit of which it has at least one. The smallest unit has no decimals.
fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    if value.is_nan() {
        return "-".to_owned();
    }
    let (mut value, mut at) = (value, 0);
    // Without the 0.5, 999.6 would be printed as 1000.
    while value.abs() >= step - 0.5 && at + 1 < units.len() {
        value /= step;
        at += 1;
    }
    let digits = match value.abs() {
        _ if at == 0 => 0,
        size if size < 9.995 => 2,
        size if size < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {}", units[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table once printed `1.792 M` in a column of KB.
    #[test]
    fn sizes_have_their_unit_as_a_word() {
        for (value, text) in [
            (0.0, "0 bytes"),
            (512.0, "512 bytes"),
            (4096.0, "4.00 KiB"),
            (1023.9, "1.00 KiB"),
            (12.5 * 1024.0, "12.5 KiB"),
            (1_792_000.0 * 1024.0, "1.71 GiB"),
            (27.0 * 1024.0 * 1024.0 * 1024.0, "27.0 GiB"),
            (999.0 * 1024.0, "999 KiB"),
        ] {
            assert_eq!(bytes(value), text);
        }
        assert_eq!((kib(1024.0), mib_per_second(2500.0)), ("1.00 MiB".to_owned(), "2.44 GiB/s".to_owned()));
        assert_eq!((bytes(f64::NAN), mib_per_second(f64::NAN)), ("-".to_owned(), "-".to_owned()));
    }

    #[test]
    fn times_do_too() {
        for (value, text) in
            [(0.4, "400 ns"), (12.34, "12.3 µs"), (4000.0, "4.00 ms"), (1.2e6, "1.20 s"), (0.9996, "1.00 µs")]
        {
            assert_eq!(micros(value), text);
        }
        for (seconds, text) in [(4.25, "4.2 s"), (200.0, "3 min 20 s"), (7500.0, "2 h 5 min")] {
            assert_eq!(patience(std::time::Duration::from_secs_f64(seconds)), text);
        }
    }

    #[test]
    fn one_has_no_plural() {
        for (count, noun, text) in [
            (1, "worker", "1 worker"),
            (0, "error", "0 errors"),
            (2, "entry", "2 entries"),
            (3, "pass", "3 passes"),
            (4, "day", "4 days"),
        ] {
            assert_eq!(counted(count, noun), text);
        }
    }
}
