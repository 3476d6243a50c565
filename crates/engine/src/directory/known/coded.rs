//! The names of one directory as their [codes](super::alphabets), with the inodes that they stand for.
//!
//! Names that are made in the order of their rule are a few [runs](super::runs). When those are too many, all names go to a
//! hash table whose buckets are lines of the CPU's cache. The hash turns the numbers below a power of two into one another,
//! so nothing of a code is lost: its upper part chooses the line, and the few bits that the line does not tell are kept beside
//! the inode. An answer is exact without the name. A million names of eight hexadecimal digits take 7 MB.
//!
//! ```text
//! line   entries of 4 to 8 bytes, one behind the other, zeroes
//! entry  inode << rest | lowest `rest` bits of the mixed code
//! ```
//!
//! An entry is in its home or in one of the [`REACH`] - 1 lines behind it; all lines between are full. Lines are in the order of
//! the mixed codes, so growing moves entries from front to back.

use super::alphabets::Alphabets;
use super::budget::Reserved;
use super::lines::{LINE, Lines};
use super::runs::Runs;
use super::segment::NAME_MAX;
use super::{Known, NameCache};
use blockyard_disk::InodeNr;
use blockyard_disk::num::{high64, low64, u32_from_u64, u64_from_u32, u64_from_usize, usize_from_u64};
use blockyard_sync::prefetch;

/// Lines that a name may be in.
const REACH: usize = 4;
/// Homes of a small table: the names of one block of 4 KiB.
const HOMES_MIN: usize = 64;
/// From this many homes on a table grows by a quarter; before, it doubles.
const HOMES_LARGE: usize = 4096;
/// From this many homes on, two megabytes, a table grows by an eighth: how much of it the CPU's cache holds decides then.
const HOMES_HUGE: usize = 32_768;
/// Times that a table is made larger for one name.
const TRIES: usize = 8;
/// Entries that are moved to enter one: names may be chosen to displace one another through the whole table. Those chosen at
/// random rarely move more than a few.
const MOVES_MAX: usize = 64;
/// Names that are passed by when there was no memory for larger alphabets.
const PAUSE: u32 = 4096;
/// Times that each name may get another code, on average: who learns on and on has no rule.
const RECODED_MAX: usize = 32;
/// Bytes that are read for an entry.
const WORD: usize = size_of::<u64>();
/// Odd factors, and what undoes them modulo every power of two.
const FACTORS: [u64; 3] = [0x9E37_79B9_7F4A_7C15, 0xC2B2_AE3D_27D4_EB4F, 0xD6E8_FEB8_6659_FD93];
const INVERSES: [u64; 3] = [inverse(FACTORS[0]), inverse(FACTORS[1]), inverse(FACTORS[2])];

/// See the module's text.
pub(super) struct Coded {
    alphabets: Alphabets,
    /// All names, as long as they are few runs; the lines are empty then.
    runs: Option<Runs>,
    lines: Lines,
    shape: Shape,
    entries: usize,
    /// The largest inode so far.
    inode_max: u32,
    /// It has every short name of the directory.
    complete: bool,
    /// Names that are not learned from before the next attempt: there was no memory.
    pause: u32,
    /// Names that got another code because others were learned, and lines that were read for it: a table that was emptied
    /// has few names to count.
    recoded: usize,
    _memory: Reserved,
}

/// What became of a name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entered {
    /// It is in the table, or nothing is known of it for want of memory.
    Done,
    /// No rule of few enough bits makes this name and the others.
    NoRule,
    /// There is no memory for entries that have room for its inode: whoever keeps the table would empty it for each such name.
    NoMemory,
}

/// How codes and inodes are in lines.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Mixed codes have this many bits.
    bits: u32,
    /// Lines that are a home.
    homes: usize,
    /// Bits of a mixed code that an entry keeps.
    rest: u32,
    /// Bytes of an entry.
    width: usize,
    /// Entries of a line.
    slots: usize,
}

impl Coded {
    /// No names, if there is memory for some; whether the directory has no others.
    pub(super) fn new(cache: &NameCache, complete: bool) -> Option<Self> {
        let mut new = Self::of(cache, Alphabets::new(), Shape::new(1, HOMES_MIN, 1)?)?;
        (new.runs, new.complete) = (Some(Runs::new()), complete);
        Some(new)
    }

