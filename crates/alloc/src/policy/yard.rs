//! # `yard`: our own, on the mechanism of `linux-6.18`
//!
//! **Idea.** Keep Linux's ladder and windows. Remove what makes parallel files touch each other,
//! and what makes freeing share a lock. Nine ideas, each with a slot of its own. (`overflow`,
//! `room` and `small_start` need `goal_group=first` or `goal_group=all`.)
//!
//! - `neighbour=always`: a request that continues an extent tries the very next block first. Linux
//!   does so only if normalisation made a window, and it makes none for small appends by
//!   `fallocate`.
//! - `lanes=cpu`: each CPU slot has a group of its own in the inode's flex group, and the first
//!   blocks of a file go there. Flex groups of 16 have 15 lanes; further slots use the next flex
//!   group. Linux starts all files of a directory in one group. Their writers share its lock, and
//!   their extents interleave until each file is long enough to be a stream.
//! - `overflow=lane`: a lane's group may have no room, often because it is full of clusters that
//!   wait for a commit. Then the next groups of the same lane, in other flex groups, are tried
//!   before the index. The index contains only groups that were loaded, often because others write
//!   there.
//! - `room=run`: what fallocate asks for begins in the first run of at least 512 free clusters near
//!   the goal, while there is one. In Linux it begins in the smallest chunk that holds the first
//!   request, often a leftover before another file's blocks.
//! - `goal_group=all`: the goal's group is visited, and loaded, before the index is walked. Linux's
//!   indexes hold only groups that were loaded once, so after a mount all writers gather in those
//!   few. Blocks of directories stay together. In Linux they go, one by one, to the most fragmented
//!   groups. (`goal_group=first` does this only for data.)
//! - `slot_start=zones`: stream goals start spread over the file system, not all at group 0.
//!   Writers do not have to collide before they separate.
//! - `normalise=streams`: small files get what they ask for. Large ones get windows, as in Linux.
//!   Linux preallocates runs of 512 blocks for the small files of each CPU, so the holes that
//!   deleted files leave are not filled.
//! - `small_start=run`: a small file begins in the first run of at least 2048 free clusters, if the
//!   goal's group or one of the next groups of its lane has an aligned chunk of that length. So
//!   small files that are written one after the other lie together. If no such group has one, the
//!   usual search finds a hole that fits. With `small_start=fit`, only the usual search is made: on
//!   an image aged as a build host, free space is then in far fewer pieces, but a tree takes longer
//!   to read.
//! - `freed_merge=by-group`: freed clusters wait in their group, and a set of groups leads to them.
//!   So freeing takes no lock but the group's.
//!
//! **When it wins.** Many files appended in parallel, as far as measured. In the lab, 64 writers
//! append 4 KiB at a time until each has written 1 GiB. With `--interleave overlap`, this leaves 8
//! extents in each file (`linux-6.18`: 197). With `--interleave lockstep`, it leaves one extent
//! (`linux-6.18`: one for each block). Files that are truncated and written again and again, also
//! by threads, have one extent where `linux-6.18` leaves 2 to 128. Freeing in parallel with
//! allocating.
//!
//! **When it loses.** If several CPUs write files into one directory, the files of each CPU lie in
//! a group of their own. A scan of the directory in order of names seeks between these groups, and
//! small files touch more groups. A file that shrinks and grows keeps its old neighbourhood even if
//! there is a better place. Large files of one directory start in different zones, so reading them
//! one after the other seeks more.
//!
//! **Parameters.** As `linux-6.18`. There are `min(CPUs, ceil(groups / 4))` zones. A flex group has
//! one lane less than it has groups (none if it has fewer than 4 groups).

use super::composition::Policy;
use super::linux_6_18;
use super::slots::{
    FreedMerge, GoalGroup, Lanes, Neighbour, Normalise, Overflow, Room, SlotStart, SmallStart,
};

/// The composition.
pub(super) const POLICY: Policy = Policy {
    preset: "yard",
    lanes: Lanes::Cpu,
    overflow: Overflow::Lane,
    room: Room::Run,
    small_start: SmallStart::Run,
    goal_group: GoalGroup::All,
    neighbour: Neighbour::Always,
    slot_start: SlotStart::Zones,
    normalise: Normalise::Streams,
    freed_merge: FreedMerge::ByGroup,
    ..linux_6_18::POLICY
};
