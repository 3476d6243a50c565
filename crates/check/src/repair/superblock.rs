//! Repairs of pass 0: fields of the superblock, the MMP block, the journal's superblock and inode,
//! the orphan file.

use blockyard_device::{BlockDevice, DeviceError};
use blockyard_disk::inode::{FileType, InodeFlags, RawInode};
use blockyard_disk::jbd2::{self, BlockKind, RawHeader, RawJournalSuperblock};
use blockyard_disk::mmp::{self, RawMmp};
use blockyard_disk::num::{u32_from_u64, u64_from_u32, u64_from_usize};
use blockyard_disk::orphan_file::OrphanBlock;
use blockyard_disk::quota::QuotaType;
use blockyard_disk::superblock::RawSuperblock;
use blockyard_disk::{BlockNr, Compat, Incompat, InodeNr, RoCompat, TxnId};
use blockyard_recovery::{OnDamage, Session, Unflagged};
use zerocopy::big_endian::U32 as BigU32;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::editor::{Editor, Slot};
use super::log::Cost;
use super::maps;
use super::orphans;
use crate::code::Code;
use crate::descriptors::touches;
use crate::finding::{Finding, Site};
use crate::journal::external_block;
use crate::map::Run;
use crate::superblock::quota::{self, quota_inodes};
use crate::volume::Volume;

/// `s_creator_os` of Linux.
const CREATOR_LINUX: u32 = 0;
/// Smallest journal in blocks.
const JOURNAL_MIN: u64 = 1024;
const JOURNAL_COPIED: &str = "journal inode taken from the copy in the superblock";

/// Repairs one finding.
pub(crate) fn repair(ed: &mut Editor<'_, '_>, finding: &Finding) -> Result<(), DeviceError> {
    let code = finding.code;
    let mut what = "field corrected";
    match code {
        Code::INODES_COUNT => {
            let count = ed.volume().geometry.inodes_count();
            ed.change_superblock(|sb| sb.s_inodes_count = U32::new(count))?;
        }
        Code::RECOVER_WITHOUT_JOURNAL => {
            ed.change_superblock(|sb| sb.set_incompat(sb.incompat().difference(Incompat::RECOVER)))?;
        }
        Code::STRAY_JOURNAL_DEVICE => ed.change_superblock(forget_journal_device)?,
        Code::QUOTA_IS_ROOT | Code::QUOTA_INODE => name_quota_files(ed)?,
        Code::MMP_BLOCK => {
            ed.change_superblock(|sb| {
                sb.set_incompat(sb.incompat().difference(Incompat::MMP));
                sb.s_mmp_block = U64::new(0);
            })?;
            what = "feature mmp removed";
        }
        Code::MMP_MAGIC | Code::MMP_CHECKSUM => {
            write_mmp(ed)?;
            what = "MMP block rewritten";
        }
        Code::JOURNAL_SUPERBLOCK | Code::JOURNAL_INODE if name_reserved_journal(ed)? => {
            what = "reserved inode named as the journal";
        }
        Code::JOURNAL_SUPERBLOCK if find_log(ed)? => what = JOURNAL_COPIED,
        Code::JOURNAL_SUPERBLOCK => {
            what = if empty_journal(ed)? { "empty journal written" } else { remake_journal(ed)? };
        }
        Code::JOURNAL_INODE => what = remake_journal(ed)?,
        Code::LOG_NOT_EMPTY => {
            if let Some((why, done)) = replay(ed)? {
                let what = format!("{done}, because the log cannot be replayed: {why}");
                ed.add(code, finding.site, Cost::Doubtful, what);
                return Ok(());
            }
            what = "log replayed, although the superblock does not ask for it";
        }
        Code::NOT_REPLAYED => {
            ed.change_superblock(|sb| sb.set_incompat(sb.incompat().difference(Incompat::RECOVER)))?;
            what = "log discarded";
        }
        Code::ORPHAN_FILE_NO_JOURNAL
        | Code::ORPHAN_FILE_MODE
        | Code::ORPHAN_FILE_SIZE
        | Code::ORPHAN_FILE_HOLE => {
            drop_orphan_file(ed)?;
            what = "orphan file removed";
        }
        Code::ORPHAN_FILE_MAGIC | Code::ORPHAN_FILE_CHECKSUM | Code::ORPHAN_FILE_ENTRY => {
            orphans::empty_file(ed)?;
            what = "orphan file emptied";
        }
        Code::ORPHAN_PRESENT_EMPTY | Code::ORPHAN_PRESENT_NO_FILE => {
            ed.change_superblock(|sb| sb.set_ro_compat(sb.ro_compat().difference(RoCompat::ORPHAN_PRESENT)))?;
        }
        Code::HURD_FILETYPE => what = mend_creator(ed)?,
        _ if mend_value(ed, code)? => {}
        _ => return Ok(()),
    }
    let cost = if code == Code::NOT_REPLAYED { Cost::Doubtful } else { Cost::Nothing };
    ed.add(code, finding.site, cost, what);
    Ok(())
}

