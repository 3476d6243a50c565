//! The names of a large directory that are known without looking into its blocks, and the inodes that they stand for.
//!
//! The blocks are the truth. Whoever changes names in them changes what is known with them ([`super::Directory`]), under the
//! directory's exclusive lock; a look-up that had to search the blocks leaves here what it found, under the shared one. So
//! an answer is what the blocks would say. Only directories of more than one block keep names here.
//!
//! Names are in [segments](segment) by their hash. A segment grows in place to one huge page and is then split in two by one
//! more bit of the hash, so that entering a name moves a bounded number of others, whatever the directory's size. A
//! segment that got every name since the directory had one block is *complete*: what it does not have does not exist.
//!
//! Memory is bounded for all directories together ([`NameCache`]). A directory that gets no more empties the segment that is
//! full, which is incomplete from then on; one that was not asked for a while forgets everything. Names of more than
//! 57 bytes, and names whose hashes were chosen to collide, are not kept.

mod budget;
mod lines;
mod segment;

pub(crate) use budget::NameCache;

use super::names::hash;
use blockyard_disk::InodeNr;
use blockyard_disk::num::{u64_from_usize, usize_from_u64};
use blockyard_sync::{AtomicBool, Ordering, RwLock, rank};
use budget::Reserved;
use lines::{HUGE, LINE};
use segment::{NAME_MAX, Segment};
use std::sync::Arc;

/// Lines of the first segment: the names of one block of 4 KiB.
const LINES_MIN: usize = 64;
/// Lines of a segment that is split instead of grown.
const LINES_MAX: usize = HUGE / LINE;
/// Most bits of a hash that choose a segment: bounds the index. With 4 GiB of names it is not reached.
const DEPTH_MAX: u32 = 12;
/// Times that room is made for one name.
const TRIES: usize = 4;

/// What is known of one directory's names. See the module's text.
pub(crate) struct DirNames {
    known: RwLock<Option<KnownNames>>,
    /// Whether there may be any. Relaxed: a hint that spares small directories the lock.
    any: AtomicBool,
    /// Asked since the cache's hand passed. Relaxed: a hint.
    used: AtomicBool,
    directory: InodeNr,
}

/// What is known of one directory's names, to be changed with its blocks.
#[derive(Clone, Copy)]
pub(crate) struct Names<'a> {
    /// Of this directory.
    pub(crate) directory: &'a Arc<DirNames>,
    /// Where memory comes from.
    pub(crate) cache: &'a NameCache,
}

/// What is known of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// It stands for this inode.
    As(InodeNr),
    /// The directory does not have it.
    Absent,
    /// Nothing: the blocks must be searched.
    Not,
}

impl Known {
    /// What the blocks would say, if it is known.
    #[inline]
    pub(crate) const fn answer(self) -> Option<Option<InodeNr>> {
        match self {
            Self::As(inode) => Some(Some(inode)),
            Self::Absent => Some(None),
            Self::Not => None,
        }
    }
}

impl DirNames {
    /// A directory of which nothing is known.
    pub(crate) fn new(directory: InodeNr) -> Self {
        let known = RwLock::new(rank::NAMES, None);
        Self { known, any: AtomicBool::new(false), used: AtomicBool::new(false), directory }
    }

    /// What is known of a name. The caller holds the directory's lock, shared or exclusively.
    #[inline]
    pub(crate) fn ask(&self, name: &[u8]) -> Known {
        if name.len() > NAME_MAX || !self.any.load(Ordering::Relaxed) {
            return Known::Not;
        }
        let hash = hash(name);
        let known = self.known.read();
        let Some(known) = &*known else { return Known::Not };
        // A load first: the line stays shared between CPUs.
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
        known.ask(hash, name)
    }

    /// Forgets everything unless it was in use of late; false if it was.
    fn give_up(&self) -> bool {
        if self.used.swap(false, Ordering::Relaxed) {
            return false;
        }
        let Some(mut known) = self.known.try_write() else { return false };
        *known = None;
        true
    }
}

