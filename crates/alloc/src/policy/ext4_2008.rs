//! # `ext4-2008`: the first allocator of ext4 (2.6.27 to 2.6.29)
//!
//! **Idea.** Every inode, directory or not, goes to its parent's flex group while that has free
//! inodes and at least 11 % of its blocks free. Otherwise it goes to the flex group before that one
//! if there is as much room, or else to the lowest with as much room. So flex groups fill up one
//! after the other. The search for blocks goes over all groups from the inode's own group on, by
//! four criteria. Small files share preallocations that follow one another around the disk. Large
//! files start at their inode.
//!
//! **When it wins.** The front of the disk is filled densely. Groups that were never used stay
//! unused, and inode tables are read in one go.
//!
//! **When it loses.** Directories lie among the data of a whole flex group, so reading all of them
//! seeks to nearly each one. The search may report that no inode is free although some are, because
//! it does not look at the parent's flex group again (unless that is the lowest). Every request
//! walks the groups one by one, and reads the bitmaps of those that it meets.
//!
//! **Parameters.** As `linux-6.16`, except for the slots here. `inode=flex-2008-fallback` is the
//! fix of 2.6.29. Each difference is a slot: `scan=linear`, `ladder=four`, `first_groups=use`,
//! `fresh_groups=pass`, `unloaded=load`, `stream_files=small`, `stream_learns=all-data`,
//! `small_files=below`, `closed_files=window`, `merge_goal=request`, `locality_ties=last`,
//! `short_runs=offer`, `stripe_rule=exact`, `short_windows=least`, `space_retries=unlimited`,
//! `longest=group-less-10`, `goal_base=own-group`, `goal_colour=always`, `goal_logical=added`,
//! `inode=flex-2008`, `top_flag=inherited`, `dir_blocks=with-data`, `era=ext4-2008` (later features
//! are refused by name).

use super::composition::Policy;
use super::linux_6_16;
use super::slots::{
    ClosedFiles, DirBlocks, Era, FirstGroups, FreshGroups, GoalBase, GoalColour, GoalLogical, InodeGroup,
    Ladder, LocalityTies, Longest, MergeGoal, Scan, ShortRuns, ShortWindows, SmallFiles, SpaceRetries,
    StreamFiles, StreamLearns, StripeRule, TopFlag, Unloaded,
};

/// The composition.
pub(super) const POLICY: Policy = Policy {
    preset: "ext4-2008",
    scan: Scan::Linear,
    ladder: Ladder::FourSteps,
    inode: InodeGroup::Flex2008,
    top_flag: TopFlag::Inherited,
    dir_blocks: DirBlocks::WithData,
    goal_base: GoalBase::OwnGroup,
    goal_colour: GoalColour::Always,
    goal_logical: GoalLogical::Added,
    era: Era::Ext4Of2008,
    first_groups: FirstGroups::Use,
    fresh_groups: FreshGroups::Pass,
    unloaded: Unloaded::Load,
    stream_files: StreamFiles::Small,
    stream_learns: StreamLearns::AllData,
    small_files: SmallFiles::Below,
    closed_files: ClosedFiles::Window,
    merge_goal: MergeGoal::Request,
    locality_ties: LocalityTies::Last,
    short_runs: ShortRuns::Offer,
    stripe_rule: StripeRule::Exact,
    short_windows: ShortWindows::Least,
    space_retries: SpaceRetries::Unlimited,
    longest: Longest::GroupLess10,
    ..linux_6_16::POLICY
};