/// Whether a note about the superblock is repaired, as in e2fsck.
pub(crate) fn is_worth_mending(code: Code) -> bool {
    matches!(
        code,
        Code::HURD_FILETYPE
            | Code::QUOTA_INODE
            | Code::RESIZE_WITH_META_BG
            | Code::LOG_NOT_EMPTY
            | Code::MIN_EXTRA_ISIZE
            | Code::WANT_EXTRA_ISIZE
            | Code::RESERVED_GDT_WITHOUT_FEATURE
            | Code::BOTH_CHECKSUMS
            | Code::TEST_FILESYSTEM
            | Code::MOUNT_TIME_FUTURE
            | Code::WRITE_TIME_FUTURE
            | Code::REVISION_LOW
    )
}

/// Clears values that nothing depends on, but at which Linux or other programs give up:
///
/// - in the field for lost+found, or in a field of a feature that is off: an inode number that is
///   too large;
/// - mount options that are not printable text, or that fill their field without a zero at the end.
///
/// Returns whether a field was cleared.
pub(super) fn clear_meaningless(sb: &mut RawSuperblock) -> bool {
    let count = sb.s_inodes_count.get();
    let mut cleared = false;
    let (orphan_file, quota) =
        (sb.compat().contains(Compat::ORPHAN_FILE), sb.ro_compat().contains(RoCompat::QUOTA));
    let fields = [
        (orphan_file, &mut sb.s_orphan_file_inum),
        (quota, &mut sb.s_usr_quota_inum),
        (quota, &mut sb.s_grp_quota_inum),
        (quota, &mut sb.s_prj_quota_inum),
        (false, &mut sb.s_lpf_ino),
    ];
    for (_, field) in fields.into_iter().filter(|(meant, field)| !meant && field.get() > count) {
        *field = U32::new(0);
        cleared = true;
    }
    let options = sb.s_mount_opts.split(|byte| *byte == 0).next().unwrap_or_default();
    if options.len() == sb.s_mount_opts.len() || !options.iter().all(u8::is_ascii_graphic) {
        sb.s_mount_opts = [0; 64];
        cleared = true;
    }
    cleared
}

