//! Ending a transaction, making it durable, and closing the instance.

use super::Volume;
use crate::epoch::Epoch;
use crate::inode::Inode;
use crate::txn::{Closed, Image, MyTurn, Taken};
use crate::{OpContext, Result};
use blockyard_disk::superblock::FsState;
use blockyard_disk::{GroupNr, InodeNr, TxnId};
use blockyard_sync::Ordering;
use std::sync::Arc;

/// What a commit takes while the gate is closed: lists of what changed, but no copies.
struct Snapshot {
    inodes: Vec<Arc<Inode>>,
    groups: Vec<GroupNr>,
    changed: Taken,
    newest_orphan: Option<InodeNr>,
}

/// Whether the clusters that a transaction freed can be allocated as soon as it has committed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Frees {
    Usable,
    Held,
}

impl Volume {
    /// Ends the running transaction; the clusters that it freed can then be allocated. Without a
    /// journal, nothing is written.
    pub(crate) fn commit_point(&self, ctx: &OpContext) -> Result<()> {
        self.end_running(ctx, Frees::Usable)
    }

    fn end_running(&self, ctx: &OpContext, frees: Frees) -> Result<()> {
        let Some(turn) = self.txns.turn.wait(|| true) else { return Ok(()) };
        self.end_transaction(ctx, self.journal.is_durable(), frees, turn)
    }

    /// As [`Self::commit_now`], unless `needed` is no longer true when this thread gets its turn:
    /// many threads may find at once that a commit is needed, and one commit serves them all.
    pub(crate) fn commit_if(&self, ctx: &OpContext, needed: impl Fn() -> bool) -> Result<()> {
        let Some(turn) = self.txns.turn.wait(needed) else { return Ok(()) };
        self.end_transaction(ctx, true, Frees::Usable, turn)
    }

    /// As [`Self::commit_point`], if it is `needed` and no other commit is running. Never waits for
    /// a running commit, which may hang on a device that does not answer.
    pub(crate) fn commit_in_passing(&self, ctx: &OpContext, needed: impl Fn() -> bool) -> Result<()> {
        let Some(turn) = self.txns.turn.take_if_free() else { return Ok(()) };
        if !needed() {
            return Ok(());
        }
        self.end_transaction(ctx, self.journal.is_durable(), Frees::Usable, turn)
    }

    /// Ends the running transaction and makes it durable.
    pub(crate) fn commit_now(&self, ctx: &OpContext) -> Result<()> {
        self.commit_if(ctx, || true)
    }

    /// Makes a transaction durable unless it is already. One commit serves all threads that wait
    /// for this transaction or an earlier one. Without a journal this always commits, because a
    /// transaction may have ended without being written.
    pub(crate) fn commit_through(&self, ctx: &OpContext, tid: TxnId) -> Result<()> {
        if !self.journal.is_durable() {
            return self.commit_now(ctx);
        }
        if self.txns.is_durable(tid) { Ok(()) } else { self.commit_if(ctx, || !self.txns.is_durable(tid)) }
    }

    /// See [`crate::FileSystem::commits`].
    pub(crate) fn commits(&self) -> u64 {
        self.txns.turn.commits()
    }

    fn end_transaction(
        &self,
        ctx: &OpContext,
        durable: bool,
        frees: Frees,
        mut turn: MyTurn<'_>,
    ) -> Result<()> {
        self.check_writable()?;
        let closed = self.close_gate(durable)?;
        // An operation may have panicked while this thread waited for it.
        self.check_writable()?;
        self.started.store(ctx.now.seconds.cast_unsigned(), Ordering::Relaxed);
        if durable && !self.has_changes() {
            // Handles that changed nothing have left credits in the pools of their CPU slots. A
            // thread that came here for credits gets them now.
            self.txns.restock();
            drop(closed);
            if frees == Frees::Usable {
                self.space.release_held(ctx.cpu);
            }
            return Ok(());
        }
        let snapshot = durable.then(|| self.snapshot());
        let (tid, epoch) = self.txns.switch(durable);
        drop(closed);
        if let Some(snapshot) = snapshot {
            let written = self.write_transaction(ctx, tid, epoch, snapshot);
            self.apply(written)?;
        }
        turn.count();
        if durable {
            self.txns.note_durable(tid);
        }
        match frees {
            Frees::Usable => self.space.committed(tid, ctx.cpu),
            Frees::Held => self.space.hold(tid, ctx.cpu),
        }
        Ok(())
    }

