//! A directory written anew: one block, a list of blocks, or an index over leaves in hash order.

use blockyard_device::DeviceError;
use blockyard_disk::checksum::{seal_dir_leaf, seal_htree};
use blockyard_disk::dirblock::DirLayout;
use blockyard_disk::dirhash::{DirHasher, HashSeed, HashVersion};
use blockyard_disk::htree::{self, CONTINUES, IndexEntry, IndexKind, IndexMut};
use blockyard_disk::inode::InodeFlags;
use blockyard_disk::num::{u32_from_usize, u64_from_u32, u64_from_usize};
use blockyard_disk::superblock::FsFlags;
use blockyard_disk::{BlockNr, Compat, InodeNr};

use super::{Name, pack};
use crate::map::Run;
use crate::repair::editor::{Editor, Slot};
use crate::repair::maps;

/// The directory to write.
pub(super) struct Directory {
    pub(super) inode: InodeNr,
    pub(super) parent: u32,
    pub(super) names: Vec<Name>,
    /// Blocks that the directory had. Without bigalloc, a new directory of one block reuses the
    /// first old block. Other directories reuse old blocks only if there is no other space, and if
    /// the old blocks are enough.
    pub(super) old: Vec<BlockNr>,
    /// Whether a directory without an index keeps at least as many blocks as before. Blocks that it
    /// does not need hold no names.
    pub(super) keeps_blocks: bool,
}

/// A leaf: its first hash (0 for the first leaf), whether the leaf before ends with the same hash,
/// and its names.
struct Leaf {
    hash: u32,
    continues: bool,
    names: Vec<Name>,
}

/// Writes a directory and its inode. Returns false if there is no space for the directory.
pub(super) fn write(
    ed: &mut Editor<'_, '_>,
    directory: &Directory,
    slot: &mut Slot,
) -> Result<bool, DeviceError> {
    let (mut flags_after, mut blocks) = compose(ed, directory, slot);
    let mut found = places(ed, directory, blocks.len());
    if found.is_none() && flags_after.contains(InodeFlags::INDEX) {
        // In hash order, the names may need more blocks than in the old order, and an index needs
        // blocks of its own.
        flags_after.remove(InodeFlags::INDEX);
        blocks = linear(directory, layout_of(ed), seed_of(ed, directory, slot));
        found = places(ed, directory, blocks.len());
    }
    let Some(places) = found else { return Ok(false) };
    let runs: Vec<Run> = (0..).zip(&places).map(|(logical, place)| run(logical, *place)).collect();
    let bits = ed.volume().geometry.block_bits();
    let count = u64_from_usize(blocks.len());
    slot.raw_mut().set_flags(flags_after);
    slot.raw_mut().set_size(count << bits);
    if maps::write(ed, directory.inode, slot, &joined(&runs))?.is_err() {
        return Ok(false);
    }
    for (place, block) in places.iter().zip(&blocks) {
        ed.put_block(*place, block)?;
    }
    // The next round corrects `i_blocks`, after its walk over the inodes.
    ed.put_slot(directory.inode, slot)?;
    Ok(true)
}