    fn of(cache: &NameCache, alphabets: Alphabets, shape: Shape) -> Option<Self> {
        let memory = cache.reserve(Self::memory(&alphabets, shape))?;
        let lines = Lines::zeroed(shape.homes + REACH - 1);
        Some(Self {
            alphabets,
            runs: None,
            lines,
            shape,
            entries: 0,
            inode_max: 1,
            complete: false,
            pause: 0,
            recoded: 0,
            _memory: memory,
        })
    }

    /// Bytes of memory, runs or not.
    fn memory(alphabets: &Alphabets, shape: Shape) -> usize {
        Lines::memory(shape.homes + REACH - 1) + alphabets.memory() + Runs::MEMORY
    }

    /// Bytes of memory that must be reserved for it now.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        Self::memory(&self.alphabets, self.shape)
    }

    /// What is known of a name.
    #[inline]
    pub(super) fn ask(&self, name: &[u8]) -> Known {
        let found = self.alphabets.encode(name).and_then(|code| match &self.runs {
            Some(runs) => runs.find(code),
            None => self
                .find(self.shape.mix(code))
                .map(|(number, slot)| self.shape.inode(self.word(number, slot))),
        });
        match found {
            Some(inode) => Known::As(inode),
            None if self.complete => Known::Absent,
            None => Known::Not,
        }
    }

    /// A name will be asked for soon.
    pub(super) fn expect_ask(&self, name: &[u8]) {
        if self.runs.is_none()
            && let Some(code) = self.alphabets.encode(name)
        {
            prefetch(self.lines.line(self.shape.home(self.shape.mix(code))));
        }
    }

    /// Whether it has every short name of the directory.
    pub(super) const fn is_complete(&self) -> bool {
        self.complete
    }

    /// Not every short name of the directory may be here.
    pub(super) const fn doubt(&mut self) {
        self.complete = false;
    }

    /// Learns to spell names that are about to come.
    pub(super) fn expect<'b>(&mut self, cache: &NameCache, names: impl Iterator<Item = &'b [u8]>) -> Entered {
        self.recoded += self.names() + self.shape.homes;
        if self.recoded > RECODED_MAX * self.names().max(1000) {
            return Entered::NoRule;
        }
        let Some(alphabets) = self.alphabets.learn(names) else { return Entered::NoRule };
        // Of the empty table, too, which may be all that is left when there is no memory.
        let shape = Shape::new(alphabets.codes(), self.shape.homes, self.inode_max);
        if let (Some(runs), Some(shape)) = (self.recoded_runs(&alphabets), shape) {
            match cache.reserve(Self::memory(&alphabets, shape)) {
                Some(memory) => self._memory = memory,
                None => {
                    (self.complete, self.pause) = (false, PAUSE);
                    return Entered::Done;
                }
            }
            (self.runs, self.alphabets, self.shape) = (Some(runs), alphabets, shape);
            return Entered::Done;
        }
        match self.remade(cache, &alphabets, self.homes()) {
            Remade::As(new) => *self = new,
            Remade::NoRule => return Entered::NoRule,
            Remade::NoMemory => (self.complete, self.pause) = (false, PAUSE),
        }
        Entered::Done
    }

    /// Enters a name, or has it stand for another inode.
    pub(super) fn set(&mut self, cache: &NameCache, name: &[u8], inode: InodeNr) -> Entered {
        if self.alphabets.encode(name).is_none() {
            if self.pause > 0 {
                (self.complete, self.pause) = (false, self.pause - 1);
                return Entered::Done;
            }
            if self.expect(cache, std::iter::once(name)) == Entered::NoRule {
                return Entered::NoRule;
            }
        }
        let Some(code) = self.alphabets.encode(name) else { return Entered::Done };
        self.inode_max = self.inode_max.max(inode.raw());
        if let Some(runs) = &mut self.runs {
            return if runs.set(code, inode) { Entered::Done } else { self.scatter(cache) };
        }
        for _ in 0..TRIES {
            let mut homes = self.shape.homes;
            if self.shape.holds(inode) {
                if self.put(self.shape.mix(code), inode) {
                    return Entered::Done;
                }
                if self.is_sparse() {
                    return Entered::NoRule;
                }
                homes = larger(homes);
            }
            match self.remade(cache, &self.alphabets, homes) {
                Remade::As(new) => *self = new,
                Remade::NoRule => return Entered::NoRule,
                Remade::NoMemory if self.shape.holds(inode) => {
                    self.start_over();
                    return Entered::Done;
                }
                Remade::NoMemory => return Entered::NoMemory,
            }
        }
        Entered::NoRule
    }

    /// Removes a name if it is there.
    pub(super) fn remove(&mut self, cache: &NameCache, name: &[u8]) -> Entered {
        let Some(code) = self.alphabets.encode(name) else { return Entered::Done };
        if let Some(runs) = &mut self.runs {
            return if runs.remove(code) { Entered::Done } else { self.scatter(cache) };
        }
        self.take(self.shape.mix(code));
        Entered::Done
    }

    /// Names.
    fn names(&self) -> usize {
        self.runs.as_ref().map_or(self.entries, Runs::len)
    }

    /// Homes of a table of all names, to begin with.
    fn homes(&self) -> usize {
        self.runs.as_ref().map_or(self.shape.homes, |runs| (runs.len() / (LINE / WORD)).max(HOMES_MIN))
    }

    /// The runs by other alphabets; `None` when they are too many then, or there are none now.
    fn recoded_runs(&self, alphabets: &Alphabets) -> Option<Runs> {
        self.runs.as_ref()?;
        let (mut runs, mut few) = (Runs::new(), true);
        self.for_each(|name, inode| {
            few = few && alphabets.encode(name).is_some_and(|code| runs.set(code, inode));
        });
        few.then_some(runs)
    }

    /// Puts the names of all runs into a table.
    fn scatter(&mut self, cache: &NameCache) -> Entered {
        match self.remade(cache, &self.alphabets, self.homes()) {
            Remade::As(new) => *self = new,
            Remade::NoRule => return Entered::NoRule,
            Remade::NoMemory => self.start_over(),
        }
        Entered::Done
    }

    /// Removes a mixed code; false when it is not there.
    fn take(&mut self, mixed: u64) -> bool {
        let Some((mut number, mut slot)) = self.find(mixed) else { return false };
        self.entries -= 1;
        // The hole is filled from the lines behind, as long as they have what could not stay in front of them.
        loop {
            let full = self.word(number, self.shape.slots - 1) != 0;
            let after = if full { self.displaced(number) } else { None };
            let Some((behind, at)) = after else { break };
            let word = self.word(behind, at);
            self.set_word(number, slot, word);
            (number, slot) = (behind, at);
        }
        let last = self.free(number).unwrap_or(self.shape.slots) - 1;
        let word = self.word(number, last);
        self.set_word(number, slot, word);
        self.set_word(number, last, 0);
        true
    }

    /// Calls `visit` with every name and its inode, in the order of the mixed codes but for a few lines.
    pub(super) fn for_each(&self, mut visit: impl FnMut(&[u8], InodeNr)) {
        let mut buffer = [0; NAME_MAX];
        if let Some(runs) = &self.runs {
            return runs.for_each(|code, inode| visit(self.alphabets.decode(code, &mut buffer), inode));
        }
        self.for_each_mixed(|mixed, inode| {
            visit(self.alphabets.decode(self.shape.unmix(mixed), &mut buffer), inode);
        });
    }

    fn for_each_mixed(&self, mut visit: impl FnMut(u64, InodeNr)) {
        for number in 0..self.shape.homes + REACH - 1 {
            let first = self.shape.first_before(number);
            for slot in 0..self.shape.slots {
                let word = self.word(number, slot);
                if word == 0 {
                    break;
                }
                visit(self.shape.mixed(word, first), self.shape.inode(word));
            }
        }
    }

    /// The line and the slot of a mixed code.
    #[inline]
    fn find(&self, mixed: u64) -> Option<(usize, usize)> {
        let (home, rest) = (self.shape.home(mixed), mixed & self.shape.rest_mask());
        for number in home..home + REACH {
            let line = self.lines.line(number);
            for slot in 0..self.shape.slots {
                let word = self.shape.word(line, slot);
                if word == 0 {
                    return None;
                }
                if word & self.shape.rest_mask() == rest {
                    return Some((number, slot));
                }
            }
        }
        None
    }

    /// Enters a mixed code, or has it stand for another inode; false when there is no room.
    #[must_use]
    fn put(&mut self, mixed: u64, inode: InodeNr) -> bool {
        let word = self.shape.entry(mixed, inode);
        if let Some((number, slot)) = self.find(mixed) {
            self.set_word(number, slot, word);
            return true;
        }
        self.put_new(mixed, word).is_some()
    }

    /// Enters a mixed code that is not there, and gives the line that has an entry more then. Who has the last home in a full
    /// line goes on to the next one. `None` when one of them would go too far, or too many would: nothing has changed then. A
    /// removal moves back what entries have moved, so the bound here is one for both, on average.
    fn put_new(&mut self, mixed: u64, word: u64) -> Option<usize> {
        if self.shape.is_full(self.entries) {
            return None;
        }
        let mut moved: Vec<(usize, usize, u64)> = Vec::new();
        let (mut home, mut word) = (self.shape.home(mixed), word);
        let mut number = home;
        while number < home + REACH && moved.len() < MOVES_MAX {
            if let Some(free) = self.free(number) {
                self.set_word(number, free, word);
                self.entries += 1;
                return Some(number);
            }
            let (last_home, slot) = self.last_home(number);
            if last_home > home {
                let other = self.word(number, slot);
                moved.push((number, slot, other));
                self.set_word(number, slot, word);
                (home, word) = (last_home, other);
            }
            number += 1;
        }
        for (number, slot, word) in moved.into_iter().rev() {
            self.set_word(number, slot, word);
        }
        None
    }

    /// The first slot of a line that holds nothing.
    fn free(&self, number: usize) -> Option<usize> {
        let line = self.lines.line(number);
        (0..self.shape.slots).find(|&slot| self.shape.word(line, slot) == 0)
    }

    /// The last of the homes of a full line's entries, and where that entry is.
    fn last_home(&self, number: usize) -> (usize, usize) {
        let first = self.shape.first_before(number);
        let home = |slot| self.shape.home(self.shape.mixed(self.word(number, slot), first));
        (0..self.shape.slots).map(|slot| (home(slot), slot)).max().expect("a line has slots")
    }

    /// An entry of the lines behind this one that has its home here or in front.
    fn displaced(&self, number: usize) -> Option<(usize, usize)> {
        for behind in number + 1..(number + REACH).min(self.shape.homes + REACH - 1) {
            let first = self.shape.first_before(behind);
            for slot in 0..self.shape.slots {
                let word = self.word(behind, slot);
                if word == 0 {
                    return None;
                }
                if self.shape.home(self.shape.mixed(word, first)) <= number {
                    return Some((behind, slot));
                }
            }
        }
        None
    }

    /// Whether so little is taken that only codes of like hashes find no room.
    const fn is_sparse(&self) -> bool {
        self.entries * 2 < self.shape.homes * self.shape.slots
    }

    /// The same names by other alphabets, or in more lines. Alphabets that learned have more codes.
    fn remade(&self, cache: &NameCache, alphabets: &Alphabets, mut homes: usize) -> Remade {
        let same = alphabets.codes() == self.alphabets.codes() && self.runs.is_none();
        for _ in 0..TRIES {
            // With half as many inodes again, so that the next ones need no other shape.
            let shape = [self.inode_max.saturating_add(self.inode_max / 2), self.inode_max]
                .into_iter()
                .find_map(|inode_max| Shape::new(alphabets.codes(), homes, inode_max));
            let Some(shape) = shape else { return Remade::NoRule };
            homes = larger(homes);
            if shape.is_full(self.names() + 1) {
                continue;
            }
            let Some(mut new) = Self::of(cache, alphabets.clone(), shape) else { return Remade::NoMemory };
            (new.complete, new.inode_max, new.recoded) = (self.complete, self.inode_max, self.recoded);
            if self.copy_into(&mut new, same) {
                return Remade::As(new);
            }
        }
        Remade::NoRule
    }

    /// False when there is no room for all names.
    fn copy_into(&self, new: &mut Self, same_codes: bool) -> bool {
        let mut all = true;
        if same_codes {
            let mut taken = vec![0; new.shape.homes + REACH - 1];
            self.for_each_mixed(|mixed, inode| all &= new.put_counted(&mut taken, mixed, inode));
        } else {
            self.for_each(|name, inode| {
                let code = new.alphabets.encode(name);
                all &= code.is_some_and(|code| new.put(new.shape.mix(code), inode));
            });
        }
        all
    }

    /// [`Self::put_new`] for who enters many and counts the slots that are taken of each line.
    fn put_counted(&mut self, taken: &mut [u8], mixed: u64, inode: InodeNr) -> bool {
        let (home, word) = (self.shape.home(mixed), self.shape.entry(mixed, inode));
        let slot = usize::from(taken[home]);
        let line = if slot < self.shape.slots && !self.shape.is_full(self.entries) {
            self.set_word(home, slot, word);
            self.entries += 1;
            Some(home)
        } else {
            self.put_new(mixed, word)
        };
        line.inspect(|&line| taken[line] += 1).is_some()
    }

    /// Forgets all names: there is no memory for more.
    fn start_over(&mut self) {
        self.lines.clear();
        (self.runs, self.entries, self.complete) = (None, 0, false);
    }

    #[inline]
    fn word(&self, number: usize, slot: usize) -> u64 {
        self.shape.word(self.lines.line(number), slot)
    }

    fn set_word(&mut self, number: usize, slot: usize, word: u64) {
        let width = self.shape.width;
        self.lines.line_mut(number)[slot * width..][..width].copy_from_slice(&word.to_le_bytes()[..width]);
    }
}

