//! # `ext4-2009`: Orlov's spreading for flex groups, as it first was (2.6.30)
//!
//! **Idea.** Directories of the root are spread over flex groups; directories below them stay with
//! their parent. In each flex group, directory blocks have the first group, right behind the inode
//! tables. Data begins in the second.
//!
//! **When it wins.** Against `ext4-2008` wherever directories are read, because their blocks lie
//! together. When one flex group has run out of inodes, those of other flex groups are used.
//!
//! **When it loses.** On file systems that are more than three quarters full, every flex group
//! fails the bound on free space. A directory below those of the root then goes to the first group,
//! from its parent's on, that has at least average free inodes. Where a directory of the root goes
//! is random. Small files still follow one goal around the disk.
//!
//! **Parameters.** The block search is that of `ext4-2008`, with `first_groups=avoid` and today's
//! goals except for `goal_logical=added`. The differences from today's spreading can be switched on
//! one by one under `inode=orlov-flex`: `random_start`, `max_dirs_by_group`, `min_clusters_wrap`,
//! `average_in_blocks`. A fifth, `used_dirs_fault`, is off in this preset, because we know that bug
//! only from a list of patches. Later features are refused by name.

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
