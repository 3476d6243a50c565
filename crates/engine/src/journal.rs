//! The jbd2 journal, written: transactions go into a ring of log blocks, and home later.
//!
//! A commit writes revoke records, descriptors and block images into the ring, flushes, and writes the commit record
//! durably: from then on the transaction survives a crash. Its images stay in memory ([`Committed`]) until a
//! *checkpoint* writes them home; who reads a block meanwhile gets the committed image ([`HomeView`]). A checkpoint
//! writes the newest committed image of each block of the oldest transactions, flushes, and only then moves the
//! tail: the ring space before it may be overwritten.
//!
//! Order of writes, and what each order protects:
//! * file data, log blocks | flush | commit record, durable: a commit record implies all that it speaks of.
//! * commit record | home: nothing at home is ahead of the log.
//! * home | flush | tail, durable | reuse of ring space: what left the log is at home.
//! * log marked in use, durable | first commit record: no committed transaction is overlooked.
//!
//! Invariants: `used` is the sum of the blocks of the transactions in `logged`, and one ring block is always free;
//! every block of a logged transaction whose newest image is of that transaction is in [`Committed`] until it is home.

mod committed;
mod log;
mod records;

pub(crate) use committed::{Committed, HomeView};
pub(crate) use log::Wanted;

use crate::fs::BrokenRule;
use crate::txn::{Flushes, Image, Journal, write_home};
use crate::{Error, Result};
use blockyard_device::BlockDevice;
use blockyard_disk::jbd2::CommitTime;
use blockyard_disk::num::{u32_from_usize, usize_from_u32};
use blockyard_disk::{BlockNr, Timestamp, TxnId};
use blockyard_recovery::JournalPlace;
use blockyard_sync::{Backend, Mutex, Native, rank};
use log::Log;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// What a journal aborts with: EIO, negative as Linux writes it.
const ERRNO: u32 = 5_u32.wrapping_neg();

/// Where a journal writes.
pub(crate) struct Devices<B: Backend = Native> {
    /// The file system.
    pub(crate) home: Arc<dyn BlockDevice>,
    /// The flushes of `home`.
    pub(crate) flushes: Arc<Flushes<B>>,
    /// The log, when it is on a device of its own.
    pub(crate) log: Option<Arc<dyn BlockDevice>>,
}

/// A journal that is being written.
pub(crate) struct LogJournal<B: Backend = Native> {
    home: Arc<dyn BlockDevice>,
    flushes: Arc<Flushes<B>>,
    broken_rule: Option<BrokenRule>,
    committed: Arc<Committed<B>>,
    /// Images in memory that a checkpoint is due at.
    committed_max: usize,
    blocks_max: usize,
    first: TxnId,
    ring: Mutex<RingState, B>,
}

/// Blocks that a transaction may change at least: more than an operation that can not be cut needs.
const TRANSACTION_MIN: usize = 64;

/// Blocks in memory.
pub(crate) struct Limits {
    /// Committed images that a checkpoint is due at; no transaction is larger.
    pub(crate) committed: usize,
    /// Blocks of a transaction, where the user says so.
    pub(crate) transaction: Option<usize>,
}

/// The log and what is in it. One commit at a time: nobody waits for this lock.
struct RingState {
    log: Log,
    /// From the oldest to the newest.
    logged: VecDeque<Logged>,
    /// Ring blocks of all of `logged`.
    used: u32,
    /// The log block that will be written next.
    head: u32,
    /// The transaction that will be written next.
    next: TxnId,
    last_time: CommitTime,
    /// Revokes that were never cancelled, under [`BrokenRule::RevokeNotCancelled`] only.
    sticky: BTreeSet<BlockNr>,
}

/// A transaction in the log.
#[derive(Clone, Copy)]
struct Logged {
    tid: TxnId,
    start: u32,
    blocks: u32,
}

impl<B: Backend> LogJournal<B> {
    /// Takes over an empty log and sets its features, durably.
    ///
    /// # Errors
    /// Of the device; [`Error::Refused`] when the log is not empty.
    pub(crate) fn open(
        devices: Devices<B>,
        place: JournalPlace,
        wanted: Wanted,
        committed: Arc<Committed<B>>,
        limits: Limits,
        broken_rule: Option<BrokenRule>,
    ) -> Result<Self> {
        let committed_max = limits.committed;
        let Devices { home, flushes, log: external } = devices;
        if place.superblock().start().is_some() {
            return Err(Error::Refused("the journal is not empty: it must be recovered first".to_owned()));
        }
        let first = place.superblock().sequence();
        let log = Log::open(Arc::clone(&home), external, place, wanted)?;
        let len = usize_from_u32(log.ring().len());
        // As Linux: until a third of the log is in use, what a transaction freed stays out of reach.
        let blocks_max = limits
            .transaction
            .map_or(len / 3, |most| most.clamp(TRANSACTION_MIN, len / 4 * 3))
            .min(committed_max);
        let state = RingState {
            head: log.first_block(),
            log,
            logged: VecDeque::new(),
            used: 0,
            next: first,
            last_time: CommitTime::default(),
            sticky: BTreeSet::new(),
        };
        Ok(Self {
            home,
            flushes,
            broken_rule,
            committed,
            committed_max,
            blocks_max,
            first,
            ring: Mutex::new(rank::JOURNAL_RING, state),
        })
    }

