//! One file system and its journal: found, verified, and then replayed.

use blockyard_device::BlockDevice;
use blockyard_disk::jbd2::{JournalSuperblock, RawJournalSuperblock, fast_commit};
use blockyard_disk::num::{u32_from_u64, u64_from_usize};
use blockyard_disk::superblock::{MAGIC, PRIMARY_OFFSET, RawSuperblock, Superblock};
use blockyard_disk::{Compat, Incompat, TxnId};
use zerocopy::FromBytes;

use crate::error::{Error, Result};
use crate::journal_file::{self, Found};
use crate::journal_map::{JournalMap, read};
use crate::log::Log;
use crate::options::{OnDamage, Options, Unflagged};
use crate::plan::{self, Plan};
use crate::report::{JournalSource, JournalState, JournalStatus, Report};
use crate::scan::{self, Scan};
use crate::{apply, metadata, superblock_file};

/// A file system whose superblock and journal are verified. Nothing has been written yet.
pub struct Session<'a> {
    device: &'a dyn BlockDevice,
    superblock: Superblock,
    log: Option<Log<'a>>,
    status: JournalStatus,
}

impl std::fmt::Debug for Session<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("status", &self.status).finish_non_exhaustive()
    }
}

impl<'a> Session<'a> {
    /// Finds and verifies the journal of a file system.
    ///
    /// # Errors
    /// As [`inspect`](crate::inspect).
    pub fn open(device: &'a dyn BlockDevice) -> Result<Self> {
        let superblock = superblock_file::read(device)?;
        if !superblock.features().compat.contains(Compat::HAS_JOURNAL) {
            return Ok(Self::assemble(device, superblock, None));
        }
        let Some(inode) = superblock.journal_inode() else {
            return Err(Error::ExternalJournal { uuid: superblock.raw().s_journal_uuid });
        };
        let Found { map, source, conflict } = journal_file::find(device, &superblock, inode)?;
        let log = open_log(device, superblock.geometry().block_size(), map, 0)?;
        match conflict {
            Some(error) if log.superblock.start().is_none() => Err(error),
            _ => Ok(Self::assemble(device, superblock, Some((log, source)))),
        }
    }

    /// As [`open`](Self::open), for a file system whose journal is on a device of its own.
    ///
    /// # Errors
    /// As [`open`](Self::open), and [`Error::NotTheJournal`].
    pub fn open_with_journal(device: &'a dyn BlockDevice, journal: &'a dyn BlockDevice) -> Result<Self> {
        let superblock = superblock_file::read(device)?;
        let log = open_external(&superblock, journal)?;
        Ok(Self::assemble(device, superblock, Some((log, JournalSource::External))))
    }

    fn assemble(
        device: &'a dyn BlockDevice,
        superblock: Superblock,
        found: Option<(Log<'a>, JournalSource)>,
    ) -> Self {
        let journal = found.as_ref().map(|(log, _)| &log.superblock);
        let start = journal.and_then(JournalSuperblock::start);
        let state = match (journal.is_some(), superblock.needs_recovery(), start.is_some()) {
            (false, _, _) => JournalState::None,
            (true, false, false) => JournalState::Clean,
            (true, true, false) => JournalState::FlagOnly,
            (true, true, true) => JournalState::NeedsReplay,
            (true, false, true) => JournalState::Unflagged,
        };
        let status = JournalStatus {
            state,
            source: found.as_ref().map(|(_, source)| *source),
            features: journal.map_or_else(String::new, |sb| sb.format().features().to_string()),
            blocks: journal.map_or(0, JournalSuperblock::blocks),
            sequence: journal.map_or(TxnId::ZERO, JournalSuperblock::sequence),
            start,
            errno: journal.map_or(0, JournalSuperblock::errno),
        };
        Self { device, superblock, log: found.map(|(log, _)| log), status }
    }

    /// The state of the journal.
    #[must_use]
    pub const fn status(&self) -> &JournalStatus {
        &self.status
    }

    pub(crate) fn into_log(self) -> Option<Log<'a>> {
        self.log
    }