/// Corrects the field that a finding of [`is_worth_mending`] is about. Returns false, and changes
/// nothing, for other findings.
fn mend_value(ed: &Editor<'_, '_>, code: Code) -> Result<bool, DeviceError> {
    let now = ed.now;
    let wide = ed.volume().geometry.inode_size() > 128;
    if !is_worth_mending(code) {
        return Ok(false);
    }
    ed.change_superblock(|sb| match code {
        Code::MIN_EXTRA_ISIZE => sb.s_min_extra_isize = U16::new(if wide { 32 } else { 0 }),
        Code::WANT_EXTRA_ISIZE => sb.s_want_extra_isize = U16::new(if wide { 32 } else { 0 }),
        Code::RESIZE_WITH_META_BG => sb.set_compat(sb.compat().difference(Compat::RESIZE_INODE)),
        Code::RESERVED_GDT_WITHOUT_FEATURE => sb.s_reserved_gdt_blocks = U16::new(0),
        Code::BOTH_CHECKSUMS => sb.set_ro_compat(sb.ro_compat().difference(RoCompat::GDT_CSUM)),
        Code::TEST_FILESYSTEM => {
            sb.set_flags(sb.flags().difference(blockyard_disk::superblock::FsFlags::TEST_FILESYS));
        }
        Code::MOUNT_TIME_FUTURE => sb.set_mount_time(now),
        // The values that revision 0 implies.
        Code::REVISION_LOW => {
            sb.s_rev_level = U32::new(1);
            (sb.s_first_ino, sb.s_inode_size) = (U32::new(11), U16::new(128));
        }
        _ => sb.set_write_time(now),
    })?;
    Ok(true)
}

/// Corrects the creator or the feature `filetype`: the superblock names the Hurd, which writes no
/// file types into directory entries. The root's entries show which of the two is wrong. Returns
/// what was done.
fn mend_creator(ed: &Editor<'_, '_>) -> Result<&'static str, DeviceError> {
    if names_have_types(ed)? {
        ed.change_superblock(|sb| sb.s_creator_os = U32::new(CREATOR_LINUX))?;
        return Ok("creator set to Linux, because names have types");
    }
    ed.change_superblock(|sb| sb.set_incompat(sb.incompat().difference(Incompat::FILETYPE)))?;
    Ok("feature filetype removed, because names have no types")
}

/// Whether the entry `.` of the root has a file type. Also true if the root is inline, or if its
/// first block cannot be read.
fn names_have_types(ed: &Editor<'_, '_>) -> Result<bool, DeviceError> {
    let slot = ed.slot(InodeNr::ROOT)?;
    if slot.raw().flags().contains(InodeFlags::INLINE_DATA) {
        // The Hurd has no inline data.
        return Ok(true);
    }
    let map = maps::read(ed, InodeNr::ROOT, slot.raw());
    let first = map.runs.first().and_then(|run| ed.volume().block(BlockNr::new(run.physical)).ok());
    Ok(first.is_none_or(|block| block[7] != 0))
}

/// For each type whose quota file the superblock names wrongly, names the reserved inode if it
/// holds a quota file of this type, and otherwise no inode.
fn name_quota_files(ed: &Editor<'_, '_>) -> Result<(), DeviceError> {
    let volume = ed.volume();
    let right = |(kind, named): (QuotaType, u32)| {
        let usual = quota::usual(kind).filter(|usual| quota::holds(volume, kind, InodeNr::new(*usual)));
        if quota::is_possible(volume, kind, named) { named } else { usual.unwrap_or(0) }
    };
    let numbers = QuotaType::ALL.into_iter().zip(quota_inodes(&volume.sb)).map(right);
    ed.change_superblock(|sb| {
        let fields = [&mut sb.s_usr_quota_inum, &mut sb.s_grp_quota_inum, &mut sb.s_prj_quota_inum];
        fields.into_iter().zip(numbers).for_each(|(field, number)| *field = U32::new(number));
    })
}

/// Replays a log although the superblock does not ask for it. Returns `None` if the replay
/// succeeds. Otherwise empties the log, or remakes the journal if its inode is unusable. Then it
/// returns why the replay failed, and what was done.
fn replay(ed: &mut Editor<'_, '_>) -> Result<Option<(blockyard_recovery::Error, &'static str)>, DeviceError> {
    let options =
        blockyard_recovery::Options { on_damage: OnDamage::ReplayGood, unflagged: Unflagged::Replay };
    let device = ed.volume().device;
    let session = match ed.journal {
        Some(journal) => Session::open_with_journal(device, journal),
        None => Session::open(device),
    };
    match session.and_then(|session| session.replay(&options)) {
        Ok(_) => Ok(None),
        Err(why) => {
            let done = match ed.journal.filter(|_| ed.volume().sb.s_journal_uuid != [0; 16]) {
                Some(journal) => {
                    empty_external(ed, journal)?;
                    "log emptied"
                }
                None if empty_journal(ed)? => "log emptied",
                None => remake_journal(ed)?,
            };
            Ok(Some((why, done)))
        }
    }
}

