//! Passes 1B to 1D: blocks that are claimed twice. One owner keeps them, the others get copies, or
//! lose them if the user asks for that or if there is no space.
//!
//! Metadata keeps its blocks first; then reserved inodes; then the others. Among reserved inodes,
//! and among the others, those that needed no repair so far come first; if that is equal, those
//! with fewer shared blocks. If an inode had to give up a block, all inodes that keep their shared
//! blocks are reported as doubtful: nobody can tell whose content is in them.

use std::collections::BTreeSet;

use blockyard_device::DeviceError;
use blockyard_disk::extent::block_capacity;
use blockyard_disk::inode::{InodeFlags, RawInode};
use blockyard_disk::num::{low32, u64_from_u32, u64_from_usize};
use blockyard_disk::{BlockNr, Compat, InodeNr};

use zerocopy::little_endian::U32;

use super::aligned::{begun, place_of_copy, push};
use super::editor::Editor;
use super::inode;
use super::log::{Cost, Tried};
use super::maps::{self, Map, NoSpace};
use super::wish::Shared;
use crate::code::Code;
use crate::descriptors::touches;
use crate::facts::Facts;
use crate::finding::{Finding, Site};
use crate::map::Run;

/// Rounds after which the copies are given up and the inode is cleared.
const TRIES_MAX: u32 = 3;

/// Clusters that have an owner.
#[derive(Default)]
struct Owned(BTreeSet<u64>);

/// Separates the inodes that share clusters. Returns false if nothing was done, as when the
/// clusters are shared only by metadata of the file system; later passes repair that.
pub(crate) fn repair(ed: &mut Editor<'_, '_>, findings: &[Finding]) -> Result<bool, DeviceError> {
    let first = ed.volume().first_inode();
    let mut inodes: Vec<InodeNr> = findings
        .iter()
        .filter(|finding| finding.code == Code::SHARED_BLOCKS)
        .filter_map(|finding| finding.site.inode)
        .collect();
    inodes.sort_unstable();
    inodes.dedup();
    // Inodes that were repaired, and inodes that share many clusters with others, may well claim
    // clusters that they never had.
    let mended: BTreeSet<InodeNr> = ed.log.actions.iter().filter_map(|action| action.site.inode).collect();
    let mut ranked = Vec::with_capacity(inodes.len());
    for inode in inodes {
        let rank = (inode.raw() >= first, mended.contains(&inode), shared_clusters(ed, inode)?);
        ranked.push((rank, inode));
    }
    ranked.sort_unstable();
    let mut owned = Owned::default();
    let (decided, mut keepers) = (ed.log.actions.len(), Vec::new());
    for (_, inode) in ranked {
        if let Parted::Keeps(shared) = part(ed, inode, &mut owned)? {
            keepers.push((inode, shared));
        }
    }
    let is_done = ed.log.actions.len() > decided;
    for (inode, shared) in keepers.into_iter().filter(|_| is_done) {
        let what = "shared blocks kept";
        ed.add(Code::SHARED_BLOCKS, Site::inode(inode), Cost::Doubtful, what);
        ed.log.set_ranges(maps::bytes_of(&shared, ed.volume().geometry.block_bits()));
    }
    Ok(is_done)
}

/// What became of an inode with shared blocks.
enum Parted {
    /// Its content stays where it is. These logical blocks of it are shared.
    Keeps(Vec<u64>),
    /// It was changed, or has no content in blocks of its own.
    Done,
}

/// The most clusters that copies can take if every file gets its own blocks: one for every use of a
/// shared cluster but the first, and the nodes of the maps that are then written anew.
pub(crate) fn clusters_of_copies(ed: &Editor<'_, '_>, facts: &Facts) -> Result<u64, DeviceError> {
    let geometry = &ed.volume().geometry;
    let (mut uses, mut nodes) = (0, 0);
    for inode in facts.used(geometry) {
        let slot = ed.slot(inode)?;
        let attributes = ed.volume().file_acl(slot.raw());
        if attributes != BlockNr::ZERO && ed.volume().contains(attributes) {
            uses += ed.scan.map.shared_in(ed.scan.map.cluster(attributes), 1);
        }
        if inode == InodeNr::RESIZE || !maps::has_map(slot.raw()) {
            continue;
        }
        let map = maps::read(ed, inode, slot.raw());
        let of_nodes = map.nodes.iter().map(|node| ed.scan.map.shared_in(ed.scan.map.cluster(*node), 1));
        let shared: u64 = map.runs.iter().map(|run| shared_in(ed, run)).chain(of_nodes).sum();
        if shared > 0 {
            uses += shared;
            nodes += nodes_of_copy(ed, slot.raw(), &map, shared);
        }
    }
    let shared = ed.scan.map.shared_in(0, geometry.clusters_count().raw());
    Ok(uses.saturating_sub(shared) + nodes)
}

