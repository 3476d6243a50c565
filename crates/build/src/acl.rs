//! POSIX access control lists. In archives they are text, with one entry per line or with commas
//! between the entries; on disk they are binary.

use blockyard_disk::inode::FileType;
use blockyard_disk::xattr::{self, Attribute, AttributeList, Value};

/// The attributes' names in system calls.
const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

/// The version number at the start of a list in the form of system calls.
const VERSION: u32 = 2;
/// The id of an entry that names no user or group.
const NOBODY: u32 = u32::MAX;

/// Whether an attribute is an access control list. `name` is its name in system calls.
pub(crate) fn is_list(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

/// Converts a list from the form of system calls to the on-disk form; `None` for a list without
/// entries, which means no list.
///
/// # Errors
/// A message if the list is malformed or incomplete.
pub(crate) fn stored(posix: &[u8]) -> Result<Option<Vec<u8>>, String> {
    match xattr::acl_from_posix(posix) {
        Ok(Some(list)) if !xattr::acl_is_whole(&list) => Err(malformed("")),
        Ok(list) => Ok(list),
        Err(_) => Err(malformed("")),
    }
}

/// Adds the lists that an archive holds as text.
///
/// # Errors
/// Says what is wrong with the text.
pub(crate) fn add_text(
    list: &mut AttributeList,
    access: Option<&Vec<u8>>,
    default: Option<&Vec<u8>>,
) -> Result<(), String> {
    for (name, text) in [(ACCESS, access), (DEFAULT, default)] {
        let (Some(text), Some((index, rest))) = (text, xattr::split_name(name)) else { continue };
        if let Some(value) = of_text(text)? {
            list.set(Attribute { index, name: rest.to_vec(), value: Value::Bytes(value) });
        }
    }
    Ok(())
}

/// Removes lists that Linux does not allow on this type of file, and an access list that nine mode
/// bits can express. Returns the mode bits of the access list, because Linux copies them to the
/// inode's mode when the list is set. Returns `None` for a symbolic link, and for a file without
/// an access list.
pub(crate) fn settle(list: &mut AttributeList, kind: FileType) -> Option<u16> {
    let (index, rest) = xattr::split_name(DEFAULT)?;
    if kind != FileType::Directory {
        list.remove(index, rest);
    }
    let (index, rest) = xattr::split_name(ACCESS)?;
    let Value::Bytes(access) = &list.find(index, rest)?.value else { return None };
    let mode = xattr::acl_mode(access);
    if kind == FileType::Symlink || mode.is_some() && !xattr::acl_exceeds_mode(access) {
        list.remove(index, rest);
    }
    mode.filter(|_| kind != FileType::Symlink)
}

/// Updates the access list to a new mode, as `chmod` does.
pub(crate) fn change_mode(list: &mut AttributeList, mode: u16) {
    let Some((index, rest)) = xattr::split_name(ACCESS) else { return };
    let Some(Attribute { value: Value::Bytes(access), .. }) = list.find(index, rest) else { return };
    if let Some(changed) = xattr::acl_with_mode(access, mode) {
        list.set(Attribute { index, name: rest.to_vec(), value: Value::Bytes(changed) });
    }
}

/// Changes the ids of the users and groups that the two lists name.
pub(crate) fn change_ids(list: &mut AttributeList, user: impl Fn(u32) -> u32, group: impl Fn(u32) -> u32) {
    for name in [ACCESS, DEFAULT] {
        let Some((index, rest)) = xattr::split_name(name) else { continue };
        let Some(Attribute { value: Value::Bytes(old), .. }) = list.find(index, rest) else { continue };
        if let Some(changed) = with_ids(old, &user, &group) {
            list.set(Attribute { index, name: rest.to_vec(), value: Value::Bytes(changed) });
        }
    }
}

/// A list in the on-disk form with other ids; `None` if `old` is damaged or has no entries.
fn with_ids(old: &[u8], user: impl Fn(u32) -> u32, group: impl Fn(u32) -> u32) -> Option<Vec<u8>> {
    let mut posix = xattr::acl_to_posix(old)?;
    for entry in posix.get_mut(4..)?.chunks_exact_mut(8) {
        let [tag, tag_high, _, _, id @ ..] = entry else { return None };
        let number = u32::from_le_bytes((&*id).try_into().ok()?);
        let changed = match u16::from_le_bytes([*tag, *tag_high]) {
            0x02 => user(number),
            0x08 => group(number),
            _ => number,
        };
        id.copy_from_slice(&changed.to_le_bytes());
    }
    stored(&posix).ok().flatten()
}

/// Converts a list from text to the on-disk form; `None` for a list without entries.
fn of_text(text: &[u8]) -> Result<Option<Vec<u8>>, String> {
    let text = std::str::from_utf8(text).map_err(|_| malformed(""))?;
    let lines = text.split(['\n', ',']).map(|line| line.split('#').next().unwrap_or("").trim());
    let mut entries = lines.filter(|line| !line.is_empty()).map(entry).collect::<Result<Vec<_>, _>>()?;
    entries.sort_unstable();
    let mut posix = VERSION.to_le_bytes().to_vec();
    for (tag, id, permissions) in entries {
        posix.extend_from_slice(&tag.to_le_bytes());
        posix.extend_from_slice(&permissions.to_le_bytes());
        posix.extend_from_slice(&id.to_le_bytes());
    }
    stored(&posix).map_err(|_| malformed(text))
}

/// Parses an entry like `user:1000:rw-` into tag, id and permissions. The archiver star adds the id
/// at the end: `user:anna:rw-:1000`.
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
    let permissions = permission_bits(permissions).ok_or_else(|| malformed(line))?;
    Ok((tag, id, permissions))
}