    /// Closes the gate. If the transaction will be written, first makes room for the largest
    /// possible one.
    fn close_gate(&self, durable: bool) -> Result<Closed<'_>> {
        if durable {
            self.apply(self.journal.prepare(self.txns.budget()))?.or_fail()?;
        }
        Ok(self.txns.gate.close())
    }

    /// Whether a commit now has anything to write. Without a journal it always has: at least the
    /// superblock. The gate is closed.
    fn has_changes(&self) -> bool {
        self.txns.has_changes() || self.groups.has_changes() || !self.journal.is_durable()
    }

    fn snapshot(&self) -> Snapshot {
        // Orphans first: this may add to the list of changed inodes.
        let newest_orphan = self.orphans.freeze_orphans(&self.inodes);
        Snapshot {
            newest_orphan,
            inodes: self.inodes.table.take_dirty(),
            groups: self.groups.take_dirty(),
            changed: self.txns.take(),
        }
    }

    /// Encodes the changed inodes, copies the blocks that changed in `epoch`, sets their checksums,
    /// and passes the copies to the journal. Handles of the next epoch run meanwhile. Before they
    /// change a block that is not copied yet, they set a copy aside for this commit.
    fn write_transaction(
        &self,
        ctx: &OpContext,
        tid: TxnId,
        epoch: Epoch,
        mut snapshot: Snapshot,
    ) -> Result<()> {
        // Inodes first: they are encoded into buffers, which are copied below.
        for inode in &snapshot.inodes {
            inode.encode(epoch, &self.inodes.encoding());
        }
        let buffers = &mut snapshot.changed.buffers;
        // Keys are cached: sorting by data inside the buffers would read each of them many times.
        buffers.sort_by_cached_key(|buffer| buffer.block());
        let descriptors = self.groups.descriptor_blocks(&snapshot.groups);
        // One more for the superblock.
        let images_max = buffers.len() + descriptors.len() + 1;
        self.journal.begin(tid, images_max, &snapshot.changed.revoked)?;
        let at_once = self.journal.images_at_once();
        let mut images: Vec<Image> = Vec::with_capacity(at_once);
        let mut spare = Vec::new();
        for buffer in &*buffers {
            if images.len() == at_once {
                self.journal.write(&images)?;
                spare.extend(images.drain(..).map(|image| image.bytes));
                // Some images are copies that handles had set aside. Their memory did not come from
                // `spare`, so `spare` would grow without this line.
                spare.truncate(at_once);
            }
            let Some(copied) = buffer.take_copy(epoch, &mut spare) else { continue };
            // Bitmaps before descriptors, because descriptors hold the checksums of bitmaps.
            self.groups.freeze_bitmap(epoch, buffer, &copied);
            let bytes = copied.seal(buffer.block(), self.sb.checksums());
            debug_assert_eq!(bytes.len(), self.block_size(), "block {} has another size", buffer.block());
            images.push(Image { block: buffer.block(), bytes });
        }
        self.groups.freeze_descriptors(epoch, &descriptors, &mut images);
        images.extend(self.freeze_super_block(snapshot.newest_orphan));
        images.sort_unstable_by_key(|image| image.block);
        self.journal.write(&images)?;
        drop((images, spare));
        self.journal.commit(ctx.now)
    }

    /// The superblock, if it has to be written. With a journal it is not written for its totals
    /// alone, because they follow from the group descriptors.
    fn freeze_super_block(&self, newest_orphan: Option<InodeNr>) -> Option<Image> {
        let durable = self.journal.is_durable();
        {
            let mut super_block = self.super_block.lock();
            let adds = self.inodes.features.add_to(super_block.raw_mut());
            if durable && !adds && super_block.raw().last_orphan() == newest_orphan {
                return None;
            }
        }
        let totals = self.groups.totals();
        let mut super_block = self.super_block.lock();
        super_block.raw_mut().set_last_orphan(newest_orphan);
        Some(super_block.image(&totals))
    }

    /// Commits, and makes sure that all data written before is durable.
    pub(crate) fn sync(&self, ctx: &OpContext) -> Result<()> {
        let ticket = self.flushes.ticket();
        self.commit_now(ctx)?;
        self.flushes.cover(ticket)
    }

    /// Commits, empties the journal and marks the image as closed: clean, if it was clean when
    /// opened.
    pub(crate) fn close(&self, ctx: &OpContext) -> Result<()> {
        self.commit_now(ctx)?;
        self.journal.close()?;
        let was_valid = self.sb.state().contains(FsState::VALID);
        let totals = self.groups.totals();
        self.super_block.lock().write_closed(&*self.device, ctx.now, was_valid, &totals)
    }

    /// See [`crate::FileSystem::commit`].
    pub(crate) fn commit(&self, ctx: &OpContext) -> Result<()> {
        self.commit_point(ctx)
    }

    /// See [`crate::fs::Instrumented::commit_holding_frees`].
    pub(crate) fn commit_holding_frees(&self, ctx: &OpContext) -> Result<()> {
        self.end_running(ctx, Frees::Held)
    }

    /// See [`crate::fs::Instrumented::release_frees`].
    pub(crate) fn release_frees(&self, ctx: &OpContext) {
        // Waits for the turn, because a running commit may be about to hold freed clusters back.
        let turn = self.txns.turn.wait(|| true);
        self.space.release_held(ctx.cpu);
        drop(turn);
    }
}