/// The most nodes that a map can have after `shared` of its clusters got other places. A block that
/// moves out of the middle of an extent splits the extent into three.
fn nodes_of_copy(ed: &Editor<'_, '_>, raw: &RawInode, map: &Map, shared: u64) -> u64 {
    if !raw.flags().contains(InodeFlags::EXTENTS) {
        return u64_from_usize(map.nodes.len());
    }
    let capacity = u64::from(block_capacity(ed.volume().block_size()));
    let ratio = u64_from_u32(ed.volume().geometry.cluster_ratio());
    let mut level = u64_from_usize(map.runs.len()) + 2 * shared * ratio;
    let mut nodes = 0;
    while level > u64_from_usize(maps::ROOT_ENTRIES) {
        level = level.div_ceil(capacity);
        nodes += level;
    }
    nodes
}

/// The number of clusters that nothing claims.
pub(crate) fn free_clusters(ed: &Editor<'_, '_>) -> u64 {
    let geometry = &ed.volume().geometry;
    let words = geometry.all_groups().filter_map(|group| ed.scan.map.group_words(group)).flatten();
    let used: u64 = words.map(|word| u64_from_u32(word.count_ones())).sum();
    geometry.clusters_count().raw() - used
}

/// How many clusters of an inode's content are also claimed by others.
fn shared_clusters(ed: &Editor<'_, '_>, inode: InodeNr) -> Result<u64, DeviceError> {
    let slot = ed.slot(inode)?;
    Ok(maps::read(ed, inode, slot.raw()).runs.iter().map(|run| shared_in(ed, run)).sum())
}

/// How many clusters of a run are also claimed by others.
fn shared_in(ed: &Editor<'_, '_>, run: &Run) -> u64 {
    let first = ed.scan.map.cluster(BlockNr::new(run.physical));
    let last = ed.scan.map.cluster(BlockNr::new(run.physical + run.length - 1));
    ed.scan.map.shared_in(first, last - first + 1)
}

/// Whether a block must be left to another owner: its cluster was claimed twice, is not in `mine`
/// (the clusters that earlier parts of this inode use), and is metadata or already has an owner. If
/// the cluster was claimed twice but has no owner yet, this inode becomes the owner.
fn is_anothers(ed: &Editor<'_, '_>, block: BlockNr, mine: &BTreeSet<u64>, owned: &mut Owned) -> bool {
    let cluster = ed.scan.map.cluster(block);
    if ed.scan.map.shared_in(cluster, 1) == 0 || mine.contains(&cluster) {
        return false;
    }
    is_systems(ed, cluster) || !owned.0.insert(cluster)
}

/// Whether metadata of the file system lies in a cluster.
fn is_systems(ed: &Editor<'_, '_>, cluster: u64) -> bool {
    let ratio = u64_from_u32(ed.volume().geometry.cluster_ratio());
    let start = BlockNr::new(ed.volume().geometry.first_data_block().raw() + cluster * ratio);
    touches(ed.scan.system, start, ratio)
}

