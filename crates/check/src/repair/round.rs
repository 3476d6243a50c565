//! One round: the passes run in order over the overlay, up to the first that finds errors, which
//! are repaired.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use blockyard_device::{BlockDevice, DeviceError, OverlayDevice};
use blockyard_disk::inode::{FileType, InodeFlags, InodeSlot};
use blockyard_disk::num::u32_from_usize;
use blockyard_disk::superblock::{FsState, MAGIC, PRIMARY_OFFSET, RawSuperblock};
use blockyard_disk::{BlockCount, BlockNr, InodeNr, RoCompat};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U16;

use super::connect::{self, Connected};
use super::constants;
use super::directory::{self, Change, Mending, Writing};
use super::editor::{self, Editor, Walked};
use super::head;
use super::infer;
use super::inode::{self, Around};
use super::links;
use super::log::{Cost, JournalDropped, Log, RewriteAll};
use super::maps;
use super::orphans;
use super::places;
use super::quota;
use super::redo;
use super::resize;
use super::shared as parted;
use super::shuffled::{self, TableBlock};
use super::superblock as fields;
use super::tables;
use super::wishes;
use super::xattr_blocks as blocks;
use super::{backups, bitmaps};
use crate::backup::{self, Backup};
use crate::block_map::BlockMap;
use crate::code::Code;
use crate::facts::Facts;
use crate::finding::{Finding, Ledger, Sink, Site, Unkept};
use crate::inode::Scan;
use crate::superblock::Opened;
use crate::volume::{Group, Volume};
use crate::{
    Error, Place, bitmaps as bitmap_check, descriptors, directories, inodes, journal, quota as quota_check,
    shared, superblock, tree, values, xattr_blocks,
};

/// The count, first and last error, and the high bytes of their times with their codes.
const ERROR_RECORDS: [Range<usize>; 2] = [0x194..0x200, 0x278..0x27C];
/// The only `s_checksum_type`.
const CRC32C: u8 = 1;

/// What every round has.
pub(super) struct Round<'a> {
    pub(super) device: &'a dyn BlockDevice,
    /// The external journal.
    pub(super) journal: Option<&'a dyn BlockDevice>,
    pub(super) now: u64,
    /// What the replay of the journal found before the first round.
    pub(super) findings: Vec<Finding>,
}

/// Notes that are repaired although they do not make the file system unclean. For most, pass 5
/// rewrites bitmaps, descriptors and counts. Backups and the orphan list have repairs of their own.
const NOTES: [Code; 10] = [
    Code::BACKUP_SUPERBLOCK,
    Code::GROUP_CHECKSUM,
    Code::UNINIT_WITHOUT_FEATURE,
    Code::ITABLE_UNUSED,
    Code::LAST_GROUP_UNINIT,
    Code::FREE_BLOCKS_TOTAL,
    Code::FREE_INODES_TOTAL,
    Code::BITMAP_UNINIT_METADATA,
    Code::ORPHAN_HEAD,
    Code::ORPHAN_LINK,
];

/// Whether a repair does something about a finding.
pub(super) fn is_mended(finding: &Finding) -> bool {
    inode::is_to_be_mended(finding)
        || fields::is_worth_mending(finding.code)
        || head::is_contradiction(finding.code)
        || resize::is_about_resize(finding.code)
        || quota::is_about_quota(finding.code)
        || matches!(finding.code, Code::SUPERBLOCK_BACKUP | Code::DESCRIPTORS_BACKUP)
        || NOTES.contains(&finding.code)
}