    /// Writes the committed blocks to their homes and marks the log empty. See
    /// [`replay_to_device`](crate::replay_to_device).
    ///
    /// # Errors
    /// As [`replay_to_device`](crate::replay_to_device).
    pub fn replay(self, options: &Options) -> Result<Report> {
        let mut report = Report::new(self.status.clone());
        let Some(log) = &self.log else { return Ok(report) };
        match (self.status.state, options.unflagged) {
            (JournalState::Clean, _) if self.status.errno == 0 => return Ok(report),
            (JournalState::Unflagged, Unflagged::Refuse) => return Err(Error::Unflagged),
            _ => {}
        }
        let discard = self.status.state == JournalState::Unflagged && options.unflagged == Unflagged::Discard;
        let scan = match log.superblock.start() {
            Some(start) if !discard => Some(scan::scan(log, start)?),
            _ => None,
        };
        let expected = scan.as_ref().map_or(log.superblock.sequence(), |scan| scan.end);
        if !discard {
            refuse_fast_commits(log, expected)?;
        }
        let plan = match &scan {
            Some(scan) => self.plan(log, scan)?,
            None => Plan::default(),
        };
        if options.on_damage == OnDamage::Refuse && !plan.damage.is_empty() {
            return Err(Error::Damaged(plan.damage));
        }
        if options.on_damage == OnDamage::Refuse {
            self.keep_off_tables(log, &plan)?;
        }
        self.carry_out(log, scan.as_ref(), &plan)?;
        report.end = scan.map(|scan| scan.end);
        report.transactions = plan.transactions;
        report.logged = plan.logged;
        report.revokes = plan.revokes;
        report.revoked = plan.revoked;
        report.written = u64_from_usize(plan.copies.len());
        report.damage = plan.damage;
        Ok(report)
    }

    /// Plans the replay. Targets must be blocks of the file system outside the journal.
    ///
    /// The log may hold the superblock of a file system that has grown. Then the added blocks are
    /// valid targets, too. So the first plan accepts every block of the device outside the journal.
    /// The limit is then the larger of two block counts: that of the present superblock, and that
    /// of the superblock in the first plan. If the first plan has a target beyond the limit, a
    /// second plan is made with the limit.
    fn plan(&self, log: &Log<'_>, scan: &Scan) -> Result<Plan> {
        let geometry = self.superblock.geometry();
        let on_device = self.device.size() / u64_from_usize(geometry.block_size());
        let is_external = self.status.source == Some(JournalSource::External);
        let in_journal = |block| !is_external && log.map.contains(block);
        let plan = plan::plan(log, scan, |block| block.raw() < on_device && !in_journal(block));
        let after = apply::superblock_after(log, &plan, self.superblock.raw())?;
        let limit = after.blocks_count().raw().max(geometry.blocks_count().raw());
        match plan.copies.last_key_value() {
            Some((last, _)) if last.raw() >= limit => {
                Ok(plan::plan(log, scan, |block| block.raw() < limit && !in_journal(block)))
            }
            _ => Ok(plan),
        }
    }

    /// Refuses a journal that shares a block with a bitmap or an inode table, according to the
    /// descriptors as they are after the replay.
    fn keep_off_tables(&self, log: &Log<'_>, plan: &Plan) -> Result<()> {
        if self.status.source == Some(JournalSource::External) {
            return Ok(());
        }
        metadata::keep_off_tables(&self.superblock, &log.map, |block, bytes| match plan.copies.get(&block) {
            Some(logged) => apply::read_copy(log, logged, bytes),
            None => read(self.device, bytes.len(), block, 0, bytes),
        })
    }

    fn carry_out(&self, log: &Log<'_>, scan: Option<&Scan>, plan: &Plan) -> Result<()> {
        let after = apply::superblock_after(log, plan, self.superblock.raw())?;
        let limit = after.blocks_count().raw().max(self.superblock.geometry().blocks_count().raw());
        assert!(
            plan.copies.keys().all(|block| block.raw() < limit),
            "nothing goes home beyond the file system"
        );
        assert!(scan.is_some() || plan.copies.is_empty(), "blocks come from a log that was read");
        if !plan.copies.is_empty() || log.superblock.errno() != 0 || !plan.damage.is_empty() {
            apply::write_home(self.device, log, plan, &after)?;
        }
        let sequence = log.superblock.sequence();
        let is_used = log.superblock.errno() != 0 || log.superblock.fast_commit_blocks().is_some();
        match scan {
            // Committed transactions may follow the damage in the ring, so all their possible
            // numbers are skipped.
            Some(scan) if !plan.damage.is_empty() => {
                apply::empty_log(log, after_ring(log, scan.end), Some(scan.head))?;
            }
            // One number is skipped, so that no new transaction has the number of the unfinished
            // one, whose blocks may still be in the ring.
            Some(scan) => apply::empty_log(log, scan.end.next(), Some(scan.head))?,
            None if log.superblock.start().is_some() => {
                apply::empty_log(log, after_ring(log, sequence), None)?;
            }
            None if is_used => apply::empty_log(log, sequence, None)?,
            None => {}
        }
        apply::clear_recover(self.device, &after)
    }
}

