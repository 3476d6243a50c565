//! Repair: errors are put right in memory, pass by pass. The blocks that differ in the end are the
//! plan.
//!
//! Design: the passes of the check run over an overlay of the image. The first pass that finds
//! errors hands them to its repairs, which write to the overlay. Then the passes run again, and see
//! what was written. Passes gather in parallel and decide nothing. Repairs are decided one after
//! another in the order of sorted findings, so that the plan is the same for any number of threads.
//! The repair ends when a whole round finds nothing more to mend or decides nothing, or after
//! [`ROUNDS_MAX`] rounds.
//!
//! Making a plan writes nothing to the device. A repair needs the memory of a check, 4 KiB
//! for each page of metadata that changes, and an [`Action`] for each decision.

mod aligned;
mod apply;
mod attributes;
mod backups;
mod bitmaps;
mod connect;
mod constants;
mod cut;
mod directory;
mod editor;
mod ending;
mod entries;
mod examined;
mod head;
mod infer;
mod inode;
mod landmark;
mod links;
mod log;
mod maps;
mod marks;
mod mmp;
mod naming;
mod origin;
mod orphans;
mod places;
mod preen;
mod primary;
mod quota;
mod redo;
mod remains;
mod resize;
mod round;
mod shared;
mod shuffled;
mod superblock;
mod tables;
mod undo;
mod wish;
mod wishes;
mod xattr_blocks;

use std::collections::BTreeSet;
use std::ops::Range;

use blockyard_device::{BlockDevice, OverlayDevice};
use blockyard_disk::InodeNr;
use blockyard_disk::superblock::FsState;

pub use apply::{Applied, is_clean_once_replayed, is_marked_clean, refresh_totals};
pub use ending::Ending;
pub use log::{Action, Cost};
pub use mmp::{InUse, Mmp};
pub use preen::Preening;
pub use undo::{UndoError, Undone, save_undo_of_replay, undo, undo_forced};
pub use wish::{Shared, Wish};

use crate::paths::Paths;
use crate::{Asked, Code, Error, Finding, Options, PassCost, Report, replay};
use log::Log;
use redo::Redo;
use round::Round;

/// Rounds after which a repair gives up. Every round counts, except some rounds that find more
/// errors than are kept (see [`STRIDE`]).
const ROUNDS_MAX: usize = 60;
/// A round that finds more errors than are kept counts for [`ROUNDS_MAX`] only if the round before
/// it was such a round, too, and the number of errors has fallen by less than this.
const STRIDE: u64 = 1024;

/// What a repair would change, and what would be left.
#[derive(Debug)]
pub struct Plan<'a> {
    overlay: OverlayDevice<&'a dyn BlockDevice>,
    /// The overlay of an external journal.
    journal: Option<OverlayDevice<&'a dyn BlockDevice>>,
    /// What was found before the repair.
    pub before: Report,
    /// What each pass of the check before the repair cost.
    pub costs: Vec<PassCost>,
    /// What was decided, in order.
    pub actions: Vec<Action>,
    /// What a check finds after the repair; `None` when there is no verdict.
    pub after: Option<Report>,
    /// Blocks of the plan that were free before; they are written first.
    fresh: Vec<u64>,
    /// Blocks that are free afterwards; they hold the redo log.
    spare: Vec<Range<u64>>,
    block_bits: u32,
    is_replayed: bool,
    /// Whether the plan first finishes a repair that a power cut interrupted.
    is_resumed: bool,
    /// Whether errors are left, and the superblock on the device must change to say so.
    takes_mark: bool,
    /// Whether nothing is wrong except that the superblock calls the file system not clean, or
    /// records errors.
    sets_mark: bool,
    /// Whether the superblock said, before the repair but after a replay, that the file system was
    /// not closed.
    was_open: bool,
    /// Whether the superblock said, before the repair, that there are errors.
    had_error_mark: bool,
    /// The first inode found in a block of an inode table that is mostly garbage.
    garbage: Option<InodeNr>,
    /// The finding about the inode counts of the primary superblock, if nothing else is wrong with
    /// that superblock (`head::miscounted`).
    miscounted: Option<Finding>,
    /// The old size of a device that was cut short and has been made as long as its file system.
    cut_at: Option<u64>,
}

impl<'a> Plan<'a> {
    /// A plan that does nothing.
    fn empty(overlay: OverlayDevice<&'a dyn BlockDevice>, (before, costs): Found) -> Self {
        let after = Some(before.clone());
        Self {
            overlay,
            journal: None,
            before,
            costs,
            actions: Vec::new(),
            after,
            fresh: Vec::new(),
            spare: Vec::new(),
            block_bits: 10,
            is_replayed: false,
            is_resumed: false,
            takes_mark: false,
            sets_mark: false,
            was_open: false,
            had_error_mark: false,
            garbage: None,
            miscounted: None,
            cut_at: None,
        }
    }
}

