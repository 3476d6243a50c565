//! Pass 1, the content of one inode: checks the inode's map, and whether its size, block count and
//! type fit the map.

use blockyard_disk::extent;
use blockyard_disk::inode::{FileType, InodeFlags, InodeSlot, RawInode};
use blockyard_disk::num::{u64_from_u32, u64_from_usize};
use blockyard_disk::{BlockNr, Compat, Incompat, RoCompat};

use super::attributes::InInode;
use super::{Examination, Role, small};
use crate::code::Code;
use crate::map::{Run, Walk, walk_extents, walk_indirect};
use crate::vitals::Laid;
use crate::volume::Volume;

/// Size of `i_block` in bytes. A symbolic link's target that is shorter than this is kept in
/// `i_block`.
pub(crate) const FAST_SYMLINK_MAX: u64 = 60;

/// What later passes need to know about the content of an inode.
#[derive(Debug, Default)]
pub(super) struct Content {
    /// The runs that a directory maps; empty for other types.
    pub(super) runs: Vec<Run>,
    /// Whether there is a map and it holds no blocks. False for a damaged map.
    pub(super) empty: bool,
    /// What the map contributes to the statistics that `e2fsck -v` counts (`vitals.rs`).
    pub(super) laid: Laid,
}

/// What a [`Walk`] over the inode's map found.
struct Sums {
    runs: Vec<Run>,
    blocks: u64,
    end: u64,
    end_written: u64,
    damaged: bool,
    split: bool,
}

/// The seed for the checksums of an inode's tree blocks; `None` without such blocks or without
/// metadata_csum. The walk over a map verifies no other checksums.
fn tree_seed(cx: &Examination<'_, '_, '_>, raw: &RawInode) -> Option<u32> {
    let checksums = &cx.scan.volume.checksums;
    has_tree_blocks(raw).then(|| checksums.inode_seed(cx.inode, raw.i_generation.get())).flatten()
}

fn walk_map(cx: &mut Examination<'_, '_, '_>, slot: &InodeSlot<&[u8]>, role: Role, keep_runs: bool) -> Sums {
    let raw = slot.raw();
    let volume = cx.scan.volume;
    let seed = tree_seed(cx, raw);
    let mut walk = Walk::new(volume, cx.scan.system, cx.inode, seed, cx.sink, cx.claims, cx.budget);
    walk.owns_metadata = role == Role::Resize;
    walk.keep_runs = keep_runs;
    if raw.flags().contains(InodeFlags::EXTENTS) {
        walk_extents(&mut walk, &raw.i_block);
    } else {
        if let Some(block) = volume.translator(raw) {
            walk.translator(block);
        }
        walk_indirect(&mut walk, &raw.block_words());
    }
    debug_assert!(walk.end_written <= walk.end, "written to {}, mapped to {}", walk.end_written, walk.end);
    Sums {
        runs: walk.runs,
        blocks: walk.blocks,
        end: walk.end,
        end_written: walk.end_written,
        damaged: walk.damaged,
        split: walk.split,
    }
}

/// Checks a file, directory or symbolic link whose content is in blocks, or a symbolic link whose
/// target is in `i_block`.
pub(super) fn check_mapped(
    cx: &mut Examination<'_, '_, '_>,
    slot: &InodeSlot<&[u8]>,
    role: Role,
    file_acl: u64,
    attributes: &InInode,
) -> Content {
    let raw = slot.raw();
    let kind = raw.file_type();
    let extents = raw.flags().contains(InodeFlags::EXTENTS);
    let extent_header = raw.i_block[..2] == extent::MAGIC.to_le_bytes();
    if kind == Some(FileType::Symlink) && is_fast_symlink(raw, file_acl, cx) {
        check_fast_symlink(cx, raw);
        check_blocks(cx, raw, file_acl);
        return Content::default();
    }
    if extents && !extent_header {
        cx.add(Code::EXTENTS_NO_HEADER, "");
        return Content::default();
    }
    let bigalloc = cx.scan.volume.ro_compat.contains(RoCompat::BIGALLOC);
    if !extents && bigalloc && role != Role::Resize && raw.block_words().iter().any(|&word| word != 0) {
        cx.add(Code::MAP_ON_BIGALLOC, "");
    }
    let directory = kind == Some(FileType::Directory);
    let keep = directory || kind == Some(FileType::Symlink);
    let sums = walk_map(cx, slot, role, keep);
    if !sums.damaged {
        check_blocks(cx, raw, sums.blocks + file_acl + attributes.value_blocks);
        match kind {
            Some(FileType::Directory) => check_directory_size(cx, raw, &sums),
            Some(FileType::Symlink) => check_slow_symlink(cx, raw, &sums),
            _ => check_file_size(cx, raw, &sums),
        }
    }
    let empty = sums.blocks == 0 && !sums.damaged;
    let laid = Laid { mapped: true, split: sums.split, blocks: sums.blocks };
    Content { runs: if directory { sums.runs } else { Vec::new() }, empty, laid }
}

