//! One node of an extent tree, edited in place.
//!
//! Layout (little-endian): header of 12 bytes `magic, entries, max, depth, generation`, then
//! entries of 12 bytes. The functions rely on `entries <= max`, which [`check_node`] has checked.
//! They do no I/O and allocate nothing.

use super::{DEPTH_MAX, Extent, WRITTEN_MAX};
use crate::system_zones::SystemZones;
use blockyard_disk::num::{high32, join32, low16, low32, u32_from_usize};
use blockyard_disk::{Corruption, CorruptionKind};

const MAGIC: u16 = 0xF30A;
const HEADER: usize = 12;
const ENTRY: usize = 12;

/// The `N` bytes from `at` on. Slicing checks the bounds once for all of them.
#[inline]
fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let part = &bytes[at..at + N];
    std::array::from_fn(|n| part[n])
}

#[inline]
fn get16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(part(bytes, at))
}

#[inline]
fn get32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(part(bytes, at))
}

fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Entries in use.
pub(super) fn count(bytes: &[u8]) -> usize {
    usize::from(get16(bytes, 2))
}

/// Entries that fit.
pub(super) fn max(bytes: &[u8]) -> usize {
    usize::from(get16(bytes, 4))
}

/// Levels below this node; 0 for a leaf.
pub(super) fn depth(bytes: &[u8]) -> usize {
    usize::from(get16(bytes, 6))
}

/// Sets the number of entries. The slots behind them keep their bytes.
pub(super) fn set_count(bytes: &mut [u8], entries: usize) {
    debug_assert!(entries <= max(bytes), "{entries} entries in a node for {}", max(bytes));
    put16(bytes, 2, low16(u32_from_usize(entries)));
}

/// Sets the node's height above the leaves.
pub(super) fn set_depth(bytes: &mut [u8], depth: usize) {
    debug_assert!(depth <= DEPTH_MAX, "a tree of depth {depth}");
    put16(bytes, 6, low16(u32_from_usize(depth)));
}

/// Entries that fit into a node of this many bytes.
pub(super) const fn fitting(bytes: usize) -> usize {
    (bytes - HEADER) / ENTRY
}

/// Writes the header of an empty node that fills `bytes`.
pub(super) fn format(bytes: &mut [u8], depth: usize) {
    debug_assert!(bytes.len() >= HEADER + ENTRY, "a node of {} bytes", bytes.len());
    let fits = fitting(bytes.len());
    bytes.fill(0);
    put16(bytes, 0, MAGIC);
    put16(bytes, 4, low16(u32_from_usize(fits)));
    set_depth(bytes, depth);
}

/// The root of an empty tree.
pub(crate) fn empty_root() -> [u8; super::ROOT_BYTES] {
    let mut root = [0; super::ROOT_BYTES];
    format(&mut root, 0);
    root
}

/// Logical block at which entry `index` starts. It lies at the same offset in leaf and index
/// entries.
#[inline]
pub(super) fn key(bytes: &[u8], index: usize) -> u32 {
    get32(bytes, HEADER + index * ENTRY)
}

/// Changes the logical block at which entry `index` starts.
pub(super) fn set_key(bytes: &mut [u8], index: usize, key: u32) {
    debug_assert!(index < count(bytes), "key {index} of {}", count(bytes));
    put32(bytes, HEADER + index * ENTRY, key);
}

/// Entry `index` of a leaf.
pub(super) fn leaf_entry(bytes: &[u8], index: usize) -> Extent {
    debug_assert!(index < count(bytes) && depth(bytes) == 0, "entry {index} of {}", count(bytes));
    let at = HEADER + index * ENTRY;
    let raw_len = u32::from(get16(bytes, at + 4));
    let unwritten = raw_len > WRITTEN_MAX;
    let len = if unwritten { raw_len - WRITTEN_MAX } else { raw_len };
    let physical = join32(u32::from(get16(bytes, at + 6)), get32(bytes, at + 8));
    Extent { logical: get32(bytes, at), len, physical, unwritten }
}

/// Overwrites entry `index` of a leaf.
pub(super) fn set_leaf_entry(bytes: &mut [u8], index: usize, extent: &Extent) {
    debug_assert!(index < max(bytes) && depth(bytes) == 0, "entry {index} of a node that has none");
    debug_assert!(extent.len > 0 && extent.len <= extent.len_max(), "an extent of {} blocks", extent.len);
    debug_assert!(extent.logical.checked_add(extent.len).is_some(), "an extent beyond the last block");
    let at = HEADER + index * ENTRY;
    let raw_len = if extent.unwritten { extent.len + WRITTEN_MAX } else { extent.len };
    put32(bytes, at, extent.logical);
    put16(bytes, at + 4, low16(raw_len));
    put16(bytes, at + 6, low16(high32(extent.physical)));
    put32(bytes, at + 8, low32(extent.physical));
}

/// The child block of entry `index` of an index node.
pub(super) fn child(bytes: &[u8], index: usize) -> u64 {
    debug_assert!(index < count(bytes) && depth(bytes) > 0, "entry {index} of {}", count(bytes));
    let at = HEADER + index * ENTRY;
    join32(u32::from(get16(bytes, at + 8)), get32(bytes, at + 4))
}

/// Overwrites entry `index` of an index node.
pub(super) fn set_index_entry(bytes: &mut [u8], index: usize, key: u32, child: u64) {
    debug_assert!(index < max(bytes) && depth(bytes) > 0, "entry {index} of a node that has none");
    debug_assert!(child > 0 && child >> 48 == 0, "a node at block {child}");
    let at = HEADER + index * ENTRY;
    put32(bytes, at, key);
    put32(bytes, at + 4, low32(child));
    put16(bytes, at + 8, low16(high32(child)));
    put16(bytes, at + 10, 0);
}

