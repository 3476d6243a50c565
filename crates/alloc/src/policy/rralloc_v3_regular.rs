//! # `rralloc-v3-regular`: what the third published version does to the regular policy
//!
//! **Idea.** The hashed stream goals are gone. A stream starts where its own inode last found
//! space, or at group 0 if it never did. (The round-robin policy of this version equals
//! `rralloc-v2`.)
//!
//! **When it wins.** Long-lived appended files: nobody else moves their goal. This preset is the
//! author's test of per-inode goals on the stock policy. That test gave nearly all of the published
//! tail-latency gain of round-robin allocation.
//!
//! **When it loses.** Every new large file starts at group 0, so new large files that are written
//! in parallel collide there.
//!
//! **Parameters.** As `linux-6.18`.

use super::composition::Policy;
use super::linux_6_18;
use super::slots::Slots;

/// The composition.
pub(super) const POLICY: Policy =
    Policy { preset: "rralloc-v3-regular", slots: Slots::Inode, ..linux_6_18::POLICY };