/// Checks the map and `i_blocks` of a reserved inode that is a symbolic link, but not its size.
pub(super) fn check_map(cx: &mut Examination<'_, '_, '_>, slot: &InodeSlot<&[u8]>, file_acl: u64) {
    let sums = walk_map(cx, slot, Role::Reserved, false);
    if !sums.damaged {
        check_blocks(cx, slot.raw(), sums.blocks + file_acl);
    }
}

/// Checks that `i_blocks` is the number of allocated blocks, in the unit that the flags choose.
pub(super) fn check_blocks(cx: &mut Examination<'_, '_, '_>, raw: &RawInode, blocks: u64) {
    let volume = cx.scan.volume;
    if volume.is_hurd() {
        return;
    }
    let huge = volume.ro_compat.contains(RoCompat::HUGE_FILE);
    let stored = raw.blocks_field(huge);
    let in_blocks = huge && raw.flags().contains(InodeFlags::HUGE_FILE);
    let unit_bits = if in_blocks { 0 } else { volume.geometry.block_bits() - 9 };
    let counted = blocks << unit_bits;
    cx.expected.units = Some(counted);
    if stored != counted {
        cx.add(Code::BLOCKS_WRONG, format!("{stored}, counted {counted}"));
    }
}

fn check_directory_size(cx: &mut Examination<'_, '_, '_>, raw: &RawInode, sums: &Sums) {
    let bits = cx.scan.volume.geometry.block_bits();
    let size = raw.size();
    if is_to_be_finished(cx) && raw.i_links_count.get() == 0 {
        // The deletion frees the directory's blocks before its inode, so some may be freed already.
        return;
    }
    if sums.end == 0 {
        cx.add(Code::DIRECTORY_EMPTY, "");
        return;
    }
    cx.expected.size = Some(sums.end << bits);
    if size == 0 || size >> bits << bits != size || size >> bits != sums.end {
        cx.add(Code::SIZE_WRONG, format!("{size}, should be {}", sums.end << bits));
    }
    for run in sums.runs.iter().filter(|run| run.unwritten) {
        let site = cx.site().at_logical(run.logical).at_block(BlockNr::new(run.physical));
        cx.sink.add(Code::DIRECTORY_UNWRITTEN, site, "");
    }
}

/// Whether the journal was replayed and the inode is an orphan. The next mount then finishes its
/// deletion or truncation.
fn is_to_be_finished(cx: &Examination<'_, '_, '_>) -> bool {
    cx.scan.volume.is_replayed && cx.scan.orphans.contains(&cx.inode.raw())
}

fn check_file_size(cx: &mut Examination<'_, '_, '_>, raw: &RawInode, sums: &Sums) {
    let volume = cx.scan.volume;
    if is_to_be_finished(cx) {
        // There may be blocks past the end: the truncation that must be finished frees them.
        return check_size_limit(cx, raw);
    }
    let bits = volume.geometry.block_bits();
    let size = raw.size();
    let verity = raw.flags().contains(InodeFlags::VERITY);
    let blocks = size.div_ceil(1 << bits);
    cx.expected.size = Some(sums.end_written << bits);
    if has_tree_blocks(raw) && sums.end_written > blocks && !verity {
        let detail =
            format!("written to logical block {}, the size ends before {blocks}", sums.end_written - 1);
        cx.add(Code::EXTENT_BEYOND_PARENT, detail);
    } else if sums.end_written > 0 && size < (sums.end_written - 1) << bits && !verity {
        // If the extent tree has no blocks of its own, a written block that begins exactly at the
        // end of the file is tolerated. A crash between the allocation and the update of the size
        // leaves such a block.
        cx.add(Code::SIZE_WRONG, format!("{size}, the last written block is {}", sums.end_written - 1));
    }
    check_size_limit(cx, raw);
    let large = volume.ro_compat.contains(RoCompat::LARGE_FILE);
    if size >= 1 << 31 && !large {
        cx.add(Code::LARGE_FILE_FEATURE, format!("{size} bytes"));
    }
}

/// Checks that the size is not beyond what the map can hold.
pub(super) fn check_size_limit(cx: &mut Examination<'_, '_, '_>, raw: &RawInode) {
    let volume = cx.scan.volume;
    let blocks = raw.size().div_ceil(1 << volume.geometry.block_bits());
    if blocks > blocks_max(volume, raw) {
        cx.add(Code::SIZE_WRONG, format!("{} is beyond what the map can hold", raw.size()));
    }
}