/// The bits of up to three characters: `-`, and each of `r`, `w` and `x` at most once. `None` for
/// anything else.
fn permission_bits(letters: &str) -> Option<u16> {
    let add = |bits: u16, letter: u8| {
        let bit = match letter {
            b'r' => 4,
            b'w' => 2,
            b'x' => 1,
            b'-' => 0,
            _ => return None,
        };
        (bits & bit == 0).then_some(bits | bit)
    };
    if letters.len() > 3 { None } else { letters.bytes().try_fold(0, add) }
}

/// Looks up the id of a user or group by its name on this machine. GNU tar writes a name instead of
/// a number wherever it can.
fn known(tag: &str, name: &str) -> Option<u32> {
    let list = if tag.starts_with('u') { "/etc/passwd" } else { "/etc/group" };
    let text = std::fs::read_to_string(list).ok()?;
    let line = text.lines().find(|line| line.split(':').next() == Some(name))?;
    line.split(':').nth(2)?.parse().ok()
}

fn malformed(line: &str) -> String {
    format!("its access control list is malformed: {}", line.escape_debug())
}

/// Converts a list from the on-disk form to an archive's text; `None` if it is damaged.
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
        let on_disk = of_text(line.as_bytes()).unwrap().unwrap();
        assert_eq!(text(&on_disk).as_deref(), Some(line));
        assert_eq!(text(b"\x01\0\0\0\x40"), None);
    }

    #[test]
    fn lists_are_read_in_both_forms() {
        let comma = of_text(b"user::rw-,user:1000:r--,group::r--,mask::rw-,other::---").unwrap();
        let lines = b"user::rw-\nuser:anna:r--:1000 #effective:r--\ngroup::r--\nmask::rw-\nother::---\n";
        assert!(comma.is_some());
        assert_eq!(of_text(lines).unwrap(), comma);
        assert_eq!(of_text(b"").unwrap(), None);
        for wrong in [
            "user:nobody that is known:rw-",
            "user",
            "mask:5:rw-",
            "user::rq-",
            "user::rr-",
            "user::rrx",
            "user::rwx-",
            "who::rw-",
            "user:7:rw-",
        ] {
            let text = format!("{wrong},user::rw-,group::r--,other::r--");
            assert!(of_text(text.as_bytes()).is_err(), "{wrong}");
        }
        for (letters, bits) in [("rwx", Some(7)), ("x-r", Some(5)), ("---", Some(0)), ("rr-", None)] {
            assert_eq!(permission_bits(letters), bits, "{letters}");
        }
    }

    fn lists(access: &str, default: &str) -> AttributeList {
        let (mut list, text) = (AttributeList::default(), |text: &str| Some(text.as_bytes().to_vec()));
        add_text(&mut list, text(access).as_ref(), text(default).as_ref()).unwrap();
        list
    }

    #[test]
    fn a_list_of_access_says_the_mode() {
        let (plain, more) =
            ("user::rw-,group::r--,other::--x", "user::rwx,user:7:r--,group::r--,mask::rw-,other::---");
        for (kind, text, mode, left) in [
            (FileType::Regular, plain, Some(0o641), 0),
            (FileType::Regular, more, Some(0o760), 1),
            (FileType::Directory, plain, Some(0o641), 1),
            (FileType::Directory, more, Some(0o760), 2),
            (FileType::Symlink, more, None, 0),
        ] {
            let mut list = lists(text, plain);
            assert_eq!((settle(&mut list, kind), list.iter().len()), (mode, left), "{kind:?} {text}");
        }
        let mut list = lists(more, plain);
        change_mode(&mut list, 0o4751);
        assert_eq!(list, lists("user::rwx,user:7:r--,group::r--,mask::r-x,other::--x", plain));
    }

    #[test]
    fn ids_change_in_both_lists() {
        let text = |user: u32, group: u32| {
            format!("user::rwx,user:{user}:r--,group::r--,group:{group}:r-x,mask::rwx,other::---")
        };
        let mut list = lists(&text(7, 7), &text(1000, 8));
        change_ids(&mut list, |id| if id == 7 { 70 } else { id }, |id| id + 1);
        assert_eq!(list, lists(&text(70, 8), &text(1000, 9)));
    }
}
