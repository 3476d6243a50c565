//! The walk over the log: finds where the log ends, and collects the committed transactions.
//!
//! A transaction counts as committed if its descriptor, revoke and commit blocks are good. The log
//! ends at the first block that is not a record of the expected transaction, or at the first
//! transaction with a bad commit, descriptor or revoke block. The commit time distinguishes a
//! damaged transaction from stale blocks of an earlier use of the log: commit times never go
//! backwards within one use.
//!
//! The walk ends: every step advances by at least one block, and it stops when it has gone round
//! the ring once.

use std::ops::ControlFlow;

use blockyard_disk::checksum::crc32_be;
use blockyard_disk::jbd2::{
    BlockKind, CommitBlock, CommitTime, JournalIncompat, LogFormat, RawHeader, RevokeBlock, Tag, TagFlags,
    tags,
};
use blockyard_disk::{BlockNr, CorruptionKind, TxnId};

use crate::error::Result;
use crate::log::Log;
use crate::report::{Damage, note};

/// One logged block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoggedBlock {
    /// The log block that holds the copy.
    pub(crate) log_block: u32,
    /// The target block of the copy, its flags and its checksum.
    pub(crate) tag: Tag,
}

impl LoggedBlock {
    pub(crate) fn is_escaped(&self) -> bool {
        self.tag.flags.contains(TagFlags::ESCAPE)
    }
}

/// One committed transaction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transaction {
    pub(crate) tid: TxnId,
    pub(crate) blocks: Vec<LoggedBlock>,
    pub(crate) revokes: Vec<BlockNr>,
}

/// What the walk found.
#[derive(Clone, Debug)]
pub(crate) struct Scan {
    /// The committed transactions, in the order of their commits.
    pub(crate) transactions: Vec<Transaction>,
    /// First transaction not to be replayed.
    pub(crate) end: TxnId,
    /// Log block after the last collected transaction; the start of the walk if there is none.
    pub(crate) head: u32,
    pub(crate) damage: Vec<Damage>,
}

/// Walks the log from `start`.
pub(crate) fn scan(log: &Log<'_>, start: u32) -> Result<Scan> {
    let mut scanner = Scanner::new(log, start);
    let mut block = vec![0; scanner.format.block_size()];
    while scanner.left > 0 {
        if scanner.step(&mut block)?.is_break() {
            break;
        }
    }
    assert!(scanner.head >= log.superblock.ring().first() && scanner.head < log.superblock.ring().end());
    Ok(Scan {
        transactions: scanner.transactions,
        end: scanner.end.unwrap_or(scanner.tid),
        head: scanner.head,
        damage: scanner.damage,
    })
}

struct Scanner<'a> {
    log: &'a Log<'a>,
    format: LogFormat,
    /// Next block to read.
    at: u32,
    /// Blocks of the ring that were not passed yet.
    left: u32,
    /// The transaction that the next record must belong to.
    tid: TxnId,
    last_time: CommitTime,
    /// The first corrupt descriptor or revoke block of the present transaction.
    suspicious: Option<u32>,
    /// crc32 over the blocks of the present transaction, for checksum v1.
    v1: u32,
    pending: Transaction,
    transactions: Vec<Transaction>,
    head: u32,
    end: Option<TxnId>,
    /// With ASYNC_COMMIT: the bad commit at which the log ends, while the walk continues to see
    /// whether a good commit follows.
    doubtful: Option<Damage>,
    damage: Vec<Damage>,
}

impl<'a> Scanner<'a> {
    fn new(log: &'a Log<'a>, start: u32) -> Self {
        Self {
            log,
            format: *log.superblock.format(),
            at: start,
            left: log.superblock.ring().len(),
            tid: log.superblock.sequence(),
            last_time: CommitTime::default(),
            suspicious: None,
            v1: !0,
            pending: Transaction::default(),
            transactions: Vec::new(),
            head: start,
            end: None,
            doubtful: None,
            damage: Vec::new(),
        }
    }