#[cfg(test)]
mod tests {
    use crate::instruments::Instruments;
    use crate::{Error, FileSystem, NewInode, OpContext, OpenOptions, mkfs};
    use blockyard_device::{BlockDevice, Effect, Fault, FaultyDevice, MemoryDevice, Operation, When};
    use blockyard_disk::InodeNr;
    use blockyard_disk::inode::FileType;
    use blockyard_sync::CpuSlot;
    use std::sync::Arc;

    /// A handle takes all credits, changes nothing and gives them to the pool of its CPU slot, as
    /// can happen on a full file system. A handle on another slot needs credits and asks for a
    /// commit. There is nothing to commit, but the handle must get its credits, and not ask again
    /// for ever.
    #[test]
    fn credits_of_handles_that_changed_nothing_come_back() {
        let device = Arc::new(MemoryDevice::new(16 << 20));
        mkfs::format(&*device, &mkfs::Options::ext4().block_size(1024).identity(1, 1)).unwrap();
        let on_slot = |slot| OpContext { cpu: CpuSlot::new(slot), ..OpContext::system() };
        let fs = FileSystem::open(device, OpenOptions::default(), &on_slot(0)).unwrap();
        fs.volume.commit_now(&on_slot(0)).unwrap();
        drop(fs.volume.begin(&on_slot(0), fs.volume.journal.blocks_max()).unwrap());
        drop(fs.volume.begin(&on_slot(1), 40).unwrap());
        fs.close(&on_slot(0)).unwrap();
    }

