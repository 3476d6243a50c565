//! Parses sizes and UUIDs, and draws a random seed.

use anyhow::{Context, Result, bail};
use blockyard_engine::mkfs::{Amount, Options};

/// Parses a number, with or without a suffix of mke2fs. Returns the number and, if there is a
/// suffix, the bytes of one unit. Returns `None` if the text is anything else.
pub(in crate::commands) fn suffixed(text: &str) -> Option<(u64, Option<u64>)> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => None,
        "s" => Some(512),
        "b" => Some(1),
        "k" => Some(1 << 10),
        "m" => Some(1 << 20),
        "g" => Some(1 << 30),
        "t" => Some(1u64 << 40),
        "p" => Some(1u64 << 50),
        _ => return None,
    };
    Some((digits.parse().ok()?, unit))
}

/// Parses the size argument: without a suffix in KiB, or in blocks if the block size was given.
pub(super) fn size_of(text: &str, in_blocks: bool) -> Result<Amount> {
    let read = suffixed(text).and_then(|(number, unit)| {
        Some(match unit {
            Some(unit) => Amount::Bytes(number.checked_mul(unit)?),
            None if in_blocks => Amount::Blocks(number),
            None => Amount::Bytes(number.checked_mul(1024)?),
        })
    });
    read.with_context(|| format!("{text}: not a size; give a number with k, m, g or t, such as 512m"))
}

/// Parses a position or size, in blocks unless it has a suffix.
pub(super) fn amount(option: &str, text: &str) -> Result<Amount> {
    let read = suffixed(text).and_then(|(number, unit)| {
        Some(match unit {
            Some(unit) => Amount::Bytes(number.checked_mul(unit)?),
            None => Amount::Blocks(number),
        })
    });
    read.with_context(|| format!("{option}{text}: not a number of blocks, nor a size with k, m, g or t"))
}

/// Parses a number of bytes below 2^32, with or without a suffix.
pub(super) fn bytes32(option: &str, text: &str) -> Result<u32> {
    let read = suffixed(text).and_then(|(number, unit)| number.checked_mul(unit.unwrap_or(1)));
    read.and_then(|bytes| u32::try_from(bytes).ok())
        .with_context(|| format!("{option} {text}: not a number of bytes below 4 GiB"))
}

/// A size in bytes. `None` for a number of blocks if the options do not give the block size, or if
/// the bytes are too many for `u64`.
pub(super) fn bytes_of(size: Amount, options: &Options) -> Option<u64> {
    match size {
        Amount::Bytes(bytes) => Some(bytes),
        Amount::Blocks(blocks) => blocks.checked_mul(u64::from(options.block_size?)),
    }
}

/// Parses a UUID of 32 hexadecimal digits with hyphens.
pub(super) fn parse_uuid(option: &str, text: &str) -> Result<[u8; 16]> {
    let digits: String = text.chars().filter(|letter| *letter != '-').collect();
    let groups: Vec<usize> = text.split('-').map(str::len).collect();
    if groups != [8, 4, 4, 4, 12] || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        bail!("{option} {text}: not a UUID; give one such as c1b9d5a2-f162-11cf-9ece-0020afc76f16");
    }
    let mut uuid = [0; 16];
    for (index, byte) in uuid.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[index * 2..index * 2 + 2], 16)?;
    }
    Ok(uuid)
}

/// A seed from the system's random source.
pub(super) fn drawn_seed() -> Result<u64> {
    let mut bytes = [0; 8];
    // The system call works in a bare chroot too, which has no /dev. It always fills 8 bytes.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .context("the system gives no random seed; give one with --seed")?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::{Amount, parse_uuid, size_of, suffixed};

    #[test]
    fn sizes_follow_mke2fs() {
        assert_eq!(size_of("64M", false).unwrap(), Amount::Bytes(64 << 20));
        assert_eq!(size_of("2t", false).unwrap(), Amount::Bytes(2 << 40));
        assert_eq!(size_of("4096", false).unwrap(), Amount::Bytes(4 << 20));
        assert_eq!(size_of("4096", true).unwrap(), Amount::Blocks(4096));
        assert_eq!(size_of("10s", true).unwrap(), Amount::Bytes(5120));
        for wrong in ["", "m", "12x", "-4m", "1.5g", "99999999999999t"] {
            assert!(size_of(wrong, false).is_err(), "{wrong}");
        }
        assert_eq!(suffixed("7"), Some((7, None)));
    }

    #[test]
    fn uuids_need_their_hyphens() {
        let uuid = parse_uuid("-U", "01234567-89ab-cdef-0123-456789abcdef").unwrap();
        assert_eq!(uuid[..4], [0x01, 0x23, 0x45, 0x67]);
        for wrong in ["", "0123456789abcdef0123456789abcdef", "01234567-89ab-cdef-0123-456789abcdeg"] {
            assert!(parse_uuid("-U", wrong).is_err(), "{wrong}");
        }
    }
}
