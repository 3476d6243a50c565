//! Pass 1B: the owners of clusters that were claimed twice, found by a second walk over the inode
//! tables.

use blockyard_disk::GroupNr;
use rayon::prelude::*;

use crate::block_map::BlockMap;
use crate::code::Code;
use crate::facts::{GroupFacts, XattrBlockRef};
use crate::finding::{Ledger, Sink, Site};
use crate::inode::Scan;
use crate::inode::{Examination, Expected, examine};
use crate::inodes::for_each_slot;
use crate::map::{Budget, Claims};
use crate::xattr_blocks;

/// Counts how many of the claimed clusters are shared, instead of claiming them.
struct SharedClaims<'a> {
    map: &'a BlockMap,
    shared: u64,
}

impl Claims for SharedClaims<'_> {
    fn claim(&mut self, cluster: u64, count: u64) {
        self.shared += self.map.shared_in(cluster, count);
    }
}

/// Reports every inode that maps a cluster which was claimed twice. Costs nothing if no cluster
/// was.
pub(crate) fn report(scan: &Scan<'_, '_>, xattr_blocks: &[XattrBlockRef], ledger: &mut Ledger) {
    if !scan.map.has_shared() {
        return;
    }
    let groups: Vec<GroupNr> = scan.volume.geometry.all_groups().collect();
    for batch in groups.chunks(512) {
        let sinks: Vec<Sink> =
            batch.par_iter().with_max_len(1).map(|&group| report_group(scan, group)).collect();
        sinks.into_iter().for_each(|sink| ledger.absorb(sink));
    }
    let mut sink = Sink::default();
    xattr_blocks::report_shared(scan.map, xattr_blocks, &mut sink);
    ledger.absorb(sink);
}

fn report_group(scan: &Scan<'_, '_>, group: GroupNr) -> Sink {
    let mut found = Sink::default();
    // This walk repeats the findings of the first one; they are dropped.
    let mut facts = GroupFacts::new(scan.volume.group_of(group).inodes_used);
    let mut budget = Budget::of(scan.volume);
    let mut ignored = Sink::default();
    for_each_slot(scan, group, &mut ignored, &mut |inode, slot, again| {
        let mut claims = SharedClaims { map: scan.map, shared: 0 };
        let expected = Expected::default();
        let mut examination =
            Examination { scan, inode, sink: again, claims: &mut claims, budget: &mut budget, expected };
        examine(&mut examination, slot, &mut facts);
        facts.directories.clear();
        if claims.shared > 0 {
            found.add(Code::SHARED_BLOCKS, Site::inode(inode), format!("{} clusters", claims.shared));
        }
    });
    found
}