impl Round<'_> {
    /// Runs the passes; true when something was repaired and they must run again.
    pub(super) fn run(&mut self, log: &mut Log) -> Result<bool, Error> {
        let mut sink = Sink::default();
        let mut volume = match superblock::open(self.device, &mut sink)? {
            Opened::Volume(volume) => volume,
            _ => return self.take_any_backup(log),
        };
        let sound = descriptors::load(&mut volume, &mut sink);
        if !sound
            // Another one would undo what was repaired since.
            && log.backup.is_none()
            && log.rewrite_all == RewriteAll::No
            && let Some(backup) = self.best_backup(&volume)
            && self.take(&backup, log, Code::DESCRIPTORS_BACKUP)?
        {
            return Ok(true);
        }
        if volume.groups.is_empty() || !superblock::check_values(&volume, &mut sink)? {
            return self.take_any_backup(log);
        }
        journal::check(&volume, self.journal, &mut sink);
        descriptors::check_mmp(&volume, &mut sink);
        let system = descriptors::system_ranges(&volume, &mut sink);
        let orphans = crate::orphans::collect(&volume, &mut sink);
        let map = BlockMap::new(&volume.geometry);
        for range in &system {
            let first = map.cluster(range.first);
            let last = map.cluster(range.first + BlockCount::new(range.count.saturating_sub(1)));
            map.mark(first, last - first + 1);
        }
        let scan = Scan { volume: &volume, system: &system, map: &map, orphans: &orphans };
        let mut ed = Editor::new(&scan, log, self.now);
        ed.journal = self.journal;
        let mut found = sorted(sink.into_findings());
        found.append(&mut self.findings);
        if tables::place_tables(&mut ed, &found)? {
            return Ok(true);
        }
        let misplaced = shuffled::wrong_with_first(&ed);
        if shuffled::repair(&mut ed, &misplaced)? {
            return Ok(true);
        }
        let pending = !orphans.is_empty() || has_orphans(&volume.sb);
        let is_mended = |finding: &&Finding| finding.is_error() || fields::is_worth_mending(finding.code);
        let errors: Vec<&Finding> = found.iter().filter(is_mended).collect();
        let decided = ed.log.actions.len();
        let declined = ed.log.declined.clone();
        let accepted = |code: &Code| !declined.contains(code);
        for finding in errors.into_iter().filter(|finding| accepted(&finding.code)) {
            fields::repair(&mut ed, finding)?;
        }
        if pending {
            orphans::finish(&mut ed, &orphans)?;
        }
        if ed.log.actions.len() > decided {
            return Ok(true);
        }
        passes(&mut ed, &found)
    }

    /// Takes the superblock that the user names.
    pub(super) fn take_superblock(&self, place: Place, log: &mut Log) -> Result<(), Error> {
        let Place { block, block_size } = place;
        let unusable = Error::NoSuperblock { block, block_size };
        match backup::at(self.device, place) {
            Some(backup) if self.take(&backup, log, Code::SUPERBLOCK_BACKUP)? => Ok(()),
            _ => Err(unusable),
        }
    }

    fn take_any_backup(&self, log: &mut Log) -> Result<bool, Error> {
        if log.rewrite_all == RewriteAll::Yes {
            return Ok(false);
        }
        for backup in backup::all(self.device) {
            if self.take(&backup, log, Code::SUPERBLOCK_BACKUP)? {
                return Ok(true);
            }
        }
        if self.seal_primary(log)? {
            return Ok(true);
        }
        let copies = backup::scattered(self.device).into_iter();
        let (likely, others): (Vec<Backup>, Vec<Backup>) = copies.partition(|copy| self.is_described(copy));
        for backup in likely.into_iter().chain(others) {
            if self.take(&backup, log, Code::SUPERBLOCK_BACKUP)? {
                return Ok(true);
            }
        }
        self.infer(log)
    }

    /// Writes a superblock inferred from what is left.
    fn infer(&self, log: &mut Log) -> Result<bool, Error> {
        let Some(uuid) = infer::write(self.device, self.now)? else { return Ok(false) };
        let mut sink = Sink::default();
        let Ok(Opened::Volume(mut volume)) = superblock::open(self.device, &mut sink) else {
            return Ok(false);
        };
        descriptors::load(&mut volume, &mut sink);
        if volume.groups.is_empty() {
            return Ok(false);
        }
        bitmaps::forget_uninit(&volume)?;
        log.rewrite_all = RewriteAll::Yes;
        let what = format!(
            "no copy is left: a superblock is inferred from inodes and descriptors; {}, features are \
             guessed, label, reserved blocks and mount options are lost",
            uuid.text()
        );
        log.add(Code::SUPERBLOCK_BAD, Site::NOWHERE, Cost::Doubtful, what);
        Ok(true)
    }

    /// Whether a backup has another UUID or checksum seed than the primary superblock and does not
    /// prove itself. It proves itself if no more of its own descriptors have wrong checksums than
    /// the `unsealed_here` of the primary ones. Also true if it cannot be opened. Under the wrong
    /// seed every inode would look damaged.
    fn is_foreign(&self, backup: &Backup, volume: &Volume<'_>, unsealed_here: usize) -> bool {
        let copy = backup.superblock();
        if copy.s_uuid == volume.sb.s_uuid && copy.s_checksum_seed == volume.sb.s_checksum_seed {
            return false;
        }
        let Some(overlay) = backup.laid_over(self.device) else { return true };
        let mut sink = Sink::default();
        let Ok(Opened::Volume(mut volume)) = superblock::open(&overlay, &mut sink) else { return true };
        backup.lay_descriptors(&volume, &overlay);
        descriptors::load(&mut volume, &mut sink);
        unsealed(&volume) > unsealed_here
    }

    /// The first backup with sound descriptors; or else the first that has fewest groups with
    /// misplaced tables or bitmaps, or with wrong checksums. e2fsck always takes the first backup.
    fn best_backup(&self, volume: &Volume<'_>) -> Option<Backup> {
        let mut best: Option<(usize, Backup)> = None;
        let unsealed_here = unsealed(volume);
        for backup in backup::all_of(volume) {
            if self.is_foreign(&backup, volume, unsealed_here) {
                continue;
            }
            let faults = self.faults_of(&backup);
            if best.as_ref().is_none_or(|(fewest, _)| faults < *fewest) {
                best = Some((faults, backup));
            }
            if faults == 0 {
                break;
            }
        }
        best.map(|(_, backup)| backup)
    }

    /// Groups for which the descriptors behind a copy of the superblock are wrong; none if they are
    /// sound.
    fn faults_of(&self, copy: &Backup) -> usize {
        let Some(overlay) = copy.laid_over(self.device) else { return usize::MAX };
        let mut sink = Sink::default();
        let Ok(Opened::Volume(mut volume)) = superblock::open(&overlay, &mut sink) else { return usize::MAX };
        copy.lay_descriptors(&volume, &overlay);
        if descriptors::load(&mut volume, &mut sink) {
            return 0;
        }
        if volume.groups.is_empty() {
            return usize::MAX;
        }
        let is_placed =
            |group: &Group| group.block_bitmap_ok && group.inode_bitmap_ok && group.inode_table_ok;
        let misplaced = volume.groups.iter().filter(|group| !is_placed(group)).count();
        (misplaced + unsealed(&volume)).max(1)
    }

    /// Whether a copy of the superblock leads to sound descriptors.
    fn is_described(&self, copy: &Backup) -> bool {
        self.faults_of(copy) == 0
    }

    /// Without a backup, takes the primary superblock: it may be good except for magic, checksum or
    /// a constant. False when its descriptors and a directory do not confirm that.
    fn seal_primary(&self, log: &mut Log) -> Result<bool, Error> {
        for log_block_size in self.log_block_sizes()? {
            let trial = OverlayDevice::new(self.device);
            if !seal(&trial, log_block_size)? {
                continue;
            }
            let mut sb = [0; RawSuperblock::SIZE];
            trial.read_at(PRIMARY_OFFSET, &mut sb)?;
            self.device.write_at(PRIMARY_OFFSET, &sb)?;
            log.rewrite_all = RewriteAll::Yes;
            let what = "no backup is left: the primary superblock is taken with a new checksum";
            log.add(Code::SUPERBLOCK_BAD, Site::NOWHERE, Cost::Doubtful, what);
            return Ok(true);
        }
        Ok(false)
    }

    /// What the primary superblock says about the block size. Without bigalloc, the size of a
    /// cluster is the same.
    fn log_block_sizes(&self) -> Result<BTreeSet<u32>, Error> {
        let mut sizes = BTreeSet::new();
        editor::change_superblock(&OverlayDevice::new(self.device), |sb| {
            sizes.insert(sb.s_log_block_size.get());
            if !sb.ro_compat().contains(RoCompat::BIGALLOC) {
                sizes.insert(sb.s_log_cluster_size.get());
            }
        })?;
        Ok(sizes)
    }

    /// Replaces the superblock by a backup; false when the backup is unusable. Replaces the
    /// descriptors too, if any follow the backup, unless only the primary ones are sound. The
    /// groups' flags may be as old as the backup. So those that call bitmaps and tables
    /// uninitialised are cleared, and whole inode tables are read.
    fn take(&self, backup: &Backup, log: &mut Log, code: Code) -> Result<bool, Error> {
        let is_usable = |device: &dyn BlockDevice| {
            matches!(superblock::open(device, &mut Sink::default()), Ok(Opened::Volume(_)))
        };
        // A backup that cannot be opened must not replace anything.
        let trial = backup.laid_over(self.device);
        if !trial.is_some_and(|trial| is_usable(&trial)) || !backup.write_over(self.device) {
            return Ok(false);
        }
        let mut sink = Sink::default();
        self.make_possible()?;
        let Ok(Opened::Volume(mut volume)) = superblock::open(self.device, &mut sink) else {
            return Ok(false);
        };
        // The descriptors of the backup may be damaged while the primary ones are sound.
        let keeps_descriptors = !self.is_described(backup) && descriptors::load(&mut volume, &mut sink);
        if !keeps_descriptors {
            backup.lay_descriptors(&volume, self.device);
            volume.is_backup = true;
            descriptors::load(&mut volume, &mut sink);
        }
        if volume.groups.is_empty() {
            return Ok(false);
        }
        bitmaps::forget_uninit(&volume)?;
        log.rewrite_all = RewriteAll::Yes;
        log.backup = Some(backup.block);
        let what = format!("taken from the backup in block {}", backup.block);
        log.add(code, Site::NOWHERE, Cost::Nothing, what);
        Ok(true)
    }

    /// Replaces impossible values in a backup that was taken.
    fn make_possible(&self) -> Result<(), Error> {
        editor::change_superblock(self.device, |sb| {
            if constants::has_lost_revision(sb) {
                sb.s_rev_level.set(1);
            }
        })?;
        let Ok(Opened::Volume(volume)) = superblock::open(self.device, &mut Sink::default()) else {
            return Ok(());
        };
        if !superblock::check_values(&volume, &mut Sink::default())? {
            let size = self.device.size();
            editor::change_superblock(self.device, |sb| constants::make_possible(sb, size))?;
        }
        Ok(())
    }

    /// Marks the file system as checked and clean, if it was changed. If errors are left,
    /// [`take_mark`] takes the mark back.
    pub(super) fn close(&self, log: &mut Log) -> Result<(), Error> {
        if log.actions.is_empty() || !self.has_superblock() {
            return Ok(());
        }
        editor::change_superblock(self.device, |sb| {
            if fields::clear_meaningless(sb) {
                let what = "fields of features that are off, and mount options that are not text, cleared";
                log.add(Code::SUPERBLOCK_CONSTANT, Site::NOWHERE, Cost::Nothing, what);
            }
            redo::forget(sb);
            mark_clean(sb, self.now);
        })?;
        Ok(())
    }

    /// Rewrites backups that differ, if the superblock and the descriptors are sound.
    pub(super) fn refresh_backups(&self, log: &mut Log) -> Result<(), Error> {
        let mut sink = Sink::default();
        let Ok(Opened::Volume(mut volume)) = superblock::open(self.device, &mut sink) else { return Ok(()) };
        if descriptors::load(&mut volume, &mut sink) && superblock::check_values(&volume, &mut sink)? {
            backups::refresh(&volume, log)?;
        }
        Ok(())
    }

    fn has_superblock(&self) -> bool {
        matches!(superblock::open(self.device, &mut Sink::default()), Ok(Opened::Volume(_)))
    }

    /// Base-2 logarithm of the block size; that of the smallest block size if no superblock can be
    /// opened.
    pub(super) fn block_bits(&self) -> u32 {
        match superblock::open(self.device, &mut Sink::default()) {
            Ok(Opened::Volume(volume)) => volume.geometry.block_bits(),
            _ => 10,
        }
    }
}

