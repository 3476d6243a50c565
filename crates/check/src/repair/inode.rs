//! Repairs one inode. Each finding about it has a remedy. After the remedies, the inode is examined
//! again, until it is sound or [`TURNS_MAX`] is reached.
//!
//! The remedies keep as much of the inode as they can. Only the impossible entries of a map are
//! removed, and if the mode has no possible type, the type is inferred from the content. An inode
//! that stays wrong in [`TRIES_MAX`] rounds is cleared.

use std::collections::BTreeSet;

use blockyard_device::DeviceError;
use blockyard_disk::checksum::verify_dir_leaf;
use blockyard_disk::dirblock::{DirLayout, Entries};
use blockyard_disk::extent;
use blockyard_disk::inline_data::InlineData;
use blockyard_disk::inode::{FileType, InodeFlags, RawInode};
use blockyard_disk::num::{low16, low32, u32_from_usize, u64_from_usize, usize_from_u32, usize_from_u64};
use blockyard_disk::superblock::RawSuperblock;
use blockyard_disk::xattr::{self, Home, RawEntry};
use blockyard_disk::{BlockNr, Incompat, InodeNr, RoCompat};
use zerocopy::little_endian::{U16, U32};

use super::attributes;
use super::editor::{Editor, Slot, sound_superblock};
use super::examined::examined;
use super::log::{Cost, Outcome, Tried};
use super::maps::{self, NoSpace};
use super::{aligned, remains, xattr_blocks};
use crate::code::Code;
use crate::finding::{Finding, Site};
use crate::inode::{Expected, FAST_SYMLINK_MAX};
use crate::map::{NoClaims, Run};

/// How often an inode is examined and repaired in one round, at most.
const TURNS_MAX: usize = 24;
/// Rounds after which an inode that is still wrong is cleared.
const TRIES_MAX: u32 = 3;

/// Whether the block of the inode table that holds an inode is garbage: most inodes in it have
/// wrong checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Around {
    Sound,
    Garbage,
}

/// Whether a finding of the walk over the inodes is repaired. All errors are repaired. Two kinds of
/// notes are repaired, too: that a device, pipe or socket has an impossible map, and that an empty
/// extent tree is too deep.
pub(crate) fn is_to_be_mended(finding: &Finding) -> bool {
    finding.is_error() || is_impossible_special(finding.code) || finding.code == Code::EXTENT_ROOT_DEPTH
}

/// Whether a finding says that a device, pipe or socket has a map, or a flag that goes with a map.
/// e2fsck reports only the flags.
pub(super) fn is_impossible_special(code: Code) -> bool {
    matches!(code, Code::CHAR_DEVICE | Code::BLOCK_DEVICE | Code::FIFO | Code::SOCKET | Code::SPECIAL_FLAGS)
}

/// Repairs an inode in which the walk found a fault.
pub(crate) fn repair(ed: &mut Editor<'_, '_>, inode: InodeNr, around: Around) -> Result<(), DeviceError> {
    let mut slot = ed.slot(inode)?;
    let (first, _) = findings(ed, inode, &slot);
    if declare(ed, inode, &slot, &first)? {
        // What else is wrong shows in the next round, when the feature has taken effect.
        return Ok(());
    }
    // A directory that grew in an earlier round has a wrong block count. That is no sign of damage,
    // and does not count as a try.
    let is_evidence = first.iter().any(|finding| finding.code != Code::BLOCKS_WRONG) || first.is_empty();
    let tries = if is_evidence { ed.log.try_again(Tried::Inode, inode) } else { 0 };
    let why = first.first().map_or(Code::INODE_GARBAGE, |finding| finding.code);
    // Wrong checksums of extent blocks are no sign of garbage: a changed seed makes all of them
    // wrong.
    let is_checksum =
        |finding: &&Finding| matches!(finding.code, Code::INODE_CHECKSUM | Code::EXTENT_CHECKSUM);
    let checksums = first.iter().filter(is_checksum).count();
    let garbage = first.len() > checksums
        && first.iter().any(|finding| finding.code == Code::INODE_CHECKSUM)
        && around == Around::Garbage
        && ed.log.accepts(Code::INODE_GARBAGE);
    if garbage || tries >= TRIES_MAX {
        return clear(ed, inode, if garbage { Code::INODE_GARBAGE } else { why });
    }
    restore_extents_flag(ed, inode, &mut slot);
    for _ in 0..TURNS_MAX {
        ed.volume().checksums.seal_inode(inode, &mut slot);
        let (found, expected) = findings(ed, inode, &slot);
        if found.is_empty() {
            break;
        }
        for finding in &found {
            match mend(ed, inode, &mut slot, finding, expected)? {
                Outcome::Kept => {}
                Outcome::Lost => return clear(ed, inode, finding.code),
                // The other findings may have been about the old map.
                Outcome::Rewritten => break,
            }
        }
    }
    ed.put_slot(inode, &mut slot)?;
    let is_checksum = first.iter().all(|finding| finding.code == Code::INODE_CHECKSUM);
    if is_checksum && ed.log.accepts(Code::INODE_CHECKSUM) {
        ed.add(Code::INODE_CHECKSUM, Site::inode(inode), Cost::Nothing, "checksum recomputed");
    }
    Ok(())
}

