//! Pass 3: the root, lost+found, and exactly one name for every directory.

use std::collections::{BTreeMap, BTreeSet};

use blockyard_device::DeviceError;
use blockyard_disk::dirblock::NAME_LEN_MAX;
use blockyard_disk::num::{u32_from_usize, usize_from_u32};
use blockyard_disk::{GroupNr, InodeNr};

use super::bitmaps;
use super::directory::{self, Change, Mending, Name, Writing};
use super::editor::Editor;
use super::inode;
use super::log::Cost;
use super::{origin, remains};
use crate::code::Code;
use crate::directories::Tree;
use crate::facts::Facts;
use crate::finding::{Finding, Site};
use crate::superblock::is_hidden;
use crate::tree::Faults;
use crate::volume::Volume;

/// What is known about inodes and about the names in directories.
pub(crate) struct Connected<'a> {
    pub(crate) facts: &'a Facts,
    pub(crate) tree: &'a Tree,
}

impl<'a> Connected<'a> {
    /// A directory that is repaired because of a finding.
    pub(crate) fn mending(&self, inode: InodeNr, code: Code) -> Mending<'a> {
        Mending { facts: self.facts, lost_found: self.tree.lost_found, inode, code }
    }
}

/// What is to be changed in each directory, and why.
#[derive(Default)]
struct Changes(BTreeMap<u32, (Code, Change)>);

impl Changes {
    fn of(&mut self, directory: u32, code: Code) -> &mut Change {
        &mut self.0.entry(directory).or_insert_with(|| (code, Change::default())).1
    }
}

/// Repairs what pass 3 found. If the root or lost+found is missing, one round makes it, and the
/// next round uses it.
pub(crate) fn repair(
    ed: &mut Editor<'_, '_>,
    at: &Connected<'_>,
    faults: &Faults,
    findings: &[Finding],
) -> Result<(), DeviceError> {
    if findings.iter().any(|finding| finding.code == Code::NO_ROOT) {
        let first = GroupNr::new(0);
        if ed.volume().group_of(first).inodes_used < InodeNr::ROOT.raw() {
            // The root was not scanned: the descriptor calls its part of the table unused.
            return bitmaps::open_tables(ed, &[first].into());
        }
        let site = Site::inode(InodeNr::ROOT);
        if directory::make(ed, InodeNr::ROOT, InodeNr::ROOT.raw(), Vec::new())? {
            ed.add(Code::NO_ROOT, site, Cost::Moved, "root directory created");
        } else {
            ed.log.give_up(Code::NO_ROOT, site, "no space for a root directory");
        }
        return Ok(());
    }
    let bad = findings.iter().filter(|finding| finding.code == Code::ENTRY_BAD_BLOCK);
    let bad: BTreeSet<u64> = bad.filter_map(|finding| Some(finding.site.block?.raw())).collect();
    if !bad.is_empty() {
        return inode::unlist_bad_blocks(ed, &bad);
    }
    let mut changes = Changes::default();
    let mut cut = BTreeSet::new();
    let of = |code, found| if ed.log.accepts(code) { found } else { &[][..] };
    for &inode in of(Code::SECOND_LINK, &faults.named_twice) {
        drop_second_names(at, inode, &mut changes, &mut cut);
    }
    // A second name that is to be dropped now may be the cause of a loop. The last name of that
    // directory must stay, so loops wait for the next round.
    let loops = if cut.is_empty() { of(Code::DIRECTORY_LOOP, &faults.loops) } else { &[] };
    for &inode in loops {
        drop_names(at, inode, &mut changes, &mut cut);
    }
    if ed.log.accepts(Code::DOTDOT_WRONG) {
        for &(inode, parent) in faults.dotdots.iter().filter(|found| !cut.contains(&found.0)) {
            changes.of(inode, Code::DOTDOT_WRONG).parent = Some(parent);
        }
    }
    if changes.0.is_empty() {
        let lost = of(Code::UNCONNECTED, &faults.unconnected);
        return attach(ed, at, lost, Code::UNCONNECTED);
    }
    carry_out(ed, at, changes)
}

fn carry_out(ed: &mut Editor<'_, '_>, at: &Connected<'_>, changes: Changes) -> Result<(), DeviceError> {
    for (directory, (code, change)) in changes.0 {
        let mending = at.mending(InodeNr::new(directory), code);
        directory::repair(ed, &mending, &change, Writing::InPlace)?;
    }
    Ok(())
}

