//! Handles, commits, checkpoints and frees of blocks under the scheduler of shuttle, which tries
//! many interleavings. Transactions, cache, ring and committed images are the real ones; only the
//! commit is a model of what `Volume` does with buffers. (That freed clusters wait for the commit
//! is tested with the allocator.)

#![allow(clippy::as_conversions, clippy::unwrap_used, reason = "tests")]

use super::{Handle, Image, Journal, Transactions};
use crate::cache::{BlockKind, MetaCache};
use crate::journal::{Committed, Devices, HomeView, Limits, LogBlocks, LogJournal, Wanted};
use crate::mkfs;
use crate::txn::Flushes;
use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_disk::checksum::Checksums;
use blockyard_disk::superblock::Superblock;
use blockyard_disk::{BlockNr, Timestamp, TxnId};
use blockyard_recovery::{Session, Unflagged};
use blockyard_sync::{CpuSlot, Shuttle};
use shuttle::thread;
use std::sync::{Arc, OnceLock};

const BLOCK_SIZE: usize = 1024;
const A: BlockNr = BlockNr::new(14_000);
const B: BlockNr = BlockNr::new(14_001);

/// Runs the scenario under many schedules: half of them random, half by random priorities (PCT).
fn explore(schedules: usize, scenario: impl Fn() + Send + Sync + Copy + 'static) {
    let schedules = if blockyard_testkit::full_matrix() { schedules * 20 } else { schedules };
    shuttle::check_random(scenario, schedules / 2);
    shuttle::check_pct(scenario, schedules / 2, 3);
}

/// An image with a journal of 1024 blocks, made once.
fn image() -> MemoryDevice {
    static IMAGE: OnceLock<MemoryDevice> = OnceLock::new();
    let make = || {
        let device = MemoryDevice::new(16 << 20);
        mkfs::format(&device, &mkfs::Options::ext4().block_size(1024).identity(1, 1)).unwrap();
        device
    };
    IMAGE.get_or_init(make).duplicate()
}

/// A device that lets another thread run before each read, write and flush.
struct Yielding(MemoryDevice);

impl BlockDevice for Yielding {
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> blockyard_device::Result<()> {
        thread::yield_now();
        self.0.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> blockyard_device::Result<()> {
        thread::yield_now();
        self.0.write_at(offset, data)
    }
    fn write_zeroes(&self, offset: u64, length: u64) -> blockyard_device::Result<()> {
        self.0.write_zeroes(offset, length)
    }
    fn discard(&self, offset: u64, length: u64) -> blockyard_device::Result<()> {
        self.0.discard(offset, length)
    }
    fn flush(&self) -> blockyard_device::Result<()> {
        thread::yield_now();
        self.0.flush()
    }
}

/// The parts of a file system that the scenarios need.
struct World {
    device: Arc<Yielding>,
    view: Arc<HomeView<Shuttle>>,
    cache: MetaCache<Shuttle>,
    txns: Transactions<Shuttle>,
    journal: LogJournal<Shuttle>,
    checksums: Checksums,
}

/// What one commit wrote.
struct Written {
    images: Vec<(BlockNr, Box<[u8]>)>,
    revoked: Vec<BlockNr>,
}

impl World {
    fn new() -> Arc<Self> {
        let device = Arc::new(Yielding(image()));
        let home: Arc<dyn BlockDevice> = Arc::<Yielding>::clone(&device);
        let place = Session::open(&*device).unwrap().into_journal().unwrap();
        let wanted = Wanted { is_64bit: true, has_checksums: true };
        let log = LogBlocks::new(Arc::clone(&home), None, place, wanted);
        let committed = Arc::new(Committed::new(Arc::new(log)));
        let view = Arc::new(HomeView::new(Arc::clone(&home), Arc::clone(&committed), BLOCK_SIZE));
        let shown: Arc<dyn BlockDevice> = Arc::<HomeView<Shuttle>>::clone(&view);
        let flushes = Arc::new(Flushes::new(Arc::clone(&home)));
        let devices = Devices { home, flushes };
        let journal =
            LogJournal::open(devices, committed, Limits { dirty_max: 1000, transaction: None }, None)
                .unwrap();
        let mut bytes = [0; 1024];
        device.read_at(1024, &mut bytes).unwrap();
        let checksums = *Superblock::parse(&bytes).unwrap().checksums();
        let cache = MetaCache::new(shown, BLOCK_SIZE, 1 << 20);
        let txns = Transactions::new(2, &journal);
        Arc::new(Self { device, view, cache, txns, journal, checksums })
    }