/// Whether a repair of an inode would find something to mend.
pub(super) fn is_wrong(ed: &Editor<'_, '_>, inode: InodeNr) -> Result<bool, DeviceError> {
    let slot = ed.slot(inode)?;
    Ok(!findings(ed, inode, &slot).0.is_empty())
}

/// Sets the extents flag of an inode whose `i_block` begins like the root of an extent tree.
fn restore_extents_flag(ed: &mut Editor<'_, '_>, inode: InodeNr, slot: &mut Slot) {
    let raw = slot.raw();
    let flags = raw.flags();
    let begins = raw.i_block[..2] == extent::MAGIC.to_le_bytes() && raw.i_block[4..6] == [4, 0];
    let mapped = matches!(raw.file_type(), Some(FileType::Regular | FileType::Directory | FileType::Symlink));
    let possible = ed.volume().incompat.contains(Incompat::EXTENTS)
        && raw.i_links_count.get() != 0
        && ed.log.accepts(Code::EXTENTS_UNFLAGGED);
    if begins && mapped && possible && !flags.intersects(InodeFlags::EXTENTS | InodeFlags::INLINE_DATA) {
        slot.raw_mut().set_flags(flags | InodeFlags::EXTENTS);
        ed.add(Code::EXTENTS_UNFLAGGED, Site::inode(inode), Cost::Nothing, "extents flag set");
    }
}

/// Clears an inode. If it looks like a directory, the log remembers the names in it.
pub(crate) fn clear(ed: &mut Editor<'_, '_>, inode: InodeNr, why: Code) -> Result<(), DeviceError> {
    let mut slot = ed.slot(inode)?;
    let was_used = slot.raw().i_links_count.get() != 0;
    let map = maps::read(ed, inode, slot.raw());
    if looks_like_directory(ed, inode, &map.runs) || looks_like_inline_directory(ed, &slot) {
        remains::remember(ed, inode, &slot);
    }
    slot.bytes_mut().fill(0);
    ed.put_slot(inode, &mut slot)?;
    ed.log.forget_tries(inode);
    let cost = if was_used { Cost::Removed } else { Cost::Nothing };
    ed.add(why, Site::inode(inode), cost, "inode cleared");
    Ok(())
}

/// What the walk would say about a slot: the findings that are to be repaired, and what its fields
/// should hold.
fn findings(ed: &Editor<'_, '_>, inode: InodeNr, slot: &Slot) -> (Vec<Finding>, Expected) {
    let (sink, expected) = examined(ed, inode, slot, &mut NoClaims);
    (
        sink.into_findings()
            .into_iter()
            .filter(|finding| is_to_be_mended(finding) && ed.log.accepts(finding.code))
            .collect(),
        expected,
    )
}