/// Keeps one name of a directory: the name in the parent that its `..` names, or else the first
/// name. If that parent has several names for the directory, the first of these stays.
fn drop_second_names(at: &Connected<'_>, child: u32, changes: &mut Changes, cut: &mut BTreeSet<u32>) {
    let parents: Vec<u32> = at.tree.names_of(child).iter().map(|name| name.parent).collect();
    let dotdot = at.tree.dotdot_of(child);
    let kept = parents.iter().position(|parent| Some(*parent) == dotdot).unwrap_or(0);
    let keeper = parents.get(kept).copied();
    for &parent in parents.iter().filter(|parent| Some(**parent) != keeper) {
        changes.of(parent, Code::SECOND_LINK).less.insert(child);
    }
    if parents.iter().filter(|parent| Some(**parent) == keeper).count() > 1
        && let Some(keeper) = keeper
    {
        changes.of(keeper, Code::SECOND_LINK).once.insert(child);
    }
    cut.insert(child);
}

fn drop_names(at: &Connected<'_>, child: u32, changes: &mut Changes, cut: &mut BTreeSet<u32>) {
    for name in at.tree.names_of(child) {
        changes.of(name.parent, Code::DIRECTORY_LOOP).less.insert(child);
    }
    cut.insert(child);
}

/// Gives names in lost+found to inodes that have no name. If lost+found is missing, it is made, and
/// the inodes get their names in the next round. If lost+found cannot be made, the inodes get names
/// in the root, as in e2fsck. An inode that no directory may name is cleared instead.
pub(crate) fn attach(
    ed: &mut Editor<'_, '_>,
    at: &Connected<'_>,
    lost: &[u32],
    code: Code,
) -> Result<(), DeviceError> {
    if lost.is_empty() {
        return Ok(());
    }
    remains::search(ed, lost);
    let geometry = &ed.volume().geometry;
    let known =
        at.tree.lost_found.filter(|&inode| at.facts.kind(geometry, InodeNr::new(inode)).is_directory());
    let (holder, folder) = match known.filter(|inode| !lost.contains(inode)) {
        Some(lost_found) => (lost_found, "lost+found/"),
        None if make_lost_found(ed, at)? => return Ok(()),
        None => (InodeNr::ROOT.raw(), "/"),
    };
    let mending = at.mending(InodeNr::new(holder), code);
    let wanted: Vec<Vec<u8>> = lost.iter().map(|&inode| name_of_lost(ed, at, InodeNr::new(inode))).collect();
    let names = directory::unlike_any(ed, &mending, wanted)?;
    let (mut more, mut told): (Vec<Name>, Vec<String>) = (Vec::new(), Vec::new());
    for (&inode, bytes) in lost.iter().zip(names) {
        if is_hidden(ed.volume(), InodeNr::new(inode)) {
            // No directory may name it.
            inode::clear(ed, InodeNr::new(inode), code)?;
            continue;
        }
        let kind = at.facts.kind(geometry, InodeNr::new(inode));
        let file_type = if ed.volume().dir_layout().file_types { kind.dirent_type() } else { 0 };
        told.push(format!("named {folder}{}", bytes.escape_ascii()));
        more.push(Name { bytes, inode, file_type });
    }
    let named: Vec<InodeNr> = more.iter().map(|name| InodeNr::new(name.inode)).collect();
    if !directory::repair(ed, &mending, &Change { more, ..Change::default() }, Writing::InPlace)? {
        ed.log.give_up(code, Site::inode(mending.inode), "no space for the names of lost inodes");
        return Ok(());
    }
    for (inode, what) in named.into_iter().zip(told) {
        ed.add(code, Site::inode(inode), Cost::Moved, what);
        if at.facts.kind(geometry, inode).is_directory() {
            let mending = at.mending(inode, code);
            let change = Change { parent: Some(holder), ..Change::default() };
            directory::repair(ed, &mending, &change, Writing::InPlace)?;
        }
    }
    Ok(())
}

