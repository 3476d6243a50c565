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
use super::origin;
use crate::code::Code;
use crate::directories::Tree;
use crate::facts::Facts;
use crate::finding::{Finding, Site};
use crate::superblock::is_hidden;

/// What connectivity is judged by.
pub(crate) struct Connected<'a> {
    pub(crate) facts: &'a Facts,
    pub(crate) tree: &'a Tree,
}

/// What is to be changed in each directory, and why.
#[derive(Default)]
struct Changes(BTreeMap<u32, (Code, Change)>);

impl Changes {
    fn of(&mut self, directory: u32, code: Code) -> &mut Change {
        &mut self.0.entry(directory).or_insert_with(|| (code, Change::default())).1
    }
}

/// Repairs what the pass found. One round makes what is missing, and the next one uses it.
pub(crate) fn repair(
    ed: &mut Editor<'_, '_>,
    at: &Connected<'_>,
    findings: &[Finding],
) -> Result<(), DeviceError> {
    if findings.iter().any(|finding| finding.code == Code::NO_ROOT) {
        let first = GroupNr::new(0);
        if ed.volume().group_of(first).inodes_used < InodeNr::ROOT.raw() {
            // It was not scanned: the descriptor calls that part of the table unused.
            return bitmaps::open_tables(ed, &[first].into());
        }
        let made = directory::make(ed, InodeNr::ROOT, InodeNr::ROOT.raw(), Vec::new())?;
        let what = if made { "root directory created" } else { "no space for a root directory" };
        ed.add(Code::NO_ROOT, Site::inode(InodeNr::ROOT), Cost::Moved, what);
        return Ok(());
    }
    let bad = findings.iter().filter(|finding| finding.code == Code::ENTRY_BAD_BLOCK);
    let bad: BTreeSet<u64> = bad.filter_map(|finding| Some(finding.site.block?.raw())).collect();
    if !bad.is_empty() {
        return inode::unlist_bad_blocks(ed, &bad);
    }
    let mut changes = Changes::default();
    let mut cut = BTreeSet::new();
    for finding in findings {
        let Some(inode) = finding.site.inode else { continue };
        match finding.code {
            Code::SECOND_LINK => drop_second_names(at, inode.raw(), &mut changes, &mut cut),
            Code::DIRECTORY_LOOP => drop_names(at, inode.raw(), &mut changes, &mut cut),
            _ => {}
        }
    }
    for finding in findings {
        let Some(inode) = finding.site.inode.map(InodeNr::raw) else { continue };
        let parent = at.tree.children.iter().find(|name| name.child == inode).map(|name| name.parent);
        if let (Code::DOTDOT_WRONG, Some(parent), false) = (finding.code, parent, cut.contains(&inode)) {
            changes.of(inode, finding.code).parent = Some(parent);
        }
    }
    if changes.0.is_empty() {
        let lost: Vec<u32> = findings
            .iter()
            .filter(|finding| finding.code == Code::UNCONNECTED)
            .filter_map(|finding| finding.site.inode.map(InodeNr::raw))
            .collect();
        return attach(ed, at, &lost, Code::UNCONNECTED);
    }
    carry_out(ed, at, changes)
}

fn carry_out(ed: &mut Editor<'_, '_>, at: &Connected<'_>, changes: Changes) -> Result<(), DeviceError> {
    for (directory, (code, change)) in changes.0 {
        let mending = Mending { facts: at.facts, inode: InodeNr::new(directory), code };
        directory::repair(ed, &mending, &change, Writing::InPlace)?;
    }
    Ok(())
}

/// Keeps one name of a directory: that in the directory that its `..` names, or else the first. If
/// the directory that keeps it has several, the first of these stays.
fn drop_second_names(at: &Connected<'_>, child: u32, changes: &mut Changes, cut: &mut BTreeSet<u32>) {
    let parents: Vec<u32> =
        at.tree.children.iter().filter(|name| name.child == child).map(|name| name.parent).collect();
    let dotdot = at.tree.directories.iter().find(|entry| entry.0 == child).map(|entry| entry.1);
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
    for name in at.tree.children.iter().filter(|name| name.child == child) {
        changes.of(name.parent, Code::DIRECTORY_LOOP).less.insert(child);
    }
    cut.insert(child);
}