/// What came of making a table anew.
enum Remade {
    As(Coded),
    NoRule,
    NoMemory,
}

impl Shape {
    /// For codes below `codes` and inodes up to `inode_max`; `None` when an entry would need more than a word.
    fn new(codes: u64, homes: usize, inode_max: u32) -> Option<Self> {
        let bits = (u64::BITS - codes.saturating_sub(1).leading_zeros()).max(1);
        // What distinguishes the codes of as many homes as an entry of a line may come from.
        let range = (1u64 << bits).div_ceil(u64_from_usize(homes)) * u64_from_usize(REACH);
        let rest = (u64::BITS - (range - 1).leading_zeros()).min(bits);
        let width = (rest + (u32::BITS - inode_max.leading_zeros())).div_ceil(8).max(4);
        let width = usize::try_from(width).ok().filter(|&width| width <= WORD)?;
        Some(Self { bits, homes, rest, width, slots: (LINE - WORD) / width + 1 })
    }

    /// Whether entries have room for an inode.
    const fn holds(self, inode: InodeNr) -> bool {
        u64_from_u32(inode.raw()) <= self.word_mask() >> self.rest
    }

    /// Whether entries begin to go far from home.
    const fn is_full(self, entries: usize) -> bool {
        entries * 8 >= self.homes * self.slots * 7
    }

