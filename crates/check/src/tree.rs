//! Passes 3 and 4: exactly one name connects every directory to the root, and link counts match
//! the names.

use std::collections::BTreeSet;

use blockyard_disk::num::{u32_from_u64, u32_from_usize, u64_from_usize};
use blockyard_disk::{BlockNr, GroupNr, InodeNr, RoCompat};
use rayon::prelude::*;

use crate::code::Code;
use crate::directories::{ChildRef, Tree};
use crate::facts::{Facts, GroupFacts};
use crate::finding::{Ledger, Sink, Site};
use crate::superblock::is_hidden;
use crate::volume::Volume;

/// Groups handed to the threads at a time.
const BATCH: usize = 4096;
/// The most links that a directory counts before it stores 1 for "many".
const LINKS_MAX: u32 = 65_000;

/// Every fault in the connections of directories. A repair uses these lists, because findings are
/// kept only up to a limit. The lists take at most 20 bytes for each directory.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Directories with several names, ascending.
    pub(crate) named_twice: Vec<u32>,
    /// Directories without a name, ascending.
    pub(crate) unconnected: Vec<u32>,
    /// Directories whose `..` is wrong, and the parent that it should name, ascending.
    pub(crate) dotdots: Vec<(u32, u32)>,
    /// The lowest inode number in each loop.
    pub(crate) loops: Vec<u32>,
}

impl Tree {
    /// The names of a directory.
    pub(crate) fn names_of(&self, child: u32) -> &[ChildRef] {
        let first = self.children.partition_point(|name| name.child < child);
        let count = self.children[first..].partition_point(|name| name.child == child);
        let names = &self.children[first..first + count];
        debug_assert!(names.iter().all(|name| name.child == child), "names of {child} are not sorted");
        names
    }

    /// The inode that the `..` of a directory names; `None` if the directory was not walked.
    pub(crate) fn dotdot_of(&self, directory: u32) -> Option<u32> {
        let found = self.directories.binary_search_by_key(&directory, |entry| entry.0);
        found.ok().map(|nth| self.directories[nth].1)
    }
}

/// Checks connectivity, `..` and lost+found.
pub(crate) fn check_connectivity(
    volume: &Volume<'_>,
    facts: &Facts,
    tree: &Tree,
    ledger: &mut Ledger,
) -> Faults {
    let (mut sink, mut faults) = (Sink::default(), Faults::default());
    let root = InodeNr::ROOT.raw();
    debug_assert!(tree.directories.is_sorted_by(|a, b| a.0 < b.0), "directories out of order, or twice");
    debug_assert!(tree.children.is_sorted(), "names of directories out of order");
    if tree.directories.binary_search_by_key(&root, |entry| entry.0).is_err() {
        sink.add(Code::NO_ROOT, Site::inode(InodeNr::ROOT), "");
    }
    check_lost_found(volume, facts, tree, &mut sink);
    let mut parents = Parents(Vec::new());
    for names in tree.children.chunk_by(|a, b| a.child == b.child) {
        parents.0.push(names[0]);
        if names.len() > 1 {
            faults.named_twice.push(names[0].child);
        }
        for other in &names[1..] {
            let detail = format!("in directory {}, the first is in {}", other.parent, names[0].parent);
            sink.add(Code::SECOND_LINK, Site::inode(InodeNr::new(other.child)), detail);
        }
    }
    let orphan = |nr: u32| facts.kind(&volume.geometry, InodeNr::new(nr)).is_orphan();
    for &(nr, dotdot) in tree.directories.iter().filter(|entry| !orphan(entry.0)) {
        let site = Site::inode(InodeNr::new(nr));
        let parent = if nr == root { Some(root) } else { parents.of(nr) };
        match parent {
            None => {
                sink.add(Code::UNCONNECTED, site, "");
                faults.unconnected.push(nr);
            }
            Some(parent) if dotdot != 0 && dotdot != parent => {
                faults.dotdots.push((nr, parent));
                sink.add(Code::DOTDOT_WRONG, site, format!("{dotdot}, should be {parent}"));
            }
            Some(_) => {}
        }
    }
    faults.loops = loops(&parents);
    for &lowest in &faults.loops {
        sink.add(Code::DIRECTORY_LOOP, Site::inode(InodeNr::new(lowest)), "");
    }
    ledger.absorb(sink);
    faults
}

fn check_lost_found(volume: &Volume<'_>, facts: &Facts, tree: &Tree, sink: &mut Sink) {
    match tree.lost_found {
        None => sink.add(Code::LOST_FOUND_MISSING, Site::NOWHERE, ""),
        Some(nr) if !facts.kind(&volume.geometry, InodeNr::new(nr)).is_directory() => {
            sink.add(Code::LOST_FOUND_NOT_DIRECTORY, Site::inode(InodeNr::new(nr)), "");
        }
        Some(_) => {}
    }
}

/// The first name of each directory, in ascending order of the directories' inode numbers.
struct Parents(Vec<ChildRef>);

impl Parents {
    fn find(&self, child: u32) -> Option<usize> {
        self.0.binary_search_by_key(&child, |name| name.child).ok()
    }

    /// The directory that has the first name of `child`.
    fn of(&self, child: u32) -> Option<u32> {
        self.find(child).map(|nth| self.0[nth].parent)
    }
}

