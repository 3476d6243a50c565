//! # `best-fit`: the shortest run that is long enough
//!
//! **Idea.** From the inode's group on, the first group that has a run for the whole request gives
//! its shortest such run; when no group has one, the longest run of the first group with space.
//!
//! **When it wins.** Requests of few sizes that come and go: holes are filled exactly and long runs
//! survive.
//!
//! **When it loses.** Every group met is scanned whole; mixed sizes leave remainders too short for
//! anything; files that grow in turns interleave.
//!
//! **Parameters.** None.

use super::composition::Policy;
use super::linux_6_18;
use super::slots::{Choose, Ladder, Normalise, Scan, Slots};

/// The composition.
pub(super) const POLICY: Policy = Policy {
    preset: "best-fit",
    normalise: Normalise::Exact,
    slots: Slots::None,
    scan: Scan::Linear,
    ladder: Ladder::Slow,
    choose: Choose::Best,
    ..linux_6_18::POLICY
};