    /// Freed clusters that a commit held back stay pending until they are released, or until the
    /// next commit.
    #[test]
    fn held_frees_wait_for_their_release_or_the_next_commit() {
        let ctx = OpContext::system();
        let device = Arc::new(MemoryDevice::new(64 << 20));
        mkfs::format(&*device, &mkfs::Options::ext4().block_size(1024).identity(1, 1)).unwrap();
        let fs = FileSystem::open(device, OpenOptions::default(), &ctx).unwrap();
        let pending = || fs.allocator().pending_clusters();
        let free_one = |name: &[u8]| {
            let new = NewInode { kind: FileType::Directory, permissions: 0o755, device: None };
            fs.create(&ctx, InodeNr::ROOT, name, &new).unwrap();
            fs.rmdir(&ctx, InodeNr::ROOT, name).unwrap();
        };
        // The next commit releases held clusters even if it has nothing to write.
        free_one(b"first");
        fs.instrumented().commit_holding_frees(&ctx).unwrap();
        assert_eq!(pending(), 1);
        fs.commit(&ctx).unwrap();
        assert_eq!(pending(), 0);
        for release in [true, false] {
            free_one(b"first");
            fs.instrumented().commit_holding_frees(&ctx).unwrap();
            assert_eq!(pending(), 1);
            free_one(b"second");
            assert_eq!(pending(), 2);
            if release {
                fs.instrumented().release_frees(&ctx);
                assert_eq!(pending(), 1);
            }
            fs.commit(&ctx).unwrap();
            assert_eq!(pending(), 0);
        }
        fs.close(&ctx).unwrap();
    }

    /// A panic inside a handle makes the instance read-only. The commit of the handle's transaction
    /// fails and writes nothing of it, not even what an earlier operation changed.
    #[test]
    fn a_commit_writes_nothing_that_a_panic_left() {
        let ctx = OpContext::system();
        let device = Arc::new(MemoryDevice::new(64 << 20));
        mkfs::format(&*device, &mkfs::Options::ext4().block_size(1024).identity(1, 1)).unwrap();
        let fs = FileSystem::open(Arc::<MemoryDevice>::clone(&device), OpenOptions::default(), &ctx).unwrap();
        let new = NewInode { kind: FileType::Directory, permissions: 0o755, device: None };
        fs.create(&ctx, InodeNr::ROOT, b"kept", &new).unwrap();
        fs.sync(&ctx).unwrap();
        fs.create(&ctx, InodeNr::ROOT, b"lost", &new).unwrap();
        let (entered, begun) = std::sync::mpsc::channel();
        let committed = std::thread::scope(|scope| {
            let fs = &fs;
            let operation = scope.spawn(move || {
                let _handle = fs.volume.begin(&ctx, 8).unwrap();
                entered.send(()).unwrap();
                // Mostly long enough for the commit to begin before the panic. The test holds in
                // either order.
                std::thread::sleep(std::time::Duration::from_millis(50));
                panic!("in the middle of an operation");
            });
            begun.recv().unwrap();
            let commit = scope.spawn(move || fs.volume.commit_now(&ctx));
            assert!(operation.join().is_err());
            commit.join().unwrap()
        });
        assert!(matches!(committed, Err(Error::ReadOnly)), "{committed:?}");
        assert!(fs.has_failed() && fs.sync(&ctx).is_err());
        drop(fs);
        let open = OpenOptions { read_only: true, ..OpenOptions::default() };
        let fs = FileSystem::open(device, open, &ctx).unwrap();
        assert!(fs.lookup(InodeNr::ROOT, b"kept").is_ok());
        assert!(matches!(fs.lookup(InodeNr::ROOT, b"lost"), Err(Error::NotFound)));
    }

    /// Linux 6.18 shows the same numbers for logs of these sizes in `/proc/fs/jbd2/*/info` ("each
    /// up to N blocks").
    #[test]
    fn a_transaction_may_change_a_third_of_the_log() {
        for (mib, most) in [(4, 1365), (16, 5461), (64, 21845)] {
            let device = Arc::new(MemoryDevice::new(512 << 20));
            let options = mkfs::Options::ext4().block_size(1024).journal_mib(mib).identity(1, 1);
            mkfs::format(&*device, &options).unwrap();
            let open = OpenOptions { cache_bytes: 1 << 30, ..OpenOptions::default() };
            let fs = FileSystem::open(device, open, &OpContext::system()).unwrap();
            assert_eq!(fs.volume.journal.blocks_max(), most, "a journal of {mib} MiB");
            fs.close(&OpContext::system()).unwrap();
        }
    }

