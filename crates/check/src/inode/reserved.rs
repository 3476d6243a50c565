//! Pass 1: reserved inodes that this file system does not use, and the list of bad blocks.
//!
//! As observed, e2fsck looks at these inodes even if their link counts are 0, but checks little of
//! them.

use std::collections::BTreeSet;

use blockyard_disk::inode::{FileType, InodeFlags, InodeSlot, RawInode};
use blockyard_disk::superblock::PRIMARY_OFFSET;
use blockyard_disk::{BlockNr, GroupNr, Incompat, InodeNr};

use super::attributes::{InInode, check_block_field};
use super::{Examination, Role, check_low_deletion_time, content};
use crate::code::Code;
use crate::facts::{GroupFacts, Kind};

/// The boot loader's inode. It may have any type except directory.
const BOOT_LOADER: InodeNr = InodeNr::new(5);
/// The inodes that usually hold quota files.
const QUOTA: [InodeNr; 2] = [InodeNr::new(3), InodeNr::new(4)];

/// Checks a reserved inode; returns what later passes need to know.
pub(super) fn check(
    cx: &mut Examination<'_, '_, '_>,
    slot: &InodeSlot<&[u8]>,
    facts: &mut GroupFacts,
) -> Kind {
    let raw = slot.raw();
    check_low_deletion_time(cx, raw);
    check_flags(cx, raw);
    if QUOTA.contains(&cx.inode) || cx.inode == InodeNr::JOURNAL {
        check_purposeless(cx, raw);
        return Kind::RESERVED;
    }
    check_mode(cx, raw);
    let file_acl = check_block_field(cx, raw, facts);
    match raw.file_type() {
        Some(FileType::Regular) if is_unmapped(cx, raw) => {
            content::check_blocks(cx, raw, file_acl);
            content::check_size_limit(cx, raw);
        }
        Some(FileType::Regular | FileType::Directory) => {
            // Even without the feature `resize_inode`, inode 7 may map descriptor blocks.
            let role = if cx.inode == InodeNr::RESIZE { Role::Resize } else { Role::Reserved };
            content::check_mapped(cx, slot, role, file_acl, &InInode::default());
        }
        // The size of a symbolic link is not checked.
        Some(FileType::Symlink) if is_mapped_link(cx, raw) => content::check_map(cx, slot, file_acl),
        Some(FileType::Symlink) => {
            content::check_blocks(cx, raw, file_acl);
            check_inline_link(cx, raw);
        }
        _ => {
            content::check_blocks(cx, raw, file_acl);
            content::check_size_limit(cx, raw);
        }
    }
    Kind::RESERVED
}

/// Whether the flags keep e2fsck from reading a map in `i_block`. The flag INLINE_DATA does, even
/// without the feature `inline_data`. The flag EXTENTS does only without the feature `extents`.
fn is_unmapped(cx: &Examination<'_, '_, '_>, raw: &RawInode) -> bool {
    let extents = cx.scan.volume.incompat.contains(Incompat::EXTENTS);
    let flags = raw.flags();
    flags.contains(InodeFlags::INLINE_DATA) || (flags.contains(InodeFlags::EXTENTS) && !extents)
}

/// Whether e2fsck reads the map of a symbolic link. It does so only if the link has an attribute
/// block, because it then takes the target to be in a block.
fn is_mapped_link(cx: &Examination<'_, '_, '_>, raw: &RawInode) -> bool {
    let has_attributes = cx.scan.volume.file_acl(raw) != BlockNr::ZERO;
    has_attributes && raw.size() != 0 && !is_unmapped(cx, raw)
}

/// Checks a symbolic link without a map. If a link that is not empty has the inline-data flag and
/// an attribute block, e2fsck reports the flag. But if the attribute block is outside the file
/// system, e2fsck reports that block instead.
fn check_inline_link(cx: &mut Examination<'_, '_, '_>, raw: &RawInode) {
    let attributes = cx.scan.volume.file_acl(raw);
    let inline = raw.flags().contains(InodeFlags::INLINE_DATA);
    if !inline || raw.size() == 0 || attributes == BlockNr::ZERO {
        return;
    }
    if cx.scan.volume.contains(attributes) {
        cx.add(Code::INLINE_WITHOUT_FEATURE, "");
    } else {
        let site = cx.site().at_block(attributes);
        cx.sink.add(Code::XATTR_BLOCK_PLACE, site, "");
    }
}

