//! Pass 1, one inode: finds out whether it is in use, and checks its flags, fields, map, size and
//! block count.
//!
//! If the map is damaged, size and block count are not checked, because nothing is known about what
//! they should be.

mod attributes;
mod content;
mod reserved;
mod usage;

use attributes::InInode;
pub(crate) use attributes::{hash_matches, stored_offset};
pub(crate) use content::FAST_SYMLINK_MAX;

use blockyard_disk::extent::{self, RawExtentHeader};
use blockyard_disk::inode::{FileType, InodeFlags, InodeSlot, RawInode};
use blockyard_disk::num::{usize_from_u32, usize_from_u64};
use blockyard_disk::{Compat, Incompat, InodeNr, RoCompat};
use zerocopy::FromBytes;

use crate::block_map::BlockMap;
use crate::code::Code;
use crate::descriptors::SystemRange;
use crate::facts::{DirBody, DirFact, GroupFacts, InlineBody, Kind, ValueInode};
use crate::finding::{Sink, Site};
use crate::map::{Budget, Claims, Run};
use crate::superblock::quota::quota_inodes;
use crate::superblock::{is_hidden, is_used_by_name};
use crate::vitals::blocks_per_group;
use crate::volume::Volume;

/// Detail of [`Code::INODE_CHECKSUM`] for an inode whose extent tree has blocks of its own.
pub(crate) const EXTENT_BLOCKS: &str = "its extents lie in blocks";

/// What the examinations of all inodes share.
pub(crate) struct Scan<'a, 'v> {
    pub(crate) volume: &'a Volume<'v>,
    pub(crate) system: &'a [SystemRange],
    pub(crate) map: &'a BlockMap,
    pub(crate) orphans: &'a std::collections::BTreeSet<u32>,
}

/// One inode being examined, and where its findings and claims go.
pub(crate) struct Examination<'a, 's, 'v> {
    pub(crate) scan: &'a Scan<'s, 'v>,
    pub(crate) inode: InodeNr,
    pub(crate) sink: &'a mut Sink,
    pub(crate) claims: &'a mut dyn Claims,
    pub(crate) budget: &'a mut Budget,
    /// What the fields should hold, where that is known.
    pub(crate) expected: Expected,
}

/// What the fields of an inode should hold, judged by its content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Expected {
    /// `i_blocks` in its unit: 512 bytes, or blocks if the inode has the flag HUGE_FILE.
    pub(crate) units: Option<u64>,
    /// `i_size` in bytes.
    pub(crate) size: Option<u64>,
}

impl Examination<'_, '_, '_> {
    fn site(&self) -> Site {
        Site::inode(self.inode)
    }

    fn add(&mut self, code: Code, detail: impl Into<String>) {
        let site = self.site();
        self.sink.add(code, site, detail);
    }
}

/// What an inode is for, by its number and the superblock. This decides what its fields must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Ordinary,
    Root,
    BadBlocks,
    Journal,
    Resize,
    OrphanFile,
    Quota,
    /// A reserved number that this file system does not use, or an inode that the superblock names
    /// as a quota file although the feature `quota` is off.
    Reserved,
}

fn role(scan: &Scan<'_, '_>, inode: InodeNr) -> Role {
    let volume = scan.volume;
    let sb = &volume.sb;
    // Even without the feature `has_journal`, the inode in `s_journal_inum` counts as the journal.
    // The check of the journal reports the contradiction.
    let journal = sb.s_journal_inum.get() == inode.raw();
    let orphan_file =
        volume.compat.contains(Compat::ORPHAN_FILE) && sb.s_orphan_file_inum.get() == inode.raw();
    match inode {
        InodeNr::ROOT => Role::Root,
        InodeNr::BAD_BLOCKS => Role::BadBlocks,
        InodeNr::RESIZE if volume.compat.contains(Compat::RESIZE_INODE) => Role::Resize,
        _ if journal => Role::Journal,
        _ if orphan_file => Role::OrphanFile,
        _ if inode.raw() >= volume.first_inode() && !is_hidden(volume, inode) => Role::Ordinary,
        _ if is_hidden(volume, inode)
            && volume.ro_compat.contains(RoCompat::QUOTA)
            && is_quota(scan, inode) =>
        {
            Role::Quota
        }
        _ => Role::Reserved,
    }
}