    /// The transaction size that an instrument sets is limited to 64 blocks from below and to three
    /// quarters of the log from above. With each size, 200 directories can be created.
    #[test]
    fn a_wanted_size_of_transactions_stays_within_what_works() {
        let ctx = OpContext::system();
        for (wanted, most) in [(0, 64), (500, 500), (usize::MAX, 3069)] {
            let device = Arc::new(MemoryDevice::new(64 << 20));
            let options = mkfs::Options::ext4().block_size(1024).journal_mib(4).identity(1, 1);
            mkfs::format(&*device, &options).unwrap();
            let instruments = Instruments::transaction_blocks(wanted);
            let open = OpenOptions { instruments, ..OpenOptions::default() };
            let fs = FileSystem::open(device, open, &ctx).unwrap();
            assert_eq!(fs.volume.journal.blocks_max(), most, "{wanted} blocks");
            for name in 0..200 {
                let new = NewInode { kind: FileType::Directory, permissions: 0o755, device: None };
                fs.create(&ctx, InodeNr::ROOT, format!("{name}").as_bytes(), &new).unwrap();
            }
            assert!(wanted > 0 || fs.commits() > 5, "{}", fs.commits());
            fs.close(&ctx).unwrap();
        }
    }

    /// Without a journal a commit writes many times. Whichever write fails, the instance becomes
    /// read-only. Once the device works again, the instance still finds every name.
    #[test]
    fn each_write_of_a_commit_without_journal_may_fail() {
        let ctx = OpContext::system();
        let image = MemoryDevice::new(64 << 20);
        let options = mkfs::Options::ext4().block_size(1024).features("^has_journal").identity(1, 1);
        mkfs::format(&image, &options).unwrap();
        let new = |kind| NewInode { kind, permissions: 0o755, device: None };
        // Commits the blocks of a thousand directories with a name each. Returns the number of
        // writes.
        let trial = |nth: Option<u64>| {
            let device = Arc::new(FaultyDevice::new(image.duplicate()));
            let fs = FileSystem::open(Arc::<FaultyDevice<_>>::clone(&device), OpenOptions::default(), &ctx)
                .unwrap();
            let names: Vec<String> = (0..1000).map(|number| format!("{number}")).collect();
            let dirs: Vec<InodeNr> = names
                .iter()
                .map(|name| {
                    let dir =
                        fs.create(&ctx, InodeNr::ROOT, name.as_bytes(), &new(FileType::Directory)).unwrap();
                    fs.create(&ctx, dir, b"name", &new(FileType::Fifo)).unwrap();
                    dir
                })
                .collect();
            let before = device.counts().writes;
            if let Some(nth) = nth {
                let when = When::Nth(before + nth);
                device.add(Fault { operation: Operation::Write, when, effect: Effect::Nothing });
            }
            let committed = fs.volume.commit_now(&ctx);
            assert_eq!(committed.is_err(), nth.is_some());
            let writes = device.counts().writes - before;
            device.heal();
            for (name, dir) in names.iter().zip(dirs) {
                assert_eq!(fs.lookup(InodeNr::ROOT, name.as_bytes()).unwrap(), dir);
                assert!(fs.lookup(dir, b"name").is_ok());
            }
            let later = fs.create(&ctx, InodeNr::ROOT, b"later", &new(FileType::Fifo));
            assert_eq!(matches!(later, Err(Error::ReadOnly)), nth.is_some());
            assert_eq!(fs.close(&ctx).is_err(), nth.is_some());
            writes
        };
        let writes = trial(None);
        assert!(writes > 4, "{writes} writes");
        for nth in 1..=writes {
            trial(Some(nth));
        }
    }

