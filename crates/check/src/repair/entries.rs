//! Entries of directories. Reading goes on after broken entries.

use std::ops::Range;

use blockyard_disk::dirblock::{
    DirLayout, ENTRY_LEN_MIN, HEADER_LEN, NAME_LEN_MAX, TAIL_LEN, decode_rec_len, stored_checksum,
};

use super::editor::Editor;

/// One name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) bytes: Vec<u8>,
    pub(crate) inode: u32,
    pub(crate) file_type: u8,
}

/// As [`entries`], but without the entries that name an impossible inode.
pub(crate) fn possible_entries(ed: &Editor<'_, '_>, block: &[u8], broken: &mut bool) -> Vec<Name> {
    let mut names = entries(ed, block, broken);
    names.retain(|name| name.inode <= ed.volume().geometry.inodes_count());
    names
}

/// Every entry in use that can be made out in a block, or in an area of an inline directory. Sets
/// `broken` if an entry is damaged. A sound entry is returned even if it names an impossible inode,
/// so that its removal can be reported by name.
pub(crate) fn entries(ed: &Editor<'_, '_>, block: &[u8], broken: &mut bool) -> Vec<Name> {
    let layout = ed.volume().dir_layout();
    let has_tail = layout.tail && block.len() == layout.block_size && stored_checksum(block).is_some();
    let end = if has_tail { block.len() - TAIL_LEN } else { block.len() };
    let mut names = Vec::new();
    let mut at = 0;
    while at + ENTRY_LEN_MIN <= end {
        let rec_len = decode_rec_len(u16::from_le_bytes([block[at + 4], block[at + 5]]), block.len());
        let left = end - at;
        let fits = rec_len >= ENTRY_LEN_MIN
            && rec_len.is_multiple_of(4)
            && rec_len <= left
            && (rec_len == left || left - rec_len >= ENTRY_LEN_MIN);
        let length = DirLayout::entry_len(usize::from(block[at + 6]));
        let own = if length <= left { name_at(ed, block, at) } else { None };
        let fits = fits && (own.is_some() || !is_garbage(ed, block, at..at + rec_len, end));
        if fits && length <= rec_len {
            // An entry for `.` that is too long hides the entries after it, and may end inside one
            // of them. Deletions never leave such an entry.
            let is_dot = own.as_ref().is_some_and(|own| own.bytes == b".");
            let leads_to = |to| is_chain(ed, block, at + length, to);
            let hides = is_dot && rec_len > length && (leads_to(at + rec_len) || leads_to(end));
            names.extend(any_name_at(ed, block, at));
            at += if hides { length } else { rec_len };
            continue;
        }
        *broken = true;
        if fits {
            // Only the length of the name is wrong. The name cannot be longer than the entry.
            names.extend(cut_name_at(ed, block, at, rec_len));
            at += rec_len;
            continue;
        }
        names.extend(own.clone());
        let from = if own.is_some() { at + length } else { at + 4 };
        at = resume(ed, block, from, end);
    }
    names
}

/// Whether an entry that names no possible inode is garbage whose length hides other entries. That
/// is so if the lengths of the entries after it do not lead to `end`, but a chain of entries that
/// begins inside it does.
fn is_garbage(ed: &Editor<'_, '_>, block: &[u8], entry: Range<usize>, end: usize) -> bool {
    let is_free = block[entry.start..entry.start + 4] == [0; 4];
    let mut inside = (entry.start + 4..entry.end).step_by(4);
    !is_free && !is_linked(block, entry.end, end) && inside.any(|from| is_chain(ed, block, from, end))
}

/// Whether the lengths of the entries from `from` on lead to `end`, whatever the entries name.
fn is_linked(block: &[u8], from: usize, end: usize) -> bool {
    debug_assert!(end <= block.len(), "entries up to byte {end} of {}", block.len());
    let mut at = from;
    while at + ENTRY_LEN_MIN <= end {
        let rec_len = decode_rec_len(u16::from_le_bytes([block[at + 4], block[at + 5]]), block.len());
        let length = DirLayout::entry_len(usize::from(block[at + 6]));
        if rec_len < length.max(ENTRY_LEN_MIN) || !rec_len.is_multiple_of(4) || rec_len > end - at {
            return false;
        }
        at += rec_len;
    }
    at == end
}

/// The next offset from which a chain of entries leads to the end; `end` if there is none.
fn resume(ed: &Editor<'_, '_>, block: &[u8], from: usize, end: usize) -> usize {
    (from..end).step_by(4).find(|&at| is_chain(ed, block, at, end)).unwrap_or(end)
}

fn is_chain(ed: &Editor<'_, '_>, block: &[u8], from: usize, end: usize) -> bool {
    let mut at = from;
    while at + ENTRY_LEN_MIN <= end {
        let rec_len = decode_rec_len(u16::from_le_bytes([block[at + 4], block[at + 5]]), block.len());
        let length = DirLayout::entry_len(usize::from(block[at + 6]));
        let free = block[at..at + 4] == [0; 4];
        if rec_len < length.max(ENTRY_LEN_MIN) || !rec_len.is_multiple_of(4) || rec_len > end - at {
            return false;
        }
        if !free && name_at(ed, block, at).is_none() {
            return false;
        }
        at += rec_len;
    }
    at == end && from < end
}

/// The entry at an offset, if it is in use and names a possible inode.
fn name_at(ed: &Editor<'_, '_>, block: &[u8], at: usize) -> Option<Name> {
    any_name_at(ed, block, at).filter(|name| name.inode <= ed.volume().geometry.inodes_count())
}

/// The entry at an offset, if it is in use, whatever inode it names.
fn any_name_at(ed: &Editor<'_, '_>, block: &[u8], at: usize) -> Option<Name> {
    let inode = u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    let length = usize::from(block[at + 6]);
    let bytes = block.get(at + HEADER_LEN..at + HEADER_LEN + length)?;
    let file_type = if ed.volume().dir_layout().file_types { block[at + 7] } else { 0 };
    (inode != 0 && length > 0).then(|| Name { bytes: bytes.to_vec(), inode, file_type })
}

/// The entry at an offset, if it is in use and names a possible inode. Its name is the rest of the
/// entry after the header, without the zeroes at the end.
fn cut_name_at(ed: &Editor<'_, '_>, block: &[u8], at: usize, rec_len: usize) -> Option<Name> {
    let inode = u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    let mut bytes = block[at + HEADER_LEN..at + rec_len].to_vec();
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    bytes.truncate(NAME_LEN_MAX);
    let possible = inode != 0 && inode <= ed.volume().geometry.inodes_count() && !bytes.is_empty();
    possible.then(|| Name { bytes, inode, file_type: block[at + 7] })
}
