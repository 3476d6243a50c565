//! One round: the passes run in order over the overlay, up to the first that finds errors, which
//! are repaired.

use std::collections::{BTreeMap, BTreeSet};

use blockyard_device::{BlockDevice, DeviceError};
use blockyard_disk::inode::FileType;
use blockyard_disk::num::u32_from_usize;
use blockyard_disk::{BlockCount, InodeNr, RoCompat};

use super::connect::{self, Connected};
use super::directory::{self, Change, Writing};
use super::editor::{self, Editor, Walked};
use super::head;
use super::inode::{self, Around};
use super::links;
use super::log::{Cost, JournalDropped, Log, RewriteAll};
use super::maps;
use super::marks;
use super::orphans;
use super::places;
use super::quota;
use super::redo;
use super::remains;
use super::resize;
use super::shared as parted;
use super::shuffled::{self, TableBlock};
use super::superblock as fields;
use super::tables;
use super::wishes;
use super::xattr_blocks as blocks;
use super::{backups, bitmaps};
use crate::block_map::BlockMap;
use crate::code::Code;
use crate::facts::Facts;
use crate::finding::{Finding, Ledger, Sink, Site, Unkept};
use crate::inode::Scan;
use crate::superblock::Opened;
use crate::{
    Error, bitmaps as bitmap_check, descriptors, directories, inodes, journal, quota as quota_check, shared,
    superblock, tree, values, xattr_blocks,
};

