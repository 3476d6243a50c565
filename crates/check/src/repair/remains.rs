//! The names in a directory whose inode is cleared or gone. Files that lose their last name with
//! the directory get names in lost+found that contain their old names. If the inode of a file is
//! gone, too, the name is all that is left of the file, and is listed as lost.

use std::collections::{BTreeMap, BTreeSet};

use blockyard_disk::inode::InodeFlags;
use blockyard_disk::num::{u64_from_u32, usize_from_u64};
use blockyard_disk::{BlockNr, InodeNr};

use super::attributes;
use super::editor::{Editor, Slot};
use super::entries::{Name, possible_entries};
use super::log::{Action, Cost, NameChange};
use super::maps;
use crate::code::Code;
use crate::facts::Facts;

/// The most blocks of one directory that are read for names.
const BLOCKS_MAX: u64 = 4096;
/// The most unclaimed clusters that are read for names.
const CLUSTERS_MAX: usize = 1 << 16;
/// The most names that are read from unclaimed clusters.
const NAMES_MAX: usize = 1 << 20;
/// The most names that are listed as lost.
const LISTED_MAX: usize = 200_000;

/// Remembers the names in a directory that is about to be cleared.
pub(super) fn remember(ed: &mut Editor<'_, '_>, inode: InodeNr, slot: &Slot) {
    let raw = slot.raw();
    let names: Vec<Name> = if raw.flags().contains(InodeFlags::INLINE_DATA) {
        let tail = attributes::inline_tail(slot);
        [&raw.i_block[4..], &tail]
            .into_iter()
            .flat_map(|area| possible_entries(ed, area, &mut false))
            .collect()
    } else {
        let map = maps::read(ed, inode, raw);
        let blocks = map.runs.iter().flat_map(|run| run.physical..run.physical + run.length.min(BLOCKS_MAX));
        let blocks = blocks.take(usize_from_u64(BLOCKS_MAX));
        let read = blocks.filter_map(|place| ed.volume().block(BlockNr::new(place)).ok());
        read.flat_map(|block| possible_entries(ed, &block, &mut false)).collect()
    };
    keep(ed, Some(inode), &names);
}

/// Remembers names, but not `.` and `..`.
fn keep(ed: &mut Editor<'_, '_>, directory: Option<InodeNr>, names: &[Name]) {
    let others = names.iter().filter(|name| !is_dot(name));
    others.for_each(|name| ed.log.remember(name.inode, directory, &name.bytes));
}

fn is_dot(name: &Name) -> bool {
    matches!(&name.bytes[..], b"." | b"..")
}

/// One block of a directory whose inode is gone.
struct Remnant {
    /// The directory's inode number, which only its first block tells.
    own: Option<InodeNr>,
    /// What `..` names.
    parent: Option<InodeNr>,
    /// The other names.
    names: Vec<Name>,
}

/// Looks for blocks of directories whose inodes are gone. Searches the blocks that the bitmaps call
/// used although nothing claims them, up to [`CLUSTERS_MAX`] clusters.
fn remnants(ed: &mut Editor<'_, '_>) -> Vec<Remnant> {
    let volume = ed.volume();
    let ratio = u64_from_u32(volume.geometry.cluster_ratio());
    let first = volume.geometry.first_data_block().raw();
    let clusters = (volume.geometry.blocks_count().raw() - first).div_ceil(ratio);
    let leaked: Vec<u64> = (0..clusters).filter(|at| ed.is_leaked(*at)).take(CLUSTERS_MAX).collect();
    let blocks = leaked.into_iter().flat_map(|at| first + at * ratio..first + (at + 1) * ratio);
    let (mut remnants, mut room) = (Vec::new(), NAMES_MAX);
    for place in blocks.map(BlockNr::new).filter(|place| volume.contains(*place)) {
        let Ok(block) = volume.block(place) else { continue };
        let mut broken = false;
        let mut names = possible_entries(ed, &block, &mut broken);
        // If the chain of entries is broken, the block holds something else.
        if broken {
            continue;
        }
        let named = |dots: &[u8]| names.iter().find(|name| name.bytes == dots);
        let (own, parent) = (named(b"."), named(b".."));
        let (own, parent) = (own.map(|own| InodeNr::new(own.inode)), parent.map(|up| InodeNr::new(up.inode)));
        names.retain(|name| !is_dot(name));
        if names.len() > room {
            break;
        }
        room -= names.len();
        remnants.push(Remnant { own, parent, names });
    }
    remnants
}