impl Plan<'_> {
    /// Whether the file system is clean after the repair.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.after.as_ref().is_some_and(|after| after.examined && after.is_clean())
    }

    /// Whether there is nothing to do: no action, no replay, no earlier repair to finish, and no
    /// mark that is wrong.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let marks = self.takes_mark || self.sets_mark;
        self.actions.is_empty() && !self.is_replayed && !self.is_resumed && !marks
    }

    /// Whether nothing is wrong except that the superblock calls the file system not clean, or
    /// records errors. The plan then corrects that.
    #[must_use]
    pub fn sets_mark(&self) -> bool {
        self.sets_mark && self.before.is_clean()
    }

    /// Whether a journal is replayed first.
    #[must_use]
    pub fn is_replayed(&self) -> bool {
        self.is_replayed
    }

    /// The file system as it would be after the repair. For reading only.
    #[must_use]
    pub fn result(&self) -> &dyn BlockDevice {
        &self.overlay
    }
}

/// How to repair.
#[derive(Clone, Debug, Default)]
pub struct RepairOptions {
    /// How to check.
    pub check: Options,
    /// The time for deletions and the superblock, in seconds since 1970.
    pub now: u64,
    /// Codes of findings that are not repaired. A code of pass 5 stands for all of that pass,
    /// because bitmaps and counts are written together. If other repairs need that pass, it is done
    /// all the same, and the plan has actions with declined codes.
    pub declined: BTreeSet<Code>,
    /// What else is done because the user asked for it.
    pub wishes: BTreeSet<Wish>,
    /// What inodes get in place of shared blocks that another inode keeps.
    pub shared: Shared,
    /// The size in bytes to which an image was cut short, if the device has been made longer since.
    /// Everything past that size reads as zeroes. The plan then lists the content that was lost.
    pub cut_at: Option<u64>,
}

/// Size in bytes of the file system on a device. Normally, the superblock says it. If the device is
/// shorter than this, but long enough for the size in a backup, the backup counts. If the
/// superblock is unusable, the backups count, provided that they agree. `None` if nothing says a
/// size.
///
/// If this size is more than the device has, the image was cut short
/// ([`DEVICE_SHORT`](crate::Code::DEVICE_SHORT)). A repair needs the whole length. So make the file
/// that long first (`std::fs::File::set_len`), and open it again; what was cut off then reads as
/// zeroes. Only then make the [`plan`], with the old size in [`RepairOptions::cut_at`].
#[must_use]
pub fn claimed_bytes(device: &dyn BlockDevice) -> Option<u64> {
    match crate::superblock::open(device, &mut crate::finding::Sink::default()) {
        Ok(crate::superblock::Opened::Volume(_)) => head::claimed_bytes(device),
        Ok(crate::superblock::Opened::Corrupt) => head::bytes_of_backup(device),
        _ => None,
    }
}

/// Decides how to repair the file system on a device, which is only read.
///
/// [`Plan::actions`] says what would be done and [`Plan::after`] what would be left.
/// [`Plan::save_undo`] saves what will be overwritten, [`Plan::apply`] carries the plan out, and
/// [`undo()`] takes it back. An image that was cut short must be made longer first: see
/// [`claimed_bytes`].
///
/// # Errors
/// [`Error`] when nothing can be decided. Damage of the file system is no error.
pub fn plan<'a>(device: &'a dyn BlockDevice, options: &RepairOptions) -> Result<Plan<'a>, Error> {
    plan_with_journal(device, None, options)
}

/// As [`plan`], for a file system with an external journal, which is only read, too.
///
/// # Errors
/// As [`plan`].
pub fn plan_with_journal<'a>(
    device: &'a dyn BlockDevice,
    journal: Option<&'a dyn BlockDevice>,
    options: &RepairOptions,
) -> Result<Plan<'a>, Error> {
    let pool = options.check.pool()?;
    let redo = Redo::of(device);
    let before = match &redo {
        None => crate::measure(device, journal, &options.check)?,
        Some(redo) => {
            let overlay = OverlayDevice::new(device);
            redo.carry_out(device, &overlay)?;
            crate::measure(&overlay, journal, &options.check)?
        }
    };
    let devices = Pair { device, journal };
    pool.install(|| decide(devices, options, redo.as_ref(), before))
}

/// What was found before a repair, and the cost of finding it.
type Found = (Report, Vec<PassCost>);