/// Gives the primary superblock this block size, possible constants and a checksum. Returns whether
/// descriptors and a directory confirm them.
fn seal(device: &dyn BlockDevice, log_block_size: u32) -> Result<bool, Error> {
    let (size, mut inodes_per_group) = (device.size(), 0);
    editor::change_superblock(device, |sb| {
        inodes_per_group = sb.s_inodes_per_group.get();
        sb.s_magic.set(MAGIC);
        sb.s_checksum_type = if sb.ro_compat().contains(RoCompat::METADATA_CSUM) { CRC32C } else { 0 };
        sb.s_log_block_size.set(log_block_size);
        constants::make_possible(sb, size);
    })?;
    constants::weigh_inodes_per_group(device, inodes_per_group)?;
    let mut sink = Sink::default();
    let Ok(Opened::Volume(mut volume)) = superblock::open(device, &mut sink) else {
        return Ok(false);
    };
    let sound = descriptors::load(&mut volume, &mut sink);
    let usable = !volume.groups.is_empty() && superblock::check_values(&volume, &mut sink)?;
    let unsealed = unsealed(&volume);
    // Correct checksums confirm the constants, whatever a descriptor says.
    let sealed = unsealed == 0 && volume.checksums.fs_seed().is_some();
    if !usable || !(sound || sealed) || unsealed * 2 > volume.groups.len() {
        return Ok(false);
    }
    // With another block size, the same descriptors lead to other inodes.
    let lost_found = InodeNr::new(volume.first_inode());
    Ok([InodeNr::ROOT, lost_found].into_iter().any(|inode| is_sound_directory(&volume, inode)))
}

