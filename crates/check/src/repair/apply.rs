//! Writes a plan: first what nothing refers to yet, last the superblock.
//!
//! The order, with a flush after each step:
//! 1. Replay the journal, or the good part of a damaged log. Then finish an interrupted repair.
//! 2. Write the fresh blocks, which were free before. Write a redo log of all other changed blocks
//!    into blocks that are free (`redo.rs`).
//! 3. Mark the file system as not clean in the superblock, and name the redo log there.
//! 4. Write all other blocks, and then an external journal.
//! 5. Write the superblock. It marks the file system clean, unless the plan leaves errors.
//!
//! If the power is cut before the superblock names the redo log, a second repair finds what the
//! first one found. If the power is cut later, the second repair finishes what the first one began.
//!
//! If a redo log would be too large, if there is too little free space for it, or if the plan
//! leaves errors, the blocks are written without a log. Fresh blocks are still written before the
//! blocks that refer to them. So after a power cut, a second repair can still find an inode that
//! lost its name. But if the repair swaps the contents of blocks, a power cut can destroy them.

use std::collections::BTreeSet;
use std::time::UNIX_EPOCH;

use blockyard_device::{BlockDevice, DeviceError, OverlayDevice};
use blockyard_disk::group_desc::{GroupFlags, RawGroupDesc};
use blockyard_disk::num::{u32_from_u64, u64_from_u32, u64_from_usize, usize_from_u64};
use blockyard_disk::superblock::{FsState, PRIMARY_OFFSET, RawSuperblock};
use blockyard_disk::{BlockCount, ClusterOffset, Compat, Incompat, bitmap};
use blockyard_recovery::{OnDamage, Options, Session};

use super::Plan;
use super::editor::{change_superblock, sound_superblock};
use super::marks;
use super::redo::Redo;
use super::round;
use crate::backup::{self, Backup};
use crate::code::Code;
use crate::finding::{Finding, Sink};
use crate::replay::asks_for_recovery;
use crate::superblock::{self, Opened};
use crate::volume::Volume;
use crate::{descriptors, journal};

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Blocks of the file system that were changed, as [`Plan::changed_blocks`] counts them: with
    /// those of a journal replay, without those of the redo log.
    pub blocks: u64,
}