/// Gives inodes without a name one in lost+found, which is made if it is missing.
pub(crate) fn attach(
    ed: &mut Editor<'_, '_>,
    at: &Connected<'_>,
    lost: &[u32],
    code: Code,
) -> Result<(), DeviceError> {
    let geometry = &ed.volume().geometry;
    let known =
        at.tree.lost_found.filter(|&inode| at.facts.kind(geometry, InodeNr::new(inode)).is_directory());
    let Some(lost_found) = known.filter(|inode| !lost.contains(inode)) else {
        return make_lost_found(ed, at);
    };
    let mending = Mending { facts: at.facts, inode: InodeNr::new(lost_found), code };
    let wanted: Vec<Vec<u8>> = lost.iter().map(|&inode| name_of_lost(ed, at, InodeNr::new(inode))).collect();
    let names = directory::unlike_any(ed, &mending, wanted)?;
    let mut more: Vec<Name> = Vec::new();
    for (&inode, bytes) in lost.iter().zip(names) {
        if is_hidden(ed.volume(), InodeNr::new(inode)) {
            // No directory may name it.
            inode::clear(ed, InodeNr::new(inode), code)?;
            continue;
        }
        let kind = at.facts.kind(geometry, InodeNr::new(inode));
        let file_type = if ed.volume().dir_layout().file_types { kind.dirent_type() } else { 0 };
        let what = format!("named lost+found/{}", bytes.escape_ascii());
        ed.add(code, Site::inode(InodeNr::new(inode)), Cost::Moved, what);
        more.push(Name { bytes, inode, file_type });
        if kind.is_directory() {
            let mending = Mending { facts: at.facts, inode: InodeNr::new(inode), code };
            let change = Change { parent: Some(lost_found), ..Change::default() };
            directory::repair(ed, &mending, &change, Writing::InPlace)?;
        }
    }
    directory::repair(ed, &mending, &Change { more, ..Change::default() }, Writing::InPlace)
}

/// The new name of an inode without one: its number, and what is known of where it came from. That
/// is the name that a directory lost in this repair, or else the directory that its `..` names, or
/// else what the first bytes of its content say about it.
fn name_of_lost(ed: &Editor<'_, '_>, at: &Connected<'_>, inode: InodeNr) -> Vec<u8> {
    let mut name = format!("#{inode}").into_bytes();
    let parent = at.tree.directories.iter().find(|entry| entry.0 == inode.raw()).map(|entry| entry.1);
    if let Some(old) = ed.log.remembered(inode.raw()) {
        name.push(b'.');
        let room = NAME_LEN_MAX - name.len();
        let safe = old.iter().take(room).map(|&byte| if matches!(byte, 0 | b'/') { b'.' } else { byte });
        name.extend(safe);
    } else if let Some(parent) = parent.filter(|&parent| parent != 0 && parent != inode.raw()) {
        name.extend_from_slice(format!(".in-{parent}").as_bytes());
    } else if let Some(end) = origin::ending(ed, inode) {
        name.extend_from_slice(end.as_bytes());
    }
    assert!(name.len() <= NAME_LEN_MAX, "{} bytes of a name", name.len());
    name
}

/// Makes lost+found in the root. Anything else with that name loses it.
fn make_lost_found(ed: &mut Editor<'_, '_>, at: &Connected<'_>) -> Result<(), DeviceError> {
    let Some(inode) = unused_inode(ed, at.facts)? else {
        ed.add(Code::LOST_FOUND_MISSING, Site::NOWHERE, Cost::Nothing, "no inode for lost+found");
        return Ok(());
    };
    if !directory::make(ed, inode, InodeNr::ROOT.raw(), Vec::new())? {
        ed.add(Code::LOST_FOUND_MISSING, Site::NOWHERE, Cost::Nothing, "no space for lost+found");
        return Ok(());
    }
    // Names are judged by what the walk knew, so the new one is entered after the judgement.
    let file_type = if ed.volume().dir_layout().file_types { 2 } else { 0 };
    let name = Name { bytes: b"lost+found".to_vec(), inode: inode.raw(), file_type };
    let less = at.tree.lost_found.into_iter().collect();
    let change = Change { more: vec![name], less, ..Change::default() };
    let mending = Mending { facts: at.facts, inode: InodeNr::ROOT, code: Code::LOST_FOUND_MISSING };
    directory::repair(ed, &mending, &change, Writing::InPlace)?;
    ed.add(Code::LOST_FOUND_MISSING, Site::inode(inode), Cost::Nothing, "lost+found created");
    Ok(())
}

/// The first ordinary inode that is not in use, in the scanned part of a table: mke2fs puts
/// lost+found there too. If all of these are in use, the first inode after the scanned part of a
/// table, which then includes it.
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
            .find(|index| geometry.inode_at(group, *index).raw() >= volume.first_inode())?;
        Some((group, index))
    });
    let Some((group, index)) = behind else { return Ok(None) };
    bitmaps::open_table(ed, group, index + 1)?;
    Ok(Some(geometry.inode_at(group, index)))
}

fn unused_scanned_inode(ed: &Editor<'_, '_>, facts: &Facts) -> Option<InodeNr> {
    let volume = ed.volume();
    let first = volume.first_inode();
    volume.geometry.all_groups().find_map(|group| {
        let known = &facts.groups[usize_from_u32(group.raw())];
        let index = known.kinds.iter().enumerate().position(|(index, kind)| {
            let inode = volume.geometry.inode_at(group, u32_from_usize(index));
            inode.raw() >= first && !kind.is_used()
        });
        index.map(|index| volume.geometry.inode_at(group, u32_from_usize(index)))
    })
}