/// Whether an inode is a directory whose first block begins with its own `.`, or an inline one with
/// a checksum that matches.
fn is_sound_directory(volume: &Volume<'_>, inode: InodeNr) -> bool {
    if inode.raw() > volume.geometry.inodes_count() {
        return false;
    }
    let Ok(bytes) = volume.inode(inode) else { return false };
    let slot = InodeSlot::new(&bytes[..]);
    if slot.raw().file_type() != Some(FileType::Directory)
        || volume.checksums.verify_inode(inode, &slot).is_err()
    {
        return false;
    }
    if slot.raw().flags().contains(InodeFlags::INLINE_DATA) {
        return volume.checksums.fs_seed().is_some();
    }
    let runs = crate::orphans::file_runs(volume, inode, &slot);
    let first = runs.first().filter(|run| run.logical == 0);
    let block = first.and_then(|run| volume.block(BlockNr::new(run.physical)).ok());
    block.is_some_and(|block| block[..4] == inode.raw().to_le_bytes() && block[8] == b'.')
}

/// Marks a file system with errors as not clean; an error mark on the device stays. Returns whether
/// the device says something else.
pub(super) fn take_mark(device: &dyn BlockDevice, overlay: &dyn BlockDevice) -> Result<bool, Error> {
    let Some(sb) = editor::sound_superblock(overlay) else { return Ok(false) };
    let before = editor::sound_superblock(device).map(|sb| sb.state());
    let error = before.unwrap_or(FsState::empty()) & FsState::ERROR;
    let state = sb.state().difference(FsState::VALID) | error;
    debug_assert!(!state.contains(FsState::VALID), "errors are left: {state:?}");
    editor::change_superblock(overlay, |sb| sb.set_state(state))?;
    Ok(before != Some(state))
}

