//! Fields of the superblock that are corrected before anything else is read. If one of them is
//! wrong, sound files look wrong, and their repair would lose them. e2fsck trusts most of these
//! fields.

mod features;

use blockyard_device::{BlockDevice, OverlayDevice};
use blockyard_disk::inode::{FileType, InodeSlot};
use blockyard_disk::num::{low16, u32_from_u64, u64_from_u32};
use blockyard_disk::superblock::{MAGIC, PRIMARY_OFFSET, RawSuperblock, bounds};
use blockyard_disk::{BlockCount, BlockNr, Checksums, Compat, Incompat, InodeNr, RoCompat};
use zerocopy::FromBytes;

use super::constants;
use super::editor;
use super::landmark;
use super::log::{Cost, Log};
use super::redo::Redo;
use crate::code::Code;
use crate::finding::{Finding, Sink, Site};
use crate::superblock::{self, Opened};
use crate::volume::Volume;
use crate::{Error, Report, backup, descriptors};

/// The first ordinary inode of every known file system.
const FIRST_INODE: u32 = 11;

/// An overlay of an image, in which an interrupted repair is finished from its redo log. If the
/// image is not clean, or its features contradict each other, the fields of its superblock are
/// corrected.
pub(super) fn overlay<'a>(
    device: &'a dyn BlockDevice,
    redo: Option<&Redo>,
    before: &Report,
    log: &mut Log,
) -> Result<OverlayDevice<&'a dyn BlockDevice>, Error> {
    let overlay = OverlayDevice::new(device);
    if let Some(redo) = redo {
        redo.carry_out(device, &overlay)?;
    }
    if before.is_clean() && !before.findings.iter().any(|finding| is_contradiction(finding.code)) {
        return Ok(overlay);
    }
    let Some(sb) = primary(&overlay) else { return Ok(overlay) };
    settle_features(&overlay, before, log)?;
    if log.accepts(Code::REVISION_LOW) && constants::has_lost_revision(&sb) {
        editor::change_superblock(&overlay, |sb| sb.s_rev_level.set(1))?;
        log.add(
            Code::REVISION_LOW,
            Site::NOWHERE,
            Cost::Nothing,
            "revision set to 1, as inodes of this size need",
        );
    }
    if log.accepts(Code::EXTERNAL_JOURNAL) && has_stray_journal_uuid(&sb) {
        editor::change_superblock(&overlay, |sb| sb.s_journal_uuid = [0; 16])?;
        let what = "UUID of a journal device cleared: the journal has an inode";
        log.add(Code::EXTERNAL_JOURNAL, Site::NOWHERE, Cost::Nothing, what);
    }
    if !log.accepts(Code::SUPERBLOCK_CONSTANT) {
        return Ok(overlay);
    }
    features::settle(&overlay, log)?;
    if let Some(blocks) = blocks_of_backups(device, &sb).filter(|_| log.accepts(Code::DEVICE_SHORT)) {
        editor::change_superblock(&overlay, |sb| sb.set_blocks_count(BlockCount::new(blocks)))?;
        let what = format!("block count set to {blocks}, as in the backups");
        log.add(Code::DEVICE_SHORT, Site::NOWHERE, Cost::Nothing, what);
    }
    if let Some(size) = inode_size(&overlay, &sb)? {
        editor::change_superblock(&overlay, |sb| sb.s_inode_size.set(size))?;
        let what = format!("inode size set to {size}: then the root is where it should be");
        log.add(Code::SUPERBLOCK_CONSTANT, Site::NOWHERE, Cost::Nothing, what);
    }
    if let Some((first, who)) = first_inode(device, &overlay, &sb)? {
        editor::change_superblock(&overlay, |sb| sb.s_first_ino.set(first))?;
        let what = format!("first ordinary inode set to {first}: {who}");
        log.add(Code::SUPERBLOCK_CONSTANT, Site::NOWHERE, Cost::Nothing, what);
    }
    if let Some(count) = reserved_descriptors(device, &overlay, &sb)? {
        editor::change_superblock(&overlay, |sb| sb.s_reserved_gdt_blocks.set(count))?;
        let what =
            format!("reserved descriptor blocks set to {count}: bitmaps and the inode table follow them");
        log.add(Code::SUPERBLOCK_CONSTANT, Site::NOWHERE, Cost::Nothing, what);
    }
    // The inode numbers of features that are off are cleared only if the superblock's checksum is
    // right. With a wrong checksum, other fields may be wrong too, and a backup should replace the
    // superblock. But clearing the numbers would make the checksum right, and then no backup would
    // be used. Without a backup, `seal` in `primary.rs` clears them.
    let is_sealed = |sb: &RawSuperblock| Checksums::of(sb).verify_superblock(sb).is_ok();
    if primary(&overlay).is_some_and(|sb| is_sealed(&sb) && names_files(&sb)) {
        editor::change_superblock(&overlay, clear_names)?;
        let what = "inode numbers of features that are off cleared";
        log.add(Code::SUPERBLOCK_CONSTANT, Site::NOWHERE, Cost::Nothing, what);
    }
    Ok(overlay)
}