impl Plan<'_> {
    /// The numbers of the blocks that [`apply`](Self::apply) would change on `device`, in ascending
    /// order, without those of the redo log. The list is empty if there is nothing to do
    /// ([`is_empty`](Self::is_empty)), and also if the device has no file system. [`Plan::before`]
    /// tells which of the two it is.
    ///
    /// # Errors
    /// Those of the devices.
    pub fn changed_blocks(&self, device: &dyn BlockDevice) -> Result<Vec<u64>, DeviceError> {
        let size = 1u64 << self.block_bits;
        let (mut old, mut new) = (vec![0; usize_from_u64(size)], vec![0; usize_from_u64(size)]);
        let mut changed = Vec::new();
        let mut next = 0;
        for range in self.overlay.dirty_ranges() {
            let (first, end) = ((range.start >> self.block_bits).max(next), range.end.div_ceil(size));
            for block in first..end {
                let at = block << self.block_bits;
                let length = usize_from_u64(size.min(device.size() - at));
                device.read_at(at, &mut old[..length])?;
                self.overlay.read_at(at, &mut new[..length])?;
                if old[..length] != new[..length] {
                    changed.push(block);
                }
            }
            next = end.max(next);
        }
        Ok(changed)
    }

    /// Carries out the plan on the device that it was made for.
    ///
    /// # Errors
    /// Those of the device. After an error, the device may hold a part of the repair, and has to be
    /// repaired again.
    ///
    /// # Panics
    /// When the plan has something to do and was made with an external journal.
    pub fn apply(&self, device: &dyn BlockDevice) -> Result<Applied, DeviceError> {
        self.apply_with_journal(device, None)
    }

    /// As [`apply`](Self::apply), for a plan that was made with an external journal.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    ///
    /// # Panics
    /// When the plan has something to do, and was made with an external journal but none is given,
    /// or the other way round.
    pub fn apply_with_journal(
        &self,
        device: &dyn BlockDevice,
        journal: Option<&dyn BlockDevice>,
    ) -> Result<Applied, DeviceError> {
        if self.is_empty() {
            return Ok(Applied::default());
        }
        assert_eq!(journal.is_some(), self.journal.is_some(), "the plan was made with other devices");
        let mut changed = self.changed_blocks(device)?;
        let blocks = u64_from_usize(changed.len());
        self.replay(device, journal);
        if let Some(redo) = Redo::of(device).filter(|_| self.is_resumed) {
            redo.carry_out_in_place(device)?;
        }
        if self.is_replayed || self.is_resumed {
            changed = self.changed_blocks(device)?;
        }
        let fresh: BTreeSet<u64> = self.fresh.iter().copied().collect();
        let superblock = PRIMARY_OFFSET >> self.block_bits;
        let (new, rest): (Vec<u64>, Vec<u64>) =
            changed.iter().filter(|block| **block != superblock).partition(|block| fresh.contains(block));
        let places = self.places(rest.len());
        if places.is_empty() {
            mark_unclean(device)?;
        }
        for block in new {
            self.write(device, block)?;
        }
        if places.is_empty() {
            device.flush()?;
        } else {
            self.keep(device, &rest, &places)?;
        }
        for block in rest {
            self.write(device, block)?;
        }
        device.flush()?;
        if let Some(journal) = journal {
            self.write_journal(journal)?;
        }
        self.write(device, superblock)?;
        device.flush()?;
        Ok(Applied { blocks })
    }

    /// If the check found nothing to repair, records the time of the check, and that the file
    /// system was not mounted since. For a plan that is not empty, [`apply`](Self::apply) does so.
    /// No undo file covers this write. Returns whether anything was recorded.
    ///
    /// # Errors
    /// Those of the device.
    pub fn record_check(&self, device: &dyn BlockDevice, now: u64) -> Result<bool, DeviceError> {
        let is_checked = self.is_empty() && self.before.examined && self.before.is_clean();
        let is_recorded = is_checked && sound_superblock(device).is_some() && !asks_for_recovery(device);
        if is_recorded {
            change_superblock(device, |sb| marks::mark_checked(sb, now))?;
            device.flush()?;
        }
        Ok(is_recorded)
    }

    /// Writes what `-p` writes when it stops without a repair: replays the journal (or the good
    /// part of a damaged log), and records in the superblock that there are errors.
    ///
    /// # Errors
    /// Those of the device.
    pub fn stop(
        &self,
        device: &dyn BlockDevice,
        journal: Option<&dyn BlockDevice>,
    ) -> Result<(), DeviceError> {
        self.replay(device, journal);
        if sound_superblock(device).is_some() {
            change_superblock(device, |sb| sb.set_state(sb.state() | FsState::ERROR))?;
            device.flush()?;
        }
        Ok(())
    }

    /// Replays the journal if the plan does so.
    fn replay(&self, device: &dyn BlockDevice, journal: Option<&dyn BlockDevice>) {
        if !self.is_replayed {
            return;
        }
        let options = Options { on_damage: OnDamage::ReplayGood, ..Options::default() };
        let session = match journal {
            Some(journal) => Session::open_with_journal(device, journal),
            None => Session::open(device),
        };
        // A replay that worked in memory should work on the device. If it fails, the journal still
        // needs recovery, and the blocks of the plan include what the replay would have written.
        let _ = session.and_then(|session| session.replay(&options));
    }

    /// Discards the space that is free after the plan was carried out, except in groups marked
    /// BLOCK_UNINIT. Does nothing if the result is not clean.
    ///
    /// # Errors
    /// Those of the device.
    pub fn discard_free(&self, device: &dyn BlockDevice) -> Result<(), DeviceError> {
        if !self.is_complete() {
            return Ok(());
        }
        let mut sink = crate::finding::Sink::default();
        let Ok(Opened::Volume(mut volume)) = superblock::open(device, &mut sink) else { return Ok(()) };
        descriptors::load(&mut volume, &mut sink);
        let geometry = &volume.geometry;
        // Taken from the file system, because an empty plan has no valid `block_bits`.
        let bits = geometry.block_bits();
        for (group, known) in geometry.all_groups().zip(&volume.groups) {
            if known.flags.contains(GroupFlags::BLOCK_UNINIT) {
                continue;
            }
            let bitmap = volume.block(known.desc.block_bitmap())?;
            for run in bitmap::clear_runs(&bitmap, 0..geometry.clusters_in_group(group)) {
                let first = geometry.block_at(group, ClusterOffset::new(run.start)).raw();
                // The last cluster may reach beyond the last block.
                let blocks = u64_from_u32(run.end - run.start) << geometry.cluster_ratio_bits();
                let end = (first + blocks).min(geometry.blocks_count().raw());
                device.discard(first << bits, (end - first) << bits)?;
            }
        }
        Ok(())
    }

    /// Writes the changes of an external journal, which the plan emptied. Called after what the
    /// journal held became durable in the file system.
    fn write_journal(&self, device: &dyn BlockDevice) -> Result<(), DeviceError> {
        let Some(journal) = &self.journal else { return Ok(()) };
        assert_eq!(journal.size(), device.size(), "the journal that the plan was made with");
        for range in journal.dirty_ranges() {
            let mut bytes = vec![0; usize_from_u64(range.end - range.start)];
            journal.read_at(range.start, &mut bytes)?;
            device.write_at(range.start, &bytes)?;
        }
        device.flush()
    }

    pub(super) fn write(&self, device: &dyn BlockDevice, block: u64) -> Result<(), DeviceError> {
        let size = 1u64 << self.block_bits;
        let at = block << self.block_bits;
        let mut bytes = vec![0; usize_from_u64(size.min(device.size() - at))];
        self.overlay.read_at(at, &mut bytes)?;
        device.write_at(at, &bytes)
    }
}