/// Applies the remedy of one finding to the slot.
fn mend(
    ed: &mut Editor<'_, '_>,
    inode: InodeNr,
    slot: &mut Slot,
    finding: &Finding,
    expected: Expected,
) -> Result<Outcome, DeviceError> {
    let code = finding.code;
    let site = Site::inode(inode);
    if xattr_blocks::uncover(ed, inode, slot.raw(), code)? || attributes::uncover(ed, inode, slot, code) {
        return Ok(Outcome::Kept);
    }
    if mend_field(ed, inode, slot, code) || mend_flags(ed, slot, code) {
        ed.add(code, site, Cost::Nothing, "field corrected");
        return Ok(Outcome::Kept);
    }
    match code {
        Code::INODE_CHECKSUM => {}
        Code::BLOCKS_WRONG => {
            let Some(units) = expected.units else { return Ok(Outcome::Kept) };
            slot.raw_mut().set_blocks_field(units);
            ed.add(code, site, Cost::Nothing, format!("i_blocks set to {units}"));
        }
        Code::SIZE_WRONG if trim_directory(ed, inode, slot)? => return Ok(Outcome::Rewritten),
        Code::SIZE_WRONG if close_holes(ed, inode, slot, expected)? => return Ok(Outcome::Rewritten),
        Code::SYMLINK if end_target(ed, inode, slot, expected.size)? => {
            ed.add(code, site, Cost::Doubtful, format!("target cut to {} bytes", slot.raw().size()));
        }
        Code::SIZE_WRONG | Code::INLINE_SIZE | Code::SYMLINK => {
            let Some(size) = expected.size else { return Ok(Outcome::Lost) };
            if slot.raw().size() == size {
                return Ok(Outcome::Kept);
            }
            slot.raw_mut().set_size(size);
            ed.add(code, site, Cost::Nothing, format!("i_size set to {size}"));
        }
        // On bigalloc no file has a block map: what looks like one is garbage.
        Code::DIRECTORY_EMPTY | Code::ENCRYPT_CONTEXT | Code::MAP_ON_BIGALLOC => return Ok(Outcome::Lost),
        Code::MODE_INVALID | Code::ROOT_NOT_DIRECTORY | Code::SPECIAL_SIZE => {
            return Ok(mend_type(ed, inode, slot, code));
        }
        _ if is_impossible_special(code) => return Ok(mend_type(ed, inode, slot, code)),
        Code::RESERVED_MODE | Code::JOURNAL_INODE_IN_USE | Code::QUOTA_INODE_IN_USE => {
            slot.bytes_mut().fill(0);
            ed.add(code, site, Cost::Nothing, "reserved inode cleared");
        }
        Code::ORPHAN_FILE_IN_USE => {
            slot.bytes_mut().fill(0);
            ed.change_superblock(|sb| sb.s_orphan_file_inum = U32::new(0))?;
            ed.add(code, site, Cost::Nothing, "orphan file without the feature cleared");
        }
        Code::BAD_BLOCKS_INODE => mend_bad_blocks(ed, slot),
        // The list names the first block of the inode table that holds the list's own inode. But
        // that inode could be read, so the list is wrong.
        Code::BAD_LIST_PLACE => {
            slot.bytes_mut().fill(0);
            ed.add(code, site, Cost::Nothing, "list of bad blocks emptied");
        }
        Code::BAD_BLOCK_BITMAP | Code::BAD_INODE_BITMAP => return mend_bad_list(ed, slot, code),
        Code::EXTENT_CHECKSUM => mend_node_checksum(ed, inode, slot, finding)?,
        Code::EXTENT_BEYOND_PARENT if !maps::read(ed, inode, slot.raw()).damaged => {
            let Some(size) = expected.size else { return Ok(Outcome::Lost) };
            slot.raw_mut().set_size(size);
            ed.add(code, site, Cost::Doubtful, format!("i_size set to {size}, the end of written data"));
        }
        _ if attributes::is_about_attributes(code) => return attributes::mend(ed, inode, slot, finding),
        _ => return mend_map(ed, inode, slot, code),
    }
    Ok(Outcome::Kept)
}

/// Sets features that are off although the content of an inode needs them. Returns false if the
/// inode needs no such feature. The features take effect in the next round. Only the first inode
/// that needs a feature gets an action.
fn declare(
    ed: &mut Editor<'_, '_>,
    inode: InodeNr,
    slot: &Slot,
    found: &[Finding],
) -> Result<bool, DeviceError> {
    let has_extents = slot.raw().i_block[..2] == extent::MAGIC.to_le_bytes();
    let mut asked = false;
    for code in found.iter().map(|finding| finding.code) {
        let (incompat, ro_compat, what) = match code {
            Code::EXTENTS_WITHOUT_FEATURE if has_extents => {
                (Incompat::EXTENTS, RoCompat::empty(), "feature extent set")
            }
            Code::INLINE_UNDECLARED | Code::INLINE_WITHOUT_FEATURE if attributes::has_inline_data(slot) => {
                (Incompat::INLINE_DATA, RoCompat::empty(), "feature inline_data set")
            }
            Code::INLINE_NO_ATTRIBUTE | Code::ENCRYPT_NO_ATTRIBUTE if has_value_inode(ed, slot) => {
                (Incompat::EA_INODE, RoCompat::empty(), "feature ea_inode set")
            }
            Code::LARGE_FILE_FEATURE => (Incompat::empty(), RoCompat::LARGE_FILE, "feature large_file set"),
            _ => continue,
        };
        asked = true;
        let has_both =
            |sb: RawSuperblock| sb.incompat().contains(incompat) && sb.ro_compat().contains(ro_compat);
        if !sound_superblock(ed.volume().device).is_some_and(has_both) {
            ed.change_superblock(|sb| {
                sb.set_incompat(sb.incompat() | incompat);
                sb.set_ro_compat(sb.ro_compat() | ro_compat);
            })?;
            ed.add(code, Site::inode(inode), Cost::Nothing, what);
        }
    }
    Ok(asked)
}

