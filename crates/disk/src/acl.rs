//! POSIX access control lists in ext4's compact form (values of the attributes with index 2 and 3), and the form in
//! which Linux shows them to programs (`system.posix_acl_access`, `system.posix_acl_default`).
//!
//! Compact: le32 version 1, then {le16 tag, le16 permissions} and, only for named users and groups, le32 id.
//! Shown: le32 version 2, then {le16 tag, le16 permissions, le32 id}, id all ones where there is none.

/// Why a value is no access control list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bad access control list: {0}")]
pub struct AclError(&'static str);

/// Who an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclTag {
    /// The owner.
    UserObject,
    /// A user by number.
    User(u32),
    /// The owning group.
    GroupObject,
    /// A group by number.
    Group(u32),
    /// Upper bound of all but owner and others.
    Mask,
    /// Everybody else.
    Other,
}

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AclEntry {
    /// Who.
    pub tag: AclTag,
    /// Bits 4 read, 2 write, 1 execute.
    pub permissions: u16,
}

const VERSION_DISK: u32 = 1;
const VERSION_SHOWN: u32 = 2;
const NO_ID: u32 = u32::MAX;

impl AclTag {
    const fn raw(self) -> u16 {
        match self {
            Self::UserObject => 0x01,
            Self::User(_) => 0x02,
            Self::GroupObject => 0x04,
            Self::Group(_) => 0x08,
            Self::Mask => 0x10,
            Self::Other => 0x20,
        }
    }

    const fn id(self) -> Option<u32> {
        match self {
            Self::User(id) | Self::Group(id) => Some(id),
            _ => None,
        }
    }

    const fn from_raw(raw: u16, id: u32) -> Option<Self> {
        Some(match raw {
            0x01 => Self::UserObject,
            0x02 => Self::User(id),
            0x04 => Self::GroupObject,
            0x08 => Self::Group(id),
            0x10 => Self::Mask,
            0x20 => Self::Other,
            _ => return None,
        })
    }
}

/// Takes a little-endian word of 16 bits off the front.
fn take16(bytes: &mut &[u8]) -> Option<u16> {
    let (head, rest) = bytes.split_first_chunk::<2>()?;
    *bytes = rest;
    Some(u16::from_le_bytes(*head))
}

/// Takes a little-endian word of 32 bits off the front.
fn take32(bytes: &mut &[u8]) -> Option<u32> {
    let (head, rest) = bytes.split_first_chunk::<4>()?;
    *bytes = rest;
    Some(u32::from_le_bytes(*head))
}

/// Reads the compact form. An empty list is a version word alone.
///
/// # Errors
/// [`AclError`] for another version, an unknown tag, or a value that ends inside an entry.
pub fn from_disk(mut value: &[u8]) -> Result<Vec<AclEntry>, AclError> {
    parse(&mut value, VERSION_DISK, |tag| matches!(tag, 0x02 | 0x08))
}

/// Reads the form that Linux shows to programs.
///
/// # Errors
/// As [`from_disk`].
pub fn from_shown(mut value: &[u8]) -> Result<Vec<AclEntry>, AclError> {
    parse(&mut value, VERSION_SHOWN, |_| true)
}

fn parse(value: &mut &[u8], version: u32, has_id: fn(u16) -> bool) -> Result<Vec<AclEntry>, AclError> {
    if take32(value) != Some(version) {
        return Err(AclError("unknown version"));
    }
    let mut entries = Vec::new();
    while !value.is_empty() {
        let cut = AclError("ends inside an entry");
        let tag = take16(value).ok_or(cut)?;
        let permissions = take16(value).ok_or(cut)?;
        let id = if has_id(tag) { take32(value).ok_or(cut)? } else { NO_ID };
        let tag = AclTag::from_raw(tag, id).ok_or(AclError("unknown tag"))?;
        entries.push(AclEntry { tag, permissions });
    }
    Ok(entries)
}

/// Writes the compact form.
#[must_use]
pub fn to_disk(entries: &[AclEntry]) -> Vec<u8> {
    write(entries, VERSION_DISK, AclTag::id)
}

/// Writes the form that Linux shows to programs.
#[must_use]
pub fn to_shown(entries: &[AclEntry]) -> Vec<u8> {
    write(entries, VERSION_SHOWN, |tag| Some(tag.id().unwrap_or(NO_ID)))
}

fn write(entries: &[AclEntry], version: u32, id: fn(AclTag) -> Option<u32>) -> Vec<u8> {
    let mut value = version.to_le_bytes().to_vec();
    for entry in entries {
        value.extend(entry.tag.raw().to_le_bytes());
        value.extend(entry.permissions.to_le_bytes());
        value.extend(id(entry.tag).map(u32::to_le_bytes).into_iter().flatten());
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_round_trip() {
        let entries = [
            AclEntry { tag: AclTag::UserObject, permissions: 6 },
            AclEntry { tag: AclTag::User(1000), permissions: 4 },
            AclEntry { tag: AclTag::GroupObject, permissions: 4 },
            AclEntry { tag: AclTag::Group(70_000), permissions: 7 },
            AclEntry { tag: AclTag::Mask, permissions: 7 },
            AclEntry { tag: AclTag::Other, permissions: 0 },
        ];
        let disk = to_disk(&entries);
        assert_eq!(disk.len(), 4 + 4 * 4 + 2 * 8);
        assert_eq!(from_disk(&disk).unwrap(), entries);
        let shown = to_shown(&entries);
        assert_eq!(shown.len(), 4 + 6 * 8);
        assert_eq!(from_shown(&shown).unwrap(), entries);
    }

    #[test]
    fn damaged_values_are_refused() {
        assert_eq!(from_disk(&[]), Err(AclError("unknown version")));
        assert_eq!(from_disk(&[1, 0, 0, 0]), Ok(vec![]));
        assert_eq!(from_disk(&[1, 0, 0, 0, 2, 0, 4, 0, 1]), Err(AclError("ends inside an entry")));
        assert_eq!(from_disk(&[1, 0, 0, 0, 3, 0, 4, 0]), Err(AclError("unknown tag")));
    }
}
