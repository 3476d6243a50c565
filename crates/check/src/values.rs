//! Attribute values in inodes of their own: the inode must exist, hold what the entry says, and
//! count its references.

use std::collections::{BTreeMap, BTreeSet};

use blockyard_disk::num::u64_from_usize;
use blockyard_disk::xattr;
use blockyard_disk::{Incompat, InodeNr};

use crate::code::Code;
use crate::facts::{Facts, ValueInode, ValueRef};
use crate::finding::{Sink, Site};
use crate::volume::Volume;

/// Checks every reference against its value inode, and every value inode against its references;
/// returns the inodes that attributes refer to, which need no name.
pub(crate) fn check(
    volume: &Volume<'_>,
    facts: &Facts,
    in_blocks: Vec<ValueRef>,
    sink: &mut Sink,
) -> BTreeSet<u32> {
    let mut references: Vec<ValueRef> = in_blocks;
    references.extend(facts.groups.iter().flat_map(|group| group.values.iter().cloned()));
    references.sort_unstable();
    let inodes: BTreeMap<u32, ValueInode> = facts
        .groups
        .iter()
        .flat_map(|group| &group.value_inodes)
        .map(|value| (value.inode.raw(), *value))
        .collect();
    let mut counted: BTreeMap<u32, u64> = BTreeMap::new();
    for reference in &references {
        *counted.entry(reference.value_inode).or_default() += 1;
        check_reference(volume, facts, &inodes, reference, sink);
    }
    let sum: u64 = counted.values().sum();
    assert_eq!(sum, u64_from_usize(references.len()), "references counted by inode, and all of them");
    for (nr, value) in &inodes {
        let count = counted.get(nr).copied().unwrap_or(0);
        if count == 0 && !volume.incompat.contains(Incompat::EA_INODE) {
            continue;
        } else if count == 0 {
            // Its names are checked with the link counts.
            sink.add(Code::EA_FLAG_ON_FILE, Site::inode(value.inode), "");
        } else if count != value.refcount {
            let detail = format!("{}, counted {count}", value.refcount);
            sink.add(Code::EA_REFCOUNT, Site::inode(value.inode), detail);
        }
    }
    counted.into_keys().collect()
}

fn check_reference(
    volume: &Volume<'_>,
    facts: &Facts,
    inodes: &BTreeMap<u32, ValueInode>,
    reference: &ValueRef,
    sink: &mut Sink,
) {
    let site = Site::inode(reference.owner);
    let nr = reference.value_inode;
    let in_range = nr >= volume.first_inode() && nr <= volume.geometry.inodes_count();
    if !in_range || !facts.kind(&volume.geometry, InodeNr::new(nr)).is_used() {
        sink.add(Code::EA_INODE_BAD, site, format!("value inode {nr}"));
        return;
    }
    let Some(value) = inodes.get(&nr) else {
        sink.add(Code::EA_INODE_UNFLAGGED, site, format!("value inode {nr}"));
        return;
    };
    // An entry in an inode, unlike one in a block, may have hash 0.
    let hash_ok = reference.entry_hash == 0 && reference.in_block.is_none()
        || reference.entry_hash == xattr::entry_hash_of_inode_value(&reference.name, value.hash)
        || reference.entry_hash == xattr::entry_hash_of_inode_value_signed(&reference.name, value.hash);
    if !hash_ok {
        sink.add(Code::XATTR_HASH, site, format!("value inode {nr}"));
    }
    if u64::from(reference.size) != value.size {
        sink.add(
            Code::EA_INODE_BAD,
            site,
            format!("value inode {nr} has {} bytes, not {}", value.size, reference.size),
        );
    }
}