/// The lowest inode of each loop. Directories form a loop if their parents lead back to them, and
/// not to the root.
fn loops(parents: &Parents) -> Vec<u32> {
    let mut loops = Vec::new();
    // For each directory the number of the walk that visited it, or 0. A walk that comes to a
    // directory with its own number has found a loop.
    let mut met = vec![0; parents.0.len()];
    for (walk, start) in (1u32..).zip(0..parents.0.len()) {
        let mut at = start;
        loop {
            if met[at] != 0 {
                if met[at] == walk {
                    loops.push(lowest(parents, parents.0[at].child));
                }
                break;
            }
            met[at] = walk;
            let name = parents.0[at];
            match parents.find(name.parent) {
                Some(parent) if name.child != InodeNr::ROOT.raw() => at = parent,
                _ => break,
            }
        }
    }
    debug_assert!(met.iter().all(|walk| *walk != 0), "a directory was not walked");
    loops
}

/// The lowest directory of the loop that `start` is on.
fn lowest(parents: &Parents, start: u32) -> u32 {
    let on_loop = std::iter::successors(parents.of(start), |&at| parents.of(at));
    on_loop.take_while(|&at| at != start).chain([start]).min().unwrap_or(start)
}

/// Reports inodes that have names and whose slots are in blocks listed as bad.
pub(crate) fn check_bad_blocks(volume: &Volume<'_>, facts: &Facts, ledger: &mut Ledger) {
    let Some(bad) = facts.groups.first().map(|group| &group.bad_blocks).filter(|bad| !bad.is_empty()) else {
        return;
    };
    let mut sink = Sink::default();
    let geometry = &volume.geometry;
    let per_block = u64_from_usize(volume.block_size() / usize::from(geometry.inode_size()));
    for (group, nr) in facts.groups.iter().zip(geometry.all_groups()) {
        let table = volume.group_of(nr).desc.inode_table().raw();
        for block in bad.range(table..table.saturating_add(geometry.inode_table_blocks())) {
            let first = (block - table) * per_block;
            let used = u64_from_usize(group.kinds.len()).saturating_sub(first).min(per_block);
            for inode in (first..first + used).map(|index| geometry.inode_at(nr, u32_from_u64(index))) {
                if facts.references(geometry, inode) > 0 {
                    sink.add(Code::ENTRY_BAD_BLOCK, Site::inode(inode).at_block(BlockNr::new(*block)), "");
                }
            }
        }
    }
    ledger.absorb(sink);
}

/// Compares stored and counted links of the inodes in use, except for orphans and hidden inodes
/// ([`is_hidden`]). `values` are inodes that attributes refer to.
pub(crate) fn check_links(volume: &Volume<'_>, facts: &Facts, values: &BTreeSet<u32>, ledger: &mut Ledger) {
    let groups: Vec<GroupNr> = volume.geometry.all_groups().collect();
    let check_group = |(group, &nr): (&GroupFacts, &GroupNr)| {
        let mut sink = Sink::default();
        check_links_of(volume, group, nr, values, &mut sink);
        sink
    };
    for (facts, groups) in facts.groups.chunks(BATCH).zip(groups.chunks(BATCH)) {
        let done: Vec<Sink> = facts.par_iter().zip(groups).map(check_group).collect();
        done.into_iter().for_each(|sink| ledger.absorb(sink));
    }
}

fn check_links_of(
    volume: &Volume<'_>,
    group: &GroupFacts,
    nr: GroupNr,
    values: &BTreeSet<u32>,
    sink: &mut Sink,
) {
    assert_eq!(group.kinds.len(), group.links.len(), "link counts of group {nr}");
    for (index, kind) in group.kinds.iter().enumerate().filter(|(_, kind)| kind.is_used()) {
        let (stored, counted) = (u32::from(group.links.get(index)), group.references.get(index));
        // Nearly all inodes have one name and one link.
        if stored == 1 && counted == 1 && !kind.is_directory() {
            continue;
        }
        let inode = volume.geometry.inode_at(nr, u32_from_usize(index));
        if kind.is_orphan() || is_hidden(volume, inode) {
            continue;
        }
        // If a value inode has no name, the attributes that refer to it count as one name.
        let value = kind.is_ea_inode() && counted == 0 && values.contains(&inode.raw());
        check_inode(volume, inode, *kind, stored, if value { 1 } else { counted }, sink);
    }
}

fn check_inode(
    volume: &Volume<'_>,
    inode: InodeNr,
    kind: crate::facts::Kind,
    stored: u32,
    counted: u32,
    sink: &mut Sink,
) {
    let site = Site::inode(inode);
    let attached = if kind.is_directory() { counted > 1 } else { counted > 0 };
    if counted == 0 {
        let code = if kind.is_empty() { Code::UNATTACHED_EMPTY } else { Code::UNATTACHED };
        return sink.add(code, site, "");
    }
    let many = kind.is_directory() && counted > LINKS_MAX;
    let dir_nlink = volume.ro_compat.contains(RoCompat::DIR_NLINK);
    if many && !dir_nlink {
        sink.add(Code::DIR_NLINK_NEEDED, site, format!("{counted} links"));
    }
    let expected = if many { 1 } else { counted };
    if stored != expected && attached {
        let one = kind.is_directory() && stored == 1 && dir_nlink;
        let code = if one { Code::DIR_LINK_COUNT_ONE } else { Code::LINK_COUNT };
        sink.add(code, site, format!("{stored}, counted {counted}"));
    }
}
