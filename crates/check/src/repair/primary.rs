//! Which superblock and descriptors a repair goes on with, if the primary ones cannot be used:
//! those that the user names, those of a backup, the primary ones with a new checksum, or inferred
//! ones.

use std::collections::BTreeSet;

use blockyard_device::{BlockDevice, OverlayDevice};
use blockyard_disk::inode::InodeSlot;
use blockyard_disk::superblock::{MAGIC, PRIMARY_OFFSET, RawSuperblock};
use blockyard_disk::{InodeNr, RoCompat};
use zerocopy::FromBytes;

use super::bitmaps;
use super::constants;
use super::editor;
use super::head;
use super::infer;
use super::landmark::{self, is_sound_directory};
use super::log::{Cost, Log, RewriteAll};
use super::round::Round;
use crate::backup::{self, Backup};
use crate::code::Code;
use crate::finding::{Sink, Site};
use crate::superblock::{self, Opened};
use crate::volume::{Group, Volume};
use crate::{Error, Place, descriptors};

/// The only known value of `s_checksum_type`.
const CRC32C: u8 = 1;

impl Round<'_> {
    /// Takes the superblock that the user names.
    pub(super) fn take_superblock(&self, place: Place, log: &mut Log) -> Result<(), Error> {
        let Place { block, block_size } = place;
        let unusable = Error::NoSuperblock { block, block_size };
        match backup::at(self.device, place) {
            Some(backup) if self.take(&backup, log, Code::SUPERBLOCK_BACKUP)? => Ok(()),
            _ => Err(unusable),
        }
    }

    /// Replaces an unusable primary superblock: by the backup that is trusted most, by itself with
    /// a new checksum, or by an inferred one. False if none is usable, or if the user declines.
    pub(super) fn take_any_backup(&self, log: &mut Log) -> Result<bool, Error> {
        let is_declined =
            [Code::SUPERBLOCK_BACKUP, Code::SUPERBLOCK_BAD].iter().any(|code| !log.accepts(*code));
        if log.rewrite_all == RewriteAll::Yes || is_declined {
            return Ok(false);
        }
        let primary = self.stored_superblock()?;
        let usual = backup::by_trust(backup::all(self.device), &primary);
        let (rooted, unrooted): (Vec<Backup>, Vec<Backup>) =
            usual.into_iter().partition(|copy| self.leads_to_root(copy));
        if self.take_first(&rooted, log)? {
            return Ok(true);
        }
        // Backups that lead to no root may be left over from an older file system, unless the
        // primary superblock has their UUID.
        let (own, unrooted): (Vec<Backup>, Vec<Backup>) =
            unrooted.into_iter().partition(|copy| copy.superblock().s_uuid == primary.s_uuid);
        if self.take_first(&own, log)? {
            return Ok(true);
        }
        let made = |copy: &Backup| copy.superblock().s_mkfs_time.get();
        let youngest = unrooted.iter().map(made).max().unwrap_or(0);
        let copies = backup::scattered(self.device).into_iter();
        let (rooted, copies): (Vec<Backup>, Vec<Backup>) =
            copies.partition(|copy| copy.is_at_home() && made(copy) >= youngest && self.leads_to_root(copy));
        if self.take_first(&rooted, log)? || self.take_first(&unrooted, log)? {
            return Ok(true);
        }
        let (likely, others): (Vec<Backup>, Vec<Backup>) =
            copies.into_iter().partition(|copy| self.is_described(copy));
        // If the primary superblock is taken with a new checksum, the size of its groups may be a
        // guess. A backup has the real size, so this file system's own backups come first.
        let (own, likely): (Vec<Backup>, Vec<Backup>) = likely
            .into_iter()
            .partition(|copy| copy.is_at_home() && copy.superblock().s_uuid == primary.s_uuid);
        if self.take_first(&own, log)? || self.seal_primary(log)? {
            return Ok(true);
        }
        Ok(self.take_first(&likely, log)? || self.take_first(&others, log)? || self.infer(log)?)
    }

    /// Takes the first of these backups that is usable; false if none is. Backups that lead to a
    /// root come first, and of these the ones of the youngest file system: others may be left over
    /// from an older one.
    fn take_first(&self, backups: &[Backup], log: &mut Log) -> Result<bool, Error> {
        let trust = |backup: &&Backup| {
            let is_rooted = self.leads_to_root(backup);
            let made = if is_rooted { backup.superblock().s_mkfs_time.get() } else { 0 };
            (!is_rooted, std::cmp::Reverse(made))
        };
        let mut ordered: Vec<&Backup> = backups.iter().collect();
        ordered.sort_by_cached_key(trust);
        for backup in ordered {
            if self.take(backup, log, Code::SUPERBLOCK_BACKUP)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn leads_to_root(&self, backup: &Backup) -> bool {
        let Some(overlay) = backup.laid_over(self.device) else { return false };
        let Ok(Opened::Volume(mut volume)) = superblock::open(&overlay, &mut Sink::default()) else {
            return false;
        };
        debug_assert_eq!(volume.sb.s_uuid, backup.superblock().s_uuid, "another superblock than the backup");
        backup.lay_descriptors(&volume, &overlay);
        landmark::has_root(&mut volume)
    }

    /// What is in the place of the primary superblock.
    fn stored_superblock(&self) -> Result<RawSuperblock, Error> {
        let mut bytes = [0; RawSuperblock::SIZE];
        self.device.read_at(PRIMARY_OFFSET, &mut bytes)?;
        Ok(RawSuperblock::read_from_bytes(&bytes).expect("1024 bytes are a superblock"))
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
        log.is_inferred = true;
        Ok(true)
    }

    /// Whether a backup must not be used because its UUID or checksum seed differs from the primary
    /// superblock's and is not proved right: with a wrong seed, every inode would look damaged. It
    /// is proved right if no more of the backup's descriptors have wrong checksums than of the
    /// primary ones (`unsealed_here`). A backup that cannot be opened proves nothing.
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

    /// The first backup with sound descriptors, or else the first of those whose descriptors have
    /// the fewest faults. Foreign ones are left out. e2fsck always takes the first backup.
    pub(super) fn best_backup(&self, volume: &Volume<'_>) -> Option<Backup> {
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

    /// How many faults the descriptors behind a copy of the superblock have: groups with misplaced
    /// bitmaps or tables, and wrong checksums. 0 if [`descriptors::load`] accepts the descriptors,
    /// `usize::MAX` if they or the copy cannot be read.
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

    /// Takes the primary superblock with a new checksum: it may be good except for magic, checksum
    /// or a constant. Returns false if its descriptors and a directory do not confirm that.
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

    /// The block sizes that the primary superblock may mean, as stored: its block size and, without
    /// bigalloc, its cluster size, which should then be the same.
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
    pub(super) fn take(&self, backup: &Backup, log: &mut Log, code: Code) -> Result<bool, Error> {
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
            editor::change_superblock(self.device, |sb| {
                constants::make_possible(sb, size);
            })?;
        }
        Ok(())
    }
}

/// Gives the primary superblock its magic, this block size, possible constants and a checksum, and
/// clears inode numbers of features that are off. Returns whether descriptors and a directory
/// confirm it.
fn seal(device: &dyn BlockDevice, log_block_size: u32) -> Result<bool, Error> {
    let (size, mut inodes_per_group, mut is_sized) = (device.size(), 0, false);
    editor::change_superblock(device, |sb| {
        inodes_per_group = sb.s_inodes_per_group.get();
        sb.s_magic.set(MAGIC);
        sb.s_checksum_type = if sb.ro_compat().contains(RoCompat::METADATA_CSUM) { CRC32C } else { 0 };
        sb.s_log_block_size.set(log_block_size);
        head::clear_names(sb);
        is_sized = constants::make_possible(sb, size);
    })?;
    if !is_sized {
        return Ok(false);
    }
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
    // The root or lost+found must confirm the block size: with another one, the same descriptors
    // lead to other inodes.
    let lost_found = InodeNr::new(volume.first_inode());
    let is_confirmed = |inode: InodeNr| {
        let bytes =
            (inode.raw() <= volume.geometry.inodes_count()).then(|| volume.inode(inode).ok()).flatten();
        bytes.is_some_and(|bytes| is_sound_directory(&volume, inode, &InodeSlot::new(&bytes[..])))
    };
    Ok([InodeNr::ROOT, lost_found].into_iter().any(is_confirmed))
}

/// How many descriptors have wrong checksums.
fn unsealed(volume: &Volume<'_>) -> usize {
    volume.groups.iter().filter(|group| !group.is_sealed).count()
}
