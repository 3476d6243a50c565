//! Writing the jbd2 journal: a transaction's blocks are first written into a ring of log blocks,
//! and later to their homes.
//!
//! A commit writes revoke records, descriptors and *images* (copies of the changed blocks) into the
//! ring, flushes, and writes the commit record durably. From then on the transaction survives a
//! crash. Its images are only in the log until a *checkpoint* writes them home. Until then their
//! positions are kept in memory ([`Committed`]), and a reader of a block gets the committed image
//! ([`HomeView`]). A checkpoint takes the oldest transactions in the log. For each of their blocks
//! it reads the newest committed image from the log and writes it home. Then it flushes, and only
//! then moves the tail. After that the ring space before the tail may be overwritten.
//!
//! Order of writes (each step is complete before the step after the `|` begins), and why:
//! * file data, log blocks | flush | commit record, durable: if a commit record is on the device,
//!   so is everything that it covers.
//! * commit record | home: a change reaches its home only after it is durable in the log.
//! * home | flush | tail, durable | reuse of ring space: a block leaves the log only when it is
//!   durable at home.
//! * log marked in use, durable | first commit record: recovery overlooks no committed transaction.
//!
//! Invariants: `used` is the sum of the blocks of the transactions in `logged`, and at least one
//! ring block is free. [`Committed`] holds the position of the newest image of each block of the
//! logged transactions until that image is home, unless the block was revoked since. While it holds
//! a position, that log block is not overwritten.

mod blocks;
mod committed;
mod log;
mod records;

pub(crate) use blocks::{LogBlocks, Wanted};
pub(crate) use committed::{Committed, HomeView};

use crate::instruments::BrokenRule;
use crate::txn::{Flushes, Image, Journal, Prepared};
use crate::{Error, Refusal, Result};
use blockyard_device::BlockDevice;
use blockyard_disk::jbd2::{self, CommitBlock, CommitTime};
use blockyard_disk::num::{u32_from_usize, usize_from_u32};
use blockyard_disk::{BlockNr, Timestamp, TxnId};
use blockyard_sync::{Backend, Mutex, Native, rank};
use committed::Logged;
use log::Log;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// The error that an aborted journal records: EIO, as a negative number like in Linux.
const ERRNO: u32 = 5_u32.wrapping_neg();

/// Where a journal writes.
pub(crate) struct Devices<B: Backend = Native> {
    /// The file system.
    pub(crate) home: Arc<dyn BlockDevice>,
    /// The flushes of `home`.
    pub(crate) flushes: Arc<Flushes<B>>,
}

/// A journal open for writing.
pub(crate) struct LogJournal<B: Backend = Native> {
    home: Arc<dyn BlockDevice>,
    flushes: Arc<Flushes<B>>,
    broken_rule: Option<BrokenRule>,
    committed: Arc<Committed<B>>,
    /// The most blocks that a transaction may change.
    blocks_max: usize,
    first: TxnId,
    ring: Mutex<RingState, B>,
}

/// The fewest blocks that a log may have: those of the smallest journal, less its superblock. As in
/// Linux, a journal is not used if `s_first` and `s_maxlen` leave its log fewer.
const LOG_MIN: u32 = jbd2::BLOCKS_MIN - 1;

/// The least that an instrument can set `blocks_max` to. An operation that cannot be split changes
/// fewer blocks than this. Some operations, such as a rename, ask for more credits than this; in a
/// transaction of this size, they get all credits.
const TRANSACTION_MIN: usize = 64;

/// How far the log is written before it starts over: this many times the largest size that the next
/// transaction may have, but at least an eighth of the log. Larger values bring blocks home less
/// often; smaller ones leave more of the log's area on its device untouched.
const FAR: usize = 3;

/// Bounds of a transaction.
pub(crate) struct Limits {
    /// The most blocks that may be dirty in memory.
    pub(crate) dirty_max: usize,
    /// The most blocks that a transaction may change, if an instrument sets this.
    pub(crate) transaction: Option<usize>,
}

