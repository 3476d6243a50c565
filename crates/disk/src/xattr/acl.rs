//! POSIX ACLs: the compact form on disk and the form that system calls exchange.
//!
//! On disk: le32 version 1, then {le16 tag, le16 permissions} for each entry, with a le32 id only
//! for named users and groups. In system calls: le32 version 2, then {le16 tag, le16 permissions,
//! le32 id} for each entry.

const VERSION_DISK: u32 = 1;
const VERSION_POSIX: u32 = 2;
/// Tags with an id: a named user, a named group.
const TAG_USER: u16 = 0x02;
const TAG_GROUP: u16 = 0x08;
/// Tags without an id: owner, owning group, mask, others.
const TAGS_PLAIN: [u16; 4] = [TAG_OWNER, TAG_OWNING_GROUP, TAG_MASK, TAG_OTHERS];
const TAG_OWNER: u16 = 0x01;
const TAG_OWNING_GROUP: u16 = 0x04;
const TAG_MASK: u16 = 0x10;
const TAG_OTHERS: u16 = 0x20;
/// Bytes of the version word.
const LEN_OF_VERSION: usize = 4;
/// The id field of an entry that needs no id, in the system-call form.
const ID_NONE: u32 = u32::MAX;

fn tag_has_id(tag: u16) -> Option<bool> {
    match tag {
        TAG_USER | TAG_GROUP => Some(true),
        _ if TAGS_PLAIN.contains(&tag) => Some(false),
        _ => None,
    }
}

fn split_le16(bytes: &[u8]) -> Option<(u16, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<2>()?;
    Some((u16::from_le_bytes(*head), rest))
}

fn split_le32(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<4>()?;
    Some((u32::from_le_bytes(*head), rest))
}

/// The system-call form of an on-disk ACL; `None` if the ACL is damaged.
#[must_use]
pub fn acl_to_posix(disk: &[u8]) -> Option<Vec<u8>> {
    let (version, mut rest) = split_le32(disk)?;
    if version != VERSION_DISK {
        return None;
    }
    let mut out = VERSION_POSIX.to_le_bytes().to_vec();
    while !rest.is_empty() {
        let (tag, after) = split_le16(rest)?;
        let (permissions, after) = split_le16(after)?;
        let (id, after) = if tag_has_id(tag)? { split_le32(after)? } else { (ID_NONE, after) };
        out.extend_from_slice(&tag.to_le_bytes());
        out.extend_from_slice(&permissions.to_le_bytes());
        out.extend_from_slice(&id.to_le_bytes());
        rest = after;
    }
    Some(out)
}

/// Why a list from a system call is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclDefect {
    /// The list's version is not 2.
    Version,
    /// The list ends inside its version or an entry, an entry has no known tag, or an entry for a
    /// named user or group has no id.
    Entry,
}

/// The on-disk form of an ACL from a system call. `None` if the ACL has no entries: then the inode
/// is to have no ACL.
///
/// # Errors
/// Why the list is invalid. Whether its entries form a complete ACL is not checked here: see
/// [`acl_is_whole`].
pub fn acl_from_posix(posix: &[u8]) -> Result<Option<Vec<u8>>, AclDefect> {
    if posix.is_empty() {
        return Ok(None);
    }
    let (version, mut rest) = split_le32(posix).ok_or(AclDefect::Entry)?;
    if version != VERSION_POSIX {
        return Err(AclDefect::Version);
    }
    let mut out = VERSION_DISK.to_le_bytes().to_vec();
    while !rest.is_empty() {
        rest = entry_from_posix(rest, &mut out).ok_or(AclDefect::Entry)?;
    }
    Ok((out.len() > LEN_OF_VERSION).then_some(out))
}

/// Adds the first of `entries` to an on-disk list. Returns the rest of `entries`; `None` if the
/// first entry is invalid.
fn entry_from_posix<'a>(entries: &'a [u8], out: &mut Vec<u8>) -> Option<&'a [u8]> {
    let (tag, after) = split_le16(entries)?;
    let (permissions, after) = split_le16(after)?;
    let (id, after) = split_le32(after)?;
    out.extend_from_slice(&tag.to_le_bytes());
    out.extend_from_slice(&permissions.to_le_bytes());
    if tag_has_id(tag)? {
        out.extend_from_slice(&id.to_le_bytes());
        (id != ID_NONE).then_some(after)
    } else {
        Some(after)
    }
}

