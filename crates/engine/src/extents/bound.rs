//! How many nodes a tree may gain when entries are added. For delayed data, that many blocks are
//! reserved in addition to the blocks of the data itself. So write-back never lacks a block to
//! split a leaf.

use super::{DEPTH_MAX, ROOT_BYTES, ROOT_ENTRIES, node};
use blockyard_disk::num::u64_from_usize;

/// The most blocks of `block_size` bytes that a tree with this root may gain when `appended`
/// entries are added behind all others, in ascending order, and `inserts` entries anywhere.
///
/// Appended entries fill one leaf after the other. An inserted entry may split a node on each
/// level. The next inserted entry may do so again, because a split moves only what lies right of
/// the inserted entry. A new level of the tree begins with a node that has only the entries of a
/// root. This node must fill up before it can split.
pub(crate) fn blocks_for_entries(
    root: &[u8; ROOT_BYTES],
    block_size: usize,
    appended: usize,
    inserts: usize,
) -> u64 {
    let (entries, depth) = (node::count(root), node::depth(root));
    let in_node = node::fitting(block_size);
    let all = appended + inserts;
    if all == 0 || (depth == 0 && entries + all <= ROOT_ENTRIES) {
        return 0;
    }
    let levels = depth.max(1);
    let late = inserts.saturating_sub(in_node - ROOT_ENTRIES);
    let splits = levels * inserts + (DEPTH_MAX - levels) * late;
    u64_from_usize(appended.div_ceil(in_node / 2) + splits + depth + 2)
}

#[cfg(test)]
mod tests {
    use super::blocks_for_entries;
    use crate::extents::{empty_root, node};

    #[test]
    fn a_root_with_room_needs_no_block() {
        let mut root = empty_root();
        node::set_count(&mut root, 1);
        assert_eq!(blocks_for_entries(&root, 1024, 3, 0), 0);
        assert_eq!(blocks_for_entries(&root, 1024, 1, 2), 0);
        assert_eq!(blocks_for_entries(&root, 1024, 4, 0), 3);
        node::set_depth(&mut root, 1);
        assert_eq!(blocks_for_entries(&root, 1024, 43, 0), 5);
        // Each of seven inserted entries may split a leaf.
        assert_eq!(blocks_for_entries(&root, 1024, 0, 7), 10);
    }
}
