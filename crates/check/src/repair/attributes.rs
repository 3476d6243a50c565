//! Repairs the attributes kept in an inode: sound entries stay, others are removed, and hashes are
//! computed anew.

use blockyard_device::DeviceError;
use blockyard_disk::extent;
use blockyard_disk::inline_data::{XATTR_INDEX, XATTR_NAME};
use blockyard_disk::inode::{FileType, InodeFlags, RawInode};
use blockyard_disk::num::{low16, u32_from_usize, u64_from_usize, usize_from_u32};
use blockyard_disk::xattr::{self, Attribute, AttributeList, Home, VALUE_LEN_MAX, Value};
use blockyard_disk::{BlockNr, Incompat, InodeNr};

use super::editor::{Editor, Slot};
use super::log::{Cost, Outcome};
use crate::code::Code;
use crate::finding::{Finding, Site};

/// Name indexes that need no name after their prefix: those of the access ACL and the default ACL.
const ACCESS_LISTS: [u8; 2] = [2, 3];
/// Index and name of the attribute with the encryption context.
const CONTEXT: (u8, &[u8]) = (9, b"c");
/// Bytes of extra fields that Linux knows.
const EXTRA_USUAL: u16 = 32;

/// Whether a finding about an inode is about its attributes.
pub(crate) fn is_about_attributes(code: Code) -> bool {
    matches!(
        code,
        Code::EXTRA_ISIZE
            | Code::INODE_XATTR_NAME
            | Code::INODE_XATTR_OFFSET
            | Code::INODE_XATTR_SIZE
            | Code::INODE_XATTR_OVERLAP
            | Code::XATTR_HASH
            | Code::XATTR_BLOCK_PLACE
            | Code::XATTR_WITHOUT_FEATURE
    )
}

/// Where the attribute area of a slot begins; `None` when its extra fields leave no area.
fn area_at(slot: &Slot) -> Option<usize> {
    xattr::inode_area_at(slot.bytes().len(), slot.extra_isize())
}

/// Whether the slot has the attribute `system.data`, which goes with inline data.
pub(crate) fn has_inline_data(slot: &Slot) -> bool {
    area_at(slot)
        .is_some_and(|at| salvage(&slot.bytes()[at..], Home::Inode).find(XATTR_INDEX, XATTR_NAME).is_some())
}

/// Applies the remedy of a finding about attributes.
pub(crate) fn mend(
    ed: &mut Editor<'_, '_>,
    inode: InodeNr,
    slot: &mut Slot,
    finding: &Finding,
) -> Result<Outcome, DeviceError> {
    let site = Site::inode(inode);
    match finding.code {
        Code::EXTRA_ISIZE => {
            let extra = likely_extra_isize(slot);
            slot.set_extra_isize(extra);
            ed.add(finding.code, site, Cost::Nothing, format!("i_extra_isize set to {extra}"));
        }
        Code::XATTR_BLOCK_PLACE | Code::XATTR_WITHOUT_FEATURE => {
            let place = ed.volume().file_acl(slot.raw());
            let block = Some(place).filter(|place| ed.volume().contains(*place));
            let block = block.and_then(|place| ed.volume().block(place).ok()).unwrap_or_default();
            let lost = lost(&block, Home::Block, &AttributeList::default());
            slot.raw_mut().set_file_acl(BlockNr::ZERO);
            ed.add(finding.code, site, Cost::Cut, format!("reference to the attribute block removed{lost}"));
        }
        _ => {
            let Some(at) = area_at(slot) else { return Ok(Outcome::Lost) };
            let area = &mut slot.bytes_mut()[at..];
            let list = salvage(area, Home::Inode);
            let (count, lost) = (list.iter().len(), lost(area, Home::Inode, &list));
            assert!(list.write_inode_area(area), "entries of an area fit into it");
            let what = format!("{count} sound attributes kept in the inode{lost}");
            ed.add(finding.code, site, Cost::Cut, what);
        }
    }
    Ok(Outcome::Kept)
}

/// The likely size of the extra fields: a size with which they end where the magic number of the
/// attributes begins, or else the usual size.
fn likely_extra_isize(slot: &Slot) -> u16 {
    let room = slot.bytes().len() - RawInode::SIZE;
    let usual = EXTRA_USUAL.min(low16(u32_from_usize(room)));
    let candidates = [usual, 28, 24, 36, 4];
    let begins = |extra: &&u16| {
        xattr::inode_area_at(slot.bytes().len(), **extra)
            .is_some_and(|at| xattr::has_magic(&slot.bytes()[at..]))
    };
    candidates.iter().find(begins).copied().unwrap_or(usual)
}

/// Lists the attributes of an area that are not kept, as far as their names can be read.
pub(crate) fn lost(area: &[u8], home: Home, kept: &AttributeList) -> String {
    let names = names(area, home).into_iter().filter(|(index, name)| kept.find(*index, name).is_none());
    let names: Vec<String> = names.map(|(index, name)| printable(index, &name)).collect();
    if names.is_empty() { String::new() } else { format!("; lost: {}", names.join(", ")) }
}

