//! What is kept of a large directory beside its inode: where the buffers of its blocks are, and whether it counts for the
//! running transaction.
//!
//! The way to a block through the directory's mapping and the cache's map reads memory that no CPU cache holds when there are tens of
//! thousands of blocks; here it is one word a block. A buffer is not kept by being noted: when the cache has dropped it, the way
//! through the cache finds that it has to be read. A directory's blocks keep their places while it lives, and the cache has one
//! buffer of a block at a time, so that what is noted is what the way through the cache would give.
//!
//! All directories together note a bounded number of buffers. One that finds no room goes through the cache, until others have
//! left memory.

use crate::cache::Buffer;
use crate::epoch::Epoch;
use blockyard_disk::num::{high32, join32, low32, u64_from_usize, usize_from_u32};
use blockyard_sync::{Atomic, AtomicBool, AtomicU64, Ordering, RwLock, prefetch_shared, rank};
use std::sync::{Arc, Weak};

/// Directories of fewer blocks are not large.
const LARGE: u32 = 256;
/// Buffers that are noted in one piece of memory.
const PIECE: usize = 256;
/// Blocks behind these are found through the cache: a damaged inode may claim any length.
const NOTED_MAX: u32 = 1 << 20;

/// Buffers that may still be noted, by all directories together. Relaxed: only the sum matters.
pub(crate) struct Places(Arc<AtomicU64>);

/// See the module's text.
pub(crate) struct LargeDirectory {
    noted: RwLock<Noted>,
    /// Whether there may be any. Relaxed: a hint that spares others the lock.
    any: AtomicBool,
    /// The [`Epoch`] for which the directory was counted last (high half), and its blocks then: spares who changes it often
    /// [the transactions' list](crate::txn::Transactions::count_directory). Changed under the core's lock, so relaxed.
    counted: AtomicU64,
}

/// The buffers that are noted, in pieces.
#[derive(Default)]
struct Noted {
    pieces: Vec<Option<Piece>>,
}

/// Buffers of neighbouring blocks; dropping this gives their places back.
struct Piece {
    buffers: Box<[Weak<Buffer>; PIECE]>,
    places: Arc<AtomicU64>,
}

impl Places {
    /// Room for `count` buffers: each takes a word, and a buffer without its block after the cache dropped it.
    pub(crate) fn new(count: usize) -> Self {
        Self(Arc::new(AtomicU64::new(u64_from_usize(count))))
    }

    fn piece(&self) -> Option<Piece> {
        let taken = |left: u64| left.checked_sub(u64_from_usize(PIECE));
        Atomic::update(&*self.0, Ordering::Relaxed, Ordering::Relaxed, taken).ok()?;
        Some(Piece { buffers: Box::new([const { Weak::new() }; PIECE]), places: Arc::clone(&self.0) })
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.places.fetch_add(u64_from_usize(PIECE), Ordering::Relaxed);
    }
}

impl LargeDirectory {
    /// Nothing is known.
    pub(super) fn new() -> Self {
        Self {
            noted: RwLock::new(rank::DIRECTORY_BLOCKS, Noted::default()),
            any: AtomicBool::new(false),
            counted: AtomicU64::new(0),
        }
    }

    /// The buffer of a block, if it was noted and is still in the cache.
    pub(crate) fn buffer(&self, logical: u32) -> Option<Arc<Buffer>> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        let buffer = self.noted.read().get(logical)?.upgrade()?;
        buffer.touch();
        Some(buffer)
    }

    /// A block will be asked for soon: the CPU may fetch its buffer. False when it is not known where that is.
    pub(crate) fn expect(&self, logical: u32) -> bool {
        if !self.any.load(Ordering::Relaxed) {
            return false;
        }
        let noted = self.noted.read();
        let buffer = noted.get(logical).filter(|buffer| !buffer.ptr_eq(&Weak::new()));
        buffer.inspect(|buffer| prefetch_shared(buffer)).is_some()
    }

    /// Notes the buffer of a block, of which the directory has `blocks`. The caller holds the directory's lock, shared or
    /// exclusively.
    pub(crate) fn note(&self, logical: u32, blocks: u32, buffer: &Arc<Buffer>, places: &Places) {
        if blocks < LARGE || logical >= blocks.min(NOTED_MAX) {
            return;
        }
        // Who comes at the same time as others need not wait to leave a hint.
        let Some(mut noted) = self.noted.try_write() else { return };
        if let Some(place) = noted.place(logical, places) {
            *place = Arc::downgrade(buffer);
            self.any.store(true, Ordering::Relaxed);
        }
    }

    /// The directory is gone.
    pub(crate) fn forget(&self) {
        self.any.store(false, Ordering::Relaxed);
        *self.noted.write() = Noted::default();
    }

    /// Whether the directory, which has `blocks`, is large and is larger than it was known to count for a transaction's epoch. It
    /// is to be counted then. The caller holds the core's lock exclusively.
    pub(crate) fn is_to_count(&self, epoch: Epoch, blocks: u32) -> bool {
        let counts = join32(epoch.raw(), blocks);
        let counted = self.counted.load(Ordering::Relaxed);
        let known = high32(counted) == epoch.raw() && blocks <= low32(counted);
        if blocks < LARGE || known {
            return false;
        }
        self.counted.store(counts, Ordering::Relaxed);
        true
    }
}

impl Noted {
    fn get(&self, logical: u32) -> Option<&Weak<Buffer>> {
        let place = usize_from_u32(logical);
        self.pieces.get(place / PIECE)?.as_ref().map(|piece| &piece.buffers[place % PIECE])
    }

