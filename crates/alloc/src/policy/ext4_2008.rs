//! # `ext4-2008`: the first allocator of ext4 (2.6.27 to 2.6.29)
//!
//! **Idea.** Every inode, directory or not, goes to its parent's flex group while more than a tenth
//! of it is free, else to the lowest that has room: flex groups fill up one after the other. Blocks
//! are sought from the inode's own group on, by four criteria over all groups in turn. Small files
//! share preallocations that follow one another around the disk; large ones start at their inode.
//!
//! **When it wins.** The front of the disk is filled densely, groups that were never used stay so,
//! and inode tables are read in one go.
//!
//! **When it loses.** Directories lie between the data of a whole flex group, so that reading all
//! of them seeks to nearly each one. It may say that there are no inodes while there are: the
//! parent's flex group is never looked at again. Every request walks the groups one by one, and
//! reads the bitmaps of those that it meets.
//!
//! **Parameters.** As `linux-6.16` where it says nothing else. `inode=flex-2008-fallback` is the
//! mend of 2.6.29. Each difference is a slot: `ladder=four`, `first_groups=use`,
//! `fresh_groups=pass`, `unloaded=load`, `stream_files=small`, `stream_learns=all-data`,
//! `small_files=below`, `closed_files=window`, `merge_goal=request`, `locality_ties=last`,
//! `short_runs=offer`, `stripe_rule=exact`, `longest=group-less-10`, `goal_base=own-group`,
//! `goal_colour=always`, `goal_logical=added`. What came later is refused by name.

use super::composition::Policy;
use super::linux_6_16;
use super::slots::{
    ClosedFiles, DirBlocks, Era, FirstGroups, FreshGroups, GoalBase, GoalColour, GoalLogical, InodeGroup,
    Ladder, LocalityTies, Longest, MergeGoal, Scan, ShortRuns, SmallFiles, StreamFiles, StreamLearns,
    StripeRule, TopFlag, Unloaded,
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
    longest: Longest::GroupLess10,
    ..linux_6_16::POLICY
};
