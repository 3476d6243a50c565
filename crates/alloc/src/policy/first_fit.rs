//! # `first-fit`: the first run that is long enough
//!
//! **Idea.** From the inode's group on, take the first free run that holds the whole request; when
//! no group has one, the first free run of any length. No window, no preallocation, no index,
//! nothing remembered.
//!
//! **When it wins.** Few files written whole; it is also the simplest thing to compare with.
//!
//! **When it loses.** Files that grow in turns interleave, since nothing is kept ahead of them;
//! full groups at the front are scanned again by every request.
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