    /// Where the buffer of a block is noted, if there is room for it.
    fn place(&mut self, logical: u32, places: &Places) -> Option<&mut Weak<Buffer>> {
        let place = usize_from_u32(logical);
        let number = place / PIECE;
        if self.pieces.get(number).is_none_or(Option::is_none) {
            let piece = places.piece()?;
            self.pieces.resize_with(self.pieces.len().max(number + 1), || None);
            self.pieces[number] = Some(piece);
        }
        self.pieces[number].as_mut().map(|piece| &mut piece.buffers[place % PIECE])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{Allowance, BlockKind, MetaCache};
    use blockyard_device::MemoryDevice;
    use blockyard_disk::BlockNr;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;
    use std::sync::atomic::AtomicUsize;

    /// Blocks of the directory, which lie in the device's blocks of the same numbers.
    const BLOCKS: u32 = 2000;

    struct World {
        cache: MetaCache,
        places: Places,
        directory: LargeDirectory,
    }

    impl World {
        fn new(cache_blocks: usize, places: usize) -> Self {
            let device = Arc::new(MemoryDevice::new(16 << 20));
            let cache = MetaCache::new(device, 1024, cache_blocks * 1024, Allowance::new(0));
            Self { cache, places: Places::new(places), directory: LargeDirectory::new() }
        }

        fn read(&self, block: u32) -> Arc<Buffer> {
            self.cache.read(BlockNr::new(block.into()), BlockKind::Plain, |_| Ok(())).unwrap()
        }

        fn note_all(&self, blocks: u32) {
            for logical in 0..blocks {
                self.directory.note(logical, blocks, &self.read(logical), &self.places);
            }
        }

        fn noted(&self) -> usize {
            (0..BLOCKS).filter(|&logical| self.directory.buffer(logical).is_some()).count()
        }

        fn places_left(&self) -> u64 {
            self.places.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn noted_buffers_are_those_of_the_cache() {
        let world = World::new(4000, 10_000);
        world.note_all(LARGE - 1);
        assert_eq!((world.noted(), world.places_left()), (0, 10_000));
        world.note_all(BLOCKS);
        for logical in 0..BLOCKS {
            assert!(Arc::ptr_eq(&world.directory.buffer(logical).unwrap(), &world.read(logical)));
            assert!(world.directory.expect(logical));
        }
        assert!(!world.directory.expect(1 << 20) && world.directory.buffer(1 << 20).is_none());
        assert_eq!(world.places_left(), 10_000 - u64::from(BLOCKS.div_ceil(256) * 256));
        world.directory.forget();
        assert_eq!((world.noted(), world.places_left()), (0, 10_000));
    }

    /// Places are taken where blocks are noted, whatever length the inode claims, and only while there are some.
    #[test]
    fn places_are_bounded() {
        let world = World::new(4000, 1000);
        let buffer = world.read(1);
        for logical in [NOTED_MAX - 1, 5, 40_000] {
            world.directory.note(logical, u32::MAX, &buffer, &world.places);
            assert!(world.directory.buffer(logical).is_some());
        }
        assert_eq!(world.places_left(), 1000 - 3 * 256);
        world.directory.note(2000, u32::MAX, &buffer, &world.places);
        assert!(world.directory.buffer(2000).is_none());
        world.directory.note(6, u32::MAX, &buffer, &world.places);
        assert!(world.directory.buffer(6).is_some());
        let world = World::new(4000, 1000);
        world.directory.note(NOTED_MAX, u32::MAX, &buffer, &world.places);
        assert!(world.directory.buffer(NOTED_MAX).is_none());
    }

    /// A note keeps no buffer, and says nothing of one that left.
    #[test]
    fn what_the_cache_dropped_is_not_known() {
        let world = World::new(256, 10_000);
        world.note_all(BLOCKS);
        let noted = world.noted();
        assert!((1..=400).contains(&noted), "{noted} of {BLOCKS} in a cache of 256");
        for logical in 0..BLOCKS {
            if let Some(buffer) = world.directory.buffer(logical) {
                assert!(Arc::ptr_eq(&buffer, &world.read(logical)));
            }
        }
    }

    #[test]
    fn a_directory_is_to_count_once_for_an_epoch_and_when_it_grew() {
        let directory = LargeDirectory::new();
        let [one, two] = [1, 2].map(Epoch::from_raw);
        let trials =
            [(one, LARGE - 1), (one, 300), (one, 300), (one, 310), (one, 305), (two, 305), (two, 305)];
        let counts = trials.map(|(epoch, blocks)| directory.is_to_count(epoch, blocks));
        assert_eq!(counts, [false, true, false, true, false, true, false]);
    }

    /// While one thread takes buffers by their notes, another has the cache drop them: there is never a second buffer of a block
    /// that somebody holds.
    #[test]
    fn a_buffer_that_is_taken_while_it_is_dropped_stays_the_only_one() {
        let world = World::new(256, 10_000);
        world.note_all(BLOCKS);
        let taken = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..200_u32 {
                    for logical in 0..BLOCKS {
                        world.read(8000 + (round * 7 + logical) % 4000);
                    }
                }
            });
            scope.spawn(|| {
                let mut random = ChaCha8Rng::seed_from_u64(1);
                for _ in 0..400_000 {
                    let logical = random.random_range(0..500);
                    match world.directory.buffer(logical) {
                        Some(buffer) => {
                            assert!(
                                Arc::ptr_eq(&buffer, &world.read(logical)),
                                "two buffers of block {logical}"
                            );
                            taken.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        }
                        None => world.directory.note(logical, BLOCKS, &world.read(logical), &world.places),
                    }
                }
            });
        });
        let taken = taken.into_inner();
        assert!(taken > 1000, "{taken} taken");
    }
}
