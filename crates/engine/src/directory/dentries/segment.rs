//! Names and their inodes, in a hash table whose buckets are CPU cache lines.
//!
//! A line holds whole entries one after the other. A search compares whole names, so its answer is
//! exact, and it usually reads one line. A line holds three names of 13 bytes.
//!
//! ```text
//! line   passed: u8, used: u8, entries, unused bytes
//! entry  length of the name: u8, inode: u32, name
//! ```
//!
//! The hash of a name chooses its home line. The name goes to the first line with room among
//! [`REACH`] lines, beginning with the home line. `passed` counts the names that found no room in
//! the line and are in a line behind it. Once the count is 255, it stays 255. A search ends at a
//! line whose `passed` is 0. Names are unique within a segment.

use super::lines::{LINE, Lines};
use blockyard_disk::num::{low8, u32_from_usize, u64_from_usize, usize_from_u64};

/// How many lines may hold a name: its home line and those behind it.
const REACH: usize = 32;
/// Offset of the count of names that went past the line.
const PASSED: usize = 0;
/// Offset of the number of bytes that the line's entries take.
const USED: usize = 1;
/// Offset of the first entry.
const ENTRIES_AT: usize = 2;
/// Bytes of an entry without its name.
const HEAD: usize = 5;
/// The longest name that fits.
pub(super) const NAME_MAX: usize = LINE - ENTRIES_AT - HEAD;

/// A hash table of names, as the [module](self) describes it.
pub(super) struct Segment {
    lines: Lines,
    /// A power of two, at least [`REACH`].
    count: usize,
    /// Bytes of all entries.
    taken: usize,
}

impl Segment {
    /// An empty segment of `count` lines.
    pub(super) fn new(count: usize) -> Self {
        assert!(count.is_power_of_two() && count >= REACH, "{count} lines");
        Self { lines: Lines::zeroed(count), count, taken: 0 }
    }

    /// How many lines the segment has.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// Whether the segment is so full that names begin to lie far from their home lines.
    pub(super) const fn is_full(&self) -> bool {
        self.taken * 8 > self.count * LINE * 5
    }

    /// Whether the segment is so empty that a name finds no room only if many hashes are similar.
    pub(super) const fn is_sparse(&self) -> bool {
        self.taken * 8 < self.count * LINE
    }

    /// The inode of a name. The upper bits of `hash` choose its home line.
    #[inline]
    pub(super) fn find(&self, hash: u64, name: &[u8]) -> Option<u32> {
        for number in self.way(hash) {
            let line = self.lines.line(number);
            if let Some(at) = place(line, name) {
                return inode_at(line, at);
            }
            if line[PASSED] == 0 {
                break;
            }
        }
        None
    }

    /// Enters a name or changes its inode. False if no line in reach of the name's home has room.
    #[must_use]
    pub(super) fn set(&mut self, hash: u64, name: &[u8], inode: u32) -> bool {
        let wanted = HEAD + name.len();
        let mut room = None;
        for (step, number) in self.way(hash).enumerate() {
            let line = self.lines.line_mut(number);
            if let Some(at) = place(line, name) {
                line[at + 1..at + HEAD].copy_from_slice(&inode.to_le_bytes());
                return true;
            }
            if room.is_none() && ENTRIES_AT + usize::from(line[USED]) + wanted <= LINE {
                room = Some(step);
            }
            if room.is_some() && line[PASSED] == 0 {
                break;
            }
        }
        let Some(room) = room else { return false };
        for (step, number) in self.way(hash).enumerate().take(room + 1) {
            let line = self.lines.line_mut(number);
            if step < room {
                line[PASSED] = line[PASSED].saturating_add(1);
            } else {
                push(line, name, inode);
            }
        }
        self.taken += wanted;
        true
    }

    /// Removes a name if it is there.
    pub(super) fn remove(&mut self, hash: u64, name: &[u8]) {
        let mut found = None;
        for (step, number) in self.way(hash).enumerate() {
            let line = self.lines.line_mut(number);
            if let Some(at) = place(line, name) {
                take(line, at);
                found = Some(step);
            }
            if found.is_some() || line[PASSED] == 0 {
                break;
            }
        }
        let Some(found) = found else { return };
        self.taken -= HEAD + name.len();
        for number in self.way(hash).take(found) {
            let passed = &mut self.lines.line_mut(number)[PASSED];
            if *passed < u8::MAX {
                *passed -= 1;
            }
        }
    }

    /// Calls `visit` with every name and its inode, in line order, which is nearly hash order.
    pub(super) fn for_each(&self, mut visit: impl FnMut(&[u8], u32)) {
        for number in 0..self.count {
            let line = self.lines.line(number);
            for at in entries(line) {
                if let Some(inode) = inode_at(line, at) {
                    visit(&line[at + HEAD..after(line, at)], inode);
                }
            }
        }
    }

    /// Removes all names.
    pub(super) fn clear(&mut self) {
        self.lines.clear();
        self.taken = 0;
    }

    /// The lines that may hold a name with this hash, its home line first.
    fn way(&self, hash: u64) -> impl Iterator<Item = usize> + use<> {
        let mask = self.count - 1;
        let home = usize_from_u64(hash >> (u64::BITS - u64_from_usize(self.count).trailing_zeros()));
        (home..home + REACH).map(move |number| number & mask)
    }
}

/// Offset of a name's entry in a line.
#[inline]
fn place(line: &[u8; LINE], name: &[u8]) -> Option<usize> {
    entries(line).find(|&at| usize::from(line[at]) == name.len() && line[at + HEAD..].starts_with(name))
}

/// Offsets of a line's entries.
#[inline]
fn entries(line: &[u8; LINE]) -> impl Iterator<Item = usize> {
    let end = ENTRIES_AT + usize::from(line[USED]);
    let first = (ENTRIES_AT < end).then_some(ENTRIES_AT);
    std::iter::successors(first, move |&at| Some(after(line, at)).filter(|&next| next < end))
}

/// End of an entry.
#[inline]
fn after(line: &[u8; LINE], at: usize) -> usize {
    at + HEAD + usize::from(line[at])
}

#[inline]
fn inode_at(line: &[u8; LINE], at: usize) -> Option<u32> {
    line[at + 1..].first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

/// Writes an entry behind the others of a line. The line must have room for it.
fn push(line: &mut [u8; LINE], name: &[u8], inode: u32) {
    let at = ENTRIES_AT + usize::from(line[USED]);
    let len = low8(u32_from_usize(name.len()));
    line[at] = len;
    line[at + 1..at + HEAD].copy_from_slice(&inode.to_le_bytes());
    line[at + HEAD..at + HEAD + name.len()].copy_from_slice(name);
    line[USED] += low8(u32_from_usize(HEAD)) + len;
}

/// Takes an entry out of a line. The entries behind it close the gap.
fn take(line: &mut [u8; LINE], at: usize) {
    let (next, end) = (after(line, at), ENTRIES_AT + usize::from(line[USED]));
    line.copy_within(next..end, at);
    line[USED] -= low8(u32_from_usize(next - at));
}