fn write_mmp(ed: &Editor<'_, '_>) -> Result<(), DeviceError> {
    let volume = ed.volume();
    let place = BlockNr::new(volume.sb.s_mmp_block.get());
    let mut block = vec![0; volume.block_size()];
    let mut new = RawMmp::new_zeroed();
    new.mmp_magic = U32::new(mmp::MAGIC);
    new.mmp_seq = U32::new(mmp::SEQUENCE_CLEAN);
    new.mmp_check_interval = U16::new(volume.sb.s_mmp_update_interval.get());
    volume.checksums.seal_mmp(&mut new);
    block[..RawMmp::SIZE].copy_from_slice(new.as_bytes());
    ed.put_block(place, &block)
}

/// Names the reserved inode as the journal if that inode leads to a log and the superblock names
/// another inode, or none. The other inode stays as it is. Returns whether the reserved inode was
/// named.
fn name_reserved_journal(ed: &Editor<'_, '_>) -> Result<bool, DeviceError> {
    let sb = ed.volume().sb;
    if sb.s_journal_uuid != [0; 16] || sb.s_journal_inum.get() == InodeNr::JOURNAL.raw() {
        return Ok(false);
    }
    let slot = ed.slot(InodeNr::JOURNAL)?;
    let map = maps::read(ed, InodeNr::JOURNAL, slot.raw());
    let Some(first) = map.runs.first().filter(|run| run.logical == 0 && !map.damaged) else {
        return Ok(false);
    };
    if RawHeader::read(&ed.volume().block(BlockNr::new(first.physical))?).is_none() {
        return Ok(false);
    }
    ed.change_superblock(|sb| sb.s_journal_inum = U32::new(InodeNr::JOURNAL.raw()))?;
    Ok(true)
}

/// Writes the superblock of an empty log to the first block of the journal's inode. Returns false
/// if that inode is unusable, or if the journal is external.
fn empty_journal(ed: &Editor<'_, '_>) -> Result<bool, DeviceError> {
    let volume = ed.volume();
    let number = InodeNr::new(volume.sb.s_journal_inum.get());
    if volume.sb.s_journal_uuid != [0; 16]
        || number.raw() == 0
        || number.raw() > volume.geometry.inodes_count()
    {
        return Ok(false);
    }
    let slot = ed.slot(number)?;
    let map = maps::read(ed, number, slot.raw());
    let blocks: u64 = map.runs.iter().map(|run| run.length).sum();
    let size = slot.raw().size() >> volume.geometry.block_bits();
    let Some(first) = map.runs.first().filter(|run| run.logical == 0) else { return Ok(false) };
    let length = blocks.min(size);
    if map.damaged || length < JOURNAL_MIN {
        return Ok(false);
    }
    let length = u32_from_u64(length.min(u64_from_u32(u32::MAX)));
    let mut new = RawJournalSuperblock::new_empty(volume.block_size(), length, volume.sb.s_uuid);
    let log = map.runs.iter().flat_map(|run| run.physical..run.physical + run.length);
    new.s_sequence = BigU32::new(unused_transaction(volume, volume.device, log).raw());
    let mut block = vec![0; volume.block_size()];
    block[..RawJournalSuperblock::SIZE].copy_from_slice(new.as_bytes());
    ed.put_block(BlockNr::new(first.physical), &block)?;
    Ok(true)
}

