//! One directory: its names are read as far as possible, judged, and written back.
//!
//! Names stay in their blocks if possible. If the index is broken or more room is needed, the
//! directory is written anew. If it then has several blocks and there is space, it goes into fresh
//! blocks, so that the old blocks stay valid until the inode refers to the fresh ones.

mod build;
mod names;

use std::collections::{BTreeMap, BTreeSet};

use blockyard_device::DeviceError;
use blockyard_disk::checksum::seal_dir_leaf;
use blockyard_disk::dirblock::{self, DirLayout, Packer};
use blockyard_disk::htree::IndexKind;
use blockyard_disk::inode::InodeFlags;
use blockyard_disk::num::u64_from_usize;
use blockyard_disk::{BlockNr, InodeNr};

use super::attributes;
use super::editor::{Editor, Slot};
use super::inode;
use super::log::{Cost, Tried};
use super::maps;
use crate::code::Code;
use crate::facts::Facts;
use crate::finding::Site;
use crate::map::Run;

pub(crate) use super::entries::Name;

/// Rounds after which a directory that cannot be repaired is cleared.
const TRIES_MAX: u32 = 4;

/// Changes to a directory besides the repair of what is wrong with it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Change {
    /// The inode that `..` is to name.
    pub(crate) parent: Option<u32>,
    /// Names to be added.
    pub(crate) more: Vec<Name>,
    /// Inodes whose names are removed.
    pub(crate) less: BTreeSet<u32>,
    /// Inodes that keep the first of their names only.
    pub(crate) once: BTreeSet<u32>,
}

impl Change {
    /// Whether the directory is repaired only because something is wrong with it.
    fn is_none(&self) -> bool {
        let names = self.more.is_empty() && self.less.is_empty() && self.once.is_empty();
        names && self.parent.is_none()
    }
}

/// How the names of a directory are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writing {
    /// Each name in the block that has it.
    InPlace,
    /// All names anew: the directory is rebuilt.
    Anew,
}

/// Whether a finding about a directory means that it must be written anew.
pub(crate) fn needs_rebuilding(code: Code) -> bool {
    matches!(
        code,
        Code::HTREE_ROOT
            | Code::HTREE_VERSION
            | Code::HTREE_FLAGS
            | Code::HTREE_DEPTH
            | Code::HTREE_SIPHASH
            | Code::HTREE_SIPHASH_MISSING
            | Code::HTREE_UNREFERENCED
            | Code::HTREE_TWICE
            | Code::HTREE_BELOW_MINIMUM
            | Code::HTREE_ABOVE_MAXIMUM
            | Code::HTREE_OUTSIDE
            | Code::HTREE_ROOT_STRUCTURE
            | Code::HTREE_LIMIT
            | Code::HTREE_COUNT
            | Code::HTREE_ORDER
            | Code::HTREE_LEAF_DEPTH
            | Code::DIRECTORY_HOLE
            | Code::DIRECTORY_BLOCK_HOLE
            | Code::DIRECTORY_UNWRITTEN
            | Code::DIRECTORY_READ
            | Code::LEAF_NO_TAIL
            | Code::DUPLICATE_NAME
            | Code::NAME_CHARACTER
            | Code::HTREE_ROOT_CHECKSUM
            | Code::HTREE_NODE_CHECKSUM
            | Code::DOT_MISSING
            | Code::DOTDOT_MISSING
    )
}

/// A directory under repair.
pub(crate) struct Mending<'a> {
    pub(crate) facts: &'a Facts,
    /// The inode of the entry `lost+found` in the root. Its blocks are kept, as room for names.
    pub(crate) lost_found: Option<u32>,
    pub(crate) inode: InodeNr,
    pub(crate) code: Code,
}