fn is_quota(scan: &Scan<'_, '_>, inode: InodeNr) -> bool {
    quota_inodes(&scan.volume.sb).contains(&inode.raw())
}

/// Examines one slot and records its facts.
pub(crate) fn examine(cx: &mut Examination<'_, '_, '_>, bytes: &[u8], facts: &mut GroupFacts) {
    let (_, index) = cx.scan.volume.geometry.locate_inode(cx.inode);
    let index = usize_from_u32(index);
    assert!(index < facts.kinds.len(), "inode {} of {} that are scanned", cx.inode, facts.kinds.len());
    let role = role(cx.scan, cx.inode);
    let slot = InodeSlot::new(bytes);
    let raw = slot.raw();
    let orphan = cx.scan.orphans.contains(&cx.inode.raw());
    if is_stale_orphan_file(cx, raw, role) {
        // The inode counts as unused, so directory entries that name it are faults, too.
        return cx.add(Code::ORPHAN_FILE_IN_USE, "s_orphan_file_inum names it");
    }
    facts.links.set(index, raw.i_links_count.get());
    let reserved = cx.inode.raw() < cx.scan.volume.first_inode();
    if role == Role::BadBlocks || (role == Role::Reserved && reserved) {
        check_checksum(cx, &slot);
        facts.kinds[index] = Kind::RESERVED;
        return match role {
            Role::BadBlocks => reserved::check_bad_blocks(cx, raw, facts),
            _ => facts.kinds[index] = reserved::check(cx, &slot, facts),
        };
    }
    if raw.i_links_count.get() == 0
        && !orphan
        && matches!(role, Role::Ordinary | Role::Reserved | Role::OrphanFile)
    {
        let volume = cx.scan.volume;
        if reserved || is_used_by_name(&volume.sb, cx.inode) {
            facts.kinds[index] = Kind::RESERVED;
        }
        check_checksum(cx, &slot);
        return check_unused(cx, raw);
    }
    if role == Role::Reserved && raw.i_mode.get() == 0 && raw.i_links_count.get() == 0 {
        facts.kinds[index] = Kind::RESERVED;
        return;
    }
    facts.kinds[index] = examine_used(cx, &slot, role, facts).with_orphan(orphan);
}

/// Whether the superblock names this inode as the orphan file although the feature `orphan_file` is
/// off, and the inode has a mode. Never true of the bad-blocks inode or the journal.
fn is_stale_orphan_file(cx: &Examination<'_, '_, '_>, raw: &RawInode, role: Role) -> bool {
    let volume = cx.scan.volume;
    !volume.compat.contains(Compat::ORPHAN_FILE)
        && volume.sb.s_orphan_file_inum.get() == cx.inode.raw()
        && !matches!(role, Role::BadBlocks | Role::Journal)
        && raw.i_mode.get() != 0
}

/// Verifies the inode's checksum, unless the inode's first 128 bytes are zero. Like e2fsck, this
/// takes such an inode for one that was never written.
fn check_checksum(cx: &mut Examination<'_, '_, '_>, slot: &InodeSlot<&[u8]>) {
    let was_written = slot.bytes()[..RawInode::SIZE] != [0; RawInode::SIZE];
    if was_written && cx.scan.volume.checksums.verify_inode(cx.inode, slot).is_err() {
        let detail = if has_extent_blocks(slot.raw()) { EXTENT_BLOCKS } else { "" };
        cx.add(Code::INODE_CHECKSUM, detail);
    }
}

/// Whether the extent tree of a file, directory or symbolic link has blocks of its own, by the
/// depth in `i_block`. False if the inode's link count is 0.
pub(crate) fn has_extent_blocks(raw: &RawInode) -> bool {
    let is_mapped =
        matches!(raw.file_type(), Some(FileType::Regular | FileType::Directory | FileType::Symlink));
    let (header, _) = RawExtentHeader::read_from_prefix(&raw.i_block).expect("12 of 60 bytes");
    is_mapped
        && raw.i_links_count.get() > 0
        && raw.flags().contains(InodeFlags::EXTENTS)
        && header.eh_magic.get() == extent::MAGIC
        && header.eh_depth.get() > 0
}