/// Marks the log of an external journal, whose superblock is sound, as empty.
fn empty_external(ed: &Editor<'_, '_>, journal: &dyn BlockDevice) -> Result<(), DeviceError> {
    let volume = ed.volume();
    let (first, bits) = (external_block(volume), volume.geometry.block_bits());
    let mut bytes = [0; RawJournalSuperblock::SIZE];
    journal.read_at(first << bits, &mut bytes)?;
    let mut raw = RawJournalSuperblock::read_from_bytes(&bytes).expect("1024 bytes");
    debug_assert!(RawHeader::read(&bytes).is_some(), "no journal superblock in block {first}");
    let end = (journal.size() >> bits).min(first + u64_from_u32(raw.s_maxlen.get()));
    raw.s_sequence = BigU32::new(unused_transaction(volume, journal, first..end).raw());
    raw.s_start = BigU32::new(0);
    raw.seal();
    journal.write_at(first << bits, raw.as_bytes())
}

/// A transaction id that comes after all ids in the blocks of a journal. With an earlier id, a new
/// transaction could end where an old one with the next id begins, and a replay would go on with
/// the old one. The old journal superblock is not asked, because it may be damaged.
fn unused_transaction(
    volume: &Volume<'_>,
    device: &dyn BlockDevice,
    blocks: impl Iterator<Item = u64>,
) -> TxnId {
    let mut bytes = vec![0; volume.block_size()];
    let records = blocks.filter_map(|block| {
        device.read_at(block << volume.geometry.block_bits(), &mut bytes).ok()?;
        match RawHeader::read(&bytes) {
            Some((Some(BlockKind::Descriptor | BlockKind::Commit | BlockKind::Revoke), tid)) => Some(tid),
            _ => None,
        }
    });
    let last = records.reduce(|last, tid| if tid.is_after(last) { tid } else { last });
    last.unwrap_or(TxnId::ZERO).next()
}

/// Makes the journal's inode again from the copy in the superblock. If there is no usable copy, or
/// if the copy was taken once already, the journal is removed. In that case [`make_journal`] later
/// makes a new journal in free blocks, if the file system is large enough.
fn remake_journal(ed: &mut Editor<'_, '_>) -> Result<&'static str, DeviceError> {
    if let Some((slot, _)) = copied_journal(ed)?
        && take_copied_journal(ed, slot)?
    {
        return Ok(JOURNAL_COPIED);
    }
    let number = InodeNr::JOURNAL;
    let mut slot = ed.slot(number)?;
    // No new journal is made yet: only the next walk over the inodes shows that nothing claims the
    // old journal's blocks any more, so that they can be used again.
    slot.bytes_mut().fill(0);
    ed.put_slot(number, &mut slot)?;
    ed.change_superblock(|sb| {
        sb.set_compat(sb.compat().difference(Compat::HAS_JOURNAL));
        sb.set_incompat(sb.incompat().difference(Incompat::RECOVER));
        sb.s_journal_inum = U32::new(0);
        forget_journal_device(sb);
        sb.s_jnl_backup_type = 0;
    })?;
    ed.log.journal_dropped = super::log::JournalDropped::Yes;
    Ok("journal removed")
}

/// Takes the copy of the journal's inode in the superblock if the copy leads to a log and the inode
/// itself does not. Without this, [`empty_journal`] could write to a file's block that the inode
/// wrongly maps. Returns whether the copy was taken.
fn find_log(ed: &mut Editor<'_, '_>) -> Result<bool, DeviceError> {
    let sb = ed.volume().sb;
    if sb.s_journal_uuid != [0; 16] || sb.s_journal_inum.get() != InodeNr::JOURNAL.raw() {
        return Ok(false);
    }
    let slot = ed.slot(InodeNr::JOURNAL)?;
    let here = maps::read(ed, InodeNr::JOURNAL, slot.raw());
    match copied_journal(ed)? {
        Some((slot, copied)) if leads_to_log(ed, &copied) && !leads_to_log(ed, &here) => {
            take_copied_journal(ed, slot)
        }
        _ => Ok(false),
    }
}

