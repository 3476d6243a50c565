//! Tables that overlap one another: one of them is in its place, and the others are not.

use core::cmp::Reverse;
use std::collections::BTreeSet;

use blockyard_disk::GroupNr;

use super::copies::score;
use super::{FIRST, usual_places};
use crate::code::Code;
use crate::finding::Finding;
use crate::repair::editor::Editor;
use crate::repair::places::groups_with;

/// The groups whose tables need a place: those whose place is impossible, and of tables that
/// overlap all but the one that the most speaks for. A finding names only one of such tables.
pub(super) fn displaced(ed: &Editor<'_, '_>, before: &[Finding]) -> BTreeSet<GroupNr> {
    let named = groups_with(before, [Code::INODE_TABLE_PLACE, Code::INODE_TABLE_CONFLICT]);
    // Tables that overlap under an inferred superblock say that their size was inferred wrongly.
    if ed.log.is_inferred {
        return named.into_iter().collect();
    }
    let mut displaced = BTreeSet::new();
    for group in named {
        let rivals = rivals(ed, group);
        let speaks_for = |group: GroupNr| {
            let here = ed.volume().group_of(group).desc;
            let is_usual =
                group != FIRST && usual_places(ed, group, &[].into()).contains(&here.inode_table());
            (score(ed, group, &here), is_usual, Reverse(group))
        };
        let kept = rivals.iter().copied().max_by_key(|group| speaks_for(*group));
        displaced.extend(rivals.into_iter().filter(|group| Some(*group) != kept));
        if kept.is_none() {
            displaced.insert(group);
        }
    }
    displaced
}

/// The groups whose tables overlap that of a group, and the group itself. None if its table
/// overlaps no other, or has an impossible place.
fn rivals(ed: &Editor<'_, '_>, group: GroupNr) -> Vec<GroupNr> {
    let volume = ed.volume();
    let table = volume.geometry.inode_table_blocks();
    let place_of = |group: GroupNr| {
        let known = volume.group_of(group);
        known.inode_table_ok.then(|| known.desc.inode_table().raw())
    };
    let Some(here) = place_of(group) else { return Vec::new() };
    let overlaps = |other: &GroupNr| place_of(*other).is_some_and(|place| place.abs_diff(here) < table);
    let rivals: Vec<GroupNr> = (0..volume.geometry.groups()).map(GroupNr::new).filter(overlaps).collect();
    if rivals.len() > 1 { rivals } else { Vec::new() }
}
