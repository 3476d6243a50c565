//! Where a search starts: the goal of an inode, lanes, stream goals, cursors.

pub(crate) mod cursors;
pub(crate) mod inode;
pub(crate) mod lanes;
pub(crate) mod stream;

pub use inode::{FirstBlock, first_goal, inode_goal, neighbour_goal};