    #[inline]
    const fn rest_mask(self) -> u64 {
        (1 << self.rest) - 1
    }

    #[inline]
    const fn word_mask(self) -> u64 {
        u64::MAX >> (8 * (WORD - self.width))
    }

    /// Scatters a code over the numbers of as many bits, each to another one.
    #[inline]
    fn mix(self, code: u64) -> u64 {
        let (mask, half) = ((1 << self.bits) - 1, self.bits.div_ceil(2));
        FACTORS.iter().fold(code, |code, factor| {
            let product = code.wrapping_mul(*factor) & mask;
            product ^ product >> half
        })
    }

    /// Undoes [`Self::mix`]: a shift of half the bits undoes itself.
    fn unmix(self, mixed: u64) -> u64 {
        let (mask, half) = ((1 << self.bits) - 1, self.bits.div_ceil(2));
        INVERSES
            .iter()
            .rev()
            .fold(mixed, |mixed, inverse| (mixed ^ mixed >> half).wrapping_mul(*inverse) & mask)
    }

    /// The line where the search for a mixed code begins.
    #[inline]
    fn home(self, mixed: u64) -> usize {
        usize_from_u64(high64(
            u128::from(mixed << (u64::BITS - self.bits)) * u128::from(u64_from_usize(self.homes)),
        ))
    }