/// An inode with a mode but no links must have a deletion time, unless it is a reserved inode.
fn check_unused(cx: &mut Examination<'_, '_, '_>, raw: &RawInode) {
    if raw.i_mode.get() != 0 && raw.i_dtime.get() == 0 && cx.inode.raw() >= cx.scan.volume.first_inode() {
        cx.add(Code::UNUSED_NO_DTIME, "");
    }
    check_low_deletion_time(cx, raw);
}

/// An inode in use must have no deletion time, unless it is an orphan. For the inode of the orphan
/// file, and for reserved inodes other than the root, a deletion time is reported only if it looks
/// like a link of the orphan list.
fn check_deletion_time(cx: &mut Examination<'_, '_, '_>, raw: &RawInode, role: Role) {
    let ordinary = cx.inode.raw() >= cx.scan.volume.first_inode() && role != Role::OrphanFile;
    let is_asked = role == Role::Root || ordinary;
    if raw.i_dtime.get() != 0 && is_asked && !cx.scan.orphans.contains(&cx.inode.raw()) {
        let code = if role == Role::Root { Code::ROOT_DTIME } else { Code::USED_DTIME };
        cx.add(code, format!("i_dtime = {}", raw.i_dtime.get()));
    }
    if !cx.scan.orphans.contains(&cx.inode.raw()) {
        check_low_deletion_time(cx, raw);
    }
}

/// Reports a deletion time that could be an inode number: it may be a link that was left from an
/// orphan list.
fn check_low_deletion_time(cx: &mut Examination<'_, '_, '_>, raw: &RawInode) {
    let dtime = raw.i_dtime.get();
    if dtime != 0 && dtime < cx.scan.volume.geometry.inodes_count() {
        cx.add(Code::LOW_DTIME, format!("i_dtime = {dtime}"));
    }
}

fn examine_used(
    cx: &mut Examination<'_, '_, '_>,
    slot: &InodeSlot<&[u8]>,
    role: Role,
    facts: &mut GroupFacts,
) -> Kind {
    let raw = slot.raw();
    check_checksum(cx, slot);
    check_deletion_time(cx, raw, role);
    check_role(cx, raw, role);
    if !is_hidden(cx.scan.volume, cx.inode) {
        check_fields(cx, raw);
    }
    let kind = raw.file_type();
    check_flags(cx, raw, kind);
    let attributes = if matches!(role, Role::Resize | Role::Journal | Role::OrphanFile) {
        InInode::default()
    } else {
        attributes::check_in_inode(cx, slot, facts)
    };
    if raw.flags().contains(InodeFlags::INLINE_DATA)
        && !cx.scan.volume.incompat.contains(Incompat::INLINE_DATA)
    {
        let has_data = attributes.inline_tail.is_some();
        cx.add(if has_data { Code::INLINE_UNDECLARED } else { Code::INLINE_WITHOUT_FEATURE }, "");
    }
    let file_acl = attributes::check_block_field(cx, raw, facts);
    if cx.scan.volume.ro_compat.contains(RoCompat::QUOTA) && matches!(role, Role::Ordinary | Role::Root) {
        usage::note(cx, slot, &attributes, &mut facts.usages);
    }
    if raw.flags().contains(InodeFlags::ENCRYPT) && matches!(role, Role::Ordinary | Role::Root) {
        let (_, index) = cx.scan.volume.geometry.locate_inode(cx.inode);
        facts.policies.push((usize_from_u32(index), attributes::policy(cx, raw, &attributes)));
    }
    let content = check_content(cx, slot, role, file_acl, &attributes);
    let ordinary = matches!(role, Role::Ordinary | Role::Root);
    if ordinary {
        facts.vitals.note_type(raw, content.laid);
    }
    if role != Role::Resize {
        facts.vitals.note_pieces(raw, content.laid, blocks_per_group(cx.scan.volume));
    }
    facts.vitals.note_map(raw, content.laid, ordinary);
    // Pass 2 does not walk a directory whose deletion must be finished: its entry in the parent is
    // already removed.
    let is_deleted = raw.i_links_count.get() == 0 && cx.scan.orphans.contains(&cx.inode.raw());
    if kind == Some(FileType::Directory) && !is_deleted {
        facts.directories.push(directory(cx, raw, content.runs, &attributes));
    }
    // A value inode is recorded even without the feature `ea_inode`, because attributes may refer
    // to it.
    let is_value = raw.flags().contains(InodeFlags::EA_INODE);
    if is_value {
        facts.value_inodes.push(value_inode(cx.inode, raw));
    }
    let dirent = kind.map_or(0, FileType::dirent_byte);
    let unnamed = matches!(role, Role::Reserved | Role::Quota);
    let known = if kind.is_none() && unnamed { Kind::RESERVED } else { Kind::of_type(dirent) };
    known.with_ea_inode(is_value).with_empty(content.empty && attributes.count == 0)
}