/// Marks a file system without errors as clean. Returns whether the superblock said something else.
pub(super) fn set_mark(device: &dyn BlockDevice, now: u64) -> Result<bool, Error> {
    let Some(sb) = editor::sound_superblock(device) else { return Ok(false) };
    let is_clean = sb.state().contains(FsState::VALID) && !sb.state().contains(FsState::ERROR);
    if is_clean && sb.s_error_count.get() == 0 {
        return Ok(false);
    }
    editor::change_superblock(device, |sb| mark_clean(sb, now))?;
    Ok(true)
}

/// Whether the superblock says that the file system was not closed.
pub(super) fn is_open(device: &dyn BlockDevice) -> bool {
    editor::sound_superblock(device).is_some_and(|sb| !sb.state().contains(FsState::VALID))
}

/// Marks the file system as checked and clean. As in e2fsck, the record of errors goes with them.
fn mark_clean(sb: &mut RawSuperblock, now: u64) {
    sb.set_state(sb.state().difference(FsState::ERROR | FsState::ORPHAN) | FsState::VALID);
    debug_assert!(!sb.state().contains(FsState::ERROR), "clean with errors");
    for record in ERROR_RECORDS {
        debug_assert!(record.end <= RawSuperblock::SIZE, "{record:?} is no part of the superblock");
        sb.as_mut_bytes()[record].fill(0);
    }
    mark_checked(sb, now);
}

