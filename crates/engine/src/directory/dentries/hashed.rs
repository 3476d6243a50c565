//! Names of one directory and their inodes, by hash.
//!
//! Names are in [segments](super::segment). A full segment is doubled until it fills one huge page.
//! From then on it is split in two by one more bit of the hash, so entering a name moves a bounded
//! number of others, whatever the directory's size. If there is no memory for this, or the table
//! has its greatest size, the full segment takes names until a name finds no room, and is then
//! emptied. If many names were chosen so that their hashes collide, some are not kept.

use super::budget::Reserved;
use super::lines::{HUGE, LINE};
use super::segment::Segment;
use super::{Dentry, DentryCache};
use blockyard_disk::InodeNr;
use blockyard_disk::num::{high64, low64, u64_from_usize, usize_from_u64};

/// Lines of the first segment: as many bytes as a block of 4 KiB.
const LINES_MIN: usize = 64;
/// Lines at which a segment is split instead of grown.
const LINES_MAX: usize = HUGE / LINE;
/// Largest number of hash bits that choose a segment. It bounds the size of the index. 2^12 full
/// segments of 2 MiB would take 8 GiB.
const DEPTH_MAX: u32 = 12;
/// Attempts to make room for one name.
const TRIES: usize = 4;

/// The cached names of one directory, as the [module](self) describes them.
pub(super) struct Hashed {
    parts: Vec<Part>,
    /// The part for each value of a hash's upper bits.
    index: Vec<u16>,
    /// How many upper bits choose a part: at most [`DEPTH_MAX`].
    bits: u32,
}

/// A segment with its properties.
struct Part {
    segment: Segment,
    /// How many upper bits the hashes of all its names share.
    depth: u32,
    /// Whether it has every short name (at most 57 bytes) of the directory that hashes to this
    /// part.
    complete: bool,
    _memory: Reserved,
}

impl Hashed {
    /// An empty table, if there is memory for it. `complete` says that the caller will enter every
    /// short name of the directory.
    pub(super) fn new(cache: &DentryCache, complete: bool) -> Option<Self> {
        let part = Part::new(cache, LINES_MIN, 0, complete)?;
        Some(Self { parts: vec![part], index: vec![0], bits: 0 })
    }

    /// What is known about a name.
    #[inline]
    pub(super) fn ask(&self, name: &[u8]) -> Dentry {
        let hash = hash(name);
        let part = &self.parts[self.part_of(hash)];
        match part.segment.find(hash << part.depth, name) {
            Some(inode) => Dentry::Inode(InodeNr::new(inode)),
            None if part.complete => Dentry::Absent,
            None => Dentry::Unknown,
        }
    }

    /// Notes that the part to which this name hashes may lack short names of the directory.
    pub(super) fn doubt(&mut self, name: &[u8]) {
        let part = self.part_of(hash(name));
        self.parts[part].complete = false;
    }

    /// Enters a name or changes its inode, if room can be made. Otherwise forgets the name.
    pub(super) fn set(&mut self, cache: &DentryCache, name: &[u8], inode: InodeNr) {
        let hash = hash(name);
        for _ in 0..TRIES {
            let number = self.part_of(hash);
            let part = &mut self.parts[number];
            if !part.segment.is_full() && part.set(hash, name, inode) {
                return;
            }
            if part.segment.is_sparse() {
                break;
            }
            if self.grow(cache, number) {
                continue;
            }
            let part = &mut self.parts[number];
            if part.set(hash, name, inode) {
                return;
            }
            part.segment.clear();
            part.complete = false;
        }
        // The table may still have the name with its old inode.
        self.remove(name);
        let number = self.part_of(hash);
        self.parts[number].complete = false;
    }

    /// Removes a name if it is there.
    pub(super) fn remove(&mut self, name: &[u8]) {
        let hash = hash(name);
        let number = self.part_of(hash);
        let part = &mut self.parts[number];
        part.segment.remove(hash << part.depth, name);
    }

    /// Numbers of segments and of names in them.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        let mut names = 0;
        for part in &self.parts {
            part.segment.for_each(|_, _| names += 1);
        }
        (self.parts.len(), names)
    }

    #[inline]
    fn part_of(&self, hash: u64) -> usize {
        // Shifts in two steps, because one shift by 64 bits is not allowed.
        usize::from(self.index[usize_from_u64(hash >> 1 >> (63 - self.bits))])
    }

    /// Makes room in a part. False if there is no memory for it, or if the part cannot be split any
    /// more.
    fn grow(&mut self, cache: &DentryCache, number: usize) -> bool {
        let part = &self.parts[number];
        let (depth, complete, count) = (part.depth, part.complete, part.segment.count());
        if count < LINES_MAX {
            let Some(mut larger) = Part::new(cache, 2 * count, depth, complete) else { return false };
            part.segment.for_each(|name, inode| larger.take_over(hash(name), name, inode));
            self.parts[number] = larger;
            return true;
        }
        if depth == DEPTH_MAX {
            return false;
        }
        let half = || Part::new(cache, count, depth + 1, complete);
        let (Some(mut lower), Some(mut upper)) = (half(), half()) else { return false };
        part.segment.for_each(|name, inode| {
            let hash = hash(name);
            let half = if hash << depth >> 63 == 0 { &mut lower } else { &mut upper };
            half.take_over(hash, name, inode);
        });
        self.replace_by_halves(number, lower, upper);
        true
    }

    fn replace_by_halves(&mut self, number: usize, lower: Part, upper: Part) {
        let depth = lower.depth;
        if depth > self.bits {
            self.index = self.index.iter().flat_map(|&part| [part, part]).collect();
            self.bits = depth;
        }
        let added = u16::try_from(self.parts.len()).expect("there are at most 2^DEPTH_MAX parts");
        for (position, part) in self.index.iter_mut().enumerate() {
            let is_upper = u64_from_usize(position) >> (self.bits - depth) & 1 == 1;
            if usize::from(*part) == number && is_upper {
                *part = added;
            }
        }
        self.parts[number] = lower;
        self.parts.push(upper);
    }
}

impl Part {
    fn new(cache: &DentryCache, lines: usize, depth: u32, complete: bool) -> Option<Self> {
        let memory = cache.reserve(lines * LINE)?;
        Some(Self { segment: Segment::new(lines), depth, complete, _memory: memory })
    }

    fn set(&mut self, hash: u64, name: &[u8], inode: InodeNr) -> bool {
        self.segment.set(hash << self.depth, name, inode.raw())
    }

    /// Takes over a name of the part that this one replaces.
    fn take_over(&mut self, hash: u64, name: &[u8], inode: u32) {
        if !self.segment.set(hash << self.depth, name, inode) {
            self.complete = false;
        }
    }
}

/// A hash of a name, for in-memory tables only: one multiplication for each eight bytes. Both
/// halves of the product go into the hash.
fn hash(name: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    let mix = |state: u64, word: u64| {
        let product = u128::from(state ^ word) * u128::from(FACTOR);
        low64(product) ^ high64(product)
    };
    let (words, rest) = name.as_chunks::<8>();
    let start = u64_from_usize(name.len()).wrapping_mul(FACTOR);
    let state = words.iter().fold(start, |state, word| mix(state, u64::from_le_bytes(*word)));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    mix(mix(state, u64::from_le_bytes(last)), FACTOR)
}