/// Whether the extent tree has blocks of its own: the depth in the header in `i_block` is not 0. In
/// such a tree, e2fsck does not tolerate even one written block past the size (`check_file_size`).
fn has_tree_blocks(raw: &RawInode) -> bool {
    let [_, _, _, _, _, _, low, high, ..] = raw.i_block;
    raw.flags().contains(InodeFlags::EXTENTS) && (low, high) != (0, 0)
}

/// Blocks that the map of an inode can address. The flag EXTENTS counts only with the feature
/// `extents`.
fn blocks_max(volume: &Volume<'_>, raw: &RawInode) -> u64 {
    if raw.flags().contains(InodeFlags::EXTENTS) && volume.incompat.contains(Incompat::EXTENTS) {
        return u64_from_u32(u32::MAX);
    }
    let per = u64_from_usize(volume.block_size() / 4);
    12 + per + per * per + per * per * per
}

/// Whether a symbolic link's target is in `i_block`: it is short enough, and `i_blocks` counts no
/// block except an attribute block. As observed, e2fsck ignores `i_blocks` if all of this holds:
/// - The link has an attribute block.
/// - The link has no extents flag.
/// - Word 0 of `i_block` is no possible block number.
fn is_fast_symlink(raw: &RawInode, file_acl: u64, cx: &Examination<'_, '_, '_>) -> bool {
    let volume = cx.scan.volume;
    let huge = volume.ro_compat.contains(RoCompat::HUGE_FILE);
    let own = raw.sectors(huge, volume.geometry.block_bits());
    let attribute = file_acl << (volume.geometry.block_bits() - 9);
    let is_no_map = file_acl != 0
        && !raw.flags().contains(InodeFlags::EXTENTS)
        && !volume.contains(BlockNr::new(u64_from_u32(raw.block_words()[0])));
    raw.size() < FAST_SYMLINK_MAX && (own == attribute || is_no_map)
}

fn check_fast_symlink(cx: &mut Examination<'_, '_, '_>, raw: &RawInode) {
    let size = small(raw.size());
    if raw.flags().contains(InodeFlags::EXTENTS) {
        cx.add(Code::SYMLINK_EXTENTS, "");
    } else if raw.flags().contains(InodeFlags::ENCRYPT) {
        check_encrypted_target(cx, raw, &raw.i_block);
    } else if size == 0 || raw.i_block.iter().position(|&byte| byte == 0) != Some(size) {
        let length = raw.i_block.iter().position(|&byte| byte == 0);
        cx.expected.size = length.filter(|&length| length > 0).map(u64_from_usize);
        cx.add(Code::SYMLINK, format!("{size} bytes"));
    }
}

fn check_slow_symlink(cx: &mut Examination<'_, '_, '_>, raw: &RawInode, sums: &Sums) {
    let volume = cx.scan.volume;
    let size = raw.size();
    let one_block = matches!(sums.runs[..], [Run { logical: 0, length: 1, unwritten: false, .. }]);
    // A target that fits in the inode must not be in a block. A target in a block is followed by
    // NUL, so it cannot fill the block.
    if !one_block || size < FAST_SYMLINK_MAX || size >= u64_from_usize(volume.block_size()) {
        cx.expected.size = if one_block { target_length(cx, &sums.runs[0]) } else { None };
        cx.add(Code::SYMLINK, format!("{size} bytes, {} runs of blocks", sums.runs.len()));
        return;
    }
    let place = BlockNr::new(sums.runs[0].physical);
    let Ok(block) = volume.block(place) else {
        let site = cx.site().at_block(place);
        return cx.sink.add(Code::MAP_READ, site, "");
    };
    if raw.flags().contains(InodeFlags::ENCRYPT) {
        return check_encrypted_target(cx, raw, &block);
    }
    let length = block.iter().position(|&byte| byte == 0).unwrap_or(block.len());
    if length != small(size) {
        let fits = FAST_SYMLINK_MAX..u64_from_usize(volume.block_size());
        cx.expected.size = Some(u64_from_usize(length)).filter(|length| fits.contains(length));
        cx.add(Code::SYMLINK, format!("{size} bytes, the target has {length}"));
    }
}

/// Length of the target in the block of a link, in bytes. `None` if the block cannot be read or has
/// no NUL, or if the target would fit in the inode.
fn target_length(cx: &Examination<'_, '_, '_>, run: &Run) -> Option<u64> {
    let block = cx.scan.volume.block(BlockNr::new(run.physical)).ok()?;
    let length = block.iter().position(|&byte| byte == 0)?;
    Some(u64_from_usize(length)).filter(|&length| length >= FAST_SYMLINK_MAX)
}

