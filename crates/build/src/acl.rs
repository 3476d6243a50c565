//! Access control lists as archives give them: text, an entry a line or between commas. On disk they are numbers.

use blockyard_disk::xattr;

/// Version of a list as system calls give it.
const VERSION: u32 = 2;
/// The number of an entry that names nobody.
const NOBODY: u32 = u32::MAX;

/// The on-disk form of a list; `None` where it says no more than the permissions do.
///
/// # Errors
/// What is wrong with the text.
pub(crate) fn stored(text: &[u8], is_access: bool) -> Result<Option<Vec<u8>>, String> {
    let text = std::str::from_utf8(text).map_err(|_| malformed(""))?;
    let lines = text.split(['\n', ',']).map(|line| line.split('#').next().unwrap_or("").trim());
    let mut entries = lines.filter(|line| !line.is_empty()).map(entry).collect::<Result<Vec<_>, _>>()?;
    if entries.is_empty() || (is_access && entries.len() <= 3) {
        return Ok(None);
    }
    entries.sort_unstable();
    let mut posix = VERSION.to_le_bytes().to_vec();
    for (tag, id, permissions) in entries {
        posix.extend_from_slice(&tag.to_le_bytes());
        posix.extend_from_slice(&permissions.to_le_bytes());
        posix.extend_from_slice(&id.to_le_bytes());
    }
    xattr::acl_from_posix(&posix).map_err(|_| malformed(text))
}

/// `user:1000:rw-`, or `user:anna:rw-:1000` as star writes it: tag, number, permissions.
fn entry(line: &str) -> Result<(u16, u32, u16), String> {
    let mut parts = line.split(':');
    let (Some(tag), Some(who), Some(permissions)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(malformed(line));
    };
    let id = match (who, parts.next()) {
        ("", _) => NOBODY,
        (_, Some(number)) => number.parse().map_err(|_| malformed(line))?,
        (name, None) => name.parse().ok().or_else(|| known(tag, name)).ok_or_else(|| {
            format!("its access control list names {name}, whom this machine does not know; give numbers")
        })?,
    };
    let tag = match (tag, id == NOBODY) {
        ("user" | "u", true) => 0x01,
        ("user" | "u", false) => 0x02,
        ("group" | "g", true) => 0x04,
        ("group" | "g", false) => 0x08,
        ("mask" | "m", true) => 0x10,
        ("other" | "o", true) => 0x20,
        _ => return Err(malformed(line)),
    };
    let bits = permissions.bytes().map(|byte| match byte {
        b'r' => Some(4),
        b'w' => Some(2),
        b'x' => Some(1),
        b'-' => Some(0),
        _ => None,
    });
    let permissions = bits.sum::<Option<u16>>().ok_or_else(|| malformed(line))?;
    Ok((tag, id, permissions & 7))
}

/// The number of a user or a group of this machine: GNU tar writes names where there are some, and no numbers beside them.
fn known(tag: &str, name: &str) -> Option<u32> {
    let list = if tag.starts_with('u') { "/etc/passwd" } else { "/etc/group" };
    let text = std::fs::read_to_string(list).ok()?;
    let line = text.lines().find(|line| line.split(':').next() == Some(name))?;
    line.split(':').nth(2)?.parse().ok()
}

fn malformed(line: &str) -> String {
    format!("its access control list is malformed: {}", line.escape_debug())
}

/// A list as archives give it; `None` where it is damaged on disk.
pub(crate) fn text(stored: &[u8]) -> Option<String> {
    let posix = xattr::acl_to_posix(stored)?;
    let entries = posix.get(4..)?.chunks_exact(8);
    let lines = entries.map(|entry| {
        let [tag, tag_high, permissions, _, id @ ..] = entry else { return None };
        let name = match u16::from_le_bytes([*tag, *tag_high]) {
            0x01 | 0x02 => "user",
            0x04 | 0x08 => "group",
            0x10 => "mask",
            0x20 => "other",
            _ => return None,
        };
        let id = u32::from_le_bytes(id.try_into().ok()?);
        let who = if id == NOBODY { String::new() } else { id.to_string() };
        let bit = |bit: u8, letter: char| if permissions & bit == 0 { '-' } else { letter };
        Some(format!("{name}:{who}:{}{}{}", bit(4, 'r'), bit(2, 'w'), bit(1, 'x')))
    });
    Some(lines.collect::<Option<Vec<_>>>()?.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_written_as_it_is_read() {
        let line = "user::rw-,user:1000:r-x,group::r--,group:7:---,mask::rw-,other::--x";
        let on_disk = stored(line.as_bytes(), true).unwrap().unwrap();
        assert_eq!(text(&on_disk).as_deref(), Some(line));
        assert_eq!(text(b"\x01\0\0\0\x40"), None);
    }

    #[test]
    fn lists_are_read_in_both_forms() {
        let comma = stored(b"user::rw-,user:1000:r--,group::r--,mask::rw-,other::---", true).unwrap();
        let lines = b"user::rw-\nuser:anna:r--:1000 #effective:r--\ngroup::r--\nmask::rw-\nother::---\n";
        assert!(comma.is_some());
        assert_eq!(stored(lines, true).unwrap(), comma);
        assert_eq!(stored(b"user::rw-,group::r--,other::r--", true).unwrap(), None);
        assert!(stored(b"user::rw-,group::r--,other::r--", false).unwrap().is_some());
        for wrong in ["user:nobody that is known:rw-", "user", "mask:5:rw-", "user::rq-", "who::rw-"] {
            let text = format!("{wrong},user::rw-,group::r--,other::r--");
            assert!(stored(text.as_bytes(), true).is_err(), "{wrong}");
        }
    }
}
