//! # `rralloc-v2`: round robin by group with cursors for CPUs and inodes (second version)
//!
//! **Idea.** Each CPU starts in its own zone, and each file sticks to the group where it last found
//! space. From there, the first group with a free cluster gives its first free run, whatever its
//! length.
//!
//! **When it wins.** Many files appended in parallel on a device without seek times. Allocation
//! spreads over the device instead of using the lowest holes again.
//!
//! **When it loses.** It accepts runs of any length, so files break up as space ages. Directory
//! and metadata blocks follow the cursors too, so they are not kept together. A hit through a
//! file's cursor moves the CPU's cursor as well, so zones merge when threads migrate.
//!
//! **Parameters.** Each CPU has a zone of `groups / CPUs` groups. A file cannot remember group 0
//! (as published).

use super::composition::{Cursor, Policy};
use super::linux_6_18;
use super::slots::{Accept, Rotation, Search};

/// The composition.
pub(super) const POLICY: Policy = Policy {
    preset: "rralloc-v2",
    search: Search::Cursor,
    cursor: Cursor {
        rotation: Rotation::PerCpu,
        accept: Accept::Any,
        sticky_inode: true,
        neighbour_first: false,
        inode_moves_cpu: true,
        zero_is_unset: true,
        ..linux_6_18::POLICY.cursor
    },
    ..linux_6_18::POLICY
};