/// Checks the content of an inode by the rules for its type.
fn check_content(
    cx: &mut Examination<'_, '_, '_>,
    slot: &InodeSlot<&[u8]>,
    role: Role,
    file_acl: u64,
    attributes: &InInode,
) -> content::Content {
    let raw = slot.raw();
    let kind = raw.file_type();
    let inline = raw.flags().contains(InodeFlags::INLINE_DATA);
    match kind {
        Some(FileType::Symlink) if inline => content::check_inline_symlink(cx, raw, attributes),
        Some(FileType::Regular | FileType::Directory) if inline => {
            let directory = kind == Some(FileType::Directory);
            content::check_inline(cx, raw, directory, file_acl, attributes);
        }
        Some(FileType::Regular | FileType::Directory | FileType::Symlink) => {
            return content::check_mapped(cx, slot, role, file_acl, attributes);
        }
        Some(FileType::CharDevice | FileType::BlockDevice | FileType::Fifo | FileType::Socket) => {
            content::check_special(cx, raw, file_acl + attributes.value_blocks);
        }
        None if role == Role::Resize && raw.i_mode.get() == 0 => content::check_blocks(cx, raw, file_acl),
        None => {
            if role != Role::Quota && (role != Role::Reserved || raw.i_mode.get() != 0) {
                cx.add(Code::MODE_INVALID, format!("i_mode = {:#o}", raw.i_mode.get()));
            }
        }
    }
    content::Content::default()
}

/// What pass 2 needs to know about a directory.
fn directory(cx: &Examination<'_, '_, '_>, raw: &RawInode, runs: Vec<Run>, attributes: &InInode) -> DirFact {
    let flags = raw.flags();
    let body = if flags.contains(InodeFlags::INLINE_DATA) {
        let tail = attributes.inline_tail.clone().unwrap_or_default();
        DirBody::Inline(Box::new(InlineBody { head: raw.i_block, tail }))
    } else {
        // The runs are copied into an allocation of the exact size, because the lists of all
        // directories stay in memory. Shrinking the walk's vector in place would leave a gap in the
        // heap that is too short for the vector of the next walk.
        DirBody::Blocks { runs: runs.as_slice().into() }
    };
    DirFact {
        inode: cx.inode,
        seed: cx.scan.volume.checksums.inode_seed(cx.inode, raw.i_generation.get()),
        indexed: flags.contains(InodeFlags::INDEX),
        encrypted: flags.contains(InodeFlags::ENCRYPT),
        casefold: flags.contains(InodeFlags::CASEFOLD),
        body,
    }
}

/// What a value inode says about itself. The high half of its reference count is in `i_ctime`, the
/// low half in `i_version`. Its hash is in `i_atime`.
fn value_inode(inode: InodeNr, raw: &RawInode) -> ValueInode {
    let low = u64::from(raw.i_version.get());
    let refcount = u64::from(raw.i_ctime.get()) << 32 | low;
    ValueInode { inode, size: raw.size(), hash: raw.i_atime.get(), refcount }
}

/// Checks that the mode of an inode suits its role. For the resize inode, also checks the map.
fn check_role(cx: &mut Examination<'_, '_, '_>, raw: &RawInode, role: Role) {
    let kind = raw.file_type();
    let regular = kind == Some(FileType::Regular);
    match role {
        Role::Root if kind != Some(FileType::Directory) => cx.add(Code::ROOT_NOT_DIRECTORY, ""),
        Role::Journal if !regular => cx.add(Code::JOURNAL_MODE, ""),
        Role::Quota if !regular => cx.add(Code::QUOTA_MODE, format!("i_mode = {:#o}", raw.i_mode.get())),
        Role::OrphanFile if !regular => cx.add(Code::ORPHAN_FILE_MODE, ""),
        Role::Reserved if raw.i_mode.get() != 0 => {
            cx.add(Code::RESERVED_MODE, format!("i_mode = {:#o}", raw.i_mode.get()));
        }
        Role::Resize => crate::descriptors::check_resize_inode(cx.scan.volume, raw, cx.sink),
        _ => {}
    }
}

