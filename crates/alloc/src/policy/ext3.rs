//! # `ext3`: the placement of ext3
//!
//! **Idea.** Directories of the root start in random block groups, among those with the fewest
//! directories. Inodes below them stay in their parent's group while there is room. The search for
//! a file's first block begins in the inode's group, at the start of one of 16 equal parts. The
//! writer's process selects the part. Every later block goes right after the one before it in its
//! file. If that place is taken, the next free place after it is used. Each file that is written
//! has a window of blocks to itself, so files that are written side by side do not interleave block
//! by block. The window is 8 blocks at first. If more than half of it was used, the next window is
//! twice as long (at most 1,027 blocks). Blocks are chosen at the write, one at a time. Indirect
//! blocks are allocated in one sequence with the data, so they lie between data blocks.
//!
//! **When it wins.** Files stay near their directory and their inode. Reading a file meets its
//! indirect blocks on the way.
//!
//! **When it loses.** With blocks of 4 KiB, large files have an indirect block every 4 MiB, and a
//! check must seek to each of them. Nothing looks for a run that is long enough, so files break up
//! in aged space. Directories lie among data. Every block costs a request.
//!
//! **Parameters.** No numbers. The search is `search=windows`. Variants are `inode=oldalloc`,
//! `debt=on` (ext2) and `when=write-back`. The image has block maps (`mkfs -t ext3`); later
//! features are refused by name.

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