/// A file system, and its external journal if there is one.
#[derive(Clone, Copy)]
struct Pair<'a> {
    device: &'a dyn BlockDevice,
    journal: Option<&'a dyn BlockDevice>,
}

/// Whether the repair must be left to somebody else, for one of three reasons:
/// - The journal, which may hold part of the file system, is on another device, and that device is
///   missing or unusable.
/// - This recovery cannot replay the log, because of fast commits or an unsupported journal
///   superblock.
/// - MMP says that the file system is in use or was not closed.
fn is_for_others(device: &dyn BlockDevice, before: &Report) -> bool {
    let has = |is_it: fn(Code) -> bool| before.findings.iter().any(|finding| is_it(finding.code));
    let is_elsewhere = has(Code::is_about_external_journal) && !head::names_no_journal_device(device);
    is_elsewhere || has(|code| matches!(code, Code::LOG_UNSUPPORTED | Code::MMP_IN_USE))
}

fn decide<'a>(
    Pair { device, journal }: Pair<'a>,
    options: &RepairOptions,
    redo: Option<&Redo>,
    (before, costs): Found,
) -> Result<Plan<'a>, Error> {
    if is_for_others(device, &before) {
        return Ok(Plan::empty(OverlayDevice::new(device), (before, costs)));
    }
    let mut log = Log::of(options, &before);
    let Some(begun) = begin(Pair { device, journal }, redo, &before, &mut log)? else {
        return Ok(Plan::empty(OverlayDevice::new(device), (before, costs)));
    };
    let Begun { mut overlay, journal: log_device, is_replayed, findings } = begun;
    let is_resumed = redo.is_some();
    let was_open = marks::is_open(&overlay);
    let had_error_mark =
        editor::sound_superblock(device).is_some_and(|sb| sb.state().contains(FsState::ERROR));
    let has_orphans = editor::sound_superblock(&overlay).is_some_and(|sb| marks::has_orphans(&sb));
    let asked = !log.wishes.is_empty() || options.check.superblock.is_some();
    let settled = !is_replayed && !is_resumed && !has_orphans && !asked && options.cut_at.is_none();
    if settled && before.examined && !before.findings.iter().any(round::is_mended) {
        let sets_mark = before.is_clean() && marks::set_mark(&overlay, options.now)?;
        let empty = Plan::empty(overlay, (before, costs));
        return Ok(Plan { journal: log_device, sets_mark, was_open, ..empty });
    }
    let log_below = log_device.as_ref().map(|journal| -> &dyn BlockDevice { journal });
    let mut round = Round { device: &overlay, journal: log_below, now: options.now, findings };
    if let Some(place) = options.check.superblock {
        round.take_superblock(place, &mut log)?;
    }
    if run_rounds(&mut round, &mut log)? == Outcome::Rejected {
        return Ok(Plan::empty(OverlayDevice::new(device), (before, costs)));
    }
    let block_bits = round.block_bits();
    if log.actions.is_empty() && !is_replayed && !is_resumed {
        // Superblocks that were tried in vain are not part of the plan.
        overlay = OverlayDevice::new(device);
    }
    let decided = (log.actions.is_empty(), is_replayed || is_resumed || options.cut_at.is_some());
    let named = naming::wanted(&log);
    let Settled { after, paths, takes_mark, sets_mark } =
        settle(device, (&overlay, log_below), options, decided, named)?;
    naming::name(&mut log, &before, &paths);
    let mut plan = Plan {
        overlay,
        journal: log_device,
        before,
        costs,
        actions: log.actions,
        after,
        fresh: log.fresh.into_iter().collect(),
        spare: log.spare,
        block_bits,
        is_replayed,
        is_resumed,
        takes_mark,
        sets_mark,
        was_open,
        had_error_mark,
        garbage: log.garbage,
        miscounted: head::miscounted(device)?,
        cut_at: options.cut_at,
    };
    if let Some(end) = options.cut_at {
        let losses = cut::losses(&plan.overlay, end, &plan.fresh)?;
        plan.actions.splice(0..0, losses);
    }
    Ok(plan)
}

/// A file system in memory, with its head (superblock and descriptors) put in order and its journal
/// replayed.
struct Begun<'a> {
    overlay: OverlayDevice<&'a dyn BlockDevice>,
    /// The overlay of an external journal.
    journal: Option<OverlayDevice<&'a dyn BlockDevice>>,
    is_replayed: bool,
    /// What the replay found.
    findings: Vec<Finding>,
}