/// Records that a whole check ended now.
pub(super) fn mark_checked(sb: &mut RawSuperblock, now: u64) {
    sb.s_mnt_count = U16::new(0);
    sb.set_check_time(now);
    sb.set_write_time(now);
}

/// Whether a superblock says that deletions or truncations have to be finished.
pub(super) fn has_orphans(sb: &RawSuperblock) -> bool {
    sb.s_last_orphan.get() != 0 || sb.ro_compat().contains(RoCompat::ORPHAN_PRESENT)
}

/// How many descriptors have wrong checksums.
fn unsealed(volume: &Volume<'_>) -> usize {
    volume.groups.iter().filter(|group| !group.is_sealed).count()
}

fn sorted(mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.sort();
    findings
}

fn errors_of(ed: &mut Editor<'_, '_>, ledger: &Ledger) -> Vec<Finding> {
    ed.log.crowd = ledger.errors_if_crowded();
    sorted(ledger.errors().filter(|finding| ed.log.accepts(finding.code)).cloned().collect())
}

/// Runs passes 1 to 5; true when something was repaired and all must run again.
fn passes(ed: &mut Editor<'_, '_>, before: &[Finding]) -> Result<bool, Error> {
    let (scan, volume) = (ed.scan, ed.scan.volume);
    let mut ledger = Ledger::default();
    let facts = inodes::gather(scan, &mut ledger);
    let references = xattr_blocks::references(&facts);
    xattr_blocks::claim(scan.map, &references);
    ed.walked = Walked::Yes;
    let notes: Vec<Finding> = ledger.findings().filter(|note| ed.log.accepts(note.code)).cloned().collect();
    if resize::repair(ed, &notes)? {
        return Ok(true);
    }
    let found = sorted(
        ledger
            .findings()
            .filter(|finding| inode::is_to_be_mended(finding) && ed.log.accepts(finding.code))
            .cloned()
            .collect(),
    );
    ed.log.crowd = ledger.errors_if_crowded();
    if !found.is_empty() || !ledger.unkept().is_empty() {
        let decided = ed.log.actions.len();
        mend_inodes(ed, &found, ledger.unkept())?;
        // What was not kept may be faults that are not to be repaired.
        if !found.is_empty() || ed.log.actions.len() > decided {
            return Ok(true);
        }
    }
    let in_blocks = xattr_blocks::check(volume, &references, &mut ledger);
    let mut sink = Sink::default();
    let values = values::check(volume, &facts, in_blocks, &mut sink);
    ledger.absorb(sink);
    let found = errors_of(ed, &ledger);
    if !found.is_empty() {
        blocks::repair(ed, &references, &found)?;
        return Ok(true);
    }
    if !volume.ro_compat.contains(RoCompat::SHARED_BLOCKS) {
        shared::report(scan, &references, &mut ledger);
    }
    let found = errors_of(ed, &ledger);
    if !found.is_empty() {
        parted::repair(ed, &found)?;
        return Ok(true);
    }
    let tree = directories::check(volume, &facts, &mut ledger);
    let found = errors_of(ed, &ledger);
    if !found.is_empty() {
        return mend_directories(ed, &facts, &found);
    }
    let faults = tree::check_connectivity(volume, &facts, &tree, &mut ledger);
    tree::check_bad_blocks(volume, &facts, &mut ledger);
    let at = Connected { facts: &facts, tree: &tree };
    let found = errors_of(ed, &ledger);
    if !found.is_empty() {
        connect::repair(ed, &at, &faults, &found)?;
        return Ok(true);
    }
    tree::check_links(volume, &facts, &values, &mut ledger);
    let found = errors_of(ed, &ledger);
    let is_accepted = |found: &&Unkept| found.code.pass() == 4 && ed.log.accepts(found.code);
    let unkept: Vec<Unkept> = ledger.unkept().iter().filter(is_accepted).copied().collect();
    if !found.is_empty() || !unkept.is_empty() {
        links::repair(ed, &at, &found, &unkept)?;
        return Ok(true);
    }
    after_links(ed, &facts, ledger, before)
}