/// Whether an attribute has a value inode although the feature ea_inode is off.
fn has_value_inode(ed: &Editor<'_, '_>, slot: &Slot) -> bool {
    let volume = ed.volume();
    let is_value = |entry: RawEntry<'_>| {
        let known = (volume.first_inode()..=volume.geometry.inodes_count()).contains(&entry.value_inode);
        let value = known.then(|| ed.slot(InodeNr::new(entry.value_inode)));
        value.is_some_and(|slot| slot.is_ok_and(|slot| slot.raw().flags().contains(InodeFlags::EA_INODE)))
    };
    let at = xattr::inode_area_at(slot.bytes().len(), slot.extra_isize());
    let own = at.map_or(&[][..], |at| &slot.bytes()[at..]);
    let block = Some(volume.file_acl(slot.raw())).filter(|block| volume.contains(*block));
    let block = block.and_then(|block| volume.block(block).ok()).unwrap_or_default();
    !volume.incompat.contains(Incompat::EA_INODE)
        && [(own, Home::Inode), (&block[..], Home::Block)].into_iter().any(|(area, home)| {
            xattr::parse_entries(area, home).unwrap_or_default().into_iter().any(is_value)
        })
}

/// Sets a field that has one right value. Returns false if the finding is about no such field.
fn mend_field(ed: &Editor<'_, '_>, inode: InodeNr, slot: &mut Slot, code: Code) -> bool {
    let now = low32(ed.now);
    let first = ed.volume().first_inode();
    let raw = slot.raw_mut();
    match code {
        Code::UNUSED_NO_DTIME => raw.i_dtime = U32::new(now),
        Code::LOW_DTIME => {
            let used = raw.i_links_count.get() != 0 || inode.raw() < first;
            raw.i_dtime = U32::new(if used { 0 } else { now });
        }
        Code::USED_DTIME | Code::ROOT_DTIME => raw.i_dtime = U32::new(0),
        Code::JOURNAL_MODE | Code::ORPHAN_FILE_MODE | Code::QUOTA_MODE => {
            raw.i_mode = U16::new(FileType::Regular.mode_bits() | 0o600);
        }
        Code::FADDR => raw.i_obso_faddr = U32::new(0),
        Code::BLOCKS_HIGH => raw.i_blocks_high = U16::new(0),
        Code::FILE_ACL_HIGH => raw.i_file_acl_high = U16::new(0),
        Code::DIR_SIZE_HIGH => raw.i_size_high = U32::new(0),
        Code::EXTENT_ROOT_DEPTH => mend_header(raw),
        _ => return false,
    }
    true
}

/// Corrects a flag that contradicts the features or the content. Returns false if the finding is
/// about no such flag.
fn mend_flags(ed: &Editor<'_, '_>, slot: &mut Slot, code: Code) -> bool {
    let raw = slot.raw();
    let header = raw.i_block[..2] == extent::MAGIC.to_le_bytes();
    let mut flags = slot.raw().flags();
    match code {
        Code::IMAGIC => flags.remove(InodeFlags::IMAGIC),
        Code::INDEX_WITHOUT_FEATURE | Code::INDEX_NOT_DIRECTORY | Code::HTREE_ROOT => {
            flags.remove(InodeFlags::INDEX)
        }
        Code::CASEFOLD_NOT_DIRECTORY | Code::CASEFOLD_WITHOUT_FEATURE => flags.remove(InodeFlags::CASEFOLD),
        Code::ENCRYPT_NO_ATTRIBUTE => flags.remove(InodeFlags::ENCRYPT),
        Code::SYMLINK_EXTENTS => flags.remove(InodeFlags::EXTENTS),
        Code::EXTENTS_UNFLAGGED => flags.insert(InodeFlags::EXTENTS),
        Code::INLINE_BUT_EXTENTS => flags.remove(InodeFlags::INLINE_DATA),
        Code::BOTH_MAP_FLAGS if header => flags.remove(InodeFlags::INLINE_DATA),
        Code::BOTH_MAP_FLAGS => flags.remove(InodeFlags::EXTENTS),
        Code::EXTENTS_WITHOUT_FEATURE => flags.remove(InodeFlags::EXTENTS),
        Code::INLINE_UNDECLARED | Code::INLINE_WITHOUT_FEATURE => flags.remove(InodeFlags::INLINE_DATA),
        Code::INLINE_NO_ATTRIBUTE if header => {
            flags.remove(InodeFlags::INLINE_DATA);
            flags.insert(InodeFlags::EXTENTS);
        }
        Code::INLINE_NO_ATTRIBUTE if has_block_map(ed, raw) => flags.remove(InodeFlags::INLINE_DATA),
        Code::EXTENTS_NO_HEADER if raw.i_block[4..6] != [4, 0] => flags.remove(InodeFlags::EXTENTS),
        _ => return false,
    }
    slot.raw_mut().set_flags(flags);
    true
}

