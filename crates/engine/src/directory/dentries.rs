//! The dentry cache: names of large directories and their inodes, beside the blocks.
//!
//! The blocks are authoritative. [`super::Directory`] changes names in the blocks and in the cache
//! while the caller holds the directory's content lock exclusively. A lookup that found a name in
//! the blocks may enter it here under the shared lock. So the cache never contradicts the blocks.
//! Only directories of more than one block keep names here.
//!
//! Only *short names*, of at most 57 bytes, are kept, in parts [by their hash](hashed). A part is
//! *complete* if it has every short name of the directory that hashes to it. If a short name is
//! missing from its complete part, the directory does not have the name. Only a cache that was
//! started when the directory outgrew its first block has complete parts.
//!
//! Memory is bounded for all directories together ([`DentryCache`]). A directory that gets no more
//! memory forgets some of its names, or all. When memory is short, a directory whose names were not
//! looked up lately forgets all of them.

mod budget;
mod hashed;
mod lines;
mod segment;

pub(crate) use budget::DentryCache;

use blockyard_disk::InodeNr;
use blockyard_sync::{AtomicBool, Ordering, RwLock, rank};
use hashed::Hashed;
use segment::NAME_MAX;
use std::sync::Arc;

/// The cached dentries of one directory, as the [module](self) describes them.
pub(crate) struct Dentries {
    known: RwLock<Option<Hashed>>,
    /// Whether there may be cached names. If not, a lookup need not take the lock. Accessed
    /// relaxed: a thread that still reads `false` searches the blocks instead.
    any: AtomicBool,
    /// Whether a name was looked up since the [clock's hand](budget) last passed. Accessed relaxed:
    /// it is only a hint for which names to forget.
    used: AtomicBool,
    directory: InodeNr,
}

/// The cached names of one directory, to be changed with its blocks.
#[derive(Clone, Copy)]
pub(crate) struct Names<'a> {
    /// The directory they belong to.
    pub(crate) directory: &'a Arc<Dentries>,
    /// Where memory comes from.
    pub(crate) cache: &'a DentryCache,
}

/// What the dentry cache knows about a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dentry {
    /// The name stands for this inode.
    Inode(InodeNr),
    /// The directory does not have the name.
    Absent,
    /// The blocks must be searched.
    Unknown,
}

impl Dentry {
    /// What the blocks would say; `None` if they must be searched.
    #[inline]
    pub(crate) const fn answer(self) -> Option<Option<InodeNr>> {
        match self {
            Self::Inode(inode) => Some(Some(inode)),
            Self::Absent => Some(None),
            Self::Unknown => None,
        }
    }
}

impl Dentries {
    /// A directory without cached names.
    pub(crate) fn new(directory: InodeNr) -> Self {
        let known = RwLock::new(rank::NAMES, None);
        Self { known, any: AtomicBool::new(false), used: AtomicBool::new(false), directory }
    }

    /// What is known about a name. The caller holds the directory's lock, shared or exclusively.
    #[inline]
    pub(crate) fn ask(&self, name: &[u8]) -> Dentry {
        if name.len() > NAME_MAX || !self.any.load(Ordering::Relaxed) {
            return Dentry::Unknown;
        }
        let known = self.known.read();
        let Some(known) = &*known else { return Dentry::Unknown };
        // Loads first and stores only if needed, so that CPUs can share the cache line.
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
        known.ask(name)
    }