/// A number above those of all transactions in the ring. `first` is the oldest transaction that is
/// not replayed. Each transaction takes at least one block, so all numbers in the ring are below
/// `first` + the length of the ring in blocks. With a lower number, a new transaction could end
/// just where an abandoned transaction with the next number begins, and the next replay would
/// replay the abandoned one, too.
fn after_ring(log: &Log<'_>, first: TxnId) -> TxnId {
    TxnId::new(first.raw().wrapping_add(log.superblock.ring().len()))
}

fn open_log<'a>(
    device: &'a dyn BlockDevice,
    block_size: usize,
    map: JournalMap,
    superblock_at: u32,
) -> Result<Log<'a>> {
    let place = map.physical(superblock_at).raw() * u64_from_usize(block_size);
    let mut bytes = [0; RawJournalSuperblock::SIZE];
    device.read_at(place, &mut bytes)?;
    let superblock = JournalSuperblock::parse(&bytes, block_size, map.blocks())?;
    Ok(Log { device, map, superblock, superblock_at })
}

/// Opens and verifies an external journal. Its device begins with a superblock of its own, and log
/// blocks are numbered from the start of the device.
fn open_external<'a>(fs: &Superblock, journal: &'a dyn BlockDevice) -> Result<Log<'a>> {
    let mut bytes = [0; RawSuperblock::SIZE];
    journal.read_at(PRIMARY_OFFSET, &mut bytes)?;
    let raw = RawSuperblock::read_from_bytes(&bytes).expect("1024 bytes are a superblock");
    let check = |holds: bool, what| if holds { Ok(()) } else { Err(Error::NotTheJournal(what)) };
    check(raw.s_magic.get() == MAGIC, "no superblock on it")?;
    check(raw.incompat().contains(Incompat::JOURNAL_DEV), "it is not a journal device")?;
    check(raw.s_uuid == fs.raw().s_journal_uuid, "its UUID is not the one in the superblock")?;
    let block_size = fs.geometry().block_size();
    check(raw.s_log_block_size.get() == fs.raw().s_log_block_size.get(), "its block size differs")?;
    let blocks = raw.blocks_count().raw().min(journal.size() / u64_from_usize(block_size));
    check(blocks > 2 && blocks <= u64::from(u32::MAX), "its size is impossible")?;
    let at = if block_size == 1024 { 2 } else { 1 };
    let log = open_log(journal, block_size, JournalMap::identity(u32_from_u64(blocks)), at)?;
    let journal_sb = log.superblock.raw();
    check(journal_sb.s_nr_users.get() == 1, "it does not have exactly one user")?;
    check(journal_sb.s_users[0] == fs.raw().s_uuid, "it belongs to another file system")?;
    Ok(log)
}

/// Refuses the journal if its fast-commit area holds records for `expected`, the transaction after
/// the last full commit.
fn refuse_fast_commits(log: &Log<'_>, expected: TxnId) -> Result<()> {
    if log.superblock.fast_commit_blocks().is_none() {
        return Ok(());
    }
    let ring_end = log.superblock.ring().end();
    let mut block = vec![0; log.superblock.format().block_size()];
    // Current kernels leave one block between the ring and the fast-commit area, others leave none.
    for at in [ring_end, ring_end + 1].into_iter().filter(|at| *at < log.superblock.blocks()) {
        log.read(at, &mut block)?;
        if fast_commit::head_of(&block) == Some(expected) {
            return Err(Error::FastCommits { tid: expected });
        }
    }
    Ok(())
}