/// Repairs a directory and makes a change to it. False when there is no space to write it. A
/// directory that is not inline is cleared if there still is no space after [`TRIES_MAX`] rounds,
/// unless there is a change to make.
pub(crate) fn repair(
    ed: &mut Editor<'_, '_>,
    at: &Mending<'_>,
    change: &Change,
    writing: Writing,
) -> Result<bool, DeviceError> {
    // lost+found may get names in many rounds. That is no sign of a fault, so these rounds do not
    // count as tries.
    let tries = if change.more.is_empty() { ed.log.try_again(Tried::Directory, at.inode) } else { 0 };
    let mut slot = ed.slot(at.inode)?;
    if slot.raw().flags().contains(InodeFlags::INLINE_DATA) {
        return repair_inline(ed, at, change, &mut slot);
    }
    let map = maps::read(ed, at.inode, slot.raw());
    let bits = ed.volume().geometry.block_bits();
    let holes = map.runs.iter().map(|run| run.length).sum::<u64>() != slot.raw().size() >> bits;
    let writing = if holes || tries >= TRIES_MAX { Writing::Anew } else { writing };
    let mut read = names::read(ed, at, &map.runs);
    let mut judged = names::judge(ed, at, change, &mut read);
    if let Some(parent) = change.parent {
        read.dotdot = parent;
    }
    if writing == Writing::InPlace && write_in_place(ed, at, &slot, &read, &change.more)? {
        note(ed, at, judged, "names rewritten in place");
        return Ok(true);
    }
    let mut all: Vec<Name> = read.blocks.into_values().flatten().collect();
    all.extend(change.more.iter().cloned());
    judged.changes.extend(names::separate(&mut all));
    let old: Vec<BlockNr> = map.runs.iter().flat_map(blocks_of).collect();
    let keeps_blocks = at.lost_found == Some(at.inode.raw());
    if build::write(
        ed,
        &build::Directory { keeps_blocks, inode: at.inode, parent: read.dotdot, names: all, old },
        &mut slot,
    )? {
        note(ed, at, judged, "directory rebuilt");
        return Ok(true);
    }
    if tries >= TRIES_MAX && change.is_none() {
        inode::clear(ed, at.inode, at.code)?;
    }
    Ok(false)
}

/// Rebuilds a directory that is not inline, unless that would change nothing.
pub(crate) fn rebuild(ed: &mut Editor<'_, '_>, at: &Mending<'_>) -> Result<(), DeviceError> {
    let slot = ed.slot(at.inode)?;
    let map = maps::read(ed, at.inode, slot.raw());
    let read = names::read(ed, at, &map.runs);
    let names = read.blocks.into_values().flatten().collect();
    let old = map.runs.iter().flat_map(blocks_of).collect();
    let directory =
        build::Directory { inode: at.inode, parent: read.dotdot, names, old, keeps_blocks: false };
    if build::is_written(ed, &directory, &slot)? {
        return Ok(());
    }
    repair(ed, at, &Change::default(), Writing::Anew)?;
    Ok(())
}

fn blocks_of(run: &Run) -> impl Iterator<Item = BlockNr> + use<> {
    (run.physical..run.physical + run.length).map(BlockNr::new)
}