/// Whether `i_block` holds the pointers of a regular file that has blocks and is too large for
/// inline data in `i_block` alone.
fn has_block_map(ed: &Editor<'_, '_>, raw: &RawInode) -> bool {
    let words = raw.block_words();
    let end = ed.volume().geometry.blocks_count().raw();
    raw.file_type() == Some(FileType::Regular)
        && raw.size() > u64_from_usize(raw.i_block.len())
        && raw.blocks_field(false) > 0
        && words.iter().any(|word| *word != 0)
        && words.iter().all(|word| u64::from(*word) < end)
}

/// Puts back the NUL that ends the target of a symbolic link, if the NUL is missing and the target
/// therefore looks exactly one byte longer than `i_size`. If the target looks longer still, nothing
/// is done, because then `i_size` is more likely to be wrong. Returns false if nothing was done, as
/// for encrypted and inline links.
fn end_target(
    ed: &mut Editor<'_, '_>,
    inode: InodeNr,
    slot: &mut Slot,
    found: Option<u64>,
) -> Result<bool, DeviceError> {
    let size = slot.raw().size();
    let elsewhere = InodeFlags::ENCRYPT | InodeFlags::INLINE_DATA;
    if size == 0 || slot.raw().flags().intersects(elsewhere) || found != Some(size + 1) {
        return Ok(false);
    }
    let end = usize_from_u64(size);
    if size + 1 < FAST_SYMLINK_MAX {
        slot.raw_mut().i_block[end] = 0;
        return Ok(true);
    }
    let map = maps::read(ed, inode, slot.raw());
    let Some(run) = map.runs.first().filter(|_| size >= FAST_SYMLINK_MAX) else { return Ok(false) };
    let place = BlockNr::new(run.physical);
    let mut block = ed.volume().block(place)?;
    block[end] = 0;
    ed.put_block(place, &block)?;
    Ok(true)
}

/// Infers the type of an inode from its content when the type in the mode is impossible or does not
/// fit. If the content shows no type, a device, pipe or socket only loses its size or map, and any
/// other inode is lost. The root is lost if it does not look like a directory.
fn mend_type(ed: &mut Editor<'_, '_>, inode: InodeNr, slot: &mut Slot, code: Code) -> Outcome {
    let raw = *slot.raw();
    let mapped = raw.flags().contains(InodeFlags::EXTENTS) && raw.i_block[..2] == extent::MAGIC.to_le_bytes();
    let site = Site::inode(inode);
    let map = maps::read(ed, inode, &raw);
    let kind = if looks_like_directory(ed, inode, &map.runs) || looks_like_inline_directory(ed, slot) {
        FileType::Directory
    } else if inode == InodeNr::ROOT {
        return Outcome::Lost;
    } else if (mapped && !map.damaged) || is_inline(ed, slot) {
        FileType::Regular
    } else if code == Code::SPECIAL_SIZE {
        slot.raw_mut().set_size(0);
        ed.add(code, site, Cost::Nothing, "i_size set to 0");
        return Outcome::Kept;
    } else if is_impossible_special(code) {
        clear_map(slot);
        ed.add(code, site, Cost::Nothing, "map and flags of the special file cleared");
        return Outcome::Kept;
    } else {
        return Outcome::Lost;
    };
    let mode = raw.i_mode.get() & !FileType::MODE_MASK | kind.mode_bits();
    slot.raw_mut().i_mode = U16::new(mode);
    ed.add(code, site, Cost::Doubtful, format!("i_mode set to {mode:#o}, which fits the content"));
    Outcome::Kept
}

/// Removes the map of a special file, and flags that it cannot have. Device numbers stay.
fn clear_map(slot: &mut Slot) {
    let raw = slot.raw_mut();
    let mut words = raw.block_words();
    let device = matches!(raw.file_type(), Some(FileType::CharDevice | FileType::BlockDevice));
    words[if device { 3 } else { 0 }..].fill(0);
    raw.set_block_words(words);
    let mut flags = raw.flags();
    let none = InodeFlags::EXTENTS | InodeFlags::INLINE_DATA | InodeFlags::INDEX;
    flags.remove(none | InodeFlags::IMMUTABLE | InodeFlags::APPEND);
    raw.set_flags(flags);
}

