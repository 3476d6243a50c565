//! What the walk over the inodes would find in a slot that the repair has changed.

use std::ops::Range;

use blockyard_disk::InodeNr;

use super::editor::{Editor, Slot};
use crate::facts::GroupFacts;
use crate::finding::Sink;
use crate::inode::{Examination, Expected, examine};
use crate::map::{Budget, Claims};

/// Examines a slot as the walk would.
pub(super) fn examined(
    ed: &Editor<'_, '_>,
    inode: InodeNr,
    slot: &Slot,
    claims: &mut dyn Claims,
) -> (Sink, Expected) {
    let scan = ed.scan;
    let (group, index) = scan.volume.geometry.locate_inode(inode);
    let known = scan.volume.group_of(group).inodes_used.max(index + 1);
    let mut facts = GroupFacts::new(known);
    let (mut sink, mut budget) = (Sink::default(), Budget::of(scan.volume));
    let expected = Expected::default();
    let mut examination = Examination { scan, inode, sink: &mut sink, claims, budget: &mut budget, expected };
    examine(&mut examination, slot.bytes(), &mut facts);
    let expected = examination.expected;
    (sink, expected)
}

/// Ranges of clusters, in no order.
struct Ranges(Vec<Range<u64>>);

impl Claims for Ranges {
    fn claim(&mut self, cluster: u64, count: u64) {
        self.0.push(cluster..cluster + count);
    }
}

/// The clusters that the walk claims for an inode, in no order.
pub(super) fn claims_of(ed: &Editor<'_, '_>, inode: InodeNr, slot: &Slot) -> Vec<Range<u64>> {
    let mut claims = Ranges(Vec::new());
    examined(ed, inode, slot, &mut claims);
    claims.0
}