/// Whether a finding says that features contradict each other, and the repair settles that before
/// anything else is read.
pub(super) fn is_contradiction(code: Code) -> bool {
    matches!(code, Code::WIDE_WITHOUT_EXTENTS | Code::JOURNAL_WITHOUT_FEATURE | Code::SEED_WITHOUT_CHECKSUMS)
}

/// Settles features that contradict each other, as e2fsck does.
fn settle_features(
    overlay: &OverlayDevice<&dyn BlockDevice>,
    before: &Report,
    log: &mut Log,
) -> Result<(), Error> {
    let found = before.findings.iter().map(|finding| finding.code);
    for code in found.filter(|code| is_contradiction(*code)) {
        if !log.accepts(code) {
            continue;
        }
        let what = match code {
            Code::WIDE_WITHOUT_EXTENTS => "feature extents set",
            Code::JOURNAL_WITHOUT_FEATURE => "number of the journal's inode cleared",
            _ => "feature metadata_csum_seed removed",
        };
        editor::change_superblock(overlay, |sb| match code {
            Code::WIDE_WITHOUT_EXTENTS => sb.set_incompat(sb.incompat() | Incompat::EXTENTS),
            Code::JOURNAL_WITHOUT_FEATURE => sb.s_journal_inum.set(0),
            _ => sb.set_incompat(sb.incompat().difference(Incompat::CSUM_SEED)),
        })?;
        log.add(code, Site::NOWHERE, Cost::Nothing, what);
    }
    Ok(())
}

/// The finding of a wrong number of inodes, if nothing else makes the primary superblock unusable:
/// the total does not fit the groups, or a group has more inodes than its bitmap has bits. e2fsck
/// -p stops at such a number, and e2fsck without -p takes a backup. A total of zero inodes does not
/// count.
pub(super) fn miscounted(device: &dyn BlockDevice) -> Result<Option<Finding>, Error> {
    let mut sink = Sink::default();
    if matches!(superblock::open(device, &mut sink)?, Opened::Volume(_)) {
        return Ok(None);
    }
    let counted = primary(device).filter(|sb| sb.s_inodes_count.get() > 0);
    let Some(mut sb) = counted else { return Ok(None) };
    let bits = bits_of_bitmap(&sb);
    let is_wide = bits.is_some_and(|bits| sb.s_inodes_per_group.get() > bits);
    let code = if is_wide { Code::SUPERBLOCK_CONSTANT } else { Code::INODES_COUNT };
    let mut findings = sink.into_findings().into_iter();
    let Some(finding) = findings.find(|finding| finding.code == code) else { return Ok(None) };
    if let Some(bits) = bits.filter(|_| is_wide && is_believed(&sb)) {
        sb.s_inodes_per_group.set(bits);
    }
    let Ok(geometry) = bounds::geometry(&sb) else { return Ok(None) };
    debug_assert!(bits.is_some_and(|bits| geometry.inodes_per_group() <= bits), "more inodes than bits");
    let trial = OverlayDevice::new(device);
    editor::change_superblock(&trial, |raw| {
        raw.s_inodes_per_group = sb.s_inodes_per_group;
        raw.s_inodes_count.set(geometry.inodes_count());
    })?;
    let usable = match superblock::open(&trial, &mut Sink::default())? {
        Opened::Volume(volume) => superblock::check_values(&volume, &mut Sink::default())?,
        Opened::Corrupt | Opened::Unusable => false,
    };
    Ok(usable.then_some(finding))
}