/// What all rounds of a repair share.
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
    /// Runs the passes. Returns true if something was repaired and the passes must run again.
    pub(super) fn run(&mut self, log: &mut Log) -> Result<bool, Error> {
        let mut sink = Sink::default();
        let mut volume = match superblock::open(self.device, &mut sink)? {
            Opened::Volume(volume) => volume,
            _ => return self.take_any_backup(log),
        };
        let sound = descriptors::load(&mut volume, &mut sink);
        if !sound
            // Once a backup was taken, another one would undo what was repaired since.
            && log.backup.is_none()
            && log.rewrite_all == RewriteAll::No
            && log.accepts(Code::DESCRIPTORS_BACKUP)
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
        found.retain(|finding| ed.log.accepts(finding.code));
        if ed.log.accepts(Code::INODE_TABLE_PLACE) && tables::place_tables(&mut ed, &found)? {
            return Ok(true);
        }
        let misplaced = shuffled::wrong_with_first(&ed);
        if ed.log.accepts(Code::INODE_GARBAGE) && shuffled::repair(&mut ed, &misplaced)? {
            return Ok(true);
        }
        let pending = !orphans.is_empty() || marks::has_orphans(&volume.sb);
        let is_mended = |finding: &&Finding| finding.is_error() || fields::is_worth_mending(finding.code);
        let errors: Vec<&Finding> = found.iter().filter(is_mended).collect();
        let decided = ed.log.actions.len();
        for finding in errors {
            fields::repair(&mut ed, finding)?;
        }
        if pending && ed.log.accepts(Code::ORPHAN_UNFINISHED) {
            orphans::finish(&mut ed, &orphans)?;
        }
        if ed.log.actions.len() > decided {
            return Ok(true);
        }
        passes(&mut ed, &found)
    }

    /// Marks the file system as checked and clean, if it was changed. If errors are left,
    /// [`marks::take_mark`] takes the mark back.
    pub(super) fn close(&self, log: &mut Log) -> Result<(), Error> {
        if log.actions.is_empty() || !self.has_superblock() {
            return Ok(());
        }
        editor::change_superblock(self.device, |sb| {
            if log.accepts(Code::SUPERBLOCK_CONSTANT) && fields::clear_meaningless(sb) {
                let what = "fields of features that are off, and mount options that are not text, cleared";
                log.add(Code::SUPERBLOCK_CONSTANT, Site::NOWHERE, Cost::Nothing, what);
            }
            redo::forget(sb);
            marks::mark_clean(sb, self.now);
        })?;
        Ok(())
    }

    /// Rewrites backups that differ from the superblock and the descriptors. This happens only if
    /// superblock and descriptors are sound and have no errors: otherwise the backup may be right.
    pub(super) fn refresh_backups(&self, log: &mut Log) -> Result<(), Error> {
        let mut sink = Sink::default();
        let Ok(Opened::Volume(mut volume)) = superblock::open(self.device, &mut sink) else { return Ok(()) };
        let is_sound =
            descriptors::load(&mut volume, &mut sink) && superblock::check_values(&volume, &mut sink)?;
        if is_sound && sink.errors() == 0 {
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

fn sorted(mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.sort();
    findings
}

fn errors_of(ed: &mut Editor<'_, '_>, ledger: &Ledger) -> Vec<Finding> {
    ed.log.crowd = ledger.errors_if_crowded();
    sorted(ledger.errors().filter(|finding| ed.log.accepts(finding.code)).cloned().collect())
}

/// Runs passes 1 to 5. Returns true if something was repaired and all passes must run again.
fn passes(ed: &mut Editor<'_, '_>, before: &[Finding]) -> Result<bool, Error> {
    let (scan, volume) = (ed.scan, ed.scan.volume);
    let mut ledger = Ledger::default();
    let facts = inodes::gather(scan, &mut ledger);
    let references = xattr_blocks::references(&facts);
    xattr_blocks::claim(scan.map, &references);
    ed.walked = Walked::Yes;
    let notes: Vec<Finding> = ledger.findings().filter(|note| ed.log.accepts(note.code)).cloned().collect();
    let found = sorted(notes.iter().filter(|finding| inode::is_to_be_mended(finding)).cloned().collect());
    let is_wrong = !found.is_empty()
        || !ledger.unkept().is_empty()
        || notes.iter().any(|note| resize::is_about_resize(note.code));
    if (is_wrong && bitmaps::open_named(ed, &facts)?) || resize::repair(ed, &notes)? {
        return Ok(true);
    }
    ed.log.crowd = ledger.errors_if_crowded();
    if !found.is_empty() || !ledger.unkept().is_empty() {
        let decided = ed.log.actions.len();
        mend_inodes(ed, &found, ledger.unkept())?;
        // If only unkept findings are left and nothing was decided about them, the user declines
        // their repair. So the passes go on.
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
        if !bitmaps::open_named(ed, &facts)? {
            blocks::repair(ed, &references, &found)?;
        }
        return Ok(true);
    }
    if !volume.ro_compat.contains(RoCompat::SHARED_BLOCKS) {
        shared::report(scan, &references, &mut ledger);
    }
    let found = errors_of(ed, &ledger);
    if !found.is_empty() && (bitmaps::open_named(ed, &facts)? || parted::repair(ed, &found)?) {
        return Ok(true);
    }
    let tree = directories::check(volume, &facts, &mut ledger);
    let found = errors_of(ed, &ledger);
    if !found.is_empty() {
        if !bitmaps::open_named(ed, &facts)? {
            mend_directories(ed, &Connected { facts: &facts, tree: &tree }, &found)?;
        }
        return Ok(true);
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
    after_links(ed, &at, ledger, before)
}

/// The steps that need files and directories in their final state: the journal, wishes, quota
/// files, pass 5.
fn after_links(
    ed: &mut Editor<'_, '_>,
    at: &Connected<'_>,
    mut ledger: Ledger,
    before: &[Finding],
) -> Result<bool, Error> {
    let facts = at.facts;
    remains::list(ed, facts);
    if ed.log.journal_dropped == JournalDropped::Yes {
        ed.log.journal_dropped = JournalDropped::No;
        if fields::make_journal(ed)? {
            return Ok(true);
        }
    }
    if wishes::fulfil(ed, at)? {
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
    // The last cluster may reach beyond the last block.
    let end = ed.volume().geometry.blocks_count().raw();
    let spare = ed.scan.map.free_at_end(redo::BLOCKS_MAX).into_iter();
    ed.log.spare = spare.map(|run| run.start..run.end.min(end)).collect();
    bitmap_check::check(ed.volume(), ed.scan.map, facts, &mut ledger);
    let needs_all = ed.log.rewrite_all == RewriteAll::Yes;
    // Bitmaps and counts are written together, so declining a part of them declines all. If other
    // repairs need them written, the plan shows the declined findings, too.
    let mut found = errors_of(ed, &ledger);
    if needs_all {
        found = sorted(ledger.errors().cloned().collect());
    }
    let notes = ledger.findings().chain(before).filter(|finding| NOTES.contains(&finding.code));
    found.extend(notes.filter(|finding| needs_all || ed.log.accepts(finding.code)).cloned());
    let is_declined = ed.log.declined.iter().any(|code| code.pass() == 5);
    if (found.is_empty() || is_declined) && !needs_all {
        return Ok(false);
    }
    bitmaps::repair(ed, facts, &found)?;
    // If there were no findings, only the log asked for the rewriting of every group, and no
    // further round is needed.
    Ok(!found.is_empty())
}

/// Mends the inodes that have findings, including findings that were dropped at a limit (`unkept`).
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
    if ed.log.accepts(Code::INODE_GARBAGE) && shuffled::repair(ed, &several)? {
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
        && ed.log.accepts(Code::NO_ROOT)
        && ed.slot(InodeNr::ROOT)?.raw().file_type() != Some(FileType::Directory);
    if is_lost && directory::make(ed, InodeNr::ROOT, InodeNr::ROOT.raw(), Vec::new())? {
        ed.add(Code::NO_ROOT, Site::inode(InodeNr::ROOT), Cost::Moved, "root directory created");
    }
    Ok(())
}

fn mend_directories(ed: &mut Editor<'_, '_>, at: &Connected<'_>, found: &[Finding]) -> Result<(), Error> {
    let mut directories: BTreeMap<InodeNr, (Code, Writing)> = BTreeMap::new();
    for finding in found {
        let Some(inode) = finding.site.inode else { continue };
        let entry = directories.entry(inode).or_insert((finding.code, Writing::InPlace));
        if directory::needs_rebuilding(finding.code) {
            entry.1 = Writing::Anew;
        }
    }
    for (inode, (code, writing)) in directories {
        directory::repair(ed, &at.mending(inode, code), &Change::default(), writing)?;
    }
    Ok(())
}

impl From<DeviceError> for Error {
    fn from(error: DeviceError) -> Self {
        Self::Device(error.to_string())
    }
}