/// Whether the first block begins with the entries `.`, for this inode, and `..`.
fn looks_like_directory(ed: &Editor<'_, '_>, inode: InodeNr, runs: &[Run]) -> bool {
    let Some(first) = runs.first().filter(|run| run.logical == 0) else { return false };
    let Ok(block) = ed.volume().block(BlockNr::new(first.physical)) else { return false };
    block[..4] == inode.raw().to_le_bytes()
        && block[4..9] == [12, 0, 1, block[7], b'.']
        && block[20..22] == *b".."
}

/// Whether an inode has inline data, by the feature, its flag and its attribute.
fn is_inline(ed: &Editor<'_, '_>, slot: &Slot) -> bool {
    slot.raw().flags().contains(InodeFlags::INLINE_DATA)
        && ed.volume().incompat.contains(Incompat::INLINE_DATA)
        && attributes::has_inline_data(slot)
}

/// Whether the inline data of an inode looks like a directory: it has a possible parent and only
/// sound entries, and at least one of them is in use.
fn looks_like_inline_directory(ed: &Editor<'_, '_>, slot: &Slot) -> bool {
    let volume = ed.volume();
    let tail = attributes::inline_tail(slot);
    let data = InlineData { head: &slot.raw().i_block, tail: &tail };
    let inodes = 1..=volume.geometry.inodes_count();
    let mut names = 0;
    let sound = data.dir_entries(volume.dir_layout()).all(|entry| {
        names += usize::from(entry.as_ref().is_ok_and(|entry| entry.inode != 0));
        entry.is_ok()
    });
    is_inline(ed, slot) && inodes.contains(&data.parent()) && sound && names > 0
}

fn mend_bad_blocks(ed: &mut Editor<'_, '_>, slot: &mut Slot) {
    let before = slot.bytes().to_vec();
    let is_map_damaged = maps::read(ed, InodeNr::BAD_BLOCKS, slot.raw()).damaged;
    let raw = slot.raw_mut();
    let no_map = raw.flags().contains(InodeFlags::EXTENTS) && raw.i_block[..2] != extent::MAGIC.to_le_bytes();
    if raw.flags().contains(InodeFlags::INLINE_DATA) || no_map || is_map_damaged {
        // There is no list to keep.
        slot.bytes_mut().fill(0);
    } else {
        for field in [&mut raw.i_mode, &mut raw.i_uid, &mut raw.i_gid, &mut raw.i_links_count] {
            *field = U16::new(0);
        }
        raw.i_file_acl_lo = U32::new(0);
    }
    if slot.bytes() == before {
        return;
    }
    let site = Site::inode(InodeNr::BAD_BLOCKS);
    ed.add(Code::BAD_BLOCKS_INODE, site, Cost::Nothing, "fields of the bad-blocks inode cleared");
}

/// Removes bitmaps from the list of bad blocks: they were read, so the list is wrong.
fn mend_bad_list(ed: &mut Editor<'_, '_>, slot: &mut Slot, code: Code) -> Result<Outcome, DeviceError> {
    let groups = ed.volume().groups.iter();
    let bitmaps: BTreeSet<u64> =
        groups.flat_map(|group| [group.desc.block_bitmap().raw(), group.desc.inode_bitmap().raw()]).collect();
    if !shorten_bad_list(ed, slot, &bitmaps)? {
        return Ok(Outcome::Lost);
    }
    ed.add(code, Site::inode(InodeNr::BAD_BLOCKS), Cost::Nothing, "bitmaps removed from the bad-blocks list");
    Ok(Outcome::Rewritten)
}

/// Removes blocks from the list of bad blocks in a slot. Returns false if there is no space for the
/// map of the rest.
fn shorten_bad_list(
    ed: &mut Editor<'_, '_>,
    slot: &mut Slot,
    less: &BTreeSet<u64>,
) -> Result<bool, DeviceError> {
    let listed = maps::read(ed, InodeNr::BAD_BLOCKS, slot.raw()).runs;
    let kept: Vec<Run> =
        listed.iter().flat_map(maps::blocks_of).filter(|run| !less.contains(&run.physical)).collect();
    Ok(maps::write(ed, InodeNr::BAD_BLOCKS, slot, &kept)? != Err(NoSpace))
}

/// Removes blocks of inode tables from the list of bad blocks: inodes that have names were read
/// from them, so the list is wrong.
pub(crate) fn unlist_bad_blocks(ed: &mut Editor<'_, '_>, blocks: &BTreeSet<u64>) -> Result<(), DeviceError> {
    let mut slot = ed.slot(InodeNr::BAD_BLOCKS)?;
    if !shorten_bad_list(ed, &mut slot, blocks)? {
        return clear(ed, InodeNr::BAD_BLOCKS, Code::ENTRY_BAD_BLOCK);
    }
    ed.put_slot(InodeNr::BAD_BLOCKS, &mut slot)?;
    let what = "blocks of inode tables removed from the bad-blocks list";
    ed.add(Code::ENTRY_BAD_BLOCK, Site::inode(InodeNr::BAD_BLOCKS), Cost::Nothing, what);
    Ok(())
}