/// The number of bits of a bitmap, which is one block; `None` for an impossible block size.
fn bits_of_bitmap(sb: &RawSuperblock) -> Option<u32> {
    let log = Some(sb.s_log_block_size.get()).filter(|log| *log <= 6)?;
    Some(8 << (10 + log))
}

/// Whether e2fsck accepts the number of inodes per group, although a bitmap may be too small for
/// them. The table must leave at least four blocks of the group, and the number may be at most 2^16
/// minus the number of inodes in one block.
fn is_believed(sb: &RawSuperblock) -> bool {
    let size = if sb.s_rev_level.get() == 0 { 128 } else { u32::from(sb.s_inode_size.get()) };
    let Some(in_block) = bits_of_bitmap(sb).and_then(|bits| (bits / 8).checked_div(size)) else {
        return false;
    };
    let table = u64::from(sb.s_blocks_per_group.get().saturating_sub(4)) * u64::from(in_block);
    let most = u64::from((1u32 << 16).saturating_sub(in_block));
    u64::from(sb.s_inodes_per_group.get()) <= table.min(most)
}

fn primary(device: &dyn BlockDevice) -> Option<RawSuperblock> {
    let mut bytes = [0; RawSuperblock::SIZE];
    device.read_at(PRIMARY_OFFSET, &mut bytes).ok()?;
    RawSuperblock::read_from_bytes(&bytes).ok().filter(|sb| sb.s_magic.get() == MAGIC)
}

/// Whether the superblock names a journal device that the file system does not use.
pub(super) fn names_no_journal_device(device: &dyn BlockDevice) -> bool {
    primary(device).is_some_and(|sb| has_stray_journal_uuid(&sb))
}

/// Whether a superblock names a journal device although its journal is in an inode: it also names
/// that inode, and has a copy of the inode's map.
fn has_stray_journal_uuid(sb: &RawSuperblock) -> bool {
    sb.compat().contains(Compat::HAS_JOURNAL)
        && sb.s_journal_uuid != [0; 16]
        && sb.s_journal_inum.get() != 0
        && sb.s_jnl_blocks[0].get() != 0
}

/// The first backup with the UUID of this very file system. The superblock says where groups begin;
/// if it cannot be opened, they are taken to have the usual size.
fn own_backup(device: &dyn BlockDevice, sb: &RawSuperblock) -> Option<RawSuperblock> {
    let copies = match superblock::open(device, &mut Sink::default()) {
        Ok(Opened::Volume(volume)) => backup::all_of(&volume),
        _ => backup::all(device),
    };
    copies.iter().map(|copy| *copy.superblock()).find(|copy| copy.s_uuid == sb.s_uuid)
}

/// The number of blocks in a backup of this very file system, if the superblock claims more blocks
/// than the device has but the backup does not. Then the superblock's field is wrong, and the
/// device was not cut short.
fn blocks_of_backups(device: &dyn BlockDevice, sb: &RawSuperblock) -> Option<u64> {
    let room = device.size() >> 10u32.checked_add(sb.s_log_block_size.get()).filter(|bits| *bits <= 16)?;
    if sb.blocks_count().raw() <= room {
        return None;
    }
    let same = own_backup(device, sb).filter(|copy| copy.s_log_block_size == sb.s_log_block_size);
    let blocks = same?.blocks_count().raw();
    (blocks > 0 && blocks <= room).then_some(blocks)
}