impl Names<'_> {
    /// The directory, of one block so far, has these names and no others. The caller holds its lock exclusively.
    pub(super) fn start<'b>(self, names: impl Iterator<Item = (&'b [u8], InodeNr)>) {
        let mut known = self.directory.known.write();
        *known = self.nothing(true);
        let Some(known) = &mut *known else { return };
        for (name, inode) in names {
            known.start_with(self.cache, name, inode);
        }
    }

    /// A name was entered into the blocks, or stands for another inode there. The caller holds the directory's lock
    /// exclusively.
    pub(super) fn entered(self, name: &[u8], inode: InodeNr) {
        self.enter(&mut self.directory.known.write(), name, inode);
    }

    /// A name was found in the blocks. The caller holds the directory's lock, shared or exclusively.
    pub(super) fn found(self, name: &[u8], inode: InodeNr) {
        // Who comes at the same time as others need not wait to leave a hint.
        if let Some(mut known) = self.directory.known.try_write() {
            self.enter(&mut known, name, inode);
        }
    }

    /// A name was removed from the blocks. The caller holds the directory's lock exclusively.
    pub(super) fn removed(self, name: &[u8]) {
        if name.len() <= NAME_MAX
            && let Some(known) = &mut *self.directory.known.write()
        {
            known.remove(hash(name), name);
        }
    }

    /// The blocks may say anything: nothing is known any more.
    pub(super) fn forget(self) {
        *self.directory.known.write() = None;
    }

    fn enter(self, known: &mut Option<KnownNames>, name: &[u8], inode: InodeNr) {
        if name.len() > NAME_MAX {
            return;
        }
        if known.is_none() {
            *known = self.nothing(false);
        }
        if let Some(known) = known {
            known.set(self.cache, hash(name), name, inode);
        }
    }

    /// No names, if there is memory for some.
    fn nothing(self, complete: bool) -> Option<KnownNames> {
        let known = KnownNames::new(self.cache, complete)?;
        self.cache.register(self.directory);
        self.directory.any.store(true, Ordering::Relaxed);
        Some(known)
    }
}

/// The names of one directory. See the module's text.
struct KnownNames {
    parts: Vec<Part>,
    /// The part of a hash, by its upper bits.
    index: Vec<u16>,
    /// How many of them: at most [`DEPTH_MAX`].
    bits: u32,
}

/// A segment with what is true of it.
struct Part {
    segment: Segment,
    /// Upper bits that the hashes of its names have in common.
    depth: u32,
    /// It has every short name of the directory whose hash belongs to it.
    complete: bool,
    _memory: Reserved,
}

impl KnownNames {
    fn new(cache: &NameCache, complete: bool) -> Option<Self> {
        let part = Part::new(cache, LINES_MIN, 0, complete)?;
        Some(Self { parts: vec![part], index: vec![0], bits: 0 })
    }

    #[inline]
    fn ask(&self, hash: u64, name: &[u8]) -> Known {
        let part = &self.parts[self.part_of(hash)];
        match part.segment.find(hash << part.depth, name) {
            Some(inode) => Known::As(InodeNr::new(inode)),
            None if part.complete => Known::Absent,
            None => Known::Not,
        }
    }

    /// One of the names that a complete directory begins with; when it is there twice, the blocks are damaged.
    fn start_with(&mut self, cache: &NameCache, name: &[u8], inode: InodeNr) {
        if name.len() > NAME_MAX {
            return;
        }
        let hash = hash(name);
        if self.ask(hash, name) == Known::Absent {
            self.set(cache, hash, name, inode);
        } else {
            let part = self.part_of(hash);
            self.parts[part].complete = false;
        }
    }

    fn set(&mut self, cache: &NameCache, hash: u64, name: &[u8], inode: InodeNr) {
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
        // It may be there with the inode that it stood for before.
        self.remove(hash, name);
        let number = self.part_of(hash);
        self.parts[number].complete = false;
    }

    fn remove(&mut self, hash: u64, name: &[u8]) {
        let number = self.part_of(hash);
        let part = &mut self.parts[number];
        part.segment.remove(hash << part.depth, name);
    }