    /// Reads one record; breaks at the end of the log.
    fn step(&mut self, block: &mut [u8]) -> Result<ControlFlow<()>> {
        let at = self.at;
        self.log.read(at, block)?;
        let kind = match RawHeader::read(block) {
            Some((Some(kind), tid)) if tid == self.tid => kind,
            _ => return Ok(ControlFlow::Break(())),
        };
        self.advance(1);
        match kind {
            BlockKind::Descriptor => self.descriptor(at, block),
            BlockKind::Revoke => Ok(self.revoke(at, block)),
            BlockKind::Commit => Ok(self.commit(at, block)),
            BlockKind::SuperblockV1 | BlockKind::SuperblockV2 => Ok(ControlFlow::Break(())),
        }
    }

    fn advance(&mut self, count: u32) {
        debug_assert!(count > 0, "a step that does not move on goes round for ever");
        self.at = self.log.superblock.ring().advance(self.at, count);
        self.left = self.left.saturating_sub(count);
    }

    fn descriptor(&mut self, at: u32, block: &mut [u8]) -> Result<ControlFlow<()>> {
        debug_assert_eq!(block.len(), self.format.block_size(), "a block of the log");
        if !self.format.verify_tail(block) {
            self.suspicious.get_or_insert(at);
        }
        let first = self.pending.blocks.len();
        for tag in tags(&self.format, block) {
            if self.left == 0 {
                return Ok(ControlFlow::Break(()));
            }
            self.pending.blocks.push(LoggedBlock { log_block: self.at, tag });
            self.advance(1);
        }
        if self.format.has_v1_checksum() {
            self.v1 = crc32_be(self.v1, block);
            for logged in &self.pending.blocks[first..] {
                self.log.read(logged.log_block, block)?;
                self.v1 = crc32_be(self.v1, block);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn revoke(&mut self, at: u32, block: &[u8]) -> ControlFlow<()> {
        if !self.format.verify_tail(block) {
            self.suspicious.get_or_insert(at);
        }
        match RevokeBlock::parse(&self.format, block) {
            Ok(revoke) => self.pending.revokes.extend(revoke.blocks()),
            // A corrupt revoke block matters only if a commit follows.
            Err(_) => {
                self.suspicious.get_or_insert(at);
            }
        }
        ControlFlow::Continue(())
    }

    fn commit(&mut self, at: u32, block: &[u8]) -> ControlFlow<()> {
        let commit = CommitBlock::new(block);
        let is_older = commit.time() < self.last_time;
        let found = |kind, log_block| Damage { kind, tid: self.tid, log_block, target: None };
        if let Some(bad) = self.suspicious {
            if !is_older {
                note(&mut self.damage, found(CorruptionKind::JournalTransactionChecksum, bad));
            }
            return ControlFlow::Break(());
        }
        let is_good = if self.format.has_v1_checksum() {
            commit.verify_v1(self.v1)
        } else {
            !self.format.has_block_checksums() || commit.verify(&self.format)
        };
        if !is_good {
            let bad = found(CorruptionKind::JournalCommitChecksum, at);
            return self.bad_commit(bad, is_older);
        }
        if let Some(bad) = self.doubtful.take() {
            // A good commit after a bad one: the bad one does not come from a crash.
            note(&mut self.damage, bad);
            return ControlFlow::Break(());
        }
        self.last_time = commit.time();
        self.take_pending();
        ControlFlow::Continue(())
    }

    fn bad_commit(&mut self, bad: Damage, is_older: bool) -> ControlFlow<()> {
        debug_assert_eq!(bad.tid, self.tid);
        if is_older {
            return ControlFlow::Break(());
        }
        self.end.get_or_insert(self.tid);
        if !self.format.features().incompat.contains(JournalIncompat::ASYNC_COMMIT) {
            note(&mut self.damage, bad);
            return ControlFlow::Break(());
        }
        // With ASYNC_COMMIT the commit block may reach the device before the blocks it commits. So
        // a bad commit block is damage only if a later one is good.
        self.doubtful.get_or_insert(bad);
        self.pending = Transaction::default();
        self.next_transaction();
        ControlFlow::Continue(())
    }

    fn take_pending(&mut self) {
        let mut done = std::mem::take(&mut self.pending);
        done.tid = self.tid;
        assert!(
            self.transactions.last().is_none_or(|last| last.tid.next() == done.tid),
            "transactions follow each other in the log"
        );
        self.transactions.push(done);
        self.head = self.at;
        self.next_transaction();
    }

    fn next_transaction(&mut self) {
        self.tid = self.tid.next();
        self.v1 = !0;
    }
}