fn part(ed: &mut Editor<'_, '_>, inode: InodeNr, owned: &mut Owned) -> Result<Parted, DeviceError> {
    let site = Site::inode(inode);
    let mut slot = ed.slot(inode)?;
    let own_attributes = part_attributes(ed, inode, owned)?;
    let own_translator = part_translator(ed, inode, owned)?;
    if own_attributes || own_translator {
        slot = ed.slot(inode)?;
    }
    if !maps::has_map(slot.raw()) || inode == InodeNr::RESIZE || inode == InodeNr::BAD_BLOCKS {
        give_up_reserved(ed, inode, owned)?;
        return Ok(Parted::Done);
    }
    let map = maps::read(ed, inode, slot.raw());
    if !map.runs.is_empty() && is_copy_of_journal(ed, inode, slot.raw())? {
        inode::clear(ed, inode, Code::SHARED_BLOCKS)?;
        return Ok(Parted::Done);
    }
    let mut mine = BTreeSet::new();
    let mut changed = false;
    for node in &map.nodes {
        let cluster = ed.scan.map.cluster(*node);
        changed |= mine.contains(&cluster) || is_anothers(ed, *node, &mine, owned);
        mine.insert(cluster);
    }
    let (mut copied, mut dropped): (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
    let mut runs: Vec<Run> = Vec::new();
    for run in &map.runs {
        // Most runs of a large file have no shared block. Such a run is kept as a whole.
        if shared_in(ed, run) == 0 && begun(ed, run, &runs).is_none() {
            push(&mut runs, *run);
            continue;
        }
        for block in maps::blocks_of(run) {
            match placed(ed, block, (&mut mine, owned), &runs)? {
                Placed::Stays => push(&mut runs, block),
                Placed::Copied(physical) => {
                    copied.push(block.logical);
                    push(&mut runs, Run { physical: physical.raw(), ..block });
                }
                Placed::Dropped => dropped.push(block.logical),
            }
        }
    }
    changed |= !(copied.is_empty() && dropped.is_empty());
    let tries = ed.log.try_again(Tried::Shared, inode);
    if !changed {
        let shared = map.runs.iter().filter(|run| shared_in(ed, run) > 0).flat_map(maps::blocks_of);
        let shared = shared.filter(|block| shared_in(ed, block) > 0);
        return Ok(Parted::Keeps(shared.map(|block| block.logical).collect()));
    }
    let written = maps::write(ed, inode, &mut slot, &runs)?;
    if written == Err(NoSpace) || tries >= TRIES_MAX {
        inode::clear(ed, inode, Code::SHARED_BLOCKS)?;
        return Ok(Parted::Done);
    }
    ed.put_slot(inode, &mut slot)?;
    let (cost, ranges) = if dropped.is_empty() { (Cost::Doubtful, &copied) } else { (Cost::Cut, &dropped) };
    let (copies, losses) = (copied.len(), dropped.len());
    let what = match ed.log.shared {
        Shared::Clone => format!("{copies} shared blocks copied, {losses} dropped for lack of space"),
        Shared::Drop => format!("{losses} shared blocks dropped: another owner keeps them"),
    };
    ed.add(Code::SHARED_BLOCKS, site, cost, what);
    ed.log.set_ranges(maps::bytes_of(ranges, ed.volume().geometry.block_bits()));
    Ok(Parted::Done)
}

/// Whether an inode has the same map as the journal's inode. Then it is a copy of that inode,
/// because no other file ever maps the blocks of the journal.
fn is_copy_of_journal(ed: &Editor<'_, '_>, inode: InodeNr, raw: &RawInode) -> Result<bool, DeviceError> {
    let volume = ed.volume();
    let journal = InodeNr::new(volume.sb.s_journal_inum.get());
    let is_inside = (1..=volume.geometry.inodes_count()).contains(&journal.raw());
    if !volume.compat.contains(Compat::HAS_JOURNAL) || !is_inside || inode == journal {
        return Ok(false);
    }
    Ok(ed.slot(journal)?.raw().i_block == raw.i_block)
}

/// Handles an inode that has no content in blocks of its own: data in the inode, a short link, a
/// device, a pipe, a socket, the resize inode, or the list of bad blocks. The resize inode keeps
/// the block with its list. The list of bad blocks is cleared if it still shares blocks in a later
/// round.
fn give_up_reserved(ed: &mut Editor<'_, '_>, inode: InodeNr, owned: &mut Owned) -> Result<(), DeviceError> {
    if inode == InodeNr::RESIZE {
        let slot = ed.slot(inode)?;
        let nodes = maps::read(ed, inode, slot.raw()).nodes;
        owned.0.extend(nodes.iter().map(|node| ed.scan.map.cluster(*node)));
    }
    if inode == InodeNr::BAD_BLOCKS && ed.log.try_again(Tried::Shared, inode) > 0 {
        return inode::clear(ed, inode, Code::SHARED_BLOCKS);
    }
    Ok(())
}

enum Placed {
    Stays,
    Copied(BlockNr),
    Dropped,
}

/// Decides about one block of data. A copy gets the offset in its cluster that its logical block
/// requires.
fn placed(
    ed: &mut Editor<'_, '_>,
    block: Run,
    (mine, owned): (&mut BTreeSet<u64>, &mut Owned),
    done: &[Run],
) -> Result<Placed, DeviceError> {
    let ratio = u64_from_u32(ed.volume().geometry.cluster_ratio());
    let cluster = ed.scan.map.cluster(BlockNr::new(block.physical));
    if let Some(moved) = begun(ed, &block, done) {
        if moved == block.physical {
            return Ok(Placed::Stays);
        }
        return copy(ed, block, BlockNr::new(moved)).map(Placed::Copied);
    }
    // If this file uses the cluster already, it does so for another part of its content.
    let again = mine.contains(&cluster);
    if !again && !is_anothers(ed, BlockNr::new(block.physical), mine, owned) {
        if ed.scan.map.shared_in(cluster, 1) > 0 {
            mine.insert(cluster);
        }
        return Ok(Placed::Stays);
    }
    if again && ratio == 1 && ed.scan.map.shared_in(cluster, 1) == 0 {
        return Ok(Placed::Stays);
    }
    let Some(first) = place_of_copy(ed) else { return Ok(Placed::Dropped) };
    copy(ed, block, BlockNr::new(first.raw() + block.logical % ratio)).map(Placed::Copied)
}

fn copy(ed: &Editor<'_, '_>, block: Run, to: BlockNr) -> Result<BlockNr, DeviceError> {
    let bytes =
        ed.volume().block(BlockNr::new(block.physical)).unwrap_or_else(|_| vec![0; ed.volume().block_size()]);
    ed.put_block(to, &bytes)?;
    Ok(to)
}

/// On an image of GNU Hurd, an inode may name a block for its translator, in the place of
/// `i_version`. If another owner keeps this block, the inode gets a copy of it. If the user wants
/// no copies, or if there is no space, the inode loses its translator. Returns whether the inode
/// was written.
fn part_translator(ed: &mut Editor<'_, '_>, inode: InodeNr, owned: &mut Owned) -> Result<bool, DeviceError> {
    let mut slot = ed.slot(inode)?;
    let Some(block) = ed.volume().translator(slot.raw()).filter(|block| ed.volume().contains(*block)) else {
        return Ok(false);
    };
    if !is_anothers(ed, block, &BTreeSet::new(), owned) {
        return Ok(false);
    }
    let new = place_of_copy(ed);
    if let Some(new) = new {
        let bytes = ed.volume().block(block)?;
        ed.put_block(new, &bytes)?;
    }
    let to = new.unwrap_or(BlockNr::ZERO);
    slot.raw_mut().i_version = U32::new(low32(to.raw()));
    ed.put_slot(inode, &mut slot)?;
    let (cost, what) = match new {
        Some(_) => (Cost::Doubtful, "translator's block copied"),
        None => (Cost::Cut, "translator removed"),
    };
    ed.add(Code::SHARED_BLOCKS, Site::inode(inode), cost, what);
    Ok(true)
}

/// Gives an inode a copy of its attribute block when another owner keeps the present one. If the
/// user wants no copies, if there is no space, or if the entries are not sound, the reference to
/// the block is removed. Returns whether the inode was written.
fn part_attributes(ed: &mut Editor<'_, '_>, inode: InodeNr, owned: &mut Owned) -> Result<bool, DeviceError> {
    let mut slot = ed.slot(inode)?;
    let block = ed.volume().file_acl(slot.raw());
    if block == BlockNr::ZERO || !ed.volume().contains(block) {
        return Ok(false);
    }
    let cluster = ed.scan.map.cluster(block);
    if ed.scan.map.shared_in(cluster, 1) == 0 {
        return Ok(false);
    }
    let taken = is_systems(ed, cluster) || !owned.0.insert(cluster);
    if !taken {
        return Ok(false);
    }
    let bytes = ed.volume().block(block)?;
    let sound = blockyard_disk::xattr::parse_entries(&bytes, blockyard_disk::xattr::Home::Block).is_ok();
    let new = if sound { place_of_copy(ed) } else { None };
    let to = new.unwrap_or(BlockNr::ZERO);
    if let Some(new) = new {
        let mut bytes = bytes;
        bytes[4..8].copy_from_slice(&1u32.to_le_bytes());
        ed.volume().checksums.seal_xattr_block(new, &mut bytes);
        ed.put_block(new, &bytes)?;
    }
    slot.raw_mut().set_file_acl(to);
    ed.put_slot(inode, &mut slot)?;
    let (cost, what) = match new {
        Some(_) => (Cost::Doubtful, "attribute block copied"),
        None => (Cost::Cut, "reference to the attribute block removed"),
    };
    ed.add(Code::SHARED_BLOCKS, Site::inode(inode), cost, what);
    Ok(true)
}