/// Whether the first block of a map begins with a journal header.
fn leads_to_log(ed: &Editor<'_, '_>, map: &maps::Map) -> bool {
    let first = map.runs.first().filter(|run| run.logical == 0);
    let head = first.and_then(|run| ed.volume().block(BlockNr::new(run.physical)).ok());
    head.is_some_and(|head| RawHeader::read(&head).is_some())
}

/// The journal's inode, made from the copy in the superblock, and its map. `None` if there is no
/// copy, or if its map is damaged, too short for a journal, or leads to metadata.
fn copied_journal(ed: &Editor<'_, '_>) -> Result<Option<(Slot, maps::Map)>, DeviceError> {
    let sb = ed.volume().sb;
    if sb.s_jnl_backup_type != 1 {
        return Ok(None);
    }
    let mut slot = ed.slot(InodeNr::JOURNAL)?;
    let extra = slot.extra_isize();
    slot.bytes_mut().fill(0);
    slot.set_extra_isize(extra.min(32) & !3);
    let raw = slot.raw_mut();
    raw.i_mode = U16::new(FileType::Regular.mode_bits() | 0o600);
    raw.i_links_count = U16::new(1);
    let mut words = [0; 15];
    for (word, stored) in words.iter_mut().zip(&sb.s_jnl_blocks) {
        *word = stored.get();
    }
    raw.set_block_words(words);
    let (high, low) = (sb.s_jnl_blocks[15].get(), sb.s_jnl_blocks[16].get());
    raw.set_size(u64_from_u32(high) << 32 | u64_from_u32(low));
    if raw.i_block[..2] == blockyard_disk::extent::MAGIC.to_le_bytes() {
        raw.set_flags(InodeFlags::EXTENTS);
    }
    let map = maps::read(ed, InodeNr::JOURNAL, slot.raw());
    let mapped: u64 = map.runs.iter().map(|run| run.length).sum();
    // An inode table that the repair created empty may lie where the journal was.
    let system = ed.scan.system;
    let is_clear = !map.runs.iter().any(|run| touches(system, BlockNr::new(run.physical), run.length));
    let is_usable = !map.damaged && mapped >= JOURNAL_MIN && is_clear;
    Ok(is_usable.then_some((slot, map)))
}

/// Writes the journal's inode from the copy in the superblock. Returns false if that was done
/// before.
fn take_copied_journal(ed: &mut Editor<'_, '_>, mut slot: Slot) -> Result<bool, DeviceError> {
    let number = InodeNr::JOURNAL;
    debug_assert_eq!(slot.raw().i_links_count.get(), 1, "the copy is an inode in use");
    if ed.log.try_again(super::log::Tried::Inode, number) > 0 {
        return Ok(false);
    }
    ed.put_slot(number, &mut slot)?;
    ed.change_superblock(|sb| sb.s_journal_inum = U32::new(number.raw()))?;
    Ok(true)
}

fn forget_journal_device(sb: &mut RawSuperblock) {
    sb.s_journal_uuid = [0; 16];
    sb.s_journal_dev = U32::new(0);
}

/// Removes the feature `orphan_file`. Clears the inode that the superblock names if this inode
/// holds blocks of an orphan file. Otherwise only the number in the superblock is wrong, and the
/// inode stays.
fn drop_orphan_file(ed: &mut Editor<'_, '_>) -> Result<(), DeviceError> {
    let number = InodeNr::new(ed.volume().sb.s_orphan_file_inum.get());
    if number.raw() >= ed.volume().first_inode() && number.raw() <= ed.volume().geometry.inodes_count() {
        let mut slot = ed.slot(number)?;
        if holds_orphans(ed, number, slot.raw()) {
            slot.bytes_mut().fill(0);
            ed.put_slot(number, &mut slot)?;
        }
    }
    ed.change_superblock(|sb| {
        sb.set_compat(sb.compat().difference(Compat::ORPHAN_FILE));
        sb.set_ro_compat(sb.ro_compat().difference(RoCompat::ORPHAN_PRESENT));
        sb.s_orphan_file_inum = U32::new(0);
    })
}