/// The steps that need files and directories in their final state: the journal, wishes, quota
/// files, pass 5.
fn after_links(
    ed: &mut Editor<'_, '_>,
    facts: &Facts,
    mut ledger: Ledger,
    before: &[Finding],
) -> Result<bool, Error> {
    if ed.log.journal_dropped == JournalDropped::Yes {
        ed.log.journal_dropped = JournalDropped::No;
        if fields::make_journal(ed)? {
            return Ok(true);
        }
    }
    if wishes::fulfil(ed, facts)? {
        return Ok(true);
    }
    quota_check::check(ed.scan, facts, &mut ledger);
    let about = |finding: &&Finding| quota::is_about_quota(finding.code) && ed.log.accepts(finding.code);
    let found = sorted(ledger.findings().filter(about).cloned().collect());
    if !found.is_empty() && quota::repair(ed, facts, &found)? {
        return Ok(true);
    }
    last_pass(ed, facts, ledger, before)
}

/// Pass 5.
fn last_pass(
    ed: &mut Editor<'_, '_>,
    facts: &Facts,
    mut ledger: Ledger,
    before: &[Finding],
) -> Result<bool, Error> {
    if places::place_bitmaps(ed, before)? {
        return Ok(true);
    }
    ed.log.spare = ed.scan.map.free_at_end(redo::BLOCKS_MAX);
    bitmap_check::check(ed.volume(), ed.scan.map, facts, &mut ledger);
    let mut found = errors_of(ed, &ledger);
    let notes = ledger.findings().chain(before).filter(|finding| NOTES.contains(&finding.code));
    found.extend(notes.filter(|finding| ed.log.accepts(finding.code)).cloned());
    if found.is_empty() && ed.log.rewrite_all == RewriteAll::No {
        return Ok(false);
    }
    bitmaps::repair(ed, facts, &found)?;
    // Without findings, only the rewriting of every group was due: no further round is needed.
    Ok(!found.is_empty())
}