/// The full name of an attribute.
pub(crate) fn printable(index: u8, name: &[u8]) -> String {
    match xattr::join_name(index, name) {
        Some(full) => full.escape_ascii().to_string(),
        None => format!("{} of prefix {index}", name.escape_ascii()),
    }
}

/// The names of all entries in an area, whether or not their values are sound.
fn names(area: &[u8], home: Home) -> Vec<(u8, Vec<u8>)> {
    let mut names = Vec::new();
    if !xattr::has_magic(area) {
        return names;
    }
    let mut at = home.entries_at();
    while let Some(&[length, index, ..]) = area.get(at..at + 16).filter(|entry| entry[..4] != [0; 4]) {
        let Some(name) = area.get(at + 16..at + 16 + usize::from(length)) else { break };
        names.push((index, name.to_vec()));
        at += 16 + usize::from(length).next_multiple_of(4);
    }
    names
}

/// The entries of an area that are sound in themselves, and that share neither name nor value bytes
/// with an earlier one. If any of their values overlaps the list of entries, only entries with a
/// value inode are kept.
pub(crate) fn salvage(area: &[u8], home: Home) -> AttributeList {
    let mut list = AttributeList::default();
    if !xattr::has_magic(area) {
        return list;
    }
    let word = |at: usize| u32::from_le_bytes([area[at], area[at + 1], area[at + 2], area[at + 3]]);
    let base = home.values_from();
    let mut at = home.entries_at();
    let mut taken: Vec<(usize, usize)> = Vec::new();
    while at + 16 <= area.len() && word(at) != 0 {
        let name_len = usize::from(area[at]);
        let end = at + 16 + name_len.next_multiple_of(4);
        if end > area.len() {
            break;
        }
        let name = area[at + 16..at + 16 + name_len].to_vec();
        let (inode, size) = (word(at + 4), usize_from_u32(word(at + 8)));
        let from = base + usize::from(u16::from_le_bytes([area[at + 2], area[at + 3]]));
        let padded = size.saturating_add(3) & !3;
        let range = (from, from.saturating_add(padded));
        let fits = from.saturating_add(size) <= area.len()
            && (size == 0 || range.0 >= end)
            && taken.iter().all(|other| size == 0 || range.1 <= other.0 || other.1 <= range.0);
        let value = match inode {
            0 if fits => Some(Value::Bytes(area[if size == 0 { 0..0 } else { from..from + size }].to_vec())),
            0 => None,
            _ if word(at + 8) > VALUE_LEN_MAX => None,
            inode => Some(Value::Inode { inode, size: word(at + 8), entry_hash: word(at + 12) }),
        };
        let index = area[at + 1];
        // ACLs have only an index, no name.
        let legal = index != 0 && (home == Home::Inode || name_len > 0 || ACCESS_LISTS.contains(&index));
        if let Some(value) = value.filter(|_| legal && list.find(index, &name).is_none()) {
            if inode == 0 && size > 0 {
                taken.push(range);
            }
            list.set(Attribute { index, name: name.clone(), value });
            // If the entries fill the area, there is no room for the zero word that ends the list.
            if list.area_len(home) > area.len() {
                list.remove(index, &name);
            }
        }
        at = end;
    }
    // If a value overlaps the entries, no value in the area is trusted.
    let entries_end = at + 4;
    if taken.iter().any(|range| range.0 < entries_end.min(area.len())) {
        let outside = |attribute: &&Attribute| matches!(&attribute.value, Value::Inode { .. });
        let mut kept = AttributeList::default();
        for attribute in list.iter().filter(outside) {
            kept.set(attribute.clone());
        }
        return kept;
    }
    list
}

/// Whether the attribute that a finding calls missing is in the inode after all. If a bad entry
/// hides the attribute, the attributes are rewritten. If they need no change, an earlier remedy,
/// such as a correction of `i_extra_isize`, has uncovered the attribute.
pub(crate) fn uncover(ed: &mut Editor<'_, '_>, inode: InodeNr, slot: &mut Slot, code: Code) -> bool {
    let (index, name) = match code {
        Code::INLINE_NO_ATTRIBUTE => (XATTR_INDEX, XATTR_NAME),
        Code::ENCRYPT_NO_ATTRIBUTE => CONTEXT,
        _ => return false,
    };
    let Some(at) = area_at(slot) else { return false };
    let area = &mut slot.bytes_mut()[at..];
    let list = salvage(area, Home::Inode);
    let (before, lost) = (area.to_vec(), lost(area, Home::Inode, &list));
    // An attribute with a value inode does not count: e2fsck does not find it.
    let is_there = list.find(index, name).is_some_and(|found| found.value.inode().is_none());
    if !is_there || !list.write_inode_area(area) {
        return false;
    }
    if area == before {
        return true;
    }
    let what = format!("{} sound attributes kept in the inode{lost}", list.iter().len());
    ed.add(code, Site::inode(inode), Cost::Cut, what);
    true
}