/// Whether nothing has to be checked. The superblock must say that the file system was closed
/// cleanly, without errors, without a journal to replay, without orphans, and that no periodic
/// check is due. What e2fsck checks even then must be sound: the fields of the superblock, the
/// descriptors and their counts, the features of the backup in group 1, the MMP block and the head
/// of an internal journal.
#[must_use]
pub fn is_marked_clean(device: &dyn BlockDevice) -> bool {
    let Some(sb) = sound_superblock(device) else { return false };
    sb.state().contains(FsState::VALID)
        && !sb.state().contains(FsState::ERROR)
        && !sb.incompat().contains(Incompat::RECOVER)
        && !marks::has_orphans(&sb)
        && !is_check_due(&sb)
        && has_sound_head(device)
}

/// Whether a periodic check is due, by the number of mounts or by the time since the last check.
fn is_check_due(sb: &RawSuperblock) -> bool {
    // A maximum of 0 or below means never.
    let is_limited = (1..=i16::MAX.unsigned_abs()).contains(&sb.s_max_mnt_count.get());
    let interval = u64_from_u32(sb.s_checkinterval.get());
    let now = UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
    let since = now.checked_sub(sb.check_time());
    is_limited && sb.s_mnt_count.get() >= sb.s_max_mnt_count.get()
        || interval > 0 && since.is_none_or(|since| since >= interval)
}

/// Whether [`is_marked_clean`] will hold once the journal is replayed. The replay is tried in
/// memory. Returns false if there is nothing to replay, or if the log is damaged.
#[must_use]
pub fn is_clean_once_replayed(device: &dyn BlockDevice, journal: Option<&dyn BlockDevice>) -> bool {
    if !asks_for_recovery(device) {
        return false;
    }
    let image = OverlayDevice::new(device);
    let journal = journal.map(OverlayDevice::new);
    let session = match &journal {
        Some(journal) => Session::open_with_journal(&image, journal),
        None => Session::open(&image),
    };
    session.and_then(|session| session.replay(&Options::default())).is_ok() && is_marked_clean(&image)
}

