//! # `inode-cursor`: the sticky inode goal of `rralloc-v2` without rotation
//!
//! **Idea.** A file goes on in the group it last found space in, taking the first free run; nothing
//! rotates. A file without a cursor starts at the goal the caller gave.
//!
//! **When it wins.** Files that grow for long: each goes on where it was. An ablation of ours,
//! which was never published: the published test with per-inode goals alone, which gave nearly all
//! of the tail-latency gain, is `rralloc-v3-regular`.
//!
//! **When it loses.** As `rralloc-v2`: runs of any length, directories and metadata included.
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