fn mend_node_checksum(
    ed: &mut Editor<'_, '_>,
    inode: InodeNr,
    slot: &Slot,
    finding: &Finding,
) -> Result<(), DeviceError> {
    let Some(block) = finding.site.block else { return Ok(()) };
    let mut bytes = ed.volume().block(block)?;
    let seed = ed.volume().checksums.inode_seed(inode, slot.raw().i_generation.get());
    blockyard_disk::checksum::seal_extent_block(seed, &mut bytes);
    ed.put_block(block, &bytes)?;
    ed.add(finding.code, finding.site, Cost::Nothing, "checksum recomputed");
    Ok(())
}

/// Rewrites a map with only its sound parts.
fn mend_map(
    ed: &mut Editor<'_, '_>,
    inode: InodeNr,
    slot: &mut Slot,
    code: Code,
) -> Result<Outcome, DeviceError> {
    let site = Site::inode(inode);
    if slot.raw().flags().contains(InodeFlags::EXTENTS) {
        mend_header(slot.raw_mut());
    }
    if code == Code::INLINE_NO_ATTRIBUTE {
        return Ok(attributes::without_inline_data(ed, inode, slot));
    }
    let translator = ed.volume().translator(slot.raw());
    if translator.is_some_and(|block| !ed.volume().contains(block)) {
        slot.raw_mut().i_version = U32::new(0);
        ed.add(code, site, Cost::Cut, "translator outside the file system removed");
        return Ok(Outcome::Rewritten);
    }
    let map = maps::read(ed, inode, slot.raw());
    let mut runs = map.runs;
    if slot.raw().file_type() == Some(FileType::Directory) {
        runs.iter_mut().for_each(|run| run.unwritten = false);
    }
    let mut copied = Vec::new();
    if code == Code::CLUSTER_MISALIGNED {
        align_directory(ed, inode, slot, &mut runs);
        let aligned = aligned::align(ed, &runs)?;
        runs = aligned.runs;
        if aligned.dropped.is_empty() {
            copied = aligned.copied;
        }
    }
    let before = slot.raw().i_block;
    if maps::write(ed, inode, slot, &runs)? == Err(NoSpace) {
        slot.raw_mut().i_block = before;
        return Ok(Outcome::Lost);
    }
    let bits = ed.volume().geometry.block_bits();
    if !copied.is_empty() {
        let what = format!("{} blocks copied to where their clusters are", copied.len());
        ed.add(code, site, Cost::Doubtful, what);
        ed.log.set_ranges(maps::bytes_of(&copied, bits));
        return Ok(Outcome::Rewritten);
    }
    let blocks: u64 = runs.iter().map(|run| run.length).sum();
    ed.add(code, site, Cost::Cut, format!("map rebuilt with the {blocks} sound blocks"));
    if slot.raw().file_type() == Some(FileType::Regular) {
        ed.log.set_ranges(maps::unmapped(&runs, bits, slot.raw().size()));
    }
    // A directory or link without any block is lost.
    let needs_first = matches!(slot.raw().file_type(), Some(FileType::Directory | FileType::Symlink));
    Ok(if needs_first && runs.is_empty() { Outcome::Lost } else { Outcome::Rewritten })
}

/// Cuts off what a directory maps past its size: an extent with a wrong length may have taken in
/// blocks of other inodes. Returns false if the map was left alone, for example because the first
/// block past the size is a directory block.
fn trim_directory(ed: &mut Editor<'_, '_>, inode: InodeNr, slot: &mut Slot) -> Result<bool, DeviceError> {
    let end = slot.raw().size() >> ed.volume().geometry.block_bits();
    // Nodes of an index do not look like blocks of a directory, and an inline directory has no map.
    let unfit = slot.raw().flags().intersects(InodeFlags::INDEX | InodeFlags::INLINE_DATA);
    if slot.raw().file_type() != Some(FileType::Directory) || end == 0 || unfit {
        return Ok(false);
    }
    let mut runs = maps::read(ed, inode, slot.raw()).runs;
    let Some(run) = runs.iter().find(|run| run.logical + run.length > end) else { return Ok(false) };
    let behind = BlockNr::new(run.physical + end.saturating_sub(run.logical));
    let seed = ed.volume().checksums.inode_seed(inode, slot.raw().i_generation.get());
    if ed.volume().block(behind).is_ok_and(|block| is_directory_block(ed, seed, &block)) {
        return Ok(false);
    }
    runs.retain(|run| run.logical < end);
    for run in &mut runs {
        run.length = run.length.min(end - run.logical);
        run.unwritten = false;
    }
    if runs.is_empty() || maps::write(ed, inode, slot, &runs)? == Err(NoSpace) {
        return Ok(false);
    }
    let what = format!("map cut to the {end} blocks of its size: the rest is no directory");
    ed.add(Code::SIZE_WRONG, Site::inode(inode), Cost::Doubtful, what);
    Ok(true)
}