/// Writes names back into their blocks; false when they do not fit. In a directory without an
/// index, new names go where there is room.
fn write_in_place(
    ed: &mut Editor<'_, '_>,
    at: &Mending<'_>,
    slot: &Slot,
    read: &names::Read,
    mut more: &[Name],
) -> Result<bool, DeviceError> {
    let volume = ed.volume();
    let indexed = slot.raw().flags().contains(InodeFlags::INDEX);
    let linear = slot.raw().flags().difference(InodeFlags::INDEX) == slot.raw().flags();
    if !more.is_empty() && (!linear || !read.blocks.contains_key(&0)) {
        return Ok(false);
    }
    let layout = DirLayout { inodes_count: u32::MAX, ..volume.dir_layout() };
    let seed = volume.checksums.inode_seed(at.inode, slot.raw().i_generation.get());
    let mut written: BTreeMap<BlockNr, Vec<u8>> = BTreeMap::new();
    for (&logical, names) in &read.blocks {
        let Some(&place) = read.places.get(&logical) else { return Ok(false) };
        let mut block = volume.block(place)?;
        if indexed && logical == 0 {
            block[12..16].copy_from_slice(&read.dotdot.to_le_bytes());
            block[..4].copy_from_slice(&at.inode.raw().to_le_bytes());
            // Zero bytes end the names `.` and `..`.
            (block[9], block[22]) = (0, 0);
            if layout.file_types {
                (block[7], block[19]) = (2, 2);
            }
            if blockyard_disk::checksum::verify_htree(seed, &block, IndexKind::Root.entries_at()).is_err() {
                let layout = DirLayout { tail: seed.is_some(), ..layout };
                if seed.is_some_and(|seed| {
                    blockyard_disk::htree::set_checksum(&mut block, IndexKind::Root, &layout, seed).is_err()
                }) {
                    return Ok(false);
                }
            }
        } else {
            let dots = if logical == 0 { Some((at.inode.raw(), read.dotdot)) } else { None };
            let lengths = names.iter().map(|name| DirLayout::entry_len(name.bytes.len()));
            let used = lengths.sum::<usize>() + if dots.is_some() { 24 } else { 0 };
            let room = layout.usable().saturating_sub(used);
            let (entered, later) = more.split_at(build::that_fit(more, room));
            if !pack(&mut block, layout, dots, names.iter().chain(entered)) {
                return Ok(false);
            }
            seal_dir_leaf(seed, &mut block);
            more = later;
        }
        written.insert(place, block);
    }
    if !more.is_empty() {
        return Ok(false);
    }
    for (place, block) in written {
        if volume.block(place)? != block {
            ed.put_block(place, &block)?;
        }
    }
    Ok(true)
}

/// Fills a block with names; false when they do not fit.
fn pack<'n>(
    block: &mut [u8],
    layout: DirLayout,
    dots: Option<(u32, u32)>,
    names: impl Iterator<Item = &'n Name>,
) -> bool {
    let mut packer = Packer::new(block, layout);
    let mut fits = true;
    if let Some((own, parent)) = dots {
        fits = packer.push(own, 2, b".") && packer.push(parent, 2, b"..");
    }
    for name in names {
        fits = fits && packer.push(name.inode, name.file_type, &name.bytes);
    }
    fits
}

/// Repairs a directory that is kept in its inode; false when its names no longer fit there, and no
/// block is free.
fn repair_inline(
    ed: &mut Editor<'_, '_>,
    at: &Mending<'_>,
    change: &Change,
    slot: &mut Slot,
) -> Result<bool, DeviceError> {
    let tail = attributes::inline_tail(slot);
    let mut read = names::read_inline(ed, at, slot.raw().i_block, &tail);
    let mut judged = names::judge(ed, at, change, &mut read);
    if let Some(parent) = change.parent {
        read.dotdot = parent;
    }
    let layout = DirLayout { inodes_count: u32::MAX, tail: false, ..ed.volume().dir_layout() };
    let mut all: Vec<Name> = read.blocks.into_values().flatten().collect();
    all.extend(change.more.iter().cloned());
    judged.changes.extend(names::separate(&mut all));
    let (mut head, mut rest) = (vec![0; 56], vec![0; tail.len()]);
    let mut left = all.iter();
    let mut pending = left.next();
    for run in [&mut head, &mut rest].into_iter().filter(|run| run.len() >= dirblock::ENTRY_LEN_MIN) {
        let layout = DirLayout { block_size: run.len(), ..layout };
        let mut packer = Packer::new(run, layout);
        while let Some(name) = pending.filter(|name| packer.push(name.inode, name.file_type, &name.bytes)) {
            debug_assert!(!name.bytes.is_empty(), "a name of directory {}", at.inode);
            pending = left.next();
        }
    }
    if pending.is_some() {
        let fits = leave_inode(ed, at, read.dotdot, all, slot)?;
        if fits {
            note(ed, at, judged, "names moved out of the inode");
        }
        return Ok(fits);
    }
    let raw = slot.raw_mut();
    raw.i_block[..4].copy_from_slice(&read.dotdot.to_le_bytes());
    raw.i_block[4..].copy_from_slice(&head);
    raw.set_size(60 + u64_from_usize(rest.len()));
    attributes::set_inline_tail(slot, rest);
    ed.put_slot(at.inode, slot)?;
    note(ed, at, judged, "inline directory rebuilt");
    Ok(true)
}