    fn enter(&self, slot: u32) -> Handle<'_, Shuttle> {
        loop {
            if let Some((handle, _)) = Handle::enter(&self.txns, &self.cache, CpuSlot::new(slot), 4) {
                return handle;
            }
            self.commit(|| true);
        }
    }

    /// Sets the byte at `at` in a block to `number`.
    fn put(handle: &Handle<'_, Shuttle>, block: BlockNr, at: usize, number: u8) {
        let buffer = handle.read_for_write(block, BlockKind::Plain, |_| Ok(())).unwrap();
        buffer.write(|bytes| bytes[at] = number);
    }

    /// Does what `Volume::end_transaction` does with buffers.
    fn commit(&self, needed: impl Fn() -> bool) -> Option<Written> {
        let mut turn = self.txns.turn.wait(needed)?;
        let closed = self.txns.gate.close();
        if !self.txns.has_changes() {
            return None;
        }
        let mut taken = self.txns.take();
        let (tid, epoch) = self.txns.switch(true);
        drop(closed);
        taken.buffers.sort_unstable_by_key(|buffer| buffer.block());
        let images: Vec<Image> = taken
            .buffers
            .iter()
            .filter_map(|buffer| {
                let block = buffer.block();
                buffer
                    .take_copy(epoch, &mut Vec::new())
                    .map(|copied| Image { block, bytes: copied.seal(block, &self.checksums) })
            })
            .collect();
        let written = images.iter().map(|image| (image.block, image.bytes.clone())).collect();
        let written = Written { images: written, revoked: taken.revoked.clone() };
        self.journal.begin(tid, images.len(), &taken.revoked).unwrap();
        self.journal.write(&images).unwrap();
        self.journal.commit(Timestamp::from_seconds(1)).unwrap();
        self.txns.note_durable(tid);
        turn.count();
        Some(written)
    }

    /// What a block would hold after a crash now.
    fn after_crash(&self, block: BlockNr) -> Vec<u8> {
        let device = self.device.0.duplicate();
        let options = blockyard_recovery::Options { unflagged: Unflagged::Replay, ..Default::default() };
        Session::open(&device).unwrap().replay(&options).unwrap();
        let mut bytes = vec![0; BLOCK_SIZE];
        device.read_at(block.raw() * 1024, &mut bytes).unwrap();
        bytes
    }
}

fn spawn(world: &Arc<World>, f: impl FnOnce(&World) + Send + 'static) -> thread::JoinHandle<()> {
    let world = Arc::clone(world);
    thread::spawn(move || f(&world))
}

/// A block is changed, and a commit runs while another thread asks for the last transaction that
/// may have changed the block, as the load of an inode does. The answer is never an earlier
/// transaction.
#[test]
fn the_last_change_of_a_block_is_not_dated_too_early() {
    explore(2000, || {
        let world = World::new();
        let handle = world.enter(0);
        World::put(&handle, A, 0, 1);
        drop(handle);
        let changed = world.txns.running();
        let committer = spawn(&world, |world| _ = world.commit(|| true));
        let buffer = world.cache.read(A, BlockKind::Plain, |_| Ok(())).unwrap();
        let last = world.txns.last_to_change(buffer.changed_in());
        assert!(!changed.is_after(last), "{changed:?} changed the block, {last:?} is reported");
        committer.join().unwrap();
    });
}