    #[inline]
    fn part_of(&self, hash: u64) -> usize {
        // In two steps, as a number has no 64 bits to be shifted by.
        usize::from(self.index[usize_from_u64(hash >> 1 >> (63 - self.bits))])
    }

    /// Makes room in a part; false when there is no memory for it.
    fn grow(&mut self, cache: &NameCache, number: usize) -> bool {
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
    fn new(cache: &NameCache, lines: usize, depth: u32, complete: bool) -> Option<Self> {
        let memory = cache.reserve(lines * LINE)?;
        Some(Self { segment: Segment::new(lines), depth, complete, _memory: memory })
    }

    fn set(&mut self, hash: u64, name: &[u8], inode: InodeNr) -> bool {
        self.segment.set(hash << self.depth, name, inode.raw())
    }

    /// A name of a smaller part, which this one replaces.
    fn take_over(&mut self, hash: u64, name: &[u8], inode: u32) {
        if !self.segment.set(hash << self.depth, name, inode) {
            self.complete = false;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::as_conversions)]

    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// Names of all lengths, few enough to come again.
    fn name(number: u32, len: u8) -> Vec<u8> {
        let mut name = format!("{number}-").into_bytes();
        name.resize(usize::from(len).max(name.len()), b'x');
        name
    }

    /// A cache and one directory.
    struct World {
        cache: NameCache,
        directory: Arc<DirNames>,
    }

    impl World {
        fn new(bytes_max: usize) -> Self {
            let cache = NameCache::new(bytes_max);
            let directory = cache.of(InodeNr::new(12));
            Self { cache, directory }
        }

        fn names(&self) -> Names<'_> {
            Names { directory: &self.directory, cache: &self.cache }
        }
    }