/// Repairs an inode with inline data but without the attribute `system.data`.
///
/// - If the inode is a directory, or `i_block` holds all its content, an empty attribute is added,
///   and the content of `i_block` stays. But if the inode has no area for attributes, the inode
///   itself is lost.
/// - If the inode is a larger file, or the attribute does not fit into the area, the content is
///   lost and the inode becomes empty.
pub(crate) fn without_inline_data(ed: &mut Editor<'_, '_>, inode: InodeNr, slot: &mut Slot) -> Outcome {
    let site = Site::inode(inode);
    let size = slot.raw().size();
    if slot.raw().file_type() == Some(FileType::Directory) || size <= 60 {
        let Some(at) = area_at(slot) else { return Outcome::Lost };
        let mut list = salvage(&slot.bytes()[at..], Home::Inode);
        let value = Value::Bytes(Vec::new());
        list.set(Attribute { index: XATTR_INDEX, name: XATTR_NAME.to_vec(), value });
        if list.write_inode_area(&mut slot.bytes_mut()[at..]) {
            ed.add(Code::INLINE_NO_ATTRIBUTE, site, Cost::Cut, "empty attribute for inline data added");
            return Outcome::Kept;
        }
    }
    let mut flags = slot.raw().flags();
    flags.remove(InodeFlags::INLINE_DATA);
    let mut root = [0; 60];
    if ed.volume().incompat.contains(Incompat::EXTENTS) {
        flags.insert(InodeFlags::EXTENTS);
        root[..2].copy_from_slice(&extent::MAGIC.to_le_bytes());
        root[4] = 4;
    }
    let raw = slot.raw_mut();
    raw.set_flags(flags);
    raw.i_block = root;
    raw.set_size(0);
    ed.add(Code::INLINE_NO_ATTRIBUTE, site, Cost::Cut, format!("{size} bytes of inline data lost"));
    debug_assert!(u64_from_usize(root.len()) >= 60, "a root fills the field");
    Outcome::Kept
}

/// The value of the attribute `system.data`; empty without this attribute.
pub(crate) fn inline_tail(slot: &Slot) -> Vec<u8> {
    let Some(at) = area_at(slot) else { return Vec::new() };
    match salvage(&slot.bytes()[at..], Home::Inode).find(XATTR_INDEX, XATTR_NAME).map(|found| &found.value) {
        Some(Value::Bytes(bytes)) => bytes.clone(),
        _ => Vec::new(),
    }
}

/// Gives the attribute `system.data` another value of the same length.
pub(crate) fn set_inline_tail(slot: &mut Slot, tail: Vec<u8>) {
    let Some(at) = area_at(slot) else { return };
    let mut list = salvage(&slot.bytes()[at..], Home::Inode);
    list.set(Attribute { index: XATTR_INDEX, name: XATTR_NAME.to_vec(), value: Value::Bytes(tail) });
    let fits = list.write_inode_area(&mut slot.bytes_mut()[at..]);
    debug_assert!(fits, "a value of the same length fits");
}

/// Removes the attribute `system.data`.
pub(crate) fn remove_inline_tail(slot: &mut Slot) {
    let Some(at) = area_at(slot) else { return };
    let mut list = salvage(&slot.bytes()[at..], Home::Inode);
    list.remove(XATTR_INDEX, XATTR_NAME);
    let fits = list.write_inode_area(&mut slot.bytes_mut()[at..]);
    debug_assert!(fits, "fewer attributes fit");
}

/// Keeps the attributes of a slot for which `keep` holds; returns the names of the others.
pub(crate) fn retain(slot: &mut Slot, keep: impl Fn(&Attribute) -> bool) -> Vec<(u8, Vec<u8>)> {
    let Some(at) = area_at(slot) else { return Vec::new() };
    let list = salvage(&slot.bytes()[at..], Home::Inode);
    let gone = list.iter().filter(|attribute| !keep(attribute));
    let gone: Vec<_> = gone.map(|attribute| (attribute.index, attribute.name.clone())).collect();
    if gone.is_empty() {
        return gone;
    }
    let mut kept = AttributeList::default();
    for attribute in list.iter().filter(|attribute| keep(attribute)) {
        kept.set(attribute.clone());
    }
    let fits = kept.write_inode_area(&mut slot.bytes_mut()[at..]);
    debug_assert!(fits, "fewer attributes fit");
    gone
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second entry ends where the area ends, so there is no zero word that ends the list.
    #[test]
    fn what_is_salvaged_fits_into_its_area() {
        let mut area = vec![0; 4 + 2 * 20];
        area[..4].copy_from_slice(&0xEA02_0000u32.to_le_bytes());
        for (at, name) in [(4, b'a'), (24, b'b')] {
            (area[at], area[at + 1], area[at + 16]) = (1, 1, name);
        }
        let list = salvage(&area, Home::Inode);
        assert_eq!(list.iter().map(|attribute| &attribute.name[..]).collect::<Vec<_>>(), [b"a"]);
        assert!(list.write_inode_area(&mut area));
    }
}