/// Mends the inodes with findings, kept or not.
fn mend_inodes(ed: &mut Editor<'_, '_>, found: &[Finding], unkept: &[Unkept]) -> Result<(), Error> {
    let mut inodes: BTreeSet<InodeNr> = found.iter().filter_map(|finding| finding.site.inode).collect();
    let geometry = &ed.volume().geometry;
    let per_block = u32_from_usize(geometry.block_size() / usize::from(geometry.inode_size())).max(1);
    let block_of = |inode: InodeNr| {
        let (group, index) = geometry.locate_inode(inode);
        (group, index / per_block)
    };
    let mut wrong: BTreeMap<_, u32> = BTreeMap::new();
    for finding in found.iter().filter(|finding| finding.code == Code::INODE_CHECKSUM) {
        if let Some(inode) = finding.site.inode {
            *wrong.entry(block_of(inode)).or_default() += 1;
        }
    }
    let mut unkept_in = BTreeSet::new();
    for &Unkept { inode, .. } in unkept.iter().filter(|found| found.code.pass() == 1) {
        if inode::is_wrong(ed, inode)? {
            inodes.insert(inode);
            unkept_in.insert(block_of(inode));
        }
    }
    for (group, index) in unkept_in.into_iter().filter(|_| ed.log.accepts(Code::INODE_CHECKSUM)) {
        let count = shuffled::wrong_in(ed, TableBlock { group, index });
        let known = wrong.entry((group, index)).or_default();
        *known = u32_from_usize(count).max(*known);
    }
    let is_garbage = |count: u32| count > (per_block / 2).max(1);
    let in_garbage = |inode: &InodeNr| wrong.get(&block_of(*inode)).is_some_and(|count| is_garbage(*count));
    if ed.log.garbage.is_none() {
        ed.log.garbage = inodes.iter().copied().find(in_garbage);
    }
    let several = wrong.iter().filter(|(_, count)| **count > 1);
    let several: Vec<TableBlock> =
        several.map(|((group, index), _)| TableBlock { group: *group, index: *index }).collect();
    if shuffled::repair(ed, &several)? {
        return Ok(());
    }
    for inode in &inodes {
        if !in_garbage(inode) {
            maps::hold(ed, *inode)?;
        }
    }
    for inode in inodes {
        inode::repair(ed, inode, if in_garbage(&inode) { Around::Garbage } else { Around::Sound })?;
    }
    let is_lost = found.iter().any(|finding| finding.code == Code::ROOT_NOT_DIRECTORY)
        && ed.slot(InodeNr::ROOT)?.raw().file_type() != Some(FileType::Directory);
    if is_lost && directory::make(ed, InodeNr::ROOT, InodeNr::ROOT.raw(), Vec::new())? {
        ed.add(Code::NO_ROOT, Site::inode(InodeNr::ROOT), Cost::Moved, "root directory created");
    }
    Ok(())
}

fn mend_directories(ed: &mut Editor<'_, '_>, facts: &Facts, found: &[Finding]) -> Result<bool, Error> {
    let geometry = &ed.volume().geometry;
    let mut tables = BTreeSet::new();
    let mut directories: BTreeMap<InodeNr, (Code, Writing)> = BTreeMap::new();
    for finding in found {
        let Some(inode) = finding.site.inode else { continue };
        if matches!(finding.code, Code::UNINIT_INODE | Code::UNUSED_AREA_INODE) {
            let named = finding.detail.rsplit(' ').next().and_then(|text| text.parse().ok());
            tables.extend(named.map(|nr: u32| geometry.locate_inode(InodeNr::new(nr)).0));
        }
        let entry = directories.entry(inode).or_insert((finding.code, Writing::InPlace));
        if directory::needs_rebuilding(finding.code) {
            entry.1 = Writing::Anew;
        }
    }
    if !tables.is_empty() {
        bitmaps::open_tables(ed, &tables)?;
        return Ok(true);
    }
    for (inode, (code, writing)) in directories {
        directory::repair(ed, &Mending { facts, inode, code }, &Change::default(), writing)?;
    }
    Ok(true)
}

impl From<DeviceError> for Error {
    fn from(error: DeviceError) -> Self {
        Self::Device(error.to_string())
    }
}