/// The new name of an inode that has no name: the inode's number and a hint at its origin. The hint
/// is the first of these that is known:
/// - the old name, if this repair removed it from a directory
/// - of a directory: the number of the inode that its `..` names
/// - of a file: a suffix that its first bytes suggest, such as `.png`
fn name_of_lost(ed: &Editor<'_, '_>, at: &Connected<'_>, inode: InodeNr) -> Vec<u8> {
    let mut name = format!("#{inode}").into_bytes();
    let parent = at.tree.dotdot_of(inode.raw());
    if let Some(old) = ed.log.remembered(inode.raw()) {
        name.push(b'.');
        let room = NAME_LEN_MAX - name.len();
        let safe =
            old.bytes.iter().take(room).map(|&byte| if matches!(byte, 0 | b'/') { b'.' } else { byte });
        name.extend(safe);
    } else if let Some(parent) = parent.filter(|&parent| parent != 0 && parent != inode.raw()) {
        name.extend_from_slice(format!(".in-{parent}").as_bytes());
    } else if let Some(end) = origin::ending(ed, inode) {
        name.extend_from_slice(end.as_bytes());
    }
    assert!(name.len() <= NAME_LEN_MAX, "{} bytes of a name", name.len());
    name
}

/// Makes lost+found in the root. If anything else has that name, the name is removed. Returns false
/// if there is no inode or no space for lost+found.
fn make_lost_found(ed: &mut Editor<'_, '_>, at: &Connected<'_>) -> Result<bool, DeviceError> {
    let Some(inode) = unused_inode(ed, at.facts)? else {
        ed.log.give_up(Code::LOST_FOUND_MISSING, Site::NOWHERE, "no inode for lost+found");
        return Ok(false);
    };
    if !directory::make(ed, inode, InodeNr::ROOT.raw(), Vec::new())? {
        ed.log.give_up(Code::LOST_FOUND_MISSING, Site::NOWHERE, "no space for lost+found");
        return Ok(false);
    }
    // The repair of the root drops names of inodes that the walk did not find in use. The walk did
    // not see the new inode, so its name is added after the old names were judged.
    let file_type = if ed.volume().dir_layout().file_types { 2 } else { 0 };
    let name = Name { bytes: b"lost+found".to_vec(), inode: inode.raw(), file_type };
    let less = at.tree.lost_found.into_iter().collect();
    let change = Change { more: vec![name], less, ..Change::default() };
    let mending = at.mending(InodeNr::ROOT, Code::LOST_FOUND_MISSING);
    if !directory::repair(ed, &mending, &change, Writing::InPlace)? {
        // The root has no room for the name.
        let mut slot = ed.slot(inode)?;
        slot.bytes_mut().fill(0);
        ed.put_slot(inode, &mut slot)?;
        ed.log.give_up(Code::LOST_FOUND_MISSING, Site::NOWHERE, "no space for the name lost+found");
        return Ok(false);
    }
    ed.add(Code::LOST_FOUND_MISSING, Site::inode(inode), Cost::Nothing, "lost+found created");
    Ok(true)
}

/// An inode for lost+found: the first ordinary inode in the scanned parts of the tables that is not
/// in use. If there is none, the first ordinary inode after the scanned part of a table is taken,
/// and that part grows to include it. `None` if there is no such inode either.
fn unused_inode(ed: &Editor<'_, '_>, facts: &Facts) -> Result<Option<InodeNr>, DeviceError> {
    let scanned = unused_scanned_inode(ed, facts);
    if scanned.is_some() {
        return Ok(scanned);
    }
    let volume = ed.volume();
    let geometry = &volume.geometry;
    let behind = geometry.all_groups().find_map(|group| {
        let known = u32_from_usize(facts.groups[usize_from_u32(group.raw())].kinds.len());
        let index = (known..geometry.inodes_per_group())
            .find(|index| is_ordinary(volume, geometry.inode_at(group, *index)))?;
        Some((group, index))
    });
    let Some((group, index)) = behind else { return Ok(None) };
    bitmaps::open_table(ed, group, index + 1)?;
    Ok(Some(geometry.inode_at(group, index)))
}

fn unused_scanned_inode(ed: &Editor<'_, '_>, facts: &Facts) -> Option<InodeNr> {
    let volume = ed.volume();
    volume.geometry.all_groups().find_map(|group| {
        let known = &facts.groups[usize_from_u32(group.raw())];
        let index = known.kinds.iter().enumerate().position(|(index, kind)| {
            let inode = volume.geometry.inode_at(group, u32_from_usize(index));
            is_ordinary(volume, inode) && !kind.is_used() && !known.in_bad_blocks.contains(&index)
        });
        index.map(|index| volume.geometry.inode_at(group, u32_from_usize(index)))
    })
}

/// Whether directories may name an inode, and it is not the root.
fn is_ordinary(volume: &Volume<'_>, inode: InodeNr) -> bool {
    inode.raw() >= volume.first_inode() && !is_hidden(volume, inode)
}