/// Whether an on-disk list is complete. Its entries must be one owner, any named users, one owning
/// group, any named groups, a mask, and others, in this order and with valid permissions. The mask
/// is optional if no user or group is named. Named users may be in any order among themselves, and
/// so may named groups.
#[must_use]
pub fn acl_is_whole(disk: &[u8]) -> bool {
    fn is_whole(disk: &[u8]) -> Option<bool> {
        let (version, mut rest) = split_le32(disk)?;
        let (mut last, mut named) = (0, false);
        while !rest.is_empty() {
            let (tag, after) = split_le16(rest)?;
            let (permissions, after) = split_le16(after)?;
            let has_id = tag_has_id(tag)?;
            rest = if has_id { split_le32(after)?.1 } else { after };
            // Tags ascend. Owner, owning group and others are required.
            let follows = match tag {
                TAG_OWNER => last == 0,
                TAG_USER => matches!(last, TAG_OWNER | TAG_USER),
                TAG_OWNING_GROUP => matches!(last, TAG_OWNER | TAG_USER),
                TAG_GROUP => matches!(last, TAG_OWNING_GROUP | TAG_GROUP),
                TAG_MASK => matches!(last, TAG_OWNING_GROUP | TAG_GROUP),
                _ => last == TAG_MASK || (!named && last == TAG_OWNING_GROUP),
            };
            if !follows || permissions > 7 {
                return Some(false);
            }
            named |= has_id;
            last = tag;
        }
        Some(version == VERSION_DISK && last == TAG_OTHERS)
    }
    is_whole(disk) == Some(true)
}

/// Positions of the permissions that an on-disk list shares with the mode.
#[derive(Default)]
struct Shared {
    owner: Option<usize>,
    owning_group: Option<usize>,
    mask: Option<usize>,
    others: Option<usize>,
}

impl Shared {
    fn of(disk: &[u8]) -> Option<Self> {
        let (version, mut rest) = split_le32(disk)?;
        if version != VERSION_DISK {
            return None;
        }
        let mut shared = Self::default();
        while !rest.is_empty() {
            let (tag, after) = split_le16(rest)?;
            let at = disk.len() - after.len();
            let (_, after) = split_le16(after)?;
            match tag {
                TAG_OWNER => shared.owner = Some(at),
                TAG_OWNING_GROUP => shared.owning_group = Some(at),
                TAG_MASK => shared.mask = Some(at),
                TAG_OTHERS => shared.others = Some(at),
                _ => {}
            }
            rest = if tag_has_id(tag)? { split_le32(after)?.1 } else { after };
        }
        Some(shared)
    }

    /// The position of the permissions of each class (owner, group, others), with their shift in
    /// the mode. The group bits of the mode correspond to the mask if there is one.
    fn places(&self) -> [(Option<usize>, u32); 3] {
        [(self.owner, 6), (self.mask.or(self.owning_group), 3), (self.others, 0)]
    }
}

/// The nine mode bits that an on-disk list stands for; `None` if the list is damaged or lacks the
/// entry of a class.
#[must_use]
pub fn acl_mode(disk: &[u8]) -> Option<u16> {
    let mut mode = 0;
    for (at, shift) in Shared::of(disk)?.places() {
        let (permissions, _) = split_le16(disk.get(at?..)?)?;
        mode |= (permissions & 7) << shift;
    }
    Some(mode)
}

/// Whether a complete on-disk list contains more than [`acl_mode`] can express: it names users or
/// groups, or has a mask. Also true if the list cannot be parsed.
#[must_use]
pub fn acl_exceeds_mode(disk: &[u8]) -> bool {
    // The version, and three entries without an id.
    const LEN_OF_MODE: usize = LEN_OF_VERSION + 3 * 4;
    disk.len() != LEN_OF_MODE || Shared::of(disk).is_none_or(|shared| shared.mask.is_some())
}

/// An on-disk list after a change of the mode: owner, mask (or owning group) and others as in
/// `mode`. `None` if the list is damaged.
#[must_use]
pub fn acl_with_mode(disk: &[u8], mode: u16) -> Option<Vec<u8>> {
    let mut changed = disk.to_vec();
    for (at, shift) in Shared::of(disk)?.places() {
        if let Some(at) = at {
            changed.get_mut(at..at + 2)?.copy_from_slice(&(mode >> shift & 7).to_le_bytes());
        }
    }
    Some(changed)
}