/// Checks that the link's size fits the length in the first two bytes of its encrypted target. The
/// rest of the target is opaque.
fn check_encrypted_target(cx: &mut Examination<'_, '_, '_>, raw: &RawInode, target: &[u8]) {
    let length = u64::from(u16::from_le_bytes([target[0], target[1]]));
    if length + 2 != raw.size() {
        cx.add(Code::SYMLINK, format!("{} bytes, encrypted, the target has {length}", raw.size()));
    }
}

/// Checks a device, pipe or socket, whose attributes occupy `attribute_blocks` blocks.
pub(super) fn check_special(cx: &mut Examination<'_, '_, '_>, raw: &RawInode, attribute_blocks: u64) {
    let code = match raw.file_type() {
        Some(FileType::CharDevice) => Code::CHAR_DEVICE,
        Some(FileType::BlockDevice) => Code::BLOCK_DEVICE,
        Some(FileType::Fifo) => Code::FIFO,
        _ => Code::SOCKET,
    };
    if raw.flags().intersects(InodeFlags::EXTENTS | InodeFlags::INLINE_DATA) {
        cx.add(Code::SPECIAL_FLAGS, "");
    }
    let device = matches!(raw.file_type(), Some(FileType::CharDevice | FileType::BlockDevice));
    let words = raw.block_words();
    let free_from = if device { 3 } else { 0 };
    if words[free_from..].iter().any(|&word| word != 0) {
        cx.add(code, "");
    }
    if raw.size() != 0 {
        cx.add(Code::SPECIAL_SIZE, format!("{} bytes", raw.size()));
    }
    check_blocks(cx, raw, attribute_blocks);
}

/// Checks inline data: the attribute `system.data` must exist, and the size must fit.
pub(super) fn check_inline(
    cx: &mut Examination<'_, '_, '_>,
    raw: &RawInode,
    directory: bool,
    file_acl: u64,
    attributes: &InInode,
) {
    if !cx.scan.volume.incompat.contains(Incompat::INLINE_DATA) {
        return;
    }
    let Some(tail) = &attributes.inline_tail else {
        return cx.add(Code::INLINE_NO_ATTRIBUTE, "");
    };
    let indexed = directory && raw.flags().contains(InodeFlags::INDEX);
    if indexed && cx.scan.volume.compat.contains(Compat::DIR_INDEX) {
        cx.add(Code::HTREE_ROOT, "inline directories have no index");
    }
    let room = u64_from_usize(60 + tail.len());
    let size = raw.size();
    cx.expected.size = Some(room);
    // e2fsck calls the size of a regular file with inline data wrong only if not even a file in
    // blocks could be as large. A smaller size that exceeds the room in the inode is only a note.
    let largest = blocks_max(cx.scan.volume, raw) << cx.scan.volume.geometry.block_bits();
    if (directory && size != room) || size > largest {
        cx.add(Code::SIZE_WRONG, format!("{size}, there is room for {room}"));
    } else if size > room {
        cx.add(Code::INLINE_SIZE, format!("{size}, there is room for {room}"));
    }
    check_blocks(cx, raw, file_acl + attributes.value_blocks);
}

/// Checks a symbolic link with inline data, as `mke2fs -d` makes it (Linux does not). The attribute
/// must exist, and `i_size` must be the length of the data; nothing else is checked.
pub(super) fn check_inline_symlink(cx: &mut Examination<'_, '_, '_>, raw: &RawInode, attributes: &InInode) {
    if !cx.scan.volume.incompat.contains(Incompat::INLINE_DATA) {
        return;
    }
    match &attributes.inline_tail {
        None => cx.add(Code::INLINE_NO_ATTRIBUTE, ""),
        Some(tail) if raw.size() != u64_from_usize(60 + tail.len()) => {
            cx.expected.size = Some(u64_from_usize(60 + tail.len()));
            cx.add(Code::SYMLINK, format!("{} bytes, inline data of {}", raw.size(), 60 + tail.len()));
        }
        Some(_) => {}
    }
}

/// Claims the blocks that the bad-blocks inode maps, and returns their runs. Like e2fsck, this
/// accepts two oddities:
/// - The list may have blocks of metadata. They are not claimed.
/// - The inode may have the extents flag, but no extent header. The list is then empty.
pub(super) fn claim_bad_blocks(cx: &mut Examination<'_, '_, '_>, raw: &RawInode) -> Vec<Run> {
    let volume = cx.scan.volume;
    let seed = tree_seed(cx, raw);
    let mut walk = Walk::new(volume, cx.scan.system, cx.inode, seed, cx.sink, cx.claims, cx.budget);
    walk.skips_metadata = true;
    walk.keep_runs = true;
    if !raw.flags().contains(InodeFlags::EXTENTS) {
        walk_indirect(&mut walk, &raw.block_words());
    } else if raw.i_block[..2] == extent::MAGIC.to_le_bytes() {
        walk_extents(&mut walk, &raw.i_block);
    }
    walk.runs
}
