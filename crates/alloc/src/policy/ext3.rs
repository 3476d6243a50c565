//! # `ext3`: the placement of ext3
//!
//! **Idea.** Directories of the root start in block groups at random, among those with the fewest;
//! below, everything stays in its directory's group while there is room. A block goes right after
//! the one before it in its file, else to the next free place after the start of the inode's group
//! and the sixteenth of the writer's process. Who writes a file has a window of blocks to itself, 8
//! at first and doubled while it is used, so that writers side by side do not interleave. Blocks
//! are chosen at the write, one at a time; indirect blocks lie where the data goes on.
//!
//! **When it wins.** Files stay near their directory and their inode; reading a file meets its
//! indirect blocks on the way.
//!
//! **When it loses.** Large files have an indirect block every 4 MiB, which a check must seek to
//! one by one. Nothing looks for a run that is long enough: in aged space files break up.
//! Directories lie among data. Every block costs a request.
//!
//! **Parameters.** None that are numbers. Slots: `search=windows`, `inode=oldalloc`, `debt=on`
//! (ext2), `when=write-back`. The image has block maps (`--profile ext3`); what came later is
//! refused by name.

use super::composition::Policy;
use super::linux_6_18;
use super::slots::{
    Busy, DirBlocks, Era, FreePending, FreedMerge, GoalBase, GoalColour, InodeGroup, Normalise, Scan, Search,
    Slots, TopFlag, When,
};

/// The composition.
pub(super) const POLICY: Policy = Policy {
    preset: "ext3",
    search: Search::Windows,
    normalise: Normalise::Exact,
    slots: Slots::None,
    scan: Scan::Linear,
    busy: Busy::Wait,
    free_pending: FreePending::Md,
    freed_merge: FreedMerge::After,
    inode: InodeGroup::OrlovExt3,
    top_flag: TopFlag::Inherited,
    dir_blocks: DirBlocks::WithData,
    goal_base: GoalBase::OwnGroup,
    goal_colour: GoalColour::Always,
    when: When::Write,
    era: Era::Ext3,
    ..linux_6_18::POLICY
};