/// Two writers change two blocks in every handle while a third thread commits. Each commit holds
/// both blocks as of the same moment, and recovery finds what was committed last.
#[test]
fn a_commit_is_a_moment() {
    explore(2000, || {
        let world = World::new();
        let writers: Vec<_> = (0..2)
            .map(|slot| {
                spawn(&world, move |world| {
                    for number in 1..=2 {
                        let handle = world.enter(slot);
                        World::put(&handle, A, slot as usize, number);
                        World::put(&handle, B, slot as usize, number);
                    }
                })
            })
            .collect();
        let check = |written: &Written| {
            let [(a, left), (b, right)] = &*written.images else { panic!("both blocks or none") };
            assert_eq!((*a, *b), (A, B));
            assert_eq!(left[..2], right[..2], "a torn transaction");
            left[..2].to_vec()
        };
        let mut last = vec![0, 0];
        for _ in 0..2 {
            if let Some(written) = world.commit(|| true) {
                let now = check(&written);
                assert!(now[0] >= last[0] && now[1] >= last[1], "{last:?} then {now:?}");
                last = now;
                assert_eq!((&world.after_crash(A)[..2], &world.after_crash(B)[..2]), (&*last, &*last));
            }
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        if let Some(written) = world.commit(|| true) {
            last = check(&written);
        }
        assert_eq!(last, [2, 2]);
        world.journal.close().unwrap();
        let mut home = [0; BLOCK_SIZE];
        world.device.read_at(A.raw() * 1024, &mut home).unwrap();
        assert_eq!(home[..2], [2, 2]);
    });
}

/// Block `A` is changed and then freed while commits run. A commit of the change without the free
/// holds the content of `A`. A commit of the free holds the revoke and not the content.
#[test]
fn a_freed_block_is_logged_or_revoked() {
    explore(2000, || {
        let world = World::new();
        let owner = spawn(&world, |world| {
            World::put(&world.enter(0), A, 0, 1);
            let handle = world.enter(0);
            World::put(&handle, B, 0, 1);
            handle.forget(A);
        });
        let mut commits: Vec<Written> = (0..2).filter_map(|_| world.commit(|| true)).collect();
        owner.join().unwrap();
        commits.extend(world.commit(|| true));
        let mut freed = false;
        for written in &commits {
            assert!(!freed, "nothing changed after the free");
            freed = written.revoked == [A];
            let image = written.images.iter().find(|(block, _)| *block == A);
            match image {
                Some((_, bytes)) => assert!(!freed && bytes[0] == 1),
                None => assert!(freed, "the first change is lost"),
            }
            assert_eq!(freed, written.images.iter().any(|(block, _)| *block == B));
        }
        assert!(freed);
    });
}

/// A reader that runs during commits and checkpoints never gets an older version of a block after a
/// newer one.
#[test]
fn a_checkpoint_hides_nothing() {
    explore(1500, || {
        let world = World::new();
        let writer = spawn(&world, |world| {
            for number in 1..=2 {
                World::put(&world.enter(0), A, 0, number);
                world.commit(|| true);
                world.journal.close().unwrap();
            }
        });
        let mut last = 0;
        for _ in 0..40 {
            let mut bytes = [0; BLOCK_SIZE];
            world.view.read_at(A.raw() * 1024, &mut bytes).unwrap();
            assert!(bytes[0] >= last, "{last} then {}", bytes[0]);
            last = bytes[0];
        }
        writer.join().unwrap();
    });
}

/// Several threads make a change and sync. When the sync of a thread returns, its change is
/// durable, and no thread waits for ever.
#[test]
fn who_syncs_is_durable() {
    explore(1500, || {
        let world = World::new();
        let sync = |world: &World, slot: u32| {
            let handle = world.enter(slot);
            World::put(&handle, A, slot as usize, 1);
            let tid: TxnId = handle.tid();
            drop(handle);
            world.commit(|| !world.txns.is_durable(tid));
            assert!(world.txns.is_durable(tid));
            assert_eq!(world.after_crash(A)[slot as usize], 1);
        };
        let others: Vec<_> = (1..3).map(|slot| spawn(&world, move |world| sync(world, slot))).collect();
        sync(&world, 0);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert!(world.txns.turn.commits() <= 3);
    });
}

/// One thread has the turn. Another thread calls `take_if_free`, which returns at once. (If that
/// call waited, the test would deadlock, because the thread with the turn joins the other before it
/// ends the turn.) A third thread waits for the turn and gets it afterwards. In the end nobody has
/// the turn.
#[test]
fn who_needs_no_turn_goes_on() {
    explore(1500, || {
        let world = World::new();
        let turn = world.txns.turn.wait(|| true).unwrap();
        let passing = spawn(&world, |world| assert!(world.txns.turn.take_if_free().is_none()));
        let needing = spawn(&world, |world| drop(world.txns.turn.wait(|| true).unwrap()));
        passing.join().unwrap();
        drop(turn);
        let free = spawn(&world, |world| drop(world.txns.turn.take_if_free()));
        needing.join().unwrap();
        free.join().unwrap();
        assert!(world.txns.turn.take_if_free().is_some(), "somebody kept the turn");
    });
}
