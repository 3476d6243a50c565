//! Checks the journal: it must be where the superblock says, be usable, and be empty unless the
//! recovery flag is set.

use blockyard_device::BlockDevice;
use blockyard_disk::inode::{FileType, InodeFlags, InodeSlot};
use blockyard_disk::jbd2::{BlockKind, JournalIncompat, RawHeader, RawJournalSuperblock};
use blockyard_disk::num::{u64_from_u32, usize_from_u32};
use blockyard_disk::superblock::{MAGIC, PRIMARY_OFFSET, RawSuperblock};
use blockyard_disk::{BlockNr, Compat, Incompat, InodeNr};
use zerocopy::FromBytes;

use crate::code::Code;
use crate::finding::{Sink, Site};
use crate::map::Run;
use crate::orphans::file_runs;
use crate::volume::Volume;

/// The fewest blocks that a journal may have, and the fewest outside of its fast-commit area.
const BLOCKS_MIN: u64 = 1024;
/// `s_checksum_type` of crc32c.
const CRC32C: u8 = 4;

/// Checks what the superblock says about the journal, the journal's inode, and the journal
/// superblock. `external` is the journal device that the user gave.
pub(crate) fn check(volume: &Volume<'_>, external: Option<&dyn BlockDevice>, sink: &mut Sink) {
    let sb = &volume.sb;
    let recover = volume.incompat.contains(Incompat::RECOVER);
    let journal = volume.compat.contains(Compat::HAS_JOURNAL);
    if sb.s_journal_uuid != [0; 16] {
        if journal {
            return check_external(volume, external, recover, sink);
        }
        // Without the feature, Linux ignores `s_journal_uuid`. But e2fsck requires the device, and
        // does nothing without it.
        sink.add(Code::STRAY_JOURNAL_DEVICE, Site::NOWHERE, "s_journal_uuid is set");
    }
    let named = sb.s_journal_inum.get() != 0;
    if !journal && recover {
        sink.add(Code::RECOVER_WITHOUT_JOURNAL, Site::NOWHERE, "");
    }
    if !journal && named {
        let detail = format!("s_journal_inum = {}", sb.s_journal_inum);
        sink.add(Code::JOURNAL_WITHOUT_FEATURE, Site::NOWHERE, detail);
    }
    if !journal && !named {
        return;
    }
    if !named && sb.s_journal_dev.get() != 0 {
        return check_external(volume, external, recover, sink);
    }
    match journal_runs(volume) {
        Err(why) => {
            let detail = format!("s_journal_inum = {}: {why}", sb.s_journal_inum);
            sink.add(Code::JOURNAL_INODE, Site::NOWHERE, detail);
        }
        Ok((runs, blocks)) => check_superblock(volume, &runs, blocks, recover, sink),
    }
}

/// Checks an external journal. It must be the one that the superblock names, and be empty unless
/// the recovery flag is set.
fn check_external(volume: &Volume<'_>, journal: Option<&dyn BlockDevice>, recover: bool, sink: &mut Sink) {
    let Some(journal) = journal else {
        let detail = "give its device with --journal-device";
        return sink.add(Code::EXTERNAL_JOURNAL, Site::NOWHERE, detail);
    };
    match external_superblock(volume, journal) {
        Err((code, why)) => sink.add(code, Site::NOWHERE, why),
        Ok(raw) if raw.s_start.get() != 0 && !recover => {
            sink.add(Code::LOG_NOT_EMPTY, Site::NOWHERE, format!("s_start = {}", raw.s_start));
        }
        Ok(_) => {}
    }
}

/// The block of an external journal that holds its journal superblock.
pub(crate) fn external_block(volume: &Volume<'_>) -> u64 {
    if volume.geometry.block_bits() == 10 { 2 } else { 1 }
}

/// The journal superblock of an external journal. It follows a superblock that identifies the
/// device.
fn external_superblock(
    volume: &Volume<'_>,
    journal: &dyn BlockDevice,
) -> Result<RawJournalSuperblock, (Code, String)> {
    let bad = |why: String| (Code::EXTERNAL_JOURNAL_BAD, why);
    let mut bytes = [0; RawSuperblock::SIZE];
    journal.read_at(PRIMARY_OFFSET, &mut bytes).map_err(|error| bad(error.to_string()))?;
    let head = RawSuperblock::read_from_bytes(&bytes).expect("1024 bytes");
    if head.s_magic.get() != MAGIC || !head.incompat().contains(Incompat::JOURNAL_DEV) {
        return Err(bad("it is no journal device".into()));
    }
    if head.s_uuid != volume.sb.s_journal_uuid {
        return Err((Code::EXTERNAL_JOURNAL_OTHER, "its UUID is not the one in the superblock".into()));
    }
    let bits = volume.geometry.block_bits();
    let mut block = vec![0; volume.block_size()];
    journal.read_at(external_block(volume) << bits, &mut block).map_err(|error| bad(error.to_string()))?;
    let (raw, _) = RawJournalSuperblock::read_from_prefix(&block).expect("a block has 1024 bytes");
    if raw.s_nr_users.get() > 1 {
        return Err((Code::JOURNAL_SHARED, format!("s_nr_users = {}", raw.s_nr_users)));
    }
    let blocks = head.blocks_count().raw().min(journal.size() >> bits);
    verify(volume, &block, blocks).map_err(|why| (Code::JOURNAL_SUPERBLOCK, why))?;
    Ok(raw)
}