/// Size in bytes that the backups claim, for a superblock that cannot be used. `None` if they do
/// not agree: an older file system may have left some.
pub(super) fn bytes_of_backup(device: &dyn BlockDevice) -> Option<u64> {
    let bytes_by = |backup: &backup::Backup| {
        let sb = backup.superblock();
        sb.blocks_count().raw().checked_mul(1024 << sb.s_log_block_size.get())
    };
    let backups = backup::all(device);
    let bytes = bytes_by(backups.first()?)?;
    backups.iter().all(|backup| bytes_by(backup) == Some(bytes)).then_some(bytes)
}

/// Size in bytes that the superblock claims, or a backup if only the backup's size fits the device.
pub(super) fn claimed_bytes(device: &dyn BlockDevice) -> Option<u64> {
    let sb = primary(device)?;
    let bits = 10u32.checked_add(sb.s_log_block_size.get()).filter(|bits| *bits <= 16)?;
    let blocks = blocks_of_backups(device, &sb).unwrap_or(sb.blocks_count().raw());
    blocks.checked_mul(1 << bits)
}

/// The right size of inodes, if the root is not found with the size in the superblock, and is found
/// with exactly one other size.
fn inode_size(overlay: &dyn BlockDevice, sb: &RawSuperblock) -> Result<Option<u16>, Error> {
    if sb.s_rev_level.get() == 0 || landmark::leads_to_root(overlay) {
        return Ok(None);
    }
    let mut right = Vec::new();
    for bits in 7..=10u32.saturating_add(sb.s_log_block_size.get()).min(15) {
        let size = 1u16 << bits;
        debug_assert!(size.is_power_of_two() && size >= 128, "{size} bytes for an inode");
        let trial = OverlayDevice::new(overlay);
        editor::change_superblock(&trial, |sb| sb.s_inode_size.set(size))?;
        if size != sb.s_inode_size.get() && landmark::leads_to_root(&trial) {
            right.push(size);
        }
    }
    Ok(if let [size] = right[..] { Some(size) } else { None })
}

/// The first ordinary inode and the evidence for it, if it is lower than the superblock says. With
/// the superblock's number, the files in between would count as reserved inodes. The number never
/// changes after mkfs, so a backup of this very file system has the right one. Without a backup,
/// files in use decide.
fn first_inode(
    device: &dyn BlockDevice,
    overlay: &dyn BlockDevice,
    sb: &RawSuperblock,
) -> Result<Option<(u32, &'static str)>, Error> {
    // No file system has a first ordinary inode below the usual one.
    if sb.s_rev_level.get() == 0 || sb.s_first_ino.get() <= FIRST_INODE {
        return Ok(None);
    }
    let Some(same) = own_backup(device, sb) else {
        return Ok(has_files_below_first(overlay, sb)?.then_some((FIRST_INODE, "files there are in use")));
    };
    let first = same.s_first_ino.get();
    let is_lower = same.s_rev_level.get() > 0 && first < sb.s_first_ino.get();
    Ok(is_lower.then_some((first, "the backups have it")))
}

/// Whether a file is in use whose inode number is ordinary in every known file system, but below
/// the first ordinary inode of this superblock.
fn has_files_below_first(device: &dyn BlockDevice, sb: &RawSuperblock) -> Result<bool, Error> {
    let mut sink = Sink::default();
    let Ok(Opened::Volume(mut volume)) = superblock::open(device, &mut sink) else { return Ok(false) };
    descriptors::load(&mut volume, &mut sink);
    let known = !volume.groups.is_empty() && superblock::check_values(&volume, &mut sink)?;
    let end = sb.s_first_ino.get().min(volume.geometry.inodes_count().saturating_add(1));
    let is_file = |inode: InodeNr| {
        volume.inode(inode).is_ok_and(|bytes| {
            let slot = InodeSlot::new(bytes);
            slot.raw().file_type().is_some()
                && slot.raw().i_links_count.get() > 0
                && volume.checksums.verify_inode(inode, &slot).is_ok()
        })
    };
    Ok(known && (FIRST_INODE..end).map(InodeNr::new).any(is_file))
}