/// Whether an inode is a regular file with a block of an orphan file among its first 512 blocks.
fn holds_orphans(ed: &Editor<'_, '_>, inode: InodeNr, raw: &RawInode) -> bool {
    let is_orphan_block = |place| {
        let block = ed.volume().block(place);
        block.is_ok_and(|block| OrphanBlock::parse(&block).is_ok())
    };
    raw.file_type() == Some(FileType::Regular)
        && maps::read(ed, inode, raw)
            .runs
            .iter()
            .flat_map(maps::blocks_of)
            .take(512)
            .any(|block| is_orphan_block(BlockNr::new(block.physical)))
}

/// Makes a journal where the repair removed a broken one, with as many blocks as mke2fs would give
/// it. Returns false if the file system is too small for a journal. Otherwise returns true, even if
/// there is no space for it: the passes must run again.
pub(crate) fn make_journal(ed: &mut Editor<'_, '_>) -> Result<bool, DeviceError> {
    let volume = ed.volume();
    let blocks = volume.geometry.blocks_count().raw();
    let Some(length) = jbd2::default_blocks(blocks) else { return Ok(false) };
    let ratio = u64_from_u32(volume.geometry.cluster_ratio());
    let mut runs: Vec<Run> = Vec::new();
    let empty = vec![0; volume.block_size()];
    let mut logical = 0;
    while logical < length {
        let Some(first) = ed.allocate() else { return Ok(tell_no_space(ed)) };
        for at in 0..ratio {
            ed.put_block(BlockNr::new(first.raw() + at), &empty)?;
        }
        match runs.last_mut() {
            Some(last) if last.physical + last.length == first.raw() => last.length += ratio,
            _ => runs.push(Run { logical, physical: first.raw(), length: ratio, unwritten: false }),
        }
        logical += ratio;
    }
    let number = InodeNr::JOURNAL;
    let mut slot = ed.slot(number)?;
    slot.bytes_mut().fill(0);
    let room = u64_from_usize(slot.bytes().len()) - 128;
    slot.set_extra_isize(if room >= 32 { 32 } else { 0 });
    let raw = slot.raw_mut();
    raw.i_mode = U16::new(FileType::Regular.mode_bits() | 0o600);
    raw.i_links_count = U16::new(1);
    raw.set_size(logical << volume.geometry.block_bits());
    if volume.incompat.contains(Incompat::EXTENTS) {
        raw.set_flags(InodeFlags::EXTENTS);
    }
    if maps::write(ed, number, &mut slot, &runs)?.is_err() {
        return Ok(tell_no_space(ed));
    }
    let journal =
        RawJournalSuperblock::new_empty(volume.block_size(), u32_from_u64(logical), volume.sb.s_uuid);
    let mut block = empty;
    block[..RawJournalSuperblock::SIZE].copy_from_slice(journal.as_bytes());
    ed.put_block(BlockNr::new(runs[0].physical), &block)?;
    ed.put_slot(number, &mut slot)?;
    ed.change_superblock(|sb| {
        sb.set_compat(sb.compat() | Compat::HAS_JOURNAL);
        sb.s_journal_inum = U32::new(number.raw());
    })?;
    debug_assert!(RawJournalSuperblock::read_from_prefix(&block).is_ok(), "a block holds it");
    ed.add(
        Code::JOURNAL_INODE,
        Site::inode(number),
        Cost::Nothing,
        format!("journal of {logical} blocks created"),
    );
    Ok(true)
}

/// Reports that there is no space. Returns true: the passes must run again, and then the blocks
/// that were allocated for the journal count as free.
fn tell_no_space(ed: &mut Editor<'_, '_>) -> bool {
    ed.add(Code::JOURNAL_INODE, Site::inode(InodeNr::JOURNAL), Cost::Nothing, "no space for a journal");
    true
}