/// Checks an inode reserved for a journal or quota that the file system does not have.
fn check_purposeless(cx: &mut Examination<'_, '_, '_>, raw: &RawInode) {
    if raw.i_links_count.get() != 0 || raw.i_blocks_lo.get() != 0 || raw.block_words()[0] != 0 {
        let journal = cx.inode == InodeNr::JOURNAL;
        cx.add(if journal { Code::JOURNAL_INODE_IN_USE } else { Code::QUOTA_INODE_IN_USE }, "");
    }
}

/// Checks the few flags that e2fsck looks at in reserved inodes.
fn check_flags(cx: &mut Examination<'_, '_, '_>, raw: &RawInode) {
    let flags = raw.flags();
    let volume = cx.scan.volume;
    let directory = raw.file_type() == Some(FileType::Directory);
    let list = matches!(cx.inode, InodeNr::BAD_BLOCKS | InodeNr::JOURNAL);
    if flags.contains(InodeFlags::CASEFOLD) && !directory {
        cx.add(Code::CASEFOLD_NOT_DIRECTORY, "");
    }
    let both = InodeFlags::EXTENTS | InodeFlags::INLINE_DATA;
    if flags.contains(both) && volume.incompat.intersects(Incompat::EXTENTS | Incompat::INLINE_DATA) {
        cx.add(Code::BOTH_MAP_FLAGS, "");
    }
    let asked = list || raw.i_links_count.get() != 0;
    if flags.contains(InodeFlags::EXTENTS) && asked && !volume.incompat.contains(Incompat::EXTENTS) {
        cx.add(Code::EXTENTS_WITHOUT_FEATURE, "");
    }
    if flags.contains(InodeFlags::INDEX) && !directory && !list && !QUOTA.contains(&cx.inode) {
        cx.add(Code::INDEX_NOT_DIRECTORY, "");
    }
}

fn check_mode(cx: &mut Examination<'_, '_, '_>, raw: &RawInode) {
    let mode = raw.i_mode.get();
    let kind = raw.file_type();
    let allowed = match cx.inode {
        BOOT_LOADER => kind != Some(FileType::Directory),
        InodeNr::RESIZE => mode == 0 || kind == Some(FileType::Regular),
        _ => mode == 0,
    };
    if !allowed {
        cx.add(Code::RESERVED_MODE, format!("i_mode = {mode:#o}"));
    } else if cx.inode == InodeNr::RESIZE && mode != 0 {
        cx.add(Code::RESIZE_WITHOUT_FEATURE, "");
    }
}

/// Checks the inode that lists bad blocks, and claims what it maps.
pub(super) fn check_bad_blocks(cx: &mut Examination<'_, '_, '_>, raw: &RawInode, facts: &mut GroupFacts) {
    check_low_deletion_time(cx, raw);
    check_flags(cx, raw);
    let fields = [
        ("i_mode", raw.i_mode.get()),
        ("i_uid", raw.i_uid.get()),
        ("i_gid", raw.i_gid.get()),
        ("i_links_count", raw.i_links_count.get()),
    ];
    for (name, value) in fields.into_iter().filter(|field| field.1 != 0) {
        cx.add(Code::BAD_BLOCKS_INODE, format!("{name} = {value}"));
    }
    // The high half of `i_file_acl` is not checked.
    if raw.i_file_acl_lo.get() != 0 {
        cx.add(Code::BAD_BLOCKS_INODE, format!("i_file_acl_lo = {}", raw.i_file_acl_lo));
    }
    if raw.flags().contains(InodeFlags::INLINE_DATA) {
        return cx.add(Code::BAD_BLOCKS_INODE, "inline data");
    }
    let blocks: BTreeSet<u64> =
        content::claim_bad_blocks(cx, raw).into_iter().map(|run| run.physical).collect();
    let volume = cx.scan.volume;
    let own = volume.group_of(GroupNr::new(0)).desc.inode_table();
    if blocks.contains(&own.raw()) {
        cx.add(Code::BAD_LIST_PLACE, format!("block {own}"));
    }
    let superblock = PRIMARY_OFFSET >> volume.geometry.block_bits();
    let descriptors = (0..volume.desc_blocks()).map(|index| volume.desc_block(index).raw());
    for block in descriptors.chain([superblock]).filter(|block| blocks.contains(block)) {
        cx.add(Code::BAD_PRIMARY, format!("block {block}"));
    }
    for group in volume.groups.iter().filter(|_| !blocks.is_empty()) {
        let bitmaps = [
            (Code::BAD_BLOCK_BITMAP, group.desc.block_bitmap().raw()),
            (Code::BAD_INODE_BITMAP, group.desc.inode_bitmap().raw()),
        ];
        for (code, block) in bitmaps.into_iter().filter(|bitmap| blocks.contains(&bitmap.1)) {
            cx.add(code, format!("block {block}"));
        }
    }
    facts.bad_blocks = blocks;
}