/// Remembers the names of directories whose inodes are gone, if other such directories hold these
/// names. A name counts only if `..` of the named directory agrees.
fn remember_directories(ed: &mut Editor<'_, '_>, remnants: &[Remnant]) {
    let parents: BTreeMap<u32, InodeNr> =
        remnants.iter().filter_map(|remnant| Some((remnant.own?.raw(), remnant.parent?))).collect();
    for remnant in remnants {
        let Some(own) = remnant.own else { continue };
        for name in remnant.names.iter().filter(|name| parents.get(&name.inode) == Some(&own)) {
            ed.log.remember(name.inode, Some(own), &name.bytes);
        }
    }
}

/// Looks for names of the inodes `lost`, which have no name, in what is left of directories whose
/// own inodes are gone. Remembers the names that it finds.
pub(super) fn search(ed: &mut Editor<'_, '_>, lost: &[u32]) {
    let nameless = lost.iter().copied().filter(|inode| ed.log.remembered(*inode).is_none());
    let nameless: BTreeSet<u32> = nameless.collect();
    if nameless.is_empty() {
        return;
    }
    let remnants = remnants(ed);
    for remnant in &remnants {
        for name in remnant.names.iter().filter(|name| nameless.contains(&name.inode)) {
            ed.log.remember(name.inode, remnant.own, &name.bytes);
        }
    }
    remember_directories(ed, &remnants);
}

/// Lists as lost the names in directories that are gone, if the inode that the name is for is gone,
/// too: nothing else is left of such a file. A directory that is gone counts only if names lead
/// down to it from a directory that still exists. Done once in a repair, and only if a name was
/// removed.
pub(super) fn list(ed: &mut Editor<'_, '_>, facts: &Facts) {
    let is_removal = |action: &Action| action.name.is_some() && action.cost == Cost::Removed;
    if ed.log.has_listed_remains || !ed.log.actions.iter().any(is_removal) {
        return;
    }
    ed.log.has_listed_remains = true;
    let remnants = remnants(ed);
    remember_directories(ed, &remnants);
    let geometry = &ed.volume().geometry;
    // Each is a directory, a name in it, and the inode that the name is for.
    let mut names: BTreeSet<(InodeNr, &[u8], u32)> = BTreeSet::new();
    for remnant in &remnants {
        let Some(own) = remnant.own else { continue };
        let known = ed.log.remembered(own.raw()).and_then(|name| name.directory);
        if known.is_some() && known == remnant.parent {
            names.extend(remnant.names.iter().map(|name| (own, &name.bytes[..], name.inode)));
        }
    }
    let cleared = ed.log.all_remembered();
    names.extend(cleared.filter_map(|(inode, name)| Some((name.directory?, &name.bytes[..], inode))));
    let is_lost = |inode: InodeNr| !facts.kind(geometry, inode).is_used();
    let told: BTreeSet<(Option<InodeNr>, Option<&[u8]>)> =
        ed.log.actions.iter().map(|action| (action.site.inode, action.name.as_deref())).collect();
    let mut leads = BTreeMap::new();
    let lost = names.into_iter().filter(|(directory, name, inode)| {
        let is_told = told.contains(&(Some(*directory), Some(*name)));
        is_lost(*directory)
            && is_lost(InodeNr::new(*inode))
            && !is_told
            && leads_up(ed, facts, *directory, &mut leads)
    });
    let changes: Vec<(InodeNr, NameChange)> = lost
        .take(LISTED_MAX)
        .map(|(directory, name, inode)| {
            let what = format!("name of inode {inode} lost with its directory");
            (directory, NameChange { name: name.to_vec(), what, cost: Cost::Removed })
        })
        .collect();
    debug_assert!(changes.iter().all(|(_, change)| !change.name.is_empty()), "a name without a byte");
    for (directory, change) in changes {
        ed.log.add_name(Code::ENTRY_UNUSED, directory, change);
    }
}

/// Whether the names of a directory that is gone, and of the gone directories above it, lead to a
/// directory that is still there. `known` caches the answers for all directories on the way.
fn leads_up(
    ed: &Editor<'_, '_>,
    facts: &Facts,
    directory: InodeNr,
    known: &mut BTreeMap<InodeNr, bool>,
) -> bool {
    let (mut at, mut passed) = (directory, BTreeSet::new());
    let leads = loop {
        if let Some(leads) = known.get(&at) {
            break *leads;
        }
        // Terminates: no directory is passed twice.
        if !passed.insert(at) {
            break false;
        }
        match ed.log.remembered(at.raw()).and_then(|name| name.directory) {
            Some(above) if facts.kind(&ed.volume().geometry, above).is_directory() => break true,
            Some(above) => at = above,
            None => break false,
        }
    };
    known.extend(passed.into_iter().map(|directory| (directory, leads)));
    leads
}
