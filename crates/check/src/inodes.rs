//! Pass 1: the walk over the inode tables. A unit of work is a group.
//!
//! Groups are walked in batches. After each batch its findings go to the ledger in the order of the
//! groups, so that the findings of at most one batch wait in memory. The table of a group marked
//! INODE_UNINIT is not read, unless the group's descriptor is in doubt or from a backup.

use blockyard_disk::num::{u64_from_u32, usize_from_u64};
use blockyard_disk::{BlockNr, GroupNr, InodeNr};

use crate::Part;
use crate::block_map::BlockMap;
use crate::code::Code;
use crate::facts::{Facts, GroupFacts};
use crate::finding::{Ledger, Sink, Site};
use crate::in_order::map_in_order;
use crate::inode::{Examination, Expected, Scan, examine};
use crate::map::{Budget, Claims};
use crate::volume::Volume;

/// Bytes of inode table read at a time: few enough to stay in a CPU's cache until they are used.
const CHUNK: u64 = 1 << 18;
/// Groups handed to the threads at a time.
const BATCH: usize = 512;

/// Claims that go to the block map.
struct MapClaims<'a>(&'a BlockMap);

impl Claims for MapClaims<'_> {
    fn claim(&mut self, cluster: u64, count: u64) {
        self.0.claim(cluster, count);
    }
}

/// Walks all tables, claims what inodes map, and gathers the facts.
pub(crate) fn gather(scan: &Scan<'_, '_>, ledger: &mut Ledger) -> Facts {
    let groups: Vec<GroupNr> = scan.volume.geometry.all_groups().collect();
    let mut facts = Facts { groups: Vec::with_capacity(groups.len()) };
    let in_use = |group: GroupNr| u64_from_u32(scan.volume.group_of(group).inodes_used);
    let all: u64 = groups.iter().map(|&group| in_use(group)).sum();
    // The watch is told before the walk begins, and so learns how many bytes were read until now.
    // It can leave them out when it estimates the time left.
    scan.volume.watch.tell(Part::Inodes, 0, all);
    let gather_group = |group: GroupNr| {
        let gathered = gather_group(scan, group);
        scan.volume.watch.tell(Part::Inodes, in_use(group), all);
        gathered
    };
    for batch in groups.chunks(BATCH) {
        for (group, sink) in map_in_order(batch, |&group| gather_group(group)) {
            facts.groups.push(group);
            ledger.absorb(sink);
        }
    }
    facts.assert_complete(scan.volume.geometry.groups(), all);
    note_bad(scan.volume, &mut facts);
    facts
}

/// Notes which inodes lie in blocks that the bad-blocks inode lists. The facts of group 0 hold the
/// list.
fn note_bad(volume: &Volume<'_>, facts: &mut Facts) {
    let listed = facts.groups.first().map(|group| group.bad_blocks.clone()).unwrap_or_default();
    if listed.is_empty() {
        return;
    }
    let geometry = &volume.geometry;
    let per_block = volume.block_size() / usize::from(geometry.inode_size());
    assert!(per_block > 0, "an inode is larger than a block");
    for (group, nr) in facts.groups.iter_mut().zip(geometry.all_groups()) {
        let table = volume.group_of(nr).desc.inode_table().raw();
        for block in listed.range(table..table.saturating_add(geometry.inode_table_blocks())) {
            let first = usize_from_u64(block - table) * per_block;
            group.in_bad_blocks.extend(first..(first + per_block).min(group.kinds.len()));
        }
    }
}

fn gather_group(scan: &Scan<'_, '_>, group: GroupNr) -> (GroupFacts, Sink) {
    let mut sink = Sink::default();
    let used = scan.volume.group_of(group).inodes_used;
    let mut facts = GroupFacts::new(used);
    let mut budget = Budget::of(scan.volume);
    let mut claims = MapClaims(scan.map);
    for_each_slot(scan, group, &mut sink, &mut |inode, slot, sink| {
        let expected = Expected::default();
        let mut examination =
            Examination { scan, inode, sink, claims: &mut claims, budget: &mut budget, expected };
        examine(&mut examination, slot, &mut facts);
    });
    facts.directories.shrink_to_fit();
    (facts, sink)
}

/// Calls `visit` for each inode slot of a group, up to the last one that may be in use. A part of
/// the table that cannot be read ends the walk with a finding.
pub(crate) fn for_each_slot(
    scan: &Scan<'_, '_>,
    nr: GroupNr,
    sink: &mut Sink,
    visit: &mut dyn FnMut(InodeNr, &[u8], &mut Sink),
) {
    let volume = scan.volume;
    let group = volume.group_of(nr);
    if group.inodes_used == 0 || !group.inode_table_ok {
        return;
    }
    let per_group = volume.geometry.inodes_per_group();
    assert!(group.inodes_used <= per_group, "{} inodes of {per_group} in group {nr}", group.inodes_used);
    let size = u64::from(volume.geometry.inode_size());
    let per_chunk = (CHUNK / size).min(u64_from_u32(group.inodes_used));
    let table = group.desc.inode_table().raw() << volume.geometry.block_bits();
    let mut buffer = vec![0; usize_from_u64(per_chunk * size)];
    let mut index = 0;
    while index < u64_from_u32(group.inodes_used) {
        let count = per_chunk.min(u64_from_u32(group.inodes_used) - index);
        let bytes = &mut buffer[..usize_from_u64(count * size)];
        if let Err(error) = volume.device.read_at(table + index * size, bytes) {
            let block = BlockNr::new((table + index * size) >> volume.geometry.block_bits());
            sink.add(Code::INODE_TABLE_READ, Site::group(nr).at_block(block), error.to_string());
            return;
        }
        for (slot, at) in bytes.chunks_exact(usize::from(volume.geometry.inode_size())).zip(index..) {
            let inode = volume.geometry.inode_at(nr, blockyard_disk::num::u32_from_u64(at));
            visit(inode, slot, sink);
        }
        index += count;
    }
    assert_eq!(index, u64_from_u32(group.inodes_used), "inodes of group {nr} looked at");
}