    fn number_of(known: Known) -> Option<u32> {
        match known {
            Known::As(inode) => Some(inode.raw()),
            Known::Absent => None,
            Known::Not => panic!("everything is known"),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// What is known is what a map of the same names has; with memory enough, all of it, and what is absent, too.
        #[test]
        fn agrees_with_a_map(
            ops in proptest::collection::vec((0..6u8, 0..700u32, 1..80u8), 1..3000),
            longest in 8..80u8,
            budget in prop_oneof![Just(1usize << 24), Just(1 << 14), Just(0)],
        ) {
            let world = World::new(budget);
            let names = world.names();
            names.start(std::iter::empty());
            let mut map: HashMap<Vec<u8>, u32> = HashMap::new();
            for (step, (op, number, len)) in ops.into_iter().enumerate() {
                let name = name(number, len.min(longest));
                let inode = step as u32 + 1;
                match op {
                    0..3 => {
                        names.entered(&name, InodeNr::new(inode));
                        map.insert(name, inode);
                    }
                    3 => {
                        names.removed(&name);
                        map.remove(&name);
                    }
                    _ => {
                        let known = names.directory.ask(&name);
                        if budget == 1 << 24 && name.len() <= NAME_MAX {
                            prop_assert_eq!(number_of(known), map.get(&name).copied());
                        } else if known != Known::Not {
                            prop_assert_eq!(number_of(known), map.get(&name).copied());
                        }
                        if let (Known::Not, Some(inode)) = (known, map.get(&name)) {
                            names.found(&name, InodeNr::new(*inode));
                        }
                    }
                }
            }
            prop_assert!(world.cache.taken() <= budget as u64);
            for (name, inode) in &map {
                let known = names.directory.ask(name);
                prop_assert!(known == Known::Not || number_of(known) == Some(*inode));
            }
        }
    }

    /// Many names split segments again and again; all of them stay known, and so does what is absent.
    #[test]
    fn splits_lose_nothing() {
        let world = World::new(64 << 20);
        let names = world.names();
        names.start(std::iter::empty());
        let count = 400_000u32;
        for number in 0..count {
            names.entered(format!("name-{number:08x}").as_bytes(), InodeNr::new(number + 1));
        }
        for number in 0..count {
            assert_eq!(
                number_of(names.directory.ask(format!("name-{number:08x}").as_bytes())),
                Some(number + 1)
            );
            assert_eq!(names.directory.ask(format!("nome-{number:08x}").as_bytes()), Known::Absent);
        }
        {
            let known = names.directory.known.read();
            let known = known.as_ref().unwrap();
            assert!(known.parts.len() > 4, "{} parts", known.parts.len());
            let entered: usize = known
                .parts
                .iter()
                .map(|part| {
                    let mut names = 0;
                    part.segment.for_each(|_, _| names += 1);
                    names
                })
                .sum();
            assert_eq!(entered, count as usize);
        }
        let per_name = world.cache.taken() as f64 / f64::from(count);
        assert!((20.0..60.0).contains(&per_name), "{per_name} bytes a name");
        world.cache.remove(names.directory.directory);
        drop(world.directory);
        assert_eq!(world.cache.taken(), 0);
    }

    /// Removing and entering again and again leaves no trails that searches would have to follow.
    #[test]
    fn churn_does_not_fill_a_segment() {
        let world = World::new(1 << 20);
        let names = world.names();
        names.start(std::iter::empty());
        for number in 0..200_000u32 {
            names.entered(format!("{number}").as_bytes(), InodeNr::new(number + 1));
            if let Some(old) = number.checked_sub(500) {
                assert_eq!(number_of(names.directory.ask(format!("{old}").as_bytes())), Some(old + 1));
                names.removed(format!("{old}").as_bytes());
                assert_eq!(names.directory.ask(format!("{old}").as_bytes()), Known::Absent);
            }
        }
        assert!(world.cache.taken() <= 128 << 10, "{} bytes for 500 names", world.cache.taken());
    }

    /// A directory that nobody asks makes room for another one; one that is asked stays.
    #[test]
    fn memory_goes_to_who_is_asked() {
        let world = World::new(240 << 10);
        let directories = [1, 2, 3].map(|number| world.cache.of(InodeNr::new(number)));
        let [idle, busy, new] =
            directories.each_ref().map(|directory| Names { directory, cache: &world.cache });
        for directory in [&idle, &busy] {
            directory.start(std::iter::empty());
            for number in 0..2000u32 {
                directory.entered(format!("{number}").as_bytes(), InodeNr::new(number + 1));
            }
        }
        new.start(std::iter::empty());
        for number in 0..6000u32 {
            new.entered(format!("{number}").as_bytes(), InodeNr::new(number + 1));
            assert_eq!(number_of(busy.directory.ask(b"77")), Some(78));
        }
        assert_eq!(idle.directory.ask(b"77"), Known::Not);
        assert_eq!(number_of(new.directory.ask(b"5999")), Some(6000));
        assert!(world.cache.taken() <= 240 << 10);
    }

    /// The same name twice in the blocks: whoever removes one must not be told that there is none left.
    #[test]
    fn a_name_that_is_there_twice_is_never_absent() {
        let world = World::new(1 << 20);
        let names = world.names();
        names.start([(&b"twice"[..], InodeNr::new(20)), (b"twice", InodeNr::new(21))].into_iter());
        assert_eq!(names.directory.ask(b"twice"), Known::As(InodeNr::new(20)));
        names.removed(b"twice");
        assert_eq!(names.directory.ask(b"twice"), Known::Not);
    }

    /// An inode that leaves memory leaves its names behind; a directory that is gone does not.
    #[test]
    fn names_outlive_the_inode_and_go_with_the_directory() {
        let cache = NameCache::new(1 << 20);
        let number = InodeNr::new(12);
        let directory = cache.of(number);
        Names { directory: &directory, cache: &cache }.start([(&b"name"[..], InodeNr::new(20))].into_iter());
        drop(directory);
        assert_eq!(cache.of(number).ask(b"name"), Known::As(InodeNr::new(20)));
        cache.remove(number);
        assert_eq!(cache.of(number).ask(b"name"), Known::Not);
        assert_eq!(cache.taken(), 0);
    }
}
