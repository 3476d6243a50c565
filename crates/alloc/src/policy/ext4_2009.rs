//! # `ext4-2009`: Orlov's spreading for flex groups, as it first was (2.6.30)
//!
//! **Idea.** Directories of the root are spread over flex groups, those below stay with their
//! parent. In each flex group directory blocks have the first group, right behind the inode tables,
//! and data begins in the second.
//!
//! **When it wins.** Against `ext4-2008` wherever directories are read: they lie together. A flex
//! group that runs out of inodes is no reason to say that there are none.
//!
//! **When it loses.** On file systems more than three quarters full every flex group fails the
//! bound of free space, and directories go group by group. Where a top directory goes is chance.
//! Small files still follow one goal around the disk.
//!
//! **Parameters.** The block search is that of `ext4-2008`, with `first_groups=avoid` and the goals
//! of today but `goal_logical=added`. What differs from today's spreading can be switched on one by
//! one under `inode=orlov-flex`: `random_start`, `max_dirs_by_group`, `min_clusters_wrap`,
//! `average_in_blocks`; and `used_dirs_fault`, which is known from a list of patches only and is
//! off. What came later is refused by name.

use super::composition::Policy;
use super::ext4_2008;
use super::slots::{DirBlocks, FirstGroups, GoalBase, GoalColour, InodeGroup, TopFlag};

/// The composition.
pub(super) const POLICY: Policy = Policy {
    preset: "ext4-2009",
    inode: InodeGroup::Orlov2009,
    top_flag: TopFlag::Stays,
    dir_blocks: DirBlocks::FlexFirst,
    goal_base: GoalBase::Flex,
    goal_colour: GoalColour::Undelayed,
    first_groups: FirstGroups::Avoid,
    ..ext4_2008::POLICY
};
