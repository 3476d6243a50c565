//! # `inode-cursor`: the sticky inode goal of `rralloc-v2` without rotation
//!
//! **Idea.** A file goes on in the group where it last found space, and takes the first free run.
//! Nothing rotates. A file without a cursor starts at the goal that the caller gave.
//!
//! **When it wins.** Files that grow for a long time: each goes on where it was. The preset is our
//! own, to measure the inode's cursor alone. (The author of `rralloc-v2` published such a test too;
//! that is `rralloc-v3-regular`.)
//!
//! **When it loses.** As `rralloc-v2`: it accepts runs of any length, for directories and metadata
//! as well.
//!
//! **Parameters.** None.

use super::composition::{Cursor, Policy};
use super::rralloc_v2;
use super::slots::Rotation;

/// The composition.
pub(super) const POLICY: Policy = Policy {
    preset: "inode-cursor",
    cursor: Cursor { rotation: Rotation::None, ..rralloc_v2::POLICY.cursor },
    ..rralloc_v2::POLICY
};
