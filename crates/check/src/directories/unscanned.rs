//! Inodes that directories name although the group descriptor calls their part of the inode table
//! unused.
//!
//! The walk over the tables leaves these inodes out, so their blocks are not claimed. After
//! `mke2fs -S`, for example, the descriptors call whole tables unused. A repair determines the
//! groups of such inodes before it allocates anything: blocks that look free may belong to a file
//! that was not read yet.

use std::collections::BTreeSet;

use blockyard_disk::dirblock::{DirDefect, DirLayout, Entries, Entry, stored_checksum};
use blockyard_disk::inline_data::InlineData;
use blockyard_disk::{BlockNr, GroupNr, InodeNr};

use super::fetch::{self, Fetched, Window};
use super::{BATCH, affordable};
use crate::facts::{DirBody, DirFact, Facts};
use crate::in_order::map_in_order;
use crate::volume::Volume;

/// The groups in which sound directory entries name inodes beyond the scanned part of the table.
/// The first group is among them if the root itself was not scanned.
pub(crate) fn groups_named(volume: &Volume<'_>, facts: &Facts) -> BTreeSet<GroupNr> {
    let per_group = volume.geometry.inodes_per_group();
    let mut named = BTreeSet::new();
    if volume.groups.iter().all(|group| group.inodes_used == per_group) {
        return named;
    }
    let first = GroupNr::new(0);
    if volume.group_of(first).inodes_used < InodeNr::ROOT.raw() {
        named.insert(first);
    }
    let named_in = |unit: &&[&DirFact]| {
        let fetched = Fetched::read(volume, unit);
        let mut named = BTreeSet::new();
        unit.iter().for_each(|fact| visit(volume, &fetched, fact, &mut named));
        named
    };
    let directories = affordable(volume, facts);
    for units in fetch::units(volume, &directories).chunks(BATCH) {
        named.extend(map_in_order(units, named_in).into_iter().flatten());
    }
    debug_assert!(
        named.iter().all(|group| volume.group_of(*group).inodes_used < per_group),
        "a group that was scanned to its end"
    );
    named
}

/// Adds the groups of the inodes that one directory names. Blocks that cannot be read are skipped:
/// the check of the directories reports them.
fn visit(volume: &Volume<'_>, fetched: &Fetched, fact: &DirFact, named: &mut BTreeSet<GroupNr>) {
    let layout = DirLayout { inodes_count: u32::MAX, ..volume.dir_layout() };
    match &fact.body {
        DirBody::Inline(inline) => {
            let data = InlineData { head: &inline.head, tail: &inline.tail };
            note(volume, data.parent(), named);
            note_all(volume, data.dir_entries(layout), named);
        }
        DirBody::Blocks { runs } => {
            let mut window = Window::new(volume, fetched);
            for run in runs.iter() {
                for at in 0..run.length {
                    let place = BlockNr::new(run.physical + at);
                    let Ok(bytes) = window.block(place, run.length - at - 1) else { continue };
                    let tail = layout.tail && stored_checksum(bytes).is_some();
                    if let Ok(entries) = Entries::new(bytes, DirLayout { tail, ..layout }) {
                        note_all(volume, entries, named);
                    }
                }
            }
        }
    }
}

fn note_all<'e>(
    volume: &Volume<'_>,
    entries: impl Iterator<Item = Result<Entry<'e>, DirDefect>>,
    named: &mut BTreeSet<GroupNr>,
) {
    entries.flatten().filter(|entry| entry.name != b".").for_each(|entry| note(volume, entry.inode, named));
}

/// Adds the group of an inode that is named, if that part of the table was not scanned.
fn note(volume: &Volume<'_>, inode: u32, named: &mut BTreeSet<GroupNr>) {
    if (1..=volume.geometry.inodes_count()).contains(&inode) {
        let (group, index) = volume.geometry.locate_inode(InodeNr::new(inode));
        if index >= volume.group_of(group).inodes_used {
            named.insert(group);
        }
    }
}