/// Records what was done to a directory, and to each name that changed or was removed.
fn note(ed: &mut Editor<'_, '_>, at: &Mending<'_>, judged: names::Judged, what: &str) {
    ed.add(at.code, Site::inode(at.inode), judged.cost, what);
    for change in judged.changes {
        ed.log.add_name(at.code, at.inode, change);
    }
    let inodes = ed.volume().geometry.inodes_count();
    for name in judged.gone.into_iter().filter(|name| name.inode <= inodes) {
        ed.log.remember(name.inode, Some(at.inode), &name.bytes);
    }
}

/// Each wanted name, changed where needed so that the directory does not have it yet.
pub(crate) fn unlike_any(
    ed: &Editor<'_, '_>,
    at: &Mending<'_>,
    wanted: Vec<Vec<u8>>,
) -> Result<Vec<Vec<u8>>, DeviceError> {
    let read = read(ed, at)?;
    let mut taken: BTreeSet<Vec<u8>> = read.blocks.into_values().flatten().map(|name| name.bytes).collect();
    let apart = wanted.into_iter().map(|name| {
        let name = names::unlike(&name, &taken);
        taken.insert(name.clone());
        name
    });
    Ok(apart.collect())
}

/// Reads the names of a directory, wherever they are.
fn read(ed: &Editor<'_, '_>, at: &Mending<'_>) -> Result<names::Read, DeviceError> {
    let slot = ed.slot(at.inode)?;
    if slot.raw().flags().contains(InodeFlags::INLINE_DATA) {
        return Ok(names::read_inline(ed, at, slot.raw().i_block, &attributes::inline_tail(&slot)));
    }
    let map = maps::read(ed, at.inode, slot.raw());
    Ok(names::read(ed, at, &map.runs))
}

/// Moves an inline directory into a block; false when there is no space for it.
fn leave_inode(
    ed: &mut Editor<'_, '_>,
    at: &Mending<'_>,
    parent: u32,
    names: Vec<Name>,
    slot: &mut Slot,
) -> Result<bool, DeviceError> {
    attributes::remove_inline_tail(slot);
    let mut flags = slot.raw().flags();
    flags.remove(InodeFlags::INLINE_DATA);
    if ed.volume().incompat.contains(blockyard_disk::Incompat::EXTENTS) {
        flags.insert(InodeFlags::EXTENTS);
    }
    slot.raw_mut().set_flags(flags);
    slot.raw_mut().i_block = [0; 60];
    let directory = build::Directory { inode: at.inode, parent, names, old: Vec::new(), keeps_blocks: false };
    let fits = build::write(ed, &directory, slot)?;
    if fits {
        ed.add(at.code, Site::inode(at.inode), Cost::Moved, "inline directory moved into a block");
    }
    Ok(fits)
}

/// Makes a new directory in an unused inode; false when there is no space for it.
pub(crate) fn make(
    ed: &mut Editor<'_, '_>,
    inode: InodeNr,
    parent: u32,
    names: Vec<Name>,
) -> Result<bool, DeviceError> {
    ed.log.forget_tries(inode);
    let mut slot = ed.slot(inode)?;
    let now = blockyard_disk::num::low32(ed.now);
    slot.bytes_mut().fill(0);
    if slot.bytes().len() > blockyard_disk::inode::RawInode::SIZE {
        slot.set_extra_isize(
            32.min(blockyard_disk::num::low16(blockyard_disk::num::u32_from_usize(slot.bytes().len() - 128))),
        );
    }
    let raw = slot.raw_mut();
    raw.i_mode.set(0o040_700);
    raw.i_links_count.set(2);
    for time in [&mut raw.i_atime, &mut raw.i_ctime, &mut raw.i_mtime] {
        time.set(now);
    }
    if inode == InodeNr::ROOT {
        raw.i_mode.set(0o040_755);
    }
    if ed.volume().incompat.contains(blockyard_disk::Incompat::EXTENTS) {
        raw.set_flags(InodeFlags::EXTENTS);
    }
    let directory = build::Directory { inode, parent, names, old: Vec::new(), keeps_blocks: false };
    build::write(ed, &directory, &mut slot)
}
