//! # `best-fit`: the shortest run that is long enough
//!
//! **Idea.** Groups are searched in order, from the goal's group on. The first group with a run
//! that holds the whole request serves it, from the shortest such run. If no group has one, the
//! request gets the longest run of the first group with space.
//!
//! **When it wins.** Requests of few sizes that come and go: holes are filled exactly and long runs
//! survive.
//!
//! **When it loses.** A group is scanned to its end unless a run fits exactly. Requests of mixed
//! sizes leave remainders that are too short for later requests. Files that grow in turns
//! interleave.
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
