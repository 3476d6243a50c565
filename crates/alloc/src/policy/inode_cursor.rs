//! # `inode-cursor`: the sticky inode goal of `rralloc-v2` without rotation
//!
//! **Idea.** A file goes on in the group it last found space in, taking the first free run; nothing rotates. A file
//! without a cursor starts at the goal the caller gave.
//!
//! **When it wins.** It gave nearly all of the published tail-latency gain of round-robin allocation.
//!
//! **When it loses.** As `rralloc-v2`: runs of any length, directories and metadata included.
//!
//! **Parameters.** None.

use super::slots::Rotation;
use super::{Cursor, Policy, rralloc_v2};

/// The composition.
pub(super) const POLICY: Policy = Policy {
    preset: "inode-cursor",
    cursor: Cursor { rotation: Rotation::None, ..rralloc_v2::POLICY.cursor },
    ..rralloc_v2::POLICY
};