    /// The least mixed code that may be in a line.
    fn first_before(self, number: usize) -> u64 {
        let home = u128::from(u64_from_usize(number.saturating_sub(REACH - 1)));
        low64((home << self.bits).div_ceil(u128::from(u64_from_usize(self.homes))))
    }

    /// The mixed code of an entry in a line for which [`Self::first_before`] gave `first`.
    const fn mixed(self, word: u64, first: u64) -> u64 {
        first + (word.wrapping_sub(first) & self.rest_mask())
    }

    const fn entry(self, mixed: u64, inode: InodeNr) -> u64 {
        u64_from_u32(inode.raw()) << self.rest | mixed & self.rest_mask()
    }

    #[inline]
    fn inode(self, word: u64) -> InodeNr {
        InodeNr::new(u32_from_u64(word >> self.rest))
    }

    #[inline]
    fn word(self, line: &[u8; LINE], slot: usize) -> u64 {
        let bytes = line[slot * self.width..].first_chunk().expect("slots end a word before the line's end");
        u64::from_le_bytes(*bytes) & self.word_mask()
    }
}

const fn larger(homes: usize) -> usize {
    match homes {
        0..HOMES_LARGE => homes * 2,
        HOMES_LARGE..HOMES_HUGE => homes + homes / 4,
        HOMES_HUGE.. => homes + homes / 8,
    }
}