/// The runs that the journal's inode maps, and how many blocks the journal has.
fn journal_runs(volume: &Volume<'_>) -> Result<(Vec<Run>, u64), String> {
    let inode = InodeNr::new(volume.sb.s_journal_inum.get());
    let known = inode.raw() >= 1 && inode.raw() <= volume.geometry.inodes_count();
    let slot = if known { volume.inode(inode).ok() } else { None };
    let slot = slot.ok_or("no such inode")?;
    let slot = InodeSlot::new(&slot[..]);
    let raw = slot.raw();
    if raw.file_type() != Some(FileType::Regular) || raw.i_links_count.get() == 0 {
        return Err("not a regular file in use".into());
    }
    if raw.flags().intersects(InodeFlags::ENCRYPT | InodeFlags::INLINE_DATA) {
        return Err("its flags say that it is encrypted or inline".into());
    }
    let runs = file_runs(volume, inode, &slot);
    let blocks = raw.size() >> volume.geometry.block_bits();
    let mapped: u64 = runs.iter().map(|run| run.length).sum();
    let size_max = raw.size().div_ceil(blockyard_disk::num::u64_from_usize(volume.block_size()));
    // e2fsck rejects holes only in a map of extents, and only if the size is below 2 GiB.
    let asked = raw.flags().contains(InodeFlags::EXTENTS) && raw.size() < 1 << 31;
    if blocks < BLOCKS_MIN || (asked && mapped < size_max) {
        return Err(format!("{} bytes of size, {mapped} blocks mapped", raw.size()));
    }
    Ok((runs, blocks.min(mapped)))
}

fn check_superblock(volume: &Volume<'_>, runs: &[Run], blocks: u64, recover: bool, sink: &mut Sink) {
    let inode = InodeNr::new(volume.sb.s_journal_inum.get());
    let Some(first) = runs.first().filter(|run| run.logical == 0) else {
        return sink.add(Code::JOURNAL_INODE, Site::inode(inode), "log block 0 is not mapped");
    };
    let place = BlockNr::new(first.physical);
    let site = Site::inode(inode).at_block(place);
    let Ok(block) = volume.block(place) else {
        return sink.add(Code::JOURNAL_SUPERBLOCK, site, "cannot be read");
    };
    if let Err(why) = verify(volume, &block, blocks) {
        return sink.add(Code::JOURNAL_SUPERBLOCK, site, why);
    }
    let (raw, _) = RawJournalSuperblock::read_from_prefix(&block).expect("a block has 1024 bytes");
    if raw.s_start.get() != 0 && !recover {
        sink.add(Code::LOG_NOT_EMPTY, site, format!("s_start = {}", raw.s_start));
    }
}

/// Verifies the superblock of a journal of `blocks` blocks. The error says what makes the journal
/// unusable.
fn verify(volume: &Volume<'_>, block: &[u8], blocks: u64) -> Result<(), String> {
    debug_assert_eq!(block.len(), volume.block_size(), "the journal's superblock is a block");
    let (raw, _) = RawJournalSuperblock::read_from_prefix(block).expect("a block has 1024 bytes");
    let require = |ok: bool, what: String| if ok { Ok(()) } else { Err(what) };
    let Some((kind, _)) = RawHeader::read(block) else { return Err("magic is wrong".into()) };
    let v2 = kind == Some(BlockKind::SuperblockV2);
    require(kind.is_some(), "type is unknown".into())?;
    require(v2 || kind == Some(BlockKind::SuperblockV1), "it is another block of a log".into())?;
    let size = usize_from_u32(raw.s_blocksize.get());
    require(size == volume.block_size(), format!("s_blocksize = {size}"))?;
    require(raw.s_errno.get() == 0, format!("s_errno = {}: the journal was aborted", raw.s_errno))?;
    let maxlen = u64_from_u32(raw.s_maxlen.get());
    require(maxlen <= blocks, format!("s_maxlen = {maxlen}, there are only {blocks} blocks"))?;
    if !v2 {
        return Ok(());
    }
    require(raw.s_nr_users.get() <= 1, format!("s_nr_users = {}", raw.s_nr_users))?;
    let features = raw.features();
    features.verify().map_err(|error| match error {
        blockyard_disk::Error::UnsupportedFeatures(_) => format!("unknown features in {features:?}"),
        _ => format!("features of two kinds of checksums in {features:?}"),
    })?;
    if features.incompat.contains(JournalIncompat::FAST_COMMIT) {
        let fast = raw.fast_commit_area();
        // Wraps around as in e2fsck: a fast-commit area larger than the journal passes.
        let rest = u64::from(raw.s_maxlen.get().wrapping_sub(fast));
        require(rest >= BLOCKS_MIN, format!("{fast} blocks for fast commits leave {rest} of {maxlen}"))?;
    }
    if features.incompat.intersects(JournalIncompat::CSUM_V2 | JournalIncompat::CSUM_V3) {
        require(raw.s_checksum_type == CRC32C, format!("s_checksum_type = {}", raw.s_checksum_type))?;
        let mut sealed = raw;
        sealed.seal();
        require(raw.s_checksum == sealed.s_checksum, "checksum does not match".into())?;
    }
    Ok(())
}
