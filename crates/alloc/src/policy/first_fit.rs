//! # `first-fit`: the first run that is long enough
//!
//! **Idea.** From the inode's goal on, it takes the first free run that holds the whole request.
//! If no group has one, it takes the first free run of any length. There is no window, no
//! preallocation and no index, and nothing is remembered.
//!
//! **When it wins.** Few files that are written whole. It is also the simplest policy to compare
//! with.
//!
//! **When it loses.** Files that grow in turns interleave, since nothing is kept ahead of them.
//! From its goal on, every request passes the same full groups again, and scans again each group
//! whose runs are all too short.
//!
//! **Parameters.** None.

use super::composition::Policy;
use super::linux_6_18;
use super::slots::{Choose, Ladder, Normalise, Scan, Slots};

/// The composition.
pub(super) const POLICY: Policy = Policy {
    preset: "first-fit",
    normalise: Normalise::Exact,
    slots: Slots::None,
    scan: Scan::Linear,
    ladder: Ladder::Slow,
    choose: Choose::First,
    ..linux_6_18::POLICY
};