/// What undoes the multiplication by an odd number modulo 2^64: each round doubles the bits that are right.
const fn inverse(factor: u64) -> u64 {
    let mut inverse = factor;
    let mut round = 0;
    while round < 5 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(factor.wrapping_mul(inverse)));
        round += 1;
    }
    inverse
}

#[cfg(test)]
mod tests {
    #![allow(clippy::as_conversions)]

    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Whatever the shape, a code becomes another number of as many bits, and a line and the rest give it back.
    fn check_shape(shape: Shape, codes: impl Iterator<Item = u64>) {
        for code in codes {
            let mixed = shape.mix(code);
            assert!(mixed < 1 << shape.bits, "{code} of {shape:?}");
            assert_eq!(shape.unmix(mixed), code, "{shape:?}");
            let home = shape.home(mixed);
            assert!(home < shape.homes, "{code} of {shape:?}");
            for number in home..home + REACH {
                let entry = shape.entry(mixed, InodeNr::new(1));
                assert_eq!(shape.mixed(entry, shape.first_before(number)), mixed, "{code} of {shape:?}");
            }
        }
    }

    #[test]
    fn codes_scatter_and_come_back() {
        for codes in [1, 2, 3, 10, 255, 256, 1000, 65_537] {
            for homes in [64, 80, 100, 4096] {
                let shape = Shape::new(codes, homes, 1_000).unwrap();
                check_shape(shape, 0..codes);
                let mixed: std::collections::BTreeSet<_> = (0..codes).map(|code| shape.mix(code)).collect();
                assert_eq!(mixed.len(), usize_from_u64(codes));
            }
        }
        for (codes, homes) in [(1 << 32, 116_508), (10_000_000, 5_120), ((1 << 44) - 3, 1 << 20)] {
            let shape = Shape::new(codes, homes, 4_000_000).unwrap();
            check_shape(shape, (0..codes).step_by(usize_from_u64(codes / 10_007)));
        }
        assert!(Shape::new((1 << 48) - 1, 64, u32::MAX).is_none());
    }