/// Checks fields that must be zero, or need a feature.
fn check_fields(cx: &mut Examination<'_, '_, '_>, raw: &RawInode) {
    let volume = cx.scan.volume;
    if raw.i_obso_faddr.get() != 0 {
        cx.add(Code::FADDR, format!("i_faddr = {}", raw.i_obso_faddr.get()));
    }
    if !volume.ro_compat.contains(RoCompat::HUGE_FILE) && raw.i_blocks_high.get() != 0 {
        cx.add(Code::BLOCKS_HIGH, format!("i_blocks_high = {}", raw.i_blocks_high.get()));
    }
    if !volume.incompat.contains(Incompat::BIT64) && raw.i_file_acl_high.get() != 0 {
        cx.add(Code::FILE_ACL_HIGH, format!("i_file_acl_high = {}", raw.i_file_acl_high.get()));
    }
    let file_acl = volume.file_acl(raw);
    if !volume.compat.contains(Compat::EXT_ATTR) && file_acl.raw() != 0 {
        cx.add(Code::XATTR_WITHOUT_FEATURE, format!("i_file_acl = {file_acl}"));
    }
    let directory = raw.file_type() == Some(FileType::Directory);
    let large_dirs = volume.incompat.contains(Incompat::LARGE_DIR);
    if directory && raw.i_size_high.get() != 0 && !large_dirs {
        cx.add(Code::DIR_SIZE_HIGH, format!("i_size_high = {}", raw.i_size_high.get()));
    }
}

/// Checks flags that need a feature or a type, or exclude each other.
fn check_flags(cx: &mut Examination<'_, '_, '_>, raw: &RawInode, kind: Option<FileType>) {
    let volume = cx.scan.volume;
    let flags = raw.flags();
    let directory = kind == Some(FileType::Directory);
    let special = matches!(
        kind,
        Some(FileType::CharDevice | FileType::BlockDevice | FileType::Fifo | FileType::Socket)
    );
    let mut wrong = |set: InodeFlags, bad: bool, code: Code| {
        if flags.contains(set) && bad {
            cx.add(code, "");
        }
    };
    wrong(InodeFlags::IMAGIC, !volume.compat.contains(Compat::IMAGIC_INODES), Code::IMAGIC);
    wrong(InodeFlags::INDEX, !directory, Code::INDEX_NOT_DIRECTORY);
    let no_index = directory && !volume.compat.contains(Compat::DIR_INDEX);
    wrong(InodeFlags::INDEX, no_index, Code::INDEX_WITHOUT_FEATURE);
    wrong(InodeFlags::EXTENTS, !volume.incompat.contains(Incompat::EXTENTS), Code::EXTENTS_WITHOUT_FEATURE);
    wrong(InodeFlags::EXTENTS, flags.contains(InodeFlags::INLINE_DATA), Code::BOTH_MAP_FLAGS);
    let no_fold = !volume.incompat.contains(Incompat::CASEFOLD);
    wrong(InodeFlags::CASEFOLD, no_fold, Code::CASEFOLD_WITHOUT_FEATURE);
    wrong(InodeFlags::CASEFOLD, !no_fold && !directory, Code::CASEFOLD_NOT_DIRECTORY);
    let no_values = !volume.incompat.contains(Incompat::EA_INODE);
    wrong(InodeFlags::EA_INODE, no_values, Code::EA_FLAG_WITHOUT_FEATURE);
    wrong(InodeFlags::EA_INODE, kind != Some(FileType::Regular), Code::EA_FLAG_NOT_REGULAR);
    wrong(InodeFlags::IMMUTABLE, special, Code::SPECIAL_IMMUTABLE);
    wrong(InodeFlags::APPEND, special, Code::SPECIAL_IMMUTABLE);
}

/// `i_size` as a `usize`, capped at 2^32: it is only compared with the lengths of small buffers.
pub(crate) fn small(size: u64) -> usize {
    usize_from_u64(size.min(1 << 32))
}