    /// Sees to it that `needed` ring blocks are free and not too many images wait in memory, by a checkpoint of the
    /// oldest transactions; when one is due it frees half of the ring. Of all of them when memory is what lacks and much of the
    /// log has been written: it goes on at its beginning then, so that a large log occupies no more of its device than
    /// transactions that wait in memory can fill.
    fn make_room(&self, ring: &mut RingState, needed: u32) -> Result<()> {
        let len = ring.log.ring().len();
        let is_crowded = self.committed.len() > self.committed_max;
        if ring.used + needed < len && !is_crowded {
            return Ok(());
        }
        let most = match (is_crowded, self.has_gone_far(ring)) {
            (false, _) => len / 2,
            (true, false) => ring.used / 2,
            (true, true) => 0,
        };
        let most = most.min(len - needed.min(len));
        let mut used = ring.used;
        let mut count = 0;
        for logged in &ring.logged {
            if used <= most && used + needed < len {
                break;
            }
            used -= logged.blocks;
            count += 1;
        }
        self.checkpoint(ring, count)?;
        if ring.used + needed < len {
            return Ok(());
        }
        Err(Error::Refused(format!("a transaction of {needed} blocks does not fit a log of {len}")))
    }

    /// Whether the log's next block is further from its first than twice the images that may wait in memory.
    fn has_gone_far(&self, ring: &RingState) -> bool {
        usize_from_u32(ring.head - ring.log.ring().first()) > 2 * self.committed_max
    }

    /// Brings the oldest `count` transactions home and forgets them in the log. One with nothing left in it begins anew if
    /// its head has gone far: what it held there before is older than what recovery asks for.
    fn checkpoint(&self, ring: &mut RingState, count: usize) -> Result<()> {
        let Some(last) = count.checked_sub(1).and_then(|at| ring.logged.get(at)).map(|logged| logged.tid)
        else {
            return Ok(());
        };
        let images = self.committed.up_to(last);
        write_home(&*self.home, images.iter().map(|(block, bytes)| (*block, &***bytes)))?;
        let early = self.broken_rule == Some(BrokenRule::TailBeforeFlush);
        if !early {
            self.flushes.flush()?;
        }
        let freed: u32 = ring.logged.iter().take(count).map(|logged| logged.blocks).sum();
        if count == ring.logged.len() && self.has_gone_far(ring) {
            ring.head = ring.log.ring().first();
        }
        let (start, tid) = ring.logged.get(count).map_or((ring.head, ring.next), |at| (at.start, at.tid));
        ring.log.write_tail(start, tid)?;
        if early {
            self.flushes.flush()?;
        }
        ring.logged.drain(..count);
        ring.used -= freed;
        self.committed.remove_up_to(last);
        Ok(())
    }

    fn write(&self, ring: &mut RingState, tid: TxnId, records: &records::Records<'_>) -> Result<()> {
        let needed = u32_from_usize(records.len());
        self.make_room(ring, needed)?;
        let start = ring.head;
        if ring.log.is_marked_empty() {
            ring.log.write_tail(start, tid)?;
        }
        let mut at = start;
        let v1_checksum = records.each_piece(|piece| {
            at = ring.log.write_blocks(at, piece)?;
            Ok(())
        })?;
        if self.broken_rule != Some(BrokenRule::NoPreflush) {
            // The file data that the transaction speaks of; and the log, when it is on the same device.
            self.flushes.flush()?;
            ring.log.flush_external()?;
        }
        let at = ring.log.ring().advance(start, needed - 1);
        let commit = ring.log.format().commit_block(tid, ring.last_time, v1_checksum);
        ring.log.write_durable(at, &commit)?;
        ring.head = ring.log.ring().advance(at, 1);
        ring.used += needed;
        ring.logged.push_back(Logged { tid, start, blocks: needed });
        Ok(())
    }
}

impl<B: Backend> Journal for LogJournal<B> {
    fn keeps_promises(&self) -> bool {
        true
    }

    fn first(&self) -> TxnId {
        self.first
    }

    fn blocks_max(&self) -> usize {
        self.blocks_max
    }

    fn commit(&self, tid: TxnId, images: Vec<Image>, revoked: &[BlockNr], now: Timestamp) -> Result<()> {
        let mut ring = self.ring.lock();
        assert_eq!(tid, ring.next, "transactions are logged without gaps");
        let time = CommitTime { seconds: now.seconds.max(0).unsigned_abs(), nanoseconds: now.nanoseconds };
        // Recovery takes a commit that is older than the one before it for a leftover.
        ring.last_time = ring.last_time.max(time);
        let mut flipped = 0;
        let mut logged_revokes = revoked;
        let sticky: Vec<BlockNr>;
        match self.broken_rule {
            Some(BrokenRule::RevokeOmitted) => logged_revokes = &[],
            Some(BrokenRule::RevokeNotCancelled) => {
                ring.sticky.extend(revoked);
                sticky = ring.sticky.iter().copied().collect();
                logged_revokes = &sticky;
            }
            Some(BrokenRule::BadTagChecksum) => flipped = 1,
            _ => {}
        }
        let records = records::Records::new(*ring.log.format(), tid, &images, logged_revokes, flipped);
        self.write(&mut ring, tid, &records)?;
        ring.next = tid.next();
        self.committed.insert(tid, images, revoked);
        Ok(())
    }

    fn abort(&self) -> Result<()> {
        self.ring.lock().log.write_error(ERRNO)
    }

    fn close(&self) -> Result<()> {
        let mut ring = self.ring.lock();
        let all = ring.logged.len();
        self.checkpoint(&mut ring, all)?;
        let (head, next) = (ring.head, ring.next);
        ring.log.mark_empty(next, head)
    }
}
