//! Paths of the inodes that findings are about, as e2fsck prints them.
//!
//! Pass 2 does not keep names. If there are findings, directories are read again, for names of the
//! inodes in question and of the directories above them. The first name in the order of directories
//! counts, so that the result does not depend on threads.

use std::collections::{BTreeMap, BTreeSet};

use blockyard_disk::InodeNr;
use blockyard_disk::dirblock::{DirLayout, Entries};
use blockyard_disk::inline_data::InlineData;
use blockyard_disk::num::usize_from_u32;
use rayon::prelude::*;

use crate::directories::{Tree, mapped_blocks};
use crate::facts::{DirBody, DirFact, Facts};
use crate::finding::Ledger;
use crate::volume::Volume;

/// The most inodes that get a path.
const INODES_MAX: usize = 10_000;
/// The most components of a path. Directories further up are left out.
const COMPONENTS_MAX: usize = 1024;
/// Directories read at a time. This bounds the names in memory.
const BATCH: usize = 64;

/// Paths of inodes.
pub(crate) type Paths = BTreeMap<InodeNr, Vec<u8>>;

/// One name of each inode: the number of the directory that holds it, and the name itself.
type NameOf = BTreeMap<u32, (u32, Vec<u8>)>;

/// Gives findings about named inodes their paths, as far as [`INODES_MAX`] and the budget of
/// [`read_names`] allow.
pub(crate) fn attach(volume: &Volume<'_>, facts: &Facts, tree: &Tree, ledger: &mut Ledger) {
    let about = ledger.inodes().collect();
    let paths = find(volume, facts, tree, &about);
    ledger.set_paths(|inode| paths.get(&inode).cloned());
}

/// The paths of inodes, as far as [`INODES_MAX`] and the budget of [`read_names`] allow.
pub(crate) fn find(volume: &Volume<'_>, facts: &Facts, tree: &Tree, about: &BTreeSet<InodeNr>) -> Paths {
    // There is no inode 0, but unused directory entries have this number.
    let numbers = about.iter().map(|inode| inode.raw()).filter(|nr| *nr > 0);
    let wanted: BTreeSet<u32> = numbers.take(INODES_MAX).collect();
    if wanted.is_empty() {
        return Paths::new();
    }
    let names = names_of(volume, facts, tree, &wanted);
    wanted.into_iter().filter_map(|nr| Some((InodeNr::new(nr), path(&names, nr)?))).collect()
}

fn names_of(volume: &Volume<'_>, facts: &Facts, tree: &Tree, wanted: &BTreeSet<u32>) -> NameOf {
    let parents: BTreeMap<u32, u32> =
        tree.children.iter().rev().map(|name| (name.child, name.parent)).collect();
    let files: BTreeSet<u32> = wanted.iter().copied().filter(|nr| !parents.contains_key(nr)).collect();
    let all = facts.groups.iter().flat_map(|group| &group.directories).collect();
    let mut names = if files.is_empty() { NameOf::new() } else { read_names(volume, all, files) };
    // The directories on the way up to the root. Pass 2 recorded their parents, not their names.
    let mut above = BTreeSet::new();
    let starts = names.values().map(|name| name.0).chain(wanted.iter().copied());
    for start in starts {
        let mut at = start;
        // Terminates: no directory is inserted twice.
        while let Some(&parent) = parents.get(&at).filter(|_| above.insert(at)) {
            at = parent;
        }
    }
    let holders: BTreeSet<u32> = above.iter().filter_map(|nr| parents.get(nr)).copied().collect();
    let holders = holders.into_iter().filter_map(|nr| directory(volume, facts, nr)).collect();
    names.append(&mut read_names(volume, holders, above));
    names
}

fn directory<'a>(volume: &Volume<'_>, facts: &'a Facts, nr: u32) -> Option<&'a DirFact> {
    let (group, _) = volume.geometry.locate_inode(InodeNr::new(nr));
    let list = &facts.groups[usize_from_u32(group.raw())].directories;
    let at = list.binary_search_by_key(&nr, |fact| fact.inode.raw()).ok()?;
    list.get(at)
}