/// Puts the head in order and replays the journal. `None` if the device is shorter than the file
/// system, because the blocks behind the end of the device can be neither read nor written. But if
/// the block count in the superblock was wrong, and is corrected, the repair goes on.
fn begin<'a>(
    Pair { device, journal }: Pair<'a>,
    redo: Option<&Redo>,
    before: &Report,
    log: &mut Log,
) -> Result<Option<Begun<'a>>, Error> {
    let mut sink = crate::finding::Sink::default();
    let mut overlay = head::overlay(device, redo, before, log)?;
    let is_short = before.findings.iter().any(|finding| finding.code == Code::DEVICE_SHORT);
    if is_short && !log.actions.iter().any(|action| action.code == Code::DEVICE_SHORT) {
        return Ok(None);
    }
    let mut log_device = journal.map(OverlayDevice::new);
    let is_replayed =
        replay::asks_for_recovery(&overlay) && replay::replay_over(&overlay, log_device.as_ref(), &mut sink);
    if !is_replayed {
        log_device = journal.map(OverlayDevice::new);
        // If a replay failed, drop what it wrote before.
        log.actions.clear();
        overlay = head::overlay(device, redo, before, log)?;
    }
    Ok(Some(Begun { overlay, journal: log_device, is_replayed, findings: sink.into_findings() }))
}

/// What a repair leaves.
struct Settled {
    /// What a check finds; `None` when there is no verdict.
    after: Option<Report>,
    /// The paths that were asked for.
    paths: Paths,
    /// Whether the clean mark was taken away.
    takes_mark: bool,
    /// Whether the clean mark was set.
    sets_mark: bool,
}

/// Checks the result of a repair, and makes the superblock's marks (clean, or with errors) agree
/// with it. `is_undecided` says that there are no actions. `is_carried_out` says that a journal was
/// replayed, that a redo log was carried out, or that a device that was cut short was made longer.
/// `about` are the inodes whose paths are wanted.
fn settle(
    device: &dyn BlockDevice,
    (overlay, journal): (&OverlayDevice<&dyn BlockDevice>, Option<&dyn BlockDevice>),
    options: &RepairOptions,
    (is_undecided, is_carried_out): (bool, bool),
    about: BTreeSet<InodeNr>,
) -> Result<Settled, Error> {
    let check = Options { superblock: None, ..options.check.clone() };
    let mut asked = Asked { about, paths: Paths::new() };
    let after = crate::measure_and_name(overlay, journal, &check, &mut asked).ok().map(|(report, _)| report);
    let is_clean = after.as_ref().filter(|after| after.examined).map(Report::is_clean);
    let takes_mark = is_clean == Some(false) && marks::take_mark(device, overlay)?;
    let was_clean = is_clean == Some(true) && is_undecided;
    let sets_mark = was_clean && marks::set_mark(overlay, options.now)?;
    if was_clean && is_carried_out && editor::sound_superblock(overlay).is_some() {
        editor::change_superblock(overlay, |sb| marks::mark_checked(sb, options.now))?;
    }
    debug_assert!(!(takes_mark && sets_mark), "a file system is clean or has errors");
    Ok(Settled { after, paths: asked.paths, takes_mark, sets_mark })
}

/// What became of a repair in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Decided,
    /// A superblock was inferred, and errors are left, so it may be wrong. A repair based on it
    /// could destroy what another tool can still find.
    Rejected,
}

/// Repairs until a round finds nothing more to mend, decides nothing, or is the last that
/// [`ROUNDS_MAX`] allows. Then marks the file system clean, if anything was decided.
fn run_rounds(round: &mut Round<'_>, log: &mut Log) -> Result<Outcome, Error> {
    let (mut counted, mut crowd) = (0, u64::MAX);
    while counted < ROUNDS_MAX {
        let decided = (log.actions.len(), log.wishes.len());
        log.crowd = None;
        if !round.run(log)? {
            round.refresh_backups(log)?;
            break;
        }
        // A wish that finds nothing to do adds no action, but the passes after it must still run.
        if (log.actions.len(), log.wishes.len()) == decided {
            break;
        }
        // Terminates: between two rounds that are counted, the number of errors only falls.
        let errors = log.crowd.unwrap_or(u64::MAX);
        counted += usize::from(errors > crowd.saturating_sub(STRIDE));
        crowd = errors;
    }
    round.close(log)?;
    let is_rejected = log.is_inferred && has_errors(round)?;
    Ok(if is_rejected { Outcome::Rejected } else { Outcome::Decided })
}

/// Whether a check finds errors, or cannot examine the file system. A file system with unsupported
/// features counts as one without errors.
fn has_errors(round: &Round<'_>) -> Result<bool, Error> {
    match crate::measure(round.device, round.journal, &Options::default()) {
        Ok((report, _)) => Ok(!report.examined || !report.is_clean()),
        Err(Error::Unsupported(_)) => Ok(false),
        Err(error) => Err(error),
    }
}