/// Whether a rebuild would change neither the directory's flags nor the content of its blocks.
pub(super) fn is_written(
    ed: &Editor<'_, '_>,
    directory: &Directory,
    slot: &Slot,
) -> Result<bool, DeviceError> {
    let (flags, blocks) = compose(ed, directory, slot);
    if slot.raw().flags() != flags || directory.old.len() != blocks.len() {
        return Ok(false);
    }
    for (place, block) in directory.old.iter().zip(&blocks) {
        if ed.volume().block(*place)? != *block {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The flags and the blocks that a directory gets when it is written anew.
fn compose(ed: &Editor<'_, '_>, directory: &Directory, slot: &Slot) -> (InodeFlags, Vec<Vec<u8>>) {
    let (layout, seed) = (layout_of(ed), seed_of(ed, directory, slot));
    let flags = slot.raw().flags();
    let dots = Some((directory.inode.raw(), directory.parent));
    if directory.keeps_blocks && !flags.contains(InodeFlags::INDEX) {
        let mut blocks = linear(directory, layout, seed);
        if blocks.len() <= directory.old.len() {
            blocks.resize_with(directory.old.len(), || empty(layout, seed));
            return (flags, blocks);
        }
    }
    let may_index = ed.volume().compat.contains(Compat::DIR_INDEX) && !flags.contains(InodeFlags::CASEFOLD);
    let mut first = vec![0; layout.block_size];
    let (flags, blocks) = if pack(&mut first, layout, dots, directory.names.iter()) {
        seal_dir_leaf(seed, &mut first);
        (flags.difference(InodeFlags::INDEX), vec![first])
    } else if let Some(blocks) = may_index.then(|| indexed(ed, directory, &layout, seed)).flatten() {
        (flags | InodeFlags::INDEX, blocks)
    } else {
        (flags.difference(InodeFlags::INDEX), linear(directory, layout, seed))
    };
    debug_assert!(blocks.iter().all(|block| block.len() == layout.block_size), "a block of another size");
    (flags, blocks)
}

fn layout_of(ed: &Editor<'_, '_>) -> DirLayout {
    DirLayout { inodes_count: u32::MAX, ..ed.volume().dir_layout() }
}

fn seed_of(ed: &Editor<'_, '_>, directory: &Directory, slot: &Slot) -> Option<u32> {
    ed.volume().checksums.inode_seed(directory.inode, slot.raw().i_generation.get())
}

fn run(logical: u64, place: BlockNr) -> Run {
    Run { logical, physical: place.raw(), length: 1, unwritten: false }
}

/// Joins runs of adjacent blocks.
fn joined(runs: &[Run]) -> Vec<Run> {
    let mut joined: Vec<Run> = Vec::new();
    for run in runs {
        match joined.last_mut() {
            Some(last)
                if last.logical + last.length == run.logical
                    && last.physical + last.length == run.physical =>
            {
                last.length += run.length;
            }
            _ => joined.push(*run),
        }
    }
    joined
}

/// Where the blocks go. Without bigalloc, a single block goes where the first old block was.
/// Otherwise the blocks go to fresh clusters. If there is no space for that, they go to the places
/// of the old blocks. `None` if there are too few old blocks.
fn places(ed: &mut Editor<'_, '_>, directory: &Directory, count: usize) -> Option<Vec<BlockNr>> {
    if count == 1 && !directory.old.is_empty() && ed.volume().geometry.cluster_ratio() == 1 {
        return Some(directory.old[..1].to_vec());
    }
    let ratio = u64_from_u32(ed.volume().geometry.cluster_ratio());
    let mut places = Vec::with_capacity(count);
    while places.len() < count {
        let Some(first) = ed.allocate() else {
            return (directory.old.len() >= count).then(|| directory.old[..count].to_vec());
        };
        places.extend((first.raw()..first.raw() + ratio).take(count - places.len()).map(BlockNr::new));
    }
    Some(places)
}

fn linear(directory: &Directory, layout: DirLayout, seed: Option<u32>) -> Vec<Vec<u8>> {
    let mut blocks = Vec::new();
    let mut rest = &directory.names[..];
    let mut dots = Some((directory.inode.raw(), directory.parent));
    while !rest.is_empty() || blocks.is_empty() {
        let head = if dots.is_some() { 24 } else { 0 };
        let count = that_fit(rest, layout.usable() - head);
        let mut block = vec![0; layout.block_size];
        let fits = pack(&mut block, layout, dots.take(), rest[..count].iter());
        assert!(fits, "names that fit were counted");
        seal_dir_leaf(seed, &mut block);
        blocks.push(block);
        rest = &rest[count..];
    }
    blocks
}

/// A block without names.
fn empty(layout: DirLayout, seed: Option<u32>) -> Vec<u8> {
    let mut block = vec![0; layout.block_size];
    let fits = pack(&mut block, layout, None, std::iter::empty());
    assert!(fits, "no name fits anywhere");
    seal_dir_leaf(seed, &mut block);
    block
}

/// How many of the first names fit into `room` bytes.
pub(super) fn that_fit(names: &[Name], room: usize) -> usize {
    let mut used = 0;
    names
        .iter()
        .take_while(|name| {
            used += DirLayout::entry_len(name.bytes.len());
            used <= room
        })
        .count()
}

/// An index with its leaves; `None` when the directory needs more than one level of index nodes
/// below the root.
fn indexed(
    ed: &Editor<'_, '_>,
    directory: &Directory,
    layout: &DirLayout,
    seed: Option<u32>,
) -> Option<Vec<Vec<u8>>> {
    let volume = ed.volume();
    let unsigned = volume.sb.flags().contains(FsFlags::UNSIGNED_HASH);
    let version = HashVersion::from_raw(volume.sb.s_def_hash_version).unwrap_or(HashVersion::HalfMd4);
    let version = version.with_unsigned_chars(unsigned);
    let hasher = DirHasher::new(version, HashSeed::new(volume.sb.hash_seed()));
    let leaves = leaves(directory, layout, &hasher);
    let per_root = IndexKind::Root.limit(layout);
    let per_node = IndexKind::Node.limit(layout);
    let node_count = if leaves.len() <= per_root { 0 } else { leaves.len().div_ceil(per_node) };
    if node_count > per_root {
        return None;
    }
    let first_leaf = 1 + node_count;
    let entries: Vec<IndexEntry> = leaves
        .iter()
        .enumerate()
        .map(|(nth, leaf)| IndexEntry {
            key: leaf.hash | if leaf.continues { CONTINUES } else { 0 },
            block: u32_from_usize(first_leaf + nth),
        })
        .collect();
    let mut root = vec![0; layout.block_size];
    let (own, parent) = (directory.inode.raw(), directory.parent);
    let mut blocks = Vec::new();
    let tops: Vec<IndexEntry> = if node_count == 0 {
        entries
    } else {
        let chunks = entries.chunks(per_node).enumerate();
        chunks
            .map(|(nth, chunk)| {
                blocks.push(node(chunk, layout, seed));
                IndexEntry { key: chunk[0].key, block: u32_from_usize(1 + nth) }
            })
            .collect()
    };
    htree::init_root(&mut root, layout, own, parent, version.stored(), tops[0].block);
    root[30] = u8::from(node_count > 0);
    fill(&mut root, IndexKind::Root, layout, &tops);
    seal_htree(seed, &mut root, IndexKind::Root.entries_at());
    blocks.insert(0, root);
    for leaf in &leaves {
        let mut block = vec![0; layout.block_size];
        let fits = pack(&mut block, *layout, None, leaf.names.iter());
        assert!(fits, "names that fit were counted");
        seal_dir_leaf(seed, &mut block);
        blocks.push(block);
    }
    Some(blocks)
}

/// Inserts all entries except the first one, which the block has already.
fn fill(block: &mut [u8], kind: IndexKind, layout: &DirLayout, entries: &[IndexEntry]) {
    let Ok(mut index) = IndexMut::parse(block, kind, layout, u32::MAX) else {
        unreachable!("the index was just made");
    };
    for (nth, entry) in entries.iter().enumerate().skip(1) {
        let fits = index.insert_after(nth - 1, *entry);
        assert!(fits, "entries of an index were counted");
    }
}

fn node(entries: &[IndexEntry], layout: &DirLayout, seed: Option<u32>) -> Vec<u8> {
    let mut block = vec![0; layout.block_size];
    let rec_len = u16::try_from(layout.block_size).unwrap_or(u16::MAX);
    block[4..6].copy_from_slice(&rec_len.to_le_bytes());
    let start = IndexKind::Node.entries_at();
    let limit = blockyard_disk::num::low16(u32_from_usize(IndexKind::Node.limit(layout)));
    block[start..start + 2].copy_from_slice(&limit.to_le_bytes());
    block[start + 2..start + 4].copy_from_slice(&1u16.to_le_bytes());
    block[start + 4..start + 8].copy_from_slice(&entries[0].block.to_le_bytes());
    fill(&mut block, IndexKind::Node, layout, entries);
    seal_htree(seed, &mut block, start);
    block
}

/// Names in hash order, cut into leaves.
fn leaves(directory: &Directory, layout: &DirLayout, hasher: &DirHasher) -> Vec<Leaf> {
    let mut hashed: Vec<(u32, u32, &Name)> = directory
        .names
        .iter()
        .map(|name| {
            let hash = hasher.hash(&name.bytes);
            (hash.major & !CONTINUES, hash.minor, name)
        })
        .collect();
    hashed.sort_unstable();
    let mut leaves: Vec<Leaf> = Vec::new();
    let mut used = usize::MAX;
    let mut before = None;
    for (hash, _, name) in hashed {
        let length = DirLayout::entry_len(name.bytes.len());
        if used.saturating_add(length) > layout.usable() {
            let hash = if leaves.is_empty() { 0 } else { hash };
            leaves.push(Leaf { hash, continues: before == Some(hash), names: Vec::new() });
            used = 0;
        }
        used += length;
        before = Some(hash);
        if let Some(leaf) = leaves.last_mut() {
            leaf.names.push(name.clone());
        }
    }
    leaves
}
