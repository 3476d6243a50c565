//! Attribute blocks: each is claimed and checked once, however many inodes share it.

use core::ops::Range;

use blockyard_disk::BlockNr;
use blockyard_disk::num::u64_from_usize;
use blockyard_disk::xattr::{self, BlockHeader, ENTRY_HEADER_LEN, Home, RawEntries, RawEntry, XattrDefect};

use crate::block_map::BlockMap;
use crate::code::Code;
use crate::facts::{Facts, ValueRef, XattrBlockRef};
use crate::finding::{Ledger, Sink, Site};
use crate::in_order::map_in_order;
use crate::inode::{hash_matches, stored_offset};
use crate::volume::Volume;

/// Blocks handed to the threads at a time.
const BATCH: usize = 16 * 1024;

/// Every reference to an attribute block, sorted, so that references to one block are adjacent.
pub(crate) fn references(facts: &Facts) -> Vec<XattrBlockRef> {
    let mut all: Vec<XattrBlockRef> =
        facts.groups.iter().flat_map(|group| group.xattr_blocks.iter().copied()).collect();
    all.sort_unstable();
    all
}

/// Claims each of the blocks once.
pub(crate) fn claim(map: &BlockMap, references: &[XattrBlockRef]) {
    for users in references.chunk_by(|a, b| a.block == b.block) {
        map.claim(map.cluster(users[0].block), 1);
    }
}

/// Checks the blocks; returns the references to inodes that hold values.
pub(crate) fn check(volume: &Volume<'_>, references: &[XattrBlockRef], ledger: &mut Ledger) -> Vec<ValueRef> {
    let shared: Vec<&[XattrBlockRef]> = references.chunk_by(|a, b| a.block == b.block).collect();
    let users: usize = shared.iter().map(|users| users.len()).sum();
    assert_eq!(users, references.len(), "every reference belongs to one block");
    debug_assert!(references.is_sorted(), "references to one block stand apart");
    let mut values = Vec::new();
    for batch in shared.chunks(BATCH) {
        let done = map_in_order(batch, |users| {
            let mut sink = Sink::default();
            (check_block(volume, users, &mut sink), sink)
        });
        for (found, sink) in done {
            values.extend(found);
            ledger.absorb(sink);
        }
    }
    values
}

fn check_block(volume: &Volume<'_>, users: &[XattrBlockRef], sink: &mut Sink) -> Vec<ValueRef> {
    let place = users[0].block;
    debug_assert!(users.iter().all(|user| user.block == place), "users of another block than {place}");
    let site = Site::inode(users[0].inode).at_block(place);
    let bytes = match volume.block(place) {
        Ok(bytes) => bytes,
        Err(error) => {
            sink.add(Code::XATTR_BLOCK_READ, site, error.to_string());
            return Vec::new();
        }
    };
    let header = match BlockHeader::read(&bytes) {
        Ok(header) => header,
        Err(defect) => {
            let code =
                if defect == XattrDefect::Blocks { Code::XATTR_SPANS } else { Code::XATTR_BLOCK_MAGIC };
            sink.add(code, site, "");
            return Vec::new();
        }
    };
    if volume.checksums.verify_xattr_block(place, &bytes).is_err() {
        sink.add(Code::XATTR_CHECKSUM, site, "");
    }
    if u64::from(header.refcount) != u64_from_usize(users.len()) {
        sink.add(Code::XATTR_REFCOUNT, site, format!("{}, counted {}", header.refcount, users.len()));
    }
    check_entries(&bytes, users, site, sink)
}

fn check_entries(bytes: &[u8], users: &[XattrBlockRef], site: Site, sink: &mut Sink) -> Vec<ValueRef> {
    let entries = match xattr::parse_entries(bytes, Home::Block) {
        Ok(entries) => entries,
        Err(defect) => {
            if let Some(entry) = wrong_hash_before_overlap(bytes) {
                report_hash(&entry, site, sink);
            }
            sink.add(code_of(defect), site, defect.to_string());
            return Vec::new();
        }
    };
    // e2fsck does not check that names are in order and distinct. Both are checked here, because a
    // search that relies on the order could miss names.
    match xattr::parse(bytes, Home::Block) {
        Err(XattrDefect::Name { at }) => sink.add(Code::XATTR_NAME_NUL, site.at_offset(at), ""),
        Err(XattrDefect::Order { at }) => sink.add(Code::XATTR_ORDER, site.at_offset(at), ""),
        Err(XattrDefect::Duplicate { at }) => sink.add(Code::XATTR_DUPLICATE, site.at_offset(at), ""),
        _ => {}
    }
    let mut values = Vec::new();
    for entry in entries {
        if entry.name_index == 0 {
            sink.add(Code::XATTR_NAME, site.at_offset(entry.at), "name index 0");
        }
        if entry.value_inode != 0 {
            values.push(ValueRef {
                value_inode: entry.value_inode,
                owner: users[0].inode,
                size: entry.value_size,
                entry_hash: entry.hash,
                name: entry.name.to_vec(),
                in_block: Some(users[0].block),
            });
        } else if !hash_matches(&entry) {
            report_hash(&entry, site, sink);
        }
    }
    values
}

fn report_hash(entry: &RawEntry<'_>, site: Site, sink: &mut Sink) {
    sink.add(Code::XATTR_HASH, site.at_offset(entry.at), format!("{:#010x}", entry.hash));
}

/// The first entry with a wrong hash. `None` if that entry, or one before it, has the name index 0
/// or overlaps something before it. e2fsck reads the entries in the order of the block, and drops
/// the block at the first wrong hash.
fn wrong_hash_before_overlap(bytes: &[u8]) -> Option<RawEntry<'_>> {
    let mut taken: Vec<Range<usize>> = Vec::new();
    for entry in RawEntries::new(bytes, Home::Block).map_while(Result::ok) {
        if entry.name_index == 0 {
            return None;
        }
        let value_at = stored_offset(bytes, &entry);
        let ranges = [
            entry.at..entry.at + ENTRY_HEADER_LEN + entry.name.len().next_multiple_of(4),
            value_at..value_at + entry.padded_value.len(),
        ];
        for range in ranges.into_iter().filter(|range| !range.is_empty()) {
            let overlaps = |other: &Range<usize>| range.start < other.end && other.start < range.end;
            if range.start < Home::Block.entries_at() || taken.iter().any(overlaps) {
                return None;
            }
            taken.push(range);
        }
        if entry.value_inode == 0 && !hash_matches(&entry) {
            return Some(entry);
        }
    }
    None
}

fn code_of(defect: XattrDefect) -> Code {
    match defect {
        XattrDefect::Entry { .. } | XattrDefect::Overlap { .. } | XattrDefect::Duplicate { .. } => {
            Code::XATTR_OVERLAP
        }
        XattrDefect::Name { .. } => Code::XATTR_NAME,
        _ => Code::XATTR_VALUE,
    }
}

/// Reports attribute blocks whose cluster something else also claims.
pub(crate) fn report_shared(map: &BlockMap, references: &[XattrBlockRef], sink: &mut Sink) {
    for users in references.chunk_by(|a, b| a.block == b.block) {
        if map.shared_in(map.cluster(users[0].block), 1) > 0 {
            let site = Site::inode(users[0].inode).at_block(BlockNr::new(users[0].block.raw()));
            sink.add(Code::SHARED_BLOCKS, site, "attribute block");
        }
    }
}
