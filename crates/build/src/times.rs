//! Counts the modification times that the inodes of an image cannot hold. Each becomes the nearest
//! time that an inode can hold, as on Linux.

use crate::shape::Shape;
use crate::tree::{Node, NodeId, Tree};
use blockyard_disk::Timestamp;
use blockyard_disk::num::u64_from_usize;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Size in bytes of inodes whose times have 32 bits.
const INODE_SHORT: u16 = 128;

/// Names whose modification times the inodes cannot hold; see
/// [`Plan::moved_times`](crate::Plan::moved_times).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedTimes {
    /// Their number.
    pub count: u64,
    /// The path of the first one.
    pub path: PathBuf,
    /// The times that the inodes can hold, in seconds since 1970.
    pub possible: RangeInclusive<i64>,
}

impl MovedTimes {
    /// Counts such names in a tree; `None` if there are none.
    pub(crate) fn of(tree: &Tree, shape: &Shape) -> Option<Self> {
        let is_short = shape.inode_size <= INODE_SHORT;
        let latest = if is_short { Timestamp::SECONDS_MAX_SHORT } else { Timestamp::SECONDS_MAX };
        let possible = Timestamp::SECONDS_MIN..=latest;
        let is_moved = |node: &Node| !possible.contains(&node.modified.seconds);
        let names = (0..).zip(&tree.directories).flat_map(|(directory, of)| {
            (0..).zip(&of.nodes).map(move |(child, node)| (Some(NodeId { directory, child }), node))
        });
        let all = std::iter::once((None, &tree.root)).chain(names);
        let mut moved = all.filter(|(_, node)| is_moved(node));
        let (first, _) = moved.next()?;
        let count = 1 + u64_from_usize(moved.count());
        let path = first.map_or_else(|| tree.host_path(b""), |id| tree.host_path_of(id));
        Some(Self { count, path, possible })
    }
}
