//! # `best-fit`: the shortest run that is long enough
//!
//! **Idea.** It searches the groups in order, from the goal's group on. The first group that has a
//! run for the whole request serves it, from the shortest such run. If no group has one, it takes
//! the longest run of the first group with space.
//!
//! **When it wins.** Requests of few sizes that come and go: holes are filled exactly and long runs
//! survive.
//!
//! **When it loses.** A group is scanned to its end unless a run fits exactly. Mixed sizes leave
//! remainders that are too short for anything. Files that grow in turns interleave.
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