/// The log and its content. Commits run one at a time, so the lock of this state is hardly
/// contended.
struct RingState {
    log: Log,
    /// The transactions in the log, from the oldest to the newest.
    logged: VecDeque<Transaction>,
    /// How many ring blocks the transactions in `logged` occupy.
    used: u32,
    /// The next log block to be written.
    head: u32,
    /// The next transaction to be written.
    next: TxnId,
    /// The most blocks that the next transaction may change.
    blocks: usize,
    last_time: CommitTime,
    /// The transaction being written.
    open: Open,
    /// Revokes that were never cancelled, under [`BrokenRule::RevokeNotCancelled`] only.
    sticky: BTreeSet<BlockNr>,
}

/// A transaction in the log.
#[derive(Clone, Copy)]
struct Transaction {
    tid: TxnId,
    start: u32,
    blocks: u32,
}

/// The part of a transaction written so far. Successive transactions reuse its memory.
#[derive(Default)]
struct Open {
    tid: TxnId,
    start: u32,
    /// The next log block to be written.
    at: u32,
    blocks: u32,
    /// How many ring blocks the transaction may occupy.
    room: u32,
    images: Vec<(BlockNr, Logged)>,
    revoked: Vec<BlockNr>,
    /// Buffer in which a descriptor and its images are encoded.
    piece: Vec<u8>,
}

impl<B: Backend> LogJournal<B> {
    /// Takes over an empty log. Call [`Journal::start`] before the first transaction.
    ///
    /// # Errors
    /// [`Error::Refused`] when the log is not empty.
    pub(crate) fn open(
        devices: Devices<B>,
        committed: Arc<Committed<B>>,
        limits: Limits,
        broken_rule: Option<BrokenRule>,
    ) -> Result<Self> {
        let Devices { home, flushes } = devices;
        let place = committed.log().place();
        if place.superblock().start().is_some() {
            return Err(Error::Refused(Refusal::LogInUse));
        }
        let first = place.superblock().sequence();
        let log = Log::open(Arc::clone(committed.log()));
        let blocks = log.ring().len();
        if blocks < LOG_MIN {
            return Err(Error::Refused(Refusal::LogTooShort { blocks, least: LOG_MIN }));
        }
        let len = usize_from_u32(blocks);
        // As in Linux, a transaction may change a third as many blocks as the log has. The limit
        // also affects allocation: clusters that a transaction freed cannot be reused before it
        // commits.
        let in_log = limits.transaction.map_or(len / 3, |most| most.clamp(TRANSACTION_MIN, len / 4 * 3));
        let blocks_max = in_log.min(limits.dirty_max);
        assert!(0 < blocks_max && blocks_max < len, "transactions of {blocks_max} in a log of {len}");
        let state = RingState {
            blocks: blocks_max,
            head: log.first_block(),
            log,
            logged: VecDeque::new(),
            used: 0,
            next: first,
            last_time: CommitTime::default(),
            open: Open::default(),
            sticky: BTreeSet::new(),
        };
        Ok(Self {
            home,
            flushes,
            broken_rule,
            committed,
            blocks_max,
            first,
            ring: Mutex::new(rank::JOURNAL_RING, state),
        })
    }

    /// Makes sure that `needed` ring blocks are free. If they are not, a checkpoint of the oldest
    /// transactions frees them, and leaves at most half of the ring in use. When the head is far
    /// from the ring's start ([`FAR`]), a checkpoint of all transactions lets the log start over.
    /// So a log that is much larger than its transactions is written only in part. Returns
    /// [`Prepared::Unreadable`] if ring blocks cannot be freed because the log cannot be read.
    fn make_room(&self, ring: &mut RingState, needed: u32) -> Result<Prepared> {
        let len = ring.log.ring().len();
        let has_gone_far = self.has_gone_far(ring);
        if ring.used + needed < len && !has_gone_far {
            return Ok(Prepared::Ready);
        }
        let most = if has_gone_far { 0 } else { len / 2 }.min(len - needed.min(len));
        let mut used = ring.used;
        let mut count = 0;
        for logged in &ring.logged {
            if used <= most && used + needed < len {
                break;
            }
            used -= logged.blocks;
            count += 1;
        }
        let prepared = self.checkpoint(ring, count)?;
        if ring.used + needed < len {
            // There is room even if the checkpoint failed to read the log. A later checkpoint tries
            // again.
            return Ok(Prepared::Ready);
        }
        if matches!(prepared, Prepared::Unreadable(_)) {
            return Ok(prepared);
        }
        Err(Error::Refused(Refusal::TransactionTooLarge { blocks: needed, log: len }))
    }