/// Reads directories, batch by batch, until every wanted inode has a name, or until the next batch
/// would exceed a budget of twice the blocks of the file system.
fn read_names(volume: &Volume<'_>, directories: Vec<&DirFact>, mut wanted: BTreeSet<u32>) -> NameOf {
    let mut names = NameOf::new();
    let mut budget = volume.geometry.blocks_count().raw().saturating_mul(2);
    for batch in directories.chunks(BATCH) {
        let cost = batch.iter().map(|fact| mapped_blocks(fact)).fold(0, u64::saturating_add);
        if wanted.is_empty() || cost > budget {
            break;
        }
        budget -= cost;
        let found: Vec<BTreeMap<u32, Vec<u8>>> =
            batch.par_iter().with_max_len(1).map(|fact| names_in(volume, fact, &wanted)).collect();
        for (fact, found) in batch.iter().zip(found) {
            for (inode, name) in found {
                wanted.remove(&inode);
                names.entry(inode).or_insert((fact.inode.raw(), name));
            }
        }
    }
    names
}

/// The first name of each wanted inode in a directory.
fn names_in(volume: &Volume<'_>, fact: &DirFact, wanted: &BTreeSet<u32>) -> BTreeMap<u32, Vec<u8>> {
    let layout = DirLayout { inodes_count: u32::MAX, tail: false, ..volume.dir_layout() };
    let mut names = BTreeMap::new();
    let mut keep = |entries: Entries<'_>| {
        for entry in entries.flatten().filter(|entry| wanted.contains(&entry.inode)) {
            if entry.name != b"." && entry.name != b".." {
                names.entry(entry.inode).or_insert_with(|| entry.name.to_vec());
            }
        }
    };
    match &fact.body {
        DirBody::Inline(inline) => {
            let data = InlineData { head: &inline.head, tail: &inline.tail };
            data.dir_runs().into_iter().for_each(|run| keep(Entries::in_area(run, layout)));
        }
        DirBody::Blocks { runs } => {
            for block in runs.iter().flat_map(|run| run.physical..run.physical + run.length) {
                let Ok(bytes) = volume.block(blockyard_disk::BlockNr::new(block)) else { continue };
                if let Ok(entries) = Entries::new(&bytes, layout) {
                    keep(entries);
                }
            }
        }
    }
    names
}

/// The path of an inode; `None` when the inode itself has no name.
///
/// The path begins at the root if it can. Otherwise it begins with `<N>`, where N is the number of
/// the first directory above the inode for which one of these holds:
/// - It has no name.
/// - The path already leads through it.
/// - It is [`COMPONENTS_MAX`] levels up.
fn path(names: &NameOf, inode: u32) -> Option<Vec<u8>> {
    if inode == InodeNr::ROOT.raw() {
        return Some(b"/".to_vec());
    }
    let (mut components, mut met) = (vec![], BTreeSet::new());
    let mut at = inode;
    while at != InodeNr::ROOT.raw() {
        match names.get(&at) {
            Some((parent, name)) if components.len() < COMPONENTS_MAX && met.insert(at) => {
                components.push(name.clone());
                at = *parent;
            }
            _ if components.is_empty() => return None,
            _ => {
                components.push(format!("<{at}>").into_bytes());
                break;
            }
        }
    }
    let whole: &[u8] = if at == InodeNr::ROOT.raw() { b"/" } else { b"" };
    assert!(components.len() <= COMPONENTS_MAX + 1, "a path of {} components", components.len());
    components.reverse();
    Some([whole, &components.join(&b'/')].concat())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn paths_begin_at_the_root_or_at_what_has_no_name() {
        let name = |parent: u32, name: &str| (parent, name.as_bytes().to_vec());
        let names: NameOf = [
            (12, name(2, "a")),
            (13, name(12, "b\n")),
            (14, name(99, "c")),
            (15, name(16, "d")),
            (16, name(15, "e")),
        ]
        .into();
        assert_eq!(path(&names, 2).unwrap(), b"/");
        assert_eq!(path(&names, 13).unwrap(), b"/a/b\n");
        assert_eq!(path(&names, 14).unwrap(), b"<99>/c");
        assert_eq!(path(&names, 77), None);
        assert_eq!(path(&names, 15).unwrap(), b"<15>/e/d", "a loop ends");
    }
}