/// Closes holes that make a directory larger than 4 GiB without large_dir. Such a hole shows that
/// an extent has a wrong logical block. Other holes are closed when the directory is rebuilt.
/// Returns false if the map was left alone.
fn close_holes(
    ed: &mut Editor<'_, '_>,
    inode: InodeNr,
    slot: &mut Slot,
    expected: Expected,
) -> Result<bool, DeviceError> {
    let is_too_large = expected.size.is_some_and(|size| size > u64::from(u32::MAX));
    let is_directory = slot.raw().file_type() == Some(FileType::Directory);
    if !is_directory || !is_too_large || ed.volume().incompat.contains(Incompat::LARGE_DIR) {
        return Ok(false);
    }
    let mut runs = maps::read(ed, inode, slot.raw()).runs;
    let mut end = 0;
    for run in &mut runs {
        (run.logical, run.unwritten) = (end, false);
        end += run.length;
    }
    let fits = end << ed.volume().geometry.block_bits() <= u64::from(u32::MAX);
    if !fits || maps::write(ed, inode, slot, &runs)? == Err(NoSpace) {
        return Ok(false);
    }
    ed.add(Code::DIRECTORY_HOLE, Site::inode(inode), Cost::Doubtful, "holes closed");
    Ok(true)
}

/// Whether a block looks like a directory block: by its entries, and by its checksum if there is
/// one.
fn is_directory_block(ed: &Editor<'_, '_>, seed: Option<u32>, block: &[u8]) -> bool {
    let layout = DirLayout { inodes_count: u32::MAX, ..ed.volume().dir_layout() };
    let entries = Entries::new(block, layout).is_ok_and(|mut entries| entries.all(|entry| entry.is_ok()));
    entries && (seed.is_none() || verify_dir_leaf(seed, block).is_ok())
}

/// Sets the fixed fields of a root's header, and replaces an impossible count of entries or depth.
fn mend_header(raw: &mut RawInode) {
    let mut root = raw.i_block;
    root[..2].copy_from_slice(&extent::MAGIC.to_le_bytes());
    root[4..6].copy_from_slice(&extent::ROOT_CAPACITY.to_le_bytes());
    let entries = u16::from_le_bytes([root[2], root[3]]);
    let depth = u16::from_le_bytes([root[6], root[7]]);
    if entries > extent::ROOT_CAPACITY {
        let filled = (0..4usize).take_while(|nth| root[16 + 12 * nth..24 + 12 * nth] != [0; 8]).count();
        root[2..4].copy_from_slice(&low16(u32_from_usize(filled)).to_le_bytes());
    }
    if depth > extent::DEPTH_MAX {
        root[6..8].copy_from_slice(&[0, 0]);
    }
    raw.i_block = root;
}

/// Makes the runs of a directory follow one another, because a directory has no holes. If the first
/// run does not begin a cluster, its start is wrong. The run is then moved to the start of its
/// cluster or of the next cluster, whichever holds the first block of the directory. The run stays
/// if neither does.
fn align_directory(ed: &Editor<'_, '_>, inode: InodeNr, slot: &Slot, runs: &mut [Run]) {
    if slot.raw().file_type() != Some(FileType::Directory) {
        return;
    }
    let mut end = 0;
    for run in runs.iter_mut() {
        run.logical = end;
        end += run.length;
    }
    let geometry = &ed.volume().geometry;
    let ratio = u64_from_usize(usize_from_u32(geometry.cluster_ratio()));
    let first = geometry.first_data_block().raw();
    let Some(run) = runs.first_mut() else { return };
    if (run.physical - first).is_multiple_of(ratio) {
        return;
    }
    let cluster = (run.physical - first) / ratio;
    for physical in [cluster, cluster + 1].map(|cluster| first + cluster * ratio) {
        let moved = Run { physical, ..*run };
        if ed.volume().contains_range(BlockNr::new(physical), run.length)
            && looks_like_directory(ed, inode, &[moved])
        {
            *run = moved;
            return;
        }
    }
}