/// Corrects the totals of the superblock, which Linux does not keep up to date, for a file system
/// that is not checked because it is marked clean.
///
/// # Errors
/// Those of the device.
pub fn refresh_totals(device: &dyn BlockDevice) -> Result<(), DeviceError> {
    let mut sink = Sink::default();
    let Ok(Opened::Volume(mut volume)) = superblock::open(device, &mut sink) else { return Ok(()) };
    if !descriptors::load(&mut volume, &mut sink) || !has_possible_counts(&volume) {
        return Ok(());
    }
    let sum = |count: fn(&RawGroupDesc) -> u32| -> u64 {
        volume.groups.iter().map(|group| u64_from_u32(count(&group.desc))).sum()
    };
    let clusters = sum(RawGroupDesc::free_clusters);
    let blocks = BlockCount::new(clusters << volume.geometry.cluster_ratio_bits());
    let inodes = u32_from_u64(sum(RawGroupDesc::free_inodes));
    if volume.sb.free_blocks_count() != blocks || volume.sb.s_free_inodes_count.get() != inodes {
        change_superblock(device, |sb| {
            sb.set_free_blocks_count(blocks);
            sb.s_free_inodes_count.set(inodes);
        })?;
        device.flush()?;
    }
    Ok(())
}

/// Whether nothing that is checked before pass 1 is a reason for a full check.
fn has_sound_head(device: &dyn BlockDevice) -> bool {
    let mut sink = Sink::default();
    let Ok(Opened::Volume(mut volume)) = superblock::open(device, &mut sink) else { return false };
    let loaded = descriptors::load(&mut volume, &mut sink) && !volume.groups.is_empty();
    if !loaded || !superblock::check_values(&volume, &mut sink).unwrap_or(false) {
        return false;
    }
    // An external journal is not given here, so it cannot be checked.
    let is_external = volume.compat.contains(Compat::HAS_JOURNAL) && volume.sb.s_journal_uuid != [0; 16];
    if !is_external {
        journal::check(&volume, None, &mut sink);
    }
    descriptors::check_mmp(&volume, &mut sink);
    has_possible_counts(&volume)
        && has_features_of_backup(&volume)
        && !sink.into_findings().iter().any(is_reason_to_check)
}

/// Whether a finding from before pass 1 is a reason for a full check.
fn is_reason_to_check(finding: &Finding) -> bool {
    match finding.code {
        // A clock that is wrong must not cost a check at every boot.
        Code::MOUNT_TIME_FUTURE | Code::WRITE_TIME_FUTURE => false,
        _ => finding.is_error() || round::is_mended(finding),
    }
}

/// Whether all counts of free blocks, free inodes and directories, in the superblock and in the
/// descriptors, are possible: none is larger than its maximum.
fn has_possible_counts(volume: &Volume<'_>) -> bool {
    let (sb, geometry) = (&volume.sb, &volume.geometry);
    let inodes = geometry.inodes_per_group();
    let mut groups = geometry.all_groups().zip(&volume.groups);
    sb.free_blocks_count() <= geometry.blocks_count()
        && sb.s_free_inodes_count.get() <= geometry.inodes_count()
        && groups.all(|(group, known)| {
            let desc = &known.desc;
            desc.free_clusters() <= geometry.clusters_in_group(group)
                && desc.free_inodes() <= inodes
                && desc.used_dirs() <= inodes
        })
}

/// Whether the backup of group 1 has the features of the superblock, apart from those that
/// [`descriptors::has_other_features`] ignores. Also true if this file system has no backup there.
fn has_features_of_backup(volume: &Volume<'_>) -> bool {
    let of_this = |copy: &Backup| copy.superblock().s_uuid == volume.sb.s_uuid;
    backup::of(volume)
        .filter(of_this)
        .is_none_or(|copy| !descriptors::has_other_features(&volume.sb, copy.superblock()))
}

/// Marks the file system as not clean, if the superblock is sound.
fn mark_unclean(device: &dyn BlockDevice) -> Result<(), DeviceError> {
    if sound_superblock(device).is_some() {
        change_superblock(device, |sb| sb.set_state(sb.state().difference(FsState::VALID)))?;
        device.flush()?;
    }
    Ok(())
}