    /// Whether the head is so far from the ring's start that the log should start over.
    fn has_gone_far(&self, ring: &RingState) -> bool {
        let all = ring.log.ring();
        debug_assert!(all.contains(ring.head), "the head {} lies outside of the ring", ring.head);
        usize_from_u32(ring.head - all.first()) > (FAR * ring.blocks).max(usize_from_u32(all.len() / 8))
    }

    /// Writes the oldest `count` transactions home and removes them from the log. If the log is
    /// then empty and the head is far from the ring's start, the log starts over. Recovery does not
    /// mistake the old records at the ring's start for part of the log, because their transaction
    /// ids are too low.
    fn checkpoint(&self, ring: &mut RingState, count: usize) -> Result<Prepared> {
        let Some(last) = count.checked_sub(1).and_then(|at| ring.logged.get(at)).map(|logged| logged.tid)
        else {
            return Ok(Prepared::Ready);
        };
        if let Prepared::Unreadable(error) = self.committed.bring_home(&*self.home, last)? {
            return Ok(Prepared::Unreadable(error));
        }
        let early = self.broken_rule == Some(BrokenRule::TailBeforeFlush);
        if !early {
            self.flushes.flush()?;
        }
        let freed: u32 = ring.logged.iter().take(count).map(|logged| logged.blocks).sum();
        if count == ring.logged.len() && self.has_gone_far(ring) {
            ring.head = ring.log.ring().first();
        }
        let (start, tid) = ring.logged.get(count).map_or((ring.head, ring.next), |at| (at.start, at.tid));
        assert!(!ring.next.is_after(tid) || count < ring.logged.len(), "the tail lies behind what is logged");
        ring.log.write_tail(start, tid)?;
        if early {
            self.flushes.flush()?;
        }
        ring.logged.drain(..count);
        assert!(ring.used >= freed, "the log frees more than it holds");
        ring.used -= freed;
        debug_assert_eq!(ring.used, ring.logged.iter().map(|logged| logged.blocks).sum::<u32>());
        self.committed.remove_up_to(last);
        Ok(Prepared::Ready)
    }

    /// The revokes to log: those of the transaction, unless a test has this instance break a rule.
    fn revokes_to_log(&self, ring: &mut RingState, revoked: &[BlockNr]) -> Vec<BlockNr> {
        match self.broken_rule {
            Some(BrokenRule::RevokeOmitted) => Vec::new(),
            Some(BrokenRule::RevokeNotCancelled) => {
                ring.sticky.extend(revoked);
                ring.sticky.iter().copied().collect()
            }
            _ => revoked.to_vec(),
        }
    }
}

impl<B: Backend> Journal for LogJournal<B> {
    fn is_durable(&self) -> bool {
        true
    }

    fn start(&self) -> Result<()> {
        self.ring.lock().log.write_features()
    }

    fn first(&self) -> TxnId {
        self.first
    }

    fn blocks_max(&self) -> usize {
        self.blocks_max
    }

    fn images_at_once(&self) -> usize {
        records::images_per_descriptor(self.ring.lock().log.format())
    }

    fn prepare(&self, blocks: usize) -> Result<Prepared> {
        debug_assert!(blocks <= self.blocks_max, "{blocks} blocks in a transaction of {}", self.blocks_max);
        let ring = &mut *self.ring.lock();
        ring.blocks = blocks;
        // The surplus is for blocks that operations do not count (log descriptors, the commit
        // record, the superblock), and for blocks that they change beyond their credits.
        self.make_room(ring, u32_from_usize(blocks + blocks / 8 + 8))
    }