    /// Names that bring a new byte again and again are not worth a code.
    #[test]
    fn learning_ends() {
        let cache = NameCache::new(64 << 20);
        let mut table = Coded::new(&cache, true).unwrap();
        let mut entered = (0..100_000u32).map(|number| {
            // Every 500th name has a byte that its place did not have before.
            let (place, byte) = ((number / 500 % 3) as usize, (number / 1500 + 60) as u8);
            let mut name = format!("{number:06}...").into_bytes();
            name[6 + place] = if number % 500 == 0 { byte } else { b'.' };
            table.set(&cache, &name, InodeNr::new(number + 1))
        });
        let end = entered.position(|entered| entered == Entered::NoRule);
        assert!(end.is_some_and(|end| end > 10_000), "{end:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// A table agrees with a map also where it is so full, and so many codes are of one home, that entries are displaced.
        #[test]
        fn agrees_with_a_map(
            codes in 2u64..20_000,
            few in 1u64..200,
            ops in proptest::collection::vec((0..3u8, any::<u64>(), 1..5000u32), 1..2000),
        ) {
            let cache = NameCache::new(1 << 20);
            let shape = Shape::new(codes, HOMES_MIN, 5000).unwrap();
            let mut table = Coded::of(&cache, Alphabets::new(), shape).unwrap();
            let mut map = BTreeMap::new();
            for (op, number, inode) in ops {
                // Most of the neighbourhood of one line.
                let mixed = if number % 4 == 0 { number % codes } else { number % (codes * few / 200).max(1) };
                match op {
                    0..2 => {
                        if table.put(mixed, InodeNr::new(inode)) {
                            map.insert(mixed, inode);
                        } else {
                            prop_assert!(!map.contains_key(&mixed));
                        }
                    }
                    _ => {
                        prop_assert_eq!(table.take(mixed), map.remove(&mixed).is_some());
                    }
                }
                let found = table.find(mixed).map(|(number, slot)| table.shape.inode(table.word(number, slot)).raw());
                prop_assert_eq!(found, map.get(&mixed).copied());
            }
            let mut all = BTreeMap::new();
            table.for_each_mixed(|mixed, inode| assert!(all.insert(mixed, inode.raw()).is_none()));
            prop_assert_eq!(&all, &map);
            for mixed in 0..codes {
                prop_assert_eq!(table.find(mixed).is_some(), map.contains_key(&mixed));
            }
            prop_assert_eq!(table.entries, map.len());
        }
    }

    /// Names may be chosen so that each line has one entry too many, and one more moves all of them.
    #[test]
    fn a_chain_through_the_table_is_not_moved() {
        let cache = NameCache::new(1 << 20);
        let homes = 1000u64;
        let shape = Shape::new(1 << 30, usize_from_u64(homes), 1000).unwrap();
        let mut table = Coded::of(&cache, Alphabets::new(), shape).unwrap();
        let mixed = |home: u64, number: u64| (home << shape.bits).div_ceil(homes) + number;
        let all: Vec<u64> = (0..800)
            .flat_map(|home| {
                (0..u64_from_usize(shape.slots) + u64::from(home == 0)).map(move |number| (home, number))
            })
            .map(|(home, number)| mixed(home, number))
            .collect();
        for &mixed in &all {
            assert!(table.put(mixed, InodeNr::new(7)));
        }
        assert!(!table.put(mixed(0, 100), InodeNr::new(8)));
        assert!(table.put(mixed(790, 100), InodeNr::new(8)));
        assert!(all.iter().all(|&mixed| table.find(mixed).is_some()));
        assert_eq!(table.entries, all.len() + 1);
        // A removal moves all of them back; there is room then.
        assert!(table.take(mixed(0, 0)));
        assert!(all[1..].iter().all(|&mixed| table.find(mixed).is_some()));
        assert!(table.displaced(0).is_none() && table.displaced(700).is_none());
    }

    /// A table that was large reads all of its lines for each lesson.
    #[test]
    fn an_emptied_table_learns_little() {
        let cache = NameCache::new(64 << 20);
        let mut table = Coded::new(&cache, true).unwrap();
        assert_eq!(table.expect(&cache, [&b"00000"[..], b"11111"].into_iter()), Entered::Done);
        let name = |number: u32| format!("{number:05}").into_bytes();
        for number in 0..50_000 {
            // No run.
            assert_eq!(table.set(&cache, &name(number), InodeNr::new(2 * number + 1)), Entered::Done);
        }
        for number in 0..50_000 {
            assert_eq!(table.remove(&cache, &name(number)), Entered::Done);
        }
        let mut lessons = (b'A'..=b'Z').map(|byte| {
            let entered = table.set(&cache, &[byte; 2], InodeNr::new(1));
            assert_eq!(table.remove(&cache, &[byte; 2]), Entered::Done);
            entered
        });
        assert!(lessons.any(|entered| entered == Entered::NoRule));
    }
}
