//! Inode tables that overlap one another: decides which of them keep their places.

use core::cmp::Reverse;
use std::collections::BTreeSet;

use blockyard_disk::GroupNr;

use super::copies::score;
use super::{FIRST, usual_places};
use crate::code::Code;
use crate::finding::Finding;
use crate::repair::editor::Editor;
use crate::repair::places::groups_with;

/// The groups whose inode tables need a new place:
///
/// - those whose place is impossible, or taken by something else;
/// - of tables that overlap, the less credible ones. A finding names only one of two such tables,
///   and the named one may have the right place.
pub(super) fn displaced(ed: &Editor<'_, '_>, before: &[Finding]) -> BTreeSet<GroupNr> {
    let named = groups_with(before, [Code::INODE_TABLE_PLACE, Code::INODE_TABLE_CONFLICT]);
    // If the superblock was inferred, the tables' size may be wrong, so overlaps are not compared.
    if named.is_empty() || ed.log.is_inferred {
        return named.into_iter().collect();
    }
    let table = ed.volume().geometry.inode_table_blocks();
    let places = places(ed);
    let (mut displaced, mut crowded) = (BTreeSet::new(), BTreeSet::new());
    // All tables are equally long. So a table that overlaps any later one overlaps the next one.
    for crowd in places.chunk_by(|one, next| next.0 - one.0 < table).filter(|crowd| crowd.len() > 1) {
        let mut ranked = crowd.to_vec();
        ranked.sort_by_cached_key(|&(_, group)| Reverse(speaks_for(ed, group)));
        let mut kept: Vec<u64> = Vec::new();
        for (place, group) in ranked {
            crowded.insert(group);
            if kept.iter().any(|other| other.abs_diff(place) < table) {
                displaced.insert(group);
            } else {
                kept.push(place);
            }
        }
    }
    displaced.extend(named.into_iter().filter(|group| !crowded.contains(group)));
    displaced
}

/// The first block and the group of each table with a possible place, in ascending order of blocks.
pub(super) fn places(ed: &Editor<'_, '_>) -> Vec<(u64, GroupNr)> {
    let volume = ed.volume();
    let groups = volume.geometry.all_groups();
    let known = groups.map(|group| (group, volume.group_of(group))).filter(|(_, known)| known.inode_table_ok);
    let mut places: Vec<_> = known.map(|(group, known)| (known.desc.inode_table().raw(), group)).collect();
    places.sort_unstable();
    places
}

/// How credible the place of a group's table is: first by its inodes and bitmap, then by whether
/// mke2fs would put the table there. In a tie the earlier group wins.
fn speaks_for(ed: &Editor<'_, '_>, group: GroupNr) -> (i64, bool, Reverse<GroupNr>) {
    let here = ed.volume().group_of(group).desc;
    let is_usual = group != FIRST && usual_places(ed, group, &[].into()).contains(&here.inode_table());
    (score(ed, group, &here), is_usual, Reverse(group))
}
