//! # `rotalloc-v1`: one rotating cursor for the file system (first published version)
//!
//! **Idea.** A global cursor replaces the goal's group. It moves to wherever space was found. The
//! ladder of criteria is unchanged.
//!
//! **When it wins.** Successive writes spread over the device, so freed blocks rest before they are
//! used again.
//!
//! **When it loses.** Every search takes the cursor's lock. The goal's offset is tried in a group
//! that it does not belong to. Files no longer lie near their directory.
//!
//! **Parameters.** None of its own; those of `linux-6.18` apply.

use super::composition::{Cursor, Policy};
use super::linux_6_18;
use super::slots::{Accept, Rotation, Search};

/// The composition.
pub(super) const POLICY: Policy = Policy {
    preset: "rotalloc-v1",
    search: Search::Cursor,
    cursor: Cursor {
        rotation: Rotation::Global,
        accept: Accept::Ladder,
        sticky_inode: false,
        neighbour_first: false,
        ..linux_6_18::POLICY.cursor
    },
    ..linux_6_18::POLICY
};
