//! # `yard`: our own, on the mechanism of `linux-6.18`
//!
//! **Idea.** Keep Linux's ladder and windows; remove what makes parallel files touch each other, and what makes
//! freeing share a lock. Three ideas, each a slot that can be switched off alone:
//! - `neighbour=always`: a request that continues an extent tries the very next block first. Linux does so only when
//!   normalisation made a window, so small preallocating appends (`fallocate`) never do.
//! - `slot_start=zones`: stream goals start spread over the file system, not all at group 0, so writers do not have to
//!   collide before they part.
//! - `freed_merge=by-group`: freed clusters wait in their group and are found again by a set of groups, so freeing
//!   takes no lock but the group's.
//!
//! **When it wins.** Many files appended in parallel: extents as long as a group allows; freeing beside allocating.
//!
//! **When it loses.** A file that shrinks and grows keeps its old neighbourhood although a better place may exist;
//! files of one directory start in zones apart, so reading a directory's large files in order seeks more.
//!
//! **Parameters.** As `linux-6.18`; the number of zones is `min(CPUs, groups / 4)`.

use super::Policy;
use super::linux_6_18;
use super::slots::{FreedMerge, Neighbour, SlotStart};

/// The composition.
pub(super) const POLICY: Policy = Policy {
    preset: "yard",
    neighbour: Neighbour::Always,
    slot_start: SlotStart::Zones,
    freed_merge: FreedMerge::ByGroup,
    ..linux_6_18::POLICY
};