    /// Forgets all names, unless one was looked up lately or somebody holds their lock. Returns
    /// whether it forgot them.
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
    /// Notes that the directory, which has had one block so far, has these names and no others. The
    /// caller holds the directory's lock exclusively.
    pub(super) fn start<'b>(self, names: impl Iterator<Item = (&'b [u8], InodeNr)>) {
        let mut known = self.directory.known.write();
        *known = self.nothing(true);
        let Some(known) = &mut *known else { return };
        for (name, inode) in names.filter(|(name, _)| name.len() <= NAME_MAX) {
            if known.ask(name) == Dentry::Absent {
                known.set(self.cache, name, inode);
            } else {
                // Either the name occurs twice (then the blocks are damaged), or memory is short.
                known.doubt(name);
            }
        }
    }

    /// Notes that a name was entered into the blocks, or stands for another inode there. The caller
    /// holds the directory's lock exclusively.
    pub(super) fn entered(self, name: &[u8], inode: InodeNr) {
        self.enter(&mut self.directory.known.write(), name, inode);
    }

    /// Notes that a name was found in the blocks. The caller holds the directory's lock, shared or
    /// exclusively.
    pub(super) fn found(self, name: &[u8], inode: InodeNr) {
        // Caching the name is optional, so this does not wait for the lock.
        if let Some(mut known) = self.directory.known.try_write() {
            self.enter(&mut known, name, inode);
        }
    }

    /// Notes that a name was removed from the blocks. The caller holds the directory's lock
    /// exclusively.
    pub(super) fn removed(self, name: &[u8]) {
        if let (Some(known), true) = (&mut *self.directory.known.write(), name.len() <= NAME_MAX) {
            known.remove(name);
        }
    }

    /// Forgets all names. Called when a failed change may have been made in part.
    pub(super) fn forget(self) {
        *self.directory.known.write() = None;
    }

    fn enter(self, known: &mut Option<Hashed>, name: &[u8], inode: InodeNr) {
        if name.len() > NAME_MAX {
            return;
        }
        if known.is_none() {
            *known = self.nothing(false);
        }
        if let Some(known) = known {
            known.set(self.cache, name, inode);
        }
    }

    /// An empty cache, if there is memory for it.
    fn nothing(self, complete: bool) -> Option<Hashed> {
        let known = Hashed::new(self.cache, complete)?;
        self.cache.register(self.directory);
        self.directory.any.store(true, Ordering::Relaxed);
        Some(known)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::as_conversions)]

    use super::*;
    use proptest::prelude::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;
    use std::collections::HashMap;
    use std::sync::{PoisonError, RwLock as Directory};

    /// A name of at least `len` bytes.
    fn name(number: u32, len: u8) -> Vec<u8> {
        let mut name = format!("{number}-").into_bytes();
        name.resize(usize::from(len).max(name.len()), b'x');
        name
    }

    /// Names as in real directories: numbered photos, hexadecimal numbers, numbered files; and some
    /// names of [`name`].
    fn ruled(number: u32, len: u8) -> Vec<u8> {
        match len {
            0..40 => format!("IMG_{number:06}.jpg").into_bytes(),
            40..70 => format!("{:x}", number.wrapping_mul(0x1234_5677)).into_bytes(),
            70..75 => format!("file{number}").into_bytes(),
            _ => name(number, len),
        }
    }

    /// A cache and one directory.
    struct World {
        cache: DentryCache,
        directory: Arc<Dentries>,
    }

    impl World {
        fn new(bytes_max: usize) -> Self {
            let cache = DentryCache::new(bytes_max);
            let directory = cache.of(InodeNr::new(12));
            Self { cache, directory }
        }

        fn names(&self) -> Names<'_> {
            Names { directory: &self.directory, cache: &self.cache }
        }
    }

    fn number_of(known: Dentry) -> Option<u32> {
        match known {
            Dentry::Inode(inode) => Some(inode.raw()),
            Dentry::Absent => None,
            Dentry::Unknown => panic!("everything is known"),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// The cache agrees with a map of the same names. With enough memory it knows all names of
        /// at most 57 bytes, present and absent.
        #[test]
        fn agrees_with_a_map(
            ops in proptest::collection::vec((0..6u8, 0..700u32, 1..80u8), 1..3000),
            longest in 8..80u8,
            budget in prop_oneof![Just(1usize << 24), Just(1 << 17), Just(1 << 14), Just(0)],
            far in prop_oneof![Just(0u32), Just(1 << 20), Just(u32::MAX - 3000)],
            by_rule in any::<bool>(),
            in_order in any::<bool>(),
        ) {
            let world = World::new(budget);
            let names = world.names();
            names.start(std::iter::empty());
            let mut map: HashMap<Vec<u8>, u32> = HashMap::new();
            for (step, (op, number, len)) in ops.into_iter().enumerate() {
                // With `in_order`, ascending names are created with ascending inodes.
                let counting = in_order && op < 2;
                let number = if counting { step as u32 % 700 } else { number };
                let name = match (counting, by_rule) {
                    (true, _) => ruled(number, 0),
                    (false, true) => ruled(number, len),
                    (false, false) => name(number, len.min(longest)),
                };
                let inode = if in_order { number } else { step as u32 };
                let inode = inode + 1 + if number % 16 == 0 && !counting { far } else { 0 };
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
                        } else if known != Dentry::Unknown {
                            prop_assert_eq!(number_of(known), map.get(&name).copied());
                        }
                        if let (Dentry::Unknown, Some(inode)) = (known, map.get(&name)) {
                            names.found(&name, InodeNr::new(*inode));
                        }
                    }
                }
            }
            prop_assert!(world.cache.taken() <= budget as u64);
            for (name, inode) in &map {
                let known = names.directory.ask(name);
                prop_assert!(known == Dentry::Unknown || number_of(known) == Some(*inode));
            }
        }
    }

    /// Enters many names. Asserts that all of them are known, and that absent names are known to be
    /// absent. Returns the bytes per name, and the world.
    fn enter_many(name: impl Fn(u32) -> String, absent: impl Fn(u32) -> String) -> (f64, World) {
        let world = World::new(64 << 20);
        let names = world.names();
        names.start(std::iter::empty());
        let count = 400_000u32;
        for number in 0..count {
            names.entered(name(number).as_bytes(), InodeNr::new(number + 1));
        }
        for number in 0..count {
            assert_eq!(number_of(names.directory.ask(name(number).as_bytes())), Some(number + 1));
            assert_eq!(names.directory.ask(absent(number).as_bytes()), Dentry::Absent);
        }
        (world.cache.taken() as f64 / f64::from(count), world)
    }

    /// Entering many names splits segments again and again.
    #[test]
    fn splits_lose_nothing() {
        let spell = |number: u32, word: &str| {
            let low = format!("{:016}", u64::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            format!("{word}{}", &low[low.len() - 16..])
        };
        let (per_name, world) = enter_many(|number| spell(number, "name"), |number| spell(number, "nome"));
        let (segments, names) = world.directory.known.read().as_ref().map_or((0, 0), Hashed::counts);
        assert!(segments > 4, "{segments} segments");
        assert_eq!(names, 400_000);
        assert!((20.0..100.0).contains(&per_name), "{per_name} bytes a name");
        world.cache.remove(world.directory.directory);
        let World { cache, directory } = world;
        drop(directory);
        assert_eq!(cache.taken(), 0);
    }

    /// Names come and go, but only 500 are in the cache at a time. So the cache stays small.
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
                assert_eq!(names.directory.ask(format!("{old}").as_bytes()), Dentry::Absent);
            }
        }
        assert!(world.cache.taken() <= 128 << 10, "{} bytes for 500 names", world.cache.taken());
    }

    /// A directory that needs memory takes it from a directory whose names nobody looks up. A
    /// directory of which a name is looked up keeps its names.
    #[test]
    fn memory_goes_to_who_is_asked() {
        let world = World::new(120 << 10);
        let directories = [1, 2, 3].map(|number| world.cache.of(InodeNr::new(number)));
        let [idle, busy, new] =
            directories.each_ref().map(|directory| Names { directory, cache: &world.cache });
        for directory in [&idle, &busy] {
            directory.start(std::iter::empty());
            for number in 0..2000u32 {
                directory.entered(format!("{number}").as_bytes(), InodeNr::new(2 * number + 1));
            }
        }
        new.start(std::iter::empty());
        for number in 0..10_000u32 {
            new.entered(format!("{number}").as_bytes(), InodeNr::new(2 * number + 1));
            assert_eq!(number_of(busy.directory.ask(b"77")), Some(155));
        }
        assert_eq!(idle.directory.ask(b"77"), Dentry::Unknown);
        assert_eq!(number_of(new.directory.ask(b"9999")), Some(19_999));
        assert!(world.cache.taken() <= 120 << 10);
    }

    /// A name is twice in the blocks, and one of the two entries is removed. The cache must not say
    /// that the name is absent.
    #[test]
    fn a_name_that_is_there_twice_is_never_absent() {
        let world = World::new(1 << 20);
        let names = world.names();
        names.start([(&b"twice"[..], InodeNr::new(20)), (b"twice", InodeNr::new(21))].into_iter());
        assert_eq!(names.directory.ask(b"twice"), Dentry::Inode(InodeNr::new(20)));
        names.removed(b"twice");
        assert_eq!(names.directory.ask(b"twice"), Dentry::Unknown);
    }

    /// The cached names of a directory, and the names in its blocks. The lock around the latter
    /// stands for the directory's lock.
    type Both = (Arc<Dentries>, Directory<HashMap<Vec<u8>, u32>>);

    /// A random change of one of several directories, or a lookup in it.
    fn step(cache: &DentryCache, directories: &[Both], rng: &mut ChaCha8Rng) {
        let which = rng.random_range(0..directories.len());
        let (directory, map) = &directories[which];
        let names = Names { directory, cache };
        let (number, len) = (rng.random_range(0..1500), rng.random_range(1..80));
        let name = if which % 4 == 0 { name(number, len) } else { ruled(number, len.min(71)) };
        if rng.random_range(0..3) > 0 {
            let map = map.read().unwrap_or_else(PoisonError::into_inner);
            let (known, held) = (directory.ask(&name), map.get(&name).copied());
            assert!(known == Dentry::Unknown || number_of(known) == held, "{known:?} instead of {held:?}");
            if let (Dentry::Unknown, Some(inode)) = (known, held) {
                names.found(&name, InodeNr::new(inode));
            }
            return;
        }
        let mut map = map.write().unwrap_or_else(PoisonError::into_inner);
        if rng.random_range(0..3) > 0 {
            let inode = if number % 16 == 0 { rng.random_range(1..=u32::MAX) } else { number + 1 };
            names.entered(&name, InodeNr::new(inode));
            assert!(matches!(directory.ask(&name), Dentry::Unknown | Dentry::Inode(_)));
            map.insert(name, inode);
        } else {
            names.removed(&name);
            assert!(matches!(directory.ask(&name), Dentry::Unknown | Dentry::Absent));
            map.remove(&name);
        }
    }

    /// Threads take memory from one another's directories. No thread gets an answer that
    /// contradicts the blocks.
    #[test]
    fn directories_that_share_too_little_memory_say_nothing_wrong() {
        let seed = blockyard_testkit::seed(61);
        for budget in [16 << 10, 64 << 10, 512 << 10] {
            let cache = DentryCache::new(budget);
            let new = |number| (cache.of(InodeNr::new(number)), Directory::default());
            let directories: Vec<_> = (1..=16).map(new).collect();
            for (directory, _) in directories.iter().step_by(2) {
                Names { directory, cache: &cache }.start(std::iter::empty());
            }
            std::thread::scope(|scope| {
                for thread in 0..3 {
                    let (cache, directories) = (&cache, &directories);
                    scope.spawn(move || {
                        let mut rng = ChaCha8Rng::seed_from_u64(seed + thread);
                        for _ in 0..20_000 {
                            step(cache, directories, &mut rng);
                            assert!(cache.taken() <= budget as u64);
                        }
                    });
                }
            });
            (1..=16).for_each(|number| cache.remove(InodeNr::new(number)));
            drop(directories);
            assert_eq!(cache.taken(), 0);
        }
    }

    /// Cached names outlive the in-memory inode, but not the directory.
    #[test]
    fn names_outlive_the_inode_and_go_with_the_directory() {
        let cache = DentryCache::new(1 << 20);
        let number = InodeNr::new(12);
        let directory = cache.of(number);
        Names { directory: &directory, cache: &cache }.start([(&b"name"[..], InodeNr::new(20))].into_iter());
        drop(directory);
        assert_eq!(cache.of(number).ask(b"name"), Dentry::Inode(InodeNr::new(20)));
        cache.remove(number);
        assert_eq!(cache.of(number).ask(b"name"), Dentry::Unknown);
        assert_eq!(cache.taken(), 0);
    }
}
