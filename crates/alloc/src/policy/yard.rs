//! # `yard`: our own, on the mechanism of `linux-6.18`
//!
//! **Idea.** Keep Linux's ladder and windows; remove what makes parallel files touch each other,
//! and what makes freeing share a lock. Eight ideas, each a slot that can be switched off alone:
//! - `neighbour=always`: a request that continues an extent tries the very next block first. Linux
//!   does so only when normalisation made a window, so small preallocating appends (`fallocate`)
//!   never do.
//! - `lanes=cpu`: the first blocks of a file go to a group of the inode's flex group that its CPU
//!   slot has for itself (15 lanes in flex groups of 16; slots beyond take the next flex group).
//!   Linux starts all files of a directory in one group, where their writers share a lock and their
//!   extents interleave until each is long enough to be a stream.
//! - `overflow=lane`: where the group of a lane has no place, because it is full of clusters that
//!   wait for a commit, the same lane of the next flex group is tried before the index, which knows
//!   only groups that were loaded: those where others write.
//! - `room=run`: what fallocate asks for begins in the first run of 512 free clusters, not in the
//!   smallest chunk that holds the first request, which is often a leftover before somebody else's
//!   blocks.
//! - `goal_group=all`: the goal's group is visited, and loaded, before the index is walked. Linux's
//!   indexes hold only groups that were loaded once: after a mount all writers gather in the few
//!   there are. Blocks of directories stay together, where Linux's go, one by one, to the groups
//!   whose space is most in pieces (`goal_group=first`: data only).
//! - `slot_start=zones`: stream goals start spread over the file system, not all at group 0, so
//!   writers do not have to collide before they part.
//! - `normalise=streams`: small files get what they ask for, where it fits; large ones get windows,
//!   as Linux's do. Linux cuts a run of 512 blocks for the small files of each CPU, and the holes
//!   that deleted files leave stay. On aged images half as many free extents remain, and files are
//!   in fewer pieces.
//! - `freed_merge=by-group`: freed clusters wait in their group and are found again by a set of
//!   groups, so freeing takes no lock but the group's.
//!
//! **When it wins.** Many files appended in parallel, as far as it was measured: 64 writers that
//! overlap in the lab's repeatable model and append 4 KiB at a time to 1 GiB each leave 8 extents a
//! file (`linux-6.18` 197), writers that take turns one (`linux-6.18` one a block). Files that are
//! truncated and written again and again, by threads, too: one extent where `linux-6.18` leaves 2
//! to 50. Freeing beside allocating.
//!
//! **When it loses.** Files that several CPUs write into one directory lie in as many groups of its
//! flex group, so a scan of the directory in order of names seeks between them, and small files
//! touch more groups. A file that shrinks and grows keeps its old neighbourhood although a better
//! place may exist. Large files of one directory start in zones apart, so reading them one after
//! the other seeks more.
//!
//! **Parameters.** As `linux-6.18`; the number of zones is `min(CPUs, groups / 4)`, that of lanes
//! the groups of a flex group less one (none in flex groups of fewer than 4).

use super::composition::Policy;
use super::linux_6_18;
use super::slots::{FreedMerge, GoalGroup, Lanes, Neighbour, Normalise, Overflow, Room, SlotStart};

/// The composition.
pub(super) const POLICY: Policy = Policy {
    preset: "yard",
    lanes: Lanes::Cpu,
    overflow: Overflow::Lane,
    room: Room::Run,
    goal_group: GoalGroup::All,
    neighbour: Neighbour::Always,
    slot_start: SlotStart::Zones,
    normalise: Normalise::Streams,
    freed_merge: FreedMerge::ByGroup,
    ..linux_6_18::POLICY
};