    /// A checkpoint reads the log. If the log cannot be read, a caller that wanted a commit gets
    /// the error, and no change is lost. Once the device can be read again, commits succeed.
    #[test]
    fn a_log_that_can_not_be_read_ends_nothing() {
        let ctx = OpContext::system();
        let device = Arc::new(FaultyDevice::new(MemoryDevice::new(64 << 20)));
        let options = mkfs::Options::ext4().block_size(1024).journal_mib(4).identity(1, 1);
        mkfs::format(&*device, &options).unwrap();
        let fs =
            FileSystem::open(Arc::<FaultyDevice<_>>::clone(&device), OpenOptions::default(), &ctx).unwrap();
        let new = NewInode { kind: FileType::Directory, permissions: 0o755, device: None };
        let mut names = Vec::new();
        let mut make_some = || {
            for _ in 0..200 {
                let name = names.len().to_string();
                names.push((fs.create(&ctx, InodeNr::ROOT, name.as_bytes(), &new).unwrap(), name));
            }
        };
        let failed = (0..100).find(|_| {
            make_some();
            let when = When::From(device.counts().reads + 1);
            device.add(Fault { operation: Operation::Read, when, effect: Effect::Nothing });
            let committed = fs.volume.commit_now(&ctx);
            device.heal();
            committed.is_err()
        });
        assert!(failed.is_some(), "no commit had to read the log");
        assert!(!fs.has_failed());
        make_some();
        fs.volume.commit_now(&ctx).unwrap();
        for (inode, name) in &names {
            assert_eq!(fs.lookup(InodeNr::ROOT, name.as_bytes()).unwrap(), *inode);
        }
        fs.close(&ctx).unwrap();
        let report = blockyard_check::check(device.below(), &blockyard_check::Options::default()).unwrap();
        assert!(report.is_clean(), "{:?}", report.findings);
    }

    /// Damage to an image in the log is noticed when the instance is closed, and closing fails. The
    /// log keeps the transaction: once the damage is undone, recovery finds it.
    #[test]
    fn damage_in_the_log_is_not_brought_home() {
        let ctx = OpContext::system();
        let device = Arc::new(MemoryDevice::new(64 << 20));
        mkfs::format(&*device, &mkfs::Options::ext4().block_size(1024).identity(1, 1)).unwrap();
        let place = blockyard_recovery::Session::open(&*device).unwrap().into_journal().unwrap();
        let turn_a_bit = |log_block: u32| {
            let at = place.physical(log_block).raw() * 1024 + 700;
            let mut byte = [0];
            device.read_at(at, &mut byte).unwrap();
            device.write_at(at, &[byte[0] ^ 4]).unwrap();
        };
        let fs = FileSystem::open(Arc::<MemoryDevice>::clone(&device), OpenOptions::default(), &ctx).unwrap();
        let new = NewInode { kind: FileType::Directory, permissions: 0o755, device: None };
        let inode = fs.create(&ctx, InodeNr::ROOT, b"name", &new).unwrap();
        fs.sync(&ctx).unwrap();
        // The log's first block is a descriptor; block 3 holds an image.
        turn_a_bit(3);
        let error = fs.close(&ctx).unwrap_err();
        assert!(error.to_string().contains("log block 3 does not hold what was written"), "{error}");
        turn_a_bit(3);
        let fs = FileSystem::open(Arc::<MemoryDevice>::clone(&device), OpenOptions::default(), &ctx).unwrap();
        assert_eq!(fs.lookup(InodeNr::ROOT, b"name").unwrap(), inode);
        fs.close(&ctx).unwrap();
        let report = blockyard_check::check(&*device, &blockyard_check::Options::default()).unwrap();
        assert!(report.is_clean(), "{:?}", report.findings);
    }
}