    fn begin(&self, tid: TxnId, images_max: usize, revoked: &[BlockNr]) -> Result<()> {
        let ring = &mut *self.ring.lock();
        assert_eq!(tid, ring.next, "transactions are logged without gaps");
        debug_assert!(revoked.is_sorted_by(|one, next| one < next), "each block is revoked once");
        let format = *ring.log.format();
        let revokes = records::revokes(format, tid, &self.revokes_to_log(ring, revoked));
        let revoke_blocks = revokes.len() / format.block_size();
        // One more for a last descriptor that is full only in part, and one for the commit record.
        // `room` has one to spare.
        let descriptors = images_max / records::images_per_descriptor(&format) + 2;
        let room = u32_from_usize(revoke_blocks + descriptors + images_max + 1);
        self.make_room(ring, room)?.or_fail()?;
        let start = ring.head;
        debug_assert!(ring.used + room < ring.log.ring().len(), "no room was made");
        debug_assert_eq!(
            ring.logged.back().map_or(start, |last| ring.log.ring().advance(last.start, last.blocks)),
            start
        );
        if ring.log.is_marked_empty() {
            ring.log.write_tail(start, tid)?;
        }
        let open = &mut ring.open;
        (open.tid, open.start, open.blocks, open.room) = (tid, start, u32_from_usize(revoke_blocks), room);
        open.images.clear();
        open.revoked.clear();
        open.revoked.extend(revoked);
        open.at = ring.log.blocks().write(start, &revokes)?;
        Ok(())
    }

    fn write(&self, images: &[Image]) -> Result<()> {
        debug_assert!(
            images.is_sorted_by(|one, next| one.block < next.block),
            "images come in ascending order, each block once"
        );
        let ring = &mut *self.ring.lock();
        let (format, open) = (*ring.log.format(), &mut ring.open);
        let flipped = u32::from(self.broken_rule == Some(BrokenRule::BadTagChecksum));
        for part in images.chunks(records::images_per_descriptor(&format)) {
            let mut at = open.at;
            records::describe(
                format,
                open.tid,
                part,
                flipped,
                &mut open.piece,
                |block, checksum, is_escaped| {
                    at = ring.log.ring().advance(at, 1);
                    open.images.push((block, Logged { tid: open.tid, at, checksum, is_escaped }));
                },
            );
            open.blocks += u32_from_usize(part.len()) + 1;
            assert!(open.blocks < open.room, "more images than were announced would go over older ones");
            open.at = ring.log.blocks().write(open.at, &open.piece)?;
        }
        Ok(())
    }

    fn commit(&self, now: Timestamp) -> Result<()> {
        let ring = &mut *self.ring.lock();
        let time = CommitTime { seconds: now.seconds.max(0).unsigned_abs(), nanoseconds: now.nanoseconds };
        // Recovery may take a commit record for a leftover of older transactions if its time is
        // before that of the previous commit record.
        ring.last_time = ring.last_time.max(time);
        let (tid, at) = (ring.open.tid, ring.open.at);
        let blocks = ring.log.blocks();
        blocks.write(at, &vec![0; blocks.block_size()])?;
        if self.broken_rule != Some(BrokenRule::NoPreflush) {
            // Flushes the file data that the transaction covers, and the log if it is on the same
            // device.
            self.flushes.flush()?;
            blocks.flush_external()?;
        }
        let record = ring.log.format().commit_block(tid, ring.last_time, 0);
        debug_assert!(CommitBlock::new(&record).verify(ring.log.format()) || !blocks.has_checksums());
        blocks.write_durable(at, &record)?;
        let blocks = ring.open.blocks + 1;
        assert_eq!(tid, ring.next, "transactions are committed in the order of the log");
        ring.head = ring.log.ring().advance(at, 1);
        ring.used += blocks;
        assert!(ring.used < ring.log.ring().len(), "the log is written over its own tail");
        ring.logged.push_back(Transaction { tid, start: ring.open.start, blocks });
        ring.next = tid.next();
        self.committed.insert(&ring.open.images, &ring.open.revoked);
        Ok(())
    }

    fn abort(&self) -> Result<()> {
        self.ring.lock().log.write_error(ERRNO)
    }

    fn close(&self) -> Result<()> {
        let mut ring = self.ring.lock();
        let all = ring.logged.len();
        self.checkpoint(&mut ring, all)?.or_fail()?;
        assert_eq!(ring.used, 0, "the log is marked empty and is not");
        let (head, next) = (ring.head, ring.next);
        ring.log.mark_empty(next, head)
    }
}