/// The right number of blocks reserved for descriptors, if the superblock claims so many that a
/// bitmap or the inode table of the first group would lie among them, and the root is sound. The
/// number is what a backup says if there is room for that many before the first of these objects,
/// and otherwise as many as there is room for. `None` with meta_bg, and if a backup or the resize
/// inode confirms the claim: then the descriptor is wrong.
fn reserved_descriptors(
    device: &dyn BlockDevice,
    overlay: &dyn BlockDevice,
    sb: &RawSuperblock,
) -> Result<Option<u16>, Error> {
    let mut sink = Sink::default();
    let Ok(Opened::Volume(mut volume)) = superblock::open(overlay, &mut sink) else { return Ok(None) };
    descriptors::load(&mut volume, &mut sink);
    if volume.groups.is_empty() || !superblock::check_values(&volume, &mut sink)? {
        return Ok(None);
    }
    let first = volume.desc_block(0).raw() + u64_from_u32(volume.old_desc_blocks());
    let area = first..first + u64::from(sb.s_reserved_gdt_blocks.get());
    let desc = volume.groups[0].desc;
    let objects = [desc.block_bitmap(), desc.inode_bitmap(), desc.inode_table()].map(BlockNr::raw);
    let Some(next) = objects.into_iter().filter(|place| area.contains(place)).min() else { return Ok(None) };
    if volume.incompat.contains(Incompat::META_BG) || is_listed(&volume) {
        return Ok(None);
    }
    let is_root = volume.inode(InodeNr::ROOT).is_ok_and(|bytes| {
        let slot = InodeSlot::new(bytes);
        slot.raw().file_type() == Some(FileType::Directory)
            && volume.checksums.verify_inode(InodeNr::ROOT, &slot).is_ok()
    });
    if !is_root {
        return Ok(None);
    }
    let room = next - first;
    let copied = own_backup(device, sb).map(|copy| copy.s_reserved_gdt_blocks.get());
    let is_confirmed = copied == Some(sb.s_reserved_gdt_blocks.get());
    let count = copied.filter(|count| u64::from(*count) <= room).unwrap_or(low16(u32_from_u64(room)));
    Ok((!is_confirmed).then_some(count))
}

/// Whether the resize inode lists the very blocks that the superblock reserves for descriptors.
fn is_listed(volume: &Volume<'_>) -> bool {
    let Ok(bytes) = volume.inode(InodeNr::RESIZE) else { return false };
    let mut sink = Sink::default();
    descriptors::check_resize_inode(volume, InodeSlot::new(bytes).raw(), &mut sink);
    volume.compat.contains(Compat::RESIZE_INODE) && sink.into_findings().is_empty()
}

/// The fields for the inodes of the orphan file and of quota files, if their features are off.
fn meaningless(sb: &mut RawSuperblock) -> impl Iterator<Item = &mut zerocopy::little_endian::U32> {
    let orphan_file = sb.compat().contains(Compat::ORPHAN_FILE);
    let quota = sb.ro_compat().contains(RoCompat::QUOTA);
    let fields = [
        (orphan_file, &mut sb.s_orphan_file_inum),
        (quota, &mut sb.s_usr_quota_inum),
        (quota, &mut sb.s_grp_quota_inum),
        (quota, &mut sb.s_prj_quota_inum),
    ];
    fields.into_iter().filter(|(meant, _)| !meant).map(|(_, field)| field)
}

/// Whether one of these fields names an inode although its feature is off. An inode in a quota
/// field counts as hidden, so a repair would remove its names.
fn names_files(sb: &RawSuperblock) -> bool {
    let mut sb = *sb;
    meaningless(&mut sb).any(|field| field.get() != 0)
}

/// Clears the inode numbers of features that are off.
pub(super) fn clear_names(sb: &mut RawSuperblock) {
    meaningless(sb).for_each(|field| field.set(0));
}