/// Makes room for one entry at `index`. There must be a free entry. The slot keeps its old content
/// until it is set.
pub(super) fn open_gap(bytes: &mut [u8], index: usize) {
    let entries = count(bytes);
    debug_assert!(entries < max(bytes) && index <= entries);
    let from = HEADER + index * ENTRY;
    bytes.copy_within(from..HEADER + entries * ENTRY, from + ENTRY);
    set_count(bytes, entries + 1);
}

/// Removes `n` entries from `index` on and zeroes the freed slots.
pub(super) fn close_gap(bytes: &mut [u8], index: usize, n: usize) {
    let entries = count(bytes);
    debug_assert!(index + n <= entries, "{n} entries at {index} of {entries}");
    let end = HEADER + entries * ENTRY;
    bytes.copy_within(HEADER + (index + n) * ENTRY..end, HEADER + index * ENTRY);
    bytes[end - n * ENTRY..end].fill(0);
    set_count(bytes, entries - n);
}

/// Moves entry `index` and all behind it to the node `to`, behind the entries of `to`.
pub(super) fn move_tail(bytes: &mut [u8], index: usize, to: &mut [u8]) {
    let (entries, have) = (count(bytes), count(to));
    debug_assert!(index <= entries && have + entries - index <= max(to), "no room for what moves");
    debug_assert_eq!(depth(bytes), depth(to));
    let from = HEADER + index * ENTRY..HEADER + entries * ENTRY;
    let at = HEADER + have * ENTRY;
    to[at..at + from.len()].copy_from_slice(&bytes[from.clone()]);
    bytes[from].fill(0);
    set_count(bytes, index);
    set_count(to, have + entries - index);
}

/// Position of the last entry whose key is at most `logical`; `None` if there is none.
pub(super) fn position(bytes: &[u8], logical: u32) -> Option<usize> {
    let (mut low, mut high) = (0, count(bytes));
    // The last entry is tried first, because most files grow at their end.
    if let Some(last) = high.checked_sub(1).filter(|&last| key(bytes, last) <= logical) {
        return Some(last);
    }
    while low < high {
        let middle = low.midpoint(high);
        if key(bytes, middle) <= logical {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low.checked_sub(1)
}

/// Checks a node read from the image, so that the other functions of this module do not read
/// outside the node or overflow. The caller has verified the checksum, and adds the location to an
/// error.
///
/// `depth_wanted` is `None` for a root, which may have any depth. `zones` says which blocks a
/// mapping may name.
pub(crate) fn check_node(
    bytes: &[u8],
    depth_wanted: Option<u16>,
    zones: &SystemZones,
) -> Result<(), Corruption> {
    check(bytes.len() >= HEADER && get16(bytes, 0) == MAGIC, CorruptionKind::ExtentMagic)?;
    check(depth(bytes) <= DEPTH_MAX, CorruptionKind::ExtentDepth)?;
    check(depth_wanted.is_none_or(|d| usize::from(d) == depth(bytes)), CorruptionKind::ExtentDepthOrder)?;
    check(max(bytes) > 0 && HEADER + max(bytes) * ENTRY <= bytes.len(), CorruptionKind::ExtentMax)?;
    check(count(bytes) <= max(bytes), CorruptionKind::ExtentEntries)?;
    check(depth(bytes) == 0 || count(bytes) > 0, CorruptionKind::ExtentIndexEmpty)?;
    if depth(bytes) == 0 { check_leaf(bytes, zones) } else { check_index(bytes, zones) }
}

/// Whether [`check_node`] accepts the header of a node.
pub(crate) fn has_sound_header(bytes: &[u8]) -> bool {
    bytes.len() >= HEADER
        && get16(bytes, 0) == MAGIC
        && depth(bytes) <= DEPTH_MAX
        && (1..=fitting(bytes.len())).contains(&max(bytes))
        && count(bytes) <= max(bytes)
        && (depth(bytes) == 0 || count(bytes) > 0)
}

fn check(ok: bool, kind: CorruptionKind) -> Result<(), Corruption> {
    if ok { Ok(()) } else { Err(Corruption::new(kind)) }
}

fn check_leaf(bytes: &[u8], zones: &SystemZones) -> Result<(), Corruption> {
    let mut free_from = 0u64;
    for index in 0..count(bytes) {
        let extent = leaf_entry(bytes, index);
        let end = u64::from(extent.logical) + u64::from(extent.len);
        check(extent.len > 0, CorruptionKind::ExtentLength)?;
        check(u64::from(extent.logical) >= free_from, CorruptionKind::ExtentOrder)?;
        check(end <= u64::from(u32::MAX), CorruptionKind::ExtentLogicalWrap)?;
        check(zones.may_map(extent.physical, u64::from(extent.len)), CorruptionKind::ExtentPhysical)?;
        free_from = end;
    }
    Ok(())
}

fn check_index(bytes: &[u8], zones: &SystemZones) -> Result<(), Corruption> {
    for index in 0..count(bytes) {
        let ascends = index == 0 || key(bytes, index) > key(bytes, index - 1);
        check(ascends, CorruptionKind::ExtentOrder)?;
        check(zones.may_map(child(bytes, index), 1), CorruptionKind::ExtentPhysical)?;
    }
    Ok(())
}
